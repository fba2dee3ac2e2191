"""What the appender knows of a queue that messages go to, kept in the queue itself.

Touches  nothing. None of it is on disk: the appender sets it at the first message of a run.

It is a part of the queue and no object beside it, because with thousands of queues each object more has to be brought
from memory for each message: of its own it cost 5 % of a send with one topic, and 10 % with a thousand
(bench/profile_send.py --topics).
"""

__all__ = ["AppendState"]


class AppendState:
    """Where a queue goes on. The appender's alone, but for dispatch, which asks whether the queue is deleted."""

    __slots__ = ("deleted", "fresh", "is_special", "magic", "next_offset", "prefix")

    def __init__(self) -> None:
        # One past the newest message in the log, never below max_offset of the queue; the difference was appended and
        # is not dispatched. -1: not in use yet.
        self.next_offset = -1
        # How the topic is written into records: with which magic, and its length field and name.
        self.magic = 0
        self.prefix = b""
        # Its entries are not made of place, size and tag of a message alone.
        self.is_special = False
        # Packed entries of the batch that is being appended; empty in between.
        self.fresh = b""
        # The topic was deleted while messages of it waited for dispatch; they have no queue any more.
        self.deleted = False
