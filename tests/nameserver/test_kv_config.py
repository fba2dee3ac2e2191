"""The KV config and its file."""

import errno
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee_nameserver import kv_config
from aerobee_nameserver.kv_config import PIECE_SIZE, TEXT_CHARS_MAX, KvConfig, KvConfigDamaged
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_remoting.peers.peer_memory import TOTAL_LIMIT, PeerMemory
from aerobee_service.settings.whole_files import replace_file
from system.failing_calls import failing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def put(kv: KvConfig, namespace: str, key: str, value: str) -> None:
    change = kv.planned_put(namespace, key, value)
    kv.write(change)
    kv.adopt(change)


def opened(path: Path | None) -> KvConfig:
    kv = KvConfig(path)
    kv.load()
    return kv


def test_no_file_is_an_empty_table(path: Path) -> None:
    assert len(opened(path)) == 0


def test_a_restart_finds_every_entry(path: Path) -> None:
    kv = opened(path)
    put(kv, "ORDER_TOPIC_CONFIG", "T1", "b-a:4;b-b:4")
    put(kv, "NS", "schlüssel", "wert 🐝")
    again = opened(path)
    assert again.get("ORDER_TOPIC_CONFIG", "T1") == "b-a:4;b-b:4"
    assert again.get("NS", "schlüssel") == "wert 🐝"


def test_the_file_has_the_official_shape(path: Path) -> None:
    put(opened(path), "NS", "k", "v")
    assert json.loads(path.read_bytes()) == {"configTable": {"NS": {"k": "v"}}}


