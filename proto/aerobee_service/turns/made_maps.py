"""A map whose values are made one by one, when they are asked for.

Touches  nothing.

A table that is written as a whole, into an answer or into a file, has its values in another form than the one it is
written in. To make all of them first is the work of one turn of the event loop; whoever writes asks for them one after
the other, in slices or in a thread:

    return {"users": MadeMap(dict(self._users), _written)}

Invariants
- The keys are those of the map that it was made of, which must not change: a copy, where its owner goes on.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

__all__ = ["MadeMap"]

T = TypeVar("T")
V = TypeVar("V")


class MadeMap(Mapping[str, V]):
    """`make` makes the value of a key of what `source` has there, each time; in whatever thread that is."""

    __slots__ = ("_make", "_source")

    def __init__(self, source: Mapping[str, T], make: Callable[[T], V]) -> None:
        self._source = source
        self._make: Callable[[T], V] = make

    def __getitem__(self, key: str) -> V:
        return self._make(self._source[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)
