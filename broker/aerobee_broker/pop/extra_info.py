"""What a popped message's consumer is told to say when it acknowledges, and the names of POP's retry topics.

Touches  nothing.

    extraInfo         "<check-point offset> <pop time> <invisible ms> <revive queue> <retry mark> <broker> <queue id>"
                      and, blank-separated too, " <offset>" of the message
    startOffsetInfo   "<retry mark> <queue id> <check-point offset>", for each queue read, joined by ";"
    msgOffsetInfo     "<retry mark> <queue id> <offset>,<offset>,..."
    orderCountInfo    "<retry mark> <queue id> <times handed out before>", or "qo<queue id>%<offset>" for one message

The retry mark says which topic the queue belongs to: 0 the topic itself, 1 and 2 the retry topic that a group has
for this topic, by its older (`%RETRY%group_topic`) or newer (`%RETRY%group+topic`) name. In a queue that is read in
order there is no check-point: the revive queue is 999.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import RETRY_PREFIX

__all__ = [
    "ORDERED",
    "PopInfo",
    "extra_info",
    "message_offsets",
    "normal_topic",
    "order_count",
    "parse_extra_info",
    "pop_retry_topic",
    "real_topic",
    "retry_mark",
    "start_offset",
]

ORDERED: Final = 999
NOT_RETRIED: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
SIGNS: Final = {RETRY_V1: "_", RETRY_V2: "+"}
SHOWN_SIZE_MAX: Final = 120


class PopInfo(NamedTuple):
    """An extraInfo, read."""

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker_name: str
    queue_id: int


def pop_retry_topic(group: str, topic: str, *, v2: bool) -> str:
    """The topic in which a group's unacknowledged messages of a topic come back."""
    return f"{RETRY_PREFIX}{group}{SIGNS[RETRY_V2 if v2 else RETRY_V1]}{topic}"


def real_topic(group: str, topic: str, mark: str) -> str:
    """The topic whose queue is meant. RequestError: there is no such retry mark."""
    if mark == NOT_RETRIED:
        return topic
    if mark in SIGNS:
        return pop_retry_topic(group, topic, v2=mark == RETRY_V2)
    raise RequestError(ResponseCode.INVALID_PARAMETER, f"retry mark {mark[:20]!r} is not 0, 1 or 2")


def retry_mark(topic: str) -> str:
    """Which kind of topic this is, as clients are told."""
    if not topic.startswith(RETRY_PREFIX):
        return NOT_RETRIED
    return RETRY_V2 if "+" in topic else RETRY_V1


def normal_topic(group: str, topic: str) -> str:
    """The topic whose messages a retry topic of the group holds; any other topic is its own."""
    for sign in SIGNS.values():
        prefix = f"{RETRY_PREFIX}{group}{sign}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def parse_extra_info(text: str) -> PopInfo:
    """Read an extraInfo. RequestError INVALID_PARAMETER when it is none."""
    fields = text.split(" ")
    try:
        start, pop_time, invisible_ms, revive_queue, mark, broker_name, queue_id = fields[:7]
        return PopInfo(
            int(start),
            int(pop_time),
            int(invisible_ms),
            int(revive_queue),
            mark,
            broker_name,
            int(queue_id),
        )
    except ValueError:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"extraInfo {text[:SHOWN_SIZE_MAX]!r} is not what this broker hands out with popped messages",
        ) from None


def extra_info(info: PopInfo, offset: int) -> str:
    """The extraInfo of one message."""
    return " ".join([str(field) for field in info] + [str(offset)])


def start_offset(topic: str, queue_id: int, offset: int) -> str:
    """One queue's part of startOffsetInfo."""
    return f"{retry_mark(topic)} {queue_id} {offset}"


def message_offsets(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    """One queue's part of msgOffsetInfo."""
    return f"{retry_mark(topic)} {queue_id} {','.join(map(str, offsets))}"


def order_count(topic: str, queue_id: int, offset: int | None, count: int) -> str:
    """Part of orderCountInfo for a message, or for the queue (`offset` None)."""
    place = str(queue_id) if offset is None else f"qo{queue_id}%{offset}"
    return f"{retry_mark(topic)} {place} {count}"
