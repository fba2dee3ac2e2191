"""From messages to bytes in the commit log: encoding, queue offsets, one write per batch and file.

Touches  the commit log and the queue table it is given; no clock, no I/O of its own.

Invariants
- A message has its queue offset, physical offset and store time before its bytes are written, and its
  bytes are whole: checksums are sealed over the final values.
- Queue offsets of a queue are given out without holes: a refused message takes none.
- Every batch written is in `pending`, in log order, with the queue entries and index keys it needs:
  dispatch never reads the log again.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from crc32c import crc32c

from aerobee_proto.checksum import (
    PROPERTY_CRC_SIZE,
    RECORD_CHECKSUM_FORM,
    RECORD_CHECKSUM_SIZE,
    property_crc_entry,
    remove_checksums,
)
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.properties import PROPERTIES_SIZE_MAX, find_property, remove_property
from aerobee_proto.records import HEAD_BY_HOSTS, HEAD_V4, MAGIC_V1, MAGIC_V2, SHORT, TOPIC_LENGTH_V1_MAX
from aerobee_store.faults.errors import StoreError, StoreFull
from aerobee_store.index.index import KeyedBlock, KeyedRecord
from aerobee_store.log.commit_log import BLANK_SIZE_MIN, CommitLog
from aerobee_store.queues.batch_queue import INNER_BASE, INNER_NUM, inner_count
from aerobee_store.queues.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from aerobee_store.queues.delay import entry_tag
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records.record_scan import PREPARED, ROLLBACK, TRANSACTION, ScannedRecord
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import RECORD_EXTRA_MAX, Appended, NewMessage, PutStatus

__all__ = ["Appender", "PackedRecords", "PendingBatch", "QueueBook", "RecordForm", "Touched"]

# (queue, queue offset of the first entry, packed entries); for its figure see `Arrival`
Touched = tuple[ConsumeQueue, int, bytes]

_TOPIC_SIZE_MAX = 255  # that of a folder name; which topics may be that long is decided by the broker
_BORN_V6, _STORE_V6, _HOSTS_V6 = 0x10, 0x20, 0x30
_INNER_BATCH = 0x80
_CRC_MASK = 0x7FFFFFFF
_QUEUE_ID_MAX = 0x7FFFFFFF
_SIDE_BY_SIDE_MAX = 1024  # queues of a topic


class PendingBatch(msgspec.Struct):
    """One append() as dispatch needs it; all its records lie below `end_offset`. A struct costs 0.2 us less than a
    NamedTuple to make."""

    end_offset: int
    store_timestamp: int
    touched: list[Touched]
    index_items: Sequence[KeyedRecord | KeyedBlock]
    keyed_count: int  # records in there


class RecordForm(NamedTuple):
    """What the records of one store have in common, for who makes them."""

    checksum: bool  # over all of each
    property_crc: bool  # RocketMQ's
    is_indexed: bool
    size_max: int  # bytes


class PackedRecords(NamedTuple):
    """Records that somebody else has made whole, for the place where the log ends."""

    data: bytes
    touched: list[Touched]  # the entries of their queues
    keys: KeyedBlock | None  # None: the store has no index


class QueueBook(Protocol):
    """Who makes records, and has to know of the queues that they belong to."""

    def add_queue(self, topic: str, queue_id: int, queue: object, magic: int, prefix: bytes) -> None:
        """A queue of plain entries, ready for messages; records of it begin with `magic`, its topic is `prefix`."""

    def forget_topic(self, topic: str) -> None:
        """Its queues were deleted."""


class Appender:
    """Writes messages into the commit log and remembers what dispatch has to do."""

    def __init__(self, log: CommitLog, queues: QueueTable, config: StoreConfig) -> None:
        # Fixed for life.
        self._log = log
        self._queues = queues
        self._config = config
        self._reserve = (RECORD_CHECKSUM_SIZE if config.record_checksum else 0) + (
            PROPERTY_CRC_SIZE if config.append_property_crc else 0
        )
        self._record_size_max = min(
            config.body_size_max + RECORD_EXTRA_MAX, config.commit_log_file_size - BLANK_SIZE_MIN
        )
        self.form = RecordForm(
            config.record_checksum, config.append_property_crc, config.index_enabled, self._record_size_max
        )
        # Grow with what is written to, shrink when topics are deleted. By queue id, as far as _SIDE_BY_SIDE_MAX: with
        # a thousand topics a tuple costs one look into memory, a dictionary three. What lies beyond is in the other.
        self._near: dict[str, tuple[ConsumeQueue | None, ...]] = {}
        self._far: dict[str, dict[int, ConsumeQueue]] = {}
        # Filled here, emptied by the dispatcher.
        self.pending: deque[PendingBatch] = deque()
        # Is told of each queue that is got ready.
        self._book: QueueBook | None = None

    def keep_book(self, book: QueueBook | None) -> None:
        """Tell this one from now on which queues there are, those first that are ready already."""
        self._book = book
        if book is not None:
            for topic in self._near:
                for queue in self._queues_of(topic):
                    self._note(book, queue)

    def _note(self, book: QueueBook, queue: ConsumeQueue) -> None:
        if not queue.is_special and queue.queue_id < _SIDE_BY_SIDE_MAX:
            book.add_queue(queue.topic, queue.queue_id, queue, queue.magic, queue.prefix)

    def forget_topic(self, topic: str) -> None:
        """The topic's queues were deleted: what comes next starts new ones."""
        for queue in self._queues_of(topic):
            queue.deleted = True
        if self._book is not None:
            self._book.forget_topic(topic)
        self._near.pop(topic, None)
        self._far.pop(topic, None)

    def next_offset(self, queue: ConsumeQueue) -> int:
        """The offset that the next message of the queue will get."""
        return max(queue.next_offset, queue.max_offset)

    def append(self, messages: Sequence[NewMessage], store_timestamp: int) -> list[Appended]:
        """Store the messages in order, all with one store time; one answer per message.

        A batch that does not fit in the current file is split between messages. StoreFull when a new file
        is needed and there is no room for it: raised if nothing was stored, otherwise the messages that
        were not stored are answered with CREATE_MAPPED_FILE_FAILED.
        """
        # One loop with everything in locals: 2.3 us a message at 64 a batch against 4.1 us as methods
        # (bench/micro_store.py).
        log = self._log
        near = self._near
        body_size_max = self._config.body_size_max
        checksum = self._config.record_checksum
        property_crc = self._config.append_property_crc
        indexed = self._config.index_enabled
        size_max = self._record_size_max
        reserve = self._reserve
        offset = log.end_offset
        limit = offset + log.room() - BLANK_SIZE_MIN
        crc32 = zlib.crc32
        pack_v4 = HEAD_V4.pack
        pack_entry = ENTRY.pack
        pack_short = SHORT.pack
        ok = PutStatus.PUT_OK
        parts: list[bytes] = []
        answers: list[Appended] = []
        touched: list[ConsumeQueue] = []
        index_items: list[KeyedRecord] = []
        for message in messages:
            # 1. What no record can carry is refused, before it has taken a number.
            topic = message.topic
            body = message.body
            properties = message.properties
            if b"__CRC32" in properties:
                properties = remove_checksums(properties)
            body_size = len(body)
            properties_size = len(properties) + reserve
            if properties_size > PROPERTIES_SIZE_MAX:
                answers.append(_refused(PutStatus.PROPERTIES_SIZE_EXCEEDED))
                continue
            if body_size > body_size_max:
                answers.append(_refused(PutStatus.MESSAGE_ILLEGAL))
                continue
            # 2. Its queue, and with it form and number of the record.
            queue_id = message.queue_id
            of_topic = near.get(topic, ())
            queue = of_topic[queue_id] if 0 <= queue_id < len(of_topic) else None
            if queue is None:
                queue = self.queue_of(topic, queue_id)
                if queue is None:
                    answers.append(_refused(PutStatus.MESSAGE_ILLEGAL))
                    continue
                if queue.is_batch:  # never in `near`
                    stamped = _with_base(properties, message.sys_flag, queue.next_offset)
                    if stamped is None or len(stamped) + reserve > PROPERTIES_SIZE_MAX:
                        answers.append(_refused(PutStatus.MESSAGE_ILLEGAL))
                        continue
                    properties, properties_size = stamped, len(stamped) + reserve
            # 3. Its size, and the file that it fits in: what came before goes to the file that ends here.
            born_host = message.born_host
            store_host = message.store_host
            # 90: the head with two IPv4 hosts and the length of the properties; IPv6 hosts add their surplus.
            prefix = queue.prefix
            size = 74 + len(born_host) + len(store_host) + body_size + len(prefix) + properties_size
            if size > size_max:
                answers.append(_refused(PutStatus.MESSAGE_ILLEGAL))
                continue
            if offset + size > limit:
                try:
                    if parts:
                        log.write(b"".join(parts))
                        parts = []
                    log.roll()
                except StoreFull:
                    parts = []
                    self._take_back(touched, index_items, answers)
                    if not any(a.status is ok for a in answers):
                        raise
                    left = len(messages) - len(answers)
                    answers.extend(_refused(PutStatus.CREATE_MAPPED_FILE_FAILED) for _ in range(left))
                    break
                offset = log.end_offset
                limit = offset + log.room() - BLANK_SIZE_MIN
            # 4. The bytes: place and number are final, so the checksums can be over all of them.
            sys_flag = message.sys_flag & ~_HOSTS_V6
            pack = pack_v4
            if len(born_host) != 8 or len(store_host) != 8:
                sys_flag |= (_BORN_V6 if len(born_host) == 20 else 0) | (
                    _STORE_V6 if len(store_host) == 20 else 0
                )
                pack = HEAD_BY_HOSTS[(sys_flag >> 4) & 3].pack
            transaction = sys_flag & TRANSACTION
            queued = transaction != PREPARED and transaction != ROLLBACK
            queue_offset = queue.next_offset if queued else 0
            try:
                head = pack(
                    size,
                    queue.magic,
                    crc32(body) & _CRC_MASK,
                    queue_id,
                    message.flag,
                    queue_offset,
                    offset,
                    sys_flag,
                    message.born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                    body_size,
                )
            except struct.error:
                answers.append(_refused(PutStatus.MESSAGE_ILLEGAL))
                continue
            record = b"".join((head, body, prefix, pack_short(properties_size), properties))
            parts.append(record)
            if checksum:
                seal = RECORD_CHECKSUM_FORM % (offset, crc32c(record))
                parts.append(seal)
                if property_crc:
                    parts.append(property_crc_entry(crc32(seal, crc32(record)) & _CRC_MASK))
            elif property_crc:
                parts.append(property_crc_entry(crc32(record) & _CRC_MASK))
            # 5. What dispatch will need: nothing is parsed again. From here on the number is taken.
            if queued:
                if not queue.fresh:
                    touched.append(queue)
                if queue.is_special:
                    self._enter(queue, offset, size, sys_flag, store_timestamp, properties)
                else:
                    queue.fresh += pack_entry(offset, size, message.tag_hash)
                    queue.next_offset = queue_offset + 1
            if indexed and transaction != ROLLBACK and (message.unique_key or message.keys):
                index_items.append((topic, message.keys, message.unique_key, offset, store_timestamp))
            answers.append(Appended(ok, offset, queue_offset, size, store_timestamp))
            offset += size
        # 6. One write for what is left; its end is where the records that carry their places say.
        if parts:
            try:
                log.write(b"".join(parts))
                assert log.end_offset == offset
            except StoreFull:
                self._take_back(touched, index_items, answers)
                if not any(a.status is ok for a in answers):
                    raise
        assert len(answers) == len(messages)
        if touched or index_items or parts:
            self._remember(store_timestamp, touched, index_items)
        return answers

    def append_packed(self, packed: PackedRecords, store_timestamp: int) -> None:
        """Store records that were made for the place where the log ends and fit in its file. StoreFull: nothing is."""
        self._log.write(packed.data)
        for queue, first, entries in packed.touched:
            assert queue.next_offset == first
            queue.next_offset = first + len(entries) // ENTRY_SIZE
        block = packed.keys
        keys, count = ((), 0) if block is None else ((block,), block.record_count)
        self.pending.append(PendingBatch(self._log.end_offset, store_timestamp, packed.touched, keys, count))

    def _enter(
        self,
        queue: ConsumeQueue,
        offset: int,
        size: int,
        sys_flag: int,
        store_timestamp: int,
        properties: bytes,
    ) -> None:
        """The entry of a record in a queue whose entries are not made of place, size and tag alone."""
        tag = entry_tag(queue.topic, properties, store_timestamp, self._config.delay_levels_ms)
        number = queue.next_offset
        record = ScannedRecord(
            offset, size, queue.topic, queue.queue_id, number, sys_flag, store_timestamp, properties
        )
        entry = queue.packed(record, tag, number)
        queue.fresh += entry
        queue.next_offset += queue.count_in(entry)

    def _take_back(
        self, touched: list[ConsumeQueue], index_items: list[KeyedRecord], answers: list[Appended]
    ) -> None:
        """A write was refused before anything of it was stored (no memory): what lies behind the log's end never
        came. Its offsets are given out again."""
        end = self._log.end_offset
        for queue in touched:
            fresh, step = queue.fresh, queue.entry_size
            places = range(0, len(fresh), step)
            kept = b"".join([fresh[at : at + step] for at in places if ENTRY.unpack_from(fresh, at)[0] < end])
            queue.next_offset -= queue.count_in(fresh) - queue.count_in(kept)
            assert queue.next_offset >= queue.max_offset
            queue.fresh = kept
        touched[:] = [queue for queue in touched if queue.fresh]
        index_items[:] = [item for item in index_items if item[3] < end]
        for at, answer in enumerate(answers):
            if answer.physical_offset >= end:
                answers[at] = _refused(PutStatus.CREATE_MAPPED_FILE_FAILED)

    def _remember(
        self, store_timestamp: int, touched: list[ConsumeQueue], index_items: list[KeyedRecord]
    ) -> None:
        work: list[Touched] = []
        for queue in touched:
            fresh = queue.fresh
            count = queue.count_in(fresh) if queue.is_batch else len(fresh) // ENTRY_SIZE
            assert count
            work.append((queue, queue.next_offset - count, fresh))
            queue.fresh = b""
        count = len(index_items)
        self.pending.append(PendingBatch(self._log.end_offset, store_timestamp, work, index_items, count))

    def append_group(self, messages: Sequence[NewMessage], store_timestamp: int) -> list[Appended]:
        """Store the messages of one client batch: all or none, next to each other in one file."""
        refusal, size = self.check_group(messages)
        if refusal is not PutStatus.PUT_OK:
            return [_refused(refusal) for _ in messages]
        if size > self._log.room() - BLANK_SIZE_MIN:
            self._log.roll()
        return self.append(messages, store_timestamp)

    def check_group(self, messages: Sequence[NewMessage]) -> tuple[PutStatus, int]:
        """Whether append_group would take these messages, PUT_OK, and the bytes of their records together."""
        # In one loop with little asked twice: messages of a batch are alike but for body and properties.
        size = 0
        reserve, body_size_max = self._reserve, self._config.body_size_max
        place: tuple[str, int] | None = None
        alike: tuple[Any, ...] | None = None
        fixed = 0
        for message in messages:
            properties = message.properties
            if b"__CRC32" in properties:
                properties = remove_checksums(properties)
            properties_size = len(properties) + reserve
            if properties_size > PROPERTIES_SIZE_MAX:
                return PutStatus.PROPERTIES_SIZE_EXCEEDED, 0
            fields = (
                message.flag, message.sys_flag, message.reconsume_times, message.born_timestamp,
                message.prepared_transaction_offset, message.born_host, message.store_host,
            )  # fmt: skip
            if fields != alike or (message.topic, message.queue_id) != place:
                alike, place = fields, (message.topic, message.queue_id)
                queue = self.queue_of(*place)
                if queue is None or not _fields_fit(message):
                    return PutStatus.MESSAGE_ILLEGAL, 0
                fixed = 74 + len(message.born_host) + len(message.store_host) + len(queue.prefix)
            if len(message.body) > body_size_max:
                return PutStatus.MESSAGE_ILLEGAL, 0
            size += fixed + len(message.body) + properties_size
        ok = size <= self._record_size_max
        return (PutStatus.PUT_OK if ok else PutStatus.MESSAGE_ILLEGAL), size

    def queue_of(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, got ready at its first use; None if there can be no such queue, or no record of it."""
        near = self._near.get(topic, ())
        known = near[queue_id] if 0 <= queue_id < len(near) else self._far.get(topic, {}).get(queue_id)
        if known is not None:
            return known
        form = self._form(topic)
        if form is None or not 0 <= queue_id <= _QUEUE_ID_MAX:
            return None
        try:
            queue = self._queues.get_or_create(topic, queue_id)
        except StoreError:
            return None
        queue.magic, queue.prefix = form
        queue.is_special = queue.is_batch or topic == SCHEDULE_TOPIC
        queue.next_offset = queue.max_offset
        self._remember_queue(queue)
        return queue

    def _remember_queue(self, queue: ConsumeQueue) -> None:
        topic, queue_id = queue.topic, queue.queue_id
        if queue_id >= _SIDE_BY_SIDE_MAX or queue.is_batch:
            self._far.setdefault(topic, {})[queue_id] = queue
            return
        near = list(self._near.get(topic, ()))
        near += [None] * (queue_id + 1 - len(near))
        near[queue_id] = queue
        self._near[topic] = tuple(near)
        if self._book is not None:
            self._note(self._book, queue)

    def _queues_of(self, topic: str) -> Iterator[ConsumeQueue]:
        yield from (queue for queue in self._near.get(topic, ()) if queue is not None)
        yield from self._far.get(topic, {}).values()

    def _form(self, topic: str) -> tuple[int, bytes] | None:
        """Magic and prefix of the topic's records, one object for all its queues; None if no record can carry it."""
        for queue in self._queues_of(topic):
            return queue.magic, queue.prefix
        name = topic.encode()
        if not name:
            return None
        if len(name) <= TOPIC_LENGTH_V1_MAX:
            return MAGIC_V1, bytes((len(name),)) + name
        if len(name) > _TOPIC_SIZE_MAX or not self._config.long_topics_as_version_2:
            return None
        return MAGIC_V2, SHORT.pack(len(name)) + name


def _with_base(properties: bytes, sys_flag: int, number: int) -> bytes | None:
    """The properties of a record of a queue of batches, that gets the number `number`; None when it says of itself what
    cannot be: how many messages it holds, without being a batch, or a number that is none."""
    if not sys_flag & _INNER_BATCH:
        return properties if find_property(properties, INNER_NUM) is None else None
    if inner_count(properties) is None:
        return None
    return remove_property(properties, INNER_BASE) + INNER_BASE + b"\x01%d\x02" % number


def _refused(status: PutStatus) -> Appended:
    return Appended(status, -1, -1, 0, 0)


def _fields_fit(message: NewMessage) -> bool:
    """Whether the numbers and hosts of a message fit the widths of a record."""
    if len(message.born_host) not in (8, 20) or len(message.store_host) not in (8, 20):
        return False
    try:
        struct.pack(">iii", message.flag, message.sys_flag & ~_HOSTS_V6, message.reconsume_times)
        struct.pack(">qq", message.born_timestamp, message.prepared_transaction_offset)
    except struct.error:
        return False
    return True
