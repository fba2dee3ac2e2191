"""The property string of a message: its text form, and the names that carry meaning.

Touches  nothing.
Form     name U+0001 value U+0002, repeated. Older clients leave out the last U+0002; readers take both.

Invariants
- decode_properties(encode_properties(p)) == p when no name or value is empty or holds a separator.
- Every text can be decoded; broken pieces are left out, the last of several equal names wins.

Everything here without a leading underscore is for other rooms.
"""

from collections.abc import Mapping
from typing import Final

from aerobee_proto.errors import FormatError

PROPERTIES_SIZE_MAX: Final = 32767  # bytes; the length field of a record is a signed 16-bit integer

# Names that brokers and clients act upon.
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
INSTANCE_ID: Final = "INSTANCE_ID"
BUYER_ID: Final = "BUYER_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
DUP_INFO: Final = "DUP_INFO"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
REDIRECT: Final = "REDIRECT"
PROPERTY_FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
CRC32: Final = "__CRC32#"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
# Ours: the whole-record checksum, see records.py.
RECORD_CHECKSUM: Final = "__CRC32C"


# Some of them as records carry them.
KEYS_NAME: Final = KEYS.encode()
TAGS_NAME: Final = TAGS.encode()
UNIQ_KEY_NAME: Final = UNIQ_KEY.encode()


def encode_properties(properties: Mapping[str, str]) -> str:
    """The property string of `properties`, in their order, ending with the pair separator.

    Raises FormatError when a name or value holds a separator: readers would see other properties.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise FormatError(_separator_fault(properties))
    return text


def _separator_fault(properties: Mapping[str, str]) -> str:
    for name, value in properties.items():
        for part, text in (("name", name), ("value", value)):
            if "\x01" in text or "\x02" in text:
                return f"the {part} of property {name!r} holds U+0001 or U+0002, which separate properties"
    raise AssertionError("called without a fault")


def decode_properties(text: str) -> dict[str, str]:
    """The properties of a property string; never raises.

    Pieces without a separator and pieces with an empty name or value are left out.
    """
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Value of `name` in raw property bytes without decoding the rest; None when absent or empty.

    The last of several equal names wins, as in decode_properties.
    """
    entry = name + b"\x01"
    end = len(properties)
    while True:
        at = properties.rfind(entry, 0, end)
        if at < 0:
            return None
        if at == 0 or properties[at - 1] == 2:
            start = at + len(entry)
            stop = properties.find(b"\x02", start)
            value = properties[start:] if stop < 0 else properties[start:stop]
            if value:
                return value
        end = at + len(entry) - 1


def remove_property(properties: bytes, name: bytes) -> bytes:
    """Raw property bytes without any entry of `name`; the same object when there is none."""
    entry = name + b"\x01"
    if entry not in properties:
        return properties
    pieces = properties.split(b"\x02")
    return b"\x02".join([piece for piece in pieces if not piece.startswith(entry)])


def split_keys(keys: str) -> list[str]:
    """The single lookup keys of a KEYS value: its pieces between blanks, empty ones left out."""
    return [key for key in keys.split(" ") if key]
