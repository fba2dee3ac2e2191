"""Disks that fill up: levels by a fake disk, and a real file system without a byte left."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.upkeep.disk_cleaner import DiskCleaner, cleaning_rules, uptime_ms
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_store.disk.io import DiskIo
from broker.support import START_MS, Clock
from engines import BOTH_ENGINES
from system.running import Talker, broker_config, running_broker, talking, text_of

pytestmark = BOTH_ENGINES

HOUR_MS = 3_600_000
FULL = ResponseCode.SERVICE_NOT_AVAILABLE
ALL_DAY = ";".join(str(hour) for hour in range(24))
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 16_384,
    "mapped_file_size_consume_queue": 200,
    "flush_interval_consume_queue": 3_600_000,
    "clean_resource_interval": 3_600_000,  # rounds are the test's to call
}


class LevelDisk(DiskIo):
    """A disk that says to be as full as it is told."""

    percent: int | None = 10

    def disk_usage(self, path: Path) -> tuple[int, int]:
        if self.percent is None:
            raise OSError(5, "Input/output error")
        return 1_000_000, 1_000_000 - 10_000 * self.percent


def up_for(cleaner: DiskCleaner, time_ms: int) -> None:
    """As if the broker had been started so long ago."""
    cleaner.started_ms = uptime_ms() - time_ms


def cleaner_of(broker: Broker) -> DiskCleaner:
    return broker.parts.cleaner


async def fill(client: Talker, count: int, size: int = 4000) -> list[int]:
    """Send so many messages; the answers' codes."""
    properties = text_of({"UNIQ_KEY": "0A" * 16})
    return [
        (await client.put("T", b"%05d" % i + b"x" * size, properties=properties)).code for i in range(count)
    ]


@asynccontextmanager
async def aged_broker(
    root: Path, age_h: float, disk: LevelDisk | None = None, **settings: Any
) -> AsyncIterator[tuple[Broker, Talker, Clock]]:
    """A broker that starts so long after twenty messages, in five log files, were stored; keeps for 72 h."""
    clock = Clock()
    async with running_broker(root, clock=clock, **SMALL) as broker, talking(broker) as client:
        assert await fill(client, 20) == [0] * 20
    clock = Clock(START_MS + int(age_h * HOUR_MS))
    async with (
        running_broker(root, io=disk or LevelDisk(), clock=clock, **{**SMALL, **settings}) as broker,
        talking(broker) as client,
    ):
        await cleaner_of(broker).round()  # its first one, or after it
        up_for(cleaner_of(broker), 60_000)
        yield broker, client, clock


def log_files(root: Path) -> list[str]:
    return sorted(path.name.lstrip("0") or "0" for path in (root / "commitlog").iterdir())


# --- levels -------------------------------------------------------------------------------------------------------


async def test_above_the_warning_level_sends_stop_and_at_the_clean_level_they_go_on(tmp_path: Path) -> None:
    disk = LevelDisk()
    with capture_logs() as logs:
        async with running_broker(tmp_path, io=disk, **SMALL) as broker, talking(broker) as client:
            cleaner = cleaner_of(broker)
            assert await fill(client, 1) == [0]
            disk.percent = 90
            await cleaner.look()
            assert await fill(client, 1) == [0]
            disk.percent = 91
            await cleaner.look()
            refused = await client.put("T")
            assert refused.code == FULL
            assert "the disk is nearly full: 91 % used, above 90 %" in (refused.remark or "")
            assert (await client.put_batch("T", b"")).code != 0
            assert len(await client.records("T")) == 2
            offset = {"consumerGroup": "test-group", "topic": "T", "queueId": "0", "commitOffset": "2"}
            assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == 0
            await broker.parts.files.save()
            disk.percent = 86
            await cleaner.look()
            assert await fill(client, 1) == [FULL]
            disk.percent = 85
            await cleaner.look()
            assert await fill(client, 1) == [0]
    logged = [entry["event"] for entry in logs if entry["event"].startswith("store.sends")]
    assert logged == ["store.sends_refused", "store.sends_resumed"]
    assert (tmp_path / "config" / "consumerOffset.json").exists()


