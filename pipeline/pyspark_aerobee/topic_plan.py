"""Which offsets of which queues a read needs, cut into partitions of about equal size.

Touches  nameservers and brokers, asking; on the driver.

Sizes come from queue entries, which tell how long each record is: all of them for short ranges, samples spread over
long ones. So a queue of large messages becomes many partitions, and many small queues become one. Where a broker does
not tell entries, every message counts as SIZE_GUESS bytes.

Invariants
- Every message of the ranges lies in exactly one partition.
- A partition needs nothing but itself, the settings of the read and the cluster.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from aerobee import BrokerRefused, Client, ClientError, MessageQueue, NoRoute, TagFilter
from aerobee.consuming.ranges import QueueRange, Ranges
from aerobee.errors import UNKNOWN_TOPIC
from aerobee.terms.filters import Filter
from pyspark_aerobee.cluster import gather
from pyspark_aerobee.errors import DataLoss, OptionError, SourceGone
from pyspark_aerobee.pushdown import Selection
from pyspark_aerobee.topic_options import EARLIEST, LATEST, Choice, End, PerQueue, Place, TopicOptions

__all__ = [
    "Bounds",
    "Narrowing",
    "SizeProfile",
    "TopicPartition",
    "TopicPlanner",
    "pack",
]

log = logging.getLogger("pyspark_aerobee")

SIZE_GUESS: Final = 1024
PARTITION_SIZE_MAX: Final = 128 << 20
PARTITION_SIZE_MIN: Final = 16 << 20  # what is smaller costs more to start than to read
PARALLELISM: Final = 8  # partitions that a larger read has at least
EXACT_COUNT: Final = 512  # ranges up to this length are measured entry by entry
SAMPLE_COUNT: Final = 16  # entries in one sample
SAMPLES: Final = 16
# Brokers tell no more; a key that so many messages have is looked for in all messages.
KEY_HITS_MAX: Final = 32

Bounds = Mapping[MessageQueue, tuple[int, int]]


class TopicPartition(InputPartition):
    """Ranges of queues that one task reads, in this order."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple((str(one.queue), one.begin, one.end) for one in ranges))
        self.ranges = tuple(ranges)


