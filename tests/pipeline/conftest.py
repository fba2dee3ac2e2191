"""One Spark for all tests of this room, and stores to read."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aerobee_pytest import Server
from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import PutStatus
from store.workload import message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK_TIMEOUT_S = 400
TOPICS = ("Orders", "Payments", "%RETRY%g")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test asks for Spark first waits for its start: a minute, on a machine that is busy with others."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local Spark of two cores; skipped without Java, a failure in CI."""
    from pyspark_aerobee.java import JavaMissing, use_java

    try:
        use_java()
    except JavaMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": FAST_JVM,
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def write_store(root: Path, *, count: int = 400, log_file_size: int = 64 << 10) -> None:
    """A store with `count` messages in several topics, queues, tags, keys, and files; closed in order."""
    times = iter(range(1_750_000_000_000, 2_000_000_000_000, 1000))
    now = next(times)
    store = MessageStore(
        StoreConfig(
            root=root,
            commit_log_file_size=log_file_size,
            consume_queue_file_size=2000,
            index_slots=97,
            index_entries=300,
        ),
        io=DiskIo(),
        clock=lambda: now,
    )
    store.open()
    for number in range(count):
        now = next(times)
        one = message(
            TOPICS[number % len(TOPICS)],
            number % 4,
            b"body-%d " % number * (number % 40 + 1),
            tag=(None, "red", "blue", "grün")[number % 4] or "",
            keys=(None, f"k{number}", f"k{number} shared")[number % 3],
            unique_key=None if number % 7 == 0 else f"UNIQ{number:06d}",
        )
        (done,) = store.append([one])
        assert done.status is PutStatus.PUT_OK
        store.confirm(store.end_offset)
    store.keys.build(10 * count)
    store.flush_disk()
    store.close()


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of ours; not to be changed."""
    root = tmp_path_factory.mktemp("store") / "store"
    write_store(root)
    return root


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A nameserver and a broker for the tests of a module: while they run, servers' logs go elsewhere."""
    with Server({"enablePropertyFilter": True}) as server:
        yield server
