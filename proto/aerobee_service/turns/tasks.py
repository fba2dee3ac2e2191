"""Tasks whose failure somebody else tells, or nobody needs to hear.

A task behind `asyncio.shield` outlives whoever waited for it. When it fails after that, nobody asks for its exception,
and asyncio prints "Task exception was never retrieved" and a trace. `look_at` is the callback for such tasks.
"""

import asyncio
from typing import Any

__all__ = ["look_at"]


def look_at(done: "asyncio.Future[Any]") -> None:
    """Take note of how it ended: whoever still waits for it gets the exception all the same."""
    if not done.cancelled():
        done.exception()
