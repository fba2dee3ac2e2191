"""How jobs start: a Spark session, command lines, tasks whose ends are told while they run.

Touches  Spark; the process's arguments and environment.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aerobee import ClientError
from pyspark_aerobee.cluster import Cluster, ClusterSettings
from pyspark_aerobee.errors import PipelineError, SourceGone
from pyspark_aerobee.java import use_java
from pyspark_aerobee.start import use_python
from pyspark_aerobee.worker import keep_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Advance",
    "add_option_argument",
    "add_source_arguments",
    "further_options",
    "main_of",
    "run_tasks",
    "session",
    "source_options",
    "with_cluster",
]

T = TypeVar("T")
R = TypeVar("R")
Advance = Callable[[int], None]  # told how much more is done

POLL_S: Final = 0.5


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """The session that spark-submit prepared or that is open, else one of this machine; the latter is closed again."""
    given = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if not given:
        use_java()
        use_python()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.appName(f"aerobee {name}")
    if master is not None or not given:
        builder = builder.master(master or "local[*]")
    with _quiet_settings(given=given) as defaults:
        for key, value in {**defaults, **(settings or {})}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _quiet_settings(*, given: bool) -> Iterator[dict[str, str]]:
    """Settings of a session that nobody prepared: Spark says what failed, and not how it starts.

    The file that tells its log so is there while Spark starts, which is when it is read.
    """
    if given:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="aerobee-spark-") as folder:
        file = Path(folder) / "log4j2.properties"
        file.write_text(_LOG_OF_ERRORS)
        yield _QUIET | {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={file.as_uri()}"}


_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


_LOG_OF_ERRORS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.shell.name = org.apache.spark.repl.Main
logger.shell.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def run_tasks(
    spark: "SparkSession",
    work: Callable[[T], R],
    tasks: Sequence[T],
    amount: Callable[[R], int] = lambda _: 1,
    advance: Advance | None = None,
) -> list[R]:
    """`work` on every task, on the executors; the results in the order of the tasks.

    `advance` is told the `amount` of each result as tasks end; of one that Spark runs twice, perhaps twice.
    """
    if not tasks:
        return []
    context = spark.sparkContext
    done = context.accumulator(0)

    def one(task: T) -> R:
        keep_modules()
        result = work(task)
        done.add(amount(result))
        return result

    with _reporting(lambda: done.value, advance):
        return list(context.parallelize(tasks, len(tasks)).map(one).collect())


@contextmanager
def _reporting(value: Callable[[], int], advance: Advance | None) -> Iterator[None]:
    if advance is None:
        yield
        return
    ended = threading.Event()
    reported = 0

    def report_progress() -> None:
        nonlocal reported
        now = value()
        advance(now - reported)
        reported = now

    def watch() -> None:
        while not ended.wait(POLL_S):
            report_progress()

    watcher = threading.Thread(target=watch, name="aerobee-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        report_progress()


def with_cluster(settings: ClusterSettings, work: Callable[[Cluster], R]) -> R:
    """`work` with an open client, on the driver. SourceGone when brokers do not answer or refuse.

    In a thread of its own: notebooks run an event loop in the thread that calls jobs.
    """

    def opened() -> R:
        with Cluster(settings) as cluster:
            return work(cluster)

    with ThreadPoolExecutor(1, "aerobee-cluster") as pool:
        try:
            return pool.submit(opened).result()
        except ClientError as failed:
            raise SourceGone(str(failed)) from failed


# --- command lines -------------------------------------------------------------------------------------------


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that say what a job reads."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--path", help="a store folder, or its fsspec address")
    where.add_argument("--name-server", help="nameservers of a cluster, host:port;host:port")
    parser.add_argument("--topics", help="comma-separated; for a store all but the system's when not given")
    add_option_argument(parser)


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """`--option name=value`, and where Spark runs."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further option of the data source, such as brokerName=broker-a",
    )
    parser.add_argument("--master", help="Spark's master; local[*] when spark-submit does not say another")


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the data source that the arguments mean."""
    given = {"path": arguments.path} if arguments.path else {"nameServer": arguments.name_server}
    if arguments.topics:
        given["subscribe"] = arguments.topics
    return given | further_options(arguments)


def further_options(arguments: argparse.Namespace) -> dict[str, str]:
    """What `--option` says. PipelineError when it is no pair."""
    found = {}
    for pair in arguments.option:
        name, equals, value = pair.partition("=")
        if not equals:
            raise PipelineError(f"--option {pair}: write it as name=value")
        found[name] = value
    return found


def main_of(work: Callable[[argparse.Namespace], Mapping[str, Any]], parser: argparse.ArgumentParser) -> int:
    """Run a job from the command line: its report as JSON on standard output, errors as text and exit code 2."""
    arguments = parser.parse_args()
    try:
        report = work(arguments)
    except PipelineError as failed:
        sys.stderr.write(f"{parser.prog}: {failed}\n")
        return 2
    sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return 0
