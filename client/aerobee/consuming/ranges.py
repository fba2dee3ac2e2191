"""Ranges of queues, read as brokers store them: for tools that read very many messages.

    ranges = client.ranges()
    low, high = await ranges.bounds(queue)
    reader = ranges.reader([QueueRange(queue, low, high)])
    while pieces := await reader.next(4 << 20):
        for piece in pieces: ...                # piece.body is stored records, one behind the other

Touches  brokers through `Peers`.

A range is cut into stripes, of which several are pulled at the same time; a stripe holds about `stripe_bytes`, by what
the stripes before it have told. Brokers answer with few messages at a time (32 by default): without this every pull
would wait for the one before it.

Failures  What may pass (a broker that restarts, is busy, or has not copied yet what its master has) is tried again, on
          other replicas too, for `give_up_s`; then it is raised.

Invariants
- Pieces come in the order of the ranges, and of the offsets in each; [begin, end) of consecutive pieces of a range
  leave no gap. What a broker does not have any more is a piece that says so (`lost`).
- What is fetched and not handed out is at most `window` stripes of 4 * `stripe_bytes` and one answer each.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from aerobee.consuming.pulls import NOTHING_THERE, PASSING_CODES, Patience, Pulled, Pulls, PullTerms
from aerobee.errors import BrokerRefused, ClientError, InvalidMessage
from aerobee.net.answers import body_of, number_of
from aerobee.net.offsets import Offsets
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.config import check_settings
from aerobee.terms.filters import Filter, SqlFilter, TagFilter
from aerobee.terms.routes import MASTER_ID, MessageQueue
from aerobee_proto.bodies import CheckClientConfigBody, QueryConsumeQueueBody
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.names import TOOLS_GROUP
from aerobee_proto.records import RECORD_SIZE_MIN
from aerobee_service.logs.event_log import event_logger

T = TypeVar("T")
log = event_logger("aerobee.reader")

__all__ = ["Piece", "QueueRange", "RangeConfig", "RangeReader", "Ranges"]

STRIPE_OVERRUN: Final = 4
STRIPE_STEP_FIRST: Final = 256  # messages, before anything is known of their sizes
STRIPE_STEP_MIN, STRIPE_STEP_MAX = 32, 1 << 16
PASSING: Final = PASSING_CODES | NOTHING_THERE
RETRY_MAX_S: Final = 3.0
_SIZE_AND_OFFSET: Final = Struct(">i16xq")  # of a stored record


@dataclass(slots=True, frozen=True, kw_only=True)
class RangeConfig:
    """How ranges are read.

    max_messages  asked for with one pull; brokers have limits of their own
    max_bytes     wish for the size of one answer
    stripe_bytes  pulled one after the other
    window        stripes pulled at the same time
    timeout_s     of one request
    retry_s       pause after a failed request
    give_up_s     raise what failed when it failed for so long
    """

    max_messages: int = 1024
    max_bytes: int = 1 << 20
    stripe_bytes: int = 1 << 20
    window: int = 8
    timeout_s: float = 10.0
    retry_s: float = 0.2
    give_up_s: float = 30.0

    def __post_init__(self) -> None:
        check_settings(self)


class QueueRange(NamedTuple):
    """The messages of a queue with queue offsets in [begin, end)."""

    queue: MessageQueue
    begin: int
    end: int


class Piece(NamedTuple):
    """What a broker has of [begin, end) of a queue: stored records that follow each other, checked by nobody yet.

    With a filter only those that passed it. `lost`: the broker has none of these messages any more.
    """

    queue: MessageQueue
    begin: int
    end: int
    body: bytes | memoryview
    lost: bool = False


class Ranges:
    """Looks at queues and reads ranges of them. Made by `Client.ranges()`."""

    def __init__(
        self, config: RangeConfig, *, client_id: str, peers: Peers, routes: RouteTable, offsets: Offsets
    ) -> None:
        self._config = config
        self._client_id = client_id
        self._peers = peers
        self._routes = routes
        self._offsets = offsets
        self._pulls = Pulls(
            PullTerms(
                group=TOOLS_GROUP,
                count=config.max_messages,
                max_bytes=config.max_bytes,
                hold_s=None,
                timeout_s=config.timeout_s,
            ),
            Patience(config.retry_s, RETRY_MAX_S, config.give_up_s, PASSING.__contains__),
            peers=peers,
            routes=routes,
            log=log,
        )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be read now, asked for anew; NoRoute when the topic is not there (any more)."""
        return (await self._routes.ask_again(topic)).subscribe

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """First readable queue offset and one past the last."""
        low, high = await asyncio.gather(
            self._ask_offset("ask the min offset of", queue, RequestCode.GET_MIN_OFFSET),
            self._ask_offset("ask the max offset of", queue, RequestCode.GET_MAX_OFFSET),
        )
        return low, max(low, high)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last readable queue offset."""
        return await self._ask_offset("ask the max offset of", queue, RequestCode.GET_MAX_OFFSET)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First offset stored at or after the time; one past the last when there is none."""
        return await self._ask_offset(
            "ask the offset by time of",
            queue,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            {"timestamp": str(timestamp_ms), "boundaryType": "LOWER"},
        )

    async def sizes(self, queue: MessageQueue, offset: int, count: int) -> list[int]:
        """Sizes in bytes of up to `count` stored records from `offset` on, from the queue's entries.

        Fewer when the broker answers with fewer. BrokerRefused where this needs a permission that is missing.
        """
        answer = await self._ask(
            "ask the entries of",
            queue,
            RequestCode.QUERY_CONSUME_QUEUE,
            {"index": str(offset), "count": str(count)},
        )
        if answer.code != ResponseCode.SUCCESS:
            addr = self.addr(queue, 0)
            raise BrokerRefused(f"ask the entries of {queue}", addr, answer.code, answer.remark)
        return [entry.physic_size for entry in body_of(QueryConsumeQueueBody, answer).queue_data]

    def has_master(self, queue: MessageQueue) -> bool:
        """Whether the known route names a master of the queue's broker; else a replica answers, as far as it is."""
        route = self._routes.cached(queue.topic)
        return route is not None and MASTER_ID in route.brokers.get(queue.broker_name, {})

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The offset a group will read next; None when it has committed none."""
        return await self._offsets.committed(group, queue)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset that the group will read next."""
        await self._offsets.commit(group, queue, offset)

    async def check_filter(self, topic: str, message_filter: Filter) -> None:
        """Ask every broker of the topic whether it serves an SQL92 filter; BrokerRefused says why not."""
        if not isinstance(message_filter, SqlFilter):
            return
        route = await self._routes.for_subscribe(topic)
        body = CheckClientConfigBody(
            client_id=self._client_id,
            group=TOOLS_GROUP,
            subscription_data=message_filter.subscription(topic, 0),
        ).to_bytes()
        what = f"check the filter {message_filter.text!r} of topic {topic!r}"
        names = sorted({queue.broker_name for queue in route.subscribe})
        await asyncio.gather(
            *(
                self._peers.call(
                    what, self._routes.master_addr(topic, name), RequestCode.CHECK_CLIENT_CONFIG, {}, body
                )
                for name in names
            )
        )

    def reader(self, ranges: Sequence[QueueRange], message_filter: Filter | None = None) -> "RangeReader":
        """A reader of these ranges, one behind the other."""
        for one in ranges:
            if not 0 <= one.begin <= one.end:
                raise InvalidMessage(f"{one.queue} has no range {one.begin} to {one.end}")
        return RangeReader(self, self._config, ranges, message_filter or TagFilter())

    # --- asking -----------------------------------------------------------------------------------------------

    async def _ask_offset(
        self, what: str, queue: MessageQueue, code: RequestCode, more: dict[str, str] | None = None
    ) -> int:
        answer = await self._ask(what, queue, code, more or {})
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(f"{what} {queue}", self.addr(queue, 0), answer.code, answer.remark)
        return number_of(answer, "offset", f"{what} {queue}", self.addr(queue, 0))

    async def _ask(self, what: str, queue: MessageQueue, code: RequestCode, more: dict[str, str]) -> Command:
        """The answer of the master, or of another replica where nameservers know no master."""
        header = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name} | more

        async def once(_: int) -> Command:
            addr = self.addr(queue, 0)
            answer = await self._peers.request(
                f"{what} {queue}", addr, code, header, timeout_s=self._config.timeout_s
            )
            if answer.code in PASSING_CODES:
                raise BrokerRefused(f"{what} {queue}", addr, answer.code, answer.remark)
            return answer

        return await self.patiently(queue.topic, once)

    async def patiently(self, topic: str, once: Callable[[int], Awaitable[T]]) -> T:
        """What `once(attempt)` gives, the route known; asked again while what fails may pass, for `give_up_s`."""

        async def with_route(attempt: int) -> T:
            if self._routes.cached(topic) is None:
                await self._routes.for_subscribe(topic)
            return await once(attempt)

        def failed_once(failed: ClientError, _: float) -> None:
            log.debug("client.range_retried", topic=topic, reason=str(failed))

        return await self._pulls.patiently(topic, with_route, failed_once)

    def addr(self, queue: MessageQueue, attempt: int, suggested_id: int = MASTER_ID) -> str:
        """The replica for an attempt: the suggested one first, then each other in turn."""
        addrs = self._pulls.replicas(queue, suggested_id, "broker {}")
        return addrs[attempt % len(addrs)]

    async def pull(
        self, what: str, addr: str, queue: MessageQueue, offset: int, message_filter: Filter, count: int
    ) -> Pulled:
        """One pull, once; it is answered at once, for what is asked for is there."""
        return await self._pulls.pull(what, addr, queue, offset, message_filter, count=count)


