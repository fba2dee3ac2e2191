"""Attributes of topics: what may be set, and the little language that changes them.

A change is `+key=value` (add or alter) or `-key` (remove); several are joined by commas. While a topic is being
created only `+` makes sense.

    parse_alterations("+message.type=FIFO,-reserve.time")  ->  {"+message.type": "FIFO", "-reserve.time": ""}
    alter({}, {"+message.type": "FIFO"}, creating=True)    ->  {"message.type": "FIFO"}

Everything that is wrong is a RequestError INVALID_PARAMETER that names the attribute and what is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_store.queues.batch_queues import BATCH_KIND

__all__ = ["MESSAGE_TYPES", "TOPIC_ATTRIBUTES", "alter", "parse_alterations"]

ATTRIBUTES_TEXT_CHARS_MAX: Final = 4096
MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


@dataclass(slots=True, frozen=True)
class Attribute:
    """What an attribute takes. `values` empty: an integer from `low` to `high`."""

    changeable: bool  # after the topic exists
    values: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    def problem(self, value: str) -> str | None:
        """What is wrong with this value; None when nothing is."""
        if self.values:
            return None if value in self.values else f"allowed: {', '.join(self.values)}"
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and self.low <= int(value) <= self.high:
            return None
        return f"allowed: an integer from {self.low} to {self.high}"


# RocketMQ also knows RocksDBCQ queues and COMPACTION; they are other kinds of files, not served.
TOPIC_ATTRIBUTES: Final[dict[str, Attribute]] = {
    "queue.type": Attribute(changeable=False, values=("SimpleCQ", BATCH_KIND)),
    "cleanup.policy": Attribute(changeable=False, values=("DELETE",)),
    "message.type": Attribute(changeable=True, values=MESSAGE_TYPES),
    "reserve.time": Attribute(changeable=True, low=-1, high=2**63 - 1),
}


def parse_alterations(text: str | None) -> dict[str, str]:
    """The changes that a text asks for, keys with their sign. Raises RequestError."""
    if not text:
        return {}
    if len(text) > ATTRIBUTES_TEXT_CHARS_MAX:
        raise _refused(
            f"attributes have {len(text)} characters, at most {ATTRIBUTES_TEXT_CHARS_MAX} are allowed"
        )
    alterations: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key[:1] not in "+-" or len(key) < 2 or bool(equals) is not key.startswith("+"):
            raise _refused(f"attribute {part[:80]!r} is neither +key=value nor -key")
        if key in alterations:
            raise _refused(f"attribute {key[1:]!r} is given twice")
        alterations[key] = value
    return alterations


def alter(
    current: Mapping[str, str],
    alterations: Mapping[str, str],
    *,
    creating: bool,
    known: Mapping[str, Attribute] = TOPIC_ATTRIBUTES,
) -> dict[str, str]:
    """The attributes after the changes. Raises RequestError; `current` is left alone."""
    result = dict(current)
    for signed, value in alterations.items():
        sign, key = signed[:1], signed[1:]
        attribute = known.get(key)
        if sign not in ("+", "-") or attribute is None:
            names = ", ".join(known) or "none"
            raise _refused(
                f"unknown attribute {signed[:80]!r}; known are +key=value or -key with key in: {names}"
            )
        if not creating and not attribute.changeable and current.get(key) != value:
            raise _refused(f"attribute {key} cannot be changed after creation")
        if sign == "-":
            if creating:
                raise _refused(f"attribute {key} cannot be removed: the topic does not exist yet")
            result.pop(key, None)
            continue
        problem = attribute.problem(value)
        if problem:
            raise _refused(f"attribute {key} cannot be {value[:80]!r}; {problem}")
        result[key] = value
    return result


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, remark)
