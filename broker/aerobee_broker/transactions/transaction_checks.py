"""Check-back: half messages that stay open are asked about, and given up when nobody ever answers.

Touches  the half queue, producers' connections.

A round every `transactionCheckInterval` walks the half queue from the oldest open transaction on. One that is due
is appended again, so that the queue moves on, and one of its producers is asked about the copy (request 39); the
answer is an END_TRANSACTION. While no producer of the group is connected nothing is counted and nothing copied:
the message waits where it is.

Invariants
- Nobody is asked about a copy that is not durable yet.
- The walk ends at the first message that is too young, and never passes the end that the queue had when it began.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

import structlog

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.stored_properties import join_stored
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_broker.transactions.half_messages import HalfMessage, half_in
from aerobee_broker.transactions.transactions import Transactions
from aerobee_proto import names
from aerobee_proto.codes import RequestCode
from aerobee_proto.headers import CheckTransactionHeader
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.records import StoredRecord, decode_host, decode_records, encode_record
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.peer import Peer
from aerobee_service.turns.slices import in_slices
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Appended, NewMessage, PutStatus

__all__ = ["RoundReport", "TransactionChecks", "Verdict", "judge"]

log = structlog.get_logger()

CHUNK_COUNT: Final = 32
CHUNK_SIZE: Final = 1 << 20  # bytes
OVER_COUNT: Final = (
    20_000  # messages that are over, which one turn of the event loop may pass; one takes 0.2 us
)
HELD_BACK_MAX: Final = 100_000  # ended ones behind a message that waits; then it is copied behind them
HOUR_MS: Final = 3_600_000


class Verdict(Enum):
    """What a round does with an open half message."""

    STOP = "too young, and so is what follows"
    LEAVE = "not now"
    ASK = "copy it and ask a producer"
    POSTPONE = "copy it and ask nobody"
    GIVE_UP = "move it to TRANS_CHECK_MAX_TIME_TOPIC"


@dataclass(slots=True, frozen=True)
class Limits:
    """Settings of one round, in ms but for `check_max`."""

    timeout_ms: int
    check_max: int
    reserved_ms: int


@dataclass(slots=True)
class RoundReport:
    """What a round did, in messages."""

    asked: int = 0
    postponed: int = 0
    offline: int = 0  # left, as no producer of their group is connected
    given_up: int = 0
    settled: int = 0  # found committed by an earlier run


@dataclass(slots=True)
class _Chunk:
    """A stretch of the half queue and what is to be done with its open messages."""

    next_offset: int
    is_last: bool = False
    verdicts: list[tuple[HalfMessage, Verdict]] = field(default_factory=list)


def judge(half: HalfMessage, limits: Limits, *, now_ms: int, is_online: bool) -> Verdict:
    """What to do with an open half message. A birth in the future (the clock was set back) counts as due."""
    age_ms = now_ms - half.record.born_timestamp
    if half.checks >= limits.check_max or age_ms > limits.reserved_ms:
        return Verdict.GIVE_UP
    immunity_ms, chosen = half.immunity_ms(limits.timeout_ms)
    if 0 <= age_ms <= immunity_ms:
        return Verdict.POSTPONE if chosen else Verdict.STOP
    return Verdict.ASK if is_online else Verdict.LEAVE


class TransactionChecks:
    """The rounds. All calls from the event loop, one round at a time."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        identity: BrokerIdentity,
        store: MessageStore,
        topics: TopicTable,
        next_producer: Callable[[str], Peer | None],
        writer: MessageWriter,
        transactions: Transactions,
    ) -> None:
        """`next_producer` gives a producer of a group that reads what it is sent, another one each time."""
        self._live = live
        self._clock = clock
        self._identity = identity
        self._topics = topics
        self._next_producer = next_producer
        self._transactions = transactions
        self._store = store
        self._writer = writer

    async def run(self) -> None:
        """A round every `transactionCheckInterval`, until cancelled."""
        while True:
            await self._live.pause(lambda config: config.transaction_check_interval)
            await self.run_round()

    async def run_round(self) -> RoundReport:
        """Walk the half queue once. Trouble with the store ends the round; the next one goes on."""
        config = self._live.value
        limits = Limits(
            config.transaction_time_out, config.transaction_check_max, config.file_reserved_time * HOUR_MS
        )
        report = RoundReport()
        table = self._transactions.table
        await in_slices(table.skipping_to(self._store.reading.min_offset(names.HALF_TOPIC, 0)))
        end, at = self._store.reading.max_offset(names.HALF_TOPIC, 0), table.progress
        try:
            while at < end:
                chunk = await self._transactions.cold.present(partial(self._chunk, at, end, limits, report))
                await self._carry_out(chunk, report)
                if chunk.is_last:
                    break
                at = chunk.next_offset
        except StoreError as refused:
            log.warning("transactions.check_stopped", reason=str(refused), half_offset=at)
        self._transactions.save_progress()
        self._log_round(report)
        return report

    def _log_round(self, report: RoundReport) -> None:
        if report.given_up:
            log.warning("transactions.given_up", count=report.given_up, topic=names.CHECK_MAX_TIME_TOPIC)
        if report != RoundReport():
            log.info(
                "transactions.checked",
                asked=report.asked,
                postponed=report.postponed,
                offline=report.offline,
                settled=report.settled,
                open_count=self._transactions.open_count,
            )

    # --- deciding ---------------------------------------------------------------------------------------------

    def _chunk(self, at: int, end: int, limits: Limits, report: RoundReport) -> _Chunk:
        """Read on from `at` and judge what is open there. NotInMemory: nothing was judged."""
        table = self._transactions.table
        stop = min(end, at + OVER_COUNT)
        while at < stop and table.is_over(at):
            at += 1
        if at >= end:
            return _Chunk(end, is_last=True)
        if at == stop:
            return _Chunk(at)
        found = self._store.asking.get_message(
            names.TRANSACTION_GROUP, names.HALF_TOPIC, 0, at, CHUNK_COUNT, CHUNK_SIZE, None
        )
        records = {record.queue_offset: record for record in decode_records(b"".join(found.body))}
        chunk = _Chunk(min(found.next_offset, end), is_last=found.next_offset <= at)
        now_ms = self._clock()
        for offset in range(at, chunk.next_offset):
            if table.is_over(offset):
                continue
            verdict = self._judge_at(offset, records.get(offset), limits, now_ms, chunk, report)
            if verdict is Verdict.STOP:
                chunk.is_last = True
                break
        return chunk

    def _judge_at(
        self,
        offset: int,
        record: StoredRecord | None,
        limits: Limits,
        now_ms: int,
        chunk: _Chunk,
        report: RoundReport,
    ) -> Verdict:
        transactions = self._transactions
        half = None if record is None else half_in(record, names.HALF_TOPIC)
        if half is None:
            transactions.table.gone(offset)
            return Verdict.LEAVE
        if transactions.is_committing(half):
            return Verdict.LEAVE
        is_online = self._next_producer(half.producer_group) is not None
        verdict = judge(half, limits, now_ms=now_ms, is_online=is_online)
        if verdict is Verdict.LEAVE:
            report.offline += 1
            if transactions.table.held_back_count > HELD_BACK_MAX:
                verdict = Verdict.POSTPONE
        if verdict not in (Verdict.STOP, Verdict.LEAVE) and transactions.is_stored(half):
            transactions.over(half, committed=True)
            report.settled += 1
            return Verdict.LEAVE
        if verdict not in (Verdict.STOP, Verdict.LEAVE):
            chunk.verdicts.append((half, verdict))
        return verdict

    # --- acting -----------------------------------------------------------------------------------------------

    async def _carry_out(self, chunk: _Chunk, report: RoundReport) -> None:
        """Append the copies, wait until they are durable, then ask."""
        if not chunk.verdicts:
            await asyncio.sleep(0)  # others have their turn
            return
        messages = [self._message(half, verdict) for half, verdict in chunk.verdicts]
        appended = self._writer.append(messages)
        failpoints.hit("transactions.copies_appended")
        questions = []
        for (half, verdict), message, done in zip(chunk.verdicts, messages, appended, strict=True):
            self._note(half, verdict, done, report)
            if verdict is Verdict.ASK:
                questions.append(self._question(half, message, done))
        self._transactions.progress_is_held = True  # for good, if the disk fails now
        await self._writer.durable()
        self._transactions.progress_is_held = False
        failpoints.hit("transactions.copies_durable")
        self._transactions.save_progress()
        for group, header, body in questions:
            self._ask(group, header, body, report)

    def _message(self, half: HalfMessage, verdict: Verdict) -> NewMessage:
        """What is appended: a copy for the half queue, or for the topic of those that are given up."""
        if verdict is Verdict.GIVE_UP:
            self._topics.for_group(names.CHECK_MAX_TIME_TOPIC, queue_count=1)
            return self._writer.copy(half.record, names.CHECK_MAX_TIME_TOPIC, 0, half.final_properties())
        checks = half.checks + (verdict is Verdict.ASK)
        return self._writer.copy(half.record, names.HALF_TOPIC, 0, half.copy_properties(checks=checks))

    def _note(self, half: HalfMessage, verdict: Verdict, done: Appended, report: RoundReport) -> None:
        """Remember what was appended. What was refused (too many properties with ours) stays as it is."""
        if done.status is not PutStatus.PUT_OK:
            return
        if verdict is Verdict.GIVE_UP:
            self._transactions.over(half, committed=False)
            self._transactions.count_given_up()
            report.given_up += 1
            return
        self._transactions.table.copied(half.offset, half.first_offset, done.queue_offset)
        if verdict is Verdict.POSTPONE:
            report.postponed += 1

    def _question(
        self, half: HalfMessage, message: NewMessage, done: Appended
    ) -> tuple[str, CheckTransactionHeader, bytes]:
        """Request 39 about the copy, or about the message itself where no copy could be stored."""
        record = half.record
        is_copied = done.status is PutStatus.PUT_OK
        offset = done.queue_offset if is_copied else half.offset
        place = done.physical_offset if is_copied else record.physical_offset
        host = decode_host(message.store_host)
        key = record.unique_key
        header = CheckTransactionHeader(
            topic=names.HALF_TOPIC,
            tran_state_table_offset=offset,
            commit_log_offset=place,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=encode_offset_message_id(*host, place),
            bname=self._identity.broker_name,
        )
        body = encode_record(
            topic=half.real_topic,
            queue_id=half.real_queue_id,
            queue_offset=offset,
            physical_offset=place,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=done.store_timestamp if is_copied else record.store_timestamp,
            store_host=host,
            body=bytes(record.body),
            properties=join_stored(
                half.copy_properties(checks=half.checks + 1) if is_copied else record.property_map
            ),
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
        )
        return half.producer_group, header, body

    def _ask(self, group: str, header: CheckTransactionHeader, body: bytes, report: RoundReport) -> None:
        """One that left meanwhile is asked in the next round."""
        connection = self._next_producer(group)
        if connection is None:
            return
        try:
            connection.send_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)
        except RemotingError as failed:
            log.debug("transactions.not_asked", group=group, peer=connection.peer, reason=str(failed))
            return
        failpoints.hit("transactions.asked")
        self._transactions.count_asked()
        report.asked += 1
