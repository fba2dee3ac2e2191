"""Reading for POP: which queues a group reads, where it stands in each, and what it finds from there on.

Touches  the store; the group's positions, which pass over what is not for it.

A pop reads the group's next messages of one queue, or of all queues of the topic from a random one on; in one of
five pops the group's retry topics come first (popFromRetryProbability), otherwise last. In a queue that is popped in
order the group stays where it is until messages are acknowledged, and nothing is read while any is invisible.

Invariants
- Nothing that is found here is the group's yet: no position passes over it.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.members.filters import EVERYTHING, Filter
from aerobee_broker.messages.refusals import (
    check_broker_readable,
    check_consumes,
    check_queue,
    check_readable,
)
from aerobee_broker.pop.extra_info import pop_retry_topic
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.values import Popped, PopQuery
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import RETRY_PREFIX, GroupQueue
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.reading.get_message import GetResult, GetStatus
from aerobee_store.store import MessageStore

__all__ = ["QueueReader"]

BODY_SIZE_MAX: Final = 4 << 20
BROUGHT_MAX: Final = 64  # stretches of cold queues that one pop has brought
SCANS_MAX: Final = 16  # reads of one queue that found nothing but filtered messages, in one pop
QUEUE_OFFSET: Final = Struct(">i16xq")  # size and queue offset of a record
MISPLACED: Final = frozenset(
    {GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL}
)
PASSED_OVER: Final = MISPLACED | {GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING}


class QueueReader:
    """Reads queues for groups that pop. All calls from the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        orders: OrderTable,
        *,
        live: LiveConfig,
        store: MessageStore,
        catalog: Catalog,
        random_below: Callable[[int], int],
    ) -> None:
        """`random_below(n)` gives a number from 0 to n - 1."""
        self._ledger = ledger
        self._orders = orders
        self._live = live
        self._store = store
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._offsets = catalog.offsets
        self._random_below = random_below

    def check(self, place: GroupQueue) -> TopicConfig:
        """The settings of a topic that the group may pop. RequestError otherwise."""
        group, name, queue_id = place
        check_broker_readable(self._live.value)
        topic = self._topics.require(name)
        check_readable(topic)
        if queue_id >= 0:  # otherwise all of them
            check_queue(name, queue_id, topic.read_queue_nums)
        if self._store.topics.is_batch(name):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {name} has queues of batches (queue.type=BatchCQ), which are not popped: a batch could"
                " be acknowledged as a whole only, and not come back; pull it, or consume it with a push consumer",
            )
        check_consumes(self._groups.require(group))
        return topic

    # --- popping ----------------------------------------------------------------------------------------------

    def pop(self, query: PopQuery, message_filter: Filter) -> Popped:
        """The next messages of the group that are `message_filter`; it has moved past others that came before them.

        RequestError: the topic is not there. NotInMemory: something is there, but nothing that is in memory.
        """
        popped = self._pop(query, message_filter)
        if popped.missing:
            missing = NotInMemory(
                [one for found in popped.missing for one in found.needed][:BROUGHT_MAX],
                [one for found in popped.missing for one in found.ahead][:BROUGHT_MAX],
            )
            if not popped.count:
                raise missing
            self._store.residency.ahead(missing)
        return popped

    def _pop(self, query: PopQuery, message_filter: Filter) -> Popped:
        popped = Popped()
        queues = self._queues(self._topics.require(query.place.topic), query.place)
        if query.in_order:  # what comes back does so in its own place
            self._pop_queues(query, queues, message_filter, popped)
            return popped

        # Mostly new messages go first, but not always: while new ones keep coming, old ones would never come back.
        if self._random_below(100) < self._live.value.pop_from_retry_probability:
            self._pop_queues(query, self._retry_queues(query.place), message_filter, popped)
            self._pop_queues(query, queues, message_filter, popped)
            return popped
        self._pop_queues(query, queues, message_filter, popped)
        if popped.count < query.count:
            self._pop_queues(query, self._retry_queues(query.place), message_filter, popped)
        return popped

    def _queues(self, topic: TopicConfig, place: GroupQueue) -> list[GroupQueue]:
        group, name, queue_id = place
        if queue_id >= 0:
            return [place]
        count = topic.read_queue_nums
        first = self._random_below(count)
        return [GroupQueue(group, name, (first + i) % count) for i in range(count)]

    def _retry_queues(self, place: GroupQueue) -> list[GroupQueue]:
        """Queues of the retry topics that the group has for this topic."""
        group, config = place.group, self._live.value
        v2 = config.enable_retry_topic_v2
        versions = [v2] + ([False] if v2 and config.retrieve_message_from_pop_retry_topic_v1 else [])
        found: list[GroupQueue] = []
        for version in versions:
            name = pop_retry_topic(group, place.topic, v2=version)
            topic = self._topics.get(name)
            if topic is not None:
                found += [GroupQueue(group, name, queue_id) for queue_id in range(topic.read_queue_nums)]
        return found

    def _pop_queues(
        self, query: PopQuery, queues: Iterable[GroupQueue], message_filter: Filter, popped: Popped
    ) -> None:
        for queue in queues:
            left = query.count - popped.count
            if left <= 0:
                popped.rest += self._rest(queue)
                continue
            try:
                self._pop_queue(query, queue, left, message_filter, popped)
            except NotInMemory as missing:  # another queue may have something
                popped.missing.append(missing)
                popped.rest += self._rest(queue)

    def _rest(self, queue: GroupQueue) -> int:
        position = self._ledger.position(queue)
        end = self._store.reading.max_offset(queue.topic, queue.queue_id)
        return max(0, end - position) if position is not None else 0

    def _pop_queue(
        self, query: PopQuery, queue: GroupQueue, left: int, message_filter: Filter, popped: Popped
    ) -> None:
        # The position comes first: it carries out a reset that waits, and that ends a block.
        offset = self._position(queue, from_first=query.from_first)
        if query.in_order and self._orders.is_blocked(queue, query.attempt_id):
            return
        if self._has_too_many(queue):
            popped.rest += self._rest(queue)
            return

        # Past what is not for the group, so that nobody looks at it again; so far only that others are served, too.
        # Who finds nothing within SCANS_MAX reads goes on in a later turn, as long as something is left.
        result = self._read(queue, offset, left, message_filter)
        for _ in range(SCANS_MAX):
            if (
                result is None
                or result.count
                or result.status not in PASSED_OVER
                or result.next_offset == offset
            ):
                break
            offset = result.next_offset
            self._move(queue, offset, in_order=query.in_order)
            result = self._read(queue, offset, left, message_filter)
        if result is None:
            return
        popped.rest += max(0, result.max_offset - result.next_offset)
        if result.count:
            popped.take(queue, offset, result, _offsets_of(result, offset))

    def _read(self, queue: GroupQueue, offset: int, left: int, message_filter: Filter) -> GetResult | None:
        """The next messages of a queue; None when there are none."""
        group, topic, queue_id = queue
        store = self._store
        if store.reading.max_offset(topic, queue_id) == offset:
            return None
        return store.asking.get_message(
            group,
            topic,
            queue_id,
            offset,
            left,
            BODY_SIZE_MAX,
            message_filter.tag_hashes,
            message_filter.selector,
        )

    def _has_too_many(self, queue: GroupQueue) -> bool:
        config = self._live.value
        return (
            config.enable_pop_message_threshold
            and self._ledger.table.in_flight(queue) > config.pop_inflight_message_threshold
        )

    def _move(self, queue: GroupQueue, offset: int, *, in_order: bool) -> None:
        if in_order:
            self._offsets.commit(*queue, offset)
        else:
            self._ledger.move(queue, offset)

    # --- where groups stand -----------------------------------------------------------------------------------

    def _position(self, queue: GroupQueue, *, from_first: bool) -> int:
        """Where the group goes on; where it begins, when it is new."""
        reset = self._ledger.take_reset(queue)
        if reset is not None:
            self._orders.clear(queue)
            return reset
        known = self._ledger.position(queue)
        if known is not None:
            return known
        first = self._first_offset(queue.topic, queue.queue_id, from_first=from_first)
        self._offsets.commit(*queue, first)
        return first

    def _first_offset(self, topic: str, queue_id: int, *, from_first: bool) -> int:
        """The first offset of the queue, or its last message, unless the queue is young."""
        store = self._store
        low, high = store.reading.min_offset(topic, queue_id), store.reading.max_offset(topic, queue_id)
        if from_first or topic.startswith(RETRY_PREFIX):
            return low
        if low <= 0 and self._live.value.init_pop_offset_by_check_msg_in_mem:
            result = store.asking.get_message("", topic, queue_id, 0, 1, 1, None)
            if result.status is GetStatus.FOUND and not result.suggest_slave:
                return 0
        return max(0, high - 1)

    # --- looking only -----------------------------------------------------------------------------------------

    def peek(self, place: GroupQueue, count: int) -> Popped:
        """The group's next messages, which stay where they are. RequestError: it may not pop this topic."""
        topic = self.check(place)
        popped = Popped()
        for queue in [*self._queues(topic, place), *self._retry_queues(place)]:
            offset = self._next_offset(queue)
            result = self._read(queue, offset, count - popped.count, EVERYTHING)
            if result is not None and result.status in MISPLACED:
                result = self._read(queue, result.next_offset, count - popped.count, EVERYTHING)
            if result is not None:
                popped.rest += max(0, result.max_offset - result.next_offset)
                if result.count:
                    popped.take(queue, offset, result, _offsets_of(result, offset))
            if popped.count >= count:
                break
        return popped

    def has_messages(self, place: GroupQueue, *, in_order: bool, attempt_id: str | None) -> bool:
        """Whether a pop of this place may find something now; False too when the topic is gone."""
        topic = self._topics.get(place.topic)
        if topic is None:
            return False
        queues = self._queues(topic, place)
        if in_order:
            queues = [queue for queue in queues if not self._orders.is_blocked(queue, attempt_id)]
        return any(
            self._store.reading.max_offset(queue.topic, queue.queue_id) > self._next_offset(queue)
            for queue in [*queues, *self._retry_queues(place)]
        )

    def _next_offset(self, queue: GroupQueue) -> int:
        """Where the group stands, or the first message when it is new here."""
        offset = self._ledger.position(queue)
        return self._store.reading.min_offset(queue.topic, queue.queue_id) if offset is None else offset


def _offsets_of(result: GetResult, offset: int) -> Sequence[int]:
    """The queue offsets of the records of a read that began at `offset`."""
    if result.next_offset - offset == result.count:
        return range(offset, result.next_offset)
    found = []
    for piece in result.body:
        at = 0
        while at < len(piece):
            size, queue_offset = QUEUE_OFFSET.unpack_from(piece, at)
            found.append(queue_offset)
            at += size
    return found
