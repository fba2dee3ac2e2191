"""Counters and rates: sampled at times that are passed in."""

import time

import pytest
from structlog.testing import capture_logs

from aerobee_broker.stats import SAMPLE_S, BrokerStats, Counter
from broker.support import START_MS

STEP_MS = SAMPLE_S * 1000


def sampled(values: list[int]) -> Counter:
    """A counter that stood at these values at samples 10 s apart."""
    counter = Counter()
    for number, value in enumerate(values):
        if value > counter.value:
            counter.add(value - counter.value)
        counter.sample(number, START_MS + number * STEP_MS)
    return counter


@pytest.mark.parametrize(
    ("values", "ten", "minute"),
    [
        ([], 0.0, 0.0),
        ([0], 0.0, 0.0),
        ([5], 0.5, 0.5),
        ([0, 100], 10.0, 10.0),
        ([0, 100, 100], 0.0, 5.0),
        ([0, 0, 0, 0, 0, 0, 600], 60.0, 10.0),
        ([0, 1000, 1000, 1000, 1000, 1000, 1000, 1600], 60.0, 10.0),
    ],
)
def test_rates_of_the_last_seconds(values: list[int], ten: float, minute: float) -> None:
    counter = sampled(values)
    assert counter.last_seconds(10) == pytest.approx(ten)
    assert counter.last_seconds(60) == pytest.approx(minute)
    assert counter.last_minute().per_second == pytest.approx(minute)


def test_the_hour_and_the_day_are_kept_in_coarser_steps() -> None:
    counter = sampled([10 * number for number in range(8641)])  # a day at 1/s
    assert counter.last_hour().per_second == pytest.approx(1.0)
    assert counter.last_hour().total == pytest.approx(3600, abs=600)
    assert counter.last_day().total == pytest.approx(86_400, abs=3600)
    assert counter.last_seconds(600) == pytest.approx(1.0)


def test_an_average_is_per_call() -> None:
    counter = Counter()
    counter.sample(0, START_MS)
    counter.add(30)
    counter.add(10)
    counter.sample(1, START_MS + STEP_MS)
    assert counter.last_minute().per_time == pytest.approx(20.0)


@pytest.fixture
def stats() -> BrokerStats:
    return BrokerStats("c", START_MS)


def test_batches_are_counted_once_for_topic_group_and_broker(stats: BrokerStats) -> None:
    stats.put("T", 3, 300)
    stats.put("U", 1, 50)
    stats.got(("g", "T"), 2, 200)
    stats.missed()
    stats.sent_back("g", "T")
    assert (stats.put_count.value, stats.put_bytes.value) == (4, 350)
    assert (stats.get_count.value, stats.pulls_found.value, stats.pulls_missed.value) == (2, 1, 1)
    assert stats.groups["g", "T"].send_back_count.value == 1


FOUND = {
    ("TOPIC_PUT_NUMS", "T"): 3,
    ("TOPIC_PUT_SIZE", "T"): 300,
    ("GROUP_GET_NUMS", "T@g"): 2,
    ("GROUP_GET_SIZE", "T@g"): 200,
    ("SNDBCK_PUT_NUMS", "T@g"): 0,
    ("BROKER_PUT_NUMS", "c"): 3,
    ("BROKER_GET_NUMS", "c"): 2,
    ("TOPIC_PUT_NUMS", "Unknown"): None,
    ("TOPIC_PUT_NUMS", "T@g"): None,
    ("GROUP_GET_NUMS", "T"): None,
    ("BROKER_PUT_NUMS", "other"): None,
    ("NO_SUCH", "T@g"): None,
    ("NO_SUCH", ""): None,
}


@pytest.mark.parametrize(("name", "key"), FOUND)
def test_statistics_by_name(name: str, key: str, stats: BrokerStats) -> None:
    stats.put("T", 3, 300)
    stats.got(("g", "T"), 2, 200)
    found = stats.find(name, key)
    assert (found.value if found else None) == FOUND[name, key]


