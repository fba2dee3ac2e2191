"""Transactions: a message that is delivered when a block of code succeeds, and never when it fails.

Touches  brokers through `Peers`.

The message is stored at the beginning of the block, unseen by consumers (a "half" message). The end of the block
tells the broker: commit or rollback. If that does not arrive, the broker asks any live producer of the group
(check-back): the producer's `check` looks the truth up where the program keeps it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Self

from aerobee.errors import BrokerRefused, BrokerUnreachable, ClientError, NoBroker, RequestTimeout, SendFailed
from aerobee.messages.message import Message, SendResult, SendStatus
from aerobee.net.backoff import pauses
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.producing.delivery import LATER_CODES
from aerobee_proto.codes import RequestCode, ResponseCode, SysFlag
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.properties import PRODUCER_GROUP
from aerobee_proto.records import StoredRecord
from aerobee_service.logs.event_log import event_logger

__all__ = ["Checker", "Transaction", "TransactionUnresolved", "Transactions", "TransactionsCheck"]

log = event_logger("aerobee.producer")

# SYSTEM_ERROR is how a broker says that it has no such half message, SLAVE_NOT_AVAILABLE that it is a slave by now.
CANNOT_NOW_CODES: Final = LATER_CODES - {ResponseCode.SYSTEM_ERROR} | {ResponseCode.SLAVE_NOT_AVAILABLE}
# A rollback that gets lost does no harm; what went wrong in the block is told at once.
ROLLBACK_TIMEOUT_S: Final = 0.3
CHECKS_MAX: Final = 256  # check-backs that are being answered; brokers ask again for the others

COMMIT: Final = SysFlag.TRANSACTION_COMMIT
ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK

TransactionsCheck = Callable[[Message], Awaitable[bool | None] | bool | None]
"""Says how a transaction ended: True committed, False rolled back, None not known yet (the broker asks again)."""


class TransactionUnresolved(ClientError):
    """The block succeeded, but the broker has not confirmed the commit: its check-back will decide."""

    def __init__(self, topic: str, transaction_id: str, reason: str) -> None:
        super().__init__(topic, transaction_id, reason)
        self.topic = topic
        self.transaction_id = transaction_id
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction_id} of topic {self.topic!r} is not confirmed: {self.reason};"
            " the broker will ask a producer of the group how it ended"
        )


class Transactions:
    """Tells brokers how transactions of one producer group ended."""

    def __init__(self, group: str, peers: Peers, routes: RouteTable, timeout_s: float) -> None:
        self._group = group
        self._peers = peers
        self._routes = routes
        self._timeout_s = timeout_s

    async def end(self, result: SendResult, verdict: int) -> None:
        """Commit or roll back a half message: a commit is tried for as long as a send. Raises what the last try raised.

        A broker that could not just now is asked again; one that refuses for good is not.
        """
        header = {
            "topic": result.queue.topic,
            "producerGroup": self._group,
            "tranStateTableOffset": str(result.queue_offset),
            "commitLogOffset": str(decode_offset_message_id(result.offset_message_id).physical_offset),
            "commitOrRollback": str(verdict),
            "fromTransactionCheck": "false",
            "msgId": result.message_id,
            "transactionId": result.message_id,
            "bname": result.queue.broker_name,
        }
        now = asyncio.get_running_loop().time
        deadline = now() + (self._timeout_s if verdict == COMMIT else ROLLBACK_TIMEOUT_S)
        waits = pauses()
        while True:
            try:
                addr = self._routes.master_addr(result.queue.topic, result.queue.broker_name)
                return await self._send_end(addr, header)
            except (RequestTimeout, BrokerUnreachable, NoBroker, BrokerRefused) as failed:
                if isinstance(failed, BrokerRefused) and failed.code not in CANNOT_NOW_CODES:
                    raise
                pause_s = next(waits)
                if now() + pause_s >= deadline:
                    raise
                log.debug("client.end_retried", transaction_id=result.message_id, reason=str(failed))
                await asyncio.sleep(pause_s)
                await self._routes.refresh(result.queue.topic)

    async def answer_check(
        self, asked: Mapping[str, str], record: StoredRecord, peer: str, verdict: int
    ) -> None:
        """The answer to a check-back: the header's own offsets, for the broker has stored the half message anew."""
        broker_name = asked.get("bname", "")
        header = {
            "topic": asked.get("topic", record.topic),
            "producerGroup": self._group,
            "tranStateTableOffset": asked["tranStateTableOffset"],
            "commitLogOffset": asked["commitLogOffset"],
            "commitOrRollback": str(verdict),
            "fromTransactionCheck": "true",
            "msgId": asked.get("msgId") or record.unique_key or record.offset_message_id,
            "transactionId": asked.get("transactionId", ""),
            "bname": broker_name,
        }
        await self._send_end(peer, {name: value for name, value in header.items() if value})

    async def _send_end(self, addr: str, header: dict[str, str]) -> None:
        what = f"end transaction {header['msgId']}"
        answer = await self._peers.request(what, addr, RequestCode.END_TRANSACTION, header)
        if answer.code:
            raise BrokerRefused(what, addr, answer.code, answer.remark)


