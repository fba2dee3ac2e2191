"""Whether the open files are still in their places: an unlinked file takes every write, and nobody finds it again.

Touches  the names of the files, asking only, one call a file, 3 us; lock and abort are put back when they are gone.

Who looks: a thread of its own, some times a second. Files of log and index, the checkpoint and whatever else is
added are looked at each time. There may be 100,000 files of queues, which the log can rebuild: of them
QUEUE_FILES_A_LOOK are looked at each time, in turn, so that a look stays short: after each call this thread takes the
interpreter from the event loop for a moment.

Invariants
- What the owner of a file closes and deletes itself is never told: owners take it out of their rows first.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from aerobee_store.disk.io import DataFile
from aerobee_store.disk.lock import StoreGuard
from aerobee_store.faults.errors import FileGone, StoreFull
from aerobee_store.faults.health import StoreHealth
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.terms.config import StoreConfig

__all__ = ["QUEUE_FILES_A_LOOK", "FileWatch", "OpenFiles"]

log: Final = structlog.get_logger()

QUEUE_FILES_A_LOOK: Final = 500  # 2 ms, when nobody else is busy

OpenFiles = Callable[[], Iterable[DataFile]]


class FileWatch:
    """Looks after the files of one store. One thread calls look(); begin() and end() belong to who opens the store."""

    def __init__(
        self,
        config: StoreConfig,
        guard: StoreGuard,
        rows: Sequence[OpenFiles],
        queues: QueueTable,
        health: StoreHealth,
    ) -> None:
        """`rows` give the files that are open at the moment and looked at each time."""
        # Fixed for life.
        self._config = config
        self._guard = guard
        self._rows = rows
        self._queues = queues
        self._health = health
        # Where the turn through the files of the queues stands; None: at its beginning.
        self._turn: Iterator[tuple[DataFile, OpenFiles]] | None = None
        self._looking = threading.Lock()  # against end()
        self._is_watching = False
        # The last look could not be done: that is said once.
        self._has_failed = False

    def begin(self) -> None:
        """The store is open."""
        self._is_watching = True

    def end(self) -> None:
        """The store is being closed; no look is under way on return, and none does anything any more."""
        with self._looking:
            self._is_watching = False

    def look(self, pause: Callable[[], None] = lambda: None) -> None:
        """See whether every file is still in its place; one that is not is final for the store, as a failed sync. Lock
        and abort are put back. For a thread of its own, which does this all the time, with a `pause` after each file.
        """
        with self._looking:
            if not self._is_watching or self._health.reason is not None:
                return
            try:
                for path in self._guard.keep(os.getpid()):
                    log.warning("store.file_put_back", path=str(path))
                self._see_all(pause)
                self._has_failed = False
            except FileGone as gone:
                self._health.fail(_what(self._config, gone.path), gone)
            except (OSError, StoreFull) as failed:
                # Nobody can tell now; what writes will find out by itself.
                if not self._has_failed:
                    log.warning("store.files_not_looked_at", reason=str(failed))
                self._has_failed = True

    def _see_all(self, pause: Callable[[], None]) -> None:
        """FileGone names the first file that is not as its owner left it. OSError: nobody can tell now."""
        for row in self._rows:
            for file in row():
                _see(file, row)
                pause()
        self._turn = self._turn or self._queue_files()
        for _ in range(QUEUE_FILES_A_LOOK):
            found = next(self._turn, None)
            if found is None:
                self._turn = None
                return
            _see(*found)
            pause()

    def _queue_files(self) -> Iterator[tuple[DataFile, OpenFiles]]:
        for queue in self._queues:
            for file in queue.open_files():
                yield file, queue.open_files


def _see(file: DataFile, row: OpenFiles) -> None:
    reason = file.displaced()
    if reason is not None and any(other is file for other in row()):
        raise FileGone(file.path, reason)


def _what(config: StoreConfig, path: Path) -> str:
    """What a file of the store is, for people."""
    folders = {
        config.commit_log_path: "commit log",
        config.consume_queue_path: "consume queue",
        config.batch_queue_path: "consume queue",
        config.index_path: "index",
        config.root / "timerlog": "timer log",
    }
    return next((what for folder, what in folders.items() if path.is_relative_to(folder)), path.name)
