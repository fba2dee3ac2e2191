"""Work in steps, as a generator: whoever has others to serve does so between two of them.

Touches  nothing.
"""

from collections.abc import Generator
from typing import TypeVar

__all__ = ["finished"]

T = TypeVar("T")


def finished(steps: Generator[object, None, T]) -> T:
    """What the steps come to, without a pause between them; what a step asks to be waited for is not."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
