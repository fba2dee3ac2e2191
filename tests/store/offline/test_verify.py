"""What `aerobee store verify` says of a store in which two things disagree."""

import shutil
from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.offline.inspection import Inspection
from aerobee_store.offline.verify import verify
from aerobee_store.store import MessageStore
from store.timer.test_timer_check import damages as timer_damages
from store.timer.test_timer_check import with_timers
from store.walking.test_agreement import FLIPS, flipped
from store.workload import Clock, config, message


@pytest.mark.parametrize("kind", FLIPS)
def test_a_record_that_names_another_queue_is_a_finding(tmp_path: Path, kind: str) -> None:
    """No checksum covers topic, queue id and number of a record that RocketMQ wrote."""
    place = flipped(tmp_path, FLIPS[kind], crashed=False)
    found = verify(Inspection(tmp_path), lambda _: None)
    assert any("consumequeue/Orders/0 at" in str(one) and f" {place}" in str(one) for one in found.findings)


def test_a_store_in_which_nothing_is_wrong_has_no_finding(tmp_path: Path) -> None:
    flipped(tmp_path, lambda header, record: None, crashed=False)
    assert verify(Inspection(tmp_path), lambda _: None).findings == []


def with_batches(root: Path) -> None:
    store = MessageStore(config(root, batch_queue_file_size=46 * 4), io=DiskIo(), clock=Clock())
    store.open()
    store.topics.make_batch("Batched")
    for count in (1, 3, 2, 1, 4):
        extra = {"INNER_NUM": str(count)}
        store.append([message("Batched", 0, b"x", sys_flag=0xC0, extra=extra, unique_key=f"U{count}")])
    store.append([message("Orders", 0, b"x")])
    store.close()


def test_queues_of_batches_are_compared_with_their_records(tmp_path: Path) -> None:
    """Every record of them was a finding once, with the advice to start a broker, which would have spoilt the store."""
    with_batches(tmp_path)
    found = verify(Inspection(tmp_path), lambda _: None)
    assert found.findings == []
    assert (found.record_count, found.queue_count, found.entry_count) == (6, 2, 6)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (46 + 3, "entry 1 does not lead to its record"),  # the place
        (46 + 19, "entry 1 does not lead to its record"),  # the tag
        (46 + 35, "does not follow the one before it"),  # the base
        (46 + 37, "does not follow the one before it"),  # the count
    ],
)
def test_a_wrong_entry_of_a_queue_of_batches_is_a_finding(tmp_path: Path, position: int, reason: str) -> None:
    with_batches(tmp_path)
    path = tmp_path / "batchconsumequeue" / "Batched" / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[position] ^= 8
    path.write_bytes(content)
    findings = verify(Inspection(tmp_path), lambda _: None).findings
    assert any(reason in one.reason for one in findings), findings
    assert all("batchconsumequeue/Batched/0" in one.path for one in findings)


def test_a_queue_of_batches_that_is_gone_is_a_finding(tmp_path: Path) -> None:
    with_batches(tmp_path)
    shutil.rmtree(tmp_path / "batchconsumequeue" / "Batched" / "0")
    (found,) = verify(Inspection(tmp_path), lambda _: None).findings
    assert "the last 5 records have no entry" in found.reason


def test_settings_that_contradict_the_files_are_a_finding(tmp_path: Path) -> None:
    with_batches(tmp_path)
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable": {"Batched": {"attributes": {}}}}')
    findings = verify(Inspection(tmp_path), lambda _: None).findings
    assert any("no queue.type=BatchCQ of Batched" in one.reason for one in findings)


def test_what_rocketmq_has_compacted_is_said_not_to_be_verified(tmp_path: Path) -> None:
    """A store was sound, without a word of the values that nobody had looked at."""
    flipped(tmp_path, lambda header, record: None, crashed=False)
    folder = tmp_path / "compaction" / "compactionLog"
    folder.mkdir(parents=True)
    assert verify(Inspection(tmp_path), lambda _: None).notes == []
    for number in range(7):
        (folder / f"Prices{number}" / "0").mkdir(parents=True)
    found = verify(Inspection(tmp_path), lambda _: None)
    assert found.findings == []
    (note,) = found.notes
    assert note.startswith("not verified: what RocketMQ keeps in compaction/ of Prices0, Prices1, ")
    assert "Prices4 and 2 others; it is served by RocketMQ only" in note


def test_zeros_in_a_table_are_a_finding(tmp_path: Path) -> None:
    flipped(tmp_path, lambda header, record: None, crashed=False)
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"topicConfigTable":{"A":{"perm":6},"' + bytes(64) + b'":{"perm":6}}}')
    (found,) = verify(Inspection(tmp_path), lambda _: None).findings
    assert found.path == "config/topics.json"
    assert "it has zeros in it" in found.reason


@pytest.mark.parametrize("kind", timer_damages())
def test_damage_in_a_timer_file_is_a_finding(tmp_path: Path, kind: str) -> None:
    """Nobody looked at them: a store whose timer log was gone was sound."""
    with_timers(tmp_path).close()
    assert verify(Inspection(tmp_path), lambda _: None).findings == []
    timer_damages()[kind](tmp_path)
    found = verify(Inspection(tmp_path), lambda _: None)
    assert any("timer" in one.path and "keep config/timercheck" in one.advice for one in found.findings)
