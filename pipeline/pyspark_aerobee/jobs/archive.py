"""Archive: messages of topics or of a store folder into Parquet files by topic and day, each exactly once.

Touches  the source, reading; the archive folder (its layout: `pyspark_aerobee.jobs.manifest`).

    report = archive(spark, source_of({"path": "/data/store"}, now_ms=...), "/data/archive")
    python -m pyspark_aerobee.jobs.archive --path /data/store /data/archive
    python -m pyspark_aerobee.jobs.archive --name-server mq1:9876 --topics orders s3://lake/orders

A run takes what the source has and the archive has not, in rounds of `round_bytes`; each round is one commit. One that
is killed loses the round that it was in, never the archive: the next run goes on where the commits end.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aerobee_service.clock import epoch_ms
from pyspark_aerobee.errors import PipelineError
from pyspark_aerobee.jobs.launch import (
    Advance,
    add_source_arguments,
    main_of,
    run_tasks,
    session,
    source_options,
)
from pyspark_aerobee.jobs.manifest import Archive, ArchivedFile, Commit
from pyspark_aerobee.jobs.parquet import FileSet, archive_schema
from pyspark_aerobee.jobs.spans import SpanSource, Task, complain_of_loss, source_of
from pyspark_aerobee.options import parse_bytes
from pyspark_aerobee.store_read import Damage, damage_facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArchiveReport", "archive", "read_archive"]

ROUND_BYTES: Final = 8 << 30
COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")
DAMAGE_MAX: Final = 1000  # that a commit names


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What a run did."""

    archive: str
    commits: int
    rows: int
    files: int
    bytes: int
    damaged: int  # stretches of the log that should hold messages and hold none
    missing: int  # messages of the spans that could not be had
    took_ms: int


@dataclass(frozen=True, slots=True)
class _Written:
    """What one task did."""

    files: list[ArchivedFile]
    rows: int
    missing: int
    damaged: list[dict[str, Any]]


def archive(
    spark: "SparkSession",
    source: SpanSource,
    address: str,
    *,
    storage: Mapping[str, Any] | None = None,
    compression: str = "zstd",
    round_bytes: int = ROUND_BYTES,
    delta: bool = False,
    fail_on_data_loss: bool = True,
    advance: Advance | None = None,
) -> ArchiveReport:
    """Add what the source has and the archive has not.

    storage      options for fsspec, of the archive's address
    delta        also keep the folder a Delta table (needs the package deltalake)
    advance      told numbers of messages as tasks end

    Raises Conflict when another run writes to the archive, PipelineError when messages between archived ones and the
    source's first are gone (unless `fail_on_data_loss` is False: then the commit names them).
    """
    begun = time.monotonic()
    folder = Archive(address, storage)
    run, commits, known = folder.open_run()
    table = _delta_table(folder) if delta else None
    if table is not None:
        table.catch_up(commits)
    plan = source.plan(known)
    if fail_on_data_loss:
        complain_of_loss(plan.lost, source.what)
    work = _Work(folder, run, source, archive_schema(), compression, fail_on_data_loss)
    done: list[Commit] = []
    for number, tasks in enumerate(_rounds(plan.tasks, round_bytes), len(commits) + 1):
        written = run_tasks(spark, work, tasks, lambda result: result.rows, advance)
        commit = _commit_of(number, run, source.what, tasks, written, plan.lost if not done else [])
        folder.commit(commit)
        folder.publish(commit)
        if table is not None:
            table.add(commit)
        done.append(commit)
    folder.close_run(run)
    files = [file for commit in done for file in commit.files]
    return ArchiveReport(
        address, len(done), sum(file.rows for file in files), len(files), sum(file.size for file in files),
        sum(len(commit.damaged) for commit in done), sum(commit.missing for commit in done),
        round((time.monotonic() - begun) * 1000),
    )  # fmt: skip


def _delta_table(folder: Archive) -> Any:
    from pyspark_aerobee.jobs.delta import DeltaTableOf

    return DeltaTableOf(folder)


def _rounds(tasks: Sequence[Task], round_bytes: int) -> Iterator[list[Task]]:
    held: list[Task] = []
    size = 0
    for task in tasks:
        if held and size + task.size > round_bytes:
            yield held
            held, size = [], 0
        held.append(task)
        size += task.size
    if held:
        yield held


