"""Queues that a group pops in order: what it has, until when, and how often each message was handed out.

Touches  nothing by itself; `config_files` writes `config/consumerOrderInfo.json`.

    {"table": {"topic@group": {"<queue id>": {"popTime": ms, "i": invisible ms, "o": [first offset, distance, ...],
        "ot": {offset: visible again at}, "oc": {offset: times handed out before}, "l": last use ms,
        "cm": acknowledged as bits, "a": attempt id}}}}

A queue is blocked while a message of its last pop is neither acknowledged nor visible again. The group's offset
stands at the first message that is not acknowledged; everything from there is handed out again.

Invariants
- Offsets of one pop rise, and there are at most 64.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

import msgspec

from aerobee_broker.catalog.consumer_offsets import offset_key
from aerobee_broker.settings.config_files import table_of
from aerobee_proto import bodies
from aerobee_proto.bodies import Int, JsonBody, Long
from aerobee_proto.errors import FormatError
from aerobee_proto.names import GroupQueue

__all__ = ["OrderTable", "Ordered"]

UNUSED_MS_MAX: Final = 86_400_000
COUNT_MAX: Final = 64
SLACK: Final = 64
BITS_MASK: Final = (1 << 64) - 1


class _OrderInfo(JsonBody):
    """One queue as the file has it."""

    a: str | None = None
    cm: Long = 0
    i: Long | None = None
    l: Long = 0  # noqa: E741  # the file's name for it
    o: list[Long] = msgspec.field(default_factory=list)
    oc: dict[Long, Long] | None = None
    ot: dict[Long, Long] | None = None
    pop_time: Long = 0


class Ordered:
    """The last pop of a queue. Times in ms."""

    __slots__ = (
        "attempt_id",
        "bits",
        "counts",
        "invisible_ms",
        "offsets",
        "pop_time",
        "used_ms",
        "visible_at",
        "watched_ms",
    )

    def __init__(
        self,
        offsets: Sequence[int],
        *,
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None,
        used_ms: int,
    ) -> None:
        self.offsets = offsets
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.attempt_id = attempt_id
        self.used_ms = used_ms
        self.bits = 0
        self.counts: dict[int, int] = {}  # offset -> times handed out before, where that is not 0
        self.visible_at: dict[int, int] = {}  # offset -> changed time
        self.watched_ms = 0  # the end of the block that the table waits for

    def visible_ms(self, offset: int) -> int:
        """When a message that is not acknowledged may be handed out again."""
        return self.visible_at.get(offset, self.pop_time + self.invisible_ms)

    def missing(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for i, offset in enumerate(self.offsets) if not self.bits >> i & 1]

    def blocked_until(self) -> int:
        """When the queue may be popped again; 0 when everything is acknowledged."""
        return max((self.visible_ms(offset) for offset in self.missing()), default=0)

    def is_blocked(self, attempt_id: str | None, now_ms: int) -> bool:
        """Whether a pop must wait; the one with the same attempt id is the same pop again."""
        if self.attempt_id is not None and self.attempt_id == attempt_id:
            return False
        return now_ms < self.blocked_until()

    def next_offset(self) -> int:
        """The first offset that is not acknowledged, one past the last when all are."""
        missing = self.missing()
        return missing[0] if missing else self.offsets[-1] + 1


class OrderTable:
    """All queues that are popped in order. All calls from the event loop."""

    file_name = "consumerOrderInfo.json"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._queues: dict[GroupQueue, Ordered] = {}
        self._releases: list[tuple[int, GroupQueue]] = []
        self.revision = 0

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, queue: object) -> bool:
        """Whether the last pop of the queue is known."""
        return queue in self._queues

    @property
    def release_count(self) -> int:
        """Ends of blocks that are kept, those too that have been moved since; a few for each queue at most."""
        return len(self._releases)

    def is_blocked(self, queue: GroupQueue, attempt_id: str | None) -> bool:
        """Whether the group has messages of this queue that it must be done with first."""
        info = self._queues.get(queue)
        return info is not None and info.is_blocked(attempt_id, self._clock())

    def popped(
        self,
        queue: GroupQueue,
        offsets: Sequence[int],
        *,
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> dict[int, int]:
        """Remember a pop; offset -> times handed out before, where that is not 0."""
        old = self._queues.get(queue)
        info = Ordered(
            offsets,
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            attempt_id=attempt_id,
            used_ms=self._clock(),
        )
        if old is not None:
            if attempt_id is not None and old.attempt_id == attempt_id:
                info.counts = old.counts
            else:
                had = set(old.offsets)
                info.counts = {offset: old.counts.get(offset, 0) + 1 for offset in offsets if offset in had}
        self._queues[queue] = info
        self._changed(queue, info)
        return info.counts

    def ack(self, queue: GroupQueue, offset: int, pop_time: int) -> int | None:
        """Acknowledge; where the group stands now. None: another pop has the queue, nothing changes.

        LookupError: the last pop did not hand out this message.
        """
        info = self._queues.get(queue)
        if info is None:
            return offset + 1
        if info.pop_time != pop_time:
            return None
        info.bits |= 1 << info.offsets.index(offset) if offset in info.offsets else _no_such(offset)
        self._changed(queue, info)
        return info.next_offset()

    def change_visibility(self, queue: GroupQueue, offset: int, pop_time: int, visible_ms: int) -> None:
        """Let a message of the last pop be visible again at another time."""
        info = self._queues.get(queue)
        if info is not None and info.pop_time == pop_time and offset in info.offsets:
            info.visible_at[offset] = visible_ms
            self._changed(queue, info)

    def clear(self, queue: GroupQueue) -> None:
        """The queue may be popped from anywhere at once: the group was sent to another offset."""
        if self._queues.pop(queue, None) is not None:
            self.revision += 1

    def released(self, now_ms: int) -> list[GroupQueue]:
        """Queues whose block has ended by time since the last call."""
        found: dict[GroupQueue, None] = {}
        while self._releases and self._releases[0][0] <= now_ms:
            due_ms, queue = heappop(self._releases)
            info = self._queues.get(queue)
            if info is not None and info.blocked_until() == due_ms:
                found[queue] = None
        return list(found)

    def tidy(self, keeps: Callable[[GroupQueue], bool]) -> None:
        """Forget queues that are not to be kept, as they no longer exist, or were not used for a day."""
        oldest_ms = self._clock() - UNUSED_MS_MAX
        gone = [q for q, info in self._queues.items() if info.used_ms < oldest_ms or not keeps(q)]
        for queue in gone:
            self.clear(queue)

    def _changed(self, queue: GroupQueue, info: Ordered) -> None:
        self.revision += 1
        self._watch(queue, info)

    def _watch(self, queue: GroupQueue, info: Ordered) -> None:
        until_ms = info.blocked_until()
        if until_ms and until_ms != info.watched_ms:
            info.watched_ms = until_ms
            heappush(self._releases, (until_ms, queue))
        if len(self._releases) > 4 * len(self._queues) + SLACK:  # most of them are over before their time
            self._releases = [(one.watched_ms, q) for q, one in self._queues.items() if one.blocked_until()]
            heapify(self._releases)

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of `consumerOrderInfo.json`."""
        table: dict[str, dict[int, object]] = {}
        for (group, topic, queue_id), info in self._queues.items():
            table.setdefault(offset_key(group, topic), {})[queue_id] = _to_file(info)
        return {"table": table}

    def parse(self, content: Mapping[str, object]) -> dict[GroupQueue, Ordered]:
        """A file's content as the table keeps it. FormatError when it is not an order table."""
        parsed: dict[GroupQueue, Ordered] = {}
        for key, queues in table_of(content, "table").items():
            topic, at, group = str(key).partition("@")
            if not at or not isinstance(queues, Mapping):
                raise FormatError(f"order of {key} is not an object under topic@group")
            for queue_id, value in queues.items():
                info = bodies.convert(value, _OrderInfo)
                queue = GroupQueue(group, topic, bodies.convert(queue_id, Int))
                if info.o and len(info.o) <= COUNT_MAX:
                    parsed[queue] = _from_file(info)
        return parsed

    def take(self, parsed: dict[GroupQueue, Ordered]) -> None:
        """Put parsed content in place of the table's own."""
        self._queues = parsed
        self._releases = []
        for queue, info in parsed.items():
            self._watch(queue, info)


def _no_such(offset: int) -> int:
    raise LookupError(f"message {offset} was not handed out by the last pop of its queue")


def _to_file(info: Ordered) -> dict[str, object]:
    first, *others = info.offsets
    signed = info.bits - (BITS_MASK + 1) if info.bits >> 63 else info.bits
    found: dict[str, object] = {
        "cm": signed,
        "i": info.invisible_ms,
        "l": info.used_ms,
        "o": [first, *(offset - first for offset in others)],
        "popTime": info.pop_time,
    }
    if info.attempt_id is not None:
        found["a"] = info.attempt_id
    if info.counts:
        found["oc"] = info.counts
    if info.visible_at:
        found["ot"] = info.visible_at
    return found


def _from_file(info: _OrderInfo) -> Ordered:
    first, *others = info.o
    made = Ordered(
        [first, *(first + distance for distance in others)],
        pop_time=info.pop_time,
        invisible_ms=info.i or 0,
        attempt_id=info.a,
        used_ms=info.l,
    )
    made.bits = info.cm & BITS_MASK & ((1 << len(info.o)) - 1)
    made.counts = dict(info.oc or {})
    made.visible_at = dict(info.ot or {})
    return made
