"""A thread that looks after the store's files, so that one that somebody deletes is missed within a second.

Touches  the store's files, asking only.

Not a task of the event loop: a look asks the file system, which may take its time, and what a look finds must stop the
broker also while the loop is busy.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_service.giving_way import GivingWay
from aerobee_store.store import MessageStore

__all__ = ["LOOK_INTERVAL_S", "FileWatching"]

log = structlog.get_logger()

LOOK_INTERVAL_S: Final = 0.5


class FileWatching:
    """Owns the thread. The event loop's thread calls everything."""

    def __init__(self, store: MessageStore, on_broken: Callable[[Exception], None]) -> None:
        """`on_broken` hears in the event loop of a fault of ours that ended the thread."""
        self._store = store
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="file watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No look begins after this; one that is under way ends by itself, the store's close waits for it."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(LOOK_INTERVAL_S):
                self._store.watch.look(GivingWay())
        except Exception as broken:
            log.exception("broker.task_failed", task="file watch")
            self._loop.call_soon_threadsafe(self._on_broken, broken)
