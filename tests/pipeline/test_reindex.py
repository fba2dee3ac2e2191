"""An index built by Spark is the one that the broker wrote."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from pipeline.test_archive import records_of
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.jobs.reindex import reindex


def test_the_files_are_the_brokers_own(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    logged: list[int] = []
    report = reindex(
        spark, str(store_folder), tmp_path / "index", slots=97, entries=300, partition_size=16 << 10,
        advance=logged.append,
    )  # fmt: skip
    expected = [path.read_bytes() for path in sorted((store_folder / "index").iterdir())]
    found = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    assert len(expected) == report.files == 3
    assert found == expected
    assert sum(logged) == sum(record.size for record in records_of(store_folder))
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_broker_takes_it(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    shutil.rmtree(root / "index")
    reindex(spark, str(root), root / "index", slots=97, entries=300)
    config = StoreConfig(
        root=root, commit_log_file_size=64 << 10, consume_queue_file_size=2000, index_slots=97, index_entries=300
    )  # fmt: skip
    store = MessageStore(config, io=DiskIo(), clock=lambda: 1_760_000_000_000)
    report = store.open()
    try:
        store.check()
        assert report.indexed_keys == 0
    finally:
        store.close()


def test_a_folder_in_use_is_left_alone(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "20250101000000000").write_bytes(b"precious")
    with pytest.raises(OptionError, match="there are files in it"):
        reindex(spark, str(store_folder), tmp_path)
    assert (tmp_path / "20250101000000000").read_bytes() == b"precious"
