"""From the properties that a client sent to the bytes that are stored.

Touches  nothing.

The broker adds where a message was taken (`MSG_REGION`, `TRACE_ON`, `CLUSTER`) and a `UNIQ_KEY` where the
client gave none; it takes out `POP_CK` and the checksums, which belong to one record only. Everything else is stored
as it was sent, `WAIT` too, which steers the answer to the send and nothing later. Most messages need nothing but a
suffix: their text is read once and kept as it is (1.0 us against 2.9 us for the general way, 3 properties).

Invariants
- The mapping that is returned, with what is added to every message, and the bytes that are stored say the same.
- Stored bytes are empty or end with 0x02.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from aerobee_proto import properties as names
from aerobee_proto.javahash import tag_hash

__all__ = ["StoredProperties", "join_stored", "stored_form", "whole_number"]

NUMBER: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
# Names that the broker sets or removes: their presence calls for the general way.
_OWN_NAMES: Final = frozenset(
    {names.MSG_REGION, names.TRACE_ON, names.CLUSTER, names.POP_CK, names.RECORD_CHECKSUM, names.CRC32}
)
_REMOVED_NAMES: Final = frozenset({names.POP_CK, names.RECORD_CHECKSUM, names.CRC32})


class StoredProperties:
    """Builds the stored form; one for the broker's life, or until its region or cluster name changes."""

    def __init__(
        self, *, region: str, trace_on: bool, cluster: str, new_unique_key: Callable[[], str]
    ) -> None:
        self.added = {  # to every message
            names.MSG_REGION: region,
            names.TRACE_ON: "true" if trace_on else "false",
            names.CLUSTER: cluster,
        }
        self.suffix = _join(self.added).encode()  # what every message gets, in bytes
        self._new_unique_key = new_unique_key

    def prepare(self, text: str) -> tuple[bytes, dict[str, str]]:
        """Stored bytes and the mapping of one message's properties: it may lack `added`."""
        pieces = text.split("\x02")
        if not pieces[-1]:
            del pieces[-1]
        mapping: dict[str, str] = {}
        for piece in pieces:
            name, _, value = piece.partition("\x01")
            if not value:
                return self.prepare_any(text)
            mapping[name] = value
        if (
            len(mapping) != len(pieces)
            or names.UNIQ_KEY not in mapping
            or "" in mapping
            or not _OWN_NAMES.isdisjoint(mapping)
        ):
            return self.prepare_any(text)
        if text[-1] != "\x02":
            text += "\x02"
        return text.encode("utf-8", "replace") + self.suffix, mapping

    def prepare_any(self, text: str) -> tuple[bytes, dict[str, str]]:
        """The general way: read, change, write anew."""
        mapping = names.decode_properties(text)
        if names.UNIQ_KEY not in mapping:
            mapping[names.UNIQ_KEY] = self._new_unique_key()
        mapping |= self.added
        kept = {name: value for name, value in mapping.items() if name not in _REMOVED_NAMES}
        return _join(kept).encode("utf-8", "replace"), mapping


def join_stored(mapping: Mapping[str, str]) -> bytes:
    """The stored bytes of properties that came out of a record or a request, without what is never stored."""
    kept = {name: value for name, value in mapping.items() if name not in _REMOVED_NAMES and value}
    return _join(kept).encode("utf-8", "replace")


def stored_form(mapping: Mapping[str, str]) -> tuple[bytes, int, str | None, str | None]:
    """The last fields of a NewMessage with these properties: stored bytes, tag hash, KEYS and UNIQ_KEY."""
    return (
        join_stored(mapping),
        tag_hash(mapping.get(names.TAGS)),
        mapping.get(names.KEYS),
        mapping.get(names.UNIQ_KEY),
    )


def whole_number(text: str) -> int | None:
    """The number that a property holds, within 64 bits; None for anything else."""
    if not NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _join(mapping: dict[str, str]) -> str:
    """As `encode_properties`, for values that came out of a property string and hold no separators."""
    return "".join([f"{name}\x01{value}\x02" for name, value in mapping.items()])
