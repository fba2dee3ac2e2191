"""Small config files (topics, offsets, groups): replaced whole, with the previous one beside them.

Touches  <root>/config/<name> and <name>.bak.

Invariants
- A crash at any moment leaves the old or the new content under the name, and a whole one under .bak.
- Garbage is never taken for "nothing there": with neither file readable the load fails by name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from aerobee_store.errors import CorruptStore
from aerobee_store.io import StoreIo

__all__ = ["JsonFile"]

T = TypeVar("T")


class JsonFile(Generic[T]):
    """One config file whose bytes `parse` understands; `parse` raises ValueError for what it does not."""

    def __init__(self, path: Path, io: StoreIo, parse: Callable[[bytes], T]) -> None:
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._io = io
        self._parse = parse
        # Set by load(): the main file was missing, empty or unreadable and the backup was taken.
        self.used_backup = False

    def load(self) -> T | None:
        """The parsed content; None when there is neither the file nor a backup.

        A missing, empty or unreadable file gives way to its backup. CorruptStore when there is something
        but nothing that can be read.
        """
        self.used_backup = False
        present = False
        reason = ""
        for path in (self.path, self.backup_path):
            raw = self._io.read_bytes(path)
            if raw is None:
                continue
            if raw.strip():
                present = True
                try:
                    parsed = self._parse(raw)
                except (ValueError, UnicodeDecodeError) as error:
                    reason = reason or str(error)
                else:
                    self.used_backup = path is self.backup_path
                    return parsed
        if present:
            way_out = f"repair it, or put a good copy in its place; {self.backup_path.name} is no better"
            raise CorruptStore(self.path, None, f"not readable: {reason}", way_out)
        return None

    def save(self, content: bytes) -> None:
        """Replace the content, durable; the one before becomes the backup unless it was not readable."""
        self._io.replace_bytes(self.path, content, keep_previous=self._is_readable())

    def _is_readable(self) -> bool:
        raw = self._io.read_bytes(self.path)
        if not raw:
            return False
        try:
            self._parse(raw)
        except ValueError:
            return False
        return True
