"""Many records of a log file at once, as columns: proven by numpy, one array operation a field.

Touches  buffers it is given. Layout of a record: aerobee_proto.records.

`sound_records` says of a stretch of bytes: these are records, each proven as scan_record() proves it, and
here are their fields. It never says what is wrong: at the first record that is odd in any way the stretch ends, and
scan_record() has to look at what stands there. It may end early, it must never be wrong.

What it costs for records of 480 bytes, 256 of them body: 0.3 us a record with the whole-record checksums, 0.6 us with
those of the bodies too, against 9 us for scan_record(). Records are found by their magic numbers, whole-record
checksums are proven all at once (joined_checksums); the only loop over records that is left is for bodies.

A Stretch is valid while the buffer is; positions count in the buffer.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, cast
from zlib import crc32

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from aerobee_proto.checksum import (
    PROPERTY_CRC_ENTRY,
    PROPERTY_CRC_SIZE,
    RECORD_CHECKSUM_ENTRY,
    RECORD_CHECKSUM_SIZE,
)
from aerobee_proto.javahash import index_key_hash, java_hash, tag_hash
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.properties import KEYS_NAME, TAGS_NAME, UNIQ_KEY_NAME
from aerobee_proto.records import BODY_CRC_MASK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, TOPIC_LENGTH_V1_MAX
from aerobee_store.index.index import HashedKeys
from aerobee_store.queues.consume_queue import ENTRY_DTYPE
from aerobee_store.queues.delay import entry_tag
from aerobee_store.records.joined_checksums import RUN_SIZE_MAX, claimed_checksums, run_checksum
from aerobee_store.records.property_columns import FieldReader, Flags, Ints, PropertyColumns, Texts
from aerobee_store.records.record_scan import PREPARED, ROLLBACK, TRANSACTION, ScannedRecord

__all__ = ["STRETCH_SIZE", "Stretch", "sound_records"]

# Bytes of records that one call looks at: the fixed cost of the array operations, about 0.3 ms, is spread over
# some ten thousand small records, and all columns stay in the processor's cache.
STRETCH_SIZE: Final = 2 << 20

_SIZE: Final = Struct(">i")
_HEAD_SIZE: Final = 88
_BORN_V6, _STORE_V6 = 0x10, 0x20
_V6_EXTRA: Final = 12  # bytes by which an IPv6 host is longer
# Head of a record whose hosts are IPv4. What stands before the hosts lies at the same places in every record.
_HEAD: Final = np.dtype(
    {
        "names": [
            "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag",
            "born_timestamp", "store_timestamp", "body_length",
        ],
        "formats": [">i4", ">u4", ">u4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i8", ">i4"],
        "offsets": [0, 4, 8, 12, 20, 28, 36, 40, 56, 84],
        "itemsize": _HEAD_SIZE,
    }
)  # fmt: skip
# What may be the whole-record checksum.
_CHECKSUM: Final = np.dtype(
    {
        "names": ["name", "name_end", "crc"],
        "formats": ["<u8", "u1", "<u8"],
        "offsets": [0, 8, 25],
        "itemsize": RECORD_CHECKSUM_SIZE,
    }
)
_MAGIC_FIRST_BYTE: Final = MAGIC_V1 >> 24
_CHECKSUM_NAME: Final = int.from_bytes(RECORD_CHECKSUM_ENTRY[:8], "little")
_PROPERTY_CRC_NAME: Final = int.from_bytes(PROPERTY_CRC_ENTRY[:8], "little")
_HEX_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_HEX_SHIFTS: Final = np.arange(28, -1, -4, dtype=np.uint32)
# Texts longer than this, and more different ones of a length than this, are told apart one by one.
_TEXT_LENGTH_MAX: Final = 255
_DISTINCT_MAX: Final = 32


def sound_records(
    view: memoryview,
    begin: int,
    base: int | None,
    *,
    stop: int | None = None,
    sealed_from: int | None = None,
    proven: bool = False,
    once: bool = False,
) -> "Stretch | None":
    """The sound records that follow each other from position `begin` of `view`, whose first byte has the physical
    offset `base`; None when there is none to begin with. With `base` None the records were taken together from
    different places, and the physical offsets that they carry are not looked at.

    Ends with the first record that ends at or behind `stop` (STRETCH_SIZE further without one). From the physical
    offset `sealed_from` on every record must have its whole-record checksum. `proven` leaves the checksums out; with
    `once` a whole-record checksum that holds stands for the body's as well, which it covers: 0.3 us less a record.
    """
    stop = min(begin + STRETCH_SIZE if stop is None else stop, len(view) - RECORD_SIZE_MIN + 1)
    if stop <= begin:
        return None
    reader = FieldReader(view)
    places, heads = _places(reader, begin, stop)
    if not len(places):
        return None
    stretch = Stretch(view, base, reader, places, heads)
    if not stretch.measure():
        return None
    if not proven and not stretch.prove(sealed_from, once):
        return None
    return stretch


def _places(reader: FieldReader, begin: int, stop: int) -> tuple[Ints, NDArray[np.void]]:
    """Where records begin in [begin, stop) if every size is true, and their heads."""
    # Nearly always the magic numbers stand at the beginnings of records and nowhere else.
    found = _flatnonzero_of_few(reader.bytes[begin + 4 : stop + 4] == _MAGIC_FIRST_BYTE) + begin
    heads = reader.at(_HEAD, found)
    is_record = _is_record(heads)
    if not is_record.all():
        found, heads = found[is_record], heads[is_record]
    if not len(found) or found[0] != begin:
        return found[:0], heads[:0]
    sizes = heads["size"].astype(np.int64)
    following = np.append(found[1:], -1)
    linked = (found + sizes == following) & (sizes >= RECORD_SIZE_MIN)
    last = int(np.argmin(linked))  # its size leads elsewhere
    rest = _chain(reader, int(found[last]), stop)
    if rest == [found[last]] and last == len(found) - 1:
        return found, heads
    places = np.concatenate([found[:last], np.array(rest, np.int64)])
    return places, reader.at(_HEAD, places)


def _flatnonzero_of_few(flags: Flags) -> Ints:
    """As np.flatnonzero, a third faster where few are true: eight are looked at together."""
    whole = len(flags) & ~7
    words = np.flatnonzero(flags[:whole].view(np.uint64) != 0)
    inside = np.flatnonzero(flags[:whole].reshape(-1, 8)[words])
    found: Ints = (words[inside >> 3] << 3) + (inside & 7)
    return np.concatenate([found, np.flatnonzero(flags[whole:]) + whole])


def _is_record(heads: NDArray[np.void]) -> Flags:
    magic = heads["magic"]
    found: Flags = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    return found


def _chain(reader: FieldReader, begin: int, stop: int) -> list[int]:
    """As _places(), from size to size."""
    places: list[int] = []
    view, limit, size_at = reader.view, reader.size, _SIZE.unpack_from
    position = begin
    while position < stop:
        size = size_at(view, position)[0]
        if size < RECORD_SIZE_MIN or size > limit - position:
            break
        places.append(position)
        position += size
    return places


class Stretch:
    """Consecutive sound records, oldest first; every column has `count` values."""

    __slots__ = (
        "_heads",
        "_properties",
        "_tails",
        "_topic_at",
        "_topic_end",
        "_topics",
        "_view",
        "begins",
        "body_begins",
        "body_ends",
        "count",
        "ends",
        "physical_offsets",
        "property_begins",
        "queue_ids",
        "queue_offsets",
        "reader",
        "sizes",
        "store_timestamps",
        "sys_flags",
    )

    def __init__(
        self,
        view: memoryview,
        base: int | None,
        reader: FieldReader,
        places: Ints,
        heads: NDArray[np.void],
    ) -> None:
        """Records at `places` that begin with these heads; nothing is proven before measure() and prove()."""
        self._view = view
        self.reader = reader
        self._heads = heads
        self.begins = places
        self.count = len(places)
        self.sizes: Ints = heads["size"].astype(np.int64)
        self.queue_ids: Ints = heads["queue_id"].astype(np.int64)
        self.queue_offsets: Ints = heads["queue_offset"].astype(np.int64)
        self.physical_offsets: Ints = heads["physical_offset"].astype(np.int64)
        self.sys_flags: Ints = heads["sys_flag"].astype(np.int64)
        self.ends = places + self.sizes
        self.body_begins = self.body_ends = self._topic_at = self._topic_end = self.property_begins = places
        self.store_timestamps = places
        self._topics: tuple[list[str], Ints] | None = None
        self._properties: PropertyColumns | None = None
        self._tails: NDArray[np.void] | None = None
        good = _is_record(heads)
        if base is not None:
            good &= self.physical_offsets == places + base
        self._keep(good & (self.queue_ids >= 0) & (self.queue_offsets >= 0))

    @property
    def view(self) -> memoryview:
        """The bytes that positions count in."""
        return self._view

    def _keep(self, good: Flags) -> None:
        """Forget everything from the first record on that is not good."""
        if not good.all():
            self._shorten(int(np.argmin(good)))

    def _shorten(self, count: int) -> None:
        self.count = count
        for name in (
            "begins",
            "sizes",
            "queue_ids",
            "queue_offsets",
            "physical_offsets",
            "sys_flags",
            "store_timestamps",
            "_heads",
            "ends",
            "body_begins",
            "body_ends",
            "_topic_at",
            "_topic_end",
            "property_begins",
        ):
            setattr(self, name, getattr(self, name)[:count])

    # --- proving ---------------------------------------------------------------------------------------

    def measure(self) -> bool:
        """Find the parts of each record, every length checked before it is used; whether any record is left."""
        lengths = self._measure_heads()
        if not self.count:
            return False
        is_long: Flags = self._heads["magic"] == MAGIC_V2
        self.body_ends = self.body_begins + lengths
        self._topic_at = self.body_ends + 1 + is_long
        fits = (lengths >= 0) & (self._topic_at + 2 <= self.ends)
        self._keep(fits & (self.store_timestamps > 0))
        return bool(self.count) and self._measure_texts(is_long[: self.count])

    def _measure_heads(self) -> Ints:
        """Find the bodies; how long they claim to be."""
        flags = self.sys_flags
        if not (flags & (_BORN_V6 | _STORE_V6)).any():
            self.body_begins = self.begins + _HEAD_SIZE
            self.store_timestamps = self._heads["store_timestamp"].astype(np.int64)
            return cast("Ints", self._heads["body_length"].astype(np.int64))
        born = np.where(flags & _BORN_V6, _V6_EXTRA, 0)
        head = _HEAD_SIZE + born + np.where(flags & _STORE_V6, _V6_EXTRA, 0)
        self._keep(self.sizes >= head + 3)
        born, head = born[: self.count], head[: self.count]
        self.body_begins = self.begins + head
        self.store_timestamps = self.reader.at(">i8", self.begins + 56 + born).astype(np.int64)
        return cast("Ints", self.reader.at(">i4", self.body_begins - 4).astype(np.int64))

    def _measure_texts(self, is_long: Flags) -> bool:
        lengths = self.reader.bytes[self.body_ends].astype(np.int64)
        good = lengths <= TOPIC_LENGTH_V1_MAX
        if is_long.any():
            lengths = np.where(is_long, self.reader.at(">i2", self.body_ends), lengths).astype(np.int64)
            good = np.where(is_long, lengths >= 0, good)
        self._topic_end = self._topic_at + lengths
        self.property_begins = self._topic_end + 2
        self._keep(good & (self.property_begins <= self.ends))
        if not self.count:
            return False
        properties = self.reader.at(">i2", self._topic_end)
        self._keep((properties >= 0) & (self.property_begins + properties == self.ends))
        return self.count > 0

    def prove(self, sealed_from: int | None, once: bool = False) -> bool:
        """Look at all checksums; whether any record is left."""
        if not once:
            self._prove_bodies(np.arange(self.count))
            if self.count:
                self._prove_whole(sealed_from)
            return self.count > 0
        sealed = self._prove_whole(sealed_from)
        if self.count:
            self._prove_bodies(np.flatnonzero(~sealed[: self.count]))
        return self.count > 0

    def _prove_bodies(self, indices: Ints) -> None:
        """The checksums of the bodies of these records."""
        view = self._view
        parts = zip(self.body_begins[indices].tolist(), self.body_ends[indices].tolist(), strict=True)
        found = np.array([crc32(view[begin:end]) for begin, end in parts], np.int64)
        good = np.ones(self.count, np.bool_)
        good[indices] = found & BODY_CRC_MASK == self._heads["body_crc"][indices]
        self._keep(good)

    def _prove_whole(self, sealed_from: int | None) -> Flags:
        """The whole-record checksum, as check_record_checksum() looks at it; which records had one that holds."""
        sealed = np.zeros(self.count, np.bool_)
        entry_at = self.checksum_places()
        if self._proven_at_once(entry_at):
            return np.ones(self.count, np.bool_)
        present = entry_at >= 0
        good = np.ones(self.count, np.bool_)
        if sealed_from is not None:
            good = present | (self.physical_offsets < sealed_from)
        if present.any():
            places = entry_at[present]
            is_own = self._carries(places + 9, self.physical_offsets[present] >> 32)
            is_own &= self._carries(places + 17, self.physical_offsets[present])
            checked = self._is_intact(places, self.begins[present])
            # One that was copied from another record says nothing, where it may be missing too.
            stale = ~is_own
            if sealed_from is not None:
                stale &= self.physical_offsets[present] < sealed_from
            sealed[present] = is_own & checked
            good[present] = stale | (is_own & checked)
        self._keep(good)
        return sealed

    def _proven_at_once(self, entry_at: Ints) -> bool:
        """Whether all records have a whole-record checksum as their very end, and all of these hold."""
        begin, end = int(self.begins[0]), self.end
        if end - begin > RUN_SIZE_MAX or not np.array_equal(entry_at, self.ends - RECORD_CHECKSUM_SIZE):
            return False
        claimed = claimed_checksums(self._last_bytes()["crc"].astype(np.uint64))
        return run_checksum(self.physical_offsets, self.sizes, claimed) == crc32c(self._view[begin:end])

    def checksum_places(self) -> Ints:
        """Where each record's checksum entry begins, -1 where it has none."""
        at = self.ends - RECORD_CHECKSUM_SIZE
        tails = self._last_bytes()
        last: Flags = (tails["name"] == _CHECKSUM_NAME) & (tails["name_end"] == 1)
        if last.all():
            return at
        before = np.maximum(at - PROPERTY_CRC_SIZE, self.begins)
        followed = self._named(before) & (before >= self.begins + 36)
        name_at = self.ends - PROPERTY_CRC_SIZE
        followed &= self.reader.at("<u8", name_at) == _PROPERTY_CRC_NAME
        followed &= self.reader.bytes[name_at + 8] == 1
        places: Ints = np.where(last, at, np.where(followed, before, -1))
        return places

    def _last_bytes(self) -> NDArray[np.void]:
        """The end of each record, as a checksum entry."""
        if self._tails is None or len(self._tails) != self.count:
            self._tails = self.reader.at(_CHECKSUM, self.ends - RECORD_CHECKSUM_SIZE)
        return self._tails

    def _named(self, at: Ints) -> Flags:
        named: Flags = (self.reader.at("<u8", at) == _CHECKSUM_NAME) & (self.reader.bytes[at + 8] == 1)
        return named

    def _carries(self, at: Ints, values: Ints) -> Flags:
        """Whether the 8 upper-case hex digits of the low 32 bits of `values` stand at `at`."""
        low = (values & 0xFFFFFFFF).astype(np.uint32)
        indexed = _HEX_DIGITS[(low[:, None] >> _HEX_SHIFTS) & 15]
        same: Flags = indexed.view("<u8")[:, 0] == self.reader.at("<u8", at)
        return same

    def _is_intact(self, entries: Ints, begins: Ints) -> Flags:
        view = self._view
        parts = zip(begins.tolist(), entries.tolist(), strict=True)
        found = np.array([crc32c(view[begin:end]) for begin, end in parts], np.int64)
        closed: Flags = self.reader.bytes[entries + 33] == 2
        return closed & self._carries(entries + 25, found)

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Position one past the last record."""
        return int(self.ends[-1])

    @property
    def end_offset(self) -> int:
        """Physical offset one past the last record."""
        return int(self.physical_offsets[-1] + self.sizes[-1])

    def record(self, index: int) -> ScannedRecord:
        """One of the records, as scan_record() gives it."""
        names, ids = self.topics()
        return ScannedRecord(
            int(self.physical_offsets[index]),
            int(self.sizes[index]),
            names[ids[index]],
            int(self.queue_ids[index]),
            int(self.queue_offsets[index]),
            int(self.sys_flags[index]),
            int(self.store_timestamps[index]),
            bytes(self._view[self.property_begins[index] : self.ends[index]]),
        )

    def topics(self) -> tuple[list[str], Ints]:
        """The different topics, and for each record the index of its own among them."""
        if self._topics is None:
            begins, lengths = self._topic_at, self._topic_end - self._topic_at
            if self.reader.is_same(begins, lengths):
                raw, ids = (
                    [self.reader.rows(begins[:1], int(lengths[0])).tobytes()],
                    np.zeros(self.count, np.int64),
                )
            else:
                raw, ids = self._distinct(begins, lengths)
            names: dict[str, int] = {}
            # Different malformed bytes may be one text.
            known = [names.setdefault(one.decode("utf-8", "replace"), len(names)) for one in raw]
            self._topics = list(names), np.array(known, np.int64)[ids]
        return self._topics

    def queues(self) -> Iterator[tuple[str, int, Ints]]:
        """Topic, queue id and the indices, ascending, of the records that belong into that queue."""
        names, ids = self.topics()
        kind = self.sys_flags & TRANSACTION
        queued = np.flatnonzero((kind != PREPARED) & (kind != ROLLBACK))
        if not len(queued):
            return
        keys = (ids[queued] << 32) | self.queue_ids[queued]
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        for group in np.split(order, cuts):
            indices = queued[group]
            first = int(indices[0])
            yield names[ids[first]], int(self.queue_ids[first]), indices

    def entries(self, delay_levels_ms: tuple[int, ...]) -> NDArray[np.void]:
        """The queue entry of every record, of ENTRY_DTYPE."""
        packed = np.empty(self.count, ENTRY_DTYPE)
        packed["physical_offset"] = self.physical_offsets
        packed["size"] = self.sizes
        packed["tag_hash"] = self._tags(delay_levels_ms)
        return packed

    def _tags(self, delay_levels_ms: tuple[int, ...]) -> Ints:
        tags = np.zeros(self.count, np.int64)
        found = self.properties.values(TAGS_NAME)
        if len(found.records):
            raw, ids = self._distinct(found.begins, found.lengths)
            hashes = np.array([tag_hash(one.decode("utf-8", "replace")) for one in raw], np.int64)
            tags[found.records] = hashes[ids]
        names, topic_ids = self.topics()
        if SCHEDULE_TOPIC in names:
            for index in np.flatnonzero(topic_ids == names.index(SCHEDULE_TOPIC)).tolist():
                one = self.record(index)
                tags[index] = entry_tag(one.topic, one.properties, one.store_timestamp, delay_levels_ms)
        return tags

    def keys(self, chosen: Flags | None = None) -> HashedKeys:
        """The index keys of all records, or of the `chosen`, in the order in which the index takes them."""
        indexed = self.sys_flags & TRANSACTION != ROLLBACK
        if chosen is not None:
            indexed &= chosen
        unique, keys = (self.properties.values(name) for name in (UNIQ_KEY_NAME, KEYS_NAME))
        unique = unique.where(indexed[unique.records])
        keys = keys.where(indexed[keys.records])
        parts = [*self._key_hashes(unique, is_list=False), *self._key_hashes(keys, is_list=True)]
        records = np.concatenate([one[0] for one in parts])
        order = np.argsort(records, kind="stable")
        records = records[order]
        hashes = np.concatenate([one[1] for one in parts])[order]
        return HashedKeys(hashes, self.physical_offsets[records], self.store_timestamps[records])

    def _key_hashes(self, texts: Texts, *, is_list: bool) -> Iterator[tuple[Ints, Ints]]:
        """(records, key hashes) of values: single keys, or with `is_list` keys between blanks."""
        names, ids = self.topics()
        prefixes = np.array([java_hash(name + "#") for name in names], np.int64).astype(np.uint32)
        odd: list[Ints] = []
        for length in np.unique(texts.lengths).tolist():
            members = np.flatnonzero(texts.lengths == length)
            if length > _TEXT_LENGTH_MAX:
                odd.append(members)
                continue
            rows = self.reader.rows(texts.begins[members], length)
            plain = (rows < 128).all(axis=1)
            if is_list:
                plain &= (rows != 32).all(axis=1)
            odd.append(members[~plain])
            records = texts.records[members[plain]]
            powers = _powers_of_31(length + 1)
            hashes = rows[plain].astype(np.uint32) @ powers[1:] + prefixes[ids[records]] * powers[0]
            yield records, _as_key_hash(hashes)
        slow = np.concatenate(odd) if odd else np.zeros(0, np.int64)
        yield self._odd_key_hashes(texts, slow, is_list)

    def _odd_key_hashes(self, texts: Texts, members: Ints, is_list: bool) -> tuple[Ints, Ints]:
        """One by one: several keys, long ones, and those that are not ASCII."""
        names, ids = self.topics()
        records: list[int] = []
        hashes: list[int] = []
        for member in members.tolist():
            record, begin = int(texts.records[member]), int(texts.begins[member])
            raw = bytes(self._view[begin : begin + int(texts.lengths[member])])
            text = raw.decode("utf-8", "replace")
            for piece in text.split(" ") if is_list else (text,):
                if piece:
                    records.append(record)
                    hashes.append(index_key_hash(f"{names[ids[record]]}#{piece}"))
        return np.array(records, np.int64), np.array(hashes, np.int64)

    @property
    def born_timestamps(self) -> Ints:
        """When the senders made the messages, ms since the epoch."""
        return cast("Ints", self._heads["born_timestamp"].astype(np.int64))

    @property
    def properties(self) -> PropertyColumns:
        """The records' properties, where they lie."""
        if self._properties is None:
            self._properties = PropertyColumns(self.reader, self.property_begins, self.ends)
        return self._properties

    def _distinct(self, begins: Ints, lengths: Ints) -> tuple[list[bytes], Ints]:
        """The different pieces of these begins and lengths, and for each piece which one of them it is."""
        ids = np.zeros(len(begins), np.int64)
        found: list[bytes] = []
        for length in np.unique(lengths).tolist():
            members = np.flatnonzero(lengths == length)
            if length <= _TEXT_LENGTH_MAX:
                members = self._distinct_rows(begins, members, length, found, ids)
            known: dict[bytes, int] = {}
            for member in members.tolist():
                begin = int(begins[member])
                piece = bytes(self._view[begin : begin + length])
                if piece not in known:
                    known[piece] = len(found)
                    found.append(piece)
                ids[member] = known[piece]
        return found, ids

    def _distinct_rows(self, begins: Ints, members: Ints, length: int, found: list[bytes], ids: Ints) -> Ints:
        """As _distinct() for pieces of one length; the members that are left after _DISTINCT_MAX pieces."""
        rows = self.reader.rows(begins[members], length)
        for _ in range(_DISTINCT_MAX):
            if not len(members):
                break
            same = (rows == rows[0]).all(axis=1)
            ids[members[same]] = len(found)
            found.append(rows[0].tobytes())
            members, rows = members[~same], rows[~same]
        return members


def _powers_of_31(count: int) -> NDArray[np.uint32]:
    """31 ** (count - 1) down to 31 ** 0, modulo 2 ** 32."""
    factors = np.full(count, 31, np.uint32)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint32)[::-1]


def _as_key_hash(hashes: NDArray[np.uint32]) -> Ints:
    """Absolute values of the signed hashes, 0 where there is none."""
    signed = hashes.view(np.int32).astype(np.int64)
    signed[signed == -(1 << 31)] = 0
    return np.abs(signed)
