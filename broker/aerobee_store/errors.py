"""What can go wrong with a store, as one small family.

    StoreError
      CorruptStore        bytes on disk break an invariant: names path, offset, reason and the way out
      StoreLocked         another process has the store open
      StoreFull           the disk (or its reserve) has no room; nothing was changed
      StoreNotWriteable   closed, failed or read-only; reads may go on
        StorePoisoned     a sync failed: final until the process starts again
    FileGone (an OSError) a file was taken from under the running store: final, and no fault of the disk

Facts travel as attributes (`path`, `physical_offset`, `reason`), the text is for people.
"""

import errno
from pathlib import Path

from aerobee_proto.errors import AerobeeError

__all__ = [
    "CorruptStore",
    "FileGone",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreNotWriteable",
    "StorePoisoned",
]


class StoreError(AerobeeError):
    """Base of everything that the store raises on purpose."""


class CorruptStore(StoreError):
    """Bytes on disk are not what they must be.

    `physical_offset` is the commit-log offset (or byte position in `path`) of the damage, None when the
    file as a whole is wrong. `way_out` says what the operator can do.
    """

    def __init__(self, path: Path, physical_offset: int | None, reason: str, way_out: str = "") -> None:
        super().__init__(path, physical_offset, reason, way_out)
        self.path = path
        self.physical_offset = physical_offset
        self.reason = reason
        self.way_out = way_out

    def __str__(self) -> str:
        where = f" at offset {self.physical_offset}" if self.physical_offset is not None else ""
        out = f"; {self.way_out}" if self.way_out else ""
        return f"{self.path}{where}: {self.reason}{out}"


class StoreLocked(StoreError):
    """Another process holds the store's lock file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is locked by another running broker; stop it or choose another store folder"


class StoreFull(StoreError):
    """There is no room for `wanted` bytes under `path`; nothing was changed and reads go on.

    `reason` is the system's, when it is known: a limit of the process (open files) is no room either.
    """

    def __init__(self, path: Path, wanted: int, reason: str = "") -> None:
        super().__init__(path, wanted, reason)
        self.path = path
        self.wanted = wanted
        self.reason = reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"no room for {self.wanted} bytes at {self.path}{why}; free space or raise the limit"


class StoreNotWriteable(StoreError):
    """The store takes no messages now; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the store is not writeable: {self.reason}"


class StorePoisoned(StoreNotWriteable):
    """The disk refused a sync or a write. Final: what is on disk is known again only after a restart."""


class FileGone(OSError):
    """A file of the running store was deleted, moved, cut or replaced by somebody else.

    An OSError, as those of a sync and of a file that cannot be made: for whoever writes it is as final as they are.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.ENOENT, reason, str(path))
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"
