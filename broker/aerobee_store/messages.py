"""What goes into the store and what it answers: one object per message, so plain and slotted.

Touches  nothing.
"""

from enum import IntEnum

__all__ = ["Appended", "Arrival", "NewMessage", "PutStatus"]

# (topic, queue_id, max_offset after the arrival, tag hashes of the new entries in order)
Arrival = tuple[str, int, int, list[int]]


class PutStatus(IntEnum):
    """What became of one message."""

    PUT_OK = 0
    MESSAGE_ILLEGAL = 1
    PROPERTIES_SIZE_EXCEEDED = 2
    CREATE_MAPPED_FILE_FAILED = 3


class NewMessage:
    """One message to append; the broker builds it, the store only reads it.

    Hosts are packed (4 or 16 bytes of address, 4 of port). `properties` are the final raw bytes, empty or
    ending with 0x02. `tag_hash` is the Java hash of the TAGS property, `keys` its raw KEYS text,
    `unique_key` its UNIQ_KEY. `topic_bytes` is the UTF-8 of `topic`. Timestamps are ms since the epoch.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "keys",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "store_host",
        "sys_flag",
        "tag_hash",
        "topic",
        "topic_bytes",
        "unique_key",
    )

    def __init__(
        self,
        topic: str,
        topic_bytes: bytes,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        body: bytes,
        properties: bytes,
        tag_hash: int,
        keys: str | None,
        unique_key: str | None,
    ) -> None:
        self.topic = topic
        self.topic_bytes = topic_bytes
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.body = body
        self.properties = properties
        self.tag_hash = tag_hash
        self.keys = keys
        self.unique_key = unique_key


class Appended:
    """What became of one message: where it lies, or why it was refused.

    For a refused message offsets are -1 and the size is 0. `store_timestamp` is in ms since the epoch.
    """

    __slots__ = ("physical_offset", "queue_offset", "size", "status", "store_timestamp")

    def __init__(
        self, status: PutStatus, physical_offset: int, queue_offset: int, size: int, store_timestamp: int
    ) -> None:
        self.status = status
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.size = size
        self.store_timestamp = store_timestamp

    def __repr__(self) -> str:
        return (
            f"Appended({self.status.name}, physical_offset={self.physical_offset},"
            f" queue_offset={self.queue_offset}, size={self.size})"
        )
