"""Garbage in the files of `config/`: a backup stands in and is told, or the start stops and names the file.

Nothing is ever taken for an empty table: that would send every group back to the beginning.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.settings.config_files import decode_config, encode_config
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_store.disk.io import DiskIo
from aerobee_store.disk.json_files import JsonFile
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore
from broker.settings.test_config_files import STORES, tables_of
from broker.support import Clock, unpack_store
from store.memory_io import MemoryIo, RandomSurvivors
from system.running import broker_config, running_broker, talking

TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
}


def garbage_of(good: bytes, table: str) -> dict[str, bytes]:
    """What may be found in place of a good file."""
    deep = b'{"%s":' % table.encode() + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    return {
        "empty": b"",
        "blanks": b" \n\t ",
        "half": good[: len(good) // 2],
        "without its last byte": good.rstrip()[:-1],
        "zeros": bytes(len(good)),
        "zeros from the middle on": good[: len(good) // 2] + bytes(len(good) // 2),
        "zeros in the middle": good[: len(good) // 2] + bytes(8) + good[len(good) // 2 + 8 :],
        "a comma too many": good.rstrip()[:-1] + b",}",
        "single quotes": good.replace(b'"', b"'"),
        "bare names": good.replace(b'"%s"' % table.encode(), table.encode()),
        "a comment": b"/* " + good[:40] + b" */" + good,
        "not UTF-8": good.replace(b"0", b"\xff", 1),
        "a control character in a name": good.replace(b'"T', b'"\x01T', 1),
        "a reference to nothing": b'{"%s": {"T": {"$ref": "$.nowhere"}}}' % table.encode(),
        "a zero tail": good + bytes(4096 - len(good) % 4096),
        "a stale tail": good + good[-40:],
        "another table": good.replace(table.encode(), b"x" * len(table)),
        "nothing in it": b"{}",
        "a list": b"[" + good + b"]",
        "null": b"null",
        "a number": b"17",
        "the table is a list": b'{"%s": []}' % table.encode(),
        "the table is a number": b'{"%s": 5}' % table.encode(),
        "the table is null": b'{"%s": null}' % table.encode(),
        "wrong rows": b'{"%s": {"T@g": 5, "T": 5}}' % table.encode(),
        "deep": deep,
        "UTF-16": good.decode().encode("utf-16"),
        "a gzip": b"\x1f\x8b\x08\x00" + good[4:],
        "the log's bytes": b"\x00\x00\x00\x69\xda\xa3\x20\xa7" * 50,
    }


KINDS = list(garbage_of(b'{"x": {"a": {"b": 1}}}', "x"))


async def written(folder: Path) -> None:
    """The three files, each written twice, so that there is a backup of each."""
    async with tables_of(folder) as tables:
        for name in ("T", "U"):
            tables.topics.for_send(name, template="TBW102", queue_count=2)
            tables.groups.find(f"group-{name}")
            tables.offsets.commit(f"group-{name}", name, 0, 5)
            await tables.files.save()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLES)
async def test_the_backup_stands_in_and_that_is_an_error_event(name: str, kind: str, tmp_path: Path) -> None:
    await written(tmp_path)
    path = tmp_path / name
    path.write_bytes(garbage_of(path.read_bytes(), TABLES[name])[kind])
    async with tables_of(tmp_path) as tables:
        with capture_logs() as logs:
            tables.files.load()
        assert "T" in tables.topics
        assert tables.groups.get("group-T") is not None
        assert tables.offsets.get("group-T", "T", 0) == 5
    (logged,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert logged["event"] == "broker.config_backup_used"
    assert logged["path"] == str(path)
    assert logged["reason"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLES)
async def test_without_a_good_backup_the_start_stops_by_name(name: str, kind: str, tmp_path: Path) -> None:
    await written(tmp_path)
    path, backup = tmp_path / name, tmp_path / f"{name}.bak"
    garbage = garbage_of(path.read_bytes(), TABLES[name])[kind]
    path.write_bytes(garbage)
    backup.write_bytes(b"{")
    for there in (True, False):
        if not there:
            backup.unlink()
        async with tables_of(tmp_path) as tables:
            with pytest.raises(CorruptStore) as refused:
                tables.files.load()
        assert refused.value.path == path
        assert f"{name}.bak" in refused.value.way_out
        assert "move both away" in refused.value.way_out
    assert path.read_bytes() == garbage


DAMAGE = {"zeros": b"\0", "ones": b"\xff", "control characters": b"\x01"}


@pytest.mark.parametrize("byte", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", TABLES)
def test_a_stretch_of_damage_is_seen_wherever_it_lies(name: str, byte: bytes, tmp_path: Path) -> None:
    """512 zeros at 869 of 6,868 places of a topics.json were read without a word, and up to all topics were gone."""
    good = (unpack_store(STORES[0], tmp_path) / "config" / name).read_bytes()
    step = 3 if byte == b"\0" else 101  # for anything but zeros the whole text is read
    for size in (1, 8, 512):
        for at in range(0, len(good) - size, step):
            with pytest.raises(ValueError, match=r"."):
                decode_config(good[:at] + byte * size + good[at + size :])


@pytest.mark.parametrize("name", TABLES)
def test_no_beginning_of_a_file_is_taken_for_the_file(name: str, tmp_path: Path) -> None:
    good = (unpack_store(STORES[0], tmp_path) / "config" / name).read_bytes().rstrip()
    for size in range(0, len(good), 29):
        with pytest.raises(ValueError, match=r"."):
            decode_config(good[:size])


@given(st.data())
def test_damage_gives_the_whole_file_or_its_backup_and_never_a_part(data: st.DataObject) -> None:
    """A piece that is overwritten: by damage that no text holds, or by a part of the same file, as of a torn write."""
    tables = {f"topic-{n}": {"readQueueNums": n, "perm": 6, "order": False} for n in range(12)}
    content = {"topicConfigTable": tables, "offsets": {f"t@g{n}": {"0": n, "1": 7} for n in range(5)}}
    good = encode_config(content)
    if data.draw(st.booleans(), label="RocketMQ's form"):
        good = good.replace(b'"0":', b"0:").replace(b'"1":', b"1:").replace(b"  ", b"\t")
    begin = data.draw(st.integers(0, len(good) - 2))
    size = data.draw(st.integers(1, len(good) - begin - 1))
    byte = data.draw(st.sampled_from(list(DAMAGE.values())))
    damaged = good[:begin] + byte * size + good[begin + size :]
    io, path = MemoryIo(), Path("/store/config/topics.json")
    io.replace_bytes(path.with_name("topics.json.bak"), good)
    io.replace_bytes(path, damaged)
    file = JsonFile(path, io, decode_config)
    assert file.load() == content
    assert file.used_backup


def test_what_rocketmq_writes_twice_is_read_where_it_is_a_reference() -> None:
    raw = b'{"table":{"a":{"perm":6,"q":{0:1}},"b":{"$ref":"$.table.a"}}}'
    assert decode_config(raw) == {"table": {"a": {"perm": 6, "q": {"0": 1}}, "b": {"perm": 6, "q": {"0": 1}}}}


BEARABLE: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda good: b"\xef\xbb\xbf" + good,
    "keys twice": lambda good: good.replace(b'"T@group-T":', b'"T@group-T": {"0": 5}, "T@group-T":'),
    "Windows line ends": lambda good: good.replace(b"\n", b"\r\n"),
    "bare numbers as keys": lambda good: good.replace(b'"0"', b"0"),
    "numbers as text": lambda good: good.replace(b'"0": 5', b'"0": "5"'),
}


@pytest.mark.parametrize("change", BEARABLE.values(), ids=BEARABLE)
async def test_what_is_only_odd_is_read(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    await written(tmp_path)
    path = tmp_path / "consumerOffset.json"
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    async with tables_of(tmp_path) as tables:
        tables.files.load()
        assert tables.offsets.get("group-T", "T", 0) == 5
        assert tables.offsets.get("group-U", "U", 0) == 5


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "1e3", "5.5", "true", "null", "{}", "[5]", '"five"', '""']
)
async def test_an_offset_that_is_none_makes_the_file_garbage(value: str, tmp_path: Path) -> None:
    """Dropping or rounding it would move the group."""
    await written(tmp_path)
    path = tmp_path / "consumerOffset.json"
    path.write_text(path.read_text().replace('"0": 5', f'"0": {value}'))
    async with tables_of(tmp_path) as tables:
        with capture_logs() as logs:
            tables.files.load()
        assert tables.offsets.get("group-T", "T", 0) == 5
    assert [entry["event"] for entry in logs] == ["broker.config_backup_used"]


async def test_a_lost_file_with_a_backup_is_no_new_broker(tmp_path: Path) -> None:
    await written(tmp_path)
    for name in TABLES:
        (tmp_path / name).unlink()
    async with tables_of(tmp_path) as tables:
        tables.files.load()
        assert tables.offsets.get("group-T", "T", 0) == 5


async def test_what_a_backup_gave_is_not_overwritten_by_the_garbage(tmp_path: Path) -> None:
    await written(tmp_path)
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b"garbage")
    async with tables_of(tmp_path) as tables:
        tables.files.load()
        tables.offsets.commit("group-T", "T", 0, 6)
    assert decode_config(path.read_bytes())["offsetTable"]["T@group-T"] == {"0": 6}
    backup = decode_config((tmp_path / "consumerOffset.json.bak").read_bytes())
    assert backup["offsetTable"]["T@group-T"] == {"0": 5}


async def test_the_delay_offsets_fall_back_too_and_name_the_file(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await client.ask(RequestCode.GET_ALL_DELAY_OFFSET)).code == ResponseCode.SYSTEM_ERROR
        config = tmp_path / "config"
        config.mkdir(exist_ok=True)
        (config / "delayOffset.json").write_bytes(b"\0" * 50)
        refused = await client.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "delayOffset.json" in (refused.remark or "")
        (config / "delayOffset.json.bak").write_bytes(b'{"offsetTable":{1:7}}')
        assert b'"1":7' in (await client.ask(RequestCode.GET_ALL_DELAY_OFFSET)).body.replace(b"{1:", b'{"1":')


# --- a whole broker -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
async def test_a_broker_does_not_start_on_garbage_and_leaves_everything_as_it_was(
    name: str, tmp_path: Path
) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.put("T", b"kept")
        await client.records("T", sysFlag=5, commitOffset=1)
    path = tmp_path / "config" / name
    before = path.read_bytes()
    backup = path.with_name(f"{name}.bak")
    backup.unlink(missing_ok=True)
    path.write_bytes(b"\0" * len(before))
    broker = Broker(broker_config(tmp_path))
    with pytest.raises(CorruptStore, match=name):
        await broker.start()
    await broker.close()
    assert path.read_bytes() == b"\0" * len(before)
    path.write_bytes(before)
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert [record.body for record in await client.records("T")] == [b"kept"]
        assert broker.parts.offsets.get("test-group", "T", 0) == 1


# --- stops while a file is replaced -------------------------------------------------------------------------------


class _Stopped(BaseException):
    """The process is gone."""


def stop() -> None:
    raise _Stopped


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("place", ["io.before_rename", "io.previous_kept", "io.renamed"])
def test_a_kill_at_any_step_of_replacing_leaves_one_whole_version(
    place: str, passes: int, tmp_path: Path
) -> None:
    path = tmp_path / "consumerOffset.json"
    for number in (1, 2):
        JsonFile(path, DiskIo(), decode_config).save(b'{"n": %d}' % number)
    left = [passes]

    def stop_at_last() -> None:
        left[0] -= 1
        if left[0] == 0:
            stop()

    with failpoints.armed(place, stop_at_last):
        try:
            JsonFile(path, DiskIo(), decode_config).save(b'{"n": 3}')
        except _Stopped:
            pass
        else:
            assert (place, passes) == ("io.previous_kept", 2)
    file = JsonFile(path, DiskIo(), decode_config)
    found = file.load()
    assert found in ({"n": 2}, {"n": 3})
    assert not file.used_backup
    file.save(b'{"n": 4}')
    assert JsonFile(path, DiskIo(), decode_config).load() == {"n": 4}
    assert decode_config((tmp_path / "consumerOffset.json.bak").read_bytes()) == found


@pytest.mark.parametrize("seed", range(20))
def test_a_power_failure_after_any_save_leaves_what_was_saved(seed: int) -> None:
    random = Random(seed)
    io, path = MemoryIo(), Path("/store/config/consumerOffset.json")
    saved = 0
    for number in range(1, 30):
        JsonFile(path, io, decode_config).save(b'{"n": %d}' % number)
        saved = number
        if random.random() < 0.3:
            io = io.crash(RandomSurvivors(random))
            assert JsonFile(path, io, decode_config).load() == {"n": saved}


# --- offsets outside of their queue -------------------------------------------------------------------------------


def offsets_of(table: dict[str, Any]) -> ConsumerOffsets:
    offsets = ConsumerOffsets(Clock())
    offsets.take(offsets.parse({"offsetTable": table}))
    return offsets


def test_offsets_outside_of_their_queue_move_to_its_near_end() -> None:
    ranges = {("T", 0): (10, 20), ("T", 1): (0, 5), ("Empty", 0): (7, 7)}
    table: dict[str, Any] = {
        "T@g": {0: 25, 1: 5, 2: 99},
        "T@h": {0: 3, 1: 0},
        "T@at": {0: 20, 1: 3},
        "Empty@g": {0: 900},
        "Unknown@g": {0: 50},
        "T@g@client": {0: 1000},
    }
    offsets = offsets_of(table)
    before = offsets.revision
    with capture_logs() as logs:
        moved = offsets.clamp(lambda topic, queue_id: ranges.get((topic, queue_id)))
    assert moved == 3
    assert offsets.revision > before
    assert offsets.to_json()["offsetTable"] == {
        "T@g": {0: 20, 1: 5, 2: 99},
        "T@h": {0: 10, 1: 0},
        "T@at": {0: 20, 1: 3},
        "Empty@g": {0: 7},
        "Unknown@g": {0: 50},
        "T@g@client": {0: 1000},
    }
    facts = [
        (entry["topic"], entry["group"], entry["consumer_offset"], entry["clamped_to"]) for entry in logs
    ]
    assert facts == [("T", "g", 25, 20), ("T", "h", 3, 10), ("Empty", "g", 900, 7)]


def test_offsets_within_their_queues_are_left_alone() -> None:
    offsets = offsets_of({"T@g": {0: 5}})
    before = offsets.revision
    assert offsets.clamp(lambda topic, queue_id: (0, 5)) == 0
    assert offsets.revision == before


async def test_a_group_that_waits_beyond_a_shortened_queue_gets_what_comes(tmp_path: Path) -> None:
    """After a crash in async mode the queue may end before what the group has committed."""
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        for i in range(5):
            await client.put("T", b"%d" % i)
        await client.records("T", sysFlag=5, commitOffset=5)
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace('"0": 5', '"0": 50'))
    with capture_logs() as logs:
        async with running_broker(tmp_path) as broker, talking(broker) as client:
            assert broker.parts.offsets.get("test-group", "T", 0) == 5
            await client.put("T", b"next")
            assert [record.body for record in await client.records("T", 5)] == [b"next"]
    assert [entry["clamped_to"] for entry in logs if entry["event"] == "broker.offset_clamped"] == [5]
    assert decode_config(path.read_bytes())["offsetTable"]["T@test-group"] == {"0": 5}
