"""Archives: every message once, whatever ends the run; what a reader sees; Delta."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aerobee import MessageQueue
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from pipeline.conftest import TOPICS
from pyspark_aerobee.errors import PipelineError
from pyspark_aerobee.jobs import archive as archive_job
from pyspark_aerobee.jobs.archive import archive, read_archive
from pyspark_aerobee.jobs.manifest import Archive, Commit, Conflict
from pyspark_aerobee.jobs.spans import Intervals, Span, StoreSpans
from store.workload import message


def records_of(root: Path) -> list[StoredRecord]:
    """All records of a store, one by one."""
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while int.from_bytes(content[at + 4 : at + 8], "big") in (0xDAA320A7, 0xDAA320AB):
            found.append(decode_record(content, at))
            at += found[-1].size
    return found


def spans_of(root: Path, **more: Any) -> StoreSpans:
    return StoreSpans(str(root), TOPICS, **{"task_size": 24 << 10, **more})


def places(spark: SparkSession, folder: Path) -> list[tuple[str, int, int]]:
    rows = read_archive(spark, str(folder)).select("topic", "queueId", "queueOffset").collect()
    return sorted((row.topic, row.queueId, row.queueOffset) for row in rows)


def expected(root: Path) -> list[tuple[str, int, int]]:
    return sorted((r.topic, r.queue_id, r.queue_offset) for r in records_of(root))


def append(root: Path, count: int, first: int = 10_000) -> None:
    """More messages into a closed store."""
    config = StoreConfig(
        root=root, commit_log_file_size=64 << 10, consume_queue_file_size=2000, index_slots=97, index_entries=300
    )  # fmt: skip
    store = MessageStore(config, io=DiskIo(), clock=lambda: 1_760_000_000_000)
    store.open()
    for number in range(first, first + count):
        store.append([message("Orders", number % 4, b"more-%d" % number)])
        store.confirm(store.end_offset)
    store.flush_disk()
    store.close()


# --- every message once --------------------------------------------------------------------------------------


def test_a_store_in_full(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    logged: list[int] = []
    report = archive(spark, spans_of(store_folder), str(tmp_path / "a"), advance=logged.append)
    found = records_of(store_folder)
    assert (report.rows, sum(logged), report.missing, report.damaged) == (400, 400, 0, 0)
    rows = {
        (row.topic, row.queueId, row.queueOffset): row
        for row in read_archive(spark, str(tmp_path / "a")).collect()
    }
    assert len(rows) == len(found)
    for record in found:
        row = rows[record.topic, record.queue_id, record.queue_offset]
        assert (bytes(row.body), row.tags, row.keys) == (record.body, record.tags, list(record.keys))
        assert row.properties == {k: v for k, v in record.property_map.items() if k != "__CRC32C"}
        assert row.bornTimestamp.timestamp() * 1000 == record.born_timestamp
        assert row.day == row.storeTimestamp.date()
        assert row.commitLogOffset == record.physical_offset


def test_readers_that_know_no_commits_see_the_same(
    spark: SparkSession, store_folder: Path, tmp_path: Path
) -> None:
    archive(spark, spans_of(store_folder), str(tmp_path))
    frame = spark.read.parquet(str(tmp_path))
    assert sorted(
        (r.topic, r.queueId, r.queueOffset) for r in frame.select("topic", "queueId", "queueOffset").collect()
    ) == expected(store_folder)


def test_the_next_run_takes_what_is_new(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    assert archive(spark, spans_of(root), str(tmp_path / "a")).rows == 400
    assert archive(spark, spans_of(root), str(tmp_path / "a")).commits == 0
    append(root, 11)
    again = archive(spark, spans_of(root), str(tmp_path / "a"))
    assert (again.rows, again.commits) == (11, 1)
    assert places(spark, tmp_path / "a") == expected(root)


class Killed(BaseException):
    """What a kill is to the driver: nothing behind it runs."""


@pytest.mark.parametrize("moment", ["before a commit", "before its files move", "between its files"])
def test_a_killed_run_loses_and_doubles_nothing(
    spark: SparkSession, store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    target = str(tmp_path / "a")
    commit, publish, seen = Archive.commit, Archive.publish, []

    def killed_commit(self: Archive, one: Commit) -> None:
        seen.append(one)
        if moment == "before a commit" and len(seen) == 2:
            raise Killed
        commit(self, one)

    def killed_publish(self: Archive, one: Commit) -> None:
        if moment != "before a commit" and len(seen) == 2:
            if moment == "between its files":
                publish(self, Commit(one.number, one.run, 0, "", [], one.files[:2]))
            raise Killed
        publish(self, one)

    with monkeypatch.context() as patch:
        patch.setattr(Archive, "commit", killed_commit)
        patch.setattr(Archive, "publish", killed_publish)
        with pytest.raises(Killed):
            archive(spark, spans_of(store_folder), target, round_bytes=40 << 10)
    committed = sum(one.rows for one in Archive(target).commits())
    assert 0 < committed < 400
    report = archive(spark, spans_of(store_folder), target)
    assert report.rows == 400 - committed
    assert places(spark, tmp_path / "a") == expected(store_folder)
    plain = spark.read.parquet(target).select("topic", "queueId", "queueOffset").collect()
    assert sorted(tuple(row) for row in plain) == expected(store_folder)


def test_two_runs_at_once_are_one_too_many(
    spark: SparkSession, store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "a")
    monkeypatch.setattr(
        archive_job,
        "run_tasks",
        _with_another_run_first(spark, store_folder, target),
    )
    with pytest.raises(Conflict, match="another run has written"):
        archive(spark, spans_of(store_folder), target)
    assert places(spark, tmp_path / "a") == expected(store_folder)


def _with_another_run_first(spark: SparkSession, root: Path, target: str) -> Any:
    from pyspark_aerobee.jobs.launch import run_tasks

    began: Iterator[bool] = iter([True])

    def run(*arguments: Any) -> Any:
        if next(began, False):
            archive(spark, spans_of(root), target)
        return run_tasks(*arguments)

    return run


# --- what is not there ---------------------------------------------------------------------------------------


def test_damaged_messages_are_named_and_the_others_kept(
    spark: SparkSession, store_folder: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    victim = records_of(root)[50]
    path = root / "commitlog" / f"{victim.physical_offset // (64 << 10) * (64 << 10):020d}"
    with path.open("r+b") as file:
        file.seek(victim.physical_offset % (64 << 10) + 100)
        file.write(b"\xff\xff\xff")
    report = archive(spark, spans_of(root), str(tmp_path / "a"))
    assert (report.rows, report.missing, report.damaged) == (399, 1, 1)
    (commit,) = Archive(str(tmp_path / "a")).commits()
    assert commit.damaged[0]["begin"] == victim.physical_offset
    assert (victim.topic, victim.queue_id, victim.queue_offset) not in places(spark, tmp_path / "a")
    assert archive(spark, spans_of(root), str(tmp_path / "a")).commits == 0


def test_a_hole_behind_the_archive_is_an_error_that_can_be_accepted(
    spark: SparkSession, store_folder: Path, tmp_path: Path
) -> None:
    """Retention was faster than the archive."""
    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    target = str(tmp_path / "a")
    run, _, _ = Archive(target).open_run()
    first = Span(MessageQueue("Orders", "", 0), 0, 2)
    Archive(target).commit(Commit(1, run, 0, "an older store", [first], []))
    oldest = sorted((root / "commitlog").iterdir())[0]
    oldest.unlink()
    with pytest.raises(PipelineError, match=r"Orders//0 offsets 2 to \d+"):
        archive(spark, spans_of(root), target)
    archive(spark, spans_of(root), target, fail_on_data_loss=False)
    assert Archive(target).commits()[1].lost[0].begin == 2


def test_a_missing_commit_is_an_error(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    archive(spark, spans_of(store_folder), str(tmp_path), round_bytes=40 << 10)
    commits = sorted((tmp_path / "_aerobee" / "commits").iterdir())
    commits[0].unlink()
    with pytest.raises(PipelineError, match=r"commits \[1\] are missing"):
        read_archive(spark, str(tmp_path))
    commits[-1].write_text("{}")
    with pytest.raises(PipelineError, match="is no commit"):
        Archive(str(tmp_path)).commit_at(len(commits))


def test_what_killed_runs_left_goes_after_a_day(tmp_path: Path) -> None:
    old, young = (tmp_path / "_aerobee" / "staging" / f"{year}0101T000000-x" for year in (2020, 2099))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "x.parquet").write_bytes(b"half")
    Archive(str(tmp_path)).open_run()
    assert not old.exists()
    assert young.exists()


# --- intervals -----------------------------------------------------------------------------------------------

Q = MessageQueue("T", "b", 0)


def test_intervals_know_what_is_missing() -> None:
    known = Intervals([Span(Q, 10, 20), Span(Q, 30, 40), Span(Q, 20, 25)])
    assert known.spans() == [Span(Q, 10, 25), Span(Q, 30, 40)]
    assert known.missing(Span(Q, 0, 50)) == [Span(Q, 0, 10), Span(Q, 25, 30), Span(Q, 40, 50)]
    assert known.missing(Span(Q, 12, 24)) == []
    assert known.hole_before(Span(Q, 45, 50)) == Span(Q, 40, 45)
    assert known.hole_before(Span(Q, 40, 50)) is None
    assert known.hole_before(Span(Q, 5, 50)) is None
    known.add(Span(Q, 22, 33))
    assert known.spans() == [Span(Q, 10, 40)]


# --- Delta ---------------------------------------------------------------------------------------------------


def test_a_delta_table_has_every_commit_once(
    spark: SparkSession, store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the package deltalake is not installed")
    from pyspark_aerobee.jobs.delta import DeltaTableOf

    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    target = str(tmp_path / "a")
    archive(spark, spans_of(root), target, round_bytes=40 << 10)  # before it was a table

    def killed(self: DeltaTableOf, commit: Commit) -> None:
        raise Killed

    append(root, 7)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTableOf, "add", killed)
        patch.setattr(DeltaTableOf, "catch_up", lambda self, commits: None)
        with pytest.raises(Killed):
            archive(spark, spans_of(root), target, delta=True)
    for _ in range(2):
        archive(spark, spans_of(root), target, delta=True)
        table = deltalake.DeltaTable(target).to_pyarrow_table(columns=["topic", "queueId", "queueOffset"])
        rows = sorted(tuple(row.values()) for row in table.to_pylist())
        assert rows == expected(root)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_killed_between_its_commits(
    spark: SparkSession, store_folder: Path, tmp_path: Path
) -> None:
    """SIGKILL for the driver with its JVM while it is between its second commit and its last."""
    target = tmp_path / "a"
    words = ["--path", str(store_folder), "--topics", ",".join(TOPICS), str(target), "--master", "local[1]"]
    program = subprocess.Popen(
        [sys.executable, "-m", "pyspark_aerobee.jobs.archive", *words, "--round-bytes", "10k", "--task-bytes", "5k"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while len(Archive(str(target)).numbers()) < 2:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended by itself, with code {program.wait(0.02)}")
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    committed = sum(one.rows for one in Archive(str(target)).commits())
    report = archive(spark, spans_of(store_folder), str(target))
    assert 0 < committed < 400
    assert report.rows == 400 - committed
    assert places(spark, target) == expected(store_folder)
    plain = spark.read.parquet(str(target)).select("topic", "queueId", "queueOffset").collect()
    assert sorted(tuple(row) for row in plain) == expected(store_folder)
