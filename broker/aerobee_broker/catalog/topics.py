"""The topics of this broker: their settings, their creation, their file `config/topics.json`.

Touches  nothing by itself; `config_files` writes the table, `on_change` tells the registrar.

Invariants
- `version` moves with every change that nameservers must hear of; `revision` with every change that must
  reach the file. System topics that start adds move neither, as in RocketMQ.
- `changes` moves with every change: while it stands, what was looked up here holds.
- A topic's name has passed the name rules before it enters the table by a request: it becomes a folder.
- A topic has at least one queue and at most `maxQueuesPerTopic`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from aerobee_broker.catalog.attributes import alter
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_broker.settings.config_files import table_of
from aerobee_proto import bodies, names
from aerobee_proto.bodies import DataVersion, TopicConfig
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_store.queues.batch_queues import BATCH_KIND, QUEUE_KIND

__all__ = ["TopicTable", "has_batch_queues", "system_topics", "unknown_topic"]

log = structlog.get_logger()

UNIT_FLAG: Final = 1
AUTO_CREATED: Final = "maxTopicsAutoCreated"
# Attributes that come with a store of RocketMQ: the values that are served, and what the others would lead to.
SERVED: Final = {
    QUEUE_KIND: (("SimpleCQ", BATCH_KIND), "its messages would be numbered wrongly"),
    "cleanup.policy": (
        ("DELETE",),
        "the newest messages of its keys would be deleted with the old files of the log, as all others",
    ),
}
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class TopicTable:
    """Topic name -> TopicConfig. All calls from the event loop; values are replaced, never changed in place."""

    file_name = "topics.json"

    def __init__(
        self,
        live: LiveConfig,
        clock: Callable[[], int],
        *,
        on_dirty: Callable[[], None],
        on_change: Callable[[Sequence[TopicConfig]], None],
        on_created: Callable[[TopicConfig], None] = lambda _: None,
    ) -> None:
        """Called after each change: `on_dirty`, as the file is behind, then `on_change` with the new settings of the
        topics that nameservers must hear of; `on_created` after that, with one that a send has made of its template."""
        self._live = live
        self._on_dirty = on_dirty
        self._on_change = on_change
        self._on_created = on_created
        self._clock = clock
        self._topics: dict[str, TopicConfig] = {}
        self._created_by_sends = 0
        self.is_copy = False  # of a slave: nothing is created by use, `follow` says what there is
        self.version = DataVersion(timestamp=clock())
        self.revision = 0
        self.changes = 0
        self.ensure_system_topics()

    # --- looking up -------------------------------------------------------------------------------------------

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def all(self) -> dict[str, TopicConfig]:
        """A copy of the table, by name."""
        return dict(self._topics)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the topic is here and has the queue, for reading or for writing."""
        config = self._topics.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def require(self, topic: str) -> TopicConfig:
        """The topic's settings; RequestError TOPIC_NOT_EXIST when there is none."""
        config = self._topics.get(topic)
        if config is None:
            raise unknown_topic(topic)
        return config

    def is_system(self, topic: str) -> bool:
        """Whether users may not administer this topic."""
        config = self._live.value
        return names.is_system_topic(
            topic, cluster_name=config.broker_cluster_name, broker_name=config.broker_name
        )

    # --- creating by use --------------------------------------------------------------------------------------

    def for_send(self, topic: str, *, template: str, queue_count: int, unit: bool = False) -> TopicConfig:
        """The topic that a send goes to, created from its template when it is unknown.

        RequestError TOPIC_NOT_EXIST says why it was not created, INVALID_PARAMETER that the name is bad.
        """
        found = self._topics.get(topic)
        if found is not None:
            _check_served(found)
            return found
        names.check_topic(topic)
        model = self._topics.get(template)
        refused = self._why_not_create(template, model)
        if refused is None and model is not None:
            count = max(1, min(queue_count, model.write_queue_nums))
            created = self._create(
                topic,
                count,
                model.perm & ~Perm.INHERIT,
                model.topic_filter_type,
                UNIT_FLAG if unit else 0,
            )
            self._on_created(created)
            return created
        if names.is_retry_topic(topic):
            return self._create(topic, 1, Perm.READ_WRITE, "SINGLE_TAG", UNIT_FLAG if unit else 0)
        if refused == AUTO_CREATED:
            raise LimitReached(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist here and was not created: "
                f"{self._created_by_sends} topics were created by sends already",
                AUTO_CREATED,
            )
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {topic} does not exist here and was not created: {refused}",
        )

    def adopt(self, topic: TopicConfig) -> None:
        """Create a topic as a send has created it at another worker of the same service, unless it is here or this
        one has no room for it."""
        name = topic.topic_name
        if name in self._topics or self._why_not_create(names.TEMPLATE_TOPIC, self.get(names.TEMPLATE_TOPIC)):
            return
        try:
            self._create(
                name, topic.write_queue_nums, topic.perm, topic.topic_filter_type, topic.topic_sys_flag
            )
        except LimitReached as full:
            log.warning("broker.topic_not_shared", topic=name, reason=str(full))

    def _why_not_create(self, template: str, model: TopicConfig | None) -> str | None:
        config = self._live.value
        if not config.auto_create_topic_enable:
            return "autoCreateTopicEnable is off"
        if model is None:
            return f"its template topic {template[:127]} does not exist"
        if not model.perm & Perm.INHERIT:
            return f"its template topic {template[:127]} lets nothing inherit"
        if self._created_by_sends >= config.max_topics_auto_created:
            return AUTO_CREATED
        return None

    def for_group(self, topic: str, *, queue_count: int, unit: bool = False) -> TopicConfig | None:
        """A retry or dead-letter topic, created on demand; None when the group wants no queues."""
        found = self._topics.get(topic)
        if found is not None or queue_count < 1 or self.is_copy:
            return found
        names.check_topic(topic, internal=True)
        return self._create(topic, queue_count, Perm.READ_WRITE, "SINGLE_TAG", UNIT_FLAG if unit else 0)

    def _create(
        self, topic: str, queue_count: int, perm: int, filter_type: str, sys_flag: int
    ) -> TopicConfig:
        self._check_count(topic, 1)
        limit = self._live.value.max_queues_per_topic
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=min(queue_count, limit),
            write_queue_nums=min(queue_count, limit),
            perm=perm,
            topic_filter_type=filter_type,
            topic_sys_flag=sys_flag,
        )
        self._created_by_sends += 1
        self._topics[topic] = created
        log.info("broker.topic_created", topic=topic, queue_count=created.write_queue_nums, by="use")
        self._changed([created])
        return created

    def _check_count(self, topic: str, new_count: int) -> None:
        """LimitReached when the table cannot take so many more; system topics come first and always find room."""
        limit = self._live.value.max_topics
        if new_count and len(self._topics) + new_count > limit:
            raise LimitReached(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist here and was not created: there are {len(self._topics)} topics,"
                f" at most {limit} are allowed; delete unused ones or raise the limit",
                "maxTopics",
            )

    def restore(self, queue_counts: Mapping[str, int], batch_topics: Collection[str] = ()) -> list[str]:
        """Add topics that have stored queues but no settings (a crash came between), and name them. `batch_topics` have
        queues of batches."""
        lost = sorted(topic for topic in queue_counts if topic not in self._topics)
        for topic in lost:
            count = max(1, queue_counts[topic])
            attributes = {QUEUE_KIND: BATCH_KIND} if topic in batch_topics else {}
            self._topics[topic] = TopicConfig(
                topic_name=topic, read_queue_nums=count, write_queue_nums=count, attributes=attributes
            )
        if lost:
            log.warning("broker.topics_restored", topics=lost, reason="stored messages, but no settings")
            self._changed([self._topics[topic] for topic in lost])
        return lost

    # --- administration ---------------------------------------------------------------------------------------

    def check_update(self, requested: TopicConfig, alterations: Mapping[str, str]) -> TopicConfig:
        """The settings that a request to create or update a topic would leave. Raises RequestError."""
        topic = requested.topic_name
        names.check_topic(topic, internal=True)
        if self._live.value.validate_system_topic_when_update_topic and self.is_system(topic):
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"topic {topic} belongs to the broker itself")
        limit = self._live.value.max_queues_per_topic
        for what, count in (("read", requested.read_queue_nums), ("write", requested.write_queue_nums)):
            if not 0 < count <= limit:
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {topic} cannot have {count} {what} queues; allowed: 1 to {limit}",
                )
        if not 0 <= requested.perm <= 7:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"perm {requested.perm} of topic {topic} is not within 0 to 7"
            )
        if requested.topic_filter_type not in FILTER_TYPES:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topicFilterType {requested.topic_filter_type[:40]!r} is not one of {', '.join(FILTER_TYPES)}",
            )
        known = self._topics.get(topic)
        current = {} if known is None else known.attributes
        attributes = alter(current, alterations, creating=known is None)
        return msgspec.structs.replace(requested, attributes=attributes)

    def update(self, requested: Sequence[TopicConfig]) -> list[TopicConfig]:
        """Put checked settings into the table; the ones that are new or differ. LimitReached: too many topics."""
        changed = [config for config in requested if self._topics.get(config.topic_name) != config]
        self.check_room(changed)
        for config in changed:
            created = config.topic_name not in self._topics
            self._topics[config.topic_name] = config
            log.info(
                "broker.topic_created" if created else "broker.topic_updated",
                topic=config.topic_name,
                queue_count=config.write_queue_nums,
                perm=config.perm,
                by="request",
            )
        if changed:
            self._changed(changed)
        return changed

    def check_room(self, requested: Sequence[TopicConfig]) -> None:
        """LimitReached when the table cannot take those of them that are new."""
        new = [config.topic_name for config in requested if config.topic_name not in self._topics]
        self._check_count(", ".join(new[:3]), len(new))

    def check_delete(self, topic: str) -> None:
        """RequestError INVALID_PARAMETER when this topic may not be deleted."""
        if not topic or topic.isspace():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "the topic to delete has no name")
        if self._live.value.validate_system_topic_when_update_topic and self.is_system(topic):
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"topic {topic} belongs to the broker itself")

    def delete(self, topic: str) -> bool:
        """Forget a topic; False when it was unknown. Its queues and offsets are the caller's to delete."""
        if self._topics.pop(topic, None) is None:
            return False
        log.info("broker.topic_deleted", topic=topic)
        self._changed([])
        return True

    def mark_ordered(self, ordered: Iterable[str]) -> list[str]:
        """Set `order` on exactly these topics, as the nameservers' order settings say; the changed ones."""
        requested = set(ordered)
        changed = [
            msgspec.structs.replace(config, order=name in requested)
            for name, config in self._topics.items()
            if config.order is not (name in requested)
        ]
        for config in changed:
            self._topics[config.topic_name] = config
        if changed:
            self._changed(changed)
        return [config.topic_name for config in changed]

    def touch(self) -> None:
        """Move the version although no topic changed: the broker's permission did."""
        self._changed([])

    def ensure_system_topics(self) -> list[TopicConfig]:
        """Add what the settings in use call for, take the template away when they forbid it."""
        config = self._live.value
        requested = system_topics(config)
        added = [topic for topic in requested if topic.topic_name not in self._topics]
        template = next((topic for topic in requested if topic.topic_name == names.TEMPLATE_TOPIC), None)
        self.changes += 1
        if template is None:
            self._topics.pop(names.TEMPLATE_TOPIC, None)
        elif self._topics.get(names.TEMPLATE_TOPIC) != template:
            # Users cannot change the template, so a different one comes from older settings.
            added = [topic for topic in added if topic is not template] + [template]
        for topic in added:
            self._topics[topic.topic_name] = topic
        return added

    def _changed(self, topics: Sequence[TopicConfig]) -> None:
        self.version = self.version.next(self._clock())
        self.revision += 1
        self.changes += 1
        self._on_dirty()
        self._on_change(topics)

    def follow(self, theirs: tuple[dict[str, TopicConfig], DataVersion]) -> bool:
        """Become what the master's table is, its version with it; False when it is that already."""
        if theirs[1] == self.version:
            return False
        before = self._topics
        self._topics, self.version = theirs
        self.ensure_system_topics()
        self.revision += 1
        self._on_dirty()
        if self._topics != before:
            self._on_change([])
        return True

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of `topics.json`, which is also the answer to GET_ALL_TOPIC_CONFIG but for mappings."""
        return {
            "dataVersion": msgspec.to_builtins(self.version),
            "topicConfigTable": dict(self._topics),
        }

    def parse(self, content: Mapping[str, object]) -> tuple[dict[str, TopicConfig], DataVersion]:
        """A file's content as the table keeps it. FormatError when it is not a topic table."""
        table = table_of(content, "topicConfigTable")
        topics = {str(name): bodies.convert(value, TopicConfig) for name, value in table.items()}
        return topics, bodies.convert(content.get("dataVersion", {}), DataVersion)

    def take(self, parsed: tuple[dict[str, TopicConfig], DataVersion]) -> None:
        """Put parsed content in place of the table's own."""
        self._topics, self.version = parsed
        self.ensure_system_topics()
        for topic in self._topics.values():
            if (reason := _not_served(topic)) is not None:
                log.warning("broker.topic_not_served", topic=topic.topic_name, reason=reason)


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that a broker with these settings has from its start."""
    cluster, broker = config.broker_cluster_name, config.broker_name
    read_write, all_rights = Perm.READ_WRITE, Perm.READ_WRITE | Perm.INHERIT
    rows: list[tuple[str, int, int]] = [
        (names.SELF_TEST_TOPIC, 1, read_write),
        (names.BENCHMARK_TOPIC, 1024, read_write),
        (cluster, 16, all_rights if config.cluster_topic_enable else Perm.INHERIT),
        (broker, 1, all_rights if config.broker_topic_enable else Perm.INHERIT),
        (names.OFFSET_MOVED_TOPIC, 1, read_write),
        (names.SCHEDULE_TOPIC, 18, read_write),
        (names.reply_topic(cluster), 1, read_write),
        (names.REVIVE_TOPIC_PREFIX + cluster, 8, read_write),
        (names.MEMBER_GROUP_TOPIC_PREFIX + broker, 1, Perm.INHERIT),
        (names.HALF_TOPIC, 1, read_write),
        (names.OP_HALF_TOPIC, 1, read_write),
        (names.TIMER_TOPIC, 1, read_write),
    ]
    if config.auto_create_topic_enable:
        rows.append((names.TEMPLATE_TOPIC, config.default_topic_queue_nums, all_rights))
    if config.trace_topic_enable:
        rows.append((config.msg_trace_topic_name, 1, read_write))
    return [
        TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm)
        for name, count, perm in rows
    ]


def has_batch_queues(topic: TopicConfig) -> bool:
    """Whether a client's batch may be one record in the queues of the topic."""
    return bool(topic.attributes) and topic.attributes.get(QUEUE_KIND) == BATCH_KIND


def _not_served(topic: TopicConfig) -> str | None:
    """Why a topic that came with a store of RocketMQ takes no messages here; None when it does."""
    for key, (served, else_) in SERVED.items():
        if topic.attributes and (kind := topic.attributes.get(key, served[0])) not in served:
            return f"{key}={kind}, which is not served: {else_}"
    return None


def _check_served(topic: TopicConfig) -> None:
    """MESSAGE_ILLEGAL for a topic whose attributes ask for what is not there."""
    if topic.attributes and (reason := _not_served(topic)) is not None:
        plain = ", ".join(f"{key}={served[0]}" for key, (served, _) in SERVED.items())
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"topic {topic.topic_name} has {reason}; make a topic with {plain}",
        )


def unknown_topic(topic: str) -> RequestError:
    """The refusal for a topic that this broker does not have."""
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic {topic[:255]} does not exist here; create it, or look in the route for the brokers that have it",
    )
