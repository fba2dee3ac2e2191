"""Copies of damaged stretches of the log, kept for people; their names keep readers away from the places.

Touches  quarantine/ below the store's root: a file <first offset>-<one past the last> for each stretch, and .cut behind
         that once the log was cut back below it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aerobee_store.disk.io import StoreIo
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.walking.log_reader import Damage

__all__ = ["QUARANTINE", "forget_behind", "keep_out", "put_aside", "quarantined"]

QUARANTINE: Final = "quarantine"


def keep_out(io: StoreIo, root: Path, log: CommitLog, found: Iterable[Damage]) -> None:
    """Keep a copy of each of these stretches; what is in quarantine then is served to nobody, also later."""
    for damage in found:
        file = log.mapped.find(damage.begin)
        if file is not None:  # else a missing file, of which there is nothing to keep
            content = bytes(file.view[damage.begin - file.offset : damage.end - file.offset])
            put_aside(io, root, damage, content)
    log.damaged = quarantined(io, root)


def put_aside(io: StoreIo, root: Path, damage: Damage, content: bytes) -> None:
    """Keep a copy of a damaged stretch under the name that keeps readers away from it; one that is there stays."""
    path = root / QUARANTINE / f"{damage.begin:020d}-{damage.end:020d}"
    if io.read_bytes(path) is None:
        io.replace_bytes(path, content, keep_previous=False)


def quarantined(io: StoreIo, root: Path) -> tuple[tuple[int, int], ...]:
    """The damaged stretches that the names in the quarantine folder tell."""
    found = []
    for entry in io.list_names(root / QUARANTINE):
        begin, _, end = entry.name.partition("-")
        if begin.isdecimal() and end.isdecimal():
            found.append((int(begin), int(end)))
    return tuple(found)


def forget_behind(io: StoreIo, root: Path, physical_offset: int) -> None:
    """The log ends at `physical_offset`: what is written behind it is not what lay there. The copies stay."""
    for begin, end in quarantined(io, root):
        if end > physical_offset:
            path = root / QUARANTINE / f"{begin:020d}-{end:020d}"
            io.rename(path, path.with_name(path.name + ".cut"))
