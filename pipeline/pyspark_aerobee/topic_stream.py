"""`spark.readStream.format("aerobee")`: topics as a stream.

Touches  nameservers and brokers. Options: `pyspark_aerobee.topic_options`, `pyspark_aerobee.cluster`.

An offset, as Spark keeps it in its checkpoint, is what startingOffsets takes too; names and queue ids are in order, for
Spark compares the text:

    {"orders": {"broker-a": {"0": 1200, "1": 1180}, "broker-b": {"0": 977}}}

A batch is what lies between two such offsets, so one that is repeated after a failure reads the same messages. A queue
that is not in the first of them has appeared since, and is read from its beginning; one that is only in the first (its
broker is away) is not read, and its place is kept.

Progress is reported to brokers under the option group when Spark says that a batch is done, which is when it plans the
next one: the group's lag is at most a batch behind. The checkpoint alone decides where a stream goes on.

Invariants
- Offsets of a queue never go back, but where the queue itself was made anew.
- After prepareForTriggerAvailableNow no offset goes beyond what was there then.
"""

import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aerobee import BrokerRefused, ClientError, MessageQueue
from aerobee.consuming.ranges import QueueRange
from aerobee_proto.codes import ResponseCode
from pyspark_aerobee.cluster import Cluster, gather
from pyspark_aerobee.errors import DataLoss, OptionError, PipelineError, SourceGone
from pyspark_aerobee.names import nearest
from pyspark_aerobee.topic_options import TopicOptions, read_topic_options
from pyspark_aerobee.topic_plan import SizeProfile, TopicPartition, TopicPlanner
from pyspark_aerobee.topic_read import read_ranges
from pyspark_aerobee.topic_source import read_settings

__all__ = ["Ends", "TopicStreamReader", "from_json", "limited", "to_json"]

T = TypeVar("T")
log = logging.getLogger("pyspark_aerobee")

# Between triggers without new messages Spark asks a hundred times a second; brokers are asked less often.
POLL_S: Final = 0.05
ROUTE_S: Final = 2.0

Ends = dict[MessageQueue, int]
OffsetJson = dict[str, dict[str, dict[str, int]]]


