"""The broker as a program: exit codes, signals, a kill under load, a disk that fails."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker import main
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_record
from aerobee_service.program.systemd import ServiceNotifier
from aerobee_store.faults import failpoints
from broker.replication.pairs import (
    FAST,
    caught_up,
    eventually,
    log_files,
    master_side,
    meet,
    running_slave,
)
from programs import Server
from system.running import Talker, broker_config, running_broker, send_request, talking, text_of

FILE_SIZE = 256 * 1024
# What a process runs whose disk fails from the moment at which a file exists.
FAILING = """
import errno, pathlib, sys
from aerobee_broker.main import main
from aerobee_store.faults import failpoints
flag = pathlib.Path(sys.argv.pop(1))
def sync():
    if flag.exists():
        raise OSError(errno.EIO, "Input/output error")
failpoints.arm("commit_log.before_sync", sync)
sys.exit(main())
"""


def words(store: Path, **settings: object) -> list[str]:
    values = {
        "storePathRootDir": store,
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "mappedFileSizeCommitLog": FILE_SIZE,
        "mappedFileSizeConsumeQueue": 2000,
        "maxHashSlotNum": 500,
        "maxIndexNum": 2000,
        "metricsExporterType": "DISABLE",
        **settings,
    }
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@contextmanager
def program(command: list[str]) -> Iterator[tuple[Server, int]]:
    """A broker process that serves, and its port."""
    server = Server("our broker", [sys.executable, *command], "", r"broker\.ready")
    try:
        address = json.loads(server.wait_line(r"broker\.ready", 1))["address"]
        yield server, int(address.rpartition(":")[2])
    finally:
        server.kill()


def events(server: Server) -> list[str]:
    return [json.loads(line)["event"] for line in server.output.splitlines() if line.startswith("{")]


# --- settings -----------------------------------------------------------------------------------------------------


def test_wrong_settings_are_named_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--set", "listenPrt=10911"]) == 2
    said = capsys.readouterr().err
    assert "listenPrt" in said
    assert "listenPort" in said
    assert main.main(["--set", "listenPort=many"]) == 2
    assert "listenPort" in capsys.readouterr().err
    assert main.main(["-c", "/nowhere/broker.conf"]) == 2
    assert "/nowhere/broker.conf" in capsys.readouterr().err


def test_a_setting_without_a_value_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--set", "listenPort"])
    assert ended.value.code == 2
    assert "KEY=VALUE" in capsys.readouterr().err


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName = from-file\nlistenPort = 1\n")
    config = main.load_config(file, {"listenPort": "2"})
    assert (config.broker_name, config.listen_port) == ("from-file", 2)


def test_without_a_store_folder_the_home_has_it_wherever_the_broker_is_started(tmp_path: Path) -> None:
    """The default was a folder named `~` in the current one: from elsewhere the messages were gone."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    sizes = [word for word in words(home) if not word.startswith("storePathRootDir")]
    command = [sys.executable, "-m", "aerobee_broker", *sizes[1:]]
    with Server("broker", command, "", r"broker\.ready", env={"HOME": str(home)}, cwd=here) as server:
        assert json.loads(server.wait_line(r"broker\.ready", 1))["store"] == f"{home}/store"
        assert (home / "store" / "lock").exists()
        assert list(here.iterdir()) == []


def test_a_store_in_a_folder_named_tilde_is_not_left_behind_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "configure_logging", lambda: None)
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    monkeypatch.chdir(tmp_path)
    stray = tmp_path / "~" / "store"
    assert main.stray_store(main.load_config(None, {})) is None
    (stray / "commitlog").mkdir(parents=True)
    assert main.run(main.load_config(None, {})) == 2
    said = capsys.readouterr().err
    assert f"mv '{stray}' {tmp_path}/home/store " in said
    assert f"--set storePathRootDir='{stray}'" in said
    assert main.stray_store(main.load_config(None, {"storePathRootDir": str(stray)})) is None


# --- in this process ----------------------------------------------------------------------------------------------


