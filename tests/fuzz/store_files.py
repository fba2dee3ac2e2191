"""Targets for the files of a store: log, queues, index, timers, checkpoint, its own lists; and stores as a whole."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from crc32c import crc32c

from aerobee_store.faults.errors import StoreError
from aerobee_store.index.index_file import HEADER_SIZE, IndexedRecord, IndexFile, index_file_size
from aerobee_store.log.checkpoint import Checkpoint, Stamps, Watermark
from aerobee_store.queues.batch_queue import BATCH_ENTRY_SIZE, BatchEntry, BatchQueue
from aerobee_store.queues.batch_queues import batch_topics
from aerobee_store.queues.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue, ConsumeQueueEntry
from aerobee_store.queues.queue_list import ListedQueue, QueueList
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.timer import timer_files as timer_files_module
from aerobee_store.timer.timer_files import MAGIC_DEFAULT, TimerFiles, TimerUnit, Verified
from aerobee_store.walking.log_reader import Damage, DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import RowFile
from fuzz.target import Target, patched
from store.bit_rot import Image
from store.crash_disk import CrashIo, Disk
from store.workload import HOST, message

__all__ = ["TARGETS", "records_of_image"]

ROOT: Final = Path("/s")
TIMER_MS: Final = 1_700_000_000_000
TIMER_SLOTS: Final = 16
RECORD: Final = 100  # bytes of each record that queues lead to
QUEUE_FILE: Final = 4  # entries in a file of a queue
INDEX_SLOTS: Final = 7
INDEX_LIMIT: Final = 20
LOG_RECORDS: Final = 5
LOG_ROOM: Final = 100  # bytes behind them
GENERATION: Final = 7


# --- the log ----------------------------------------------------------------------------------------------------------


@cache
def _image() -> Image:
    return Image(15)  # with two index files, three of the log, deleted topics


def _files_of(*kinds: str) -> list[str]:
    found = _image().kinds()
    return sorted(name for kind in kinds for name in found.get(kind, ()))


@cache
def records_of_image() -> tuple[bytes, ...]:
    """Stored records of several forms, from the beginning of each file of a log."""
    found = []
    for name in _files_of("commitlog"):
        raw, at = _image().files[name], 0
        for _ in range(LOG_RECORDS):
            size = int.from_bytes(raw[at : at + 4], "big")
            if not 0 < size < 2000:
                break
            found.append(raw[at : at + size])
            at += size
    return tuple(found)


class _MemorySource:
    """A log of one file, as a ByteSource."""

    piece_size = 1 << 30

    def __init__(self, raw: bytes) -> None:
        self._raw = memoryview(raw)
        self._files = [RowFile(0, len(raw), "0")]

    def files(self) -> Sequence[RowFile]:
        return self._files

    def read(self, begin: int, end: int) -> memoryview:
        return self._raw[begin:end]

    def extents(self, begin: int, end: int) -> Iterable[tuple[int, int]]:
        return [(begin, end)] if begin < end else []

    def path(self, offset: int) -> str:
        return "0"


@cache
def _log() -> bytes:
    """The first records of a log, and nothing behind them."""
    raw, at = _image().files[_files_of("commitlog")[0]], 0
    for _ in range(LOG_RECORDS):
        at += int.from_bytes(raw[at : at + 4], "big")
    return raw[:at] + bytes(LOG_ROOM)


def log_files(data: bytes) -> None:
    """A log that is read record by record and in columns: both ways find the same records, damage and end."""
    if not data:
        return
    source = _MemorySource(patched(_log(), data[1:]))
    proof = Proof(property_crc=bool(data[0] & 2), sealed_from=0 if data[0] & 4 else None)
    careful = _walked(source, proof, fast=False)
    assert _walked(source, proof, fast=True) == careful
    end = 0
    for record in careful[0]:
        assert record.physical_offset >= end
        end = record.physical_offset + record.size


def _walked(
    source: _MemorySource, proof: Proof, *, fast: bool
) -> tuple[list[ScannedRecord], list[Damage], int]:
    report = DamageList()
    reader = LogReader(source, report, proof, columns_only=fast)
    records: list[ScannedRecord] = []
    for step in reader.stretches(0) if fast else reader.walk(0):
        if isinstance(step, ScannedRecord):
            records.append(step)
        else:
            records += [step.record(index) for index in range(step.count)]
    return records, report.found, reader.end


# --- queues -----------------------------------------------------------------------------------------------------------


@cache
def _queue_image(is_batch: bool) -> dict[str, bytes]:
    """Two files and a half of entries."""
    count = QUEUE_FILE * 5 // 2
    if is_batch:
        entries = [
            BatchEntry(n * RECORD, RECORD, n * 7, TIMER_MS + n, n * 3, 3).packed() for n in range(count)
        ]
    else:
        entries = [ENTRY.pack(n * RECORD, RECORD, n * 7) for n in range(count)]
    size = QUEUE_FILE * len(entries[0])
    whole = b"".join(entries)
    return {
        f"{ROOT}/T/0/{at:020d}": whole[at : at + size].ljust(size, b"\0") for at in range(0, len(whole), size)
    }


def _leads_to_its_record(entry: ConsumeQueueEntry, offset: int) -> bool:
    return entry.physical_offset == offset * RECORD and entry.size == RECORD


def queue_files(data: bytes) -> None:
    """A queue whose files have other bytes is recovered to one that is in order, and once is enough."""
    _queue(data, is_batch=False)


def batch_queue_files(data: bytes) -> None:
    """The same for queues of batches."""
    _queue(data, is_batch=True)


def _queue(data: bytes, *, is_batch: bool) -> None:
    if not data:
        return
    files = dict(_queue_image(is_batch))
    name = sorted(files)[data[0] % len(files)]
    files[name] = patched(files[name], data[1:])
    proven = (0, 0, QUEUE_FILE * RECORD, 100 * RECORD)[data[0] >> 4 & 3]
    io = CrashIo(Disk.holding(files))
    queue = _opened_queue(io, is_batch=is_batch)
    verify = None if is_batch or data[0] & 0x80 else _leads_to_its_record
    try:
        queue.load()
        found = queue.recover(verify, proven_offset=proven)
    except StoreError:
        return
    _read_queue(queue)
    if proven or found.gaps:
        with suppress(StoreError):
            queue.check()
        return
    queue.check()
    again = _opened_queue(io, is_batch=is_batch)
    again.load()
    second = again.recover(verify)
    assert (second.min_offset, second.max_offset, second.cut_entries) == (
        found.min_offset,
        found.max_offset,
        0,
    )


def _opened_queue(io: CrashIo, *, is_batch: bool) -> ConsumeQueue:
    form, size = (BatchQueue, BATCH_ENTRY_SIZE) if is_batch else (ConsumeQueue, ENTRY_SIZE)
    return form("T", 0, ROOT / "T" / "0", QUEUE_FILE * size, io)


def _read_queue(queue: ConsumeQueue) -> None:
    offset = queue.min_offset
    for _ in range(100):
        if offset >= queue.max_offset:
            break
        queue.entry(offset)
        queue.read(offset, 4)
        following = queue.after(offset)
        assert following > offset
        offset = following


# --- the index --------------------------------------------------------------------------------------------------------


INDEX_KEYS: Final = [(n * n % 31, 100 * (n // 2), TIMER_MS + 700 * n) for n in range(16)]


@cache
def _index_image() -> bytes:
    io = CrashIo(Disk())
    data = io.open_file(ROOT / "i", index_file_size(INDEX_SLOTS, INDEX_LIMIT), create=True)
    columns = np.array(INDEX_KEYS, np.int64)
    IndexFile(data, INDEX_SLOTS, INDEX_LIMIT).put(columns[:, 0], columns[:, 1], columns[:, 2])
    return io.disk.files()[str(ROOT / "i")]


def _probe(offset: int) -> IndexedRecord | None:
    own = [key for key in INDEX_KEYS if key[1] == offset]
    return IndexedRecord(own[0][2], frozenset([key[0] for key in own])) if own else None


def index_files(data: bytes) -> None:
    """An index file with other bytes: looked into as it is, then cut to what is proven, which is in order."""
    if not data:
        return
    raw = patched(_index_image(), data[1:])
    io = CrashIo(Disk.holding({str(ROOT / "i"): raw}))
    file = IndexFile(io.open_file(ROOT / "i", len(raw)), INDEX_SLOTS, INDEX_LIMIT)
    for key_hash in (0, 1, 9):
        _look_up(file, key_hash)
    file.newest_of(file.end_physical)
    if file.count:
        file.looks_sound(0)
    probe = _probe if data[0] & 1 else None
    count = file.proven_count((1 << 40, 900)[data[0] >> 1 & 1], 0, (0, 500)[data[0] >> 2 & 1], probe)
    assert 0 <= count <= file.count
    if count:
        file.cut(count, probe)
        file.check()
        assert file.count == count
        for key_hash in (0, 1, 9):
            assert all(offset >= 0 for offset in _look_up(file, key_hash))


def _look_up(file: IndexFile, key_hash: int) -> list[int]:
    found: list[int] = []
    for _ in file.collect(key_hash, 0, 1 << 62, 32, found):
        pass
    return found


# --- small files ------------------------------------------------------------------------------------------------------


COPY_SIZES: Final = ((2048, 124), (3072, 124))  # the two copies in a checkpoint, without their checksums


@cache
def _checkpoint_image() -> bytes:
    path = ROOT / "checkpoint"
    io = CrashIo(Disk())
    one = Checkpoint(path, io)
    for number in range(GENERATION):
        one.write(Stamps(TIMER_MS, TIMER_MS, TIMER_MS), Watermark(number * 100, number * 90, number * 80))
    return io.disk.files()[str(path)]


def checkpoint(data: bytes) -> None:
    """The checkpoint, also with checksums that are right for what else is wrong; the next one is read as written."""
    if not data:
        return
    # Patches go where something is: the stamps, and the copies.
    raw = bytearray(_checkpoint_image())
    for number, (at, size) in enumerate(((0, 40), *COPY_SIZES)):
        if data[0] >> number & 1:
            raw[at : at + size] = patched(bytes(raw[at : at + size]), data[1:])
        if number and data[0] & 0x40:
            raw[at + size : at + size + 4] = crc32c(bytes(raw[at : at + size])).to_bytes(4, "big")
    path = ROOT / "checkpoint"
    io = CrashIo(Disk.holding({str(path): bytes(raw)}))
    one = Checkpoint(path, io)
    one.load()
    with suppress(StoreError):
        one.check()
    stamps, mark = Stamps(TIMER_MS + 1, TIMER_MS + 2, TIMER_MS + 3), Watermark(5000, 4000, 3000)
    one.write(stamps, mark)
    again = Checkpoint(path, io)
    again.load()
    assert (again.stamps, again.mark, again.generation) == (stamps, mark, one.generation)


def store_lists(data: bytes) -> None:
    """The store's own lists under config/: ends of queues, deleted topics, which topics have queues of batches."""
    if not data:
        return
    raw = data[1:]
    files = {f"{ROOT}/config/{name}": raw for name in ("queueEnds.json", "deletedTopics.json", "topics.json")}
    io = CrashIo(Disk.holding(files))
    match data[0] % 3:
        case 0:
            listed = QueueList(ROOT, io)
            found = listed.load(GENERATION, 4096)
            if found:
                listed.save(found, GENERATION, 4096)
                assert sorted(listed.load(GENERATION, 4096)) == sorted(found)
        case 1:
            _tombstones(io)
        case _:
            with suppress(StoreError):
                batch_topics(ROOT, io)


