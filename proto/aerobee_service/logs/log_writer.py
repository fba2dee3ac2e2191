"""Lines of a log on their way to whoever reads them: a thread writes, so that nobody else waits for the reader.

Touches  one descriptor (standard output, as a rule), by a daemon thread that begins with the first line.

A pipe takes 64 KiB and then holds its writer until somebody reads; a terminal that was stopped does too, and so does a
file on a disk that hangs. A server must not stand still with it.

    write    the line waits for the thread; where too much waits already it is left out, and counted
    drain    wait until everything is written, so long at most: before the process ends

Invariants
- At most `waiting_max` bytes wait, those included that the thread is writing.
- Lines leave whole and in order. Where some were left out, as nobody read or the disk was full, one line says how many,
  at their place, as soon as there is room again.
- Nobody but the thread touches the descriptor, and it holds no lock meanwhile: a process can end beside it.
"""

import os
import select
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["WAITING_SIZE_MAX", "LogWriter"]

WAITING_SIZE_MAX: Final = 1 << 20


class LogWriter:
    """Writes lines to a descriptor. A stream as far as loggers need one. For any thread."""

    def __init__(
        self,
        descriptor: int,
        left_out_line: Callable[[int], str],
        *,
        encoding: str = "utf-8",
        waiting_max: int = WAITING_SIZE_MAX,
    ) -> None:
        """`left_out_line` makes the line, with its end, that says how many were left out."""
        # Fixed for life.
        self.descriptor = descriptor
        self._encoding = encoding
        self._waiting_max = waiting_max
        # Set by whoever sets up the logs again.
        self.left_out_line = left_out_line
        # One that its own thread may take again: what ends while it is held (a destructor) may log.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        # All below is moved under `_changed`.
        self._lines: list[tuple[bytes, int]] = []  # each with how many lines it stands for
        self._waiting = 0  # bytes, of `_lines` and of what the thread is writing
        self._left_out = 0  # lines, since the last one that waits

    def write(self, text: str) -> None:
        """A line with its end. Returns at once."""
        line = self._encoded(text)
        with self._changed:
            if self._waiting and (self._left_out or self._waiting + len(line) > self._waiting_max):
                self._left_out += 1
                return
            self._tell()
            self._add(line, 1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """As loggers call it after each line: the thread writes them soon, see `drain`."""

    def drain(self, within_s: float) -> bool:
        """Wait until everything is written, so long at most; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, within_s)

    def _add(self, line: bytes, count: int) -> None:
        self._lines.append((line, count))
        self._waiting += len(line)
        self._changed.notify_all()

    def _tell(self) -> None:
        """How many were left out, where some were."""
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._add(self._encoded(self.left_out_line(count)), count)

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, "backslashreplace")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                lines, self._lines = self._lines, []
            data = b"".join([line for line, _ in lines])
            written = self._write_out(data)
            with self._changed:
                self._waiting -= len(data)
                if written:
                    self._tell()
                else:
                    self._left_out += sum(count for _, count in lines)
                self._changed.notify_all()

    def _write_out(self, data: bytes) -> bool:
        """Whether the descriptor took all of it, however long that takes."""
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self.descriptor, rest) :]
                except BlockingIOError:  # somebody who has it too said that it must not wait
                    writable = select.poll()  # `select.select` takes no descriptor above 1,023
                    writable.register(self.descriptor, select.POLLOUT)
                    writable.poll()
        except OSError:
            return False  # nobody reads any more, or the disk of the file is full
        return True
