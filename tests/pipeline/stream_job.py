"""A streaming job as a process of its own, to be killed: a topic into Parquet files, a folder for each batch.

    python stream_job.py NAMESERVER TOPIC FOLDER OFFSETS_PER_BATCH

Says `begin N` when it starts to write batch N, `done N` when Spark has noted it as done. A batch that is repeated
replaces what it had written: the folder's name is the batch's number.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_aerobee.java import use_java


class Teller(StreamingQueryListener):
    """Says which batches are done."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to say."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        print(f"done {event.progress.batchId}", flush=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to say."""


def main(nameserver: str, topic: str, folder: str, per_batch: str) -> None:
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.streams.addListener(Teller())

    def write(rows: DataFrame, batch_id: int) -> None:
        print(f"begin {batch_id}", flush=True)
        rows.write.mode("overwrite").parquet(str(Path(folder) / "rows" / str(batch_id)))

    reader = spark.readStream.format("aerobee").option("nameServer", nameserver).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch)
    query = (
        reader.load()
        .select("brokerName", "queueId", "queueOffset", "body")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("everything is read", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
