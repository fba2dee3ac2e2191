"""How far groups are: where one goes on, and that it has come further.

Touches  nothing but the offsets; the store's queues are looked at.
"""

from collections.abc import Collection

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.catalog.consumer_offsets import OFFSET_MAX, starting_offset
from aerobee_broker.messages.refusals import check_queue
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import GroupQueue
from aerobee_service.turns.slices import Steps
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.reading.stored_messages import StoredMessages
from aerobee_store.store import MessageStore

__all__ = ["Progress"]


class Progress:
    """Commits and tells offsets of groups. All calls from the event loop."""

    def __init__(self, *, store: MessageStore, catalog: Catalog, messages: StoredMessages) -> None:
        """`messages` are `store.reading`, or `store.asking` for callers that know of NotInMemory."""
        self._store = store
        self._messages = messages
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._offsets = catalog.offsets

    def commit(self, queue: GroupQueue, offset: int) -> None:
        """The group reads on from `offset`. Ignored while a reset is pending, which the group has to learn first.

        RequestError for a group, topic or queue that is not there, and for a negative offset.
        """
        self._groups.require_known(queue.group)
        topic = self._topics.require(queue.topic)
        check_queue(queue.topic, queue.queue_id, max(topic.read_queue_nums, topic.write_queue_nums))
        if offset < 0:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"offset {offset} is negative")
        self._offsets.commit(*queue, offset)

    def committed(self, queue: GroupQueue, *, zero_allowed: bool) -> int:
        """The offset that a group committed, or that it should start with; RequestError QUERY_NOT_FOUND without either.

        `zero_allowed`: it may start with the first message of a young queue.
        """
        group, topic, queue_id = queue
        offset = starting_offset(
            self._offsets.get(group, topic, queue_id),
            zero_allowed=zero_allowed and self._topics.has_queue(topic, queue_id),
            min_offset=self._store.reading.min_offset(topic, queue_id),
            first_is_recent=lambda: self._first_is_recent(queue),
        )
        if offset is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"group {group[:255]} has no offset in queue {queue_id} of topic {topic[:255]} yet",
            )
        return offset

    def _first_is_recent(self, queue: GroupQueue) -> bool:
        """Whether the message at queue offset 0 is there and counts as being in memory."""
        result = self._messages.get_message(*queue, 0, 1, 1, None)
        return result.status is GetStatus.FOUND and not result.suggest_slave

    def corrections(
        self, topic: str, *, compared_group: str, without: Collection[str]
    ) -> Steps[dict[int, int]]:
        """How far the slowest group is in each queue; OFFSET_MAX where that is ahead of the compared group."""
        slowest = yield from self._offsets.slowest(topic, without=without)
        for queue_id, compared in self._offsets.of_group(compared_group, topic).items():
            if slowest.get(queue_id, OFFSET_MAX) > compared:
                slowest[queue_id] = OFFSET_MAX
        return slowest
