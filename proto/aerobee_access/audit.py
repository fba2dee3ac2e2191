"""The audit log: who asked for what, from where, and what was decided.

Touches  one file and those that it was before: `audit.log`, `audit.log.1`, ... Written by a thread of its own.

    {"time":"2026-01-31T09:30:00.123Z","decision":"refused","user":"anna","from":"10.0.0.7:51234","code":310,
     "request":"SEND_MESSAGE_V2","reason":"User:anna has no permission to access Topic:orders from 10.0.0.7, ..."}

    granted   policies were asked and let somebody in: once for a connection until users or policies change, and each
              time for what changes something that lasts
    refused   somebody was turned away

Invariants
- Nobody waits for the disk: lines that it does not take in time are counted, and told by the next one (`left_out`).
- At most `files_max` files of about `size_max` bytes; a line is never cut in two, and no line holds a secret.
- Nobody pushes older lines out by lines of its own making: of one address there are FREE_LINES_MAX in a row, then
  LINES_A_SECOND_MAX; the others are counted like those that the disk does not take. Changes that were granted are
  always written.
"""

import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from aerobee_service.logs.event_log import event_logger
from aerobee_service.neighbours import neighbours_of

__all__ = ["AuditLog"]

log = event_logger("aerobee.access")

WAITING_MAX: Final = 10_000  # lines that wait for the disk
CHARS_MAX: Final = 512  # of one text in a line
FREE_LINES_MAX: Final = 500  # of one address
LINES_A_SECOND_MAX: Final = 10
ADDRESSES_MAX: Final = (
    10_000  # of which it is known how many lines they have had; the one that is quiet longest goes
)
STOP_S: Final = 5.0

Line = dict[str, str | int]


class _Share:
    """How many lines an address may still have."""

    __slots__ = ("at_ms", "left")

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.left = float(FREE_LINES_MAX)


class AuditLog:
    """One file that grows and turns over. `write` from one thread; `close` waits for what was written."""

    def __init__(self, path: Path, *, size_max: int, files_max: int, now_ms: Callable[[], int]) -> None:
        """Nothing is touched before the first line."""
        self.path = path
        self._size_max = size_max
        self._files_max = files_max
        self._now_ms = now_ms
        self._lines: queue.Queue[Line | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._shares: dict[str, _Share] = {}  # by address; the one that is quiet longest is the first
        self.left_out = 0  # since the last line that was taken
        # Since the start; the first is moved by `write`, the other by the thread.
        self._never_taken = 0
        self._not_written = 0

    @property
    def lost(self) -> int:
        """Lines since the start that are not in the file: too many of one address, or the disk was too slow or refused
        them."""
        return self._never_taken + self._not_written

    def write(
        self,
        decision: str,
        *,
        user: str,
        peer: str,
        code: int,
        request: str,
        reason: str,
        is_change: bool = False,
    ) -> None:
        """Add a line soon. `is_change`: of something that lasts, and that was granted."""
        if not is_change and not self._may_have_line(peer):
            self._leave_out()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
            self._thread.start()
        line: Line = {
            "time": datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds"),
            "decision": decision,
            "user": user[:CHARS_MAX],
            "from": peer,
            "code": code,
            "request": request,
            "reason": reason[:CHARS_MAX],
        }
        if self.left_out:
            line["left_out"] = self.left_out
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._leave_out()
        else:
            self.left_out = 0

    def _leave_out(self) -> None:
        self.left_out += 1
        self._never_taken += 1

    def _may_have_line(self, peer: str) -> bool:
        """Whether this address, host:port, may have one more line."""
        host = neighbours_of(peer.rpartition(":")[0].strip("[]"))
        now_ms = self._now_ms()
        share = self._shares.pop(host, None) or _Share(now_ms)
        self._shares[host] = share
        if len(self._shares) > ADDRESSES_MAX:
            del self._shares[next(iter(self._shares))]
        passed_s = max(now_ms - share.at_ms, 0) / 1000
        share.at_ms = now_ms
        share.left = min(share.left + passed_s * LINES_A_SECOND_MAX, FREE_LINES_MAX)
        if share.left < 1:
            return False
        share.left -= 1
        return True

    def close(self) -> None:
        """Write what waits, and end the thread; a disk that takes it no more is left alone after STOP_S."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=STOP_S)
        thread.join(STOP_S)

    # --- in the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        file: TextIO | None = None
        failed = False
        try:
            while (line := self._lines.get()) is not None:
                try:
                    file = self._append(file, line)
                    failed = False
                except OSError as error:
                    self._not_written += 1
                    if not failed:
                        log.error("access.audit_failed", path=str(self.path), reason=str(error))  # noqa: TRY400
                    failed = True
        finally:
            if file is not None:
                file.close()

    def _append(self, file: TextIO | None, line: Line) -> TextIO:
        if file is None or file.closed:
            file = self._open()
        file.write(json.dumps(line) + "\n")
        if self._lines.empty():
            file.flush()
        if file.tell() >= self._size_max:
            file.close()
            self._turn_over()
        return file

    def _open(self) -> TextIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(self.path, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace")

    def _turn_over(self) -> None:
        """The file becomes `.1`, that `.2`, ...; the oldest goes."""
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._files_max == 1:
            self.path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path
