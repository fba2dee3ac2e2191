"""What an archive of a topic holds comes back: bodies, ids, keys, tags, properties, times of birth, order."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aerobee_pytest import Server
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.jobs import restore as restore_job
from pyspark_aerobee.jobs.archive import archive
from pyspark_aerobee.jobs.restore import RestoreReport, restore
from pyspark_aerobee.jobs.spans import source_of

pytestmark = pytest.mark.timeout(300)
COUNT = 300


@pytest.fixture(scope="module")
def archived(
    spark: SparkSession, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """COUNT messages of a topic, archived through the broker; the archive and the topic."""
    topic = server.new_topic("archived")
    with server.sync_client() as mq, mq.producer() as producer:
        for number in range(COUNT):
            producer.send(
                topic,
                f"body-{number} ".encode() * (number % 9 + 1),
                queue=number % 3,
                tags=(None, "red", "grün")[number % 3],
                keys=["shared", f"k{number}"] if number % 2 else None,
                properties={"n": str(number)},
            )
    folder = tmp_path_factory.mktemp("archive") / "a"
    source = source_of({"nameServer": server.nameserver, "subscribe": topic}, now_ms=0, task_size=20_000)
    logged: list[int] = []
    report = archive(spark, source, str(folder), advance=logged.append)
    assert (report.rows, sum(logged), report.missing) == (COUNT, COUNT, 0)
    assert archive(spark, source, str(folder)).rows == 0
    return folder, topic


def rows_of(spark: SparkSession, server: Server, topic: str) -> list[Any]:
    reader = spark.read.format("aerobee").option("nameServer", server.nameserver).option("subscribe", topic)
    return reader.load().orderBy("queueId", "queueOffset").collect()


def facts(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (row.queueId, row.msgId, bytes(row.body), row.tags, row.keys, row.bornTimestamp, row.properties["n"])
        for row in rows
    ]


def run(
    spark: SparkSession, server: Server, archived: tuple[Path, str], target: str, **more: Any
) -> RestoreReport:
    folder, topic = archived
    return restore(spark, str(folder), {"nameServer": server.nameserver}, rename={topic: target}, **more)


def test_messages_come_back_as_they_were(
    spark: SparkSession, server: Server, archived: tuple[Path, str]
) -> None:
    target = server.new_topic("restored")
    logged: list[int] = []
    report = run(spark, server, archived, target, advance=logged.append)
    assert (report.rows, report.before, report.topics) == (COUNT, 0, {target: COUNT})
    assert sum(logged) == COUNT
    assert facts(rows_of(spark, server, target)) == facts(rows_of(spark, server, archived[1]))
    again = run(spark, server, archived, target)
    assert (again.rows, again.before) == (0, COUNT)


def test_a_run_goes_on_where_another_was_killed(
    spark: SparkSession, server: Server, archived: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = server.new_topic("killed")
    step = 30

    class Killed(BaseException):
        pass

    class Works(restore_job.RestoreWork):
        """Sends two steps of its queue and dies before the second is noted."""

        def _parts(self, *arguments: Any) -> Any:
            yield from list(super()._parts(*arguments))[:1]

    with monkeypatch.context() as patch:
        patch.setattr(restore_job, "RestoreWork", Works)
        first = run(spark, server, archived, target, step=step)
    assert first.rows == 3 * step
    second = run(spark, server, archived, target, step=step)
    assert (second.rows, second.before) == (COUNT - 3 * step, 3 * step)
    assert facts(rows_of(spark, server, target)) == facts(rows_of(spark, server, archived[1]))


def test_times_choose(spark: SparkSession, server: Server, archived: tuple[Path, str]) -> None:
    target = server.new_topic("times")
    rows = sorted(rows_of(spark, server, archived[1]), key=lambda row: row.storeTimestamp)
    middle = round(rows[COUNT // 2].storeTimestamp.timestamp() * 1000)
    expected = sum(row.storeTimestamp.timestamp() * 1000 < middle for row in rows)
    assert run(spark, server, archived, target, end_ms=middle).rows == expected
    assert run(spark, server, archived, target, begin_ms=middle).rows == COUNT - expected
    assert len(rows_of(spark, server, target)) == COUNT


def test_an_unknown_topic_is_named(spark: SparkSession, server: Server, archived: tuple[Path, str]) -> None:
    folder, topic = archived
    with pytest.raises(OptionError, match=r"has no messages of it.*did you mean"):
        restore(spark, str(folder), {"nameServer": server.nameserver}, topics=[topic[:-1]])
