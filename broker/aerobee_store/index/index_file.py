"""Index file: from the hash of `topic#key` to the records that carry the key.

Touches  one file of <root>/index/. No sockets, no asyncio, no clock.
Header   begin_timestamp i64 | end_timestamp i64 | begin_physical i64 | end_physical i64 |
         used_slots i32 | next_entry i32: store times (ms) and physical offsets of the first and last
         record in the file, slots in use, number of the next entry.
Slots    slot_count x i32, from byte 40: number of the newest entry of the slot, 0 for none.
Entries  entry_limit x 20 bytes behind the slots: key_hash i32 | physical_offset i64 | time_diff i32 (whole
         seconds after begin_timestamp) | previous i32 (next older entry of the slot, 0 ends the chain).

Invariants
- Entry numbers run from 1; number 0 is never written, so a file holds entry_limit - 1 entries.
- An entry's slot is key_hash % slot_count; chains lead to smaller numbers only.
- physical_offset never falls from entry to entry.
- The header is written last: entries behind it, and slots that name them, are as if absent.

RocketMQ measures the first entry of every file but the oldest against the end of the file before, and then
moves begin_timestamp to that entry's own time. Here it is written as 0, which is what was meant, and read as
begin_timestamp whatever it says.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from mmap import PAGESIZE
from pathlib import Path
from sys import byteorder
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_store.disk.io import DataFile
from aerobee_store.disk.page_cache import NotInMemory, Stretch
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore

__all__ = [
    "CHAINS_MAX",
    "CHAIN_STEPS",
    "ENTRY",
    "ENTRY_DTYPE",
    "ENTRY_SIZE",
    "HEADER",
    "HEADER_SIZE",
    "SLOT",
    "Chainer",
    "Holds",
    "IndexFile",
    "IndexedRecord",
    "KeyedBlock",
    "RecordProbe",
    "index_file_size",
    "missing_chains",
]

HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")  # key_hash, physical_offset, time_diff, previous
HEADER_SIZE: Final = HEADER.size
ENTRY_SIZE: Final = ENTRY.size
ENTRY_DTYPE: Final = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_diff", ">i4"), ("previous", ">i4")]
)
_SLOT_DTYPE: Final = np.dtype(">i4")
_TIME_DIFF_MAX: Final = 0x7FFFFFFF
_TRIES_MAX = 4  # to have bytes brought that do not stay in memory
CHAINS_MAX: Final = 16  # that are brought together
_LINKS_MAX: Final = 16  # of these: a usual one has two to eight
# A walk looks at this many entries of a chain (0.5 us each) and then asks whether it may go on.
CHAIN_STEPS: Final = 4096
# A query follows at most this many entries of one file: about half a second of work, in slices. Only a key that a
# million newer records share comes near it.
CHAIN_STEPS_MAX: Final = 1 << 20
# Entries looked at by one numpy step of a validation.
_SCAN_STEP: Final = 1 << 16

# A slot written by itself costs as much as writing so many side by side.
_SLOTS_PER_WRITE: Final = 128

_Ints = NDArray[np.int64]
_Numbers = _Ints | NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class IndexedRecord:
    """What the log says about a record: store time in ms and the hashes of all its key texts."""

    store_timestamp: int
    key_hashes: frozenset[int]


class KeyedBlock(NamedTuple):
    """Records whose keys are hashed already, in log order and stored at one time. The physical offset stands where that
    of a `KeyedRecord` does."""

    record_count: int
    hashes: bytes  # of their keys: i64 of this machine
    physical_offsets: bytes  # of the record of each key, as many
    physical_offset: int  # of the first
    store_timestamp: int  # ms


ChainedKeys = tuple[
    int,  # how many entries
    bytes,  # all of them
    bytes,  # slots that are touched, ascending: i64 of this machine
    bytes,  # the number of the newest entry of each, as it is stored
    int,  # slots of these that were not in use
]
# Makes the next entries of a file, of blocks that have keys. Of the file it is told the view, the number of slots, the
# number of the next entry, the limit of entries, the store time (ms) of the first record. None: it makes none of these.
Chainer = Callable[[tuple[memoryview, int, int, int, int], Sequence[KeyedBlock]], ChainedKeys | None]
# Whether these few bytes of a file are in memory.
Holds = Callable[["IndexFile", int, int], bool]
# Physical offset -> the record that begins there, or None when none does.
RecordProbe = Callable[[int], IndexedRecord | None]


def index_file_size(slot_count: int, entry_limit: int) -> int:
    """Bytes of a file with room for `slot_count` slots and `entry_limit` entries, number 0 included."""
    return HEADER_SIZE + slot_count * SLOT.size + entry_limit * ENTRY_SIZE


class IndexFile:
    """One mapped index file; owns `data` and closes it."""

    __slots__ = (
        "_data",
        "begin_physical",
        "begin_timestamp",
        "dirty",
        "end_physical",
        "end_timestamp",
        "entries_at",
        "entry_limit",
        "next_entry",
        "slot_count",
        "used_slots",
        "view",
    )

    def __init__(self, data: DataFile, slot_count: int, entry_limit: int) -> None:
        """Take over an open file of index_file_size(slot_count, entry_limit) bytes and read its header."""
        assert data.size == index_file_size(slot_count, entry_limit)
        # Fixed for life.
        self.slot_count = slot_count
        self.entry_limit = entry_limit
        self._data = data
        self.view = data.view
        self.entries_at = HEADER_SIZE + slot_count * SLOT.size  # position of number 0
        # The header, moved by put() and cut() only.
        fields = HEADER.unpack_from(self.view)
        self.begin_timestamp: int = fields[0]
        self.end_timestamp: int = fields[1]
        self.begin_physical: int = fields[2]
        self.end_physical: int = fields[3]
        self.used_slots: int = fields[4]
        self.next_entry: int = min(max(fields[5], 1), entry_limit)
        # True while something is written that sync() has not covered.
        self.dirty = False

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._data.path

    @property
    def data(self) -> DataFile:
        """The open file itself."""
        return self._data

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.next_entry - 1

    @property
    def entries_end(self) -> int:
        """The position behind the last entry."""
        return self.entries_at + self.next_entry * ENTRY_SIZE

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return self.entry_limit - self.next_entry

    # --- writing ---------------------------------------------------------------------------------------

    def missing_for_put(self) -> list[Stretch]:
        """What put() would have to wait for as it is not in memory: slots, which are anywhere, and where entries go on.

        20 MB of slots are asked for in 60 us.
        """
        end = self.entries_end
        parts = [(0, self.entries_at), (end - end % PAGESIZE, end % PAGESIZE)]
        return [
            Stretch(self.path, position, length)
            for position, length in parts
            if length and not self.data.in_memory(position, length)
        ]

    def put(self, key_hashes: _Ints, physical_offsets: _Ints, store_timestamps: _Ints) -> None:
        """Add entries, oldest first; the arrays are of one length, at least 1 and at most `room`.

        Keys of one batch that share a slot are chained among themselves. The entries go down in one
        write, then each touched slot, then the header.
        """
        number = self.next_entry
        count = len(key_hashes)
        assert 0 < count <= self.room
        self._begin(int(physical_offsets[0]), int(store_timestamps[0]))
        slots = key_hashes % self.slot_count
        previous, newest_slots, newest_numbers = self._chain(slots, number)
        entries = np.empty(count, ENTRY_DTYPE)
        entries["key_hash"] = key_hashes
        entries["physical_offset"] = physical_offsets
        entries["time_diff"] = self._time_diffs(store_timestamps)
        entries["previous"] = previous
        begun = int(np.count_nonzero(previous == 0))
        self._enter(entries.tobytes(), newest_slots, newest_numbers, begun)
        self._end(count, int(physical_offsets[-1]), int(store_timestamps[-1]))

    def put_chained(self, blocks: Sequence[KeyedBlock], chainer: Chainer) -> int:
        """As put(), of blocks that have at least one key each, with the entries that `chainer` makes; how many. 0: it
        makes none, and nothing is put."""
        first, last = blocks[0], blocks[-1]
        begin = first.store_timestamp if self.next_entry == 1 else self.begin_timestamp
        chained = chainer((self.view, self.slot_count, self.next_entry, self.entry_limit, begin), blocks)
        if chained is None:
            return 0
        count, entries, slots, numbers, begun = chained
        self._begin(first.physical_offset, first.store_timestamp)
        self._enter(entries, np.frombuffer(slots, np.int64), np.frombuffer(numbers, _SLOT_DTYPE), begun)
        self._end(count, int.from_bytes(last.physical_offsets[-8:], byteorder), last.store_timestamp)
        return count

    def _begin(self, physical_offset: int, store_timestamp: int) -> None:
        """This record is going to be in the file: perhaps it is the first one."""
        if self.next_entry == 1:
            self.begin_physical, self.begin_timestamp = physical_offset, store_timestamp

    def _enter(self, entries: bytes, slots: _Ints, numbers: _Numbers, begun: int) -> None:
        """Write the next entries, and let these slots, which ascend, name the newest of them; so many were not in
        use."""
        self.dirty = True
        self._data.write(self.entries_end, entries)
        failpoints.hit("index_file.before_slots")
        self._write_slots(slots, numbers)
        failpoints.hit("index_file.before_header")
        self.used_slots += begun

    def _end(self, count: int, physical_offset: int, store_timestamp: int) -> None:
        """So many entries are written, and this is the last record of them."""
        # In this order: who flushes may look in between, and a file that holds an entry has an end.
        self.end_physical, self.end_timestamp = physical_offset, store_timestamp
        self.next_entry += count
        self._write_header()
        self.dirty = True  # a sync that was begun meanwhile may not have covered the header

    def _chain(self, slots: _Ints, number: int) -> tuple[_Ints, _Ints, _Ints]:
        """For entries `number`, `number` + 1, ... of these slots: the previous entry of each, the touched
        slots, and the newest entry of each touched slot."""
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        numbers = order + number
        starts = np.empty(len(slots), np.bool_)
        starts[0] = True
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=starts[1:])
        touched = sorted_slots[starts]
        before = np.empty(len(slots), np.int64)
        before[1:] = numbers[:-1]
        before[starts] = self._newest(touched, number)
        previous = np.empty(len(slots), np.int64)
        previous[order] = before
        return previous, touched, numbers[np.append(starts[1:], True)]

    def _newest(self, slots: _Ints, number: int) -> _Ints:
        """What the slots hold; 0 where that is no entry below `number`."""
        stored = np.frombuffer(self.view[HEADER_SIZE : self.entries_at], _SLOT_DTYPE)[slots].astype(np.int64)
        stored[(stored < 0) | (stored >= number)] = 0
        return stored

    def _slots(self, low: int, high: int) -> NDArray[Any]:
        """What the slots [low, high) hold."""
        begin, end = HEADER_SIZE + low * SLOT.size, HEADER_SIZE + high * SLOT.size
        return np.frombuffer(self.view[begin:end], _SLOT_DTYPE)

    def _time_diffs(self, store_timestamps: _Ints) -> _Ints:
        """Whole seconds since the begin of the file; a clock that stepped back counts as 0."""
        if self.begin_timestamp <= 0:
            return np.zeros_like(store_timestamps)
        seconds: _Ints = np.clip((store_timestamps - self.begin_timestamp) // 1000, 0, _TIME_DIFF_MAX)
        return seconds

    def _write_slots(self, slots: _Ints, numbers: _Numbers) -> None:
        """Let these slots, which ascend, name these entries."""
        low, high = int(slots[0]), int(slots[-1]) + 1
        if high - low <= len(slots) * _SLOTS_PER_WRITE:
            # Close together, as when an index is built again: one write for the whole range, 0.05 us a key.
            table = self._slots(low, high).copy()
            table[slots - low] = numbers
            self._data.write(HEADER_SIZE + low * SLOT.size, table.tobytes())
            return
        window = self._data.window()
        if window is not None and window.begin <= HEADER_SIZE and window.end >= self.entries_at:
            np.frombuffer(window.map, _SLOT_DTYPE, self.slot_count, HEADER_SIZE)[slots] = numbers
            return
        write = self._data.write
        packed = numbers.astype(_SLOT_DTYPE).tobytes()
        at = 0
        for position in (slots * SLOT.size + HEADER_SIZE).tolist():
            write(position, packed[at : at + SLOT.size])
            at += SLOT.size

    def _write_header(self) -> None:
        header = HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical,
            self.end_physical,
            self.used_slots,
            self.next_entry,
        )
        self._data.write(0, header)

    def sync(self) -> None:
        """Make every earlier put durable. OSError is final for the store."""
        self.dirty = False
        failpoints.hit("index_file.before_sync")
        self._data.sync()
        failpoints.hit("index_file.after_sync")

    def close(self) -> None:
        """Close the file."""
        self.view = memoryview(b"")
        self._data.close()

    # --- reading ---------------------------------------------------------------------------------------

    def newest_of(self, physical_offset: int) -> list[int]:
        """Key hashes of the last entries, newest first, as far as they belong to `physical_offset`."""
        hashes: list[int] = []
        for number in range(self.count, 0, -1):
            key_hash, offset, _, _ = self._entry(number)
            if offset != physical_offset:
                break
            hashes.append(key_hash)
        return hashes

    def time_matches(self, begin: int, end: int) -> bool:
        """True when records of the file may have store times in [begin, end] (ms)."""
        return (
            (begin < self.begin_timestamp and end > self.end_timestamp)
            or self.begin_timestamp <= begin <= self.end_timestamp
            or self.begin_timestamp <= end <= self.end_timestamp
        )

    def collect(
        self,
        key_hash: int,
        begin: int,
        end: int,
        max_num: int,
        found: list[int],
        *,
        holds: "Holds | None" = None,
    ) -> Iterator[NotInMemory | None]:
        """Add physical offsets of entries with this hash and a store time in [begin, end] (ms) to `found`,
        newest first, until it holds `max_num`. A record that carries the key twice is added once.

        Yields after every CHAIN_STEPS entries: a chain is as long as a key is popular. Whoever walks on later must
        do so before the file is closed. With `holds`, which says what is in memory, it yields what has to be brought
        there before it goes on.
        """
        unpack = ENTRY.unpack_from
        limit = self.next_entry
        begin_timestamp, entries_at = self.begin_timestamp, self.entries_at
        at = self.slot_at(key_hash)
        if holds is not None and not holds(self, at, SLOT.size):
            yield from self._brought(at, SLOT.size, holds)
        if not self.view:
            return
        number = SLOT.unpack_from(self.view, at)[0]
        for _ in range(CHAIN_STEPS_MAX // CHAIN_STEPS):
            view = self.view
            for _ in range(CHAIN_STEPS):
                if not 0 < number < limit or len(found) >= max_num:
                    return
                at = entries_at + number * ENTRY_SIZE
                if holds is not None and not holds(self, at, ENTRY_SIZE):
                    del view
                    yield from self._brought(at, ENTRY_SIZE, holds)
                    view = self.view
                    if not view:
                        return
                entry_hash, physical_offset, time_diff, previous = unpack(view, at)
                if time_diff < 0:
                    return
                timestamp = begin_timestamp + time_diff * 1000 if number > 1 else begin_timestamp
                if entry_hash == key_hash and begin <= timestamp <= end and physical_offset not in found[-1:]:
                    found.append(physical_offset)
                if timestamp < begin or previous >= number:
                    return
                number = previous
            del view  # a file that is being deleted can be closed meanwhile
            yield None
            if not self.view:
                return

    def slot_at(self, key_hash: int) -> int:
        """Position of the slot that this hash has."""
        return HEADER_SIZE + key_hash % self.slot_count * SLOT.size

    def entry_at(self, number: int) -> int:
        """Position of an entry."""
        return self.entries_at + number * ENTRY_SIZE

    def physical_offset_of(self, number: int) -> int:
        """Where the record of an entry is."""
        return self._entry(number)[1]

    def hashes_and_places(self) -> Iterator[tuple[int, int]]:
        """Key hash and physical offset of each entry, oldest first."""
        for number in range(1, self.next_entry):
            key_hash, offset, _, _ = self._entry(number)
            yield key_hash, offset

    def newest_of_slot(self, key_hash: int) -> int:
        """Number of the entry where the chain of this hash begins; 0 for none."""
        number: int = SLOT.unpack_from(self.view, self.slot_at(key_hash))[0]
        return number if 0 < number < self.next_entry else 0

    def behind(self, number: int, begin: int) -> int:
        """Number of the next older entry of the same chain; 0 where a query for times from `begin` (ms) on ends."""
        _, _, time_diff, previous = self._entry(number)
        timestamp = self.begin_timestamp + time_diff * 1000 if number > 1 else self.begin_timestamp
        is_over = (
            time_diff < 0 or timestamp < begin
        )  # as collect() has it, which does not call for each entry
        return 0 if is_over or not 0 < previous < number else previous

    def _brought(self, position: int, length: int, holds: "Holds") -> Iterator[NotInMemory]:
        """What has to be brought before these bytes are read. What does not stay is read as it is."""
        for _ in range(_TRIES_MAX):
            yield NotInMemory([Stretch(self.path, position, length)])
            if not self.view or holds(self, position, length):
                return

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        fields: tuple[int, int, int, int] = ENTRY.unpack_from(
            self.view, self.entries_at + number * ENTRY_SIZE
        )
        return fields

    # --- recovery --------------------------------------------------------------------------------------

    def looks_sound(self, previous_end: int) -> bool:
        """Cheap test of a file that is known to be durable: header against first and last entry.

        `previous_end` is the physical offset of the last entry before this file.
        """
        if not 0 < self.used_slots <= self.count:
            return False
        first, last = self._entry(1), self._entry(self.count)
        sound: bool = (
            first[1] == self.begin_physical
            and last[1] == self.end_physical
            and previous_end <= first[1] <= last[1]
            and self._link_holds(self.count, last)
            and self._link_holds(1, first)
        )
        return sound

    def _link_holds(self, number: int, fields: tuple[int, int, int, int]) -> bool:
        key_hash, _, time_diff, previous = fields
        if key_hash < 0 or time_diff < 0 or not 0 <= previous < number:
            return False
        if previous == 0:
            return True
        same_slot: bool = self._entry(previous)[0] % self.slot_count == key_hash % self.slot_count
        return same_slot

    def proven_count(
        self, log_end: int, previous_end: int, proven_offset: int, probe: RecordProbe | None
    ) -> int:
        """Leading entries that are sound: links lead back within the slot, records lie in order below
        `log_end` and not below `previous_end`, and `probe` confirms those at or above `proven_offset`.

        The last of them, if it is not known to be durable, may be half on disk with its link or time still
        zero, which is a sound value: these are computed again.
        """
        count = self._confirmed_count(log_end, previous_end, proven_offset, probe)
        if count and self._entry(count)[1] >= proven_offset and not self._is_exact(count, probe):
            return count - 1
        return count

    def _is_exact(self, number: int, probe: RecordProbe | None) -> bool:
        """Whether the entry links to the newest before it in its slot and has the time of its record."""
        key_hash, physical_offset, time_diff, previous = self._entry(number)
        hashes = self._entries(1, number - 1)["key_hash"].astype(np.int64)
        same_slot = np.flatnonzero(hashes % self.slot_count == key_hash % self.slot_count)
        if previous != (int(same_slot[-1]) + 1 if len(same_slot) else 0):
            return False
        record = probe(physical_offset) if probe is not None else None
        if record is None or number == 1:
            return True
        return abs(time_diff - int(self._time_diffs(np.array([record.store_timestamp]))[0])) <= 1

    def _confirmed_count(
        self, log_end: int, previous_end: int, proven_offset: int, probe: RecordProbe | None
    ) -> int:
        sound = self._sound_count(log_end, previous_end)
        if probe is None or sound == 0:
            return sound
        record: IndexedRecord | None = None
        record_at = -1
        first = self._first_at(proven_offset, sound)
        # Zeros, as a page holds them that never reached the disk, look like keys of a record at 0.
        at_zero = range(1, min(self._first_at(1, sound), first))
        doubtful = (number for number in at_zero if self._entry(number)[0] == 0)
        for number in chain(doubtful, range(first, sound + 1)):
            key_hash, physical_offset, _, _ = self._entry(number)
            if physical_offset != record_at:
                record, record_at = probe(physical_offset), physical_offset
            if record is None or key_hash not in record.key_hashes:
                return number - 1
        return sound

    def _first_at(self, physical_offset: int, count: int) -> int:
        """Number of the first of `count` sound entries at or above `physical_offset`."""
        offsets = self._entries(1, count)["physical_offset"]
        return 1 + int(np.searchsorted(offsets, physical_offset))

    def _entries(self, number: int, count: int) -> NDArray[Any]:
        start = self.entries_at + number * ENTRY_SIZE
        return np.frombuffer(self.view[start : start + count * ENTRY_SIZE], ENTRY_DTYPE)

    def _sound_count(self, log_end: int, previous_end: int) -> int:
        slots = np.zeros(self.next_entry, np.int32)
        for number in range(1, self.next_entry, _SCAN_STEP):
            entries = self._entries(number, min(_SCAN_STEP, self.next_entry - number))
            flags = self._sound_flags(entries, number, slots, log_end, previous_end)
            if not flags.all():
                return number - 1 + int(np.argmin(flags))
            previous_end = int(entries["physical_offset"][-1])
        return self.count

    def _sound_flags(
        self, entries: NDArray[Any], number: int, slots: NDArray[np.int32], log_end: int, previous_end: int
    ) -> NDArray[np.bool_]:
        """Which entries are sound by themselves; puts their slots into `slots`, indexed by entry number."""
        offsets = entries["physical_offset"].astype(np.int64)
        bounds = np.concatenate((np.array([max(previous_end, 0)]), offsets[:-1]))
        hashes = entries["key_hash"].astype(np.int64)
        previous = entries["previous"].astype(np.int64)
        numbers = np.arange(number, number + len(entries))
        slots[numbers] = hashes % self.slot_count
        backwards = (previous >= 0) & (previous < numbers)
        same_slot = slots[np.where(backwards, previous, 0)] == slots[numbers]
        linked = backwards & (same_slot | (previous == 0))
        inside = (offsets >= bounds) & (offsets < log_end)
        flags: NDArray[np.bool_] = inside & linked & (hashes >= 0) & (entries["time_diff"] >= 0)
        return flags

    def cut(self, count: int, probe: RecordProbe | None) -> bool:
        """Keep the first `count` (at least 1) entries, sound ones, and make slots and header fit them.

        Times that the header can no longer give come from `probe`, or from the entries' whole seconds.
        True when anything had to be written.
        """
        assert 0 < count <= self.count
        before = bytes(self.view[:HEADER_SIZE])
        dropped = self.count - count
        self._fit_times(count, probe)
        self.next_entry = count + 1
        self.used_slots, changed = self._fit_slots(count)
        # To the end of the file: entries whose header was lost lie behind those that it counts.
        rest = self.entries_end
        self._data.zero(rest, self._data.size - rest)
        self._write_header()
        self.dirty = True
        return changed or bool(dropped) or before != bytes(self.view[:HEADER_SIZE])

    def _fit_times(self, count: int, probe: RecordProbe | None) -> None:
        first, last = self._entry(1), self._entry(count)
        if probe is not None or first[1] != self.begin_physical or self.begin_timestamp <= 0:
            record = probe(first[1]) if probe else None
            self.begin_timestamp = record.store_timestamp if record else self.begin_timestamp
        if count != self.count or last[1] != self.end_physical:
            record = probe(last[1]) if probe else None
            # The end of the entry's second: a query may look into the file in vain, but never miss it.
            by_entry = self.begin_timestamp + (last[2] * 1000 + 999 if count > 1 else 0)
            self.end_timestamp = record.store_timestamp if record else by_entry
        self.begin_physical, self.end_physical = first[1], last[1]

    def _fit_slots(self, count: int) -> tuple[int, bool]:
        """Let each slot name its newest entry among the first `count`; slots used, and whether any changed."""
        expected = self._newest_by_slot(count)
        stored = np.frombuffer(self.view[HEADER_SIZE : self.entries_at], _SLOT_DTYPE)
        differing = np.flatnonzero(stored != expected)
        if len(differing):
            low, high = int(differing[0]), int(differing[-1]) + 1
            packed = expected[low:high].astype(_SLOT_DTYPE).tobytes()
            self._data.write(HEADER_SIZE + low * SLOT.size, packed)
        return int(np.count_nonzero(expected)), bool(len(differing))

    def _newest_by_slot(self, count: int) -> _Ints:
        """Number of the newest of the first `count` entries in each slot, 0 for none."""
        newest = np.zeros(self.slot_count, np.int64)
        for number in range(1, count + 1, _SCAN_STEP):
            hashes = self._entries(number, min(_SCAN_STEP, count + 1 - number))["key_hash"]
            numbers = np.arange(number, number + len(hashes))
            # Of several entries of a slot the last assignment stays, which is that of the newest.
            newest[hashes.astype(np.int64) % self.slot_count] = numbers
        return newest

    # --- invariants ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Walk all entries and slots; raise CorruptStore at the first broken invariant."""
        self._require(self.count > 0, "no entries", 36)
        sound = self._sound_count((1 << 63) - 1, 0)
        self._require(sound == self.count, f"entry {sound + 1} is broken", self.entry_at(sound + 1))
        self._require(self._entry(1)[1] == self.begin_physical, "wrong first physical offset", 16)
        self._require(self._entry(self.count)[1] == self.end_physical, "wrong last physical offset", 24)
        expected = self._newest_by_slot(self.count)
        stored = np.frombuffer(self.view[HEADER_SIZE : self.entries_at], _SLOT_DTYPE)
        wrong = np.flatnonzero(stored != expected)
        if len(wrong):
            slot = int(wrong[0])
            self._require(False, f"slot {slot} does not name its newest entry", HEADER_SIZE + 4 * slot)
        self._require(self.used_slots == int(np.count_nonzero(expected)), "wrong number of used slots", 32)

    def _require(self, holds: bool, reason: str, position: int) -> None:
        if not holds:
            raise CorruptStore(self.path, position, reason, "delete the file; its keys are indexed again")


