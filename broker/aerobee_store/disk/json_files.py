"""Small config files (topics, offsets, groups): replaced whole, with the previous one beside them.

Touches  <root>/config/<name> and <name>.bak.

Invariants
- A crash at any moment leaves the old or the new content under the name, and a whole one under .bak.
- Garbage is never taken for "nothing there": with neither file readable the load fails by name.
- Only a readable file becomes the backup. One that is as it was written or loaded here (size and time of change) is not
  read again for that: reading a large table is one long call of the interpreter, and no other thread goes on meanwhile.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from aerobee_store.disk.io import StoreIo
from aerobee_store.faults.errors import CorruptStore

__all__ = ["JsonFile"]

T = TypeVar("T")

SIZE_MAX: Final = 256 << 20  # bytes; a table of a million topics is smaller
_MISSING: Final = "it is missing"


class JsonFile(Generic[T]):
    """One config file whose bytes `parse` understands; `parse` raises ValueError for what it does not."""

    def __init__(self, path: Path, io: StoreIo, parse: Callable[[bytes], T]) -> None:
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._io = io
        self._parse = parse
        # Set by load() and save(): size and time of change of the file when it was known to be readable.
        self.readable: tuple[int, int] | None = None
        # Set by load(): why the main file was not taken but its backup; empty when it was.
        self.fault = ""

    @property
    def used_backup(self) -> bool:
        """Whether load() took the backup."""
        return bool(self.fault)

    def load(self) -> T | None:
        """The parsed content; None when there is neither the file nor a backup.

        A missing, empty or unreadable file gives way to its backup. CorruptStore when there is something
        but nothing that can be read.
        """
        self.fault = ""
        faults: list[str] = []
        mark = self._mark()
        for path in (self.path, self.backup_path):
            found = self._read(path)
            if isinstance(found, _Content):
                self.fault = faults[0] if faults else ""
                if not faults:
                    self.readable = mark
                return found.parsed
            faults.append(found)
        if faults == [_MISSING, _MISSING]:
            return None
        raise CorruptStore(self.path, None, f"not readable: {faults[0]}", self._way_out(faults[1]))

    def _read(self, path: Path) -> "_Content[T] | str":
        """The parsed content, or what is wrong with the file."""
        sizes = {entry.name: entry.size for entry in self._io.list_names(path.parent)}
        size = sizes.get(path.name)
        if size is None:
            return _MISSING
        if size > SIZE_MAX:
            return f"it has {size} bytes, more than any such file can have"
        raw = self._io.read_bytes(path)
        if raw is None:
            return _MISSING
        if not raw.strip():
            return "it is empty"
        try:
            return _Content(self._parse(raw))
        except RecursionError:
            return "it is nested too deeply"
        except ValueError as error:
            return str(error)

    def _way_out(self, backup_fault: str) -> str:
        return (
            f"its copy {self.backup_path.name} is of no use either ({backup_fault}); repair it, put a good copy in its "
            "place, or move both away to start without what it held"
        )

    def save(self, content: bytes) -> None:
        """Replace the content, durable; the one before becomes the backup unless it was not readable."""
        keep = (mark := self._mark()) is not None and (mark == self.readable or self._is_readable())
        self._io.replace_bytes(self.path, content, keep_previous=keep)
        self.readable = self._mark()

    def _is_readable(self) -> bool:
        return isinstance(self._read(self.path), _Content)

    def _mark(self) -> tuple[int, int] | None:
        """What tells this file from one that somebody else put in its place; None when it is missing."""
        for entry in self._io.list_names(self.path.parent):
            if entry.name == self.path.name and not entry.is_dir:
                return entry.size, self._io.modified_ms(self.path)
        return None


class _Content(Generic[T]):
    """What was read; its own type, since parsed content may be anything."""

    __slots__ = ("parsed",)

    def __init__(self, parsed: T) -> None:
        self.parsed = parsed