async def test_a_broker_that_starts_on_a_full_disk_takes_nothing_and_serves_reads(tmp_path: Path) -> None:
    disk = LevelDisk()
    async with running_broker(tmp_path, io=disk, **SMALL) as broker, talking(broker) as client:
        await fill(client, 1)
    disk.percent = 99
    async with running_broker(tmp_path, io=disk, **SMALL) as broker, talking(broker) as client:
        await cleaner_of(broker).look()
        assert await fill(client, 1) == [FULL]
        assert len(await client.records("T")) == 1


async def test_a_disk_that_cannot_be_looked_at_is_not_taken_for_full(tmp_path: Path) -> None:
    disk = LevelDisk()
    async with running_broker(tmp_path, io=disk, **SMALL) as broker, talking(broker) as client:
        disk.percent = None
        await cleaner_of(broker).round()
        assert await fill(client, 1) == [0]
        assert cleaner_of(broker).used_percent == 0


async def test_levels_can_be_changed_while_it_runs(tmp_path: Path) -> None:
    disk = LevelDisk()
    disk.percent = 60
    async with running_broker(tmp_path, io=disk, **SMALL) as broker, talking(broker) as client:
        body = b"diskSpaceCleanForciblyRatio=40\ndiskSpaceWarningLevelRatio=50\n"
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        await cleaner_of(broker).look()
        assert await fill(client, 1) == [FULL]
        body = b"diskSpaceWarningLevelRatio=95\ndiskSpaceCleanForciblyRatio=90\n"
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        await cleaner_of(broker).look()
        assert await fill(client, 1) == [0]


# --- old files ----------------------------------------------------------------------------------------------------


async def test_expired_files_go_at_their_hour_and_are_named(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with aged_broker(tmp_path, 73, delete_when=ALL_DAY) as (broker, client, _):
            first = await client.pull("T")
            await cleaner_of(broker).round()
            store = broker.parts.store
            begin = store.min_physical_offset
            assert log_files(tmp_path)[0] == str(begin)
            assert store.reading.min_offset("T", 0) > 0
            assert (await client.pull("T", 0)).code != first.code == 0
            left = await client.records("T", store.reading.min_offset("T", 0))
            assert [record.queue_offset for record in left] == list(
                range(store.reading.min_offset("T", 0), 20)
            )
            store.check()
            facts = {"topic": "T", "queueId": "0"}
            found = await client.ask(RequestCode.GET_MIN_OFFSET, facts)
            assert int(found.ext["offset"]) == store.reading.min_offset("T", 0)
    (logged,) = [entry for entry in logs if entry["event"] == "store.files_deleted"]
    assert (logged["begin_offset"], logged["reason"]) == (0, "hour")
    assert logged["log_files"] * 16_384 == logged["end_offset"] == begin
    assert logged["newest_message_ms"] == START_MS
    assert logged["other_files"] > 0


@pytest.mark.parametrize(
    ("age_h", "settings"),
    [(71.9, {"delete_when": ALL_DAY}), (500, {"delete_when": ALL_DAY, "file_reserved_time": 501})],
    ids=["72 hours", "as set"],
)
async def test_younger_files_stay(tmp_path: Path, age_h: float, settings: dict[str, Any]) -> None:
    async with aged_broker(tmp_path, age_h, **settings) as (broker, client, _):
        await cleaner_of(broker).round()
        assert len(await client.records("T")) == 20


async def test_before_a_minute_has_passed_nothing_goes(tmp_path: Path) -> None:
    async with aged_broker(tmp_path, 100, delete_when=ALL_DAY) as (broker, client, _):
        up_for(cleaner_of(broker), 0)
        await cleaner_of(broker).round()
        assert len(await client.records("T")) == 20


async def test_file_times_mean_nothing(tmp_path: Path) -> None:
    """A store that was copied, or touched by recovery, has young files with old messages; and the reverse."""
    async with aged_broker(tmp_path, 1, delete_when=ALL_DAY) as (broker, client, _):
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (1, 1))
        await cleaner_of(broker).round()
        assert len(await client.records("T")) == 20


