"""What a group wants of each topic: the topic, a filter, and the form that brokers know them by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aerobee.errors import InvalidMessage
from aerobee.messages.outgoing import checked_topic
from aerobee.terms.filters import Filter, filter_of
from aerobee_proto.bodies import SubscriptionData
from aerobee_proto.names import is_retry_topic, retry_topic

__all__ = ["Subscription", "TopicFilter", "Topics", "parse_topics"]

TopicFilter = Filter | str | Iterable[str] | None
Topics = str | Iterable[str] | Mapping[str, TopicFilter]


@dataclass(slots=True, frozen=True)
class Subscription:
    """One topic of a group; `version_ms` orders a client's subscriptions in time."""

    topic: str
    filter: Filter
    version_ms: int

    @property
    def data(self) -> SubscriptionData:
        """As heartbeats carry it."""
        return self.filter.subscription(self.topic, self.version_ms)


def parse_topics(topics: Topics, now_ms: int, retries_of: str | None) -> dict[str, Subscription]:
    """The subscriptions meant by one topic, several, or a mapping of topics to filters.

    `retries_of` adds the retry topic of that group. InvalidMessage says what is wrong with a name or a filter.
    """
    filter_by_topic: Mapping[str, TopicFilter]
    if isinstance(topics, str):
        filter_by_topic = {topics: None}
    elif isinstance(topics, Mapping):
        filter_by_topic = topics
    else:
        filter_by_topic = dict.fromkeys(topics)
    if not filter_by_topic:
        raise InvalidMessage("a consumer needs at least one topic")
    found = {
        topic: Subscription(checked_topic(topic), filter_of(filter_by_topic[topic]), now_ms)
        for topic in filter_by_topic
    }
    if retries_of is not None and not any(is_retry_topic(topic) for topic in found):
        retries = retry_topic(retries_of)
        found[retries] = Subscription(retries, filter_of(None), now_ms)
    return found
