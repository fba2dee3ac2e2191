"""The signals that stop a server."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from aerobee_service.program.stop_signals import call_on_stop_signals

# A server that says when it is ready, and something more on its way out.
SERVER = """
import asyncio, sys
from aerobee_service.program.stop_signals import call_on_stop_signals
async def main():
    stop = asyncio.Event()
    call_on_stop_signals(stop.set)
    print("ready", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    open(sys.argv[1], "w").write("in order")
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_each_of_them_stops_in_order(number: signal.Signals) -> None:
    """A closed terminal ended a server at once, and its temporary store stayed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    call_on_stop_signals(stop.set)
    try:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await stop.wait()
    finally:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(each)


async def test_a_hang_up_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    loop = asyncio.get_running_loop()
    try:
        call_on_stop_signals(lambda: None)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_is_an_orderly_stop_although_nobody_can_be_told(
    tmp_path: "os.PathLike[str]",
) -> None:
    controller, terminal = os.openpty()
    mark = os.path.join(tmp_path, "mark")  # noqa: PTH118
    command = ["setsid", "--ctty", sys.executable, "-c", SERVER, mark]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as server:
        os.close(terminal)
        said = b""
        while b"ready\r\n" not in said:
            said += os.read(controller, 1000)
        os.close(controller)
        assert server.wait(30) == 0
    with open(mark) as file:  # noqa: PTH123
        assert file.read() == "in order"
