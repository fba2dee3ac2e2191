"""Small files that are replaced as a whole: settings, tables, offsets. Broker tables are written by the store.

Touches  the file, its `.bak` (the file before the change), and a `.tmp` beside each while it is written.

Invariants
- A crash or a failing call leaves the old or the new file under the name, and a whole one under .bak.
- Whoever could not read the file before cannot read what takes its place, the copy or the temporary one.
- What fails leaves no temporary file behind.
"""

import contextlib
import os
from pathlib import Path

from aerobee_service.file_rights import give_rights

__all__ = ["replace_file"]

_NEW_MODE = 0o666  # less the umask: of a file that replaces none
_OWNER_ONLY = 0o600


def replace_file(path: Path, content: bytes, *, keep_previous: bool = True, durable: bool = True) -> None:
    """Put `content` in place of the file, with its mode and, where the system allows it, its owner and group.

    `durable`: blocks until it is on disk. Raises OSError; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    if keep_previous and before is not None:
        _write_beside(path.with_name(path.name + ".bak"), path.read_bytes(), before, durable=durable)
    _write_beside(path, content, before, durable=durable)
    if durable:
        _sync_folder(path.parent)


def _write_beside(path: Path, content: bytes, before: os.stat_result | None, *, durable: bool) -> None:
    temporary = path.with_name(path.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, _NEW_MODE if before is None else _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                give_rights(descriptor, before)  # first: there is nothing to read yet
            file.write(content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
