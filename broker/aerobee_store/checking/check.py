"""What must hold between the log, the queues and the index, as code; what must hold inside of a part the part checks
itself.

Touches  log, queues and index, reading.
"""

from pathlib import Path

from aerobee_proto.javahash import index_key_hash
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.index.index import IndexService, key_texts
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import HOLE_SIZE
from aerobee_store.queues.delay import entry_tag
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.terms.config import StoreConfig
from aerobee_store.walking.agreement import compared_size
from aerobee_store.walking.keys import keyed_record
from aerobee_store.walking.log_reader import DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import MapSource

__all__ = ["check_agreement"]


def check_agreement(
    log: CommitLog,
    queues: QueueTable,
    config: StoreConfig,
    confirmed_offset: int,
    tombstones: Tombstones,
    indexed: tuple[IndexService, int],
) -> None:
    """Raise CorruptStore at the first thing that does not hold. `indexed` is the index, and up to where keys are in it.

    Every record from the first to the last byte is proven; every message below `confirmed_offset` whose topic was
    not deleted since is in its queue at its number, and every queue entry whose record is still kept belongs to
    such a message, or to a damaged one that was put aside. Every key of a record behind the first one of the index is
    in there.
    """
    index, indexed_offset = indexed
    keyed = {pair for file in index.files for pair in file.hashes_and_places()}
    first_keyed = min([place for _, place in keyed], default=indexed_offset)
    report = DamageList()
    proof = Proof(property_crc=config.verify_property_crc, sealed_from=log.checksum_from)
    reader = LogReader(MapSource(log), report, proof)
    seen: dict[tuple[str, int], int] = {}
    for record in reader.walk(log.min_offset):
        is_keyed = first_keyed < record.physical_offset < indexed_offset
        if is_keyed and not log.is_damaged(record.physical_offset):
            _check_keys(index, record, keyed)
        if record.physical_offset >= confirmed_offset or not record.is_queued:
            continue
        if log.is_damaged(record.physical_offset):
            continue  # it names another queue than its entry
        if tombstones.covers(record.topic, record.physical_offset):
            continue
        key = (record.topic, record.queue_id)
        seen[key] = seen.get(key, 0) + _check_entry(queues, record, config)
    for found in report.found:
        if not log.is_damaged(found.begin):
            raise CorruptStore(Path(found.path), found.begin, found.reason)
    if reader.end != log.end_offset:
        raise CorruptStore(log.folder, reader.end, f"the log should reach to {log.end_offset}")
    _check_counts(log, queues, seen)


def _check_keys(index: IndexService, record: ScannedRecord, keyed: set[tuple[int, int]]) -> None:
    keys = keyed_record(record)
    for text in key_texts(*keys[:3]) if keys is not None else ():
        if (index_key_hash(text), record.physical_offset) not in keyed:
            raise CorruptStore(
                index.folder, record.physical_offset, f"the index does not lead there from {text}"
            )


def _check_entry(queues: QueueTable, record: ScannedRecord, config: StoreConfig) -> int:
    """How many messages the record holds."""
    queue = queues.get(record.topic, record.queue_id)
    tag = entry_tag(record.topic, record.properties, record.store_timestamp, config.delay_levels_ms)
    if queue is None:
        place = queues.folder_of(record.topic) / str(record.queue_id)
        raise CorruptStore(place, record.physical_offset, "a message that is readable has no queue")
    expected = queue.packed(record, tag, record.queue_offset)
    found = queue.read(record.queue_offset, 1)
    compared = compared_size(record.topic, queue.entry_size)
    if found[:compared] != expected[:compared]:
        reason = f"entry {record.queue_offset} does not lead to its record"
        raise CorruptStore(queue.folder, record.physical_offset, reason)
    return queue.count_in(expected)


def _check_counts(log: CommitLog, queues: QueueTable, seen: dict[tuple[str, int], int]) -> None:
    for queue in queues:
        messages = seen.get((queue.topic, queue.queue_id), 0)
        readable = queue.max_offset - queue.min_offset
        if readable != messages:
            entries = (queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset))
            places = [e.physical_offset for e in entries if e is not None and e.size > HOLE_SIZE]
            readable = sum(not log.is_damaged(place) for place in places)
        if readable != messages:
            raise CorruptStore(queue.folder, None, f"{readable} entries for {messages} messages")
