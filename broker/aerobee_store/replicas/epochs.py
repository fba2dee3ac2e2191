"""Epochs of a replicated log: which mastership wrote which part of it, kept as RocketMQ's controller mode keeps it.

Touches  <root>/epochFileCheckpoint and its backup.

    3                number of entries
    1656940087       CRC-32 of the entries as they stand here, without its highest bit; 0: not checked
    1-0              epoch - physical offset at which the log ended when that mastership began
    2-218097
    3-287016

An epoch has the log from its offset to that of the next one. An epoch in which nothing was written leaves no entry:
the next one, which begins at the same place, takes its line.

Invariants
- Epochs and offsets grow from entry to entry.
- What append(), follow() or cut() changed is durable when they return, in the file and in its backup: a backup that is
  older would know of a mastership less, and of what it wrote more than there is.
- Garbage is an error by name, never "there was no epoch".
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.json_files import JsonFile

__all__ = ["ENTRIES_MAX", "EPOCH_FILE", "EPOCH_MAX", "Epoch", "EpochFile", "common_end", "sound_epochs"]

EPOCH_FILE: Final = "epochFileCheckpoint"
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
ENTRIES_MAX: Final = 4096  # that are kept; the oldest go first
_NOT_CHECKED: Final = 0
_CRC_MASK: Final = 0x7FFFFFFF
_ENTRY: Final = re.compile(r"(\d{1,10})-(\d{1,19})", re.ASCII)


class Epoch(NamedTuple):
    """One mastership, and the physical offset of the first byte that it may have written."""

    epoch: int
    start_offset: int


class EpochFile:
    """The epochs of one log. Everything is called by one thread at a time; `entries` may be read by any."""

    def __init__(self, path: Path, io: StoreIo) -> None:
        """Nothing is read before load()."""
        self._file = JsonFile(path, io, _parse)
        # Replaced, never changed in place; oldest first.
        self.entries: tuple[Epoch, ...] = ()

    def load(self) -> None:
        """Read the file; without one there was no epoch. CorruptStore when neither it nor its backup can be read."""
        self.entries = self._file.load() or ()

    @property
    def last_epoch(self) -> int:
        """The newest one; 0 when there is none."""
        return self.entries[-1].epoch if self.entries else 0

    def append(self, epoch: int, start_offset: int) -> None:
        """A mastership begins here. ValueError when a newer one is known, or one that begins behind this; OSError and
        StoreFull: nothing has changed."""
        if self.entries[-1:] == (Epoch(epoch, start_offset),):
            return
        kept = [entry for entry in self.entries if entry.start_offset != start_offset]
        if epoch <= self.last_epoch or (kept and kept[-1].start_offset > start_offset):
            raise ValueError(f"epoch {epoch} at {start_offset} cannot follow {self.entries[-1]}")
        self._save((*kept, Epoch(epoch, start_offset)))

    def follow(self, entries: Sequence[Epoch]) -> None:
        """Become the epochs of the log of which this one is a copy, also those that begin where it has not come yet: no
        older master may be followed from now on. Errors as append()."""
        if tuple(entries) != self.entries:
            self._save(tuple(entries))

    def cut(self, offset: int) -> tuple[Epoch, ...]:
        """The log ends at `offset`: epochs that begin there or behind it have nothing of it; which they were. Errors as
        append()."""
        kept = tuple(entry for entry in self.entries if entry.start_offset < offset)
        gone = self.entries[len(kept) :]
        if gone:
            self._save(kept)
        return gone

    def _save(self, entries: tuple[Epoch, ...]) -> None:
        entries = entries[-ENTRIES_MAX:]
        raw = _text(entries)
        self._file.save(raw)
        self._file.save(raw)
        self.entries = entries


def sound_epochs(entries: Sequence[Epoch]) -> bool:
    """Whether these can be the epochs of a log."""
    if len(entries) > ENTRIES_MAX:
        return False
    before = Epoch(0, -1)
    for entry in entries:
        if (
            not before.epoch < entry.epoch <= EPOCH_MAX
            or not before.start_offset < entry.start_offset <= OFFSET_MAX
        ):
            return False
        before = entry
    return True


def common_end(ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int) -> int | None:
    """Where the common part of two logs ends, by their epochs: where the newest of both ends first. None when they have
    none in common."""
    their_starts = dict(theirs)
    for number in range(len(ours) - 1, -1, -1):
        epoch, start = ours[number]
        if their_starts.get(epoch) == start:
            return min(_end_of(ours, epoch, our_end), _end_of(theirs, epoch, their_end))
    return None


def _end_of(entries: Sequence[Epoch], epoch: int, log_end: int) -> int:
    """Where the next epoch begins, or the log ends."""
    return min((entry.start_offset for entry in entries if entry.epoch > epoch), default=log_end)


def _text(entries: Sequence[Epoch]) -> bytes:
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries).encode()
    return b"%d\n%d\n%s" % (len(entries), zlib.crc32(lines) & _CRC_MASK, lines)


def _parse(raw: bytes) -> tuple[Epoch, ...]:
    """The epochs in a file, whatever the line ends of its machine; ValueError for what is none."""
    try:
        lines = raw.decode("ascii").splitlines(keepends=True)
    except UnicodeDecodeError:
        raise ValueError("there are bytes that are no text") from None
    if len(lines) < 2 or not all(line.strip().isdecimal() for line in lines[:2]):
        raise ValueError("the first two lines are not two numbers")
    body = lines[2:]
    found = tuple(_entry(line.strip()) for line in body)
    if len(found) != int(lines[0]):
        raise ValueError(f"there are {len(found)} epochs, {int(lines[0])} are announced")
    said, is_ = int(lines[1]), zlib.crc32("".join(body).encode()) & _CRC_MASK
    if said not in (_NOT_CHECKED, is_):
        raise ValueError(f"the checksum of the epochs is {is_}, {said} is announced")
    if not sound_epochs(found[-ENTRIES_MAX:]):
        raise ValueError("epochs or offsets do not grow from line to line")
    return found[-ENTRIES_MAX:]


def _entry(line: str) -> Epoch:
    found = _ENTRY.fullmatch(line)
    if found is None:
        raise ValueError(f"{line[:40]!r} is no epoch")
    return Epoch(int(found[1]), int(found[2]))
