"""Whether the index leads to the records of the log: the keys that a walk meets against the entries that are there.

Touches  the files of the index through `Inspection`, reading.

The index takes keys in the order of the log, so the entries of a stretch of it are a stretch of them. Between the first
and the last one that it has, every key of every record has its entry. Who turns the index off for a time leaves a gap
that looks like a loss, and is one for who asks by key. What lies before the first entry or behind the last one was
written while there was no index, or went with a file of it.
"""

import struct
from bisect import bisect_left, bisect_right
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aerobee_store.index.index import hashed_keys
from aerobee_store.index.index_file import ENTRY_DTYPE, ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT
from aerobee_store.offline.inspection import Finding, Inspection
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.walking.keys import keyed_record
from aerobee_store.walking.record_columns import Stretch

__all__ = ["IndexCheck", "KeptIndexCheck"]

REBUILT: Final = "a start of our broker builds it again from the log"
REPAIRED: Final = "`aerobee store repair` indexes them"
SLOTS_USUAL: Final = 5_000_000
LAST_MAX: Final = 1024  # places in a file that may be its last entry, of those that lead to its last record
_WORD: Final = np.dtype(">i4")
_WHOLE: Final = struct.Struct(">q")
_HALVES: Final = struct.Struct(">ii")
_CODE_BITS: Final = 32  # of a hash; places of one stretch are not 4 GiB apart

# keys that are missing, the first record of them, keys before the first entry, keys behind the last one
KeptIndexCheck = tuple[int, int, int, int]

_Entries = NDArray[np.void]
_Ints = NDArray[np.int64]


class IndexCheck:
    """Counts the keys that a walk meets and that the index has not."""

    def __init__(self, folder: Inspection) -> None:
        self._folder = folder
        self.file_count = self.entry_count = 0
        self._files: list[_Entries] = []
        self._ends: list[tuple[str, int]] = []  # of each file: its path, and the last record that it leads to
        self._is_readable = True  # all of it, so that it can be said what is missing
        # One without a byte was about to be made when its process ended; every start removes it.
        paths = [(path, size) for path, size in folder.index_files() if size]
        for path, size in paths:
            self.file_count += 1
            self._take(path, size, is_last=path == paths[-1][0])
        places = [place for entries in self._files for place in (_place(entries, 0), _place(entries, -1))]
        self._begin, self._end = (min(places), max(places)) if places else (0, -1)
        # Moved by meet().
        self._missing = 0
        self._first_missing = -1
        self._before = self._behind = 0

    def _take(self, path: str, size: int, *, is_last: bool) -> None:
        view = self._folder.folder.tree.read(path, 0, size)
        fault, entries = _look_at(view)
        if fault is None and entries is None and not is_last:
            fault = "it is empty, and not the newest"
        if fault is not None:
            self._is_readable = False
            if not self._folder.is_changing:  # else its header may have been written just now
                self._folder.findings.append(Finding(path, fault, REPAIRED))
        elif entries is not None:
            self._files.append(entries)
            self._ends.append((path, _place(entries, -1)))
            self.entry_count += len(entries)

    def meet(self, found: Stretch | ScannedRecord) -> None:
        """Look for the keys of the next records of the log."""
        if not self._is_readable:
            return
        if isinstance(found, ScannedRecord):
            keyed = keyed_record(found)
            keys = hashed_keys([keyed] if keyed is not None else [])
        else:
            keys = found.keys()
        places = keys.physical_offsets
        if not len(places):
            return
        # A record at either end may have other keys in a file that is gone, or that are not indexed yet.
        inside = (places > self._begin) & (places < self._end)
        self._before += int((places < self._begin).sum())
        self._behind += int((places > self._end).sum())
        if not inside.any():
            return
        expected, hashes = places[inside], keys.hashes[inside]
        present = self._present(int(expected[0]), int(expected[-1]))
        codes = _codes(expected, hashes)
        if len(codes) == len(present) and bool((codes == present).all()):
            return
        missing = expected[~np.isin(codes, present)]
        if len(missing) and not self._missing:
            self._first_missing = int(missing[0])
        self._missing += len(missing)

    def _present(self, first: int, last: int) -> NDArray[np.uint64]:
        """Codes of the entries that lead to places from `first` to `last`."""
        found = [np.zeros(0, np.uint64)]
        for entries in self._files:
            # One by one: numpy would turn all of them into its own byte order each time.
            place = partial(_place, entries)
            numbers = range(len(entries))
            begin = bisect_left(numbers, first, key=place)
            end = bisect_right(numbers, last, begin, key=place)
            if begin < end:
                some = entries[begin:end]
                found.append(_codes(some["physical_offset"], some["key_hash"]))
        return np.concatenate(found)

    def facts(self) -> KeptIndexCheck:
        """For take_up() of another run."""
        return self._missing, self._first_missing, self._before, self._behind

    def take_up(self, facts: KeptIndexCheck) -> None:
        """Go on where these facts() ended."""
        self._missing, self._first_missing, self._before, self._behind = facts

    def report(self, notes: list[str]) -> None:
        """What was found, behind the walk: findings of the folder, and notes."""
        folder = self._folder
        assert folder.log_end is not None
        log_end = folder.log_end.offset
        for path, end in self._ends:
            if end >= log_end and not folder.is_changing:
                reason = f"it leads to a record at {end}, beyond the end of the log at {log_end}"
                folder.findings.append(Finding(path, reason, REBUILT))
        if self._missing and folder.was_aborted:
            notes.append(
                f"index: {self._missing} keys of records from {self._first_missing} on are not in it; the next start"
                " adds those that were not on disk yet, so verify again behind it"
            )
        elif self._missing:
            reason = (
                f"{self._missing} keys of records from {self._first_missing} on are not in it, so that queries by key"
                " do not find these: they were lost, or messageIndexEnable was off"
            )
            folder.findings.append(Finding("index", reason, REPAIRED))
        if self._before:
            notes.append(
                f"index: it begins at {self._begin}; {self._before} keys of records before that are not in it"
            )
        if self._behind and not folder.is_changing and not folder.was_aborted:
            where = f"it ends at {self._end}" if self._files else "it has no entry"
            notes.append(f"index: {where}; {self._behind} keys of records behind that are not in it")


