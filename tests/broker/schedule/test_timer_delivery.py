"""Timer messages without sockets or waiting: the clock is turned by hand, deliveries are read from the store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.schedule.timer_delivery import TimerDelivery, recall_key
from aerobee_proto import properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.terms.messages import PutStatus
from aerobee_store.timer.timer_files import MAGIC_DELETE, MAGIC_ROLL
from broker.support import START_MS, Clock, make_test_parts

HOUR_MS = 3_600_000


def without_index(timers: TimerDelivery) -> None:
    """What was delivered before is not looked up among the keys."""
    timers.doubtful_ms = 0


class Run:
    """One run of a broker, as far as timers go."""

    def __init__(self, root: Path, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.parts = make_test_parts(root, clock, **settings)
        self.parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])
        assert self.parts.timers is not None
        self.timers = self.parts.timers
        self.timers.begin(self.parts.topics.all())

    def send(self, body: str, **mapping: object) -> None:
        texts = {"UNIQ_KEY": f"key-{body}", **{name: str(value) for name, value in mapping.items()}}
        message = self.parts.writer.new("T", 1, body.encode(), texts)
        (done,) = self.parts.writer.append([self.parts.placement.place(message, texts)])
        assert done.status is PutStatus.PUT_OK

    def recall(self, body: str, at_ms: int) -> None:
        key = recall_key("T", f"key-{body}")
        self.send(body, TIMER_DELIVER_MS=at_ms, TIMER_DEL_UNIQKEY=key)

    async def at(self, now_ms: int) -> list[str]:
        """The bodies of the topic after everything that is due at a time was delivered."""
        self.clock.now_ms = now_ms
        await self.timers.work()
        return self.bodies()

    def records(self, topic: str = "T", queue_id: int = 1) -> list[StoredRecord]:
        found = self.parts.store.reading.queue_entries(topic, queue_id, 0, 100_000)
        raws = [self.parts.store.reading.message_at(entry.physical_offset) for entry in found]
        return [decode_record(raw) for raw in raws if raw is not None]

    def bodies(self) -> list[str]:
        return [record.body.decode() for record in self.records()]

    async def save(self) -> None:
        self.parts.store.flush_disk()
        await self.timers.save()

    async def stop(self) -> None:
        self.parts.store.flush_disk()
        await self.timers.close()
        self.parts.store.close()


@contextmanager
def running(root: Path, clock: Clock, **settings: Any) -> Iterator[Run]:
    """A run that ends as by a kill, unless it was stopped."""
    run = Run(root, clock, **({"mapped_file_size_timer_log": 4096} | settings))
    try:
        yield run
    finally:
        run.timers.files.close()
        run.parts.store.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


# --- when ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 2, 500, 999, 1000, 1001, 1500, 59_999, 60_000, 3 * 24 * HOUR_MS - 1])
async def test_a_message_is_delivered_at_its_millisecond(root: Path, clock: Clock, offset: int) -> None:
    clock.now_ms += 123
    due = clock.now_ms + offset
    with running(root, clock, timer_roll_window_slot=604_740) as run:
        run.send("a", TIMER_DELIVER_MS=due)
        assert await run.at(clock.now_ms) == []
        assert await run.at(due - 1) == []
        assert await run.at(due) == ["a"]
        assert await run.at(due + HOUR_MS) == ["a"]


@pytest.mark.parametrize(
    ("given", "offset"),
    [
        ({"TIMER_DELAY_SEC": 5}, 5000),
        ({"TIMER_DELAY_MS": 5}, 5),
        ({"TIMER_DELAY_SEC": 1, "TIMER_DELAY_MS": 5, "TIMER_DELIVER_MS": 7}, 1000),
        ({"TIMER_DELAY_MS": 50, "TIMER_DELIVER_MS": START_MS + 10}, 50),
    ],
)
async def test_the_first_property_that_is_there_counts(
    root: Path, clock: Clock, given: dict[str, int], offset: int
) -> None:
    with running(root, clock) as run:
        run.send("a", **given)
        assert await run.at(START_MS + offset - 1) == []
        assert await run.at(START_MS + offset) == ["a"]


async def test_messages_leave_in_the_order_of_their_times(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        for delay in (900, 30, 5000, 31, 900, 2500):
            run.send(str(delay), TIMER_DELAY_MS=delay)
            await run.at(clock.now_ms)
        assert await run.at(START_MS + 899) == ["30", "31"]
        assert await run.at(START_MS + 10_000) == ["30", "31", "900", "900", "2500", "5000"]


async def test_a_time_that_has_passed_is_no_delay(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELIVER_MS=START_MS)
        assert run.bodies() == ["a"]
        assert run.records(TIMER_TOPIC, 0) == []


async def test_a_time_too_far_away_is_refused(root: Path, clock: Clock) -> None:
    with running(root, clock, timer_max_delay_sec=60) as run:
        run.send("a", TIMER_DELAY_SEC=60)
        with pytest.raises(RequestError) as refused:
            run.send("b", TIMER_DELAY_MS=60_001)
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_level_wins_over_times(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", DELAY=2, TIMER_DELAY_SEC=5, TIMER_DELIVER_MS=7)
        (record,) = run.records("SCHEDULE_TOPIC_XXXX", 1)
        assert not {"TIMER_DELAY_SEC", "TIMER_DELIVER_MS"} & record.property_map.keys()


async def test_the_parked_record_is_what_an_official_broker_goes_on_with(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("exact", TIMER_DELIVER_MS=START_MS + 5000)
        run.send("between", TIMER_DELIVER_MS=START_MS + 5001)
        first, second = run.records(TIMER_TOPIC, 0)
        assert (first.property_map["REAL_TOPIC"], first.property_map["REAL_QID"]) == ("T", "1")
        assert first.property_map["TIMER_OUT_MS"] == str(START_MS + 4000)
        assert second.property_map["TIMER_OUT_MS"] == str(START_MS + 5000)
        await run.at(START_MS + 5001)
        delivered = run.records()[0].property_map
        assert delivered["TIMER_DEQUEUE_MS"] == str(START_MS + 5001)
        assert {"TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"} <= delivered.keys()


async def test_many_at_the_same_time(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        for number in range(1000):
            run.send(str(number), TIMER_DELIVER_MS=START_MS + 3000)
        assert await run.at(START_MS + 2999) == []
        assert run.timers.waiting_count == 1000
        assert await run.at(START_MS + 3000) == [str(number) for number in range(1000)]
        await run.at(START_MS + 4000)
        assert run.timers.waiting_count == 0


# --- the next run -------------------------------------------------------------------------------------------------


async def test_an_orderly_restart_in_the_middle_of_a_slot_repeats_nothing(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        for delay in (100, 200, 300, 5000):
            run.send(str(delay), TIMER_DELAY_MS=delay)
        assert await run.at(START_MS + 250) == ["100", "200"]
        await run.stop()
    with running(root, clock) as run:
        without_index(run.timers)
        assert await run.at(START_MS + 251) == ["100", "200"]
        assert await run.at(START_MS + 9999) == ["100", "200", "300", "5000"]


@pytest.mark.parametrize(
    "now", [150, 250, 1050], ids=["one is left", "the slot is empty", "the slot is over"]
)
async def test_the_log_of_an_orderly_end_ends_with_the_message_that_was_read_last(
    root: Path, clock: Clock, now: int
) -> None:
    """RocketMQ reads on behind the message of the last unit. What waited was delivered twice by a broker of RocketMQ
    that took over the store, when a message of the last second before its end had been delivered.
    """
    with running(root, clock) as run:
        for delay in (100, 200, 5000, 6000):
            run.send(str(delay), TIMER_DELAY_MS=delay)
        await run.at(START_MS + now)
        await run.stop()
    with running(root, clock) as run:
        (*_, last) = run.records(TIMER_TOPIC, 0)
        newest = run.timers.files.newest_unit()
        assert newest is not None
        assert (newest.physical_offset, newest.record_size) == (last.physical_offset, last.size)
        assert (await run.at(START_MS + 9999)) == ["100", "200", "5000", "6000"]


async def test_a_slot_that_was_emptied_before_a_restart_stays_empty(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELAY_MS=100)
        assert await run.at(START_MS + 150) == ["a"]
        await run.stop()
    with running(root, clock) as run:
        without_index(run.timers)
        run.send("b", TIMER_DELAY_MS=100)
        assert await run.at(START_MS + 9999) == ["a", "b"]


@pytest.mark.parametrize("saved", [False, True], ids=["no checkpoint", "checkpoint"])
async def test_after_a_kill_nothing_is_lost_and_what_the_index_knows_is_not_repeated(
    root: Path, clock: Clock, saved: bool
) -> None:
    delays = [*range(100, 4000, 130), 50_000]
    with running(root, clock) as run:
        for number, delay in enumerate(delays):
            run.send(f"{delay}", TIMER_DELAY_MS=delay)
            if number == 10:
                await run.at(START_MS)
                if saved:
                    await run.save()
        before = await run.at(START_MS + 2000)
        assert before
    with running(root, clock) as run:
        after = await run.at(START_MS + 100_000)
        assert after[: len(before)] == before
        assert after == [str(delay) for delay in delays]


async def test_what_came_due_while_the_broker_was_down_is_delivered_at_once(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELAY_SEC=10)
        await run.at(START_MS)
        await run.stop()
    with running(root, clock) as run:
        assert await run.at(START_MS + 20 * 24 * HOUR_MS) == ["a"]


@pytest.mark.parametrize("damage", ["unit", "all"])
async def test_a_damaged_timer_log_is_made_anew_from_the_topic(root: Path, clock: Clock, damage: str) -> None:
    with running(root, clock) as run:
        for number in range(10):
            run.send(str(number), TIMER_DELAY_SEC=number + 1)
        assert await run.at(START_MS + 4000) == ["0", "1", "2", "3"]
        await run.at(START_MS + 4999)
        await run.stop()
    path = root / "timerlog" / ("0" * 20)
    if damage == "all":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[52 * 3] = 77
        path.write_bytes(content)
    with capture_logs() as logged, running(root, clock) as run:
        without_index(run.timers)
        assert await run.at(START_MS + 4999) == ["0", "1", "2", "3"]
        assert await run.at(START_MS + HOUR_MS) == [str(number) for number in range(10)]
    assert "store.timer_log_damaged" in [one["event"] for one in logged]


# --- recalls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the slot", "in the slot"])
async def test_a_recalled_message_is_not_delivered(root: Path, clock: Clock, when: str) -> None:
    due = START_MS + 5700
    with running(root, clock) as run:
        run.send("a", TIMER_DELIVER_MS=due)
        run.send("b", TIMER_DELIVER_MS=due)
        await run.at(START_MS if when == "before the slot" else due - 200)
        run.recall("a", due)
        assert await run.at(due + 1000) == ["b"]


async def test_a_recall_outlives_a_restart(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELIVER_MS=START_MS + 5700)
        run.recall("a", START_MS + 5001)
        await run.at(START_MS + 5500)
        await run.stop()
    with running(root, clock) as run:
        assert await run.at(START_MS + 9000) == []


# --- far away -----------------------------------------------------------------------------------------------------


async def test_a_message_beyond_the_window_is_written_anew_on_its_way(root: Path, clock: Clock) -> None:
    with running(root, clock, timer_roll_window_slot=100, timer_max_delay_sec=1000) as run:
        due = START_MS + 350_000
        run.send("a", TIMER_DELIVER_MS=due)
        await run.at(START_MS)
        for second in range(1, 350):
            assert await run.at(START_MS + second * 1000) == []
        assert await run.at(due - 1) == []
        assert await run.at(due) == ["a"]
        scheduled = run.records(TIMER_TOPIC, 0)
        assert [record.property_map.get("TIMER_ROLL_TIMES") for record in scheduled] == [None, "1", "2", "3"]
        assert len(run.records()) == 1


@pytest.mark.parametrize("lost", ["nothing", "timer log", "checkpoint"])
async def test_what_was_written_anew_is_delivered_once_after_a_kill(
    root: Path, clock: Clock, lost: str
) -> None:
    """A run that read it again, as its checkpoint was older or it had none, wrote it anew once more for each stop."""
    due = START_MS + 350_000
    far: dict[str, Any] = {"timer_roll_window_slot": 100, "timer_max_delay_sec": 1000}
    with running(root, clock, **far) as run:
        for body in ("a", "b", "recalled"):
            run.send(body, TIMER_DELIVER_MS=due)
        run.recall("recalled", due)
        await run.at(START_MS)
        await run.save()
        for second in range(1, 120):
            await run.at(START_MS + second * 1000)
        if lost == "nothing":
            await run.save()
        await run.at(START_MS + 120_000)
    if lost == "timer log":
        (root / "timerlog" / ("0" * 20)).unlink()
    with running(root, clock, **far) as run:
        for second in range(120, 351):
            await run.at(START_MS + second * 1000)
        assert run.bodies() == ["a", "b"]
        assert dict(run.parts.timer_counts.waiting()) == {}
    for name in ("config/timercheck", f"timerlog/{0:020}"):  # as of a copy that never delivered
        (root / name).unlink()
    with running(root, clock, **far) as run:
        assert await run.at(due + HOUR_MS) == ["a", "b"]
        assert dict(run.parts.timer_counts.waiting()) == {}


# --- the official files -------------------------------------------------------------------------------------------


async def test_units_wheel_and_checkpoint_have_the_official_form(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELIVER_MS=START_MS + 5001)
        run.send("b", TIMER_DELIVER_MS=START_MS + 6000)
        run.recall("b", START_MS + 5002)
        await run.at(START_MS)
        await run.save()
        slot = START_MS + 5000
        assert list(run.timers.files.positions(slot)) == [0, 52, 104]
        unit = run.timers.files.unit(104)
        assert unit is not None
        assert (unit.previous, unit.magic & MAGIC_DELETE, unit.magic & MAGIC_ROLL) == (52, MAGIC_DELETE, 0)
    wheel = (root / "timerwheel").read_bytes()
    assert len(wheel) == 38_707_200
    index = slot // 1000 % 1_209_600
    fields = [int.from_bytes(wheel[index * 32 + at : index * 32 + at + 8], "big") for at in (0, 8, 16)]
    assert fields == [slot // 1000, 0, 104]
    check = (root / "config" / "timercheck").read_bytes()
    assert len(check) == 4096
    assert [int.from_bytes(check[at : at + 8], "big") for at in (8, 16, 24)] == [156, 3, 3]


async def test_counts_by_topic_are_known_again_after_a_restart(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELAY_SEC=5)
        run.send("b", TIMER_DELAY_SEC=9)
        await run.at(START_MS + 7000)
        assert run.parts.timer_counts.to_json()["timingCount"]["T"]["count"] == 1
        await run.stop()
    with running(root, clock) as run:
        assert run.parts.timer_counts.to_json()["timingCount"]["T"]["count"] == 1


async def test_garbage_in_the_timer_topic_is_passed_over(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        message = run.parts.writer.new(TIMER_TOPIC, 0, b"x", {properties.REAL_TOPIC: "T"})
        run.parts.writer.append([message])
        run.send("a", TIMER_DELAY_SEC=5)
        with capture_logs() as logged:
            assert await run.at(START_MS + 5000) == ["a"]
        assert [one["event"] for one in logged] == ["broker.delayed_lost"]


async def test_while_the_store_takes_nothing_deliveries_wait(root: Path, clock: Clock) -> None:
    with running(root, clock) as run:
        run.send("a", TIMER_DELAY_SEC=1)
        await run.at(START_MS)
        run.parts.store.refuse_sends("the disk is nearly full")
        with capture_logs() as logged:
            assert await run.at(START_MS + 1000) == []
        assert [one["event"] for one in logged] == ["broker.delivery_refused"]
        run.parts.store.refuse_sends(None)
        assert await run.at(START_MS + 1999) == []
        assert await run.at(START_MS + 2000) == ["a"]
