"""`aerobee dev`: everything in one process, for the first try."""

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import ours
from aerobee_console.servers import dev as module
from aerobee_console.servers.dev import _sizes_of
from aerobee_proto.bodies import ClusterInfo
from console.support import program
from etcd import need_etcd
from plain_remoting import call, wait_until
from programs import Program, Server, free_port

CLUSTER_INFO = 106


def address(output: str, what: str) -> str:
    found = re.search(rf"^{what} +(\S+)", output, re.MULTILINE)
    assert found, output
    return found[1]


@contextlib.contextmanager
def dev(*words: str) -> Iterator[Server]:
    with Server("dev", [*ours.command(), "dev", *words], "", ours.DEV_READY) as started:
        yield started


def test_the_next_command_that_it_prints_works_and_ctrl_c_leaves_nothing() -> None:
    with dev() as started:
        folder = Path(address(started.output, "store"))
        assert folder.is_dir()
        found = re.search(r"aerobee (send .*)", started.output)
        assert found
        words = found[1].replace("'", "").split()
        assert program(*words).code == 0
        tail = re.search(r"aerobee (tail .*)", started.output)
        assert tail
        assert program(*tail[1].split()).out.endswith("  hello\n")
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(30) == 0
    assert not folder.exists()


def test_taken_ports_are_replaced_and_it_says_by_whom() -> None:
    with contextlib.ExitStack() as taken:
        for port in (9876, 10911):
            held = taken.enter_context(socket.socket())
            # Connections of before may linger there.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):  # then somebody else has it, which serves as well
                held.bind(("127.0.0.1", port))
                held.listen()
        with dev("--set", "metricsPromExporterPort=0") as started:
            assert "port 9876 is taken" in started.output
            assert "port 10911 is taken" in started.output
            nameserver = address(started.output, "nameserver")
            assert nameserver != "127.0.0.1:9876"
            assert f"-n {nameserver}" in started.output
            assert address(started.output, "broker") in program("cluster", "-n", nameserver).out


def test_a_store_of_ones_own_is_kept_and_opened_again(tmp_path: Path) -> None:
    words = ["--store", str(tmp_path / "kept"), "--set", "metricsPromExporterPort=0"]
    small = [
        "--set",
        "mappedFileSizeCommitLog=65536",
        "--set",
        "maxHashSlotNum=100",
        "--set",
        "maxIndexNum=100",
    ]
    with dev(*words, *small) as started:
        nameserver = address(started.output, "nameserver")
        assert program("send", "kept", "still here", "-n", nameserver).code == 0
        assert started.stop() == 0
    assert (tmp_path / "kept" / "commitlog").is_dir()
    assert not (tmp_path / "kept" / "abort").exists()
    with dev(*words, *small[2:]) as started:
        nameserver = address(started.output, "nameserver")
        assert "still here" in program("tail", "kept", "-n", nameserver).out


def test_the_file_sizes_of_a_store_are_taken_from_its_files(tmp_path: Path) -> None:
    assert _sizes_of(tmp_path) == {}
    for path, size in (("commitlog/0", 4096), ("consumequeue/t/0/0", 320)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(bytes(size))
    assert _sizes_of(tmp_path) == {"mappedFileSizeCommitLog": "4096", "mappedFileSizeConsumeQueue": "320"}


def test_a_wrong_setting_stops_it_with_the_cause(tmp_path: Path) -> None:
    refused = program("dev", "--store", str(tmp_path), "--set", "flushDiskTyp=ASYNC_FLUSH")
    assert refused.code == 2
    assert "did you mean flushDiskType?" in refused.err


def test_a_port_that_is_asked_for_is_taken_or_refused_never_replaced() -> None:
    port = free_port()
    words = ["--port", str(port), "--set", "metricsPromExporterPort=0"]
    with dev(*words) as started:
        assert address(started.output, "nameserver") == f"127.0.0.1:{port}"
        with Program("second", [*ours.command(), "dev", *words]) as second:
            second.wait_line(f"cannot listen on 127.0.0.1:{port}", 30)
            assert second.process.wait(30) == 2


def test_a_hang_up_leaves_nothing() -> None:
    """The temporary store stayed when the terminal was closed."""
    with dev("--set", "metricsPromExporterPort=0") as started:
        folder = Path(address(started.output, "store"))
        started.process.send_signal(signal.SIGHUP)
        assert started.process.wait(30) == 0
    assert not folder.exists()


def test_what_the_docs_show_is_switched_on_and_can_be_switched_off(tmp_path: Path) -> None:
    words = ["--store", str(tmp_path / "new"), "--set", "metricsPromExporterPort=0"]
    small = ["--set", "mappedFileSizeCommitLog=65536", "--set", "recallMessageEnable=false"]
    with dev(*words, *small) as started:
        nameserver = address(started.output, "nameserver")
        settings = program("cluster", "config", "broker-a", "-o", "json", "-n", nameserver).out
        assert re.search(r'"enablePropertyFilter"[^}]*"true"', settings)
        assert re.search(r'"recallMessageEnable"[^}]*"false"', settings)
        assert program("topic", "describe", "RMQ_SYS_TRACE_TOPIC", "-n", nameserver).code == 0


@pytest.mark.parametrize("names", [["letter.txt"], ["a", "b", "c", "d"], ["lock"]])
def test_a_folder_of_somebody_else_is_left_alone(names: list[str], tmp_path: Path) -> None:
    """A store was made among whatever files the folder held, and the doctor called the folder a fault."""
    for name in names:
        (tmp_path / name).touch()
    refused = program("dev", "--store", str(tmp_path))
    assert refused.code == 2
    assert f"{tmp_path} is not empty and is no store ({', '.join(names[:3])}" in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_new_file_system_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    module.check_folder(tmp_path)
    module.check_folder(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        module.check_folder(tmp_path / "file")


@pytest.mark.slow
def test_a_set_of_three_replaces_the_master_that_is_killed() -> None:
    need_etcd()
    nameserver = f"127.0.0.1:{free_port()}"
    words = [*ours.command(), "dev", "--replicas", "3", "--port", nameserver.rpartition(":")[2]]
    with Server("dev", words, nameserver, "Ctrl-C stops all of them") as started:
        found = re.search(r"^master +(\S+) \(process (\d+)\)", started.output, re.MULTILINE)
        assert found
        os.kill(int(found[2]), signal.SIGKILL)

        def is_replaced() -> bool:
            table = ClusterInfo.from_stranger(call(nameserver, CLUSTER_INFO)[1]).broker_addr_table
            return "broker-a" in table and table["broker-a"].broker_addrs.get(0) not in (None, found[1])

        wait_until(is_replaced, "another master")
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(30) == 0
