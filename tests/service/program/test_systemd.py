"""What systemd hears, on a real datagram socket."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aerobee_service.program.systemd import SIGN_PAUSE_S, ServiceNotifier, StartSigns

PID = 4711


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """NOTIFY_SOCKET as systemd writes it: a path, or @name for the abstract namespace."""
    return f"@aerobee-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")


@pytest.fixture
def ear(address: str) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        listener.settimeout(5)
        yield listener


def received(ear: socket.socket) -> str:
    return ear.recv(4096).decode()


@pytest.fixture
def notifier(address: str) -> ServiceNotifier:
    return ServiceNotifier({"NOTIFY_SOCKET": address}, PID)


def test_ready_and_stopping_come_with_their_text(ear: socket.socket, notifier: ServiceNotifier) -> None:
    assert notifier.ready("serving on 127.0.0.1:10911")
    assert notifier.stopping("flushing")
    assert received(ear) == "READY=1\nSTATUS=serving on 127.0.0.1:10911"
    assert received(ear) == "STOPPING=1\nSTATUS=flushing"


def test_a_sign_of_life(ear: socket.socket, notifier: ServiceNotifier) -> None:
    assert notifier.alive()
    assert received(ear) == "WATCHDOG=1"


def test_more_time_to_start_is_asked_in_microseconds(ear: socket.socket, notifier: ServiceNotifier) -> None:
    assert notifier.extend_start(90)
    assert received(ear) == "EXTEND_TIMEOUT_USEC=90000000"


def test_a_start_that_goes_on_asks_for_more_time_now_and_then(
    ear: socket.socket, notifier: ServiceNotifier
) -> None:
    """Nobody asked: a recovery of more than a quarter of an hour was ended by systemd, and begun again."""
    now = 100.0
    signs = StartSigns(notifier, lambda: now)
    signs("log and queues", 3 << 20)
    now += SIGN_PAUSE_S / 2
    signs("log and queues", 4 << 20)
    now += SIGN_PAUSE_S / 2
    signs("log and queues", 1 << 20)
    ear.setblocking(False)
    assert [received(ear) for _ in range(4)] == [
        "EXTEND_TIMEOUT_USEC=900000000",
        "STATUS=starting: log and queues, 3 MiB done",
        "EXTEND_TIMEOUT_USEC=900000000",
        "STATUS=starting: log and queues, 8 MiB done",
    ]
    with pytest.raises(BlockingIOError):
        ear.recv(1)


async def test_a_service_is_ready_alive_and_then_stopping(ear: socket.socket, address: str) -> None:
    notifier = ServiceNotifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"}, PID)
    stop = asyncio.Event()
    serving = asyncio.create_task(notifier.serving("listening", stop))
    logged = [await asyncio.to_thread(received, ear) for _ in range(2)]
    stop.set()
    await serving
    assert [*logged, received(ear)] == [
        "READY=1\nSTATUS=listening",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=stopping",
    ]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_status_is_sent_when_it_changes(ear: socket.socket, notifier: ServiceNotifier) -> None:
    sent = [notifier.status(text) for text in ("recovering 1 %", "recovering 1 %", "recovering 2 %")]
    assert sent == [True, False, True]
    assert received(ear) == "STATUS=recovering 1 %"
    assert received(ear) == "STATUS=recovering 2 %"


def test_a_line_break_cannot_forge_another_assignment(ear: socket.socket, notifier: ServiceNotifier) -> None:
    notifier.status("lost\nREADY=1")
    assert received(ear) == "STATUS=lost READY=1"


def test_without_systemd_nothing_is_sent() -> None:
    notifier = ServiceNotifier({}, PID)
    assert not notifier.ready("serving")
    assert not notifier.alive()
    assert notifier.watchdog_interval_s is None


def test_a_socket_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    assert not ServiceNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}, PID).ready("serving")


def test_a_full_socket_drops_instead_of_waiting(ear: socket.socket, notifier: ServiceNotifier) -> None:
    # The kernel queues a handful of datagrams per listener (net.unix.max_dgram_qlen), far below this bound.
    assert any(not notifier.alive() for _ in range(100_000))
    assert received(ear) == "WATCHDOG=1"


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        pytest.param({"WATCHDOG_USEC": "30000000"}, 15.0, id="half the period"),
        pytest.param(
            {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "4711"}, 15.0, id="meant for this process"
        ),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None, id="meant for another"),
        pytest.param({"WATCHDOG_USEC": "0"}, None, id="zero is off"),
        pytest.param({"WATCHDOG_USEC": "soon"}, None, id="not a number"),
        pytest.param({}, None, id="no watchdog"),
    ],
)
def test_the_watchdog_interval(environment: dict[str, str], interval_s: float | None) -> None:
    notifier = ServiceNotifier({"NOTIFY_SOCKET": "/run/notify", **environment}, PID)
    assert notifier.watchdog_interval_s == interval_s


def test_started_programs_do_not_inherit_the_socket(
    ear: socket.socket, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "2000000",
        "WATCHDOG_PID": str(os.getpid()),
    }.items():
        monkeypatch.setenv(name, value)
    notifier = ServiceNotifier.of_process()
    assert os.environ.keys().isdisjoint({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
    assert notifier.watchdog_interval_s == 1.0
    assert notifier.ready("serving")
    assert received(ear).startswith("READY=1\n")
