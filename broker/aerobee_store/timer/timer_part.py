"""The timer files as a part of a store: opened, checked, cleaned and closed with the others.

Touches  <root>/timerlog/, <root>/timerwheel, <root>/config/timercheck.

Who delivers messages that wait works with the files themselves and says when a checkpoint is due (TimerFiles.sync):
it may speak of nothing that the log could still lose. A store that is opened without timers leaves the files as they
are, and looks at them all the same when it is checked.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from aerobee_store.disk.io import DataFile, StoreIo
from aerobee_store.disk.mapped_files import MappedFile
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.timer.timer_check import IsMessage, TimerFault, timer_faults
from aerobee_store.timer.timer_files import TimerFiles, Verify

__all__ = ["TimerPart", "TimerShape"]


class TimerShape(NamedTuple):
    """How the files are laid out: milliseconds of a slot, bytes of a file of the timer log."""

    precision_ms: int
    log_file_size: int


class TimerPart:
    """The timer files of one store."""

    title = "timer files"

    def __init__(
        self,
        root: Path,
        io: StoreIo,
        shape: TimerShape | None,
        *,
        verify: Verify,
        is_message: IsMessage,
        log_range: Callable[[], tuple[int, int]],
        queue_end: Callable[[], int],
    ) -> None:
        """`shape` None: nobody delivers here. `verify` and `is_message` ask the log for a timer message; `log_range`
        is what the log has, physical offsets; `queue_end` the end of the timer topic."""
        self._root = root
        self._io = io
        self._verify = verify
        self._is_message = is_message
        self._log_range = log_range
        self._queue_end = queue_end
        # None: nobody delivers here.
        self.files: TimerFiles | None = None
        if shape is not None:
            precision_ms, size = shape
            self.files = TimerFiles(root, io, precision_ms=precision_ms, log_file_size=size)

    def load(self) -> None:
        """As StorePart."""
        if self.files is not None:
            self.files.load()

    def recover_to(self, begin: int, end: int) -> None:
        """As StorePart: units of messages that the log does not have, and that were not on disk yet, go."""
        if self.files is not None:
            self.files.recover(self._verify, end, self._queue_end())

    def flush(self) -> int:
        """As StorePart; what they say of themselves, the checkpoint, is another's: see TimerFiles.sync()."""
        return self.files.flush() if self.files is not None else 0

    @property
    def watermark(self) -> int:
        """As StorePart: the log's end that the last checkpoint of this run speaks of."""
        return self.files.message_end if self.files is not None else 0

    def faults(self) -> list[TimerFault]:
        """All that is wrong, by themselves and with the log. Slow; for any thread. OSError: it cannot be read."""
        begin, end = self._log_range()
        return timer_faults(self._root, self._io, log_min=begin, log_end=end, is_message=self._is_message)

    def check(self) -> None:
        """As StorePart."""
        for fault in self.faults():
            raise CorruptStore(fault.path, fault.position, fault.reason)

    def release_before(self, log_min: int) -> list[MappedFile]:
        """Take the files out whose messages all lie below the log's beginning; deleting them is the caller's."""
        return self.files.release_before(log_min) if self.files is not None else []

    def open_files(self) -> Iterable[DataFile]:
        """The files as they are open now. For any thread."""
        return self.files.open_files() if self.files is not None else []

    def close(self) -> None:
        """As StorePart."""
        if self.files is not None:
            self.files.close()
