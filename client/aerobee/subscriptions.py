"""What a group wants of each topic: the topic, a filter, and the forms that brokers know them by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aerobee.errors import InvalidMessage
from aerobee.fetching import parse_tags
from aerobee.outgoing import checked_topic
from aerobee_proto.bodies import SubscriptionData
from aerobee_proto.names import is_retry_topic, retry_topic
from aerobee_proto.records import StoredRecord

__all__ = ["Subscription", "TopicFilter", "Topics", "parse_topics"]

TAG = "TAG"
TopicFilter = str | Iterable[str] | None
Topics = str | Iterable[str] | Mapping[str, TopicFilter]


@dataclass(slots=True, frozen=True)
class Subscription:
    """One topic of a group. `tags` are for the exact test here; None passes everything the broker sends."""

    topic: str
    expression_type: str
    expression: str
    tags: frozenset[str] | None
    version_ms: int

    def matches(self, record: StoredRecord) -> bool:
        """Whether a record that the broker's filter passed is really wanted: tag hashes may collide."""
        return self.tags is None or record.tags in self.tags

    @property
    def data(self) -> SubscriptionData:
        """As heartbeats carry it."""
        if self.expression_type == TAG:
            return SubscriptionData.of_tags(self.topic, self.expression, self.version_ms)
        return SubscriptionData(
            topic=self.topic,
            expression_type=self.expression_type,
            sub_string=self.expression,
            sub_version=self.version_ms,
        )


def parse_topics(topics: Topics, now_ms: int, retries_of: str | None) -> dict[str, Subscription]:
    """The subscriptions meant by one topic, several, or a mapping of topics to filters.

    `retries_of` adds the retry topic of that group. InvalidMessage says what is wrong with a name or a filter.
    """
    wanted: Mapping[str, TopicFilter]
    if isinstance(topics, str):
        wanted = {topics: None}
    elif isinstance(topics, Mapping):
        wanted = topics
    else:
        wanted = dict.fromkeys(topics)
    if not wanted:
        raise InvalidMessage("a consumer needs at least one topic")
    found = {topic: _subscription(checked_topic(topic), wanted[topic], now_ms) for topic in wanted}
    if retries_of is not None and not any(is_retry_topic(topic) for topic in found):
        retries = retry_topic(retries_of)
        found[retries] = Subscription(retries, TAG, "*", None, now_ms)
    return found


def _subscription(topic: str, wanted: TopicFilter, now_ms: int) -> Subscription:
    expression, tags = parse_tags(wanted)
    return Subscription(topic, TAG, expression, tags, now_ms)
