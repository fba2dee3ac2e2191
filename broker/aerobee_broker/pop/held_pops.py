"""Pops and notifications that found nothing and wait: plain bookkeeping, no clock and no sockets of its own.

Each waits for a topic and a group, in one queue or in all (queue id -1). A message of the topic, or of a retry
topic that the group has for it, concerns the waiting of each group for itself: every group gets every message.

Invariants
- One that waits is in the table once; it leaves by `leave`, `expired` or with its caller.
- What one keeps in memory is taken from the account of its caller, and given back when it leaves.
- At most `count_max` wait in all, at most `place_max` for the same topic, group and queue.
"""

from collections.abc import Callable, Collection, Iterator, Sized
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Final

from aerobee_broker.members.filters import EVERYTHING, Filter
from aerobee_broker.messages.values import Caller
from aerobee_broker.pop.extra_info import pop_retry_topic
from aerobee_broker.pop.values import ALL_QUEUES, Done, NoticeQuery, PopQuery
from aerobee_proto.errors import LimitReached
from aerobee_proto.names import GroupQueue, GroupTopic
from aerobee_remoting.peers.peer_memory import PeerMemory, Shared
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["HeldPop", "HeldPops"]

SLACK: Final = 64
DROPPED_A_STEP: Final = 64  # that leave in one step; one takes 6 us
POP_SIZE: Final = 3072  # bytes that one takes with its request and its places in the tables


class HeldPop:
    """One that waits: `done` is told its outcome."""

    __slots__ = ("caller", "deadline_ms", "done", "filter", "query", "size", "waiting")

    def __init__(
        self,
        query: PopQuery | NoticeQuery,
        caller: Caller,
        deadline_ms: int,
        message_filter: Filter,
        done: Done,
    ) -> None:
        self.query = query
        self.caller = caller
        self.deadline_ms = deadline_ms
        self.filter = message_filter
        self.done = done
        self.size = POP_SIZE + 4 * len(query.attempt_id or "")  # besides the filter
        self.waiting = True

    @property
    def place(self) -> GroupQueue:
        return self.query.place

    def accepts(self, tag_hashes: Collection[int]) -> bool:
        """Whether messages with these tags are worth another look; none told: they are."""
        tags = self.filter.tag_hashes
        return not tag_hashes or tags is None or not tags.isdisjoint(tag_hashes)