def test_what_is_deleted_takes_its_counters_along(stats: BrokerStats) -> None:
    for topic in ("T", "U"):
        stats.put(topic, 1, 1)
        for group in ("g", "h"):
            stats.got((group, topic), 1, 1)
    stats.topic_deleted("T")
    stats.group_deleted("g")
    assert list(stats.topics) == ["U"]
    assert list(stats.groups) == [("h", "U")]
    assert stats.put_count.value == 2


def test_totals_of_the_mornings_move_at_midnight(stats: BrokerStats) -> None:
    noon = time.mktime((2024, 3, 10, 12, 0, 0, 0, 0, -1)) * 1000
    stats = BrokerStats("c", int(noon))
    stats.put("T", 5, 5)
    stats.sample(int(noon) + 1000)
    assert stats.put_days.today_morning == 0
    stats.sample(int(noon) + 86_400_000)
    stats.put("T", 2, 2)
    assert stats.put_days.today_morning == 5
    stats.sample(int(noon) + 2 * 86_400_000)
    assert stats.put_days.yesterday_morning == 5
    assert (stats.put_days.today_morning, stats.put_days.now) == (7, 7)


@pytest.mark.parametrize(
    ("took", "label"),
    [(0.2, "<=0ms"), (1, "0~10ms"), (49.9, "10~50ms"), (999, "500ms~1s"), (9_999, "5~10s"), (60_000, "10s~")],
)
def test_send_times_are_put_into_the_official_classes(took: float, label: str, stats: BrokerStats) -> None:
    stats.put_took(took, 3)
    assert f"[{label}]:3 " in stats.put_distribution()
    assert stats.put_distribution().count(":0 ") == 12


def test_quantiles_are_bounds_of_the_classes(stats: BrokerStats) -> None:
    assert stats.put_took_quantile_ms(0.99) == 0.0
    stats.put_took(0.5, 99)
    stats.put_took(700, 1)
    assert stats.put_took_quantile_ms(0.5) == 1.0
    assert stats.put_took_quantile_ms(0.99) == 1.0
    assert stats.put_took_quantile_ms(0.999) == 1000.0
    stats.put_took(12_345, 100)
    assert stats.put_took_quantile_ms(0.999) == 12_345.0


def test_the_stats_line_tells_of_the_interval(stats: BrokerStats) -> None:
    stats.put("T", 100, 5000)
    stats.put_took(40)
    stats.flushed(7.5)
    with capture_logs() as logs:
        stats.report(START_MS + 10_000, connections=3)
        stats.report(START_MS + 20_000, connections=3)
    first, second = logs
    assert first["event"] == "broker.stats"
    assert (first["put_count"], first["put_per_s"], first["put_bytes"]) == (100, 10.0, 5000)
    assert (first["put_took_ms_max"], first["flush_took_ms_max"], first["connections"]) == (40, 7, 3)
    assert (second["put_count"], second["put_took_ms_max"], second["flush_took_ms_max"]) == (0, 0, 0)
    assert stats.put_took_ms_max == 40


def test_what_came_before_the_first_sample_of_a_counter_is_in_its_rates(stats: BrokerStats) -> None:
    """Else a topic that gets one burst has had no message today, as statsAll tells it."""
    stats.put("T", 20, 2000)
    stats.sample(START_MS + 10_000)
    counter = stats.find("TOPIC_PUT_NUMS", "T")
    assert counter is not None
    assert [rate.total for rate in (counter.last_minute(), counter.last_hour(), counter.last_day())] == [
        20
    ] * 3
    assert counter.last_minute().per_second == 2.0
    stats.sample(START_MS + 20_000)
    assert counter.last_minute().per_second == 1.0


def test_sends_that_waited_for_nothing_took_no_time(stats: BrokerStats) -> None:
    stats.put("T", 10, 1000)
    stats.put_took(20, 4)
    assert stats.put_distribution().startswith("[<=0ms]:6 [0~10ms]:0 [10~50ms]:4 ")
    assert stats.put_took_quantile_ms(0.5) == 1.0
    assert stats.put_took_quantile_ms(0.99) == 50.0