def _codes(places: _Ints, hashes: _Ints) -> NDArray[np.uint64]:
    """One number for each place and hash."""
    codes: NDArray[np.uint64] = places.astype(np.uint64) << np.uint64(_CODE_BITS)
    return codes | hashes.astype(np.uint64)


def _place(entries: _Entries, at: int) -> int:
    return int(entries["physical_offset"][at])


def _look_at(view: memoryview) -> tuple[str | None, _Entries | None]:
    """What is wrong with an index file by itself, and its entries, if it has some."""
    size = len(view)
    if size < HEADER_SIZE:
        return f"{size} bytes are too few for an index file", None
    *numbers, used, following = HEADER.unpack_from(view)
    begin_time, end_time, begin, end = numbers
    if following <= 1:
        return None, None
    if min(numbers) < 0 or begin > end:
        return f"its header is impossible: times {begin_time} to {end_time}, records {begin} to {end}", None
    if not 0 < used < following or HEADER_SIZE + following * ENTRY_SIZE > size:
        return f"its header is impossible: {used} slots and {following} entries in {size} bytes", None
    entries = _entries_of(view, begin, end, following - 1)
    return (
        None if entries is not None else f"no entry leads to a record at {end}, as its header says"
    ), entries


def _entries_of(view: memoryview, begin: int, end: int, count: int) -> _Entries | None:
    """The entries of a file with these first and last records; None when there are none such.

    The file does not say how many slots are before them: as many as by default, or so many that the last entry leads to
    the last record, and the first one to the first.
    """
    usual = HEADER_SIZE + SLOTS_USUAL * SLOT.size + ENTRY_SIZE
    found = _read_entries(view, usual, begin, end, count)
    if found is not None:
        return found
    words = np.frombuffer(view[: len(view) // _WORD.itemsize * _WORD.itemsize], _WORD)
    high, low = _HALVES.unpack(_WHOLE.pack(end))
    for at in np.flatnonzero((words[:-1] == high) & (words[1:] == low))[: -LAST_MAX - 1 : -1].tolist():
        # Before the place is the hash of the key.
        position = (at - 1) * _WORD.itemsize - (count - 1) * ENTRY_SIZE
        found = _read_entries(view, position, begin, end, count)
        if found is not None:
            return found
    return None


def _read_entries(view: memoryview, position: int, begin: int, end: int, count: int) -> _Entries | None:
    """The entries that begin at a position, when they are some."""
    stop = position + count * ENTRY_SIZE
    if position < HEADER_SIZE + SLOT.size + ENTRY_SIZE or stop > len(view):
        return None
    entries = np.frombuffer(view[position:stop], ENTRY_DTYPE)
    is_right = (_place(entries, 0), _place(entries, -1)) == (begin, end)
    return entries if is_right else None
