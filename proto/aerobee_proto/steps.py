"""Work in steps, as a generator: whoever has others to serve does so between two of them.

Touches  nothing.
"""

from collections.abc import Callable, Generator
from typing import TypeVar

__all__ = ["Call", "CallSteps", "finished", "finished_here"]

T = TypeVar("T")
Call = Callable[[], object]
# Steps of which some give a call that takes too long for whoever has others to serve, and are sent one in its place
# that says what it has returned, or raises what it has raised.
CallSteps = Generator[Call | None, Call | None, T]


def finished(steps: Generator[object, None, T]) -> T:
    """What the steps come to, without a pause between them; what a step asks to be waited for is not."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def finished_here(steps: CallSteps[T], pause: Callable[[], None] | None = None) -> T:
    """As finished(); the calls that steps give are made here, and `pause` after each step."""
    made: Call | None = None
    while True:
        try:
            made = steps.send(made)
        except StopIteration as end:
            result: T = end.value
            return result
        if pause is not None:
            pause()
