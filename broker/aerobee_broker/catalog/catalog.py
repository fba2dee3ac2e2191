"""The three tables of what is there and how far it is read, for whoever needs all of them.

Touches  nothing.
"""

from dataclasses import dataclass

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable

__all__ = ["Catalog"]


@dataclass(slots=True, frozen=True)
class Catalog:
    """Topics, groups, and where each group stands in each queue."""

    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
