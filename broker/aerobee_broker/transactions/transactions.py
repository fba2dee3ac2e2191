"""Transactions: from half message to committed or rolled back, and what is remembered of it.

Touches  the store through `MessageWriter` and reads; the offsets of the group CID_RMQ_SYS_TRANS.

Commit     The message goes to its own topic, with the sysFlag of a committed one and the half's place in
           preparedTransactionOffset. When that is as durable as a send's answer promises, the transaction is over:
           a mark for it is collected, and only then its producer is answered.
Roll back  A mark is collected.
Marks      are written to the op queue a few seconds later, many in a record, and at an orderly stop. A crash before
           that leaves the half open: its producers are asked again. What was committed is then found by its unique
           key (the index has it) and is not stored a second time.

Invariants
- Of one transaction at most one final message is appended by one run of the broker.
- The saved progress passes a half only after its end is decided and durable, or a durable copy lies behind it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.placement import PlacementRules
from aerobee_broker.messages.refusals import NO_LOG_FILE, put_refusal, store_refusal
from aerobee_broker.reading.cold_reads import ColdReads
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.transactions.half_messages import (
    MARK_TAG,
    HalfMessage,
    encode_marks,
    half_in,
    half_of,
    read_half,
    read_marks,
)
from aerobee_broker.transactions.transaction_table import SETTLED_MAX, TransactionTable
from aerobee_proto import names, properties
from aerobee_proto.codes import ResponseCode, SysFlag
from aerobee_proto.errors import RequestError
from aerobee_proto.records import StoredRecord, decode_record, iterate_records
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import StoreError
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage, PutStatus

__all__ = ["Done", "TransactionStatistics", "Transactions"]

log = structlog.get_logger()

READ_COUNT: Final = 32
READ_SIZE: Final = 1 << 20  # bytes
OUTCOMES_MAX: Final = 10_000  # ends of which it is known which way they went
MARKS_MAX: Final = 20_000  # waiting to be written; then nothing is ended
QUERY_COUNT: Final = 32
CLOSE_TIMEOUT_S: Final = 1.0
FOREVER_MS: Final = 2**63 - 1
COPY_PROPERTY: Final = f"{properties.TRAN_PREPARED_QUEUE_OFFSET}\x01".encode()

Done = Callable[[RequestError | None], None]
"""Told once when a commit is durable (None) or failed."""


@dataclass(slots=True, frozen=True)
class TransactionStatistics:
    """The transactions of a broker: open now, the others counted since it started."""

    open_count: int
    committed: dict[str, int]  # by the topic of their messages
    rolled_back: dict[str, int]
    asked: int  # questions to producers
    given_up: int


class Transactions:
    """All transactions of this broker. All calls from the event loop."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        store: MessageStore,
        writer: MessageWriter,
        placement: PlacementRules,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        on_stored: Callable[[str, int, int], None],
        cold: ColdReads,
    ) -> None:
        """`on_stored` counts what a commit has stored: the topic, messages, bytes."""
        self._live = live
        self._store = store
        self._writer = writer
        self._placement = placement
        self._offsets = offsets
        self._topics = topics
        self._on_stored = on_stored
        self.cold = cold  # for work that meets NotInMemory
        self.table = TransactionTable()
        # Whether what is open is still to be learned, while messages are taken already; load() ends that.
        self.is_unknown = False
        # Set by load(): messages before it were stored by an earlier run, whose last marks may be missing.
        self._known_from = 0
        # Appended, not known to be durable: first half offset -> the half and who waits.
        self._committing: dict[int, tuple[HalfMessage, list[Done]]] = {}
        self._finisher: asyncio.Task[None] | None = None
        self._outcomes: dict[int, bool] = {}  # first half offset -> whether it was committed; oldest first
        self.marks: list[list[int]] = []
        self._marks_size = 0
        self._marks_timer: asyncio.TimerHandle | None = None
        # Set while copies are not known to be durable: the progress passes what they stand for.
        self.progress_is_held = False
        # Since start, for metrics; by real topic where a dict.
        self._committed: dict[str, int] = {}
        self._rolled_back: dict[str, int] = {}
        self._asked = 0
        self._given_up = 0

    # --- what operators see -----------------------------------------------------------------------------------

    def statistics(self) -> TransactionStatistics:
        """The transactions of this run, as they are now."""
        return TransactionStatistics(
            open_count=self.open_count,
            committed=dict(self._committed),
            rolled_back=dict(self._rolled_back),
            asked=self._asked,
            given_up=self._given_up,
        )

    def count_asked(self) -> None:
        """A producer was asked how its transaction ends."""
        self._asked += 1

    def count_given_up(self) -> None:
        """A half message was asked about for the last time."""
        self._given_up += 1

    # --- start and stop ---------------------------------------------------------------------------------------

    def load(self) -> None:
        """Learn from both queues what is open. Once; transactions neither begin nor end before."""
        half_end = self._store.reading.max_offset(names.HALF_TOPIC, 0)
        table = TransactionTable(self._saved(names.HALF_TOPIC), self._saved(names.OP_HALF_TOPIC))
        for record in self._records(names.OP_HALF_TOPIC, table.op_progress):
            table.marks_read(record.queue_offset, read_marks(record), half_end)
        for record in self._records(names.HALF_TOPIC, table.progress, containing=COPY_PROPERTY):
            half = half_in(record, names.HALF_TOPIC)
            if half is not None and half.first_offset != half.offset:
                table.copy_read(half.first_offset, half.offset)
        table.loaded()
        self.table = table
        self._known_from = self._store.end_offset
        self.is_unknown = False
        if self.open_count:
            log.info("transactions.loaded", open_count=self.open_count, half_offset=table.progress)

    def _saved(self, topic: str) -> int:
        """Where the group stands in a queue, within what the queue has."""
        low, high = self._store.reading.min_offset(topic, 0), self._store.reading.max_offset(topic, 0)
        saved = self._offsets.get(names.TRANSACTION_GROUP, topic, 0)
        return low if saved is None else min(max(saved, low), high)

    def _records(self, topic: str, offset: int, *, containing: bytes = b"") -> Iterator[StoredRecord]:
        """The records of a queue from `offset` on; only those of reads in which the bytes occur."""
        while True:
            found = self._store.reading.get_message(
                names.TRANSACTION_GROUP, topic, 0, offset, READ_COUNT, READ_SIZE, None
            )
            if found.status is GetStatus.FOUND:
                data = b"".join(found.body)
                if containing in data:
                    yield from iterate_records(data, check_crc=False)
            if found.next_offset <= offset:
                return
            offset = found.next_offset

    async def close(self) -> None:
        """Finish what is durable and write the marks; commits that are not durable are not waited for."""
        if self._marks_timer is not None:
            self._marks_timer.cancel()
        if self._finisher is not None and not self._finisher.done():
            await asyncio.wait({self._finisher}, timeout=CLOSE_TIMEOUT_S)
            self._finisher.cancel()
            await asyncio.gather(self._finisher, return_exceptions=True)
        self.write_marks()

    # --- beginning --------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Half messages without an end."""
        return self.table.open_count(self._store.reading.next_offset(names.HALF_TOPIC, 0))

    def to_half(self, message: NewMessage, mapping: Mapping[str, str]) -> NewMessage | None:
        """The placement rule: messages that open a transaction become half messages."""
        half = half_of(message, mapping)
        if half is None:
            return None
        config = self._live.value
        if config.reject_transaction_message:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"broker {config.broker_name} takes no transaction messages (rejectTransactionMessage)",
            )
        if self.is_unknown:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker has just become the master, and does not know yet which transactions are open; try again",
            )
        if self.open_count >= config.max_open_transactions:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{config.max_open_transactions} transactions are open already (maxOpenTransactions)",
            )
        return half

    def half_at(self, physical_offset: int) -> HalfMessage | None:
        """The half message that begins there; None when there is none. NotInMemory: it has to be brought."""
        data = self._store.asking.message_at(physical_offset) if physical_offset >= 0 else None
        return None if data is None else read_half(data)

    # --- ending -----------------------------------------------------------------------------------------------

    def commit(self, half: HalfMessage, done: Done) -> None:
        """Store the message in its topic. RequestError: refused now, `done` is not told.

        Asked again, for one that was committed: nothing is stored, and it is well.
        """
        first = half.first_offset
        under_way = self._committing.get(first)
        if under_way is not None:
            under_way[1].append(done)
            return
        if not self.table.is_open(half.offset, first):
            self._check_outcome(half, committed=True)
            done(None)
            return
        self._check_room_for_marks()
        if not self.is_stored(half):
            self._append_final(half)
            failpoints.hit("transactions.commit_appended")
        self._committing[first] = (half, [done])
        if self._finisher is None or self._finisher.done():
            self._finisher = asyncio.create_task(self._finish(), name="transaction commits")

    def roll_back(self, half: HalfMessage) -> None:
        """Forget the message. RequestError when it is committed, or that cannot be excluded."""
        if half.first_offset in self._committing:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the transaction is being committed")
        if not self.table.is_open(half.offset, half.first_offset):
            self._check_outcome(half, committed=False)
            return
        self._check_room_for_marks()
        if self.is_stored(half):
            self.over(half, committed=True)
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the transaction was committed already")
        self.over(half, committed=False)
        _count(self._rolled_back, half.real_topic)

    def is_committing(self, half: HalfMessage) -> bool:
        """Whether its final message is on its way to the disk."""
        return half.first_offset in self._committing

    def is_stored(self, half: HalfMessage) -> bool:
        """Whether an earlier run stored the final message and could not say so any more."""
        key = half.record.unique_key
        if half.record.physical_offset >= self._known_from or key is None:
            return False
        for topic in (half.real_topic, names.SCHEDULE_TOPIC, names.TIMER_TOPIC):
            for data in self._store.keys.query(topic, key, QUERY_COUNT, 0, FOREVER_MS).body:
                if _is_final(decode_record(data, check_crc=False), half):
                    return True
        return False

    def over(self, half: HalfMessage, *, committed: bool) -> None:
        """The transaction has ended for good: remember it and collect a mark."""
        offsets = self.table.end(half.offset, half.first_offset)
        self._outcomes[half.first_offset] = committed
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        self.marks.append(offsets)
        self._marks_size += sum([len(str(offset)) + 1 for offset in offsets])
        config = self._live.value
        if self._marks_size >= config.transaction_op_msg_max_size:
            self.write_marks()
        elif self._marks_timer is None:
            self._write_marks_later()

    def _check_outcome(self, half: HalfMessage, *, committed: bool) -> None:
        """For an end that is told again. RequestError unless it is known to be the same as before."""
        known = self._outcomes.get(half.first_offset)
        if known is None and self.is_stored(half):
            known = True
        if known is not committed:
            how = {True: "was committed", False: "was rolled back", None: "has ended"}[known]
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the transaction {how} already")

    def _append_final(self, half: HalfMessage) -> None:
        """RequestError when the message cannot be stored; the transaction stays open then."""
        topic = half.real_topic
        if topic not in self._topics and not self._store.topics.is_dead(topic, half.record.physical_offset):
            # It was made, and nobody has deleted it: a slave that became master may not have heard of it.
            self._topics.restore({topic: half.real_queue_id + 1})
        self._topics.require(topic)
        own = half.final_properties()
        record = half.record
        message = self._writer.copy(
            record,
            half.real_topic,
            half.real_queue_id,
            own,
            sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
            prepared_transaction_offset=record.physical_offset,
        )
        placed = self._placement.place(message, own)
        try:
            (done,) = self._writer.append([placed])
        except StoreError as refused:
            raise store_refusal(refused) from refused
        if done.status is not PutStatus.PUT_OK:
            raise put_refusal(placed, done)
        self._on_stored(placed.topic, 1, done.size)

    async def _finish(self) -> None:
        """Wait for the disk, once for all commits that came until then, and end them."""
        while self._committing:
            ending = list(self._committing.items())
            failed: RequestError | None = None
            try:
                await self._writer.durable()
            except StoreError as lost:
                failed = store_refusal(lost)
            else:
                failpoints.hit("transactions.commit_durable")
            for first, (half, waiting) in ending:
                del self._committing[first]
                if failed is None:
                    self.over(half, committed=True)
                    _count(self._committed, half.real_topic)
                for done in waiting:
                    done(failed)

    # --- marks ------------------------------------------------------------------------------------------------

    def _check_room_for_marks(self) -> None:
        if len(self.marks) >= MARKS_MAX and not self.write_marks():
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"the ends of {MARKS_MAX} transactions wait to be stored; try again"
            )

    def write_marks_in_time(self) -> None:
        """Let the wait that is under way, if there is one, be as long as the settings say now."""
        if self._marks_timer is not None:
            self._marks_timer.cancel()
            self._write_marks_later()

    def _write_marks_later(self) -> None:
        delay_s = self._live.value.transaction_op_batch_interval / 1000
        self._marks_timer = asyncio.get_running_loop().call_later(delay_s, self._on_marks_timer)

    def _on_marks_timer(self) -> None:
        self._marks_timer = None
        if not self.write_marks():
            self._write_marks_later()

    def write_marks(self) -> bool:
        """Append the collected marks and save the progress; False when they have to wait."""
        refused = self._append_marks() if self.marks else None
        if refused is None:
            self.save_progress()
        elif not self._store.has_failed:  # then it is told already
            log.warning("transactions.marks_waiting", reason=refused, count=len(self.marks))
        return refused is None

    def _append_marks(self) -> str | None:
        """Append the collected marks; why that was not possible, or None."""
        bodies = list(encode_marks(self.marks, self._live.value.transaction_op_msg_max_size))
        own = {properties.TAGS: MARK_TAG}
        messages = [self._writer.new(names.OP_HALF_TOPIC, 0, body, own) for body, _ in bodies]
        try:
            appended = self._writer.append(messages)
        except StoreError as refused:
            return str(refused)
        if any(done.status is not PutStatus.PUT_OK for done in appended):
            return NO_LOG_FILE
        failpoints.hit("transactions.marks_appended")
        for (_, offsets), done in zip(bodies, appended, strict=True):
            self.table.marks_written(done.queue_offset, offsets)
        self.marks.clear()
        self._marks_size = 0
        return None

    def save_progress(self) -> None:
        """Move the group's offsets over what is over; they reach the disk with those of all groups."""
        if self.progress_is_held:
            return
        self.table.settle(SETTLED_MAX)
        for topic, offset in (
            (names.HALF_TOPIC, self.table.progress),
            (names.OP_HALF_TOPIC, self.table.op_progress),
        ):
            if (self._offsets.get(names.TRANSACTION_GROUP, topic, 0) or 0) != offset:
                self._offsets.commit(names.TRANSACTION_GROUP, topic, 0, offset)


def _is_final(record: StoredRecord, half: HalfMessage) -> bool:
    """Whether a record is the committed message of this half; both have the same unique key."""
    return (
        record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
        and record.property_map.get(properties.PRODUCER_GROUP) == half.producer_group
    )


def _count(counters: dict[str, int], topic: str) -> None:
    counters[topic] = counters.get(topic, 0) + 1
