"""`aerobee doctor`: each classic fault is found, with the way out."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from aerobee import BrokerNode, ClientConfig
from aerobee.sync import Client as SyncClient
from aerobee_console.checks import cluster_checks, local_checks
from aerobee_console.checks.checkup import Checkup
from aerobee_console.checks.cluster_checks import _check_address, _check_figures
from aerobee_console.checks.local_checks import check_store, is_container_address, is_loopback
from aerobee_console.servers.daemons import broker_settings
from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.client import RemotingClient
from aerobee_service.program.interpreter_build import InterpreterBuild, interpreter_build
from console.support import Runner
from plain_remoting import topic_fields
from store.golden import unpack


def found(result: Any, name: str) -> list[tuple[str, str, str]]:
    """Status, text and fix of the checks with a name."""
    return [(one["status"], one["text"], one["fix"]) for one in result.json["checks"] if one["check"] == name]


@contextmanager
def listener(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Something that takes connections and says nothing sensible; with a context it speaks TLS."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                    with context.wrap_socket(peer, server_side=True) if context else peer as spoken:
                        spoken.recv(100)
                except OSError:
                    if server.fileno() < 0:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def test_a_sound_cluster_has_no_fault(cluster: Runner) -> None:
    result = cluster("doctor", "-o", "json")
    assert result.json["sound"]
    assert result.code == 0
    texts = [text for _, text, _ in found(result, "broker broker-a")]
    assert any("a message went there and back in" in text for text in texts)
    assert found(result, "clocks") == [("ok", "the clock of broker-a agrees with the one here", "")]
    shown = cluster("doctor")
    assert shown.lines[-1] == "no fault found"
    assert any(line.startswith("ok     nameserver") for line in shown.lines)


def test_it_says_how_its_python_was_built(cluster: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = InterpreterBuild("CPython 3.11.7, built without PGO", is_slow=True, remedy="use another one")
    fast = InterpreterBuild("CPython 3.11.7, optimised (PGO)", is_slow=False, remedy="")
    for build, status in ((slow, "note"), (fast, "ok")):
        monkeypatch.setattr(local_checks, "interpreter_build", lambda build=build: build)
        checkup = Checkup()
        local_checks.check_interpreter(checkup)
        (check,) = checkup.checks
        assert (check.name, check.status, check.text, check.fix) == ("interpreter", status, *build[::2])
    monkeypatch.undo()
    ((status, text, _),) = found(cluster("doctor", "--no-send", "-o", "json"), "interpreter")
    assert (text, status == "note") == (interpreter_build().text, interpreter_build().is_slow)


def test_without_send_no_message_goes(cluster: Runner) -> None:
    before = cluster("topic", "describe", "broker-a", "-o", "json").json["message_count"]
    result = cluster("doctor", "--no-send", "-o", "json")
    assert found(result, "clocks") == []
    assert cluster("topic", "describe", "broker-a", "-o", "json").json["message_count"] == before


def test_no_route_for_a_topic_names_near_ones(cluster: Runner) -> None:
    cluster("topic", "create", "d-orders")
    ((status, text, fix),) = found(cluster("doctor", "--topic", "d-order", "-o", "json"), "topic")
    assert status == "fault"
    assert "similar topics: d-orders" in text
    assert "aerobee topic create d-order" in fix
    cluster("topic", "alter", "d-orders", "--permission", "r")
    ((status, text, _),) = found(cluster("doctor", "--topic", "d-orders", "-o", "json"), "topic")
    assert (status, text) == ("fault", "d-orders has a route, but no broker lets it be written")


def test_queues_that_nobody_reads_are_a_fault(cluster: Runner, nameserver: str) -> None:
    """Official tools make such topics without a word; what is sent to them is partly never read."""
    with SyncClient(nameserver) as client:
        client.admin.create_topic("d-unread", queues=4)
        (addr,) = [node.addr for node in client.admin.brokers()]
    header = topic_fields("d-unread", 4, readQueueNums="1")
    asyncio.run(ask(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    result = cluster("doctor", "--no-send", "-o", "json")
    shown = cluster("topic", "describe", "d-unread").lines
    assert cluster("topic", "alter", "d-unread", "--queues", "4").code == 0
    assert result.code == 1
    ((status, text, fix),) = found(result, "topic d-unread")
    assert (status, fix) == ("fault", "aerobee topic alter d-unread --queues 4")
    assert "4 queues to write and 1 to read: nobody gets what goes to the others" in text
    assert shown[1] == (
        "  nobody gets what is written to queues 1 to 3: aerobee topic alter d-unread --queues 4"
    )
    assert found(cluster("doctor", "--no-send", "-o", "json"), "topic d-unread") == []


async def ask(addr: str, code: int, header: dict[str, str]) -> None:
    client = RemotingClient()
    try:
        assert (await client.request(addr, code, header)).code == 0
    finally:
        await client.close()


def test_nothing_listens(aerobee: Runner) -> None:
    result = aerobee("doctor", "-n", "127.0.0.1:1")
    assert result.code == 1
    assert "127.0.0.1:1: nothing listens there" in result.out
    assert "aerobee nameserver --listen" in result.out
    assert result.lines[-1] == "1 fault found"


def test_a_nameserver_without_brokers(aerobee: Runner) -> None:
    import ours

    with ours.start_nameserver() as lonely:
        result = aerobee("doctor", "-n", lonely.address, "-o", "json")
    ((status, text, fix),) = found(result, "nameserver")
    assert (status, "no broker has registered" in text) == ("fault", True)
    assert f"namesrvAddr={lonely.address}" in fix


def test_something_else_listens(aerobee: Runner) -> None:
    with listener() as addr:
        ((status, text, _),) = found(
            aerobee("doctor", "-n", addr, "--timeout", "1", "-o", "json"), "nameserver"
        )
    assert status == "fault"
    assert f"{addr} takes connections but is no nameserver, it is " in text
    assert "(pid " in text


def test_a_tls_server_and_a_plain_client(aerobee: Runner, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with listener(context) as addr:
        plain = aerobee("doctor", "-n", addr, "--timeout", "1", "-o", "json")
        distrusting = aerobee("doctor", "-n", addr, "--timeout", "1", "--tls", "-o", "json")
    ((_, text, fix),) = found(plain, "nameserver")
    assert (f"{addr} speaks TLS, and this is a plain connection" == text, "--tls" in fix) == (True, True)
    ((_, text, fix),) = found(distrusting, "nameserver")
    assert "speaks TLS, but" in text
    assert "--tls-ca" in fix


def test_a_plain_server_and_a_tls_client(nameserver: str, aerobee: Runner) -> None:
    ((_, text, fix),) = found(aerobee("doctor", "-n", nameserver, "--tls", "-o", "json"), "nameserver")
    assert text == f"{nameserver} does not speak TLS"
    assert "leave --tls out" in fix


@pytest.mark.parametrize(
    ("addr", "nameserver", "fault", "status", "said"),
    [
        ("192.0.2.7:10911", "192.0.2.1:9876", None, "ok", "is reached from here"),
        ("192.0.2.7:10911", "192.0.2.1:9876", "nothing listens there", "fault", "is the broker running"),
        ("172.17.0.3:10911", "192.0.2.1:9876", "time-out", "fault", "inside Docker: set brokerIP1"),
        ("127.0.0.1:10911", "192.0.2.1:9876", None, "fault", "leads to themselves"),
        ("127.0.0.1:10911", "192.0.2.1:9876", "nothing listens there", "fault", "leads to themselves"),
        ("127.0.0.1:10911", "127.0.0.1:9876", None, "note", "from this machine alone"),
    ],
)
async def test_registered_addresses(
    addr: str, nameserver: str, fault: str | None, status: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect_fault(_addr: str, _timeout_s: float) -> str | None:
        return fault

    monkeypatch.setattr(cluster_checks, "_connect_fault", connect_fault)
    checkup = Checkup()
    node = BrokerNode("c", "broker-a", 0, addr)
    reached = await _check_address(checkup, node, ClientConfig(nameservers=(nameserver,)))
    (check,) = checkup.checks
    assert reached == (fault is None)
    assert check.status == status
    assert said in f"{check.text} {check.fix}"


@pytest.mark.parametrize(
    ("ratio", "status"), [("0.5", None), ("0.87", "note"), ("0.95", "fault"), ("?", None)]
)
def test_a_brokers_full_disk(ratio: str, status: str | None) -> None:
    checkup = Checkup()
    _check_figures(checkup, "broker-a", {"commitLogDiskRatio": ratio})
    assert [check.status for check in checkup.checks] == ([status] if status else [])


@pytest.mark.parametrize(
    ("stored_after_ms", "status", "said"),
    [
        (0, "ok", "agrees"),
        (-60_000, "fault", "behind the one here"),
        (60_000, "fault", "ahead of the one here"),
    ],
)
async def test_clocks_that_differ(stored_after_ms: int, status: str, said: str) -> None:
    import time

    class Producer:
        async def __aenter__(self) -> "Producer":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def send(self, _topic: str, _body: bytes) -> Any:
            return SimpleNamespace(offset_message_id="ID")

    class Client:
        def producer(self) -> Producer:
            return Producer()

        async def query_by_id(self, _message_id: str) -> Any:
            stored = time.time_ns() // 1_000_000 + stored_after_ms
            return SimpleNamespace(body=cluster_checks.BODY, store_timestamp_ms=stored)

    checkup = Checkup()
    client: Any = Client()
    await cluster_checks.check_round_trip(checkup, BrokerNode("c", "broker-a", 0, "a:1"), client)
    clock = checkup.checks[-1]
    assert (clock.name, clock.status) == ("clocks", status)
    assert said in clock.text


def test_loopback_and_container_addresses_are_known() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "[::1]", "10.0.0.1", "mq.example")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert is_container_address("172.17.0.2")
    assert not is_container_address("172.16.0.2")
    assert not is_container_address("mq.example")


# --- this machine


def settings(tmp_path: Path, **keys: object) -> str:
    file = tmp_path / "broker.conf"
    lines = {"storePathRootDir": tmp_path / "store", "metricsPromExporterPort": 0, "listenPort": 0, **keys}
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(file)


def test_wrong_settings_are_named(cluster: Runner, tmp_path: Path) -> None:
    result = cluster("doctor", "-c", settings(tmp_path, listenPrt=1), "-o", "json")
    ((status, text, _),) = found(result, "settings")
    assert (result.code, status) == (1, "fault")
    assert "did you mean listenPort?" in text


def test_a_taken_port_names_who_has_it(cluster: Runner, tmp_path: Path) -> None:
    with listener() as addr:
        port = addr.rpartition(":")[2]
        result = cluster("doctor", "-c", settings(tmp_path, listenPort=port), "-o", "json")
    ((_, text, _),) = found(result, "port")
    assert text.startswith(f"listenPort {port} is taken by ")


def test_what_settings_promise_is_looked_at(cluster: Runner, tmp_path: Path) -> None:
    result = cluster("doctor", "-c", settings(tmp_path, brokerIP1="192.0.2.200"), "-o", "json")
    assert found(result, "registration")[0][0] == "fault"
    ((status, text, _),) = found(result, "advertised address")
    assert (status, text) == ("note", "brokerIP1 192.0.2.200 is no address of this machine")
    ((status, text, _),) = found(result, "store folder")
    assert (status, text) == ("ok", f"{tmp_path}/store is not there yet; it can be made in {tmp_path}")
    loopback = cluster("doctor", "-c", settings(tmp_path, brokerIP1="127.0.0.1"), "-o", "json")
    assert "only programs on this machine" in found(loopback, "advertised address")[0][1]


def checks_of(folder: Path) -> list[tuple[str, str, str]]:
    checkup = Checkup()
    check_store(checkup, folder)
    return [(check.name, check.status, check.text) for check in checkup.checks]


def test_a_store_folder_is_described(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert checks_of(empty)[0] == ("store folder", "ok", f"{empty} is empty and can be written")
    (empty / "holiday.jpg").write_bytes(b"x")
    assert checks_of(empty)[0][1] == "fault"
    closed = unpack("clean", tmp_path / "closed")
    assert checks_of(closed)[0] == ("store folder", "ok", f"{closed} was closed in order and can be written")
    aborted = unpack("kill9", tmp_path / "aborted")
    assert checks_of(aborted)[0] == ("store folder", "note", f"{aborted} was not closed in order")
    (aborted / "commitlog" / "holiday.jpg").write_bytes(b"x")
    assert ("store folder", "fault", "commitlog/holiday.jpg: foreign file in a data folder") in checks_of(
        aborted
    )


@contextmanager
def held_by_another_process(root: Path) -> Iterator[None]:
    """A child that has the store open, says so in `abort`, and looks after nothing."""
    lines = (
        "import sys; from pathlib import Path; from aerobee_store.disk.io import DiskIo;"
        "from aerobee_store.terms.config import StoreConfig; from aerobee_store.store import MessageStore;"
        "s = MessageStore(StoreConfig(root=Path(sys.argv[1]), commit_log_file_size=65536,"
        " consume_queue_file_size=320, index_slots=50, index_entries=120), io=DiskIo(), clock=lambda: 1);"
        "s.open(); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", lines, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line == "open\n":
                break
        yield
        child.kill()


@pytest.mark.parametrize("gone", ["commitlog", "lock"])
def test_files_that_a_running_broker_has_and_nobody_else_are_a_fault(tmp_path: Path, gone: str) -> None:
    unpack("clean", tmp_path)
    root = tmp_path / "store"
    with held_by_another_process(root):
        assert "fault" not in {status for _, status, _ in checks_of(root)}
        path = max((root / gone).iterdir()) if gone == "commitlog" else root / gone
        path.unlink()
        logged = [text for _, status, text in checks_of(root) if status == "fault"]
    said = f"writes to {path}, which somebody deleted" if gone == "commitlog" else "its lock file is gone"
    assert any(said in text for text in logged), logged


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    name, status, text = checks_of(tmp_path / "store")[0]
    assert (name, status) == ("store folder", "fault")
    assert f"{tmp_path} belongs to " in text


class FullDisk(SimpleNamespace):
    """Figures of a file system of 1,000 GiB, of which root keeps 500 for itself."""

    def __init__(self, free_percent: int) -> None:
        free = 500 * free_percent // 100
        super().__init__(f_frsize=1 << 30, f_blocks=1000, f_bfree=500 + free, f_bavail=free)


@pytest.mark.parametrize(
    ("free_percent", "status", "said"),
    [
        (20, "ok", "80 % used"),
        (14, "note", "86 % used"),
        (10, "note", "90 % used"),
        (8, "fault", "92 % used"),
    ],
)
def test_room_on_the_disk(
    free_percent: int, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are kept for root counted as used: 74 % where df and the broker said 34 %."""
    monkeypatch.setattr("os.statvfs", lambda _: FullDisk(free_percent))
    ((state, text),) = [(state, text) for name, state, text in checks_of(tmp_path) if name == "disk"]
    assert state == status
    assert said in text


