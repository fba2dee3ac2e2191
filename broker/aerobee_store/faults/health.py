"""Whether a store can still be written: until the disk has failed for good, or a file is gone.

Touches  nothing but the log of events.

A failed sync leaves open what is on the disk; only another start may find that out. So the first failure is final, and
whoever writes asks here before and says here what it met.

Threads: whichever thread meets a failure says so; reason and failure are set once, together, and never cleared.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from aerobee_store.faults.errors import FileGone, StorePoisoned

__all__ = ["StoreHealth"]

log: Final = structlog.get_logger()


class StoreHealth:
    """The first failure that is final, None as long as there is none."""

    __slots__ = ("_flushed_offset", "_forget", "_on_failure", "_root", "failure", "reason")

    def __init__(
        self,
        root: Path,
        *,
        flushed_offset: Callable[[], int],
        forget: Callable[[Path], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`forget` is called with the path of a file that is gone, so that nothing says any more that what it held is
        on disk; `on_failure` is called last. Both are called once at most, by the thread that met the failure."""
        # Fixed for life.
        self._root = root
        self._flushed_offset = flushed_offset
        self._forget = forget
        self._on_failure = on_failure
        # Why nothing can be written any more; and what it was, set with it.
        self.reason: str | None = None
        self.failure: OSError | None = None

    def check(self) -> None:
        """StorePoisoned when the store has failed."""
        if self.reason is not None:
            raise StorePoisoned(self.reason)

    def fail(self, what: str, error: OSError) -> StorePoisoned:
        """The disk has failed for good at `what` (for people); the error to raise. Only the first failure is logged:
        others follow from it."""
        gone = isinstance(error, FileGone)
        reason = f"the disk failed at the {what} ({error}); restart the broker after a look at it"
        if gone:
            reason = f"a file of the store is gone ({error}); restart the broker after a look at it"
        if self.reason is None:
            self.reason, self.failure = reason, error
            event = "store.file_gone" if gone else "store.disk_failed"
            path = str(error.filename or self._root)
            log.error(event, what=what, path=path, reason=str(error), flushed_offset=self._flushed_offset())
            if isinstance(error, FileGone):
                self._forget(error.path)
            self._on_failure(error)
        return StorePoisoned(reason)
