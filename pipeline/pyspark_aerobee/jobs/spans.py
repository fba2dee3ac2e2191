"""What a job reads: messages of queues, by their numbers, from a store folder or through brokers.

Touches  the folder or the brokers, reading. `plan` runs on the driver, `read` in tasks; sources travel with them.

A span is the messages [begin, end) of one queue. Who reads spans that do not overlap reads no message twice, wherever
they come from: a copy of a store and the cluster that it was taken of have the same numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from aerobee import MessageQueue
from aerobee.consuming.ranges import QueueRange
from aerobee_proto.names import is_internal_topic, is_system_topic
from aerobee_store.offline.folder import StoreFolder
from pyspark_aerobee.cluster import Cluster
from pyspark_aerobee.columns import ColumnBuilder
from pyspark_aerobee.errors import OptionError, PipelineError
from pyspark_aerobee.folder import open_folder, require_log
from pyspark_aerobee.jobs.launch import with_cluster
from pyspark_aerobee.names import nearest
from pyspark_aerobee.option_names import CLUSTER_OPTIONS
from pyspark_aerobee.options import Options
from pyspark_aerobee.store_plan import PARTITION_SIZE, EntriesPartition, StoreQuery, queue_pieces
from pyspark_aerobee.store_read import Damage, read_partition
from pyspark_aerobee.topic_options import TopicOptions, read_topic_options
from pyspark_aerobee.topic_plan import SizeProfile, TopicPlanner
from pyspark_aerobee.topic_read import ReadSettings, read_ranges

__all__ = ["Intervals", "Plan", "Span", "SpanSource", "StoreSpans", "Task", "TopicSpans"]

TASK_SPANS_MAX: Final = 256  # a task's description stays small

Batches = Iterator[tuple[str, "pa.RecordBatch | Damage"]]


class Span(NamedTuple):
    """The messages [begin, end) of a queue."""

    queue: MessageQueue
    begin: int
    end: int

    @property
    def messages(self) -> int:
        """How many."""
        return self.end - self.begin


class Task(NamedTuple):
    """What one task reads: spans, their bytes (about), and what the source needs to know of them."""

    spans: tuple[Span, ...]
    size: int
    parts: tuple[Any, ...]


class Plan(NamedTuple):
    """What is to be read, and what lies between known messages and is not there any more."""

    tasks: list[Task]
    lost: list[Span]

    @property
    def messages(self) -> int:
        """How many are to be read."""
        return sum(span.messages for task in self.tasks for span in task.spans)


class Intervals:
    """Which messages of each queue are known: ascending [begin, end) that neither meet nor overlap."""

    def __init__(self, known: Iterable[Span] = ()) -> None:
        self._known: dict[MessageQueue, list[tuple[int, int]]] = {}
        for span in known:
            self.add(span)

    def add(self, span: Span) -> None:
        """Know a span too; it may overlap others."""
        ranges = self._known.setdefault(span.queue, [])
        if ranges and ranges[-1][1] == span.begin:  # as spans mostly come
            ranges[-1] = (ranges[-1][0], span.end)
            return
        begin, end = span.begin, span.end
        apart = []
        for low, high in ranges:
            if high < begin or low > end:
                apart.append((low, high))
            else:
                begin, end = min(begin, low), max(end, high)
        self._known[span.queue] = sorted([*apart, (begin, end)])

    def spans(self) -> list[Span]:
        """All of them, by queue and number."""
        return [Span(queue, *one) for queue in sorted(self._known) for one in self._known[queue]]

    def missing(self, span: Span) -> list[Span]:
        """What of a span is not known."""
        found, begin = [], span.begin
        for low, high in self._known.get(span.queue, ()):
            if high <= begin or low >= span.end:
                continue
            if low > begin:
                found.append(Span(span.queue, begin, low))
            begin = max(begin, high)
        if begin < span.end:
            found.append(Span(span.queue, begin, span.end))
        return found

    def hole_before(self, span: Span) -> Span | None:
        """What is missing between the known messages in front of a queue's readable span and the span."""
        ends = [high for low, high in self._known.get(span.queue, ()) if low < span.begin]
        return Span(span.queue, max(ends), span.begin) if ends and max(ends) < span.begin else None


class SpanSource(Protocol):
    """Where messages are."""

    @property
    def what(self) -> str:
        """The source, for people."""
        ...

    def plan(self, known: Intervals) -> Plan:
        """Everything there that is not known, in tasks. OptionError, SourceGone."""
        ...

    def read(self, task: Task, schema: pa.Schema) -> Batches:
        """The messages of a task by topic, in the order of its spans, and what is damaged."""
        ...


def pack(pieces: Iterable[tuple[Span, int, Any]], task_size: int) -> list[Task]:
    """Pieces (span, bytes, what the source needs) in tasks of about `task_size` bytes, in their order."""
    tasks: list[Task] = []
    spans: list[Span] = []
    parts: list[Any] = []
    size = 0
    for span, more, part in pieces:
        if spans and (size + more > task_size or len(spans) >= TASK_SPANS_MAX):
            tasks.append(Task(tuple(spans), size, tuple(parts)))
            spans, parts, size = [], [], 0
        spans.append(span)
        parts.append(part)
        size += more
    if spans:
        tasks.append(Task(tuple(spans), size, tuple(parts)))
    return tasks


# --- a store folder ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreSpans:
    """Topics of a store folder: all but the system's, or those named.

    `broker_name` is not in the folder; say it where messages of several brokers, or of the cluster itself, are to be
    told apart.
    """

    address: str
    topics: tuple[str, ...] = ()
    broker_name: str = ""
    storage: Mapping[str, Any] = field(default_factory=dict)
    task_size: int = PARTITION_SIZE

    @property
    def what(self) -> str:
        return f"store {self.address}"

    def _store(self) -> StoreFolder:
        return StoreFolder(open_folder(self.address, dict(self.storage) or None))

    def plan(self, known: Intervals) -> Plan:
        store = self._store()
        require_log(store)
        pieces: list[tuple[Span, int, EntriesPartition]] = []
        lost = []
        for topic in self._chosen(store):
            for queue in store.queues(topic):
                name = MessageQueue(topic, self.broker_name, queue.queue_id)
                there = Span(name, *store.queue_range(queue))
                if (hole := known.hole_before(there)) is not None and there.messages:
                    lost.append(hole)
                for span in known.missing(there):
                    found = queue_pieces(store, queue, span.begin, span.end, self.task_size)
                    pieces += [(Span(name, one.begin, one.end), size, one) for one, size in found]
        return Plan(pack(pieces, self.task_size), lost)

    def _chosen(self, store: StoreFolder) -> list[str]:
        there = store.topics()
        for topic in self.topics:
            if topic not in there:
                raise OptionError("topic", topic, f"the store has no queue of it{nearest(topic, there)}")
        return list(self.topics) or [
            topic for topic in there if not is_system_topic(topic) and not is_internal_topic(topic)
        ]

    def read(self, task: Task, schema: pa.Schema) -> Batches:
        store = self._store()
        builder = ColumnBuilder(schema, self.broker_name or None)
        for part in task.parts:
            for found in read_partition(store, part, StoreQuery(topics=(part.queue.topic,))):
                if isinstance(found, Damage):
                    yield part.queue.topic, found
                else:
                    yield part.queue.topic, builder.batch(found.stretch, found.view)


# --- topics --------------------------------------------------------------------------------------------------

_TOPIC_OPTIONS: Final = (
    *CLUSTER_OPTIONS, "subscribe", "topic", "subscribePattern", "assign", "queueId", "brokerName", "failOnDataLoss",
)  # fmt: skip


class TopicSpans:
    """Topics of a running cluster; options as of `spark.read`, but none that leaves messages out of a queue."""

    def __init__(self, given: Mapping[str, str], *, now_ms: int, task_size: int = PARTITION_SIZE) -> None:
        Options(given, _TOPIC_OPTIONS)
        self._options: TopicOptions = read_topic_options(given, now_ms=now_ms)
        self._task_size = task_size

    @property
    def what(self) -> str:
        return f"topics of {';'.join(self._options.cluster.nameservers)}"

    def plan(self, known: Intervals) -> Plan:
        there, missing_ranges, profiles = with_cluster(
            self._options.cluster, lambda cluster: self._ask(cluster, known)
        )
        lost = [hole for span in there if (hole := known.hole_before(span)) is not None]
        return Plan(pack(_cut(missing_ranges, profiles, self._task_size), self._task_size), lost)

    def _ask(
        self, cluster: Cluster, known: Intervals
    ) -> tuple[list[Span], list[QueueRange], dict[MessageQueue, SizeProfile]]:
        """What the queues have, what of it is not known, and how large that is."""
        planner = TopicPlanner(cluster.client, self._options)
        queues = cluster.run(planner.queues())
        bounds = cluster.run(planner.bounds(queues))
        there = [Span(queue, *bounds[queue]) for queue in queues]
        missing_ranges = [QueueRange(*one) for span in there for one in known.missing(span)]
        return there, missing_ranges, cluster.run(planner.profiles(missing_ranges))

    def read(self, task: Task, schema: pa.Schema) -> Batches:
        settings = ReadSettings(
            cluster=self._options.cluster,
            schema=schema,
            filter=self._options.filter,
            key=None,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        for topic, ranges in groupby(task.parts, lambda part: part.queue.topic):
            for batch in read_ranges(settings, list(ranges)):
                yield topic, batch


def _cut(
    missing_ranges: Sequence[QueueRange], profiles: Mapping[MessageQueue, SizeProfile], size: int
) -> Iterator[tuple[Span, int, QueueRange]]:
    for queue, begin, end in missing_ranges:
        profile = profiles[queue]
        while begin < end:
            cut = end if profile.size(begin, end) <= size + size // 4 else min(profile.cut(begin, size), end)
            yield Span(queue, begin, cut), profile.size(begin, cut), QueueRange(queue, begin, cut)
            begin = cut


def source_of(given: Mapping[str, str], *, now_ms: int, task_size: int = PARTITION_SIZE) -> SpanSource:
    """The source that options mean: `path` is a store folder, `nameServer` a cluster. OptionError."""
    names = {name.lower() for name in given}
    if "path" in names:
        options = Options(given, ("path", "topic", "subscribe", "brokerName"))
        name = options.only_one_of("topic", "subscribe")
        return StoreSpans(
            options.required("path", "it must name a store folder"),
            options.words(name) if name else (),
            options.text("brokerName") or "",
            task_size=task_size,
        )
    if not names & {"nameserver", "namesrvaddr"}:
        raise OptionError("path", "", "say what to read: a store folder (path), or a cluster (nameServer)")
    return TopicSpans(given, now_ms=now_ms, task_size=task_size)


def complain_of_loss(lost: Sequence[Span], what: str) -> None:
    """PipelineError that names what is lost."""
    if lost:
        shown = "; ".join(f"{one.queue} offsets {one.begin} to {one.end - 1}" for one in lost[:8])
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        raise PipelineError(
            f"{what} does not have messages any more that follow on what the archive has: {shown}{more}. "
            "Archive them from a copy that has them, or set failOnDataLoss=false to go on behind the hole"
        )