class Watched(ServiceNotifier):
    """A notifier that calls back when the service is ready."""

    def __init__(self) -> None:
        super().__init__({}, os.getpid())
        self.is_ready = asyncio.Event()
        self.texts: list[str] = []

    def status(self, text: str) -> bool:
        self.texts.append(text)
        return super().status(text)

    def ready(self, status: str) -> bool:
        self.is_ready.set()
        return super().ready(status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    notifier = Watched()
    with capture_logs() as logs:
        serving = asyncio.create_task(main.serve(broker_config(tmp_path), notifier))
        async with asyncio.timeout(10):
            await notifier.is_ready.wait()
            assert (tmp_path / "abort").exists()
            os.kill(os.getpid(), number)
            assert await serving == 0
    assert not (tmp_path / "abort").exists()
    assert [entry["failed"] for entry in logs if entry["event"] == "broker.stopped"] == [False]


async def test_a_start_after_a_crash_tells_the_service_manager_how_far_it_is(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as talker:
        talker.send(send_request("T", b"hello"))
        assert {answer.code for answer in (await talker.answers(1)).values()} == {ResponseCode.SUCCESS}
    (tmp_path / "checkpoint").unlink()  # nothing says how far a sync came: all of the log is read
    (tmp_path / "abort").touch()
    notifier = Watched()
    serving = asyncio.create_task(main.serve(broker_config(tmp_path), notifier))
    async with asyncio.timeout(10):
        await notifier.is_ready.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0
    assert [text.split(",")[0] for text in notifier.texts] == ["starting: log and queues"]


async def test_another_role_is_another_life_of_the_same_process(tmp_path: Path) -> None:
    """What was stored is there, the port is the same, and the settings file has the role."""
    file, store = tmp_path / "broker.conf", tmp_path / "store"
    file.write_text("listenPort = 0\n")
    notifier = Watched()
    config = broker_config(store, broker_id=0)

    def ready(logs: list[Any]) -> list[Any]:
        return [entry for entry in logs if entry["event"] == "broker.ready"]

    with capture_logs() as logs:
        serving = asyncio.create_task(main.serve(config, notifier, file))
        async with asyncio.timeout(20):
            await notifier.is_ready.wait()
            port = int(ready(logs)[0]["address"].rpartition(":")[2])
            async with talking(port) as client:
                assert (await client.put("T", b"of the first life")).code == 0
                change = {"brokerRole": "SLAVE", "brokerId": "3"}
                answer = await client.ask(RequestCode.CHANGE_ROLE, change)
                assert (answer.code, answer.ext["note"]) == (0, "")
                assert await client.reader.read() == b"", "the life has ended"
            await eventually(lambda: len(ready(logs)) == 2)
            async with talking(port) as client:
                assert (await client.put("T", b"to a slave")).code == ResponseCode.SYSTEM_BUSY
                back = await client.ask(RequestCode.CHANGE_ROLE, {"brokerRole": "MASTER"})
                assert back.code == 0
            await eventually(lambda: len(ready(logs)) == 3)
            async with talking(port) as client:
                assert (await client.put("T", b"of the third life")).code == 0
                bodies = [record.body for record in await client.records("T")]
                assert bodies == [b"of the first life", b"of the third life"]
            os.kill(os.getpid(), signal.SIGTERM)
            assert await serving == 0
    assert file.read_text() == "listenPort = 0\nbrokerId=3\nbrokerRole=ASYNC_MASTER\n"
    roles = [
        (entry["role"], entry["next_role"]) for entry in logs if entry["event"] == "broker.role_changing"
    ]
    assert roles == [("master", "slave"), ("slave", "master")]
    assert not (store / "abort").exists()


async def test_a_log_that_has_to_be_cut_back_is_cut_by_another_life_of_the_same_process(
    tmp_path: Path,
) -> None:
    """A slave was made master while the old one was away, which had stored more: it comes back as a slave."""
    one, two = tmp_path / "one", tmp_path / "two"
    shared: dict[str, Any] = dict(FAST)
    async with running_broker(one, **shared) as old, talking(old) as client:
        async with running_slave(two, **shared) as slave:
            meet(slave, old)
            for number in range(10):
                await client.put("T", b"%d" % number, queue_id=0)
            await caught_up(old, slave)
        for number in range(5):
            await client.put("T", b"alone %d" % number, queue_id=0)
    notifier = Watched()
    async with running_broker(two, **shared) as new, talking(new) as client:
        await client.put("T", b"of the new one", queue_id=0)
        config = broker_config(one, **shared, broker_role="SLAVE", broker_id=2)
        master = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "masterAddr": new.parts.identity.broker_addr,
            "masterHaAddr": new.parts.identity.ha_addr,
        }
        with capture_logs() as logs:
            serving = asyncio.create_task(main.serve(config, notifier))
            async with asyncio.timeout(20):
                await notifier.is_ready.wait()
                (ready,) = [entry for entry in logs if entry["event"] == "broker.ready"]
                async with talking(int(ready["address"].rpartition(":")[2])) as follower:
                    assert (await follower.ask(RequestCode.CHANGE_ROLE, master)).code == 0
                await eventually(lambda: master_side(new).replicas.in_sync_count == 1)
                await client.put("T", b"of the new one, later", queue_id=0)
                await eventually(lambda: master_side(new).replicas.connected[0].link.behind_bytes == 0)
                os.kill(os.getpid(), signal.SIGTERM)
                assert await serving == 0
    assert log_files(one) == log_files(two)
    (cut,) = [entry for entry in logs if entry["event"] == "store.log_cut"]
    assert cut["message_count"] == 5
    assert len([entry for entry in logs if entry["event"] == "broker.ready"]) == 3
    assert len([entry for entry in logs if entry["event"] == "broker.role_changing"]) == 1


def test_failpoints_that_are_not_understood_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AEROBEE_FAILPOINTS", "commit_log.nowhere=kill")
    monkeypatch.setattr(main, "configure_logging", lambda: None)  # it would stay so for every later test
    assert main.run(broker_config(tmp_path)) == 2
    assert "there is no failpoint 'commit_log.nowhere'" in capsys.readouterr().err
    assert not (tmp_path / "abort").exists()


async def test_a_taken_port_ends_it_with_code_1_and_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as logs:
        port = taken.getsockname()[1]
        notifier = Watched()
        assert await main.serve(broker_config(tmp_path, listen_port=port), notifier) == 1
    assert not notifier.is_ready.is_set()
    (logged,) = [entry for entry in logs if entry["event"] == "broker.start_failed"]
    assert logged["reason"].startswith(f"127.0.0.1:{port} is taken by ")
    assert logged["way_out"] == "stop what listens there, or set listenPort to another port"


async def test_a_damaged_store_ends_it_with_code_1_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir(parents=True)
    (tmp_path / "commitlog" / "00000000000000000000").write_bytes(b"short")
    with capture_logs() as logs:
        assert await main.serve(broker_config(tmp_path), Watched()) == 1
    (logged,) = [entry for entry in logs if entry["event"] == "broker.start_failed"]
    assert "00000000000000000000" in logged["reason"]
    assert "length is 5" in logged["reason"]


@pytest.mark.alone
async def test_a_failing_disk_ends_it_with_a_code_of_its_own_within_a_second(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    notifier = Watched()
    with capture_logs() as logs:
        serving = asyncio.create_task(main.serve(broker_config(tmp_path), notifier))
        async with asyncio.timeout(10):
            await notifier.is_ready.wait()
            (ready,) = [entry for entry in logs if entry["event"] == "broker.ready"]
            async with talking(int(ready["address"].rpartition(":")[2])) as client:
                assert (await client.put("T", b"safe")).code == 0
                with failpoints.armed("commit_log.before_sync", fail):
                    began = time.monotonic()
                    refused = await client.put("T", b"lost")
                    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
                    assert await serving == main.EXIT_DISK_FAILED == 74
                    assert time.monotonic() - began < 1
    assert (tmp_path / "abort").exists()
    assert "broker.failed" in [entry["event"] for entry in logs]


# --- as a process -------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_the_process_with_a_failing_disk_is_gone_within_a_second(tmp_path: Path) -> None:
    flag, store = tmp_path / "the disk fails", tmp_path / "store"
    with program(["-c", FAILING, str(flag), *words(store)]) as (server, port):
        async with talking(port) as client:
            assert (await client.put("T", b"safe")).code == 0
            flag.touch()
            began = time.monotonic()
            client.send(*[send_request("T", b"lost", opaque=i) for i in range(50)])
            answers = await client.answers(50)
            assert {answer.code for answer in answers.values()} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            assert server.process.wait(10) == main.EXIT_DISK_FAILED
            assert time.monotonic() - began < 1.5  # one second, and something for a busy machine
        assert "broker.failed" in events(server)
    assert (store / "abort").exists()
    with program(["-m", "aerobee_broker", *words(store)]) as (_, port):
        async with talking(port) as client:
            assert (await client.records("T"))[0].body == b"safe"


@pytest.mark.alone
async def test_a_broker_whose_log_is_deleted_stops_within_a_second(tmp_path: Path) -> None:
    """It went on for ever, healthy, and acknowledged into files that no start found again."""
    with program(["-m", "aerobee_broker", *words(tmp_path)]) as (server, port):
        async with talking(port) as client:
            assert (await client.put("T", b"safe")).code == 0
            for file in (tmp_path / "commitlog").iterdir():
                file.unlink()
            began = time.monotonic()
            assert server.process.wait(10) == main.EXIT_FILE_GONE == 66
            # Noticed within one, gone within one more; and a busy machine.
            assert time.monotonic() - began < 2.5
        logged = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
        (gone,) = [line for line in logged if line["level"] == "error"]
        assert gone["event"] == "store.file_gone"
        assert gone["path"] == str(tmp_path / "commitlog" / f"{0:020d}")
    assert (tmp_path / "abort").exists()


async def test_a_second_process_is_refused_after_the_lock_file_was_deleted(tmp_path: Path) -> None:
    """Both served, and after a restart 11 of 21 acknowledged messages were there."""
    with program(["-m", "aerobee_broker", *words(tmp_path)]) as (server, port):
        async with talking(port) as client:
            (tmp_path / "lock").unlink()
            second = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "aerobee_broker", *words(tmp_path)],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert second.returncode == 1
            assert "is locked by another running broker" in second.stdout
            assert (await client.put("T", b"one")).code == 0
            server.process.terminate()
            assert server.process.wait(10) == 0


async def test_a_second_process_is_refused_and_sigterm_stops_the_first_in_order(tmp_path: Path) -> None:
    with program(["-m", "aerobee_broker", *words(tmp_path)]) as (server, port):
        async with talking(port) as client:
            await client.put("T", b"before")
            command = [sys.executable, "-m", "aerobee_broker", *words(tmp_path)]
            second = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
            )
            assert second.returncode == 1
            assert "is locked by another running broker" in second.stdout
            assert "Traceback" not in second.stdout + second.stderr
            assert (await client.put("T", b"after")).code == 0
            assert [one.body for one in await client.records("T")] == [b"before", b"after"]
        assert server.stop() == 0
        assert events(server)[-1] == "broker.stopped"
    assert not (tmp_path / "abort").exists()