class Transaction:
    """One transaction; use it as `async with`. Made by `Producer.transaction()`.

    Leaving the block commits, an exception rolls back and is raised again. `rollback()` inside the block decides
    without an exception.
    """

    def __init__(
        self,
        topic: str,
        send_half: Callable[[], Awaitable[SendResult]],
        transactions: Transactions,
        on_end: Callable[[SendResult, bool], None],
    ) -> None:
        self.topic = topic
        self._send_half = send_half
        self._transactions = transactions
        self._on_end = on_end
        self._result: SendResult | None = None
        self._rolled_back = False

    async def __aenter__(self) -> Self:
        result = await self._send_half()
        if result.status is not SendStatus.OK:
            await self._roll_back(result)
            raise SendFailed(
                self.topic,
                (),
                f"the broker keeps the half message without its full guarantee ({result.status.name})",
            )
        self._result = result
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        result = self.result
        if kind is not None or self._rolled_back:
            await self._roll_back(result)
            return
        try:
            await self._transactions.end(result, COMMIT)
        except ClientError as failed:
            raise TransactionUnresolved(self.topic, result.message_id, str(failed)) from failed
        self._on_end(result, True)

    @property
    def result(self) -> SendResult:
        """Where the half message is; its message_id is that of the message as consumers will see it."""
        assert self._result is not None, "only inside the block"
        return self._result

    @property
    def transaction_id(self) -> str:
        """What to store beside the program's own data, so that a check-back can look it up."""
        return self.result.message_id

    def rollback(self) -> None:
        """Roll back at the end of the block, whatever happens."""
        self._rolled_back = True

    async def _roll_back(self, result: SendResult) -> None:
        """A rollback that gets lost does no harm: the check-back finds that nothing was committed."""
        try:
            await self._transactions.end(result, ROLLBACK)
        except ClientError as failed:
            log.warning("client.rollback_lost", transaction_id=result.message_id, reason=str(failed))
        else:
            self._on_end(result, False)


class Checker:
    """Answers check-backs with a program's own `check`."""

    def __init__(
        self, check: TransactionsCheck, transactions: Transactions, broker_name_of: Callable[[str], str | None],
        body_size_max: int,
    ) -> None:  # fmt: skip
        self._check = check
        self._transactions = transactions
        self._broker_name_of = broker_name_of
        self._body_size_max = body_size_max
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, record: StoredRecord, asked: Mapping[str, str], peer: str) -> None:
        """Answer one check-back in a task of its own."""
        if len(self._tasks) >= CHECKS_MAX:
            log.warning(
                "client.check_unanswered",
                group=record.property_map.get(PRODUCER_GROUP),
                message_id=record.unique_key,
            )
            return
        task = asyncio.get_running_loop().create_task(
            self._answer(record, asked, peer), name=f"check {record.unique_key}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Answer no more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, record: StoredRecord, asked: Mapping[str, str], peer: str) -> None:
        broker_name = asked.get("bname") or self._broker_name_of(peer) or peer
        try:
            verdict = await self._ask(Message(record, broker_name, self._body_size_max))
            if verdict is not None:
                await self._transactions.answer_check(asked, record, peer, COMMIT if verdict else ROLLBACK)
        except ClientError as failed:
            log.warning("client.check_failed", transaction_id=record.unique_key, reason=str(failed))
        except Exception:
            log.exception("client.check_failed", transaction_id=record.unique_key)

    async def _ask(self, message: Message) -> bool | None:
        if inspect.iscoroutinefunction(self._check):
            verdict: bool | None = await self._check(message)
            return verdict
        found = await asyncio.to_thread(self._check, message)
        if inspect.isawaitable(found):
            return await found
        return found
