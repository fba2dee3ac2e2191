"""Offsets: the ends of a queue, the offset of a time, and what a group has committed. One request each.

Invariants
- The first commit of a group for a topic goes to a broker alone, and its answer is waited for: RocketMQ's broker loses
  one of two that come at once, as each of them makes the table that both belong into.
"""

import asyncio
from typing import Literal

from aerobee.errors import BrokerRefused, NoBroker
from aerobee.net.answers import number_of
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.routes import MASTER_ID, MessageQueue, pull_addr
from aerobee.terms.start_at import AtOffset, AtTime, Position, QueueEnd
from aerobee_proto.codes import RequestCode, ResponseCode

__all__ = ["Offsets"]


class Offsets:
    """Asks the master of a queue's broker; while it has none, another member of its set, as official clients do. The
    queue's route must be known."""

    def __init__(self, peers: Peers, routes: RouteTable) -> None:
        self._peers = peers
        self._routes = routes
        # (group, topic, broker name): those with a commit that was answered, and who waits for the first.
        self._begun: set[tuple[str, str, str]] = set()
        self._first: dict[tuple[str, str, str], asyncio.Lock] = {}

    async def min_offset(self, queue: MessageQueue) -> int:
        """First readable queue offset."""
        return await self._ask("ask the min offset of", queue, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last readable queue offset."""
        return await self._ask("ask the max offset of", queue, RequestCode.GET_MAX_OFFSET)

    async def by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """First offset stored at or after the time; "upper": last offset stored at or before it."""
        return await self._ask(
            "ask the offset by time of",
            queue,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            {"timestamp": str(timestamp_ms), "boundaryType": boundary.upper()},
        )

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Store time of the first readable message, epoch milliseconds; None for an empty queue."""
        what, addr = f"ask the earliest store time of {queue}", await self._addr(queue)
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        answer = await self._peers.call(what, addr, code, _queue_header(queue))
        timestamp = number_of(answer, "timestamp", what, addr, -1)
        return None if timestamp < 0 else timestamp

    async def resolve(self, queue: MessageQueue, position: Position) -> int:
        """The queue offset that a position means in this queue."""
        match position:
            case AtOffset(offset):
                return offset
            case AtTime(timestamp_ms):
                return await self.by_time(queue, timestamp_ms)
            case QueueEnd.EARLIEST:
                return await self.min_offset(queue)
            case QueueEnd.LATEST:
                return await self.max_offset(queue)

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The offset a group will read next; None when it has committed none."""
        what = f"ask the offset of group {group!r} in {queue}"
        addr = await self._addr(queue)
        header = {"consumerGroup": group, "setZeroIfNotFound": "false"} | _queue_header(queue)
        answer = await self._peers.request(what, addr, RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(what, addr, answer.code, answer.remark)
        return number_of(answer, "offset", what, addr)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset that the group will read next."""
        if not await self._commit_first(group, queue, offset):
            await self._peers.call(*await self._commit(group, queue, offset))

    async def commit_oneway(self, group: str, queue: MessageQueue, offset: int) -> None:
        """As `commit`, without an answer: for one of many commits, of which the next makes good what is lost."""
        if not await self._commit_first(group, queue, offset):
            await self._peers.oneway(*await self._commit(group, queue, offset))

    async def _commit_first(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """Commit alone when it is the first one; whether it was."""
        place = group, queue.topic, queue.broker_name
        if place in self._begun:
            return False
        async with self._first.setdefault(place, asyncio.Lock()):
            if place in self._begun:
                return False
            await self._peers.call(*await self._commit(group, queue, offset))
            self._begun.add(place)
        self._first.pop(place, None)
        return True

    async def _commit(
        self, group: str, queue: MessageQueue, offset: int
    ) -> tuple[str, str, RequestCode, dict[str, str]]:
        """Words, address, code and header of a commit."""
        return (
            f"commit offset {offset} of group {group!r} in {queue}",
            await self._addr(queue),
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": group, "commitOffset": str(offset)} | _queue_header(queue),
        )

    async def _ask(
        self, what: str, queue: MessageQueue, code: RequestCode, more: dict[str, str] | None = None
    ) -> int:
        header = _queue_header(queue) | (more or {})
        what, addr = f"{what} {queue}", await self._addr(queue)
        return number_of(await self._peers.call(what, addr, code, header), "offset", what, addr)

    async def _addr(self, queue: MessageQueue) -> str:
        route = self._routes.cached(queue.topic) or await self._routes.for_subscribe(queue.topic)
        addr = pull_addr(route.brokers.get(queue.broker_name, {}), MASTER_ID)
        if addr is None:
            raise NoBroker(queue.topic, f"member of broker {queue.broker_name}", list(route.brokers))
        return addr


def _queue_header(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
