"""What can go wrong with a store, as one small family.

    StoreError
      CorruptStore        bytes on disk break an invariant: names path, offset, reason and the way out
      NotInLog            bytes were asked for, or came, at a place that the log does not have
      StoreLocked         another process has the store open
      StoreFull           the disk (or its reserve) has no room; nothing was changed
        OutOfResources    no descriptor, map or memory is left; waited out in the same way, but told as what it is
      StoreNotWriteable   closed, failed or read-only; reads may go on
        StorePoisoned     a sync failed: final until the process starts again
    FileGone (an OSError) a file was taken from under the running store: final, and no fault of the disk

Facts travel as attributes (`path`, `physical_offset`, `reason`), the text is for people.
"""

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_proto.errors import AerobeeError
from aerobee_store.faults.limits import MAPS_MAX_PATH

__all__ = [
    "FILE_NOT_THERE",
    "FILE_REPLACED",
    "NO_ROOM_ERRORS",
    "RESOURCE_ERRORS",
    "CorruptStore",
    "CutRefused",
    "FileGone",
    "NamesNotSynced",
    "NotInLog",
    "NotMaster",
    "OutOfResources",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreNotWriteable",
    "StorePoisoned",
    "WrongLength",
    "file_cut",
]


# What a process or a system may have too few of, without anything being wrong with a disk.
RESOURCE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# What is not there now and may be later, in the same way: space, quota, inodes (the first again).
NO_ROOM_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# What somebody else did to a file of the running store.
FILE_NOT_THERE: Final = "somebody deleted it or moved it away under the running broker"
FILE_REPLACED: Final = "somebody put another file in its place under the running broker"


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


class WrongLength(CorruptStore):
    """A data file has another length than all of its kind: the settings are another store's, or somebody cut it."""

    def __init__(self, path: Path, found: int, needed: int, way_out: str, *, is_alone: bool) -> None:
        """`is_alone`: no other file of the folder has the right length."""
        super().__init__(path, None, f"length is {found}, must be {needed}", way_out)
        self.found = found
        self.is_alone = is_alone


class StoreLocked(StoreError):
    """Another process holds the store's lock file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is locked by another running broker; stop it or choose another store folder"


class TooFewCopies(StoreError):
    """Nothing is taken while so few copies of the log are near enough: what were stored now would not be safe."""

    def __init__(self, count: int, needed: int) -> None:
        super().__init__(count, needed)
        self.count = count
        self.needed = needed

    def __str__(self) -> str:
        return (
            f"in-sync replicas not enough: there are {self.count} with this master,"
            f" {self.needed} are wanted (minInSyncReplicas)"
        )


class NotMaster(StoreError):
    """Nothing is taken, and nothing answered with success, as another broker may be the master by now."""

    def __str__(self) -> str:
        return "this broker is not the master of its set any more, or cannot be sure of it: its lease may have lapsed"


class CutRefused(StoreError):
    """The log cannot be cut back to the physical offset `physical_offset`; nothing was changed."""

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(physical_offset, reason)
        self.physical_offset = physical_offset
        self.reason = reason

    def __str__(self) -> str:
        return f"the log cannot be cut back to {self.physical_offset}: {self.reason}"


class NotInLog(StoreError):
    """Bytes at a physical offset were asked for or came that the log does not have, or cannot take: it has
    [begin, end)."""

    def __init__(self, physical_offset: int, begin: int, end: int) -> None:
        super().__init__(physical_offset, begin, end)
        self.physical_offset = physical_offset
        self.begin = begin
        self.end = end

    def __str__(self) -> str:
        return f"physical offset {self.physical_offset} is not between {self.begin} and {self.end}"


class StoreFull(StoreError):
    """There is no room for `needed` bytes under `path`; nothing was changed and reads go on.

    `reason` is the system's, when it is known.
    """

    # For callers that have to pass it on as an OSError.
    number: int = errno.ENOSPC

    def __init__(self, path: Path, needed: int, reason: str = "") -> None:
        super().__init__(path, needed, reason)
        self.path = path
        self.needed = needed
        self.reason = reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"no room for {self.needed} bytes at {self.path}{why}; free space or raise the limit"


class OutOfResources(StoreFull):
    """A call for `path` failed with `number`, one of RESOURCE_ERRORS; nothing was changed, and it may be tried again.

    `limit` names what is used up, `way_out` says what to raise.
    """

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(path, 0, os.strerror(number))
        self.args = (path, number)
        self.number = number
        self.limit, self.way_out = _limit_of(number)

    def __str__(self) -> str:
        return f"{self.limit} at {self.path} ({self.reason}); {self.way_out}"


def _limit_of(number: int) -> tuple[str, str]:
    """What is used up when a call fails so, and what helps."""
    if number == errno.EMFILE:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"all {files} files that this process may open are open",
            "raise its limit (LimitNOFILE of systemd, ulimit -n) or lower maxConnections",
        )
    if number == errno.ENFILE:
        return "all files that this machine may open are open", "raise fs.file-max, or find who opens them"
    maps = "?"
    with suppress(OSError):  # not there on other systems, and it takes a descriptor to look
        maps = MAPS_MAX_PATH.read_text().strip()
    return (
        "no memory or no map is left",
        f"give the process more memory; if it has {maps} maps (/proc/PID/maps), raise vm.max_map_count",
    )


class StoreNotWriteable(StoreError):
    """The store takes no messages now; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the store is not writeable: {self.reason}"


class StorePoisoned(StoreNotWriteable):
    """The disk refused a sync or a write. Final: what is on disk is known again only after a restart."""


def file_cut(found: int, size: int) -> str:
    """What somebody else did to a file of `size` bytes that has `found` of them now."""
    return f"somebody changed its length from {size} to {found} under the running broker"


class NamesNotSynced(OSError):
    """A folder could not be synced: which of the names made or removed in it a crash leaves, nobody knows.

    As final as a failed sync of a file, as the next one may say that all is well; but for a file that is written anew
    as a whole.
    """


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
