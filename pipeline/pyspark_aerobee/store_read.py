"""One partition of a store folder, as stretches of proven records and the damage between them.

Touches  the folder, reading; on an executor.

Every record is proven as recovery proves it: lengths, place, body CRC, whole-record checksum where there is one. What
does not hold is passed over and told as damage, never given out. Who leaves the checksums out gets faster what looks
like records.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from aerobee_proto import names
from aerobee_proto.properties import KEYS_NAME, TAGS_NAME, UNIQ_KEY_NAME
from aerobee_store.offline.folder import StoreFolder
from aerobee_store.records.property_columns import Flags, Ints
from aerobee_store.records.record_scan import RecordFault, scan_record
from aerobee_store.walking.log_reader import Damage, DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import FileSource, RowFile
from aerobee_store.walking.record_columns import Stretch, sound_records
from pyspark_aerobee.columns import cut
from pyspark_aerobee.store_plan import (
    EntriesPartition,
    LogPartition,
    RecordsPartition,
    StorePartition,
    StoreQuery,
)

__all__ = ["Damage", "Found", "chosen_records", "damage_facts", "read_partition"]

STEP: Final = 8 << 20  # bytes of records in one batch
_SEARCH_STEP: Final = 1 << 20
_GAP_MAX: Final = 64 << 10  # between records that one read of a distant folder takes together


class Found(NamedTuple):
    """Proven records over a view."""

    stretch: Stretch
    view: memoryview


def damage_facts(damage: Damage) -> dict[str, str | int]:
    """For reports."""
    return {"file": damage.path, "begin": damage.begin, "end": damage.end, "reason": damage.reason}


def read_partition(
    store: StoreFolder, partition: StorePartition, query: StoreQuery
) -> Iterator[Found | Damage]:
    """Everything that a partition holds, in order; the query's row filters are still to be applied."""
    if isinstance(partition, LogPartition):
        yield from _read_log(store, partition, query.checksums)
    elif isinstance(partition, EntriesPartition):
        yield from _read_entries(store, partition, query)
    else:
        yield from _read_records(store, partition, query.checksums)


# --- by log --------------------------------------------------------------------------------------------------


def _read_log(store: StoreFolder, partition: LogPartition, checksums: bool) -> Iterator[Found | Damage]:
    file = partition.file
    source = FileSource(store.log_tree, (file,), max(partition.end - partition.begin, 1))
    report = DamageList()
    reader = LogReader(
        source, report, Proof(proven=not checksums, once=True), stretch_size=STEP, columns_only=True
    )
    for found in reader.stretches(partition.begin, partition.end):
        yield from _taken(report, store, source, partition)
        if isinstance(found, Stretch):
            yield Found(found, found.view)
        else:
            end = found.physical_offset + found.size
            yield Damage(found.physical_offset, end, file.path, "the record cannot be read")
    yield from _taken(report, store, source, partition)


def _taken(
    report: DamageList, store: StoreFolder, source: FileSource, partition: LogPartition
) -> Iterator[Damage]:
    """What was reported since the last call and is damage: not the end of the log."""
    for damage in report.found:
        end = damage.end
        if end == partition.end:  # nothing proven follows
            if _only_zeros(source.read(damage.begin, end)):
                continue
            if partition.file == store.log_files()[-1]:
                end = min(_last_border(store), end)
        if damage.begin < end:  # else a record that was being written when the folder was copied
            yield replace(damage, end=end)
    report.found.clear()


def _only_zeros(view: memoryview) -> bool:
    return not any(
        np.frombuffer(view[at : at + _SEARCH_STEP], np.uint8).any()
        for at in range(0, len(view), _SEARCH_STEP)
    )


def _last_border(store: StoreFolder) -> int:
    """Behind this offset no queue has an entry, whatever its kind."""
    ends = [0]
    for queue in store.all_queues():
        begin, end = store.queue_range(queue)
        if begin < end:
            last = store.entries(queue, end - 1, end)
            ends.append(int(last["physical_offset"][0]) + int(last["size"][0]))
    return max(ends)


# --- by queue ------------------------------------------------------------------------------------------------


