"""Settings of a store: defaults and what cannot be."""

from pathlib import Path
from typing import Any

import pytest

from aerobee_store.faults.errors import StoreError
from aerobee_store.terms.config import DEFAULT_DELAY_LEVELS_MS, StoreConfig, total_memory


def test_an_acknowledged_message_is_on_disk_and_sealed_by_default() -> None:
    config = StoreConfig(root=Path("/store"))
    assert (config.sync_flush, config.record_checksum, config.accept_loss) == (True, True, False)


def test_folders_lie_below_the_root_but_the_log_may_not() -> None:
    config = StoreConfig(root=Path("/store"), commit_log_folder=Path("/fast/log"))
    assert config.commit_log_path == Path("/fast/log")
    assert StoreConfig(root=Path("/store")).commit_log_path == Path("/store/commitlog")
    assert config.consume_queue_path == Path("/store/consumequeue")
    assert config.index_path == Path("/store/index")


def test_there_are_eighteen_delay_levels_from_a_second_to_two_hours() -> None:
    assert len(DEFAULT_DELAY_LEVELS_MS) == 18
    assert DEFAULT_DELAY_LEVELS_MS[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert DEFAULT_DELAY_LEVELS_MS[-1] == 7_200_000


def test_records_count_as_in_memory_within_their_share_of_it() -> None:
    assert StoreConfig(root=Path("/store"), memory_size=1000).in_memory_distance == 400
    assert total_memory() > 1 << 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit_log_file_size": 1000},
        {"consume_queue_file_size": 30},
        {"consume_queue_file_size": 0},
        {"index_slots": 0},
        {"index_entries": 1},
    ],
)
def test_impossible_sizes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        StoreConfig(root=Path("/store"), **wrong)
