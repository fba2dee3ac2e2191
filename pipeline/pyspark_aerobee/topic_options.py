"""The options that say which messages of which topics are read, checked and turned into values.

Touches  nothing.

Which topics (one of)
    subscribe, topic      comma-separated names
    subscribePattern      a regular expression that the whole name must match; asked anew at each trigger
    assign                JSON, queues one by one: {"orders": {"broker-a": [0, 1]}}, or on every broker {"orders": [0]}

Where to begin and end (one of each kind)
    startingOffsets, endingOffsets    earliest, latest, group (what `group` has committed; a queue without an offset
                                      from its beginning), or JSON: {"orders": {"broker-a": {"0": 23, "1": -2}}};
                                      -2 is earliest, -1 latest. It has to name every queue.
    startingTimestamp, endingTimestamp              store time: ms, ISO 8601 or -1h
    startingOffsetsByTimestamp, endingOffsetsByTimestamp    JSON as above, with such times
    startingOffsetsByTimestampStrategy              where nothing is that young: latest (default), or error
  Without them a batch reads everything, and a stream begins with what comes. A stream goes on from its checkpoint,
  whatever these options say; queues that appear while it runs are read from their beginning.

What of it
    subExpression, filterType         tags (`red || blue`) or an SQL92 condition, judged by the broker;
    tags                              comma-separated tags
    queueId, brokerName               comma-separated; only these
    key                               messages with this key, through the index where few have it
    includeProperties, includeBody, includeHeaders, schemaMode    which columns there are

How
    failOnDataLoss        (true) messages that should be read and are gone fail the job, and are named
    minPartitions, maxRecordsPerPartition, maxPartitionBytes      how finely to cut
    group                 (streams) where to report progress, so that the job's lag shows
    maxOffsetsPerTrigger, maxBytesPerTrigger, minOffsetsPerTrigger, maxTriggerDelay     (streams) size of a batch
    pushdown              (batches) let Spark hand its filters over (needs spark.sql.python.filterPushdown.enabled)
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from aerobee import InvalidMessage, MessageQueue, SqlFilter, TagFilter
from aerobee.terms.filters import Filter
from pyspark_aerobee.cluster import ClusterSettings
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.option_names import TOPIC_OPTIONS
from pyspark_aerobee.options import Options, parse_time_ms

__all__ = [
    "Choice",
    "End",
    "PerQueue",
    "Place",
    "TopicOptions",
    "read_topic_options",
]

_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "key", "pushdown")
EARLIEST, LATEST = -2, -1
TRIGGER_DELAY_MS: Final = 15 * 60_000
_EXAMPLE: Final = '{"orders": {"broker-a": {"0": 23, "1": -2}}}'


class End(Enum):
    """One of the ends of each queue, or what a group has committed."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class PerQueue:
    """A number for each queue: an offset (-2 earliest, -1 latest), or with `times` a store time in ms."""

    numbers: Mapping[MessageQueue, int]
    times: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading begins or ends, and the option that said so. `where`: an End, each queue's own, or a time in ms."""

    option: str
    where: End | PerQueue | int

    @property
    def is_time(self) -> bool:
        return isinstance(self.where, int) or (isinstance(self.where, PerQueue) and self.where.times)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which topics and queues. One of `topics`, `pattern` and `queues` is given; None of the others chooses all."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    # Topic -> (broker or any, queue id).
    queues: Mapping[str, frozenset[tuple[str | None, int]]] | None = None
    queue_ids: frozenset[int] | None = None
    broker_names: frozenset[str] | None = None

    @property
    def option(self) -> str:
        return "subscribePattern" if self.pattern is not None else "assign" if self.queues else "subscribe"

    def selects_topic(self, topic: str) -> bool:
        """Whether a topic of this name is meant."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.queues if self.queues is not None else self.topics)

    def selects(self, queue: MessageQueue) -> bool:
        """Whether a queue of a chosen topic is meant."""
        if self.queue_ids is not None and queue.queue_id not in self.queue_ids:
            return False
        if self.broker_names is not None and queue.broker_name not in self.broker_names:
            return False
        if self.queues is None:
            return True
        named = self.queues.get(queue.topic, frozenset())
        return (queue.broker_name, queue.queue_id) in named or (None, queue.queue_id) in named


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Everything that a read of topics was asked for."""

    cluster: ClusterSettings
    choice: Choice
    start: Place
    end: Place
    missing_time_is_error: bool
    filter: Filter
    key: str | None
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int | None
    max_bytes: int | None
    group: str | None
    trigger_offsets_max: int | None
    trigger_bytes_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_ms: int
    pushdown: bool


