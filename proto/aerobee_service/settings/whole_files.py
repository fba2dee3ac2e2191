"""Small files that are replaced as a whole: settings, tables, offsets. Broker tables are written by the store.

Touches  the file, its `.bak` (the file before the change), and a `.tmp` beside each while it is written.

Invariants
- A crash or a failing call leaves the old or the new file under the name, and a whole one under .bak.
- Whoever could not read the file before cannot read what takes its place, the copy or the temporary one.
- What fails leaves no temporary file behind.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from aerobee_service.file_rights import give_rights
from aerobee_service.giving_way import GivingWay

__all__ = ["replace_file"]

PIECE_SIZE: Final = 128 * 1024  # bytes of a file that are read and written in one call
_NEW_MODE = 0o666  # less the umask: of a file that replaces none
_OWNER_ONLY = 0o600


def replace_file(
    path: Path, content: bytes | Iterable[bytes], *, keep_previous: bool = True, durable: bool = True
) -> None:
    """Put `content` in place of the file, with its mode and, where the system allows it, its owner and group.

    A large file is given in pieces, as an iterable: to put them together holds the interpreter, in whatever thread.
    `durable`: blocks until it is on disk. Raises OSError; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    if keep_previous and before is not None:
        _write_beside(path.with_name(path.name + ".bak"), _pieces_of(path), before, durable=durable)
    pieces = (content,) if isinstance(content, bytes) else content
    _write_beside(path, pieces, before, durable=durable)
    if durable:
        _sync_folder(path.parent)


def _pieces_of(path: Path) -> Iterator[bytes]:
    """In one call, a large one would take its processor for milliseconds from a system without preemption."""
    give_way = GivingWay()
    with path.open("rb") as file:
        while piece := file.read(PIECE_SIZE):
            yield piece
            give_way()


def _write_beside(
    path: Path, pieces: Iterable[bytes], before: os.stat_result | None, *, durable: bool
) -> None:
    temporary = path.with_name(path.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, _NEW_MODE if before is None else _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                give_rights(descriptor, before)  # first: there is nothing to read yet
            file.writelines(pieces)
            file.flush()
            if durable:
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:  # whoever makes the pieces may fail, too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