def missing_chains(
    files: Sequence[IndexFile], key_hash: int, begin: int, brought: set[tuple[IndexFile, int]]
) -> NotInMemory:
    """What has to be brought before the entries of this hash are followed in these files: their slots, and then link by
    link, of all files together, by the thread that brings them. `brought` gets the position of each.

    As one wait for each page, of one file after the other, a query waited 15 times in an index of three files, and each
    of these took the event loop 120 us.
    """
    slots = [(file, file.slot_at(key_hash)) for file in files]
    return NotInMemory(
        [Stretch(file.path, at, SLOT.size) for file, at in slots],
        further=_links(slots, key_hash, begin, brought),
    )


def _links(
    slots: Sequence[tuple[IndexFile, int]], key_hash: int, begin: int, brought: set[tuple[IndexFile, int]]
) -> Iterator[Sequence[Stretch]]:
    """In a worker thread: what lies behind slots that are in memory now."""
    brought.update(slots)
    entries = {file: file.next_entry for file, _ in slots}
    for link in range(_LINKS_MAX):
        found: dict[IndexFile, int] = {}
        for file, entry in entries.items():
            try:
                number = file.behind(entry, begin) if link else file.newest_of_slot(key_hash)
            except (ValueError, struct.error):
                continue  # closed meanwhile, as its records are deleted
            if number:
                found[file] = number
        entries = found
        places = [(file, file.entry_at(number)) for file, number in found.items()]
        if not places:
            return
        yield [Stretch(file.path, at, ENTRY_SIZE) for file, at in places]
        brought.update(places)