def to_json(offsets: Mapping[MessageQueue, int]) -> OffsetJson:
    """Offsets of queues as they are kept in checkpoints, in an order of their own."""
    found: OffsetJson = {}
    for queue in sorted(offsets):
        by_queue = found.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        by_queue[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(offset: Mapping[str, Any]) -> Ends:
    """The offsets of a checkpoint; PipelineError when it is not one of ours."""
    try:
        return {
            MessageQueue(topic, broker_name, int(queue_id)): int(number)
            for topic, by_broker in offset.items()
            for broker_name, by_queue in by_broker.items()
            for queue_id, number in by_queue.items()
        }
    except (AttributeError, TypeError, ValueError) as broken:
        raise PipelineError(
            f"the checkpoint has the offset {str(offset)[:200]}, which is not one of this source: "
            "give the query a checkpointLocation of its own"
        ) from broken


def limited(sizes: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """How much of `sizes` each queue may have so that all have `limit` together, each its share; at least 1 in all."""
    total = sum(sizes.values())
    shares = {queue: size * limit // total for queue, size in sizes.items() if size}
    left = max(limit - sum(shares.values()), 0)
    # What rounding has left goes to the queues with most, by name where they are equal.
    for queue in sorted(shares, key=lambda queue: (-sizes[queue], queue)):
        more = min(left, sizes[queue] - shares[queue], 1)
        shares[queue] += more
        left -= more
    return shares


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver one object a query, which plans; on executors others, which only read."""

    def __init__(self, given: Mapping[str, str], schema: StructType, now_ms: int) -> None:
        self._options: TopicOptions = read_topic_options(given, now_ms=now_ms, streaming=True)
        self._settings = read_settings(self._options, schema)
        # Of the driver's object; opened by the first question.
        self._cluster: Cluster | None = None
        self._planner: TopicPlanner
        self._queues: list[MessageQueue] = []
        self.queues_at = 0.0
        self._ends: Ends = {}
        self.ends_at = 0.0
        self._target: Ends | None = None
        self._begins: Ends = {}  # of queues that appeared while the stream runs
        self._released_at: float | None = None
        self._reported: Ends = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_settings": self._settings}

    # --- Spark's interface ------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._asking(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._asking(lambda planner: self._next(planner, start, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._ends) if self._ends else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._asking(lambda planner: self._latest(planner, {}, all_of_them=True))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._asking(lambda planner: self._plan(planner, from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, TopicPartition):
            return
        yield from read_ranges(self._settings, partition.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group is None:
            return
        try:
            self._asking(lambda planner: self._report(planner, self._options.group or "", from_json(end)))
        except PipelineError as failed:
            # The stream does not need it: the next report makes it good.
            log.warning("progress of group %s could not be reported: %s", self._options.group, failed)

    def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    # --- asking -----------------------------------------------------------------------------------------------

    def _asking(self, work: Callable[[TopicPlanner], Coroutine[Any, Any, T]]) -> T:
        """The result of `work(planner)`, with the errors of this room."""
        if self._cluster is None:
            cluster = Cluster(self._options.cluster)
            cluster.__enter__()
            self._cluster = cluster
            self._planner = TopicPlanner(cluster.client, self._options)
        try:
            return self._cluster.run(work(self._planner))
        except ClientError as failed:
            raise SourceGone(str(failed)) from failed

    async def _initial(self, planner: TopicPlanner) -> OffsetJson:
        queues = await planner.queues()
        await planner.check_filter(queues)
        return to_json(await planner.start_offsets(await planner.bounds(queues)))

    async def _latest(self, planner: TopicPlanner, starts: Ends, *, all_of_them: bool = False) -> Ends:
        """Where each queue ends now; of queues whose broker is away, where they ended when it was last asked.

        ClientError when no queue can be asked, or with `all_of_them` when one cannot.
        """
        now = time.monotonic()
        if self._ends and now - self.ends_at < POLL_S:
            return dict(self._ends)
        if not self._queues or now - self.queues_at >= ROUTE_S:
            self._queues = await self._queues_now(planner, starts)
            self.queues_at = now
        results = await gather([_end_of(planner, queue) for queue in self._queues])
        failures = [result for result in results if isinstance(result, ClientError)]
        if failures and (all_of_them or len(failures) == len(results)):
            raise failures[0]
        for queue, result in zip(self._queues, results, strict=True):
            if isinstance(result, ClientError):
                log.warning("%s is not asked for new messages now: %s", queue, result)
            else:
                self._ends[queue] = result
        self.ends_at = time.monotonic()
        return dict(self._ends)

    async def _queues_now(self, planner: TopicPlanner, starts: Ends) -> list[MessageQueue]:
        """The queues that there are. A topic that has vanished is an error, or with failOnDataLoss=false a warning."""
        try:
            return await planner.queues()
        except OptionError as gone:
            if not (self._queues or starts):
                raise
            vanished = SourceGone(
                f"the stream reads topic {gone.value}, and it is not there any more: {gone.reason}. "
                "Set failOnDataLoss=false to wait until it comes back"
            )
            if self._options.fail_on_data_loss:
                raise vanished from gone
            log.warning("%s", vanished)
            return []  # what is known of it stays as it is
        except SourceGone as silent:
            if not self._queues:
                raise
            log.warning("queues that appear now are not seen: %s", silent)
            return self._queues

    # --- the next batch ---------------------------------------------------------------------------------------

    async def _next(self, planner: TopicPlanner, start: dict[str, Any], limit: ReadLimit) -> OffsetJson:
        starts = from_json(start)
        self._check_topics(starts)
        ends = await self._latest(planner, starts) if self._target is None else self._target
        self._check_kept(planner, starts, ends)
        begins = await self._begins_of(planner, starts, ends)
        counts = {queue: end - begins[queue] for queue, end in ends.items() if end > begins[queue]}
        anew = {queue for queue, end in ends.items() if end < begins[queue]}
        if not anew and (not counts or self._waits(sum(counts.values()))):
            return start
        if not isinstance(limit, ReadAllAvailable):
            ends = await self._admitted(planner, begins, ends, counts)
        self._released_at = time.monotonic()
        # A queue that has nothing yet is named when it has: a longer offset alone would be an empty batch.
        moved = {queue: end for queue, end in ends.items() if end > begins[queue] or queue in anew}
        return to_json({**starts, **moved})

    def _check_topics(self, starts: Ends) -> None:
        """A checkpoint of other topics must not be gone on with: what it says would be lost or taken for ours."""
        choice = self._options.choice
        others = sorted({queue.topic for queue in starts if not choice.selects_topic(queue.topic)})
        if not others:
            return
        wrong = OptionError(
            choice.option,
            choice.pattern or ", ".join(choice.topics or choice.queues or ()),
            f"the checkpoint is of a stream that read topic {', '.join(others)}"
            f"{nearest(others[0], choice.topics)}; give this stream a checkpointLocation of its own, or read these "
            "topics too",
        )
        if self._options.fail_on_data_loss:
            raise wrong
        log.warning("%s", wrong)

    def _check_kept(self, planner: TopicPlanner, starts: Ends, ends: Ends) -> None:
        """A queue that ends in front of where the stream is: made anew, or its broker has lost messages."""
        for queue, end in list(ends.items()):
            start = starts.get(queue, 0)
            if end >= start:
                continue
            if not planner.ranges.has_master(queue):
                ends[queue] = start  # a replica that stands in may not have all of it yet
                continue
            loss = DataLoss(
                *queue, end, start, f"the queue ends at {end} now: it was made anew, or its broker lost them"
            )
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss)

    async def _begins_of(self, planner: TopicPlanner, starts: Ends, ends: Ends) -> Ends:
        """Where the batch begins in each queue: where the last one ended, or at the beginning of a new queue."""
        fresh = [queue for queue in ends if queue not in starts and queue not in self._begins]
        for queue, (low, _) in (await planner.bounds(fresh)).items():
            self._begins[queue] = low
        return {
            queue: start if (start := starts.get(queue)) is not None else self._begins[queue]
            for queue in ends
        }

    def _waits(self, count: int) -> bool:
        """Whether so few messages wait for more."""
        options = self._options
        if options.trigger_offsets_min is None or self._target is not None or self._released_at is None:
            return False
        waited_ms = (time.monotonic() - self._released_at) * 1000
        return count < options.trigger_offsets_min and waited_ms < options.trigger_delay_ms

    async def _admitted(
        self, planner: TopicPlanner, begins: Ends, ends: Ends, counts: dict[MessageQueue, int]
    ) -> Ends:
        """The ends of a batch that keeps to the limits of the options."""
        options = self._options
        ends = dict(ends)
        if options.trigger_bytes_max is not None:
            ranges = [QueueRange(queue, begins[queue], ends[queue]) for queue in counts]
            profiles = await planner.profiles(ranges)
            ends.update(_within_bytes(ranges, profiles, options.trigger_bytes_max))
            counts = {queue: ends[queue] - begins[queue] for queue in counts}
        limit = options.trigger_offsets_max
        if limit is not None and sum(counts.values()) > limit:
            shares = limited(counts, limit)
            ends.update({queue: begins[queue] + shares.get(queue, 0) for queue in counts})
        return ends

    # --- planning and reporting -------------------------------------------------------------------------------

    async def _plan(self, planner: TopicPlanner, starts: Ends, ends: Ends) -> list[TopicPartition]:
        self._check_topics(starts)
        moved = [queue for queue, end in ends.items() if starts.get(queue) != end]
        bounds = await planner.bounds(moved)
        ranges = []
        for queue in sorted(moved):
            found = self._readable(queue, starts.get(queue), ends[queue], bounds[queue])
            if found is not None:
                ranges.append(found)
        return await planner.partitions(ranges)

    def _readable(
        self, queue: MessageQueue, start: int | None, end: int, bounds: tuple[int, int]
    ) -> QueueRange | None:
        """What of [start, end) the broker has. DataLoss for the rest."""
        low, high = bounds
        begin = low if start is None else start
        reason = ""
        if begin > end:
            reason = "the queue was made anew, or its broker lost them"
            begin, lost = low, (end, begin)
        elif begin < low:
            reason, lost = "the broker has deleted them", (begin, min(low, end))
            begin = low
        elif end > high:
            reason, lost = "its broker has fewer than it had", (max(begin, high), end)
            end = high
        if reason:
            loss = DataLoss(queue.topic, queue.broker_name, queue.queue_id, *lost, reason)
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss)
        return QueueRange(queue, begin, end) if begin < end else None

    async def _report(self, planner: TopicPlanner, group: str, ends: Ends) -> None:
        news = {queue: end for queue, end in ends.items() if self._reported.get(queue) != end}
        try:
            await gather([planner.ranges.commit(group, queue, end) for queue, end in news.items()])
        except BrokerRefused as refused:
            if refused.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            await planner.create_group(group)
            await gather([planner.ranges.commit(group, queue, end) for queue, end in news.items()])
        self._reported.update(news)


async def _end_of(planner: TopicPlanner, queue: MessageQueue) -> int | ClientError:
    try:
        return await planner.ranges.max_offset(queue)
    except ClientError as failed:
        return failed


def _within_bytes(
    ranges: Sequence[QueueRange], profiles: Mapping[MessageQueue, SizeProfile], limit: int
) -> Ends:
    """Ends of the ranges, cut so that they have about `limit` bytes together, each its share."""
    sizes = {one.queue: profiles[one.queue].size(one.begin, one.end) for one in ranges}
    if sum(sizes.values()) <= limit:
        return {one.queue: one.end for one in ranges}
    shares = limited(sizes, limit)
    return {
        one.queue: min(profiles[one.queue].cut(one.begin, share), one.end)
        if (share := shares.get(one.queue, 0))
        else one.begin
        for one in ranges
    }