class Load:
    """Sends without end over one connection and remembers what was acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: dict[int, bytes] = {}
        self.acknowledged: dict[str, tuple[int, bytes]] = {}  # offset message id -> (queue offset, body)
        self.refused: list[Command] = []

    def more(self, client: Talker, count: int) -> None:
        """Send `count` more messages, of sizes that fill files unevenly."""
        for _ in range(count):
            opaque = len(self.sent)
            body = f"{self.name}-{opaque}-".encode() * (1 + opaque % 97)
            self.sent[opaque] = body
            keys = text_of({"KEYS": f"{self.name}-{opaque}", "UNIQ_KEY": f"{self.name}{opaque}"})
            client.send(send_request(self.name, body, opaque=opaque, queue_id=opaque % 4, properties=keys))

    def take(self, answer: Command) -> None:
        if answer.code != 0:
            self.refused.append(answer)
            return
        self.acknowledged[answer.ext["msgId"]] = (int(answer.ext["queueOffset"]), self.sent[answer.opaque])

    async def run(self, client: Talker, enough: asyncio.Event, until: int) -> None:
        """Keep 64 sends under way until the connection ends; `enough` is set after `until` answers."""
        first = len(self.acknowledged)
        self.more(client, 64)
        while True:
            try:
                self.take(await client.receive())
            except (EOFError, ConnectionError):
                return
            self.more(client, 1)
            if len(self.acknowledged) - first >= until:
                enough.set()


async def verify(client: Talker, load: Load) -> None:
    """Every acknowledged message is in its queue, at its place, with its bytes."""
    found = {}
    for queue_id in range(4):
        records = await client.records(load.name, queueId=queue_id)
        assert [one.queue_offset for one in records] == list(range(len(records)))
        found.update({one.offset_message_id: (one.queue_offset, one.body) for one in records})
        assert all(one.unique_key and one.property_map["CLUSTER"] for one in records)
    lost = [key for key, place in load.acknowledged.items() if found.get(key) != place]
    assert lost == []
    last = next(reversed(load.acknowledged))
    viewed = await client.ask(33, {"offset": str(int(last[-16:], 16))})
    assert decode_record(viewed.body).body == load.acknowledged[last][1]


async def test_killed_under_load_it_has_every_acknowledged_message(tmp_path: Path) -> None:
    loads = [Load("Left"), Load("Right")]
    port_setting: dict[str, object] = {}
    for _ in range(3):
        command = ["-m", "aerobee_broker", *words(tmp_path, **port_setting)]
        with program(command) as (server, port):
            port_setting = {"listenPort": port}  # message ids hold it
            async with talking(port) as client, talking(port) as other:
                for load in loads:
                    if load.acknowledged:
                        await verify(client, load)
                enough = asyncio.Event()
                running = [
                    asyncio.create_task(load.run(talker, enough, 300))
                    for load, talker in zip(loads, (client, other), strict=True)
                ]
                async with asyncio.timeout(30):
                    await enough.wait()
                    server.process.kill()
                    await asyncio.gather(*running)
    assert (tmp_path / "abort").exists()
    with program(["-m", "aerobee_broker", *words(tmp_path, **port_setting)]) as (server, port):
        async with talking(port) as client:
            for load in loads:
                assert load.refused == []
                assert len(load.acknowledged) >= 300
                await verify(client, load)
        assert server.stop() == 0
