"""What `aerobee store verify` says of a store in which two things disagree."""

from pathlib import Path

import pytest

from aerobee_console.failures import Failure
from aerobee_console.store import StoreFolder
from aerobee_console.store_verify import verify
from store.test_agreement import FLIPS, flipped
from store.test_batch_queues import with_batch_queue
from store.test_timer_check import damages as timer_damages
from store.test_timer_check import with_timers


@pytest.mark.parametrize("kind", FLIPS)
def test_a_record_that_names_another_queue_is_a_finding(tmp_path: Path, kind: str) -> None:
    """No checksum covers topic, queue id and number of a record that RocketMQ wrote."""
    place = flipped(tmp_path, FLIPS[kind], crashed=False)
    found = verify(StoreFolder(tmp_path), lambda _: None)
    assert any("consumequeue/Orders/0 at" in str(one) and f" {place}" in str(one) for one in found.findings)


def test_a_store_in_which_nothing_is_wrong_has_no_finding(tmp_path: Path) -> None:
    flipped(tmp_path, lambda header, record: None, crashed=False)
    assert verify(StoreFolder(tmp_path), lambda _: None).findings == []


def test_a_store_with_queues_of_batches_is_not_judged(tmp_path: Path) -> None:
    """Every record of them was a finding, with the advice to start a broker, which would have spoilt the store."""
    flipped(tmp_path, lambda header, record: None, crashed=False)
    with_batch_queue(tmp_path, "Batched")
    with pytest.raises(Failure, match=r"queue.type=BatchCQ are not served") as failed:
        verify(StoreFolder(tmp_path), lambda _: None)
    assert failed.value.code == 2


def test_what_rocketmq_has_compacted_is_said_not_to_be_verified(tmp_path: Path) -> None:
    """A store was sound, without a word of the values that nobody had looked at."""
    flipped(tmp_path, lambda header, record: None, crashed=False)
    folder = tmp_path / "compaction" / "compactionLog"
    folder.mkdir(parents=True)
    assert verify(StoreFolder(tmp_path), lambda _: None).notes == []
    for number in range(7):
        (folder / f"Prices{number}" / "0").mkdir(parents=True)
    found = verify(StoreFolder(tmp_path), lambda _: None)
    assert found.findings == []
    (note,) = found.notes
    assert note.startswith("not verified: what RocketMQ keeps in compaction/ of Prices0, Prices1, ")
    assert "Prices4 and 2 others; it is served by RocketMQ only" in note


def test_zeros_in_a_table_are_a_finding(tmp_path: Path) -> None:
    flipped(tmp_path, lambda header, record: None, crashed=False)
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"topicConfigTable":{"A":{"perm":6},"' + bytes(64) + b'":{"perm":6}}}')
    (found,) = verify(StoreFolder(tmp_path), lambda _: None).findings
    assert found.path == "config/topics.json"
    assert "it has zeros in it" in found.reason


@pytest.mark.parametrize("kind", timer_damages())
def test_damage_in_a_timer_file_is_a_finding(tmp_path: Path, kind: str) -> None:
    """Nobody looked at them: a store whose timer log was gone was sound."""
    with_timers(tmp_path).close()
    assert verify(StoreFolder(tmp_path), lambda _: None).findings == []
    timer_damages()[kind](tmp_path)
    found = verify(StoreFolder(tmp_path), lambda _: None)
    assert any("timer" in one.path and "keep config/timercheck" in one.advice for one in found.findings)
