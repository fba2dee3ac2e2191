"""Tell systemd how a service is: ready, stopping, alive, and one line of text for `systemctl status`.

Touches  the datagram socket that systemd names in NOTIFY_SOCKET, and the environment. Nothing without systemd. A
         supervisor of ours names a socket that the process has open already: fd:7.
Bytes    lines of NAME=value, UTF-8, one datagram a call: READY=1, STATUS=text, STOPPING=1, WATCHDOG=1,
         EXTEND_TIMEOUT_USEC=microseconds.

Invariants
- A service runs the same without systemd: an absent, full or broken notification socket is never an error.
- A call never waits: what the socket cannot take at once is dropped.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["ServiceNotifier", "StartSigns"]

WATCHDOG_MARGIN: Final = 2  # signs of life per period of the watchdog, as systemd recommends
OPEN: Final = "fd:"  # before the number of a descriptor
START_MORE_S: Final = 900  # for the next sign of a start that is at work
SIGN_PAUSE_S: Final = 5.0


class ServiceNotifier:
    """Sends messages to the service manager. Made once by a program's main; `environment` is `os.environ` there.

    `watchdog_interval_s` is how often `alive()` wants to be called, None when nobody watches.
    """

    __slots__ = ("_address", "_last_status", "watchdog_interval_s")

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # A leading @ names an abstract socket: its first byte is 0.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._last_status = ""
        self.watchdog_interval_s = _watchdog_interval_s(environment, pid) if path else None

    @classmethod
    def of_process(cls) -> "ServiceNotifier":
        """For this process. Started programs do not inherit the socket: it is taken out of the environment."""
        notifier = cls(os.environ, os.getpid())
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)
        return notifier

    def ready(self, status: str) -> bool:
        """The service answers from now on. True when systemd was told."""
        return self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, text: str) -> bool:
        """What the service is doing, e.g. "recovering 43 %". An unchanged text is not sent again."""
        if text == self._last_status:
            return False
        self._last_status = text
        return self._send(f"STATUS={_one_line(text)}")

    def stopping(self, status: str) -> bool:
        """The orderly stop has begun."""
        return self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def alive(self) -> bool:
        """Say that the service is alive; systemd restarts one that does not say so for WatchdogSec=."""
        return self._send("WATCHDOG=1")

    async def stay_alive(self) -> None:
        """Calls alive() at intervals until it is cancelled; ends at once when nobody watches."""
        while self.watchdog_interval_s is not None:
            self.alive()
            await asyncio.sleep(self.watchdog_interval_s)

    async def serving(self, status: str, stop: asyncio.Event) -> None:
        """Ready, with signs of life until `stop` is set or the call is cancelled; then stopping."""
        self.ready(status)
        watchdog = asyncio.create_task(self.stay_alive(), name="watchdog")
        try:
            await stop.wait()
        finally:
            self.stopping("stopping")
            watchdog.cancel()
            await asyncio.gather(watchdog, return_exceptions=True)

    def extend_start(self, seconds: int) -> bool:
        """Ask for `seconds` more, from now, before the start counts as failed: for a long recovery."""
        return self._send(f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000}")

    def _send(self, message: str) -> bool:
        if not self._address:
            return False
        try:
            if self._address.startswith(OPEN):
                os.write(int(self._address.removeprefix(OPEN)), message.encode())
                return True
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
                ear.setblocking(False)
                ear.sendto(message.encode(), self._address)
        except OSError:
            return False
        return True


class StartSigns:
    """Tells systemd, while a start works through much, how far it is, and asks for more time: a start that goes on is
    not cut off, however long it takes; one that stands still is. For any one thread."""

    def __init__(self, notifier: ServiceNotifier, clock: Callable[[], float] = time.monotonic) -> None:
        # Fixed for life.
        self._notifier = notifier
        self._clock = clock
        # Moved by each call.
        self._done: dict[str, int] = {}
        self._said_at = float("-inf")

    def __call__(self, step: str, size: int) -> None:
        """So many more bytes are behind this step. Said at most once in SIGN_PAUSE_S."""
        self._done[step] = self._done.get(step, 0) + size
        now = self._clock()
        if now - self._said_at >= SIGN_PAUSE_S:
            self._said_at = now
            self._notifier.extend_start(START_MORE_S)
            self._notifier.status(f"starting: {step}, {self._done[step] >> 20} MiB done")


def _one_line(text: str) -> str:
    """A line break would start a new assignment."""
    return " ".join(text.splitlines())


def _watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Half of the period that systemd allows this process (`pid`) between signs of life."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    period_us = environment.get("WATCHDOG_USEC", "")
    return int(period_us) / WATCHDOG_MARGIN / 1_000_000 if period_us.isdecimal() and int(period_us) else None
