"""The rules for the topics of a group: `%RETRY%<group>`, where a message comes back, `%DLQ%<group>`, where it ends.

Touches  the table of topics, where those of a group are made on demand.
"""

from collections.abc import Callable
from typing import Final

from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_proto import names
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError

__all__ = ["RetryTopics", "reconsume_limit"]

DLQ_QUEUES: Final = 1


def reconsume_limit(group: SubscriptionGroupConfig, asked: int | None) -> int:
    """How often a message comes back to a group before it is a dead letter: as often as is asked for, if it is."""
    return group.retry_max_times if asked is None else asked


class RetryTopics:
    """The rules; they are asked by sends to such topics, and when a message is sent back."""

    def __init__(
        self, groups: SubscriptionGroups, topics: TopicTable, *, is_ordered: Callable[[str], bool]
    ) -> None:
        """`is_ordered`: whether members of a group consume in order now, which nothing may come back to."""
        self._groups = groups
        self._topics = topics
        self._is_ordered = is_ordered

    def group_of(self, retry_topic: str) -> SubscriptionGroupConfig:
        """The group that a retry topic belongs to; SUBSCRIPTION_GROUP_NOT_EXIST when there is none."""
        return self._groups.require(retry_topic.removeprefix(names.RETRY_PREFIX))

    def is_dead_letter(self, retry_topic: str, times: int, limit: int | None) -> bool:
        """Whether a message sent to a retry topic goes to the dead letters: too often, or consumed in order."""
        group = self.group_of(retry_topic)
        return self._is_ordered(group.group_name) or times > reconsume_limit(group, limit)

    def retry_topic(self, group: SubscriptionGroupConfig, *, unit: bool) -> TopicConfig:
        """The group's topic for what comes back, made on demand. SYSTEM_ERROR when it cannot be."""
        return self._made(names.retry_topic(group.group_name), group.retry_queue_nums, unit=unit)

    def dead_letter_topic(self, group: str) -> TopicConfig:
        """The group's topic for dead letters, made on demand. SYSTEM_ERROR when it cannot be."""
        return self._made(names.dlq_topic(group), DLQ_QUEUES)

    def _made(self, topic: str, queue_count: int, *, unit: bool = False) -> TopicConfig:
        found = self._topics.for_group(topic, queue_count=queue_count, unit=unit)
        if found is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"topic {topic} does not exist and could not be made"
            )
        return found