def _commit_of(
    number: int, run: str, what: str, tasks: Sequence[Task], written: Sequence[_Written], lost: Sequence[Any]
) -> Commit:
    return Commit(
        number=number,
        run=run,
        created_ms=epoch_ms(),
        source=what,
        spans=[span for task in tasks for span in task.spans],
        files=[file for one in written for file in one.files],
        missing=sum(one.missing for one in written),
        damaged=[damage for one in written for damage in one.damaged][:DAMAGE_MAX],
        lost=list(lost),
    )


class _Work:
    """One task: read its spans, write its files. Travels to executors."""

    def __init__(
        self,
        folder: Archive,
        run: str,
        source: SpanSource,
        schema: pa.Schema,
        compression: str,
        fail_on_data_loss: bool,
    ) -> None:
        self._address, self._storage = folder.address, folder.storage
        self._run = run
        self._source = source
        self._schema = schema
        self._compression = compression
        self._fail_on_data_loss = fail_on_data_loss

    def __call__(self, task: Task) -> _Written:
        folder = Archive(self._address, self._storage)
        staging = folder.staged(self._run, "").rstrip("/")
        files = FileSet(folder.filesystem, staging, self._schema, self._compression)
        try:
            rows, damaged = self._copy(task, files)
            expected = sum(span.messages for span in task.spans)
            self._check(task, expected, rows, rows + len(damaged))
            return _Written(files.close(), rows, expected - rows, damaged)
        except BaseException:
            files.abort()
            raise

    def _check(self, task: Task, expected: int, rows: int, accounted: int) -> None:
        """PipelineError unless the source gave what was planned."""
        if rows > expected:
            raise PipelineError(f"{self._source.what} gave {rows} messages for {expected}: {task.spans[:4]}")
        if accounted < expected and self._fail_on_data_loss:
            raise PipelineError(
                f"{self._source.what}: {expected - accounted} of {expected} messages are gone since the job was"
                f" planned: {task.spans[:4]}; run it again, and keep messages longer (fileReservedTime) than it takes"
            )

    def _copy(self, task: Task, files: FileSet) -> tuple[int, list[dict[str, Any]]]:
        rows, damaged = 0, []
        for topic, found in self._source.read(task, self._schema):
            if isinstance(found, Damage):
                damaged.append({"topic": topic, **damage_facts(found)})
            elif found.num_rows:
                files.write(topic, found)
                rows += found.num_rows
        return rows, damaged


def read_archive(
    spark: "SparkSession",
    address: str,
    topics: Sequence[str] = (),
    storage: Mapping[str, Any] | None = None,
) -> "DataFrame":
    """The archive as a table, by its commits: columns of the files, topic and day."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import DateType, StringType, StructField, StructType

    folder = Archive(address, storage)
    columns: StructType = from_arrow_schema(archive_schema())
    schema = StructType([*columns.fields, StructField("topic", StringType()), StructField("day", DateType())])
    paths = [folder.path_of(file) for file in folder.files(topics)]
    if not paths:
        return spark.createDataFrame([], schema)
    # Names of topics may hold what Spark takes for a pattern; %-signs in folder names are part of the name.
    return spark.read.schema(schema).option("basePath", folder.address).parquet(*paths)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="archive", description="Messages into Parquet files, each exactly once."
    )
    add_source_arguments(parser)
    parser.add_argument("archive", help="folder or fsspec address of the archive")
    parser.add_argument("--compression", choices=COMPRESSIONS, default="zstd")
    parser.add_argument("--round-bytes", default="8g", help="bytes of messages in one commit")
    parser.add_argument(
        "--task-bytes", default="128m", help="bytes of messages in one task, and about one file"
    )
    parser.add_argument("--delta", action="store_true", help="keep it a Delta table too (package deltalake)")
    parser.add_argument("--accept-loss", action="store_true", help="go on behind messages that are gone")

    def work(arguments: argparse.Namespace) -> Mapping[str, Any]:
        source = source_of(
            source_options(arguments),
            now_ms=epoch_ms(),
            task_size=parse_bytes("task-bytes", arguments.task_bytes),
        )
        with session("archive", arguments.master) as spark:
            report = archive(
                spark, source, arguments.archive, compression=arguments.compression,
                round_bytes=parse_bytes("round-bytes", arguments.round_bytes), delta=arguments.delta,
                fail_on_data_loss=not arguments.accept_loss,
            )  # fmt: skip
        return asdict(report)

    return main_of(work, parser)


if __name__ == "__main__":
    sys.exit(main())
