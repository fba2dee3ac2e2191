"""The file of users and policies, for a server that has no store: replaced as a whole, with the one before beside it.

Touches  one JSON file and its `.bak`, as whole_files says.

Invariants
- Whoever may read it is decided when it is made: its owner alone.
- One write at a time; what is written has every change that was made before.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aerobee_access.table import AccessTable, Content
from aerobee_proto.errors import AerobeeError, FormatError
from aerobee_service.settings.whole_files import replace_file

__all__ = ["AccessFile", "AccessFileDamaged"]

SIZE_MAX = 64 << 20  # bytes


class AccessFileDamaged(AerobeeError):
    """The file cannot be read; nobody would know who may come in."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"users and policies in {path} cannot be read ({reason}); put {path.name}.bak in its place, or move both "
            "away to begin with the users of the settings"
        )
        self.path = path


class AccessFile:
    """A table and its file. `path` None keeps it in memory only."""

    def __init__(self, path: Path | None, table: AccessTable) -> None:
        self._path = path
        self._table = table
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Fill the table from the file; a missing one leaves it as it is. AccessFileDamaged, KeyFileError."""
        content = self.read()
        if content is not None:
            self._table.take(content)

    def read(self) -> Content | None:
        """What the file says; None when it is not there. AccessFileDamaged, KeyFileError. From any thread."""
        path = self._path
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as file:
                raw = file.read(SIZE_MAX + 1)
            content = msgspec.json.decode(raw, type=dict[str, object])
            return self._table.parse(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, FormatError) as wrong:
            raise AccessFileDamaged(path, str(wrong)) from wrong

    async def save(self) -> None:
        """Return when every change so far is on disk. Raises OSError when it cannot be written."""
        path = self._path
        if path is None:
            return
        async with self._writing:
            await asyncio.to_thread(_write, path, self._table.to_json())

    def write(self) -> None:
        """As `save`, for a program without an event loop."""
        if self._path is not None:
            _write(self._path, self._table.to_json())


def _write(path: Path, tables: Mapping[str, Mapping[str, object]]) -> None:
    # Entry by entry: whoever makes ten thousand of them in one call holds the interpreter, in whatever thread.
    plain = {name: {key: table[key] for key in table} for name, table in tables.items()}
    content = msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    # What takes its place has the same rights.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    replace_file(path, content, keep_previous=path.stat().st_size > 0)
