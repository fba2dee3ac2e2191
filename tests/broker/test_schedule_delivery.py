"""Delay levels without sockets or waiting: the clock is turned by hand, deliveries are read from the store."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.parked_messages import ParkedMessages
from aerobee_broker.schedule_delivery import ScheduleDelivery
from aerobee_broker.services import Services
from aerobee_proto import properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.messages import Appended, PutStatus
from broker.support import START_MS, Clock, make_test_services

LEVELS = "1s 5s 10s"


def attach(services: Services) -> None:
    """What the broker does after an append."""

    def appended() -> None:
        services.store.confirm(services.store.end_offset)

    services.appended = appended


@contextmanager
def opened(root: Path, clock: Clock, **settings: Any) -> Iterator[Services]:
    services = make_test_services(root, clock, **({"message_delay_level": LEVELS} | settings))
    services.files.load()
    attach(services)
    services.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])
    try:
        yield services
    finally:
        services.store.close()


def delivery_of(services: Services, monotonic: Callable[[], float] | None = None) -> ScheduleDelivery:
    parked = ParkedMessages(services.store, services.topics, services.writer)
    delivery = ScheduleDelivery(services, parked, monotonic=monotonic or services.clock)
    delivery.begin()
    services.delay_rules.level_parked = delivery.parked
    return delivery


def send(services: Services, body: str, level: int, *, topic: str = "T", queue_id: int = 1) -> Appended:
    """Park one message as a send does."""
    mapping = {properties.DELAY: str(level), properties.UNIQ_KEY: f"key-{body}", properties.TAGS: "TagA"}
    message = services.writer.new(topic, queue_id, body.encode(), mapping)
    (done,) = services.writer.append([services.parking.place(message, mapping)])
    assert done.status is PutStatus.PUT_OK
    return done


def records(services: Services, topic: str = "T", queue_id: int = 1) -> list[StoredRecord]:
    found = services.store.queue_entries(topic, queue_id, 0, 100_000)
    raws = [services.store.message_at(entry.physical_offset) for entry in found]
    return [decode_record(raw) for raw in raws if raw is not None]


def bodies(services: Services, topic: str = "T", queue_id: int = 1) -> list[str]:
    return [record.body.decode() for record in records(services, topic, queue_id)]


async def look(services: Services, delivery: ScheduleDelivery) -> None:
    """One turn of the delivery's loop, at the clock's present time."""
    delivery.take_up_fresh()
    await delivery.deliver_due()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def test_a_message_is_delivered_when_its_level_is_over_and_not_a_millisecond_before(
    root: Path, clock: Clock
) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 2)
        clock.now_ms += 4999
        await look(services, delivery)
        assert bodies(services) == []
        clock.now_ms += 1
        await look(services, delivery)
        (record,) = records(services)
        assert (record.body, record.topic, record.queue_id) == (b"a", "T", 1)
        assert record.store_timestamp == START_MS + 5000
        await look(services, delivery)
        assert bodies(services) == ["a"]


async def test_a_delivered_message_is_what_the_official_broker_makes_of_it(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        parked = send(services, "a", 1)
        clock.now_ms += 1000
        await look(services, delivery)
        (record,) = records(services)
        assert record.property_map | {"__CRC32C": ""} == {
            "DELAY": "1",
            "UNIQ_KEY": "key-a",
            "TAGS": "TagA",
            "REAL_TOPIC": "T",
            "REAL_QID": "1",
            "__CRC32C": "",
        }
        assert record.prepared_transaction_offset == parked.physical_offset
        assert record.born_timestamp == START_MS
        entry = services.store.queue_entry("T", 1, 0)
        assert entry is not None
        assert entry.tag_hash == 2598919


async def test_levels_do_not_wait_for_each_other_and_each_keeps_its_order(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        for number in range(5):
            send(services, f"slow-{number}", 3)
            send(services, f"fast-{number}", 1)
            clock.now_ms += 100
        clock.now_ms += 600
        await look(services, delivery)
        assert bodies(services) == ["fast-0", "fast-1"]
        clock.now_ms += 20_000
        await look(services, delivery)
        found = bodies(services)
        assert [one for one in found if one.startswith("slow")] == [f"slow-{number}" for number in range(5)]
        assert [one for one in found if one.startswith("fast")] == [f"fast-{number}" for number in range(5)]


async def test_more_than_a_batch_is_delivered_in_one_go(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        for number in range(700):
            send(services, str(number), 1)
        clock.now_ms += 1000
        await look(services, delivery)
        assert bodies(services) == [str(number) for number in range(700)]


async def test_a_level_beyond_the_table_counts_as_the_last(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 99)
        clock.now_ms += 9_999
        await look(services, delivery)
        assert bodies(services) == []
        clock.now_ms += 1
        await look(services, delivery)
        assert bodies(services) == ["a"]
        assert records(services)[0].property_map["DELAY"] == "3"


# --- the next run -------------------------------------------------------------------------------------------------


async def stop(services: Services, delivery: ScheduleDelivery) -> None:
    """The end of an orderly stop."""
    services.store.flush_disk()
    delivery.settle()
    await services.files.save()


async def test_nothing_is_delivered_twice_after_an_orderly_restart(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 1)
        send(services, "b", 3)
        clock.now_ms += 1000
        await look(services, delivery)
        await stop(services, delivery)
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        clock.now_ms += 60_000
        await look(services, delivery)
        assert bodies(services) == ["a", "b"]


async def test_what_was_delivered_before_a_crash_is_found_and_not_repeated(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        for number in range(20):
            send(services, str(number), 1)
            clock.now_ms += 100
            await look(services, delivery)
        assert len(bodies(services)) == 11
    assert not (root / "config" / "delayOffset.json").exists()
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        clock.now_ms += 60_000
        await look(services, delivery)
        assert bodies(services) == [str(number) for number in range(20)]


async def test_offsets_are_not_written_before_the_deliveries_are_on_disk(root: Path, clock: Clock) -> None:
    """A file that is ahead of the disk would lose messages in a power cut."""
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 1)
        services.store.flush_disk()
        clock.now_ms += 1000
        await look(services, delivery)
        delivery.settle()
        assert services.delay_offsets.get(1) == 0
        services.store.flush_disk()
        delivery.settle()
        assert services.delay_offsets.get(1) == 1


async def test_offsets_beyond_the_queue_are_corrected_and_told(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        services.delay_offsets.moved(1, 77, 0)
        services.delay_offsets.settle(0)
        with capture_logs() as told:
            delivery = delivery_of(services)
        assert [one["event"] for one in told] == ["broker.delay_offset_corrected"]
        send(services, "a", 1)
        clock.now_ms += 1000
        await look(services, delivery)
        assert bodies(services) == ["a"]


async def test_a_removed_level_is_still_delivered(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery_of(services)
        send(services, "a", 3)
        services.store.flush_disk()
    with opened(root, clock, message_delay_level="1s 5s") as services:
        delivery = delivery_of(services)
        clock.now_ms += 10_000
        await look(services, delivery)
        assert bodies(services) == ["a"]


async def test_a_level_that_was_made_shorter_is_over_after_one_new_delay(root: Path, clock: Clock) -> None:
    with opened(root, clock, message_delay_level="2h") as services:
        delivery_of(services)
        send(services, "a", 1)
        send(services, "b", 1)
        services.store.flush_disk()
    with opened(root, clock, message_delay_level="5s") as services:
        delivery = delivery_of(services)
        clock.now_ms += 4_999
        await look(services, delivery)
        assert bodies(services) == []
        clock.now_ms += 1
        await look(services, delivery)
        assert bodies(services) == ["a", "b"]


# --- clocks -------------------------------------------------------------------------------------------------------


async def test_after_the_clock_was_set_back_messages_wait_one_delay_at_most(root: Path, clock: Clock) -> None:
    steady = Clock(0)
    with opened(root, clock) as services:
        delivery = delivery_of(services, steady)
        send(services, "a", 2)
        send(services, "b", 2)
        clock.now_ms -= 3_600_000
        await look(services, delivery)
        assert bodies(services) == []
        for step in (4_999, 1):
            clock.now_ms += step
            steady.now_ms += step
            await look(services, delivery)
        assert bodies(services) == ["a", "b"]


# --- what cannot be delivered as usual ----------------------------------------------------------------------------


async def test_messages_of_a_deleted_topic_go_with_it(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 1)
        services.topics.delete("T")
        services.store.delete_topic("T")
        services.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])
        send(services, "b", 1)
        clock.now_ms += 1000
        await look(services, delivery)
        assert bodies(services) == ["b"]


async def test_a_topic_whose_settings_were_lost_comes_back_with_its_message(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 1, topic="Lost", queue_id=3)
        clock.now_ms += 1000
        await look(services, delivery)
        assert bodies(services, "Lost", 3) == ["a"]
        assert services.topics.require("Lost").read_queue_nums == 4


async def test_a_queue_that_is_not_read_any_more_gives_way_to_one_that_is(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 1)
        services.topics.update([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
        clock.now_ms += 1000
        await look(services, delivery)
        assert bodies(services, queue_id=0) == ["a"]


async def test_while_the_store_takes_nothing_deliveries_wait(root: Path, clock: Clock) -> None:
    with opened(root, clock) as services:
        delivery = delivery_of(services)
        send(services, "a", 1)
        services.store.refuse_sends("the disk is nearly full")
        clock.now_ms += 1000
        with capture_logs() as told:
            await look(services, delivery)
        assert [one["event"] for one in told] == ["broker.delivery_refused"]
        services.store.refuse_sends(None)
        clock.now_ms += 999
        await look(services, delivery)
        assert bodies(services) == []
        clock.now_ms += 1
        await look(services, delivery)
        assert bodies(services) == ["a"]


async def test_the_loop_sleeps_until_a_message_is_due(root: Path) -> None:
    """Nobody polls: with nothing to do there is no timer, and what comes wakes it up."""
    clock = asyncio.get_running_loop().time
    wall = Clock(START_MS)

    def now_ms() -> int:
        return wall.now_ms + int(clock() * 1000)

    with opened(root, now_ms, message_delay_level="0s 3s") as services:  # type: ignore[arg-type]
        delivery = delivery_of(services)
        task = asyncio.create_task(delivery.run())
        arrived = asyncio.Event()
        before = services.appended

        def appended() -> None:
            before()
            if bodies(services):
                arrived.set()

        services.appended = appended
        send(services, "a", 1)
        async with asyncio.timeout(5):
            await arrived.wait()
        assert bodies(services) == ["a"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_waiting_topic_has_the_due_time_in_its_tag_field(root: Path, clock: Clock) -> None:
    """As RocketMQ writes it."""

    async def run() -> None:
        with opened(root, clock) as services:
            send(services, "a", 2)
            entry = services.store.queue_entry(SCHEDULE_TOPIC, 1, 0)
            assert entry is not None
            assert entry.tag_hash == START_MS + 5000

    asyncio.run(run())
