"""Pulls that found nothing and wait for a message: plain bookkeeping, no clock and no sockets of its own.

A held pull wakes when a message that its filter lets through has become readable in its queue, or when its time
is over. Who calls says what arrived and what time it is, and runs what is returned.

Invariants
- A pull is in the table once, in the queue that it asked for; it leaves when it is returned by `ready`, `take`
  or `expired`, when its `probe` found something, or with its connection.
- The offset of a pull with a probe moves past what did not match: no message is looked at twice for it.
- What a pull keeps in memory is taken from the account of its owner when it comes, and given back when it leaves; a
  filter that many pulls have in common is counted once for each owner.
- Nothing here looks at more than one queue per arrival, at more than the expired pulls per sweep, or at more
  than its own pulls per lost connection.
"""

from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from aerobee_proto.errors import LimitReached
from aerobee_proto.names import QueueKey
from aerobee_remoting.peers.peer_memory import PeerMemory, Shared
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["HeldPull", "HeldPulls"]

PULL_SIZE: Final = 2048  # bytes that one takes with its request, its work and its places in the tables
DROPPED_A_STEP: Final = 128  # that leave in one step; one takes 3 us

K = TypeVar("K")
Owner = TypeVar("Owner")
T = TypeVar("T")


class HeldPull(Generic[Owner, T]):
    """One waiting pull of `owner`. `work` is what is needed to run it again; `offset` the next one it wants.

    `probe` is for filters that tag hashes cannot decide: it looks at the messages from an offset on and returns
    where to go on when none of them matches, None when the pull is worth another look. `shared` is something large that
    the pull keeps and others may keep too, and its size.
    """

    __slots__ = (
        "deadline_ms",
        "offset",
        "owner",
        "probe",
        "queue",
        "shared",
        "tag_filter",
        "waiting",
        "work",
    )

    def __init__(
        self,
        queue: QueueKey,
        offset: int,
        tag_filter: frozenset[int] | None,
        deadline_ms: int,
        owner: Owner,
        work: T,
        probe: Callable[[int], int | None] | None = None,
        shared: tuple[object, int] | None = None,
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.tag_filter = tag_filter
        self.deadline_ms = deadline_ms
        self.owner = owner
        self.work = work
        self.probe = probe
        self.shared = shared
        self.waiting = True

    def accepts(self, max_offset: int, tag_hashes: Collection[int]) -> bool:
        """Whether an arrival is worth another look; `tag_hashes` are those of the new entries. See `probed` too."""
        if max_offset <= self.offset:
            return False
        if self.tag_filter is not None:
            return not self.tag_filter.isdisjoint(tag_hashes)
        return self.probe is None

    def probed(self, max_offset: int) -> bool:
        """Whether a message matches, or so many came that one look did not take them all in."""
        if max_offset <= self.offset or self.probe is None:
            return False
        following = self.probe(self.offset)
        if following is None:
            return True
        self.offset = following
        return following < max_offset


class HeldPulls(Generic[Owner, T]):
    """All waiting pulls of a broker, at most `count_max`, and at most `owner_max` of one owner."""

    def __init__(
        self,
        count_max: int,
        *,
        owner_max: int | None = None,
        is_gone: Callable[[Owner], bool] = lambda _: False,
        memory: PeerMemory | None = None,
    ) -> None:
        self._memory = memory or PeerMemory()
        self._shared = Shared[None](self._memory, "filters of held pulls")
        self._count_max = count_max
        self._owner_max = count_max if owner_max is None else owner_max
        self._is_gone = is_gone
        # Pulls in the order in which they came; a dict, because they leave one by one from anywhere.
        # Looked up by plain tuples, which are equal: a QueueKey takes 0.25 us to make.
        self._by_queue: dict[tuple[str, int], dict[HeldPull[Owner, T], None]] = {}
        self.waiting: Sized = self._by_queue  # empty when no pull waits: to be asked without a call
        self._by_owner: dict[Owner, dict[HeldPull[Owner, T], None]] = {}
        self.by_deadline: list[tuple[int, int, HeldPull[Owner, T]]] = []
        self._ticket = count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._count_max

    def count_of(self, owner: Owner) -> int:
        """How many pulls wait for one owner."""
        return len(self._by_owner.get(owner, ()))

    def hold(self, pull: HeldPull[Owner, T]) -> bool:
        """Keep the pull waiting; False when the table, or its owner's share, is full and it must be refused.

        LimitReached when there is no memory for it.
        """
        if self.is_full or self.count_of(pull.owner) >= self._owner_max:
            return False
        self._take(pull)
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_owner.setdefault(pull.owner, {})[pull] = None
        heappush(self.by_deadline, (pull.deadline_ms, next(self._ticket), pull))
        self._count += 1
        return True

    def _take(self, pull: HeldPull[Owner, T]) -> None:
        self._memory.take(pull.owner, "held pulls", PULL_SIZE)
        if pull.shared is None:
            return
        try:
            self._shared.hold(pull.shared[0], pull.owner, pull.shared[1], lambda: None)
        except LimitReached:
            self._memory.give(pull.owner, "held pulls", PULL_SIZE)
            raise

    def _give(self, pull: HeldPull[Owner, T]) -> None:
        self._memory.give(pull.owner, "held pulls", PULL_SIZE)
        if pull.shared is not None:
            self._shared.drop(pull.shared[0], pull.owner)

    def waits_in(self, topic: str, queue_id: int) -> bool:
        """Whether any pull waits in a queue."""
        return (topic, queue_id) in self._by_queue

    def ready(
        self, topic: str, queue_id: int, max_offset: int, tag_hashes: Sequence[int]
    ) -> list[HeldPull[Owner, T]]:
        """Take out the pulls that an arrival wakes, and those whose owner is gone with them; but for `to_probe`."""
        return self.ready_of(self._by_queue.get((topic, queue_id), ()), max_offset, tag_hashes)

    def ready_of(
        self, pulls: Iterable[HeldPull[Owner, T]], max_offset: int, tag_hashes: Collection[int]
    ) -> list[HeldPull[Owner, T]]:
        """As `ready`, of some of the pulls of a queue; those that have left it since are passed over."""
        woken = [pull for pull in pulls if pull.waiting and pull.accepts(max_offset, tag_hashes)]
        self._leave(woken)
        return [pull for pull in woken if not self._is_gone(pull.owner)]

    def of_queue(self, topic: str, queue_id: int) -> Collection[HeldPull[Owner, T]]:
        """The pulls that wait in a queue, in the order in which they came; to be copied before others come or go."""
        return self._by_queue.get((topic, queue_id), ())

    def to_probe(self, topic: str, queue_id: int) -> list[HeldPull[Owner, T]]:
        """The pulls that have to look at an arrival themselves: each takes its time. They stay, see `probe`."""
        return [pull for pull in self._by_queue.get((topic, queue_id), ()) if pull.probe is not None]

    def probe(self, pull: HeldPull[Owner, T], max_offset: int) -> bool:
        """Let a pull look at what arrived; True when that wakes it: it is taken out."""
        if not pull.waiting or self._is_gone(pull.owner) or not pull.probed(max_offset):
            return False
        self._leave([pull])
        return True

    def take(
        self, pulls: Iterable[HeldPull[Owner, T]], predicate: Callable[[T], bool]
    ) -> list[HeldPull[Owner, T]]:
        """Take out those of some pulls whose work the `predicate` accepts; those of gone owners vanish. Pulls that have
        left since are passed over."""
        taken = [pull for pull in pulls if pull.waiting and predicate(pull.work)]
        self._leave(taken)
        return [pull for pull in taken if not self._is_gone(pull.owner)]

    def expired(self, now_ms: int, count_max: int | None = None) -> list[HeldPull[Owner, T]]:
        """Take out the pulls whose time is over, `count_max` at the most; those of gone owners vanish."""
        over: list[HeldPull[Owner, T]] = []
        while self.by_deadline and self.by_deadline[0][0] <= now_ms and len(over) != count_max:
            pull = heappop(self.by_deadline)[2]
            if pull.waiting:
                over.append(pull)
        self._leave(over)
        return [pull for pull in over if not self._is_gone(pull.owner)]

    def drop_owner(self, owner: Owner) -> int:
        """Forget every pull of a lost connection; how many there were."""
        return at_once(self.dropping(owner))

    def dropping(self, owner: Owner) -> Steps[int]:
        """As `drop_owner`, in steps: it may have tens of thousands."""
        dropped = list(self._by_owner.get(owner, ()))
        for start in range(0, len(dropped), DROPPED_A_STEP):
            self._leave([pull for pull in dropped[start : start + DROPPED_A_STEP] if pull.waiting])
            yield
        return len(dropped)

    def has_due(self, now_ms: int) -> bool:
        """Whether the time of some pull is over."""
        return bool(self.by_deadline) and self.by_deadline[0][0] <= now_ms

    def _leave(self, pulls: list[HeldPull[Owner, T]]) -> None:
        for pull in pulls:
            pull.waiting = False
            self._give(pull)
            _remove(self._by_queue, pull.queue, pull)
            _remove(self._by_owner, pull.owner, pull)
        self._count -= len(pulls)
        if len(self.by_deadline) > 2 * self._count + 64:  # drop the entries of pulls that have left
            self.by_deadline = [entry for entry in self.by_deadline if entry[2].waiting]
            heapify(self.by_deadline)


def _remove(table: dict[K, dict[HeldPull[Owner, T], None]], key: K, pull: HeldPull[Owner, T]) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