def read_topic_options(given: Mapping[str, str], *, now_ms: int, streaming: bool = False) -> TopicOptions:
    """The options of a read of topics; OptionError names the first that cannot be used."""
    options = Options(given, TOPIC_OPTIONS)
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in options:
            kind = "a stream has no such bound" if streaming else "it is for streams (readStream)"
            raise OptionError(name, options.text(name) or "", kind)
    start = _place(options, "starting", End.LATEST if streaming else End.EARLIEST, now_ms)
    end = _place(options, "ending", End.LATEST, now_ms)
    if not streaming and start.where is End.LATEST:
        raise OptionError("startingOffsets", "latest", "a batch that begins at the end reads nothing")
    if end.where is End.EARLIEST:
        raise OptionError("endingOffsets", "earliest", "a batch that ends at the beginning reads nothing")
    group = options.text("group")
    if group is None and End.GROUP in (start.where, end.where):
        raise OptionError("startingOffsets", "group", "name the group whose offsets are meant: option group")
    least, most = options.count("minOffsetsPerTrigger"), options.count("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(
            "minOffsetsPerTrigger", str(least), f"it is larger than maxOffsetsPerTrigger, {most}"
        )
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("latest", "error"), "latest")
    return TopicOptions(
        cluster=ClusterSettings.of(options),
        choice=_choice(options),
        start=start,
        end=end,
        missing_time_is_error=strategy == "error",
        filter=_filter(options),
        key=options.text("key"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        min_partitions=options.count("minPartitions", 1) or 1,
        max_records=options.count("maxRecordsPerPartition"),
        max_bytes=options.size("maxPartitionBytes"),
        group=group,
        trigger_offsets_max=most,
        trigger_bytes_max=options.size("maxBytesPerTrigger"),
        trigger_offsets_min=least,
        trigger_delay_ms=options.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS) or TRIGGER_DELAY_MS,
        pushdown=options.flag("pushdown", False),
    )


# --- which topics --------------------------------------------------------------------------------------------


def _choice(options: Options) -> Choice:
    name = options.only_one_of("subscribe", "topic", "subscribePattern", "assign")
    if name is None:
        raise OptionError("subscribe", "", "say which topics to read: subscribe, subscribePattern or assign")
    value = options.required(name, "it must not be empty")
    queue_ids = frozenset(_queue_id("queueId", value, word) for word in options.words("queueId")) or None
    broker_names = frozenset(options.words("brokerName")) or None
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as broken:
            raise OptionError(name, value, f"it is no regular expression: {broken}") from broken
        return Choice(pattern=value, queue_ids=queue_ids, broker_names=broker_names)
    if name == "assign":
        return Choice(queues=_assigned(value), queue_ids=queue_ids, broker_names=broker_names)
    topics = options.words(name)
    if not topics:
        raise OptionError(name, value, "it must name at least one topic")
    return Choice(topics=tuple(dict.fromkeys(topics)), queue_ids=queue_ids, broker_names=broker_names)