def _tombstones(io: CrashIo) -> None:
    one = Tombstones(ROOT, io)
    try:
        one.load()
    except StoreError:
        return
    before = one.topics
    one.add("T", 4711)
    one.save()
    again = Tombstones(ROOT, io)
    again.load()
    assert again.topics == {**before, "T": 4711}


def timer_files(data: bytes) -> None:
    """The timer log, its checkpoint, and a wheel that is smaller than in life."""
    if not data:
        return
    files = _timer_image()
    name = sorted(files)[data[0] % len(files)]
    timers = _timers(CrashIo(Disk.holding({**files, name: patched(files[name], data[1:])})))
    with patch.object(timer_files_module, "SLOT_COUNT", TIMER_SLOTS):
        _read_timers(timers)


def _read_timers(timers: TimerFiles) -> None:
    try:
        timers.load()
        timers.recover(lambda place, size: Verified(place // 100, TIMER_MS) if size == 100 else None)
        for _ in range(1000):
            if (slot := timers.next_slot()) is None:
                break
            timers.take_slot()
            for position in timers.positions(slot):
                timers.unit(position)
        timers.newest_unit()
        timers.topic_hashes()
    except StoreError:
        return


def _timers(io: CrashIo) -> TimerFiles:
    return TimerFiles(ROOT, io, precision_ms=1000, log_file_size=1024)


@cache
def _timer_image() -> dict[str, bytes]:
    io = CrashIo(Disk())
    timers = _timers(io)
    with patch.object(timer_files_module, "SLOT_COUNT", TIMER_SLOTS):
        timers.load()
        timers.recover(lambda place, size: None)
        for number in range(24):
            at_ms = TIMER_MS + number % 7 * 1000
            timers.add(TimerUnit(-1, MAGIC_DEFAULT, TIMER_MS, at_ms, number * 100, 100, 77, exact=True))
            timers.queue_offset = number + 1
        timers.sync(timers.snapshot(0), TIMER_MS)
    return {name: raw for name, raw in io.disk.files().items() if raw}


# --- stores -----------------------------------------------------------------------------------------------------------


def stores(data: bytes) -> None:
    """A start, and reading all, on a store one of whose files has other bytes. Of all files, whatever they are."""
    image = _image()
    names = sorted(name for name, raw in image.files.items() if raw)
    if len(data) < 2:
        return
    name = names[int.from_bytes(data[:2], "big") % len(names)]
    try:
        store, _, _ = image.opened({**image.files, name: patched(image.files[name], data[2:])})
    except StoreError:
        return
    _read_all(store)


def _read_all(store: Any) -> None:
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            with suppress(StoreError):
                offset, end = (
                    store.reading.min_offset(topic, queue_id),
                    store.reading.max_offset(topic, queue_id),
                )
                while offset < end:
                    found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 20, None)
                    assert found.next_offset > offset
                    offset = found.next_offset
    with suppress(StoreError):
        store.keys.query("Orders", "k", 32, 0, 1 << 60)
    with suppress(StoreError):
        store.append([message(host=HOST)])
    with suppress(StoreError):
        store.check()


# --- what reaches far into them ---------------------------------------------------------------------------------------


def _patches(
    heads: Sequence[int] = range(8), *, places: Sequence[int] = (0, 40, 100, 300)
) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for head in heads:
            yield bytes([head])
            for place in places:
                yield bytes([head]) + struct.pack(">HB", place, 8) + b"\xff" * 8
            yield bytes([head]) + struct.pack(">HB", 0, 200) + bytes(200)
            yield (
                bytes([head])
                + struct.pack(">HB", places[1], 1)
                + b"\x01"
                + struct.pack(">HB", places[2], 4)
                + b"\0\0\0\x64"
            )

    return seeds


def _store_patches() -> Iterator[bytes]:
    for number in range(12):
        yield number.to_bytes(2, "big") + struct.pack(">HB", number * 40, 8) + b"\xff" * 8
        yield number.to_bytes(2, "big") + struct.pack(">HB", 0, 200) + bytes(200)


def _lists() -> Iterator[bytes]:
    io = CrashIo(Disk())
    QueueList(ROOT, io).save(
        [ListedQueue("Orders", 0, 0, 40), ListedQueue("Bills", 1, 8, 9)], GENERATION, 4096
    )
    dead = Tombstones(ROOT, io)
    dead.add("Orders", 73014444032)
    dead.save()
    files = io.disk.files()
    yield b"\x00" + files[f"{ROOT}/config/queueEnds.json"]
    yield b"\x01" + files[f"{ROOT}/config/deletedTopics.json"]
    yield b'\x01{"format":1,"topics":{"Orders":7}}'
    yield b'\x02{"topicConfigTable":{"T":{"attributes":{"queue.type":"BatchCQ"}}}}'
    for head in range(3):
        yield bytes([head]) + b'{"format":1,"topics":' + b"[" * 3000
        yield bytes([head]) + b'{"format":1,"checkpoint":' + b"9" * 5000 + b"}"


TARGETS: Final[dict[str, Target]] = {
    "log_files": Target(log_files, _patches(), 8_000),
    "queue_files": Target(queue_files, _patches(range(0, 256, 17)), 8_000),
    "batch_queue_files": Target(batch_queue_files, _patches(range(0, 256, 17)), 8_000),
    "index_files": Target(index_files, _patches(places=(0, HEADER_SIZE, 100, 300)), 20_000),
    "timer_files": Target(timer_files, _patches(), 8_000),
    "checkpoint": Target(checkpoint, _patches((1, 2, 4, 0x42, 0x44, 0x46), places=(0, 8, 16, 24)), 40_000),
    "store_lists": Target(store_lists, _lists, 20_000),
    "stores": Target(stores, _store_patches, 150, time_max_s=10),
}
