"""File systems as a whole: one call that makes everything on one durable, for when very many files have grown.

Touches  a descriptor of a folder for each file system in use; /proc/self/mountinfo once for each.

Syncing 8,000 files one by one takes 1.3 s of an idle disk, 12 s beside a full load, and each gives the interpreter's
lock away; one syncfs(2) takes 0.2 s. Its answer is worth something from Linux 5.8 on, which reports a failed write of
any file to every descriptor once, and on file systems that are known to wait for their disk. Elsewhere, and when it
reports an error, the caller syncs file by file: only that tells which file it was, and whether it is ours.
"""

import ctypes
import os
import platform
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

__all__ = ["FileSystem", "file_system_of"]

# Those on a disk of this machine. Network and user-space file systems may not wait for theirs, layered ones (overlay)
# may not pass on what the layer below them says.
_TRUSTED: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs"})
_LINUX_MIN: Final = (5, 8)


class FileSystem:
    """A file system that syncfs(2) can be trusted with; open as long as somebody holds this."""

    __slots__ = ("__weakref__", "_fd", "device")

    def __init__(self, folder: Path, device: int) -> None:
        # An error is reported once to each descriptor that was open when it happened, so this one has to be there
        # before the first write that it shall answer for.
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.device = device

    def sync(self) -> bool:
        """Whether all that was written to any of its files, and made in its folders, before this call is durable.

        False when something could not be written since the last call, or since this was opened.
        """
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
        return syncfs is not None and syncfs(self._fd) == 0

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._fd)


# By device number; gone with the last file that holds one, so that nothing keeps a file system from being unmounted.
_open: WeakValueDictionary[int, FileSystem] = WeakValueDictionary()
# Devices found unfit: a container's root is asked about for each of thousands of files. Never the other way round, as
# numbers are given out again.
_unfit: set[int] = set()
_opening = threading.Lock()


def file_system_of(device: int, folder: Path) -> FileSystem | None:
    """The file system with this number, of a file in `folder`; None if it has to be synced file by file."""
    known = _open.get(device)
    if known is not None or device in _unfit:
        return known
    with _opening:
        known = _open.get(device)
        if known is None and is_trusted(device) and folder.stat().st_dev == device:
            known = _open[device] = FileSystem(folder, device)
        elif known is None:
            _unfit.add(device)
        return known


def is_trusted(device: int) -> bool:
    """Whether one sync of the file system of a device tells of every failed write since the last."""
    return (
        sys.platform == "linux"
        and linux_version(platform.release()) >= _LINUX_MIN
        and (kind_of(device, _mounts()) in _TRUSTED)
    )


def linux_version(release: str) -> tuple[int, ...]:
    """The first two numbers of a kernel's release; (0,) when it has none."""
    numbers = release.split("-")[0].split(".")[:2]
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else (0,)


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, PermissionError):
        return ""


def kind_of(device: int, mounts: str) -> str:
    """The type of the file system with this device number, from the text of mountinfo (proc_pid_mountinfo(5))."""
    requested = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        own, _, system = line.partition(" - ")
        if own.split(" ")[2:3] == [requested]:
            return system.partition(" ")[0]
    return ""
