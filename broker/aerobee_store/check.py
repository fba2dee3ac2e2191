"""The store's invariants as code, over all its parts.

Touches  log, queues and index, reading.
"""

from aerobee_store.commit_log import CommitLog
from aerobee_store.config import StoreConfig
from aerobee_store.consume_queue import HOLE_SIZE
from aerobee_store.delay import SCHEDULE_TOPIC, entry_tag
from aerobee_store.errors import CorruptStore
from aerobee_store.index import IndexService
from aerobee_store.log_walk import Damage, LogWalker
from aerobee_store.queue_table import QueueTable
from aerobee_store.record_scan import ScannedRecord
from aerobee_store.tombstones import Tombstones

__all__ = ["check_store"]

_TRANSACTION = 0xC
_PREPARED, _ROLLBACK = 0x4, 0xC
_PLACE_SIZE = 12  # bytes of an entry that say where the record is and how long


def check_store(
    log: CommitLog,
    queues: QueueTable,
    index: IndexService,
    config: StoreConfig,
    confirmed_offset: int,
    tombstones: Tombstones | None = None,
) -> None:
    """Raise CorruptStore at the first thing that does not hold.

    Every record from the first to the last byte is proven; every message below `confirmed_offset` whose topic was
    not deleted since is in its queue at its number, and every queue entry whose record is still kept belongs to
    such a message, or to a damaged one that was put aside.
    """
    log.check()
    queues.check()
    index.check()
    damage: list[Damage] = []
    walker = LogWalker(log, damage, property_crc=config.verify_property_crc)
    seen: dict[tuple[str, int], int] = {}
    for record in walker.walk(log.min_offset):
        if record.physical_offset >= confirmed_offset or not _is_queued(record):
            continue
        if log.is_damaged(record.physical_offset):
            continue  # it names another queue than its entry
        if tombstones is not None and tombstones.covers(record.topic, record.physical_offset):
            continue
        key = (record.topic, record.queue_id)
        seen[key] = seen.get(key, 0) + _check_entry(queues, record, config)
    for found in damage:
        if not log.is_damaged(found.begin):
            raise CorruptStore(found.path, found.begin, found.reason)
    if walker.end != log.end_offset:
        raise CorruptStore(log.folder, walker.end, f"the log should reach to {log.end_offset}")
    _check_counts(log, queues, seen)


def _is_queued(record: ScannedRecord) -> bool:
    return record.sys_flag & _TRANSACTION not in (_PREPARED, _ROLLBACK)


def _check_entry(queues: QueueTable, record: ScannedRecord, config: StoreConfig) -> int:
    """How many messages the record holds."""
    queue = queues.get(record.topic, record.queue_id)
    tag = entry_tag(record.topic, record.properties, record.store_timestamp, config.delay_levels_ms)
    if queue is None:
        place = queues.folder_of(record.topic) / str(record.queue_id)
        raise CorruptStore(place, record.physical_offset, "a message that is readable has no queue")
    wanted = queue.packed(record, tag, record.queue_offset)
    found = queue.read(record.queue_offset, 1)
    # Due times of delayed messages stay as they were given, whatever the delay levels are now.
    compared = _PLACE_SIZE if record.topic == SCHEDULE_TOPIC else queue.entry_size
    if found[:compared] != wanted[:compared]:
        reason = f"entry {record.queue_offset} does not lead to its record"
        raise CorruptStore(queue.folder, record.physical_offset, reason)
    return queue.count_in(wanted)


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