def _read_entries(
    store: StoreFolder, partition: EntriesPartition, query: StoreQuery
) -> Iterator[Found | Damage]:
    hashes = query.tag_hashes
    entries = store.entries(partition.queue, partition.begin, partition.end)
    offsets = entries["physical_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    selected = sizes > 0
    if hashes is not None:
        selected &= np.isin(entries["tag_hash"].astype(np.int64), np.array(sorted(hashes), np.int64))
    yield from _read_places(store, offsets[selected], sizes[selected], query.checksums)


def _read_records(
    store: StoreFolder, partition: RecordsPartition, checksums: bool
) -> Iterator[Found | Damage]:
    headers = [store.header_at(offset) for offset in partition.offsets]
    sizes = [header.size for header in headers if header is not None]
    offsets = [header.physical_offset for header in headers if header is not None]
    yield from _read_places(store, np.array(offsets, np.int64), np.array(sizes, np.int64), checksums)


def _read_places(store: StoreFolder, offsets: Ints, sizes: Ints, checksums: bool) -> Iterator[Found | Damage]:
    """The records at ascending places of the log."""
    placed = np.zeros(len(offsets), np.bool_)
    for file in store.log_files():
        inside = (offsets >= file.offset) & (offsets + sizes <= file.end)
        placed |= inside
        begins, lengths = offsets[inside] - file.offset, sizes[inside]
        first = 0
        while first < len(begins):
            sums = np.cumsum(lengths[first : first + STEP // 91])
            count = max(int(np.searchsorted(sums, STEP)), 1)
            chunk = slice(first, first + count)
            yield from _prove(
                file,
                begins[chunk],
                lengths[chunk],
                _gather(store, file, begins[chunk], lengths[chunk]),
                checksums,
            )
            first += count
    begin, end = store.log_files()[0].offset, store.log_files()[-1].end
    for index in np.flatnonzero(~placed & (offsets >= begin)).tolist():
        offset, size = int(offsets[index]), int(sizes[index])
        reason = "a queue names a record that no log file has room for"
        yield Damage(offset, min(offset + size, end), "", reason)


def _gather(store: StoreFolder, file: RowFile, begins: Ints, lengths: Ints) -> memoryview:
    """The records side by side: cut out of the mapped file by Arrow, or read in runs from a distant one."""
    low = int(begins[0])
    high = int(begins[-1] + lengths[-1])
    if np.any(begins[1:] < begins[:-1] + lengths[:-1]):
        # Entries that overlap are damaged; each is read by itself and judged by its record.
        return memoryview(
            b"".join(
                bytes(store.read_log(file, file.offset + begin, file.offset + begin + length))
                for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
            )
        )
    if high - low == int(lengths.sum()):
        return store.read_log(file, file.offset + low, file.offset + high)
    cuts = np.flatnonzero(begins[1:] - begins[:-1] - lengths[:-1] > _GAP_MAX) + 1
    parts = []
    for run in np.split(np.arange(len(begins)), cuts):
        start, stop = int(begins[run[0]]), int(begins[run[-1]] + lengths[run[-1]])
        piece = store.read_log(file, file.offset + start, file.offset + stop)
        parts.append(_side_by_side(piece, begins[run] - start, lengths[run]))
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _side_by_side(piece: memoryview, begins: Ints, lengths: Ints) -> memoryview:
    taken = cut(pa.py_buffer(piece), begins, begins + lengths)
    return memoryview(taken.buffers()[2])[: int(lengths.sum())]


def _prove(
    file: RowFile, begins: Ints, lengths: Ints, view: memoryview, checksums: bool
) -> Iterator[Found | Damage]:
    """The gathered records, those that are what their entries say."""
    places = np.concatenate([[0], np.cumsum(lengths)])
    first = 0
    while first < len(begins):
        stretch = sound_records(
            view, int(places[first]), None, stop=len(view), proven=not checksums, once=True
        )
        good = 0
        if stretch is not None:
            count = min(stretch.count, len(begins) - first)
            same = stretch.begins[:count] == places[first : first + count]
            same &= stretch.physical_offsets[:count] == begins[first : first + count] + file.offset
            good = count if same.all() else int(np.argmin(same))
            if good:
                yield Found(_shortened(view, stretch, good), view)
        first += good
        if first < len(begins):
            at = int(begins[first]) + file.offset
            fault = scan_record(view, int(places[first]), at)
            reason = (
                fault.reason if isinstance(fault, RecordFault) else "the record is not what the queue says"
            )
            yield Damage(at, at + int(lengths[first]), file.path, reason)
            first += 1


def _shortened(view: memoryview, stretch: Stretch, count: int) -> Stretch:
    if count == stretch.count:
        return stretch
    found = sound_records(
        view, int(stretch.begins[0]), None, stop=int(stretch.begins[count - 1]) + 1, proven=True
    )
    assert found is not None
    return found


# --- rows ----------------------------------------------------------------------------------------------------


def chosen_records(stretch: Stretch, query: StoreQuery) -> Flags | None:
    """Which records of a stretch the query wants; None for all of them."""
    chosen: Flags = np.ones(stretch.count, np.bool_)
    topics, ids = stretch.topics()
    if query.topics is not None:
        selected = [topic in query.topics for topic in topics]
        chosen &= np.array(selected, np.bool_)[ids]
    elif not query.system_topics:
        selected = [not names.is_system_topic(topic) for topic in topics]
        chosen &= np.array(selected, np.bool_)[ids]
    if query.queue_ids is not None:
        chosen &= np.isin(stretch.queue_ids, np.array(sorted(query.queue_ids), np.int64))
    if query.begin_offset is not None:
        chosen &= stretch.queue_offsets >= query.begin_offset
    if query.end_offset is not None:
        chosen &= stretch.queue_offsets < query.end_offset
    if query.begin_ms is not None:
        chosen &= stretch.store_timestamps >= query.begin_ms
    if query.end_ms is not None:
        chosen &= stretch.store_timestamps < query.end_ms
    for name, texts in (
        (TAGS_NAME, query.tags),
        (KEYS_NAME, None if query.key is None else frozenset({query.key})),
    ):
        if texts is not None:
            chosen &= _carrying(stretch, name, texts)
    return None if chosen.all() else chosen


def _carrying(stretch: Stretch, name: bytes, texts: frozenset[str]) -> Flags:
    """Records whose tag is one of the texts; for KEYS and a key, those that have it among theirs or as unique key."""
    found: Flags = np.zeros(stretch.count, np.bool_)
    for names_of in (name,) if name == TAGS_NAME else (name, UNIQ_KEY_NAME):
        values = stretch.properties.values(names_of)
        reader = stretch.reader.bytes
        for record, begin, length in zip(
            values.records.tolist(), values.begins.tolist(), values.lengths.tolist(), strict=True
        ):
            value = reader[begin : begin + length].tobytes().decode("utf-8", "replace")
            found[record] |= value in texts or (name != TAGS_NAME and not texts.isdisjoint(value.split(" ")))
    return found