class _Stripe(NamedTuple):
    """Part of a range that is pulled pull by pull."""

    queue: MessageQueue
    begin: int
    end: int


class RangeReader:
    """Hands out the pieces of ranges in order, while the next ones are on their way."""

    def __init__(
        self, ranges: Ranges, config: RangeConfig, parts: Sequence[QueueRange], filter: Filter
    ) -> None:
        # Fixed for life.
        self._ranges = ranges
        self._config = config
        self._filter = filter
        self._unfiltered = filter.text == "*" and filter.tags is None
        # Moved by next().
        self._left = deque(one for one in parts if one.begin < one.end)
        self._pulling: deque[tuple[_Stripe, asyncio.Task[tuple[list[Piece], int]]]] = deque()
        self._step = STRIPE_STEP_FIRST
        self._suggested: dict[str, int] = {}

    async def next(self, size: int) -> list[Piece]:
        """Pieces of at least `size` bytes together, fewer at the end; an empty list behind the end.

        ClientError when a broker could not be read for `give_up_s`: pieces before that have been handed out.
        """
        found: list[Piece] = []
        gathered = 0
        while gathered < size:
            self._start_stripes()
            if not self._pulling:
                break
            stripe, task = self._pulling[0]
            try:
                pieces, reached = await task
            except ClientError:
                if found:
                    return found  # the next call meets the error again
                raise
            self._pulling.popleft()
            if reached < stripe.end:
                self._pulling.appendleft(self._start(stripe._replace(begin=reached)))
            found += pieces
            fetched = sum(len(piece.body) for piece in pieces)
            gathered += fetched
            self._learn(reached - stripe.begin, fetched)
        return found

    async def close(self) -> None:
        """Stop what is on its way."""
        tasks = [task for _, task in self._pulling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pulling.clear()
        self._left.clear()

    # --- stripes ----------------------------------------------------------------------------------------------

    def _start_stripes(self) -> None:
        while len(self._pulling) < self._config.window and self._left:
            queue, begin, end = self._left[0]
            cut = min(begin + self._step, end)
            self._pulling.append(self._start(_Stripe(queue, begin, cut)))
            if cut == end:
                self._left.popleft()
            else:
                self._left[0] = QueueRange(queue, cut, end)

    def _start(self, stripe: _Stripe) -> tuple[_Stripe, "asyncio.Task[tuple[list[Piece], int]]"]:
        work = self._fetch(stripe)
        return stripe, asyncio.get_running_loop().create_task(work, name=f"range {stripe.queue}")

    def _learn(self, count: int, size: int) -> None:
        """Make stripes as long as `stripe_bytes` asks for."""
        fitting = self._config.stripe_bytes * count // max(size, 1)
        self._step = max(STRIPE_STEP_MIN, min(fitting, 4 * self._step, STRIPE_STEP_MAX))

    async def _fetch(self, stripe: _Stripe) -> tuple[list[Piece], int]:
        """The pieces of a stripe, and how far they reach: less than its end where messages are unusually large."""
        pieces: list[Piece] = []
        offset, gathered = stripe.begin, 0
        while offset < stripe.end and gathered < STRIPE_OVERRUN * self._config.stripe_bytes:
            piece = await self._pull(stripe.queue, offset, stripe.end)
            pieces.append(piece)
            gathered += len(piece.body)
            offset = piece.end
        return pieces, offset

    # --- pulls ------------------------------------------------------------------------------------------------

    async def _pull(self, queue: MessageQueue, offset: int, end: int) -> Piece:
        config = self._config

        async def once(attempt: int) -> Piece:
            addr = self._ranges.addr(queue, attempt, self._suggested.get(queue.broker_name, MASTER_ID))
            what = f"pull {queue} from offset {offset}"
            count = min(config.max_messages, end - offset) if self._unfiltered else config.max_messages
            pulled = await self._ranges.pull(what, addr, queue, offset, self._filter, count)
            if pulled.code == ResponseCode.SUCCESS:
                self._suggested[queue.broker_name] = pulled.suggested_id
            return self._piece(what, addr, QueueRange(queue, offset, end), pulled)

        return await self._ranges.patiently(queue.topic, once)

    def _piece(self, what: str, addr: str, asked: QueueRange, pulled: Pulled) -> Piece:
        queue, offset, end = asked
        following = pulled.next_offset
        if pulled.code == ResponseCode.SUCCESS:
            body = pulled.body if following <= end else _cut(pulled.body, end)
            return Piece(queue, offset, min(following, end), body)
        if following <= offset:
            last = "an unknown offset" if pulled.max_offset is None else pulled.max_offset
            raise BrokerRefused(
                what, addr, pulled.code, f"{pulled.remark or 'nothing there'} (the queue ends at {last})"
            )
        skipped = pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY and not self._unfiltered
        return Piece(queue, offset, min(following, end), b"", lost=not skipped)


def _cut(body: bytes, end: int) -> memoryview:
    """The records in front of the first one with a queue offset of `end` or more."""
    view, position = memoryview(body), 0
    while len(view) - position >= RECORD_SIZE_MIN:
        size, queue_offset = _SIZE_AND_OFFSET.unpack_from(view, position)
        if queue_offset >= end or size < RECORD_SIZE_MIN:
            break
        position += size
    return view[:position]