def test_a_large_table_is_written_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB that were put together in one call held the interpreter, and with it the event loop, for that long."""
    pieces: list[int] = []

    def watched(content: Iterable[bytes]) -> Iterator[bytes]:
        for piece in content:
            pieces.append(len(piece))
            yield piece

    monkeypatch.setattr(kv_config, "replace_file", lambda path, content: replace_file(path, watched(content)))
    kv = opened(path)
    entries: dict[str, dict[str, str]] = {"NS0": {}, "NS1": {}, "NS2": {}}
    for number in range(60):
        kv.adopt(kv.planned_put(f"NS{number % 3}", f"\u00fc{number}", '"\n' * 10_000))
        entries[f"NS{number % 3}"][f"\u00fc{number}"] = '"\n' * 10_000
    put(kv, "EMPTY", "k", "v")
    change = kv.planned_delete("EMPTY", "k")
    assert change is not None
    kv.write(change)
    kv.adopt(change)
    assert json.loads(path.read_bytes()) == {"configTable": entries | {"EMPTY": {}}}
    assert len(pieces) > 10
    assert max(pieces) <= PIECE_SIZE + 2 * TEXT_CHARS_MAX
    assert kv.size == opened(path).size


def test_the_official_servers_file_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{\n\t"configTable":{\n\t\t"NS":{\n\t\t\t"k":"v"\n\t\t}\n\t}\n}')
    assert opened(path).get("NS", "k") == "v"


def test_a_plan_changes_nothing_before_it_is_adopted(path: Path) -> None:
    kv = opened(path)
    kv.write(kv.planned_put("NS", "k", "v"))
    assert kv.get("NS", "k") is None
    assert opened(path).get("NS", "k") == "v"


def test_a_namespace_outlives_its_last_key(path: Path) -> None:
    kv = opened(path)
    put(kv, "NS", "k", "v")
    change = kv.planned_delete("NS", "k")
    assert change is not None
    kv.adopt(change)
    assert kv.namespace("NS") == {}
    assert kv.namespace("OTHER") is None


def test_deleting_what_is_not_there_plans_nothing(path: Path) -> None:
    assert opened(path).planned_delete("NS", "k") is None


def test_a_damaged_file_falls_back_to_the_state_before_and_says_so(path: Path) -> None:
    kv = opened(path)
    put(kv, "NS", "k", "old")
    put(kv, "NS", "k", "new")
    path.write_bytes(b'{"configTable":{"NS"')
    with capture_logs() as events:
        assert opened(path).get("NS", "k") == "old"
    assert [event["event"] for event in events] == ["nameserver.kv_backup_used"]


def test_a_missing_file_gives_way_to_the_one_before_it(path: Path) -> None:
    """A crash between two renames left that, when the file itself was renamed to be the copy."""
    put(opened(path), "NS", "k", "old")
    path.rename(path.with_name(path.name + ".bak"))
    assert opened(path).get("NS", "k") == "old"


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xff\xfe", b"[]", b'{"configTable":{"NS":{"k":5}}}', b'{"x":' + b"[" * 3000],
    ids=["empty", "no text", "a list", "a number", "nested too deeply"],
)
def test_damage_of_file_and_backup_is_an_error_that_names_the_file(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    with pytest.raises(KvConfigDamaged, match="repair it or move it away") as caught:
        opened(path)
    assert caught.value.path == path


def test_the_number_of_entries_is_bounded() -> None:
    kv = KvConfig(None, entries_max=1)
    kv.adopt(kv.planned_put("NS", "k", "v"))
    with pytest.raises(RequestError, match="maxKvEntries is 1"):
        kv.planned_put("NS", "k2", "v")
    assert kv.planned_put("NS", "k", "other").table == {"NS": {"k": "other"}}


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [("", "k", "v"), ("n", "", "v"), ("n", "k", ""), ("n", "k", "v" * (TEXT_CHARS_MAX + 1))],
)
def test_empty_and_huge_texts_are_refused(namespace: str, key: str, value: str) -> None:
    with pytest.raises(RequestError):
        KvConfig(None).planned_put(namespace, key, value)


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    put(opened(None), "NS", "k", "v")
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_of_all_entries_are_bounded_and_given_back() -> None:
    """100,000 entries of 64 Ki + 64 Ki characters were allowed, kept, and written whole with each change."""
    memory = PeerMemory()
    kv = KvConfig(None, size_max=100_000, memory=memory)
    for number in range(79):
        put(kv, "NS", f"k{number}", "v" * 1000)
    with pytest.raises(LimitReached) as refused:
        kv.planned_put("NS", "k79", "v" * 1000)
    assert (refused.value.limit, len(kv)) == ("maxKvBytes", 79)
    assert memory.total == kv.size <= 100_000
    with pytest.raises(LimitReached):
        kv.planned_put("NS", "k0", "v" * 60_000)  # of an entry that is there, what is more counts
    put(kv, "NS", "k0", "v")  # less is always taken
    put(kv, "NS", "new", "v" * 500)
    for number in range(1000):
        change = kv.planned_delete("NS", f"k{number}")
        if change is not None:
            kv.adopt(change)
    memory.check()
    assert memory.total == kv.size < 2000


def test_entries_count_against_the_sum_of_all_that_is_kept() -> None:
    memory = PeerMemory(total_max=10_000)
    memory.take("somebody", "buffers", 9_000)
    kv = KvConfig(None, memory=memory)
    with pytest.raises(LimitReached) as refused:
        kv.planned_put("NS", "k", "v" * 1000)
    assert (refused.value.limit, memory.total) == (TOTAL_LIMIT, 9_000)


def test_what_is_loaded_is_counted(path: Path) -> None:
    put(opened(path), "NS", "schlüssel", "v" * 1000)
    memory = PeerMemory()
    kv = KvConfig(path, memory=memory)
    kv.load()
    assert memory.total == kv.size > 1000


def test_a_file_that_was_closed_to_others_stays_so_and_a_failure_leaves_nothing(path: Path) -> None:
    """The entries are an operator's, who may have closed the file: every change opened it to all."""
    kv = opened(path)
    put(kv, "n", "k", "v")
    path.chmod(0o600)
    put(kv, "n", "k", "w")
    assert [one.stat().st_mode & 0o777 for one in (path, path.with_name(path.name + ".bak"))] == [
        0o600,
        0o600,
    ]
    there = sorted(path.parent.iterdir())
    with (
        failing("fsync", errno.ENOSPC, lambda name: name.endswith(".tmp")),
        pytest.raises(OSError, match="space"),
    ):
        put(kv, "n", "k", "x")
    assert sorted(path.parent.iterdir()) == there
    assert opened(path).get("n", "k") == "w"
