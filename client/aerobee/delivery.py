"""Delivery: one batch to a broker, tried until it is stored or cannot be.

Touches  brokers through `Peers`, time through the event loop's clock.

Tries    Each on another broker where there is one, at most `attempts_max` inside the batch's deadline. While
         other brokers are left a try gets its share of the time that remains, else all of it. A try that timed
         out may have been stored: the message may be there twice, with one and the same message_id.
Refusals Codes that another broker may not give are tried again; the others are raised at once. A batch that is
         refused as illegal is sent again message by message, so that only the guilty ones fail.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from aerobee.config import ProducerConfig
from aerobee.errors import (
    Attempt,
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    InvalidMessage,
    NoBroker,
    RequestTimeout,
    SendFailed,
    code_name,
)
from aerobee.message import SendResult, SendStatus
from aerobee.outgoing import Outgoing
from aerobee.peers import Peers
from aerobee.queue_choice import LowestLatency, QueueChooser, RoundRobin
from aerobee.route_table import RouteTable
from aerobee.routes import TEMPLATE_TOPIC, MessageQueue, Route
from aerobee_proto.batch import encode_batch_entry
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.javahash import java_hash
from aerobee_remoting.lazy_log import lazy_logger

__all__ = ["Delivery", "QueueChoice", "pick_queue"]

log = lazy_logger()

QueueChoice = MessageQueue | int | None

# Another broker may do better; everything else is the caller's to solve.
RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
STATUS_BY_CODE: Final = {status.value: status for status in SendStatus}
MESSAGE_ILLEGAL: Final = int(ResponseCode.MESSAGE_ILLEGAL)
# Pause before the same broker is tried again; another broker is tried at once.
RETRY_PAUSE_S: Final = 0.05
TEMPLATE_QUEUES: Final = "4"


class Delivery:
    """Sends batches for one producer."""

    def __init__(
        self,
        group: str,
        config: ProducerConfig,
        *,
        peers: Peers,
        routes: RouteTable,
        clock_ms: Callable[[], int],
        rotation_start: int,
    ) -> None:
        self._group = group
        self._config = config
        self._peers = peers
        self._routes = routes
        self._clock_ms = clock_ms
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._chooser: QueueChooser = (
            LowestLatency(rotation_start) if config.queue_choice == "latency" else RoundRobin(rotation_start)
        )

    async def choose(self, topic: str, pick: MessageQueue | int | str | None) -> MessageQueue:
        """The queue that `pick` means, or the next one in turn. NoRoute or NoBroker when there is none."""
        route = await self._routes.for_publish(topic)
        if pick is not None:
            return pick_queue(route, pick)
        return self._chooser.choose(route.publish, (), self._now())

    async def send_oneway(self, queue: MessageQueue, item: Outgoing) -> None:
        """One try that nobody answers."""
        addr = self._routes.master_addr(queue.topic, queue.broker_name)
        header = self._header(queue, [item])
        await self._peers.oneway(
            f"send to topic {queue.topic!r}", addr, RequestCode.SEND_MESSAGE_V2, header, item.body
        )

    async def send(
        self, topic: str, items: list[Outgoing], bound: MessageQueue | None, deadline: float
    ) -> None:
        """Try until stored and end every future with its result. Raises ClientError when nothing is stored.

        `bound` is the one queue that may be used; without it each try takes the next one.
        """
        try:
            queue, answer = await self._try_brokers(topic, items, _body_of(items), bound, deadline)
        except BrokerRefused as refused:
            if refused.code != MESSAGE_ILLEGAL or len(items) == 1:
                raise
            for item in items:
                await self._send_alone(topic, item, bound, deadline)
            return
        self._store_results(items, queue, answer)

    async def send_encoded(
        self, topic: str, body: bytes, bound: MessageQueue | None, deadline: float
    ) -> tuple[MessageQueue, int]:
        """Try until a batch body is stored; its queue and the logical offset of its first message. ClientError."""
        queue, answer = await self._try_brokers(topic, [], body, bound, deadline)
        queue_id = int(answer.ext.get("queueId", queue.queue_id))
        self._look_for_new_topic(topic)
        return queue._replace(queue_id=queue_id), int(answer.ext.get("queueOffset", "-1"))

    async def _send_alone(
        self, topic: str, item: Outgoing, bound: MessageQueue | None, deadline: float
    ) -> None:
        try:
            await self.send(topic, [item], bound, deadline)
        except ClientError as failed:
            if not item.future.done():
                item.future.set_exception(failed)

    async def _try_brokers(
        self, topic: str, items: list[Outgoing], body: bytes, bound: MessageQueue | None, deadline: float
    ) -> tuple[MessageQueue, Command]:
        """One try after the other: the queue written and the broker's answer. Without items it is a batch body."""
        attempts: list[Attempt] = []
        avoid: set[str] = set()
        while len(attempts) < self._config.attempts_max:
            route = self._routes.cached_publish(topic) or await self._routes.for_publish(topic)
            started = self._now()
            if deadline <= started:
                break
            queue = bound or self._chooser.choose(route.publish, avoid, started)
            avoid.add(queue.broker_name)
            others = bound is None and any(other.broker_name not in avoid for other in route.publish)
            shares = self._config.attempts_max - len(attempts) if others else 1
            outcome = await self._try_once(queue, items, body, (deadline - started) / shares)
            took_s = self._now() - started
            if isinstance(outcome, Command) and outcome.code in STATUS_BY_CODE:
                self._chooser.record(queue.broker_name, took_s * 1000, started + took_s)
                return queue, outcome
            attempts.append(self._failed_attempt(queue, outcome, took_s))
            if not others and len(attempts) < self._config.attempts_max:
                await asyncio.sleep(min(RETRY_PAUSE_S * len(attempts), max(0.0, deadline - self._now())))
        raise SendFailed(topic, attempts, self._why_given_up(attempts))

    async def _try_once(
        self, queue: MessageQueue, items: list[Outgoing], body: bytes, limit_s: float
    ) -> Command | ClientError:
        """One request: the broker's answer, or why there is none."""
        what = f"send to topic {queue.topic!r}"
        code = RequestCode.SEND_MESSAGE_V2 if len(items) == 1 else RequestCode.SEND_BATCH_MESSAGE
        try:
            addr = self._routes.master_addr(queue.topic, queue.broker_name)
            return await self._peers.request(what, addr, code, self._header(queue, items), body, limit_s)
        except (RequestTimeout, BrokerUnreachable, NoBroker) as failed:
            return failed

    def _failed_attempt(self, queue: MessageQueue, outcome: Command | ClientError, took_s: float) -> Attempt:
        """Remember a failed try; BrokerRefused when no other broker could do better."""
        addr = self._addr_or_unknown(queue)
        if isinstance(outcome, Command):
            if outcome.code not in RETRYABLE_CODES:
                raise BrokerRefused(f"send to topic {queue.topic!r}", addr, outcome.code, outcome.remark)
            text = f"code {outcome.code} {code_name(outcome.code)}: {outcome.remark or 'no remark'}"
            stale = outcome.code == ResponseCode.TOPIC_NOT_EXIST
        else:
            text = str(outcome)
            stale = not isinstance(outcome, RequestTimeout)
        self._chooser.record_error(
            queue.broker_name, self._now(), reachable=isinstance(outcome, Command | RequestTimeout)
        )
        if stale:
            self._routes.refresh_soon(queue.topic)
        log.debug("client.send_retried", queue=str(queue), addr=addr, outcome=text)
        return Attempt(queue.broker_name, addr, text, round(took_s * 1000))

    def _addr_or_unknown(self, queue: MessageQueue) -> str:
        try:
            return self._routes.master_addr(queue.topic, queue.broker_name)
        except NoBroker:
            return "an unknown address"

    def _why_given_up(self, attempts: list[Attempt]) -> str:
        if len(attempts) >= self._config.attempts_max:
            return f"{len(attempts)} attempts failed"
        if not attempts:
            return "its time was over before it could be tried: the brokers are slower than the calls"
        return f"time was over after {len(attempts)} attempts"

    def _header(self, queue: MessageQueue, items: list[Outgoing]) -> dict[str, str]:
        """Header of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE: `SendMessageV2Header` written out, it is hot."""
        single = items[0] if len(items) == 1 else None
        return {
            "a": self._group,
            "b": queue.topic,
            "c": TEMPLATE_TOPIC,
            "d": TEMPLATE_QUEUES,
            "e": str(queue.queue_id),
            "f": str(single.sys_flag) if single else "0",
            "g": str(self._clock_ms()),
            "h": str(single.flag) if single else "0",
            "i": single.properties if single else "",
            "j": "0",
            "k": "false",
            "m": "false" if single else "true",
            "n": queue.broker_name,
        }

    def _store_results(self, items: list[Outgoing], queue: MessageQueue, answer: Command) -> None:
        ext = answer.ext
        ids = ext.get("msgId", "").split(",")
        first = int(ext.get("queueOffset", "-1"))
        queue_id = int(ext.get("queueId", queue.queue_id))
        if queue_id != queue.queue_id:
            queue = queue._replace(queue_id=queue_id)
        status = STATUS_BY_CODE[answer.code]
        handle = ext.get("recallHandle")
        last_id = len(ids) - 1
        for index, item in enumerate(items):
            if not item.future.done():
                offset_id = ids[index if index < last_id else last_id]
                item.future.set_result(
                    SendResult(item.message_id, queue, first + index, offset_id, status, handle)
                )
        self._look_for_new_topic(queue.topic)

    def _look_for_new_topic(self, topic: str) -> None:
        """The first message to a topic may have made it: then its own route is there soon."""
        route = self._routes.cached(topic)
        if route is not None and route.from_template:
            self._routes.refresh_soon(topic)


def _body_of(items: list[Outgoing]) -> bytes:
    if len(items) == 1:
        return items[0].body
    return b"".join([encode_batch_entry(item.body, item.properties.encode(), item.flag) for item in items])


def pick_queue(route: Route, pick: MessageQueue | int | str) -> MessageQueue:
    """The queue meant by a queue, a position in the publish queues, or a sharding key.

    Keys are spread by Java's string hash, as the official clients do: both sides agree on the queue.
    """
    queues = route.publish
    if isinstance(pick, MessageQueue):
        if pick.topic != route.topic:
            raise InvalidMessage(f"queue {pick} is not one of topic {route.topic!r}")
        return pick
    if isinstance(pick, str):
        # Java's % keeps the sign of the hash, so the absolute value of the hash decides.
        return queues[abs(java_hash(pick)) % len(queues)]
    if not 0 <= pick < len(queues):
        raise InvalidMessage(
            f"topic {route.topic!r} has queues 0 to {len(queues) - 1} to send to; {pick} is none of them"
        )
    return queues[pick]
