"""What a task does to its worker."""

import gc

from pyspark.sql import SparkSession

from pyspark_aerobee.worker import keep_modules


def test_modules_are_out_of_the_collectors_sight_in_tasks_only(spark: SparkSession) -> None:
    def frozen(_: int) -> tuple[int, int]:
        keep_modules()
        first = gc.get_freeze_count()
        keep_modules()
        return first, gc.get_freeze_count()

    before = gc.get_freeze_count()
    keep_modules()
    assert gc.get_freeze_count() == before
    for first, again in spark.sparkContext.parallelize(range(2), 2).map(frozen).collect():
        assert first > 1000
        assert again <= first  # once: what came later is looked at
