"""Delay levels without sockets or waiting: the clock is turned by hand, deliveries are read from the store."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts
from aerobee_broker.schedule.schedule_delivery import ScheduleDelivery
from aerobee_broker.schedule.scheduled_messages import ScheduledMessages
from aerobee_proto import properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.terms.messages import Appended, PutStatus
from broker.support import START_MS, Clock, make_test_parts

LEVELS = "1s 5s 10s"


@contextmanager
def opened(root: Path, clock: Clock, **settings: Any) -> Iterator[Parts]:
    parts = make_test_parts(root, clock, **({"message_delay_level": LEVELS} | settings))
    parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])
    try:
        yield parts
    finally:
        parts.store.close()


def delivery_of(parts: Parts, monotonic: Callable[[], float] | None = None) -> ScheduleDelivery:
    scheduled = ScheduledMessages(parts.store, parts.topics, parts.writer, parts.stats, parts.cold)
    delivery = ScheduleDelivery(
        scheduled,
        live=parts.live,
        clock=parts.clock,
        store=parts.store,
        writer=parts.writer,
        delay_offsets=parts.delay_offsets,
        wakeups=parts.wakeups,
        monotonic=monotonic or parts.clock,
    )
    delivery.begin()
    return delivery


def send(parts: Parts, body: str, level: int, *, topic: str = "T", queue_id: int = 1) -> Appended:
    """Schedule one message as a send does."""
    mapping = {properties.DELAY: str(level), properties.UNIQ_KEY: f"key-{body}", properties.TAGS: "TagA"}
    message = parts.writer.new(topic, queue_id, body.encode(), mapping)
    (done,) = parts.writer.append([parts.placement.place(message, mapping)])
    assert done.status is PutStatus.PUT_OK
    return done


def records(parts: Parts, topic: str = "T", queue_id: int = 1) -> list[StoredRecord]:
    found = parts.store.reading.queue_entries(topic, queue_id, 0, 100_000)
    raws = [parts.store.reading.message_at(entry.physical_offset) for entry in found]
    return [decode_record(raw) for raw in raws if raw is not None]


def bodies(parts: Parts, topic: str = "T", queue_id: int = 1) -> list[str]:
    return [record.body.decode() for record in records(parts, topic, queue_id)]


async def look(parts: Parts, delivery: ScheduleDelivery) -> None:
    """One turn of the delivery's loop, at the clock's present time."""
    delivery.take_up_fresh()
    await delivery.deliver_due()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def test_a_message_is_delivered_when_its_level_is_over_and_not_a_millisecond_before(
    root: Path, clock: Clock
) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 2)
        clock.now_ms += 4999
        await look(parts, delivery)
        assert bodies(parts) == []
        clock.now_ms += 1
        await look(parts, delivery)
        (record,) = records(parts)
        assert (record.body, record.topic, record.queue_id) == (b"a", "T", 1)
        assert record.store_timestamp == START_MS + 5000
        await look(parts, delivery)
        assert bodies(parts) == ["a"]


async def test_a_delivered_message_is_what_the_official_broker_makes_of_it(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        scheduled = send(parts, "a", 1)
        clock.now_ms += 1000
        await look(parts, delivery)
        (record,) = records(parts)
        assert record.property_map | {"__CRC32C": ""} == {
            "DELAY": "1",
            "UNIQ_KEY": "key-a",
            "TAGS": "TagA",
            "REAL_TOPIC": "T",
            "REAL_QID": "1",
            "__CRC32C": "",
        }
        assert record.prepared_transaction_offset == scheduled.physical_offset
        assert record.born_timestamp == START_MS
        entry = parts.store.reading.queue_entry("T", 1, 0)
        assert entry is not None
        assert entry.tag_hash == 2598919


async def test_levels_do_not_wait_for_each_other_and_each_keeps_its_order(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        for number in range(5):
            send(parts, f"slow-{number}", 3)
            send(parts, f"fast-{number}", 1)
            clock.now_ms += 100
        clock.now_ms += 600
        await look(parts, delivery)
        assert bodies(parts) == ["fast-0", "fast-1"]
        clock.now_ms += 20_000
        await look(parts, delivery)
        found = bodies(parts)
        assert [one for one in found if one.startswith("slow")] == [f"slow-{number}" for number in range(5)]
        assert [one for one in found if one.startswith("fast")] == [f"fast-{number}" for number in range(5)]


async def test_more_than_a_batch_is_delivered_in_one_go(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        for number in range(700):
            send(parts, str(number), 1)
        clock.now_ms += 1000
        await look(parts, delivery)
        assert bodies(parts) == [str(number) for number in range(700)]


async def test_a_level_beyond_the_table_counts_as_the_last(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 99)
        clock.now_ms += 9_999
        await look(parts, delivery)
        assert bodies(parts) == []
        clock.now_ms += 1
        await look(parts, delivery)
        assert bodies(parts) == ["a"]
        assert records(parts)[0].property_map["DELAY"] == "3"


# --- the next run -------------------------------------------------------------------------------------------------


async def stop(parts: Parts, delivery: ScheduleDelivery) -> None:
    """The end of an orderly stop."""
    parts.store.flush_disk()
    delivery.settle()
    await parts.files.save()


async def test_nothing_is_delivered_twice_after_an_orderly_restart(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 1)
        send(parts, "b", 3)
        clock.now_ms += 1000
        await look(parts, delivery)
        await stop(parts, delivery)
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        clock.now_ms += 60_000
        await look(parts, delivery)
        assert bodies(parts) == ["a", "b"]


async def test_what_was_delivered_before_a_crash_is_found_and_not_repeated(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        for number in range(20):
            send(parts, str(number), 1)
            clock.now_ms += 100
            await look(parts, delivery)
        assert len(bodies(parts)) == 11
    assert not (root / "config" / "delayOffset.json").exists()
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        clock.now_ms += 60_000
        await look(parts, delivery)
        assert bodies(parts) == [str(number) for number in range(20)]


async def test_offsets_are_not_written_before_the_deliveries_are_on_disk(root: Path, clock: Clock) -> None:
    """A file that is ahead of the disk would lose messages in a power cut."""
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 1)
        parts.store.flush_disk()
        clock.now_ms += 1000
        await look(parts, delivery)
        delivery.settle()
        assert parts.delay_offsets.get(1) == 0
        parts.store.flush_disk()
        delivery.settle()
        assert parts.delay_offsets.get(1) == 1


async def test_offsets_beyond_the_queue_are_corrected_and_told(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        parts.delay_offsets.moved(1, 77, 0)
        parts.delay_offsets.settle(0)
        with capture_logs() as logged:
            delivery = delivery_of(parts)
        assert [one["event"] for one in logged] == ["broker.delay_offset_corrected"]
        send(parts, "a", 1)
        clock.now_ms += 1000
        await look(parts, delivery)
        assert bodies(parts) == ["a"]


async def test_a_removed_level_is_still_delivered(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery_of(parts)
        send(parts, "a", 3)
        parts.store.flush_disk()
    with opened(root, clock, message_delay_level="1s 5s") as parts:
        delivery = delivery_of(parts)
        clock.now_ms += 10_000
        await look(parts, delivery)
        assert bodies(parts) == ["a"]


async def test_a_level_that_was_made_shorter_is_over_after_one_new_delay(root: Path, clock: Clock) -> None:
    with opened(root, clock, message_delay_level="2h") as parts:
        delivery_of(parts)
        send(parts, "a", 1)
        send(parts, "b", 1)
        parts.store.flush_disk()
    with opened(root, clock, message_delay_level="5s") as parts:
        delivery = delivery_of(parts)
        clock.now_ms += 4_999
        await look(parts, delivery)
        assert bodies(parts) == []
        clock.now_ms += 1
        await look(parts, delivery)
        assert bodies(parts) == ["a", "b"]


# --- clocks -------------------------------------------------------------------------------------------------------


async def test_after_the_clock_was_set_back_messages_wait_one_delay_at_most(root: Path, clock: Clock) -> None:
    steady = Clock(0)
    with opened(root, clock) as parts:
        delivery = delivery_of(parts, steady)
        send(parts, "a", 2)
        send(parts, "b", 2)
        clock.now_ms -= 3_600_000
        await look(parts, delivery)
        assert bodies(parts) == []
        for step in (4_999, 1):
            clock.now_ms += step
            steady.now_ms += step
            await look(parts, delivery)
        assert bodies(parts) == ["a", "b"]


# --- what cannot be delivered as usual ----------------------------------------------------------------------------


async def test_messages_of_a_deleted_topic_go_with_it(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 1)
        parts.topics.delete("T")
        parts.store.topics.delete("T")
        parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])
        send(parts, "b", 1)
        clock.now_ms += 1000
        await look(parts, delivery)
        assert bodies(parts) == ["b"]


async def test_a_topic_whose_settings_were_lost_comes_back_with_its_message(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 1, topic="Lost", queue_id=3)
        clock.now_ms += 1000
        await look(parts, delivery)
        assert bodies(parts, "Lost", 3) == ["a"]
        assert parts.topics.require("Lost").read_queue_nums == 4


async def test_a_queue_that_is_not_read_any_more_gives_way_to_one_that_is(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 1)
        parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
        clock.now_ms += 1000
        await look(parts, delivery)
        assert bodies(parts, queue_id=0) == ["a"]


async def test_while_the_store_takes_nothing_deliveries_wait(root: Path, clock: Clock) -> None:
    with opened(root, clock) as parts:
        delivery = delivery_of(parts)
        send(parts, "a", 1)
        parts.store.refuse_sends("the disk is nearly full")
        clock.now_ms += 1000
        with capture_logs() as logged:
            await look(parts, delivery)
        assert [one["event"] for one in logged] == ["broker.delivery_refused"]
        parts.store.refuse_sends(None)
        clock.now_ms += 999
        await look(parts, delivery)
        assert bodies(parts) == []
        clock.now_ms += 1
        await look(parts, delivery)
        assert bodies(parts) == ["a"]


async def test_the_loop_sleeps_until_a_message_is_due(root: Path) -> None:
    """Nobody polls: with nothing to do there is no timer, and what comes wakes it up."""
    clock = asyncio.get_running_loop().time
    wall = Clock(START_MS)

    def now_ms() -> int:
        return wall.now_ms + int(clock() * 1000)

    with opened(root, now_ms, message_delay_level="0s 3s") as parts:  # type: ignore[arg-type]
        delivery = delivery_of(parts)
        task = asyncio.create_task(delivery.run())
        arrived = asyncio.Event()

        class Reader:
            waiting = (None,)

            def arrived(self, _: object) -> None:
                if bodies(parts):
                    arrived.set()

        parts.visibility.start([Reader()])
        send(parts, "a", 1)
        async with asyncio.timeout(5):
            await arrived.wait()
        assert bodies(parts) == ["a"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_waiting_topic_has_the_due_time_in_its_tag_field(root: Path, clock: Clock) -> None:
    """As RocketMQ writes it."""

    async def run() -> None:
        with opened(root, clock) as parts:
            send(parts, "a", 2)
            entry = parts.store.reading.queue_entry(SCHEDULE_TOPIC, 1, 0)
            assert entry is not None
            assert entry.tag_hash == START_MS + 5000

    asyncio.run(run())
