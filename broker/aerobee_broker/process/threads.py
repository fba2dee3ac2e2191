"""Threads that are there before they are needed: one that cannot be made any more would end what asked for it.

A process that is out of memory or of maps can make no thread (each needs a stack), and an executor makes its threads
when work comes.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["started_executor"]


def started_executor(count: int, name: str) -> ThreadPoolExecutor:
    """An executor whose `count` threads run already."""
    executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)
    # One that has begun waits for the others, so that each makes a thread.
    together = threading.Barrier(count + 1)
    for _ in range(count):
        executor.submit(together.wait)
    together.wait()
    return executor
