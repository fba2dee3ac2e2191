"""Who calls, what readers ask for and what they are answered: values that say nothing of how they travel.

Touches  nothing.

A reader asks with a `Query` and is answered with one `Outcome`, at once or, while its query is held, later.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import msgspec

from aerobee_store.reading.get_message import GetResult

__all__ = ["Caller", "Done", "Failed", "Moved", "Outcome", "Query", "Read", "ReadKind", "Skipped"]


class Caller(Protocol):
    """Who asks or sends, told apart by identity. What is kept for a caller is dropped when it is gone."""

    @property
    def peer(self) -> str:
        """Its address, host:port, which its messages carry."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether it is gone: no answer reaches it any more."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether it takes its answers so slowly that nothing large should be added."""
        ...

    @property
    def was_overtaken(self) -> bool:
        """Whether what it asks now is older than something of its own that was handled before."""
        ...

    def __hash__(self) -> int: ...


class Query(msgspec.Struct, gc=False, kw_only=True):
    """A group's wish to read one queue on from an offset. It belongs to the use case from the call on."""

    group: str
    topic: str
    queue_id: int
    offset: int
    count: int  # messages at most
    wait_ms: int | None = None  # how long it may be held when there is nothing; None: not at all
    commit_offset: int | None = None  # taken before reading
    is_lite: bool = False
    # Its own filter, or what the group has registered, in this version or a later one.
    has_filter: bool = False
    expression: str | None = None
    expression_type: str | None = None
    subscription_version: int = 0


class ReadKind(IntEnum):
    """What a reader does next."""

    FOUND = 0  # take the messages
    LOOK_AGAIN = 1  # ask from the next offset on: nothing matched as far as was looked
    NOTHING_YET = 2  # ask again, or wait
    MOVED = 3  # ask from the next offset on: the one that was asked for is not in the queue


class Read(msgspec.Struct, gc=False):
    """What a read came to. `suggested_broker` is the broker id that the next one should go to."""

    kind: ReadKind
    result: GetResult
    suggested_broker: int


class Moved(msgspec.Struct, gc=False):
    """Nothing was read: somebody has sent the group to another offset."""

    offset: int
    min_offset: int
    max_offset: int


class Skipped(msgspec.Struct, gc=False):
    """Nothing was read, because the caller is congested: ask again from `offset` on."""

    offset: int


class Failed(msgspec.Struct, gc=False):
    """A query that was held could not be run again. Told where `error` is handled."""

    error: Exception


Outcome = Read | Moved | Skipped | Failed
Done = Callable[[Outcome], None]
