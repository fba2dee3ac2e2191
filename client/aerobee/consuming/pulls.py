"""Pulls: what every reader of queues does with a broker. Asks, understands the answer, decodes it, tries again.

Touches  brokers through `Peers`.

Three planners stand on it and keep what they want next: `fetching` (ahead of a reader, into one buffer),
`group_pulling` (for a member of a group, queue by queue) and `ranges` (whole ranges, in stripes).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from aerobee.errors import (
    BadAnswer,
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    DamagedRecord,
    NoBroker,
    RequestTimeout,
)
from aerobee.net.answers import number_of
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.filters import Filter
from aerobee.terms.routes import MASTER_ID, MessageQueue, pull_addr
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.errors import RecordError
from aerobee_proto.inner_batch import unwrapped_from
from aerobee_proto.records import StoredRecord, decode_record, decode_records, scan_header
from aerobee_service.logs.event_log import EventLogger

__all__ = ["NOTHING_THERE", "PASSING_CODES", "Patience", "Place", "PullTerms", "Pulled", "Pulls", "decoded"]

T = TypeVar("T")
# Waiting may cure these; every other refusal is raised.
PASSING_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.GO_AWAY,
    }
)
# Answers without messages that tell where to go on.
NOTHING_THERE: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)
AT_ONCE: Final = str(PullFlag.SUBSCRIPTION)
HELD: Final = str(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)


@dataclass(slots=True, frozen=True)
class PullTerms:
    """How brokers are asked, the same for all queues of a reader.

    count      messages in one answer at most; brokers have limits of their own
    max_bytes  wish for the size of one answer; None leaves it to the broker
    hold_s     how long a broker may keep the request while there is nothing new; None: it answers at once
    timeout_s  of one request, what it is held included
    """

    group: str
    count: int
    max_bytes: int | None
    hold_s: float | None
    timeout_s: float


@dataclass(slots=True, frozen=True)
class Patience:
    """How what failed is tried again: after pauses that double from `retry_s` to `retry_max_s`, for `give_up_s`
    (None: without end). `passes` says of a refusal's code whether waiting may cure it."""

    retry_s: float
    retry_max_s: float
    give_up_s: float | None
    passes: Callable[[int], bool] = PASSING_CODES.__contains__


class Place(Protocol):
    """A queue that is being read: where its next pull begins, and which replica its broker has last named."""

    queue: MessageQueue
    generation: int  # another one after a seek: what was asked for before is of no use
    suggested_id: int

    @property
    def next_offset(self) -> int: ...


class Pulled(NamedTuple):
    """What a broker answered to a pull from `offset`; `next_offset` is where to go on. `body`: stored records."""

    code: int
    remark: str | None
    offset: int
    next_offset: int
    body: bytes
    min_offset: int
    max_offset: int | None  # None: the broker did not say
    suggested_id: int

    @property
    def moved(self) -> bool:
        """Whether the queue does not have the offset (any more), and messages may have been lost."""
        return self.code == ResponseCode.PULL_OFFSET_MOVED