class HeldPops:
    """All that wait."""

    def __init__(
        self,
        *,
        count_max: Callable[[], int],
        place_max: Callable[[], int],
        memory: PeerMemory | None = None,
    ) -> None:
        self._memory = memory or PeerMemory()
        self._filters = Shared[None](self._memory, "filters of held pops")
        self._count_max = count_max
        self._place_max = place_max
        self._places: dict[str, dict[str, dict[int, dict[HeldPop, None]]]] = {}  # topic -> group -> queue id
        self.waiting: Sized = self._places  # empty when nothing waits: to be asked without a call
        self._retry_topics: dict[str, GroupTopic] = {}
        self._by_owner: dict[object, dict[HeldPop, None]] = {}
        self._by_deadline: list[tuple[int, int, HeldPop]] = []
        self._ticket = count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_at(self, place: GroupQueue) -> int:
        """How many pops wait at one place."""
        group, topic, queue_id = place
        held = self._places.get(topic, {}).get(group, {}).get(queue_id, ())
        return sum(isinstance(pop.query, PopQuery) for pop in held)

    def hold(self, pop: HeldPop) -> bool:
        """Keep it waiting; False when there is no room. LimitReached when there is no memory for it."""
        group, topic, queue_id = pop.place
        held = self._places.get(topic, {}).get(group, {}).get(queue_id, ())
        if self._count >= self._count_max() or len(held) >= self._place_max():
            return False
        self._take(pop)
        groups = self._places.setdefault(topic, {})
        if group not in groups:
            for v2 in (False, True):
                self._retry_topics[pop_retry_topic(group, topic, v2=v2)] = GroupTopic(group, topic)
        groups.setdefault(group, {}).setdefault(queue_id, {})[pop] = None
        self._by_owner.setdefault(pop.caller, {})[pop] = None
        heappush(self._by_deadline, (pop.deadline_ms, next(self._ticket), pop))
        self._count += 1
        return True

    def _take(self, pop: HeldPop) -> None:
        owner = pop.caller
        self._memory.take(owner, "held pops", pop.size)
        if pop.filter is EVERYTHING:
            return
        try:
            self._filters.hold(pop.filter, owner, pop.filter.size, lambda: None)
        except LimitReached:
            self._memory.give(owner, "held pops", pop.size)
            raise

    def groups_of(self, topic: str) -> tuple[str, Collection[str]]:
        """Which groups a new message of a topic concerns, and the topic that they wait for: of a retry topic, the one
        group that it is for. To be copied before others come or go."""
        groups = self._places.get(topic)
        if groups is not None:
            return topic, groups.keys()
        target = self._retry_topics.get(topic)
        return (topic, ()) if target is None else (target.topic, (target.group,))

    def of_group(self, group: str, topic: str, queue_id: int = ALL_QUEUES) -> list[HeldPop]:
        """Those of one group: for one queue those that read it, for all of them everyone."""
        queues = self._places.get(topic, {}).get(group, {})
        if queue_id != ALL_QUEUES:
            return self._of(queues, queue_id)
        return self._present(chain.from_iterable(queues.values()))

    def _of(self, queues: dict[int, dict[HeldPop, None]], queue_id: int) -> list[HeldPop]:
        return self._present(chain(queues.get(ALL_QUEUES, ()), queues.get(queue_id, ())))

    def _present(self, pops: Iterator[HeldPop]) -> list[HeldPop]:
        return [pop for pop in pops if not pop.caller.is_closed]

    def has_due(self, now_ms: int) -> bool:
        """Whether the time of one is over."""
        return bool(self._by_deadline) and self._by_deadline[0][0] <= now_ms

    def expired(self, now_ms: int, count_max: int | None = None) -> list[HeldPop]:
        """Take out those whose time is over, `count_max` at the most; those of gone callers vanish."""
        over: list[HeldPop] = []
        while self._by_deadline and self._by_deadline[0][0] <= now_ms and len(over) != count_max:
            pop = heappop(self._by_deadline)[2]
            if pop.waiting:
                self.leave(pop)
                over.append(pop)
        return self._present(iter(over))

    def drop_owner(self, owner: object) -> int:
        """Forget everything of a caller that is gone; how many there were."""
        return at_once(self.dropping(owner))

    def dropping(self, owner: object) -> Steps[int]:
        """As `drop_owner`, in steps: there may be tens of thousands."""
        dropped = list(self._by_owner.get(owner, ()))
        for number, pop in enumerate(dropped, 1):
            self.leave(pop)
            if number % DROPPED_A_STEP == 0:
                yield
        return len(dropped)

    def count_of(self, owner: object) -> int:
        """How many wait for one caller."""
        return len(self._by_owner.get(owner, ()))

    def leave(self, pop: HeldPop) -> None:
        """It does not wait any more."""
        if not pop.waiting:
            return
        pop.waiting = False
        self._memory.give(pop.caller, "held pops", pop.size)
        if pop.filter is not EVERYTHING:
            self._filters.drop(pop.filter, pop.caller)
        self._count -= 1
        group, topic, queue_id = pop.place
        groups = self._places[topic]
        queues = groups[group]
        del queues[queue_id][pop]
        if not queues[queue_id]:
            del queues[queue_id]
        if not queues:
            del groups[group]
            for v2 in (False, True):
                del self._retry_topics[pop_retry_topic(group, topic, v2=v2)]
        if not groups:
            del self._places[topic]
        owned = self._by_owner[pop.caller]
        del owned[pop]
        if not owned:
            del self._by_owner[pop.caller]
        if len(self._by_deadline) > 2 * self._count + SLACK:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].waiting]
            heapify(self._by_deadline)