@dataclass(frozen=True, slots=True)
class Narrowing(Selection):
    """What filters of the query say about offsets, times and queues."""

    def allows(self, queue: MessageQueue) -> bool:
        """Whether a queue can have rows for the query."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and (self.broker_names is None or queue.broker_name in self.broker_names)
        )

    def filter(self, message_filter: Filter) -> Filter:
        """The filter for brokers: tags narrow one that wants every message, where they can be written as a filter."""
        everything = isinstance(message_filter, TagFilter) and message_filter.tags is None
        if not everything or not self.tags or not all(_can_be_asked_for(tag) for tag in self.tags):
            return message_filter
        return TagFilter(sorted(self.tags))


def _can_be_asked_for(tag: str) -> bool:
    """Whether a tag alone is a filter that means this tag."""
    return bool(tag) and tag == tag.strip() and "||" not in tag and tag != "*"


class SizeProfile:
    """How many bytes the records of a range have, as a sum over its offsets: straight lines between known points."""

    def __init__(self, offsets: Sequence[int], sums: Sequence[int]) -> None:
        """`sums[i]` bytes lie in front of `offsets[i]`; both ascend, and begin and end with the range."""
        self._offsets = list(offsets)
        self._sums = list(sums)

    def before(self, offset: int) -> int:
        """Bytes in front of an offset."""
        offsets, sums = self._offsets, self._sums
        at = bisect_right(offsets, offset) - 1
        if at < 0:
            return 0
        if at >= len(offsets) - 1:
            return sums[-1]
        span = offsets[at + 1] - offsets[at]
        return sums[at] + (sums[at + 1] - sums[at]) * (offset - offsets[at]) // span

    def size(self, begin: int, end: int) -> int:
        """Bytes in [begin, end)."""
        return self.before(end) - self.before(begin)

    def cut(self, begin: int, size: int) -> int:
        """An offset behind `begin` with about `size` bytes between them; at least one message lies there."""
        low, high = begin + 1, max(self._offsets[-1], begin + 1)
        target = self.before(begin) + size
        while low < high:
            middle = (low + high + 1) // 2
            if self.before(middle) <= target:
                low = middle
            else:
                high = middle - 1
        return low


# --- partitions ----------------------------------------------------------------------------------------------


def pack(
    ranges: Sequence[QueueRange],
    profiles: Mapping[MessageQueue, SizeProfile],
    *,
    min_partitions: int = 1,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> list[TopicPartition]:
    """Ranges of different queues in partitions of about equal size; none is larger than `max_records`.

    `max_bytes` is a wish: single messages may be larger, and sizes of long ranges are estimates. Where there are that
    many messages, there are at least `min_partitions`.
    """
    total = sum(profiles[one.queue].size(one.begin, one.end) for one in ranges)
    step = min(PARTITION_SIZE_MAX, max(PARTITION_SIZE_MIN, total // PARALLELISM))
    if max_bytes is not None:
        step = max_bytes
    if min_partitions > 1:
        step = min(step, -(-total // min_partitions))
    slack = 0 if min_partitions > 1 or max_bytes is not None else step // 4
    bins = _fill(ranges, profiles, max(step, 1), slack, max_records)
    while len(bins) < min_partitions and (split := _split_longest(bins)):
        bins = split
    return [TopicPartition(one) for one in bins]


def _fill(
    ranges: Iterable[QueueRange],
    profiles: Mapping[MessageQueue, SizeProfile],
    step: int,
    slack: int,
    max_records: int | None,
) -> list[list[QueueRange]]:
    bins: list[list[QueueRange]] = []
    room, count_room = 0, 0
    for queue, begin, end in ranges:
        profile = profiles[queue]
        while begin < end:
            if room <= 0 or count_room <= 0:
                bins.append([])
                room, count_room = step, max_records or end - begin + (1 << 62)
            cut = end if profile.size(begin, end) <= room + slack else min(profile.cut(begin, room), end)
            cut = min(cut, begin + count_room)
            bins[-1].append(QueueRange(queue, begin, cut))
            # A bin that a range was cut for is full, whatever rounding has left.
            room = room - max(profile.size(begin, cut), 1) if cut == end else 0
            count_room -= cut - begin
            begin = cut
    return bins


def _split_longest(bins: list[list[QueueRange]]) -> list[list[QueueRange]] | None:
    """The bins with the one of most messages cut in two; None when all have one message."""
    counts = [sum(one.end - one.begin for one in ranges) for ranges in bins]
    if not counts or max(counts) < 2:
        return None
    at = counts.index(max(counts))
    left, right, room = [], [], counts[at] // 2
    for queue, begin, end in bins[at]:
        cut = min(end, begin + room)
        room -= cut - begin
        left += [QueueRange(queue, begin, cut)] if begin < cut else []
        right += [QueueRange(queue, cut, end)] if cut < end else []
    return [*bins[:at], left, right, *bins[at + 1 :]]


# --- asking --------------------------------------------------------------------------------------------------


class TopicPlanner:
    """Asks a cluster what a read needs to know. One object a plan, or a stream's."""

    def __init__(self, client: Client, options: TopicOptions) -> None:
        self._client = client
        self._options = options
        self.ranges: Ranges = client.ranges(options.cluster.planning)

    async def queues(self) -> list[MessageQueue]:
        """The queues that the options choose, as they are now. OptionError names a topic or queue that is not there."""
        choice = self._options.choice
        topics = await self._topics(choice)
        found = [queue for part in await gather([self._queues(topic) for topic in topics]) for queue in part]
        _check_assigned(choice, found)
        chosen = sorted(queue for queue in found if choice.selects(queue))
        if found and not chosen:
            raise OptionError(
                "queueId" if choice.queue_ids is not None else "brokerName",
                ", ".join(str(one) for one in sorted(choice.queue_ids or choice.broker_names or ())),
                f"it chooses no queue; there are: {_shown(found)}",
            )
        return chosen

    async def _topics(self, choice: Choice) -> list[str]:
        if choice.pattern is None:
            return list(choice.topics or choice.queues or ())
        names = await self._client.admin.topics(internal="%" in choice.pattern)
        return [name for name in names if choice.selects_topic(name)]

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return await self.ranges.queues(topic)
        except NoRoute as missing:
            if any(answer.outcome == UNKNOWN_TOPIC for answer in missing.answers):
                option = self._options.choice.option
                raise OptionError(option, topic, f"there is no such topic: {missing}") from missing
            raise SourceGone(str(missing)) from missing

    async def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """First readable offset and one past the last of each queue."""
        found = await gather([self.ranges.bounds(queue) for queue in queues])
        return dict(zip(queues, found, strict=True))

    async def check_filter(self, queues: Sequence[MessageQueue]) -> None:
        """OptionError when a broker does not serve the filter."""
        message_filter = self._options.filter
        try:
            for topic in sorted({queue.topic for queue in queues}):
                await self.ranges.check_filter(topic, message_filter)
        except BrokerRefused as refused:
            raise OptionError("subExpression", message_filter.text, str(refused)) from refused

    async def create_group(self, group: str) -> None:
        """Make a consumer group known, so that brokers keep its offsets."""
        await self._client.admin.create_group(group, exist_ok=True)

    # --- where to begin and end -------------------------------------------------------------------------------

    async def resolve(self, place: Place, bounds: Bounds) -> dict[MessageQueue, int]:
        """The offset of each queue that a place means, as it was asked for: perhaps not there any more."""
        where = place.where
        if isinstance(where, End):
            return await self._resolve_end(where, bounds)
        if isinstance(where, PerQueue):
            _check_named(place.option, where.numbers, bounds)
            if not where.times:
                ends = {EARLIEST: 0, LATEST: 1}
                return {
                    queue: bounds[queue][ends[number]] if number in ends else number
                    for queue, number in where.numbers.items()
                }
            times = dict(where.numbers)
        else:
            times = dict.fromkeys(bounds, where)
        found = await gather([self.ranges.offset_by_time(queue, at) for queue, at in times.items()])
        offsets = dict(zip(times, found, strict=True))
        if place.option.startswith("starting") and self._options.missing_time_is_error:
            _check_times(place, times, offsets, bounds)
        return {queue: max(bounds[queue][0], offset) for queue, offset in offsets.items()}

    async def _resolve_end(self, end: End, bounds: Bounds) -> dict[MessageQueue, int]:
        if end is not End.GROUP:
            return {queue: both[end is End.LATEST] for queue, both in bounds.items()}
        group = self._options.group
        assert group is not None
        found = await gather([self.ranges.committed(group, queue) for queue in bounds])
        return {
            queue: bounds[queue][0] if offset is None else offset
            for queue, offset in zip(bounds, found, strict=True)
        }

    async def start_offsets(self, bounds: Bounds) -> dict[MessageQueue, int]:
        """Where reading begins. DataLoss, OptionError when an offset that was asked for is not there."""
        place = self._options.start
        found = await self.resolve(place, bounds)
        for queue, offset in found.items():
            low, high = bounds[queue]
            if offset < low:
                self._lost(queue, offset, low)
            if offset > high:
                self._out_of_range(place, queue, offset, bounds)
            found[queue] = min(max(offset, low), high)
        return found

    def _lost(self, queue: MessageQueue, begin: int, end: int) -> None:
        """DataLoss, or a warning where the user goes on without what is lost."""
        loss = DataLoss(
            queue.topic, queue.broker_name, queue.queue_id, begin, end, "the broker has deleted them"
        )
        if self._options.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)

    def _out_of_range(self, place: Place, queue: MessageQueue, offset: int, bounds: Bounds) -> None:
        low, high = bounds[queue]
        wrong = OptionError(
            place.option,
            str(offset),
            f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id} has the offsets {low} to {high}",
        )
        if self._options.fail_on_data_loss:
            raise wrong
        log.warning("%s", wrong)

    # --- a batch ----------------------------------------------------------------------------------------------

    async def batch(self, narrowing: Narrowing) -> list[TopicPartition]:
        """The partitions of a batch read."""
        options = self._options
        queues = await self.queues()
        await self.check_filter(queues)
        bounds = await self.bounds(queues)
        starts, ends = await self.start_offsets(bounds), await self._end_offsets(bounds)
        ranges = []
        for queue in queues:
            begin, end = starts[queue], ends[queue]
            both_named = all(isinstance(one.where, PerQueue) for one in (options.start, options.end))
            if begin > end and both_named:
                raise OptionError(options.end.option, str(end), f"{queue} is to be read from {begin} on")
            if begin < end and narrowing.allows(queue):
                ranges.append(QueueRange(queue, begin, end))
        ranges = await self._narrowed(ranges, narrowing)
        if options.key is not None:
            ranges = await self._with_key(options.key, ranges)
        return await self.partitions(ranges)

    async def _end_offsets(self, bounds: Bounds) -> dict[MessageQueue, int]:
        place = self._options.end
        found = await self.resolve(place, bounds)
        for queue, offset in found.items():
            if offset > bounds[queue][1]:
                self._out_of_range(place, queue, offset, bounds)
            found[queue] = min(offset, bounds[queue][1])
        return found

    async def _narrowed(self, ranges: list[QueueRange], narrowing: Narrowing) -> list[QueueRange]:
        begins = [max(one.begin, narrowing.begin_offset or 0) for one in ranges]
        ends = [one.end if (cut := narrowing.end_offset) is None else min(one.end, cut) for one in ranges]
        for at_ms, found, choose in ((narrowing.begin_ms, begins, max), (narrowing.end_ms, ends, min)):
            if at_ms is not None:
                offsets = await gather([self.ranges.offset_by_time(one.queue, at_ms) for one in ranges])
                found[:] = [choose(mine, other) for mine, other in zip(found, offsets, strict=True)]
        return [
            QueueRange(one.queue, begin, end)
            for one, begin, end in zip(ranges, begins, ends, strict=True)
            if begin < end
        ]

    async def _with_key(self, key: str, ranges: list[QueueRange]) -> list[QueueRange]:
        """Only the messages that the brokers' indexes have under a key, where those are few."""
        kept: list[QueueRange] = []
        for topic in sorted({one.queue.topic for one in ranges}):
            mine = [one for one in ranges if one.queue.topic == topic]
            hits = await self._client.query(topic, key=key, max_messages=KEY_HITS_MAX)
            if len(hits) >= KEY_HITS_MAX:
                kept += mine
                continue
            places = sorted(
                (MessageQueue(topic, hit.broker_name, hit.queue_id), hit.queue_offset) for hit in hits
            )
            kept += [
                QueueRange(queue, offset, offset + 1)
                for queue, offset in places
                if any(one.queue == queue and one.begin <= offset < one.end for one in mine)
            ]
        return kept

    # --- sizes ------------------------------------------------------------------------------------------------

    async def partitions(self, ranges: Sequence[QueueRange]) -> list[TopicPartition]:
        """The ranges in partitions, as the options ask for."""
        options = self._options
        return pack(
            ranges,
            await self.profiles(ranges),
            min_partitions=options.min_partitions,
            max_records=options.max_records,
            max_bytes=options.max_bytes,
        )

    async def profiles(self, ranges: Sequence[QueueRange]) -> dict[MessageQueue, SizeProfile]:
        """Sizes of the records of each queue, from the first to the last offset in the ranges."""
        spans: dict[MessageQueue, QueueRange] = {}
        for one in ranges:
            known = spans.get(one.queue, one)
            spans[one.queue] = QueueRange(one.queue, min(known.begin, one.begin), max(known.end, one.end))
        found = await gather([self._profile(span) for span in spans.values()])
        return dict(zip(spans, found, strict=True))

    async def _profile(self, span: QueueRange) -> SizeProfile:
        queue, begin, end = span
        try:
            if end - begin <= EXACT_COUNT:
                return _exact_profile(begin, end, await self.ranges.sizes(queue, begin, end - begin))
            borders = [begin + (end - begin) * index // SAMPLES for index in range(SAMPLES + 1)]
            samples = [await self.ranges.sizes(queue, offset, SAMPLE_COUNT) for offset in borders[:-1]]
        except ClientError as refused:
            log.warning("sizes of %s are not known: %s", queue, refused)
            return SizeProfile([begin, end], [0, SIZE_GUESS * (end - begin)])
        return _sampled_profile(borders, samples)


def _exact_profile(begin: int, end: int, sizes: Sequence[int]) -> SizeProfile:
    offsets, sums = [begin], [0]
    for size in sizes[: end - begin]:
        offsets.append(offsets[-1] + 1)
        sums.append(sums[-1] + max(size, 1))
    if offsets[-1] < end:
        mean = sums[-1] // (offsets[-1] - begin) if offsets[-1] > begin else SIZE_GUESS
        offsets.append(end)
        sums.append(sums[-1] + mean * (end - offsets[-2]))
    return SizeProfile(offsets, sums)


def _sampled_profile(borders: Sequence[int], samples: Sequence[Sequence[int]]) -> SizeProfile:
    sums = [0]
    for index, sizes in enumerate(samples):
        mean = max(sum(sizes) / len(sizes), 1) if sizes else SIZE_GUESS
        sums.append(sums[-1] + round(mean * (borders[index + 1] - borders[index])))
    return SizeProfile(borders, sums)


# --- checks --------------------------------------------------------------------------------------------------


def _check_assigned(choice: Choice, found: Sequence[MessageQueue]) -> None:
    for topic, named in (choice.queues or {}).items():
        mine = [queue for queue in found if queue.topic == topic]
        there: set[tuple[str | None, int]] = {(queue.broker_name, queue.queue_id) for queue in mine}
        there |= {(None, queue.queue_id) for queue in mine}
        for broker, queue_id in sorted(named - there, key=str):
            where = f"queue {queue_id} of broker {broker}" if broker else f"queue {queue_id}"
            raise OptionError("assign", topic, f"it has no {where}; there are: {_shown(mine)}")


def _check_named(option: str, numbers: Iterable[MessageQueue], bounds: Bounds) -> None:
    """A list of queues has to be complete: what it leaves out would be read from somewhere or not at all."""
    named = set(numbers)
    if unknown := sorted(named - set(bounds)):
        raise OptionError(
            option, _shown(unknown), f"the read has no such queue; there are: {_shown(sorted(bounds))}"
        )
    if missing := sorted(set(bounds) - named):
        raise OptionError(option, _shown(missing), "it says nothing about these queues; name every queue")


def _check_times(
    place: Place, times: Mapping[MessageQueue, int], offsets: Mapping[MessageQueue, int], bounds: Bounds
) -> None:
    for queue, offset in offsets.items():
        if offset >= bounds[queue][1]:
            raise OptionError(
                place.option,
                str(times[queue]),
                f"{queue} has no message of that time or later; "
                "startingOffsetsByTimestampStrategy=latest begins at its end",
            )


def _shown(queues: Iterable[MessageQueue]) -> str:
    """A few queues by name."""
    names = [str(queue) for queue in queues]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
