"""What goes into the store and what it answers: one object per message, so structs made in C.

Making both costs 0.14 us a message as msgspec structs, 0.44 us as slotted classes.

Touches  nothing.
"""

from enum import IntEnum
from typing import Final

import msgspec

__all__ = ["RECORD_EXTRA_MAX", "Appended", "Arrival", "NewMessage", "PutStatus"]

# A record, or a batch of them, may be this much longer than the longest body.
RECORD_EXTRA_MAX: Final = 65_536

# (topic, queue_id, max_offset after the arrival, the new entries as packed in the queue; consume_queue.tags_of()).
# One for each queue of each append: to name the fields takes 0.3 us more.
Arrival = tuple[str, int, int, bytes]


class PutStatus(IntEnum):
    """What became of one message."""

    PUT_OK = 0
    MESSAGE_ILLEGAL = 1
    PROPERTIES_SIZE_EXCEEDED = 2
    CREATE_MAPPED_FILE_FAILED = 3


class NewMessage(msgspec.Struct, gc=False):
    """One message to append; the broker builds it, the store only reads it.

    Hosts are packed (4 or 16 bytes of address, 4 of port). `properties` are the final raw bytes, empty or
    ending with 0x02. `tag_hash` is the Java hash of the TAGS property, `keys` its raw KEYS text,
    `unique_key` its UNIQ_KEY. Timestamps are ms since the epoch.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes
    tag_hash: int
    keys: str | None
    unique_key: str | None


class Appended(msgspec.Struct, gc=False):
    """What became of one message: where it lies, or why it was refused.

    For a refused message offsets are -1 and the size is 0. `store_timestamp` is in ms since the epoch.
    """

    status: PutStatus
    physical_offset: int
    queue_offset: int
    size: int
    store_timestamp: int