def _assigned(value: str) -> dict[str, frozenset[tuple[str | None, int]]]:
    found = _json("assign", value, '{"orders": {"broker-a": [0, 1]}}')
    result: dict[str, frozenset[tuple[str | None, int]]] = {}
    for topic, named in found.items():
        by_broker: Mapping[str | None, Any] = {None: named} if isinstance(named, list) else named
        if not isinstance(by_broker, dict) or not by_broker:
            raise OptionError("assign", value, f"topic {topic}: write brokers with lists of queue ids")
        result[topic] = frozenset(
            (broker, _queue_id("assign", value, queue_id))
            for broker, ids in by_broker.items()
            for queue_id in (ids if isinstance(ids, list) else [ids])
        )
    return result


def _queue_id(name: str, value: str, queue_id: object) -> int:
    text = str(queue_id)
    if isinstance(queue_id, bool) or not (text.isascii() and text.isdecimal()):
        raise OptionError(name, value, f"{queue_id!r} is no queue id")
    return int(text)


# --- where to begin and end ----------------------------------------------------------------------------------


def _place(options: Options, kind: str, default: End, now_ms: int) -> Place:
    names = (f"{kind}Offsets", f"{kind}Timestamp", f"{kind}OffsetsByTimestamp")
    name = options.only_one_of(*names)
    if name is None:
        return Place(names[0], default)
    value = options.required(name, "it must not be empty").strip()
    if name == names[1]:
        return Place(name, parse_time_ms(name, value, now_ms))
    if name == names[2]:
        return Place(name, _per_queue(name, value, now_ms))
    if value.lower() in ("group", "group-offsets", "groupoffsets"):
        return Place(name, End.GROUP)
    if value.startswith("{"):
        return Place(name, _per_queue(name, value, None))
    found = options.choice(name, [end.value for end in End], "")
    return Place(name, End(found))


def _per_queue(name: str, value: str, now_ms: int | None) -> PerQueue:
    """`{"orders": {"broker-a": {"0": 23}}}`; with `now_ms` the numbers are times."""
    numbers: dict[MessageQueue, int] = {}
    for topic, by_broker in _json(name, value, _EXAMPLE).items():
        if not isinstance(by_broker, dict):
            raise OptionError(name, value, f"topic {topic}: write it as {_EXAMPLE}")
        for broker, by_queue in by_broker.items():
            if not isinstance(by_queue, dict):
                raise OptionError(
                    name, value, f"topic {topic}, {broker}: it must be a broker with queues, as in {_EXAMPLE}"
                )
            for queue_id, number in by_queue.items():
                queue = MessageQueue(topic, broker, _queue_id(name, value, queue_id))
                numbers[queue] = _number(name, value, number, now_ms)
    return PerQueue(numbers, times=now_ms is not None)


def _number(name: str, value: str, number: object, now_ms: int | None) -> int:
    if now_ms is not None and isinstance(number, str):
        return parse_time_ms(name, number, now_ms)
    if isinstance(number, bool) or not isinstance(number, int):
        raise OptionError(name, value, f"{number!r} is no whole number")
    if number < (EARLIEST if now_ms is None else 0):
        raise OptionError(
            name, value, f"{number} is neither an offset nor -2 (earliest) or -1 (latest)"
            if now_ms is None else f"{number} is no time"
        )  # fmt: skip
    return number


def _json(name: str, value: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as broken:
        raise OptionError(name, value, f"it is no JSON ({broken}); write it as {example}") from broken
    if not isinstance(found, dict) or not found:
        raise OptionError(name, value, f"write it as {example}")
    return found


# --- what of it ----------------------------------------------------------------------------------------------


def _filter(options: Options) -> Filter:
    name = options.only_one_of("subExpression", "tags")
    kind = options.choice("filterType", ("tag", "sql92"), "tag")
    try:
        if name == "tags":
            return TagFilter(options.words("tags"))
        text = options.text("subExpression")
        if kind == "sql92":
            if not text:
                raise OptionError("filterType", "sql92", "give the condition: option subExpression")
            return SqlFilter(text)
        return TagFilter(text)
    except InvalidMessage as refused:
        raise OptionError(
            name or "filterType", options.text(name) or "" if name else kind, str(refused)
        ) from refused
