"""Assignment: which queues a consumer reads when the broker decides, and whether it pulls or pops them.

Touches  the file of request modes; where the topic's queues are is asked of others.

Consumers with clientRebalance=false ask one broker of a topic; so each broker has to give the same answer, for the
queues of all brokers.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.pop.request_modes import POP, PULL, RequestMode, RequestModes
from aerobee_broker.pop.values import ALL_QUEUES
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import BrokerQueue, is_retry_topic
from aerobee_service.turns.slices import in_slices

__all__ = ["Assigned", "Assignment", "AssignmentQuery", "averagely", "by_circle", "for_pop"]


class AssignmentQuery(NamedTuple):
    """A member of a group asks which queues of a topic are its own."""

    group: str
    topic: str
    client_id: str
    strategy_name: str
    is_broadcasting: bool = False


class Assigned(NamedTuple):
    """The queues of a member, and whether it is to pull or pop them: `PULL` or `POP`."""

    queues: list[BrokerQueue]
    mode: str


# --- who gets what ------------------------------------------------------------------------------------------------


def averagely(queues: Sequence[BrokerQueue], count: int, index: int) -> list[BrokerQueue]:
    """Neighbouring queues, as many for each of `count` members as possible, one more for the first ones."""
    size, more = divmod(len(queues), count)
    begin = index * size + min(index, more)
    return list(queues[begin : begin + size + (index < more)])


def by_circle(queues: Sequence[BrokerQueue], count: int, index: int) -> list[BrokerQueue]:
    """The members' queues in turn."""
    return list(queues[index::count])


Strategy = Callable[[Sequence[BrokerQueue], int, int], list[BrokerQueue]]
"""The queues of the member with an index, of so many; in proportion to what it returns."""
STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def for_pop(
    strategy: Strategy, queues: Sequence[BrokerQueue], count: int, index: int | None, share: int
) -> list[BrokerQueue]:
    """What a member pops: all queues of each broker at once, or its own and those of `share` members behind it. None
    is the index of who is no member."""
    if share <= 0 or share >= count - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ALL_QUEUES) for queue in queues))
    if index is None:
        return []
    if count > len(queues):
        return [queues[index % len(queues)]]
    found: list[BrokerQueue] = []
    for i in range(share + 1):
        found += strategy(queues, count, (index + i) % count)
    return list(dict.fromkeys(found))


# --- the use case -------------------------------------------------------------------------------------------------


class Assignment:
    """Tells members their queues, and keeps how groups read. All calls from the event loop."""

    def __init__(
        self,
        *,
        queues_of: Callable[[str], Awaitable[list[BrokerQueue]]],
        live: LiveConfig,
        topics: TopicTable,
        groups: SubscriptionGroups,
        consumers: ConsumerTable,
        request_modes: RequestModes,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        """`queues_of` gives the readable queues of a topic on all brokers, sorted; none when nobody knows it. `save`
        writes the modes to their file, or raises OSError, and returns when the slaves that sends wait for have them, or
        raises RequestError."""
        self._queues_of = queues_of
        self._live = live
        self._topics = topics
        self._groups = groups
        self._save = save
        self._consumers = consumers
        self._request_modes = request_modes

    async def assigned(self, query: AssignmentQuery) -> Assigned | None:
        """The queues that a member reads; None when it should keep what it has: nobody knows better."""
        mode = self._mode(query.group, query.topic)
        queues = await self._queues_of(query.topic)
        found = await self._share(query, mode, queues) if queues else None
        return None if found is None else Assigned(found, mode.mode)

    def _mode(self, group: str, topic: str) -> RequestMode:
        known = self._request_modes.get(group, topic)
        if known is not None:
            return known
        config = self._live.value
        mode = PULL if is_retry_topic(topic) else config.default_message_request_mode
        return RequestMode(
            consumer_group=group,
            topic=topic,
            mode=mode,
            pop_share_queue_num=config.default_pop_share_queue_num if mode == POP else 0,
        )

    async def _share(
        self, query: AssignmentQuery, mode: RequestMode, queues: list[BrokerQueue]
    ) -> list[BrokerQueue] | None:
        if query.is_broadcasting or not self._live.value.server_load_balancer_enable:
            return queues
        strategy = STRATEGIES.get(query.strategy_name)
        members = await in_slices(self._consumers.sorted_ids(query.group))
        if strategy is None or not members:
            return None
        at = bisect_left(members, query.client_id)
        index = at if at < len(members) and members[at] == query.client_id else None
        if mode.mode == POP:
            return for_pop(strategy, queues, len(members), index, mode.pop_share_queue_num)
        return strategy(queues, len(members), index) if index is not None else []

    async def set_mode(self, mode: RequestMode) -> None:
        """Let a group pop, or pull, a topic from now on; it is in the file, and at slaves, when this returns.

        RequestError: it is no such mode, there is no such group or topic; or the file could not be written, or slaves
        do not have it yet: the mode is in effect then.
        """
        if is_retry_topic(mode.topic):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topics are always pulled")
        self._topics.require(mode.topic)
        self._groups.require(mode.consumer_group)
        self._request_modes.set(mode)
        try:
            await self._save()
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the mode is in effect but could not be written to {self._request_modes.file_name}: {error}",
            ) from error
