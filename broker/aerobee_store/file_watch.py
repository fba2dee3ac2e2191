"""Whether the open files are still in their places: an unlinked file takes every write, and nobody finds it again.

Touches  the names of the files, asking only; one call a file, 3 us.

Who looks: a thread of its own, some times a second. Files of log and index, the checkpoint and whatever else is
added are looked at each time. There may be 100,000 files of queues, which the log can rebuild: of them
QUEUE_FILES_A_LOOK are looked at each time, in turn, so that a look stays short.

Invariants
- What the owner of a file closes and deletes itself is never told: owners take it out of their rows first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from aerobee_store.errors import FileGone
from aerobee_store.io import DataFile
from aerobee_store.queue_table import QueueTable

__all__ = ["QUEUE_FILES_A_LOOK", "FileWatch", "OpenFiles"]

QUEUE_FILES_A_LOOK: Final = 2_000  # 6 ms

OpenFiles = Callable[[], Iterable[DataFile]]


class FileWatch:
    """Looks after the files of one store. One thread calls look()."""

    def __init__(self, rows: Sequence[OpenFiles], queues: QueueTable) -> None:
        """`rows` give the files that are open at the moment and looked at each time."""
        self._rows = rows
        self._queues = queues
        # Where the turn through the files of the queues stands; None: at its beginning.
        self._turn: Iterator[tuple[DataFile, OpenFiles]] | None = None

    def look(self) -> None:
        """FileGone names the first file that is not as its owner left it. OSError: nobody can tell now."""
        for row in self._rows:
            for file in row():
                _see(file, row)
        self._turn = self._turn or self._queue_files()
        for _ in range(QUEUE_FILES_A_LOOK):
            found = next(self._turn, None)
            if found is None:
                self._turn = None
                return
            _see(*found)

    def _queue_files(self) -> Iterator[tuple[DataFile, OpenFiles]]:
        for queue in self._queues:
            for file in queue.open_files():
                yield file, queue.open_files


def _see(file: DataFile, row: OpenFiles) -> None:
    reason = file.displaced()
    if reason is not None and any(other is file for other in row()):
        raise FileGone(file.path, reason)
