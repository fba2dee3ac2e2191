"""What a send is checked against: settings and topics as they are now, looked up once and kept while they stay.

Touches  the table of topics, where a topic may be made for its first send.
"""

import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.refusals import (
    check_broker_writable,
    check_queue,
    check_sendable,
    check_writable,
)
from aerobee_broker.messages.retry_topics import RetryTopics
from aerobee_broker.messages.stored_properties import StoredProperties
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_broker.stats import BrokerStats, TopicCounters
from aerobee_proto import names
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import SysFlag
from aerobee_proto.message_ids import UniqueKeyFactory

__all__ = ["Intake", "Route", "RouteBook", "ToPublish"]

log = structlog.get_logger()

DEAD_LETTER: Final = "\x02DELAY\x01-1\x02"  # behind other properties, where it wins
ROUTES_MAX: Final = 65_536


class ToPublish(Protocol):
    """A message as its sender describes it, or what the messages of a batch have in common; never changed here."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int:
        """Below 0: any queue of the topic."""
        ...

    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def max_reconsume_times(self) -> int | None:
        """How often it may come back to its group; None: as often as the group says."""
        ...

    @property
    def properties(self) -> str:
        """All of them as one text."""
        ...

    @property
    def default_topic(self) -> str:
        """The topic whose settings a topic is made with that does not exist yet."""
        ...

    @property
    def default_topic_queue_nums(self) -> int: ...
    @property
    def unit_mode(self) -> bool: ...


class RouteBook(Protocol):
    """Who takes messages by itself, and has to know where they may go."""

    def add_route(self, topic: str, counters: object, queue_id_limit: int, sys_flag: int) -> None:
        """They may go to this topic, to the queues below the limit; which counters count them, which flags they get."""

    def clear_routes(self) -> None:
        """Where they may go has to be asked for anew."""


class Route:
    """What the hot path needs of a topic, kept while no topic changes."""

    __slots__ = ("config", "counters", "is_new", "queue_id_limit", "sys_flag", "takes_batches", "topic")

    def __init__(
        self, config: TopicConfig, counters: TopicCounters, *, takes_batches: bool, is_new: bool = False
    ) -> None:
        self.config = config
        self.is_new = is_new  # the topic was made by the send that asked for this route
        self.counters = counters
        # Messages carry this one text, not each its own: tables find it without a comparison.
        self.topic = config.topic_name
        # None is within the limit of a retry topic: every send to it is looked at more closely.
        retry = names.is_retry_topic(config.topic_name)
        self.queue_id_limit = 0 if retry else max(config.read_queue_nums, config.write_queue_nums)
        self.takes_batches = takes_batches  # as one record
        self.sys_flag = SysFlag.MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0


class Intake:
    """Routes by topic, and the settings in use. `refresh` first, in each turn of the event loop."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicTable,
        retry_topics: RetryTopics,
        stats: BrokerStats,
        *,
        is_batch_topic: Callable[[str], bool],
        unique_keys: UniqueKeyFactory,
    ) -> None:
        self._live = live
        self._topics = topics
        self._retry_topics = retry_topics
        self._stats = stats
        self._is_batch_topic = is_batch_topic
        self._new_unique_key = unique_keys.next_key
        self._topic_changes = -1  # of the topic table, when the routes were made
        self.routes: dict[str, Route] = {}
        self._book: RouteBook | None = None  # is told of each route
        self._use(live.value)

    def keep_book(self, book: RouteBook | None) -> None:
        """Tell this one from now on where messages may go."""
        self._book = book
        self._forget_routes()

    def _forget_routes(self) -> None:
        self.routes.clear()
        if self._book is not None:
            self._book.clear_routes()

    def refresh(self) -> None:
        """Check every topic anew when a topic changed, take over settings that were replaced."""
        if self._live.value is not self.config:
            self._use(self._live.value)
        if self._topics.changes != self._topic_changes:
            self._topic_changes = self._topics.changes
            self._forget_routes()

    def _use(self, config: BrokerConfig) -> None:
        """Take over settings; called again when they were replaced in the running broker."""
        self.config = config
        self._forget_routes()  # every topic is checked anew
        self.stored_properties = StoredProperties(
            region=config.region_id,
            trace_on=config.trace_on,
            cluster=config.broker_cluster_name,
            new_unique_key=self._new_unique_key,
        )

    def route(self, message: ToPublish) -> Route:
        """The topic's route, made anew; refuses what may not be sent to, creates what may be created."""
        topic = message.topic
        check_broker_writable(self.config)
        check_sendable(topic)
        if names.is_retry_topic(topic):
            self._retry_topics.group_of(topic)
        changes = self._topics.changes
        found = self._topics.for_send(
            topic,
            template=message.default_topic,
            queue_count=message.default_topic_queue_nums,
            unit=message.unit_mode,
        )
        check_writable(found)
        return self._remember(found, is_new=self._topics.changes != changes)

    def lacks(self, topics: Iterable[str]) -> int:
        """How many of these topics there are not."""
        known = self._topics
        return sum([topic not in known for topic in topics])

    def _remember(self, config: TopicConfig, *, is_new: bool = False) -> Route:
        if len(self.routes) >= ROUTES_MAX:
            self._forget_routes()
        route = self.routes[config.topic_name] = Route(
            config,
            self._stats.of_topic(config.topic_name),
            takes_batches=self._is_batch_topic(config.topic_name),
            is_new=is_new,
        )
        if self._book is not None and route.queue_id_limit:
            self._book.add_route(route.topic, route.counters, route.queue_id_limit, route.sys_flag)
        return route

    def unusual_queue(self, message: ToPublish, route: Route, limit: int | None) -> tuple[Route, int, str]:
        """Where a message goes whose queue is not simply one of its topic's, and its properties: any queue, or a
        retry topic, where `limit` is how often it may come back, None as often as the group says. RequestError:
        nowhere."""
        topic = route.topic
        retries = self._retry_topics
        if not names.is_retry_topic(topic) or not retries.is_dead_letter(
            topic, message.reconsume_times, limit
        ):
            return route, self.any_queue(route, message.queue_id), message.properties
        group = topic.removeprefix(names.RETRY_PREFIX)
        dead = retries.dead_letter_topic(group)
        log.debug("broker.dead_lettered", group=group, topic=topic, reconsume_times=message.reconsume_times)
        known = self.routes.get(dead.topic_name)
        if known is None or known.config is not dead:
            known = self._remember(dead)
        return known, 0, message.properties + DEAD_LETTER

    @staticmethod
    def any_queue(route: Route, queue_id: int) -> int:
        """The queue itself, or any when it is below 0. RequestError when there is none such."""
        config = route.config
        if queue_id < 0:
            return random.randrange(config.write_queue_nums)  # noqa: S311  # spread, not secrecy
        check_queue(
            config.topic_name,
            queue_id,
            max(config.read_queue_nums, config.write_queue_nums),
        )
        return queue_id
