"""Counters of the broker, and the rates made of them.

Touches  nothing. The hot path adds once a batch; `sample` is called every 10 s and keeps what rates need.

    counter of          statistics (RocketMQ's names)                key
    topic               TOPIC_PUT_NUMS, TOPIC_PUT_SIZE               topic
    topic and group     GROUP_GET_NUMS, GROUP_GET_SIZE               topic@group
                        SNDBCK_PUT_NUMS                              topic@group
    broker              BROKER_PUT_NUMS, BROKER_GET_NUMS             cluster name

History: the last minute in steps of 10 s, the last hour in steps of 10 min, the last day in steps of 1 h, as the
official broker keeps it; a rate over a span is the difference of its ends.

Invariants
- Counters only grow; they end with their topic or group.
- Histories are bounded by their deque; the number of counters by the number of topics and groups.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from aerobee_service.turns.slices import Steps, at_once

__all__ = ["SAMPLE_S", "BrokerStats", "Counter", "DayStatistics", "Histogram", "Rate", "TopicCounters"]

log = structlog.get_logger()

SAMPLE_S: Final = 10
MINUTE_SAMPLES: Final = 7
HOUR_STEP: Final = 60  # samples
HOUR_SAMPLES: Final = 7
DAY_STEP: Final = 360  # samples
DAY_SAMPLES: Final = 25
LATENCY_BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
FLUSH_BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
LATENCY_LABELS: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)


@dataclass(slots=True, frozen=True)
class Rate:
    """One statistic over one span."""

    total: int  # added within the span
    per_second: float
    per_time: float  # added per call that added


@dataclass(slots=True, frozen=True)
class DayStatistics:
    """Totals at the last two midnights, and now."""

    yesterday_morning: int
    today_morning: int
    now: int


@dataclass(slots=True, frozen=True)
class Histogram:
    """How many took how long: `counts` has one for each upper bound, and one more for what took longer."""

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]
    sum_ms: float


ZERO_RATE: Final = Rate(0, 0.0, 0.0)


class Counter:
    """A number that grows, how often it grew, and where it stood at the samples."""

    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._minute: deque[tuple[int, int, int]] = deque(maxlen=MINUTE_SAMPLES)  # (ms, value, times)
        self._hour: deque[tuple[int, int, int]] = deque(maxlen=HOUR_SAMPLES)
        self._day: deque[tuple[int, int, int]] = deque(maxlen=DAY_SAMPLES)

    def add(self, amount: int) -> None:
        self.value += amount
        self.times += 1

    def sample(self, number: int, now_ms: int) -> None:
        """Note where the counter stands. `number` counts the samples of the whole broker.

        A counter that is new since the last sample has grown from zero within that time: else the only messages
        of a topic would be in no rate.
        """
        here = (now_ms, self.value, self.times)
        if not self._minute and self.value:
            for history, samples in ((self._minute, 1), (self._hour, HOUR_STEP), (self._day, DAY_STEP)):
                history.append((now_ms - samples * SAMPLE_S * 1000, 0, 0))
                history.append(here)
            return
        self._minute.append(here)
        if number % HOUR_STEP == 0 or not self._hour:
            self._hour.append(here)
        if number % DAY_STEP == 0 or not self._day:
            self._day.append(here)

    def last_minute(self) -> Rate:
        return _rate(self._minute)

    def last_hour(self) -> Rate:
        return _rate(self._hour)

    def last_day(self) -> Rate:
        return _rate(self._day)

    def last_seconds(self, seconds: int) -> float:
        """Growth per second over about the last 10 s, 60 s or 600 s."""
        if seconds > (MINUTE_SAMPLES - 1) * SAMPLE_S:
            return self._recent_hour()
        steps = seconds // SAMPLE_S
        samples = list(self._minute)[-steps - 1 :]
        return _rate(samples).per_second

    def _recent_hour(self) -> float:
        """Growth per second over the last 10 to 20 minutes."""
        if not self._minute or not self._hour:
            return 0.0
        newest = self._minute[-1]
        oldest = self._hour[-2] if len(self._hour) > 1 else self._hour[-1]
        return _rate([oldest, newest]).per_second


def _rate(samples: "deque[tuple[int, int, int]] | list[tuple[int, int, int]]") -> Rate:
    if len(samples) < 2:
        return ZERO_RATE
    (first_ms, first, first_times), (last_ms, last, last_times) = samples[0], samples[-1]
    total, times, took_ms = last - first, last_times - first_times, last_ms - first_ms
    return Rate(total, total * 1000 / took_ms if took_ms > 0 else 0.0, total / times if times > 0 else 0.0)


def _known(counter: Counter, value: int, times: int) -> Counter:
    counter.value, counter.times = value, times
    return counter


class TopicCounters:
    """What came in for one topic.

    Sends and pulls add to plain numbers: with a thousand topics each message counts elsewhere, and every object that
    has to be brought from memory for it takes 0.1 us. Who reads gets counters that know them.
    """

    __slots__ = ("_put_bytes", "_put_count", "count", "in_batches", "size")

    def __init__(self) -> None:
        self.count = 0  # messages
        self.size = 0  # bytes of records
        self.in_batches = 0  # messages that came with another before them in one request
        self._put_count = Counter()
        self._put_bytes = Counter()

    @property
    def put_count(self) -> Counter:
        return _known(self._put_count, self.count, self.count - self.in_batches)

    @property
    def put_bytes(self) -> Counter:
        return _known(self._put_bytes, self.size, self.count - self.in_batches)


class GotCounters:
    """What went out: of one topic to one group, or in all."""

    __slots__ = ("_get_bytes", "_get_count", "count", "size", "times")

    def __init__(self) -> None:
        self.count = 0  # messages
        self.size = 0  # bytes of records
        self.times = 0  # answers that had some
        self._get_count = Counter()
        self._get_bytes = Counter()

    @property
    def get_count(self) -> Counter:
        return _known(self._get_count, self.count, self.times)

    @property
    def get_bytes(self) -> Counter:
        return _known(self._get_bytes, self.size, self.times)


class GroupCounters(GotCounters):
    """Of one topic and group."""

    __slots__ = ("send_back_count",)

    def __init__(self) -> None:
        super().__init__()
        self.send_back_count = Counter()


class BrokerStats:
    """All counters of the broker. Written by the event loop; reads from other threads see whole numbers."""

    def __init__(self, cluster_name: str, now_ms: int) -> None:
        self._cluster_name = cluster_name
        self.started_ms = now_ms
        self.topics: dict[str, TopicCounters] = {}
        # By group and topic. A GroupTopic takes 0.25 us to make, and a pull 11.
        self.groups: dict[tuple[str, str], GroupCounters] = {}
        # The keys of one group, and of one topic: whoever deletes it does not walk them all.
        self._of_group: dict[str, dict[tuple[str, str], None]] = {}
        self._of_topic: dict[str, dict[tuple[str, str], None]] = {}
        self.put_count = Counter()
        self.put_bytes = Counter()
        self._got = GotCounters()
        self._pulls_found = Counter()
        self.pulls_missed = Counter()
        # Plain numbers since start.
        self.put_failed = 0
        self.flush_count = 0
        self.put_took_ms_max = 0
        self.put_took_ms = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.put_took_ms_sum = 0.0
        self.flush_took_ms = [0] * (len(FLUSH_BOUNDS_MS) + 1)
        self.flush_took_ms_sum = 0.0
        self._samples = 0
        self._day = _day_of(now_ms)
        self._put_mornings = [0, 0]  # totals at yesterday's and today's midnight
        self._get_mornings = [0, 0]
        # Since the last report.
        self._reported = (now_ms, 0, 0, 0, 0)
        self._recent_put_ms_max = 0
        self._recent_flush_ms_max = 0
        self.sample(now_ms)

    # --- the hot path -----------------------------------------------------------------------------------------

    def of_topic(self, topic: str) -> TopicCounters:
        """The counters of a topic until it is deleted; who adds to them tells `put_all`."""
        counters = self.topics.get(topic)
        if counters is None:
            counters = self.topics[topic] = TopicCounters()
        return counters

    def put_all(self, count: int, size: int, times: int) -> None:
        """`count` messages with `size` bytes of records were stored for `times` requests."""
        self.put_count.value += count
        self.put_count.times += times
        self.put_bytes.value += size
        self.put_bytes.times += times

    def put(self, topic: str, count: int, size: int) -> None:
        """One request stored `count` messages with `size` bytes of records in `topic`."""
        counters = self.of_topic(topic)
        counters.count += count
        counters.size += size
        counters.in_batches += count - 1
        self.put_all(count, size, 1)

    def got(self, key: tuple[str, str], count: int, size: int) -> None:
        """A pull of a group in a topic was answered with `count` messages, `size` bytes of records."""
        counters = self.groups.get(key)
        if counters is None:
            counters = self._new_pair(key)
        in_all = self._got
        counters.count += count
        counters.size += size
        counters.times += 1
        in_all.count += count
        in_all.size += size
        in_all.times += 1

    def missed(self) -> None:
        """A pull found nothing."""
        self.pulls_missed.add(1)

    def sent_back(self, group: str, topic: str) -> None:
        """A consumer sent a message back."""
        key = (group, topic)
        (self.groups.get(key) or self._new_pair(key)).send_back_count.add(1)

    def _new_pair(self, key: tuple[str, str]) -> GroupCounters:
        group, topic = key
        self._of_group.setdefault(group, {})[key] = None
        self._of_topic.setdefault(topic, {})[key] = None
        counters = self.groups[key] = GroupCounters()
        return counters

    def put_took(self, took_ms: float, count: int = 1) -> None:
        """`count` sends that waited for the disk were answered at most `took_ms` after they were stored."""
        self.put_took_ms[_bucket(took_ms)] += count
        self.put_took_ms_sum += took_ms * count
        whole = int(took_ms)
        if whole > self._recent_put_ms_max:
            self._recent_put_ms_max = whole
            self.put_took_ms_max = max(self.put_took_ms_max, whole)

    def flushed(self, took_ms: float) -> None:
        """The log was brought to the disk."""
        self.flush_count += 1
        self.flush_took_ms[bisect_left(FLUSH_BOUNDS_MS, took_ms)] += 1
        self.flush_took_ms_sum += took_ms
        self._recent_flush_ms_max = max(self._recent_flush_ms_max, int(took_ms))

    # --- ends -------------------------------------------------------------------------------------------------

    def topic_deleted(self, topic: str) -> None:
        """Drop what belongs to a topic."""
        self.topics.pop(topic, None)
        for key in self._of_topic.pop(topic, ()):
            del self.groups[key]
            _drop(self._of_group, key[0], key)

    def group_deleted(self, group: str) -> None:
        """Drop what belongs to a group."""
        for key in self._of_group.pop(group, ()):
            del self.groups[key]
            _drop(self._of_topic, key[1], key)

    # --- reading ----------------------------------------------------------------------------------------------

    @property
    def get_count(self) -> Counter:
        """Messages that were read, of all topics and groups that there were."""
        return self._got.get_count

    @property
    def get_bytes(self) -> Counter:
        """Bytes of their records."""
        return self._got.get_bytes

    @property
    def pulls_found(self) -> Counter:
        """Answers that had messages."""
        return _known(self._pulls_found, self._got.times, self._got.times)

    def find(self, name: str, key: str) -> Counter | None:
        """A statistic by RocketMQ's name and key; None when there is none."""
        topic, _, group = key.partition("@")
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            counters = self.topics.get(key)
            if counters is None:
                return None
            return counters.put_count if name == "TOPIC_PUT_NUMS" else counters.put_bytes
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            if key != self._cluster_name:
                return None
            return self.put_count if name == "BROKER_PUT_NUMS" else self.get_count
        pair = self.groups.get((group, topic))
        if pair is None:
            return None
        by_name = {
            "GROUP_GET_NUMS": pair.get_count,
            "GROUP_GET_SIZE": pair.get_bytes,
            "SNDBCK_PUT_NUMS": pair.send_back_count,
        }
        return by_name.get(name)

    def consume_rate(self, group: str, topic: str) -> float:
        """Messages per second that the group got of the topic in the last minute."""
        pair = self.groups.get((group, topic))
        return pair.get_count.last_minute().per_second if pair else 0.0

    def put_rate(self, topic: str) -> float:
        """Messages per second that came in for the topic in the last minute."""
        counters = self.topics.get(topic)
        return counters.put_count.last_minute().per_second if counters else 0.0

    @property
    def put_days(self) -> DayStatistics:
        """Messages that were stored."""
        return DayStatistics(self._put_mornings[0], self._put_mornings[1], self.put_count.value)

    @property
    def get_days(self) -> DayStatistics:
        """Messages that were read."""
        return DayStatistics(self._get_mornings[0], self._get_mornings[1], self.get_count.value)

    def put_distribution(self) -> str:
        """How long sends took, in the official text form. Those that waited for nothing took no time."""
        pairs = zip(LATENCY_LABELS, self._put_took_all_ms(), strict=True)
        return "".join(f"[{label}]:{count} " for label, count in pairs)

    def put_took_quantile_ms(self, share: float) -> float:
        """Upper bound in ms of the fastest `share` of the sends; 0 without sends."""
        took_ms = self._put_took_all_ms()
        rank = sum(took_ms) * share
        seen = 0
        for bound, count in zip((*LATENCY_BOUNDS_MS, self.put_took_ms_max), took_ms, strict=True):
            seen += count
            if count and seen >= rank:
                return float(bound)
        return 0.0

    def put_histogram(self) -> "Histogram":
        """How long sends waited for the disk; those that waited for nothing took no time."""
        return Histogram(LATENCY_BOUNDS_MS, tuple(self._put_took_all_ms()), self.put_took_ms_sum)

    def flush_histogram(self) -> "Histogram":
        """How long syncs of the log took."""
        return Histogram(FLUSH_BOUNDS_MS, tuple(self.flush_took_ms), self.flush_took_ms_sum)

    def _put_took_all_ms(self) -> list[int]:
        """`put_took_ms`, and in its first class also the sends that were answered at once."""
        at_once = max(0, self.put_count.value - sum(self.put_took_ms))
        return [self.put_took_ms[0] + at_once, *self.put_took_ms[1:]]

    # --- sampling and reporting -------------------------------------------------------------------------------

    def sample(self, now_ms: int) -> None:
        """Note where all counters stand; to be called every `SAMPLE_S` seconds."""
        at_once(self.sample_steps(now_ms))

    def sample_steps(self, now_ms: int) -> Steps[None]:
        """As `sample`, in steps: a broker may have 100,000 counters."""
        number, self._samples = self._samples, self._samples + 1
        for counters in self._all():
            for counter in counters:
                counter.sample(number, now_ms)
            yield
        day = _day_of(now_ms)
        if day != self._day:
            self._day = day
            self._put_mornings = [self._put_mornings[1], self.put_count.value]
            self._get_mornings = [self._get_mornings[1], self.get_count.value]

    def _all(self) -> Iterator[tuple[Counter, ...]]:
        yield self.put_count, self.put_bytes, self.get_count, self.get_bytes
        yield self.pulls_found, self.pulls_missed
        for topic in list(self.topics.values()):
            yield topic.put_count, topic.put_bytes
        for pair in list(self.groups.values()):
            yield pair.get_count, pair.get_bytes, pair.send_back_count

    def report(self, now_ms: int, **facts: object) -> None:
        """Write the `broker.stats` line: what happened since the last one, and `facts` of the caller."""
        before = self._reported
        here = (
            now_ms,
            self.put_count.value,
            self.put_bytes.value,
            self.get_count.value,
            self.get_bytes.value,
        )
        self._reported = here
        took_s = max(1, now_ms - before[0]) / 1000
        put, put_bytes, got, got_bytes = (new - old for new, old in zip(here[1:], before[1:], strict=True))
        log.info(
            "broker.stats",
            interval_s=round(took_s, 1),
            put_count=put,
            put_per_s=round(put / took_s, 1),
            put_bytes=put_bytes,
            put_failed=self.put_failed,
            get_count=got,
            get_per_s=round(got / took_s, 1),
            get_bytes=got_bytes,
            put_took_ms_max=self._recent_put_ms_max,
            flush_took_ms_max=self._recent_flush_ms_max,
            **facts,
        )
        self._recent_put_ms_max = 0
        self._recent_flush_ms_max = 0


def _drop(index: dict[str, dict[tuple[str, str], None]], name: str, key: tuple[str, str]) -> None:
    keys = index[name]
    del keys[key]
    if not keys:
        del index[name]


def _bucket(took_ms: float) -> int:
    for index, bound in enumerate(LATENCY_BOUNDS_MS):
        if took_ms < bound:
            return index
    return len(LATENCY_BOUNDS_MS)


def _day_of(now_ms: int) -> tuple[int, int]:
    """The local day, as operators mean it when they read "today"."""
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday
