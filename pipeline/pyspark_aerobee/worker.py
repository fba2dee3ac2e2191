"""Spark's Python workers: what a task of ours does to the process that it runs in.

Touches  the garbage collector of a worker.
"""

import gc
from functools import cache

from pyspark import TaskContext

__all__ = ["keep_modules"]


def keep_modules() -> None:
    """To be called by a task after its imports: have the garbage collector skip what is in memory now, once.

    A worker collects garbage after each task. Nothing of the modules ever is, and looking at it takes 50 ms of
    processor time a task (bench/pipeline.py). Outside of tasks nothing happens.
    """
    if TaskContext.get() is not None:
        _keep()


@cache
def _keep() -> None:
    gc.collect()  # what is garbage now would be lost memory
    gc.freeze()
