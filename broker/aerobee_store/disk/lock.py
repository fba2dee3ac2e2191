"""Who may open the store, and whether the last one closed it: the files `lock` and `abort`.

Touches  <root>/lock, <root>/abort.
lock     4 bytes "lock"; a POSIX record lock on its first byte is held while the store is open.
abort    there from before the first change until after the last one: the process id as text, and in a second line whose
         program it is. Official brokers write their process id alone, those of 4.x nothing.

The folder is locked with the file: that lock cannot be deleted, but official brokers do not ask for it.

Invariants
- The lock is taken before anything else in the folder is read or changed.
- `abort` is durable before anything changes, and is removed only when everything is durable.
- An `abort` that names this program says that no other one has written to the folder since the last checkpoint here.
"""

from pathlib import Path

from aerobee_store.disk.io import LockHandle, StoreIo
from aerobee_store.faults.errors import FileGone, StoreLocked

__all__ = ["StoreGuard", "is_left_by_another"]

_PROGRAM = b"aerobee"


def is_left_by_another(root: Path, io: StoreIo) -> bool:
    """Whether a program other than this one had the store below `root`, and did not close it.

    Such a program wrote by its own rules: what a checkpoint of ours promises of all records need not hold any more.
    """
    return _is_of_another(io.read_bytes(root / "abort"))


def _is_of_another(abort: bytes | None) -> bool:
    return abort is not None and abort.split(b"\n")[1:2] != [_PROGRAM]


class StoreGuard:
    """The lock and the abort file of one store folder."""

    def __init__(self, root: Path, io: StoreIo) -> None:
        self._io = io
        self._lock_path = root / "lock"
        self._abort_path = root / "abort"
        self._lock: LockHandle | None = None
        # Set by enter(): the last process did not close the store; it was of another program.
        self.was_aborted = False
        self.was_left_by_another = False

    def enter(self) -> None:
        """Take the lock and look whether the last run ended in order. StoreLocked if it is taken."""
        self._lock = self._io.lock(self._lock_path)
        abort = self._io.read_bytes(self._abort_path)
        self.was_aborted = abort is not None
        self.was_left_by_another = _is_of_another(abort)

    def announce_changes(self, process_id: int) -> None:
        """From now on a crash is seen as one by the next start."""
        self._io.replace_bytes(self._abort_path, b"%d\n%s\n" % (process_id, _PROGRAM), keep_previous=False)

    def keep(self, process_id: int) -> list[Path]:
        """Put the two files back if somebody took one away; which it were.

        FileGone when the lock cannot be had again: another process may be writing now.
        """
        put_back = []
        assert self._lock is not None
        try:
            if self._lock.keep():
                put_back.append(self._lock_path)
        except (StoreLocked, FileNotFoundError, NotADirectoryError) as lost:
            reason = "another process locked it" if isinstance(lost, StoreLocked) else "its folder is gone"
            raise FileGone(self._lock_path, f"somebody took it away, and {reason}") from lost
        if self._io.read_bytes(self._abort_path) is None:
            self.announce_changes(process_id)
            put_back.append(self._abort_path)
        return put_back

    def all_changes_durable(self) -> None:
        """The next start may trust the folder."""
        self._io.unlink(self._abort_path)
        self._io.sync_folder(self._abort_path.parent)

    def leave(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
