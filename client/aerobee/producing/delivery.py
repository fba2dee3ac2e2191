"""Delivery: one batch to a broker, tried until it is stored or cannot be.

Touches  brokers through `Peers`, time through the event loop's clock.

Tries    Until it is stored, the batch's time is over, or it is refused for good. Each try goes to another broker while
         there are brokers that have not been tried; then there is a pause, which grows and is scattered
         (`aerobee.net.backoff`). A try gets a share of the time that remains, at most `try_timeout_s`, and twice as
         much after each that got no answer. Every failure has the route asked for again, without waiting for it. A try
         that got no answer may have been stored: the message may be there twice, with one and the same message_id.
         While no try for a topic is answered, its route is asked for every SILENT_S: a master that stands still does
         not hang up, and when the set has another one the tries at the old one are over.
Answers  LATER_CODES: the broker cannot just now, it is tried again. ELSEWHERE_CODES: this broker will not, another one
         may; each broker of the route, as it is told now, is asked once. Anything else: BrokerRefused at once. A batch
         that is refused as illegal is sent again message by message, so that only the guilty ones fail.
Told     The first try that fails at a broker is a warning, the first that works again an event; not each message.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from aerobee.errors import (
    Attempt,
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    InvalidMessage,
    NoBroker,
    NoQueue,
    NoRoute,
    RequestTimeout,
    SendFailed,
    code_name,
)
from aerobee.messages.message import SendResult, SendStatus
from aerobee.messages.outgoing import Outgoing
from aerobee.net.answers import number_or
from aerobee.net.backoff import pauses
from aerobee.net.peers import Peers, outcome_of
from aerobee.net.route_table import RouteTable
from aerobee.producing.queue_choice import LowestLatency, QueueChooser, RoundRobin
from aerobee.terms.config import ProducerConfig
from aerobee.terms.routes import MessageQueue, Route
from aerobee_proto.batch import encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.javahash import java_hash
from aerobee_proto.names import TEMPLATE_TOPIC
from aerobee_service.logs.event_log import event_logger

__all__ = ["ELSEWHERE_CODES", "LATER_CODES", "Delivery", "QueueChoice", "pick_queue"]

log = event_logger("aerobee.producer")

QueueChoice = MessageQueue | int | None

# The broker cannot take it now: it starts, ends, or has too much to do.
LATER_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
# This broker will not take it, however often it is asked; another one may.
ELSEWHERE_CODES: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
# SYSTEM_ERROR is what brokers say to faults of all kinds. One that comes so often is not going to pass.
SYSTEM_ERRORS_MAX: Final = 8
# Too much to do: a new route seldom helps, so it is asked for now and then. A master that is a slave now says so, too.
BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
BUSY_ROUTE_S: Final = 0.2
SILENT_S: Final = 0.5
WARN_AFTER_S: Final = 1.0  # a broker that takes no messages for so long is worth a warning
TROUBLES_MAX: Final = 1024  # brokers
OUTCOMES_MAX: Final = 4  # different ways to fail that an error tells of one address
TAKEN: Final = Command(0)  # what stands for the answer to a message that asks for none
STATUS_BY_CODE: Final = {status.value: status for status in SendStatus}
MESSAGE_ILLEGAL: Final = int(ResponseCode.MESSAGE_ILLEGAL)
TEMPLATE_QUEUES: Final = "4"


class _Trouble:
    """A broker that does not take messages: since when, by the loop's clock."""

    __slots__ = ("failed_count", "logged", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.failed_count = 0
        self.logged = False


class _Address:
    """Failed tries at one address; times are seconds of the loop's clock."""

    __slots__ = ("count", "first", "last", "outcomes", "took_s")

    def __init__(self, first: float) -> None:
        self.first = self.last = first
        self.took_s = 0.0
        self.count = 0
        self.outcomes: dict[str, int] = {}  # the newest OUTCOMES_MAX kinds


class _Tries:
    """The failed tries of one batch, each address once: an outage of minutes must not be kept try by try."""

    __slots__ = ("_addresses", "count", "started", "system_errors")

    def __init__(self, started: float) -> None:
        self.started = started
        self.count = 0
        self.system_errors = 0
        self._addresses: dict[tuple[str, str], _Address] | None = None  # made by the first failure

    def add(self, broker_name: str, addr: str, outcome: str, started: float, ended: float) -> None:
        self.count += 1
        if self._addresses is None:
            self._addresses = {}
        one = self._addresses.setdefault((broker_name, addr), _Address(started))
        one.count += 1
        one.last, one.took_s = started, ended - started
        one.outcomes[outcome] = one.outcomes.pop(outcome, 0) + 1
        if len(one.outcomes) > OUTCOMES_MAX:
            del one.outcomes[next(iter(one.outcomes))]

    def attempts(self) -> list[Attempt]:
        return [
            Attempt(
                broker_name,
                addr,
                _joined(one.outcomes),
                round(one.took_s * 1000),
                one.count,
                round((one.first - self.started) * 1000),
                round((one.last - self.started) * 1000),
            )
            for (broker_name, addr), one in (self._addresses or {}).items()
        ]


def _joined(outcomes: Mapping[str, int]) -> str:
    if len(outcomes) == 1:
        return next(iter(outcomes))
    return "; ".join([f"{outcome} ({_times(count)})" for outcome, count in outcomes.items()])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


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
        self._attempts_max = math.inf if config.attempts_max is None else config.attempts_max
        # Moved by tries.
        self._troubles: dict[str, _Trouble] = {}  # by broker name
        self._under_way: dict[str, int] = {}  # tries, by topic
        self._heard_at: dict[
            str, float
        ] = {}  # of these topics: when a try has ended last, or the first one began
        self._look: asyncio.TimerHandle | None = None
        self._busy_route_at = 0.0  # when a broker that is busy is next a reason to ask for the route
        self.retried_count = 0  # tries that failed, since the start
        self.failed_count = 0  # messages that failed alone while the rest of their batch went on

    async def route(self, topic: str, deadline: float) -> Route:
        """The topic's route with queues to send to, waited for where it is only away: no nameserver answers, no broker
        or no master is registered just now. NoRoute or NoBroker when it is not there in time, or not there at all.
        """
        waits = None
        answer: NoRoute | NoBroker | None = None  # the last one
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._routes.for_publish(topic)
            except TimeoutError:
                raise answer or self._routes.no_answer(topic) from None
            except (NoRoute, NoBroker) as missing:
                answer = missing
                left_s = deadline - self._now()
                if left_s <= 0 or not self._routes.may_come_back(missing):
                    raise
                waits = waits or pauses()
                log.debug("client.route_awaited", topic=topic, reason=str(missing))
                await asyncio.sleep(min(next(waits), left_s))

    async def choose(
        self, topic: str, pick: MessageQueue | int | str | None, deadline: float
    ) -> MessageQueue:
        """The queue that `pick` means, or the next one in turn. NoRoute or NoBroker when there is none."""
        route = self._routes.cached_publish(topic) or await self.route(topic, deadline)
        if pick is not None:
            return pick_queue(route, pick)
        return self._chooser.choose(route.publish, (), self._now())

    async def send_oneway(self, topic: str, item: Outgoing, bound: MessageQueue | None) -> None:
        """Try until a connection has taken the message; nobody answers."""
        await self._try_brokers(
            topic, [item], item.body, bound, item.deadline, _Tries(self._now()), oneway=True
        )

    async def send(
        self, topic: str, items: list[Outgoing], bound: MessageQueue | None, deadline: float
    ) -> None:
        """Try until stored and end every future with its result. Raises ClientError when nothing is stored.

        `bound` is the one queue that may be used; without it each try takes the next one.
        """
        tries = _Tries(self._now())
        while True:
            try:
                queue, answer = await self._try_brokers(topic, items, _body_of(items), bound, deadline, tries)
            except BrokerRefused as refused:
                if refused.code != MESSAGE_ILLEGAL or len(items) == 1:
                    raise
                for item in items:
                    await self._send_alone(topic, item, bound)
                return
            except (SendFailed, NoRoute, NoBroker) as failed:
                items = self._with_time_left(items, failed)
                if not items or tries.count >= self._attempts_max:
                    raise
                deadline = min([item.deadline for item in items])
            else:
                self._store_results(items, queue, answer)
                return

    def _with_time_left(self, items: list[Outgoing], failed: ClientError) -> list[Outgoing]:
        """A batch has the time of its most hurried message: that one has failed, the others may go on."""
        now = self._now()
        left = [item for item in items if item.deadline > now]
        if not left or len(left) == len(items):
            return []
        for item in items:
            if item.deadline <= now and not item.future.done():
                self.failed_count += 1
                item.future.set_exception(failed)
        return left

    async def send_encoded(
        self, topic: str, body: bytes, bound: MessageQueue | None, deadline: float
    ) -> tuple[MessageQueue, int]:
        """Try until a batch body is stored; its queue and the queue offset of its first message. ClientError."""
        queue, answer = await self._try_brokers(topic, [], body, bound, deadline, _Tries(self._now()))
        queue_id = number_or(answer, "queueId", queue.queue_id)
        self._look_for_new_topic(topic)
        return queue._replace(queue_id=queue_id), number_or(answer, "queueOffset", -1)

    async def _send_alone(self, topic: str, item: Outgoing, bound: MessageQueue | None) -> None:
        try:
            await self.send(topic, [item], bound, item.deadline)
        except ClientError as failed:
            if not item.future.done():
                self.failed_count += 1
                item.future.set_exception(failed)

    async def _try_brokers(
        self,
        topic: str,
        items: list[Outgoing],
        body: bytes,
        bound: MessageQueue | None,
        deadline: float,
        tries: "_Tries",
        *,
        oneway: bool = False,
    ) -> tuple[MessageQueue, Command]:
        """One try after the other: the queue written and the broker's answer. Without items it is a batch body."""
        avoid: set[str] = set()  # tried since the last pause
        refusing: dict[str, BrokerRefused] = {}  # brokers that will not take it, however often they are asked
        waits = None
        limit_s = self._config.try_timeout_s
        while True:
            route = self._routes.cached_publish(topic) or await self.route(topic, deadline)
            started = self._now()
            if deadline <= started or tries.count >= self._attempts_max:
                raise self._given_up(topic, tries, started)
            queue = bound or self._chooser.choose(route.publish, avoid, started)
            avoid.add(queue.broker_name)
            others = bound is None and any(other.broker_name not in avoid for other in route.publish)
            share_s = (deadline - started) / 2 if others else deadline - started
            outcome = await self._try_once(queue, items, body, min(share_s, limit_s), oneway)
            ended = self._now()
            if isinstance(outcome, Command) and outcome.code in STATUS_BY_CODE:
                self._chooser.record(queue.broker_name, (ended - started) * 1000, ended)
                if self._troubles:
                    self._works_again(queue.broker_name, ended)
                return queue, outcome
            refused = self._note_failure(queue, outcome, started, ended, tries)
            if refused is not None:
                refusing[queue.broker_name] = refused
                if not others and await self._all_refuse(topic, bound, refusing):
                    raise refused
            elif isinstance(outcome, RequestTimeout):
                limit_s *= 2
            if not others:
                avoid = set(refusing)
                waits = waits or pauses()
                left_s = deadline - self._now()
                if tries.count < self._attempts_max and left_s > 0:
                    await asyncio.sleep(min(next(waits), left_s))

    async def _all_refuse(
        self, topic: str, bound: MessageQueue | None, refusing: Mapping[str, BrokerRefused]
    ) -> bool:
        """Whether nobody is left to ask: by the route as it is told now, for the known one has led to a refusal."""
        if bound is not None:
            return True
        route = await self._routes.refresh(topic)
        return route is None or all(queue.broker_name in refusing for queue in route.publish)

    async def _try_once(
        self, queue: MessageQueue, items: list[Outgoing], body: bytes, limit_s: float, oneway: bool
    ) -> Command | ClientError:
        """One request: the broker's answer, or why there is none."""
        self._begins(queue.topic)
        what = f"send to topic {queue.topic!r}"
        code = RequestCode.SEND_MESSAGE_V2 if len(items) == 1 else RequestCode.SEND_BATCH_MESSAGE
        try:
            addr = self._routes.master_addr(queue.topic, queue.broker_name)
            header = self._header(queue, items)
            if not oneway:
                return await self._peers.request(what, addr, code, header, body, limit_s)
            await self._peers.oneway(what, addr, code, header, body, limit_s)
        except (RequestTimeout, BrokerUnreachable, NoBroker) as failed:
            return failed
        finally:
            self._ends(queue.topic)
        return TAKEN

    def _begins(self, topic: str) -> None:
        count = self._under_way.get(topic, 0)
        self._under_way[topic] = count + 1
        if not count:
            self._heard_at[topic] = self._now()
            if self._look is None:
                self._look = asyncio.get_running_loop().call_later(SILENT_S, self._look_for_masters)

    def _ends(self, topic: str) -> None:
        left = self._under_way[topic] - 1
        if left:
            self._under_way[topic], self._heard_at[topic] = left, self._now()
        else:
            del self._under_way[topic], self._heard_at[topic]

    def _look_for_masters(self) -> None:
        """Ask for the routes of topics for which nothing was answered for a while."""
        self._look = None
        if not self._under_way:
            return
        now = self._now()
        for topic, heard_at in self._heard_at.items():
            if now - heard_at >= SILENT_S:
                self._routes.refresh_soon(topic)
        self._look = asyncio.get_running_loop().call_later(SILENT_S, self._look_for_masters)

    def _note_failure(
        self,
        queue: MessageQueue,
        outcome: Command | ClientError,
        started: float,
        ended: float,
        tries: "_Tries",
    ) -> BrokerRefused | None:
        """Remember a failed try; the refusal of a broker that will not do better. BrokerRefused when none would."""
        addr = self._addr_or_unknown(queue)
        refused = None
        busy = False
        if isinstance(outcome, Command):
            remark = outcome.remark or "no remark"
            text = f"refused with {outcome.code} {code_name(outcome.code)}: {remark}"
            if outcome.code not in LATER_CODES:
                refused = BrokerRefused(f"send to topic {queue.topic!r}", addr, outcome.code, outcome.remark)
                if outcome.code not in ELSEWHERE_CODES:
                    raise refused
            busy = outcome.code in BUSY_CODES
            tries.system_errors += outcome.code == ResponseCode.SYSTEM_ERROR
        else:
            text = outcome_of(outcome)
        self._chooser.record_error(
            queue.broker_name, ended, reachable=isinstance(outcome, Command | RequestTimeout)
        )
        tries.add(queue.broker_name, addr, text, started, ended)
        self.retried_count += 1
        if not busy or ended >= self._busy_route_at:
            self._routes.refresh_soon(queue.topic)
            self._busy_route_at = ended + BUSY_ROUTE_S
        log.debug("client.send_retried", queue=str(queue), addr=addr, outcome=text)
        self._note_trouble(queue.broker_name, addr, text, started)
        if tries.system_errors >= SYSTEM_ERRORS_MAX:
            raise SendFailed(
                queue.topic, tries.attempts(), f"the broker answered SYSTEM_ERROR {tries.system_errors} times"
            )
        return refused

    def _note_trouble(self, broker_name: str, addr: str, reason: str, since: float) -> None:
        """Tell of a broker that does not take messages for a while: once, not for each message."""
        trouble = self._troubles.get(broker_name)
        if trouble is None:
            if len(self._troubles) >= TROUBLES_MAX:
                self._troubles.clear()
            trouble = self._troubles[broker_name] = _Trouble(since)
        trouble.failed_count += 1
        if not trouble.logged and self._now() - trouble.since >= WARN_AFTER_S:
            trouble.logged = True
            log.warning(
                "client.sends_held_up",
                broker_name=broker_name,
                addr=addr,
                reason=reason,
                failed_count=trouble.failed_count,
            )

    def _works_again(self, broker_name: str, now: float) -> None:
        trouble = self._troubles.pop(broker_name, None)
        if trouble is not None and trouble.logged:
            log.info(
                "client.sends_work_again",
                broker_name=broker_name,
                took_ms=round((now - trouble.since) * 1000),
                failed_count=trouble.failed_count,
            )

    def _addr_or_unknown(self, queue: MessageQueue) -> str:
        try:
            return self._routes.master_addr(queue.topic, queue.broker_name)
        except NoBroker:
            return "an unknown address"

    def _given_up(self, topic: str, tries: "_Tries", now: float) -> SendFailed:
        after = f"{now - tries.started:.1f} s"
        if not tries.count:
            reason = "its time was over before it could be tried: the brokers are slower than the calls"
        elif tries.count >= self._attempts_max:
            reason = f"{tries.count} attempts failed in {after}, and attempts_max allows no more"
        else:
            reason = f"time was over after {after} and {tries.count} attempts"
        return SendFailed(topic, tries.attempts(), reason)

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
        first = number_or(answer, "queueOffset", -1)
        queue_id = number_or(answer, "queueId", queue.queue_id)
        if queue_id != queue.queue_id:
            queue = queue._replace(queue_id=queue_id)
        status = STATUS_BY_CODE[answer.code]
        handle = ext.get("recallHandle")
        if len(ids) < len(items):  # some brokers tell but one
            ids += [ids[-1]] * (len(items) - len(ids))
        for number, item, offset_id in zip(count(first), items, ids):  # ids may be more
            future = item.future
            if not future.done():
                future.set_result(SendResult(item.message_id, queue, number, offset_id, status, handle))
        self._look_for_new_topic(queue.topic)

    def _look_for_new_topic(self, topic: str) -> None:
        """The first message to a topic may have made it: then its own route is there soon."""
        route = self._routes.cached(topic)
        if route is not None and route.from_template:
            self._routes.refresh_soon(topic)


def _body_of(items: list[Outgoing]) -> bytes:
    if len(items) == 1:
        return items[0].body
    return encode_batch(items)


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
        raise NoQueue(
            f"topic {route.topic!r} has queues 0 to {len(queues) - 1} to send to; {pick} is none of them"
        )
    return queues[pick]
