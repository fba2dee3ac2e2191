"""Executors that are programs of their own: what tasks need travels with them, and the package is found there."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from aerobee_pytest import Server

SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_aerobee.jobs.archive import archive
from pyspark_aerobee.jobs.spans import StoreSpans

store, nameserver, topic, folder = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for key, value in {
    "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.log.level": "ERROR", "spark.master.rest.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
read = spark.read.format("aerobee").option("topic", "Orders").option("minPartitions", 4).load(store)
write = read.select("body", "tags", "keys").write.format("aerobee")
write.option("nameServer", nameserver).option("topic", topic).mode("append").save()
back = spark.read.format("aerobee").option("nameServer", nameserver).option("subscribe", topic).load()
assert {bytes(row.body) for row in back.collect()} == {bytes(row.body) for row in read.collect()}
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
rows = archive(spark, StoreSpans(store, ("Orders",), task_size=4096), folder).rows
print("RESULT", back.count(), executors, rows)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_read_a_write_and_an_archive_on_two_executors(
    spark: object, server: Server, store_folder: Path, tmp_path: Path
) -> None:
    topic = server.new_topic("clustered")
    environment = os.environ | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_ENV_LOADED"):
        environment.pop(name, None)
    words = [str(store_folder), server.nameserver, topic, str(tmp_path / "a")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        capture_output=True, text=True, timeout=380, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert "RESULT 134 2 134" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]
