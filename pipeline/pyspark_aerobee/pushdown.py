"""What filters of a Spark query say about messages, as far as a source can find them faster than Spark.

Touches  nothing.

Narrowing is never exact to the row: every filter stays with Spark too, and what is said here may only leave out
messages that no filter lets through.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

__all__ = ["Selection", "narrowed"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are wanted at most. Ranges are half-open; None is no bound."""

    topics: tuple[str, ...] | None = None
    queue_ids: frozenset[int] | None = None
    broker_names: frozenset[str] | None = None  # means nothing to a folder, which does not tell
    begin_offset: int | None = None  # queue offsets
    end_offset: int | None = None
    begin_ms: int | None = None  # store times
    end_ms: int | None = None
    tags: frozenset[str] | None = None


W = TypeVar("W", bound=Selection)


def narrowed(known: W, one: Filter) -> W:
    """What is known with one more filter; unchanged when it says nothing that a source knows."""
    if not isinstance(one, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return known
    column = one.attribute[0] if len(one.attribute) == 1 else ""
    if isinstance(one, EqualTo | In):
        values = frozenset(one.value if isinstance(one, In) else (one.value,)) - {None}
        return _among(known, column, values)
    is_lower = isinstance(one, GreaterThan | GreaterThanOrEqual)
    is_inclusive = isinstance(one, GreaterThanOrEqual | LessThanOrEqual)
    if column in ("queueOffset", "offset"):
        begin, end = (one.value, one.value + 1) if is_inclusive else (one.value + 1, one.value)
        return _with_offsets(known, begin if is_lower else None, None if is_lower else end)
    if column in ("storeTimestamp", "timestamp"):
        # Times in Spark are finer than the store's: one ms more on either side loses nothing.
        at_ms = int(one.value.timestamp() * 1000)
        return _with_times(known, at_ms - 1 if is_lower else None, None if is_lower else at_ms + 2)
    return known


def _among(known: W, column: str, values: frozenset[Any]) -> W:
    match column:
        case "topic":
            selected = values if known.topics is None else values & frozenset(known.topics)
            return replace(known, topics=tuple(sorted(selected)))
        case "brokerName":
            return replace(known, broker_names=_both(known.broker_names, values))
        case "queueId" | "partition":
            return replace(known, queue_ids=_both(known.queue_ids, values))
        case "tags":
            return replace(known, tags=_both(known.tags, values))
        case "queueOffset" | "offset" if values:
            return _with_offsets(known, min(values), max(values) + 1)
    return known


def _both(known: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if known is None else known & values


def _with_offsets(known: W, begin: int | None, end: int | None) -> W:
    return replace(
        known, begin_offset=_larger(known.begin_offset, begin), end_offset=_smaller(known.end_offset, end)
    )


def _with_times(known: W, begin: int | None, end: int | None) -> W:
    return replace(known, begin_ms=_larger(known.begin_ms, begin), end_ms=_smaller(known.end_ms, end))


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)