async def test_a_clock_that_is_set_ahead_by_a_month_deletes_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with aged_broker(tmp_path, 71, delete_when=ALL_DAY) as (broker, client, clock):
            await cleaner_of(broker).round()
            clock.now_ms += 30 * 24 * HOUR_MS
            for _ in range(5):
                await cleaner_of(broker).round()
            broker.parts.cleaner.request()
            await cleaner_of(broker).round()
            assert len(await client.records("T")) == 20
            # Messages that are stored meanwhile carry the wrong time; they must not go early either.
            assert await fill(client, 20) == [0] * 20
            clock.now_ms -= 30 * 24 * HOUR_MS
            await cleaner_of(broker).round()
            assert len(await client.records("T")) == 40
    (logged,) = [entry for entry in logs if entry["event"] == "store.clock_jumped"]
    assert logged["ahead_ms"] >= 29 * 24 * HOUR_MS


async def test_an_admin_may_ask_for_it_at_any_hour(tmp_path: Path) -> None:
    other_hour = (int((START_MS // HOUR_MS + 100) % 24) + 3) % 24
    async with aged_broker(tmp_path, 100, delete_when=str(other_hour)) as (broker, client, _):
        up_for(cleaner_of(broker), 0)
        assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        async with asyncio.timeout(10):
            while (await client.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"})).ext[
                "offset"
            ] == "0":
                pass
        await cleaner_of(broker).round()
        assert len(log_files(tmp_path)) == 1
        assert (await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0


async def test_a_nearly_full_disk_loses_its_oldest_files_whatever_their_age(tmp_path: Path) -> None:
    disk = LevelDisk()
    with capture_logs() as logs:
        async with aged_broker(tmp_path, 1, disk) as (broker, client, _):
            disk.percent = 88  # three files of 16 KiB above 85 % of 1 MB make two
            await cleaner_of(broker).round()
            assert log_files(tmp_path)[0] == "32768"
            disk.percent = 10
            assert await fill(client, 1) == [0]
    (logged,) = [entry for entry in logs if entry["event"] == "store.files_deleted"]
    assert (logged["reason"], logged["log_files"]) == ("forced", 2)


async def test_files_that_cannot_be_deleted_are_told_and_tried_again(tmp_path: Path) -> None:
    class Stubborn(LevelDisk):
        stubborn = True

        def unlink(self, path: Path) -> None:
            if self.stubborn and path.parent.name == "commitlog":
                raise PermissionError(1, "Operation not permitted", str(path))
            super().unlink(path)

    disk = Stubborn()
    with capture_logs() as logs:
        async with aged_broker(tmp_path, 100, disk, delete_when=ALL_DAY) as (broker, _, _):
            await cleaner_of(broker).round()
            assert [entry["event"] for entry in logs].count("store.cleaning_failed") == 1
            assert log_files(tmp_path)[0] == "0"
            disk.stubborn = False
            await cleaner_of(broker).round()
            assert len(log_files(tmp_path)) == 1
            broker.parts.store.check()


def test_settings_become_rules() -> None:
    rules = cleaning_rules(broker_config(Path("/nowhere"), delete_when="04;16", file_reserved_time=2))
    assert rules.delete_hours == {4, 16}
    assert rules.reserved_ms == 2 * HOUR_MS
    assert (rules.clean_level, rules.force_level, rules.refuse_level, rules.may_force) == (75, 85, 90, True)


# --- a real file system -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Ballast:
    """A file that takes the room away."""

    def __init__(self, place: Path) -> None:
        self._path = place / "ballast"
        self._file = self._path.open("wb", buffering=0)

    def take_all(self) -> None:
        """Not one more byte fits on the disk."""
        for size in (1 << 20, 4096, 1):
            try:
                while self._file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue

    def leave(self, size: int) -> None:
        facts = os.statvfs(self._path.parent)
        self._file.write(b"x" * (facts.f_bavail * facts.f_frsize - size))

    def give_back(self) -> None:
        self._file.truncate(0)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def ballast(small_disk: Path) -> Iterator[Ballast]:
    ballast = Ballast(small_disk)
    yield ballast
    ballast.close()


NO_LEVELS: dict[str, Any] = {
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "clean_resource_interval": 3_600_000,
}


async def test_a_disk_without_a_byte_left_refuses_sends_and_nothing_else(
    small_disk: Path, ballast: Ballast
) -> None:
    root, clock = small_disk / "store", Clock()
    async with running_broker(root, clock=clock, **NO_LEVELS) as broker, talking(broker) as client:
        await cleaner_of(broker).round()
        assert (root / "reserve").stat().st_size == 4 << 20
        ballast.leave(3 << 20)
        codes = await fill(client, 120, 50_000)
        stored = codes.count(0)
        assert set(codes) == {0, FULL}
        ballast.take_all()
        assert len(await client.records("T")) == stored > 20
        # Everything small still reaches the disk, by the reserve.
        made = await client.make_topic("New", 4)
        assert made.code == 0, made.remark
        assert not (root / "reserve").exists()
        ballast.take_all()
        offset = {"consumerGroup": "test-group", "topic": "T", "queueId": "0", "commitOffset": "7"}
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == 0
        broker.parts.store.flush_queues()
        broker.parts.store.write_checkpoint()
        clock.now_ms += 5000
        assert await fill(client, 3, 50_000) == [FULL] * 3
        assert not broker.failed.done()
        broker.parts.store.check()
    # Stopping and starting there works too, with the little that the stop gave back.
    async with running_broker(root, clock=clock, **NO_LEVELS) as broker, talking(broker) as client:
        assert len(await client.records("T")) == stored
        assert await fill(client, 1, 2_000_000) != [0]
        ballast.give_back()
        clock.now_ms += 5000
        assert await fill(client, 3, 50_000) == [0] * 3
        await cleaner_of(broker).round()
        assert (root / "reserve").exists()
        assert "New" in broker.parts.topics
        assert len(await client.records("T")) == stored + 3
        broker.parts.store.check()


async def test_more_goes_through_a_disk_than_it_can_hold(small_disk: Path) -> None:
    """The oldest files make room for the newest messages; nobody has to do anything."""
    root, clock = small_disk / "store", Clock()
    settings: dict[str, Any] = {"clean_resource_interval": 3_600_000, "mapped_file_size_commit_log": 1 << 20}
    async with running_broker(root, clock=clock, **settings) as broker, talking(broker) as client:
        cleaner = cleaner_of(broker)
        await cleaner.round()
        up_for(cleaner, 60_000)
        for _ in range(40):
            codes = await fill(client, 15, 50_000)
            clock.now_ms += 2000
            await cleaner.round()
            assert codes == [0] * 15
        store = broker.parts.store
        assert store.end_offset > 28 << 20
        assert store.min_physical_offset > 12 << 20
        assert cleaner.used_percent <= 90
        store.check()


async def test_a_disk_that_cannot_hold_a_single_file_is_named_at_the_start(
    small_disk: Path, ballast: Ballast
) -> None:
    ballast.take_all()
    broker = Broker(broker_config(small_disk / "store"))
    with pytest.raises(OSError, match="No space left") as refused:
        await broker.start()
    await broker.close()
    assert str(small_disk) in str(refused.value)
