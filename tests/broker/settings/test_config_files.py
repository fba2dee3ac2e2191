"""Config files: what the official broker wrote comes back, crashes leave whole files, writes are few."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_broker.settings.config_files import RUN_SIZE, ConfigFiles, decode_config, encode_config
from aerobee_proto import javajson
from aerobee_proto.bodies import SubscriptionGroupConfig
from aerobee_store.disk.io import Buffer, DiskIo
from aerobee_store.faults.errors import CorruptStore
from broker.support import GOLDEN, Clock, small_config, unpack_store

STORES = ["broker-traffic-json", "broker-traffic-rocketmq"]
FILES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json"]


class Tables:
    """The three tables and their files in a folder."""

    def __init__(self, folder: Path, io: DiskIo | None = None, config: BrokerConfig | None = None) -> None:
        clock = Clock()
        live = LiveConfig(config or small_config(folder), now_ms=clock())
        changed = asyncio.Event()
        self.topics = TopicTable(live, clock, on_dirty=changed.set, on_change=lambda _: None)
        self.groups = SubscriptionGroups(live, clock, on_dirty=changed.set)
        self.offsets = ConsumerOffsets(clock)
        self.files = ConfigFiles(
            folder,
            io or DiskIo(),
            ThreadPoolExecutor(1),
            prompt=(self.topics, self.groups),
            periodic=(self.offsets,),
            changed=changed,
            pause=lambda: asyncio.sleep(3600.0),
        )


@asynccontextmanager
async def tables_of(
    folder: Path, io: DiskIo | None = None, config: BrokerConfig | None = None
) -> AsyncIterator[Tables]:
    tables = Tables(folder, io, config)
    try:
        yield tables
    finally:
        await tables.files.close()


def normal(content: Any) -> Any:
    """Lists of names in any order, integer keys as text."""
    if isinstance(content, dict):
        return {str(key): normal(value) for key, value in content.items()}
    if isinstance(content, list):
        return sorted(content, key=str)
    return content


@pytest.mark.parametrize("case", STORES)
async def test_official_files_come_back_with_the_same_content(case: str, tmp_path: Path) -> None:
    folder = unpack_store(case, tmp_path) / "config"
    before = {name: javajson.loads((folder / name).read_bytes()) for name in FILES}
    config = small_config(folder, default_topic_queue_nums=2)  # as that broker was set
    async with tables_of(folder, config=config) as tables:
        tables.files.load()
        for table in (tables.topics, tables.groups, tables.offsets):
            table.revision += 1
        await tables.files.save()
    for name in FILES:
        assert normal(decode_config((folder / name).read_bytes())) == normal(before[name]), name
        assert normal(decode_config((folder / f"{name}.bak").read_bytes())) == normal(before[name]), name


async def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    async with tables_of(tmp_path / "config") as tables:
        await tables.files.save()
    assert not (tmp_path / "config").exists()


async def test_a_change_is_on_disk_when_save_returns(tmp_path: Path) -> None:
    async with tables_of(tmp_path) as tables:
        tables.topics.for_send("T", template="TBW102", queue_count=2)
        await tables.files.save(tables.topics)
        assert "T" in decode_config((tmp_path / "topics.json").read_bytes())["topicConfigTable"]
        assert not (tmp_path / "consumerOffset.json").exists()


async def test_prompt_tables_are_written_by_themselves(tmp_path: Path) -> None:
    written = asyncio.Event()
    loop = asyncio.get_running_loop()

    class SeeingIo(DiskIo):
        def replace_bytes(self, path: Path, data: Buffer, *, keep_previous: bool = True) -> None:
            super().replace_bytes(path, bytes(data), keep_previous=keep_previous)
            loop.call_soon_threadsafe(written.set)

    async with tables_of(tmp_path, SeeingIo()) as tables:
        run = asyncio.create_task(tables.files.run())
        tables.groups.find("g")
        async with asyncio.timeout(10):
            await written.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert "g" in decode_config((tmp_path / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]


async def test_offsets_are_written_at_the_end(tmp_path: Path) -> None:
    async with tables_of(tmp_path) as tables:
        tables.offsets.commit("g", "T", 0, 5)
    assert decode_config((tmp_path / "consumerOffset.json").read_bytes())["offsetTable"] == {"T@g": {"0": 5}}


class _CrashingIo(DiskIo):
    """Fails to replace files while `broken`, as a full disk would."""

    broken = False

    def replace_bytes(self, path: Path, data: Buffer, *, keep_previous: bool = True) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        super().replace_bytes(path, bytes(data), keep_previous=keep_previous)


async def test_a_failed_write_is_reported_and_done_again(tmp_path: Path) -> None:
    io = _CrashingIo()
    async with tables_of(tmp_path, io) as tables:
        tables.topics.for_send("T", template="TBW102", queue_count=2)
        io.broken = True
        with pytest.raises(OSError, match="No space"):
            await tables.files.save(tables.topics)
        assert not (tmp_path / "topics.json").exists()
        io.broken = False
        await tables.files.save(tables.topics)
        assert (tmp_path / "topics.json").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\x00" * 50, b'{"topicConfigTable":5}'])
async def test_a_damaged_file_gives_way_to_its_backup(damage: bytes, tmp_path: Path) -> None:
    async with tables_of(tmp_path) as tables:
        for name in ("T", "U"):
            tables.topics.for_send(name, template="TBW102", queue_count=2)
            await tables.files.save(tables.topics)
    (tmp_path / "topics.json").write_bytes(damage)
    async with tables_of(tmp_path) as tables:
        with capture_logs() as logs:
            tables.files.load()
        assert "T" in tables.topics
        assert "U" not in tables.topics
        assert [line["event"] for line in logs] == ["broker.config_backup_used"]


async def test_with_nothing_readable_the_start_stops_by_name(tmp_path: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / name).write_bytes(b"garbage")
    async with tables_of(tmp_path) as tables:
        with pytest.raises(CorruptStore, match=r"topics\.json"):
            tables.files.load()


async def test_missing_files_are_a_new_broker(tmp_path: Path) -> None:
    async with tables_of(tmp_path) as tables:
        tables.files.load()
        assert "TBW102" in tables.topics


async def test_other_files_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "delayOffset.json").write_bytes(b"{}")
    async with tables_of(tmp_path) as tables:
        assert await tables.files.read("delayOffset.json") == {}
        assert await tables.files.read("missing.json") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_content_or_a_value_error(raw: bytes) -> None:
    try:
        content = decode_config(raw)
    except ValueError:
        return
    assert isinstance(content, dict)


# "$ref" is RocketMQ's mark of a reference; no topic and no group may have a name with a $ in it.
@given(
    st.dictionaries(
        st.text().filter(lambda name: name != "$ref"),
        st.dictionaries(st.integers(0, 99), st.integers(0, 1 << 62)),
    )
)
def test_what_is_written_is_standard_json_and_read_back(content: dict[str, dict[int, int]]) -> None:
    assert normal(decode_config(encode_config(content))) == normal(content)


@pytest.mark.parametrize("count", [0, 1, 128, 129, 384])
def test_a_table_is_sorted_and_indented_as_a_whole_however_many_calls_it_takes(count: int) -> None:
    groups = {
        f'G{i}-\n"名': SubscriptionGroupConfig(attributes={"a": "b\n"} if i % 2 else {}) for i in range(count)
    }
    content = {
        "groups": groups,
        "offsets": {f"t{i}": {7: i, 10: 0} for i in range(count)},
        "version": {"counter": 1},
    }
    plain = msgspec.to_builtins(content, str_keys=True)
    for group in plain["groups"].values():
        assert group.pop("subscriptionDataSet") is None
    whole = json.dumps(plain, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    assert encode_config(content).decode() == whole


def test_it_gives_way_within_a_table_by_the_size_of_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes much in one call holds the interpreter: with 256 entries of 1,000 queues that was 48 ms."""
    rests: list[None] = []
    monkeypatch.setattr("aerobee_broker.settings.config_files.GivingWay", lambda: lambda: rests.append(None))
    entry = dict.fromkeys(range(1000), 123_456)
    entry_size = len(msgspec.json.encode(entry))
    encode_config({"offsetTable": {f"topic-{i}@group": entry for i in range(256)}})
    assert len(rests) >= 256 * entry_size / (RUN_SIZE + entry_size)


def test_the_golden_stores_are_there() -> None:
    for case in STORES:
        assert (GOLDEN / "store" / case / "store.tar.gz").exists()
