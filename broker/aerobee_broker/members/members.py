"""The tables of who is connected, and how groups hear of changes, for whoever needs all of them.

Touches  nothing.
"""

from collections import Counter
from dataclasses import dataclass

from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.members.group_notices import GroupNotices
from aerobee_broker.members.producers import ProducerTable
from aerobee_broker.members.queue_locks import QueueLocks

__all__ = ["Members"]


@dataclass(slots=True, frozen=True)
class Members:
    """Consumers and producers by group, and which consumer holds which queue, and the notices to changed groups."""

    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    notices: GroupNotices

    def producers_online(self) -> Counter[tuple[str, ...]]:
        """How many memberships there are by language and version."""
        return Counter(
            (member.language, str(member.version))
            for _, members in self.producers.all()
            for member in members
        )

    def consumers_online(self) -> Counter[tuple[str, ...]]:
        """How many memberships there are by group, language, version, and how the group consumes."""
        return Counter(
            (group.name, member.language, str(member.version), group.consume_type)
            for group in self.consumers.groups()
            for member in group.members.values()
        )
