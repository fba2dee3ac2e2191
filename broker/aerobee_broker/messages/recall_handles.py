"""What a producer gets for a timer message and gives back to recall it.

    base64url of `v1 <topic> <broker name> <ms since the epoch> <unique key>`

Its time lies in the message's slot of the timer.

Touches  nothing.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from aerobee_broker.messages.stored_properties import whole_number
from aerobee_proto import properties
from aerobee_proto.properties import decode_properties
from aerobee_store.terms.messages import NewMessage

__all__ = ["RecallHandle", "read_recall_handle", "recall_handle"]

VERSION: Final = "v1"
HANDLE_CHARS_MAX: Final = 4096


class RecallHandle(NamedTuple):
    """What a handle says."""

    topic: str
    broker_name: str
    at_ms: int
    unique_key: str


def recall_handle(broker_name: str, topic: str, scheduled: NewMessage) -> str:
    """The handle of a scheduled timer message of `topic`."""
    mapping = decode_properties(scheduled.properties.decode("utf-8", "replace"))
    at_ms = int(mapping[properties.TIMER_OUT_MS]) + 1
    if not {properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS} & mapping.keys():
        at_ms = int(mapping[properties.TIMER_DELIVER_MS])  # exact: it may be recalled until then
    words = (VERSION, topic, broker_name, str(at_ms), scheduled.unique_key or "")
    return urlsafe_b64encode(" ".join(words).encode()).decode()


def read_recall_handle(text: str) -> RecallHandle | None:
    """None for what is no handle; -1 ms for one whose time is no number."""
    if not 0 < len(text) <= HANDLE_CHARS_MAX:
        return None
    try:
        words = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode().split(" ")
    except (binascii.Error, ValueError):
        return None
    if len(words) < 5 or words[0] != VERSION or not "".join(words).isprintable():
        return None
    at_ms = whole_number(words[3])
    return RecallHandle(words[1], words[2], -1 if at_ms is None else at_ms, words[4])