def test_the_disk_is_judged_by_the_settings_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.statvfs", lambda _: FullDisk(8))
    settings = broker_settings(None, {"diskSpaceWarningLevelRatio": "95", "storePathRootDir": str(tmp_path)})
    checkup = Checkup()
    check_store(checkup, tmp_path, settings)
    assert [check.status for check in checkup.checks if check.name == "disk"] == ["note"]


def test_too_little_room_for_one_more_file_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SimpleNamespace(f_frsize=1 << 20, f_blocks=2000, f_bfree=1000, f_bavail=1000)
    monkeypatch.setattr("os.statvfs", lambda _: small)
    ((state, text),) = [(state, text) for name, state, text in checks_of(tmp_path) if name == "disk"]
    assert state == "fault"
    assert "no room for one more log file of 1024 MiB" in text


def test_doctor_and_broker_say_the_same_of_a_disk(tmp_path: Path) -> None:
    from aerobee_broker.metrics.disk_figures import disk_use
    from aerobee_store.disk.disk_space import DiskUse
    from aerobee_store.disk.io import DiskIo

    ((text,),) = [[text] for name, _, text in checks_of(tmp_path) if name == "disk"]
    shown = int(text.partition(" % used")[0].rpartition(" ")[2])
    assert abs(shown - DiskUse(*disk_use(tmp_path)).used_percent) <= 1  # others write to it meanwhile
    assert abs(shown - DiskUse(*DiskIo().disk_usage(tmp_path)).used_percent) <= 1
