"""The tables of who is connected, and how groups hear of changes, for whoever needs all of them.

Touches  nothing.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.members.group_notices import GroupNotices
from aerobee_broker.members.producers import ProducerTable
from aerobee_broker.members.queue_locks import QueueLocks
from aerobee_service.turns.slices import Steps

__all__ = ["Members"]

MEMBERS_A_STEP: Final = 256  # that are counted in one step


@dataclass(slots=True, frozen=True)
class Members:
    """Consumers and producers by group, and which consumer holds which queue, and the notices to changed groups."""

    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    notices: GroupNotices

    def producers_online(self) -> Steps[Counter[tuple[str, ...]]]:
        """How many memberships there are by language and version."""
        counts: Counter[tuple[str, ...]] = Counter()
        for group in self.producers.groups():
            for number, member in enumerate(self.producers.members(group)):
                counts[member.language, str(member.version)] += 1
                if number % MEMBERS_A_STEP == 0:
                    yield
        return counts

    def consumers_online(self) -> Steps[Counter[tuple[str, ...]]]:
        """How many memberships there are by group, language, version, and how the group consumes."""
        counts: Counter[tuple[str, ...]] = Counter()
        for group in list(self.consumers.groups()):
            for number, member in enumerate(list(group.members.values())):
                counts[group.name, member.language, str(member.version), group.consume_type] += 1
                if number % MEMBERS_A_STEP == 0:
                    yield
        return counts