class Pulls:
    """Pulls of one reader or group member, of any queue."""

    def __init__(
        self, terms: PullTerms, patience: Patience, *, peers: Peers, routes: RouteTable, log: EventLogger
    ) -> None:
        # Fixed for life.
        self._terms = terms
        self._patience = patience
        self._peers = peers
        self._routes = routes
        self._log = log
        # For statistics().
        self.retried_count = 0

    async def next(
        self,
        place: Place,
        message_filter: Filter,
        version_ms: int = 0,
        *,
        asking: Callable[[], None] | None = None,
    ) -> Pulled | None:
        """The answer to the next pull of a queue, tried until there is one; None when somebody seeked meanwhile.

        `asking` is called before each try.

        Raises what waiting does not cure, and with `give_up_s` what has failed for so long.
        """
        queue = place.queue

        async def once(_: int) -> Pulled | None:
            offset, generation = place.next_offset, place.generation
            addr = self._first(queue, place.suggested_id, "broker {} to pull from")[0]
            if asking is not None:
                asking()
            pulled = await self.pull(
                f"pull {queue}", addr, queue, offset, message_filter, version_ms=version_ms
            )
            return pulled if place.generation == generation else None

        def failed_once(failed: ClientError, pause_s: float) -> None:
            self.retried_count += 1
            self._log.warning("client.pull_failed", queue=str(queue), reason=str(failed), pause_s=pause_s)
            place.suggested_id = MASTER_ID

        pulled = await self.patiently(queue.topic, once, failed_once)
        if pulled is not None:
            place.suggested_id = pulled.suggested_id
            if pulled.moved:
                self._log.warning(
                    "client.offset_moved",
                    queue=str(queue),
                    asked_offset=pulled.offset,
                    next_offset=pulled.next_offset,
                    min_offset=pulled.min_offset,
                    max_offset=pulled.max_offset or 0,
                )
        return pulled

    async def pull(
        self,
        what: str,
        addr: str,
        queue: MessageQueue,
        offset: int,
        message_filter: Filter,
        *,
        version_ms: int = 0,
        count: int | None = None,
    ) -> Pulled:
        """One pull, once. BrokerRefused for every answer that tells neither messages nor where to go on, BadAnswer for
        one that tells it in numbers that are none."""
        terms = self._terms
        answer = await self._peers.request(
            what,
            addr,
            RequestCode.PULL_MESSAGE,
            self._header(queue, offset, message_filter, version_ms, terms.count if count is None else count),
            timeout_s=terms.timeout_s,
        )
        code, ext = answer.code, answer.ext
        if code != ResponseCode.SUCCESS and code not in NOTHING_THERE:
            raise BrokerRefused(what, addr, code, answer.remark)
        return Pulled(
            code,
            answer.remark,
            offset,
            number_of(answer, "nextBeginOffset", what, addr, offset),
            answer.body if code == ResponseCode.SUCCESS else b"",
            number_of(answer, "minOffset", what, addr, 0),
            number_of(answer, "maxOffset", what, addr) if "maxOffset" in ext else None,
            number_of(answer, "suggestWhichBrokerId", what, addr, MASTER_ID),
        )

    def _header(
        self, queue: MessageQueue, offset: int, message_filter: Filter, version_ms: int, count: int
    ) -> dict[str, str]:
        """`PullMessageHeader` written out."""
        terms = self._terms
        header = {
            "consumerGroup": terms.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": AT_ONCE if terms.hold_s is None else HELD,
            "commitOffset": "0",
            "suspendTimeoutMillis": str(round((terms.hold_s or 0) * 1000)),
            "subscription": message_filter.text,
            "subVersion": str(version_ms),
            "expressionType": message_filter.expression_type,
            "bname": queue.broker_name,
        }
        if terms.max_bytes is not None:
            header["maxMsgBytes"] = str(terms.max_bytes)
        return header

    def replicas(self, queue: MessageQueue, suggested_id: int, place: str) -> list[str]:
        """Addresses to read a queue from, the suggested one first. NoBroker, with `place` for the broker's name."""
        first, addrs = self._first(queue, suggested_id, place)
        return [first, *(addrs[broker_id] for broker_id in sorted(addrs) if addrs[broker_id] != first)]

    def _first(self, queue: MessageQueue, suggested_id: int, place: str) -> tuple[str, Mapping[int, str]]:
        """The address to read a queue from, and all by broker id. NoBroker as of replicas()."""
        route = self._routes.cached(queue.topic)
        addrs = route.brokers.get(queue.broker_name, {}) if route else {}
        first = pull_addr(addrs, suggested_id)
        if first is None:
            raise NoBroker(queue.topic, place.format(queue.broker_name), list(route.brokers) if route else [])
        return first, addrs

    async def patiently(
        self,
        topic: str,
        once: Callable[[int], Awaitable[T]],
        failed_once: Callable[[ClientError, float], None],
    ) -> T:
        """What `once(attempt)` gives; asked again while what fails may pass, each time with the route looked up anew.

        `failed_once` is told what failed, and the pause in seconds that follows.
        """
        patience, now = self._patience, asyncio.get_running_loop().time
        started, pause_s, attempt = now(), patience.retry_s, 0
        while True:
            try:
                return await once(attempt)
            except (RequestTimeout, BrokerUnreachable, NoBroker, BrokerRefused, BadAnswer) as failed:
                if isinstance(failed, BrokerRefused) and not patience.passes(failed.code):
                    raise
                if patience.give_up_s is not None and now() - started >= patience.give_up_s:
                    raise
                failed_once(failed, pause_s)
            attempt += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, patience.retry_max_s)
            await self._routes.refresh(topic)


def decoded(
    queue: MessageQueue, offset: int, body: bytes, *, check_crc: bool
) -> tuple[list[StoredRecord], DamagedRecord | None]:
    """The records of an answer to a pull from `offset`; at a damaged one those before it, and the damage."""
    try:
        return unwrapped_from(decode_records(body, check_crc=check_crc), offset), None
    except RecordError:
        pass
    records: list[StoredRecord] = []
    position = 0
    while position < len(body):
        try:
            record = decode_record(body, position, check_crc=check_crc)
            records += unwrapped_from([record], offset)
        except RecordError as broken:
            at = _offset_at(body, position, records, offset)
            return records, DamagedRecord(queue.topic, queue.broker_name, queue.queue_id, at, str(broken))
        position += record.size
    return records, None


def _offset_at(body: bytes, position: int, before: list[StoredRecord], pulled_from: int) -> int:
    """Queue offset of the broken record at `position`, as far as it can be told."""
    if before:
        return before[-1].queue_offset + 1
    try:
        claimed = scan_header(body, position).queue_offset
    except RecordError:
        return pulled_from
    return claimed if claimed >= pulled_from else pulled_from
