"""Rows as entries of batch sends, a column at a time: 1 us a row, where a row as Python values takes 9.

Touches  arrays it is given. Layout of an entry: aerobee_proto.batch.

Only plain rows are encoded here: those whose entry is nothing but their columns put together. Which rows are odd, for
example because a tag holds a separator, is told; the careful way takes them, and refuses those that no broker would
take.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerobee_proto.batch import ENTRY_OVERHEAD
from aerobee_proto.properties import KEYS, PROPERTIES_SIZE_MAX, TAGS, UNIQ_KEY
from aerobee_store.records.property_columns import Ints

__all__ = ["PlainRows", "encode_plain"]

# size, magic, body_crc, flag, body_length
_HEAD: Final = np.dtype([("size", ">i4"), ("zeros", "V12"), ("body_length", ">i4")])


class PlainRows(NamedTuple):
    """The encoded entries of the plain rows and their sizes, both in bytes; how many bytes of them are bodies; and
    which of all rows are odd."""

    entries: pa.Array
    sizes: Ints
    body_bytes: int
    odd: pa.Array


def encode_plain(
    body: pa.Array,
    tags: pa.Array | None,
    keys: pa.Array | None,
    more: Sequence[str] | None,
    unique_keys: Sequence[str],
    *,
    body_size_max: int,
) -> PlainRows:
    """Encode what is plain.

    `body` holds binary or text, `tags` text, `keys` lists of text or one text a row; all may hold nulls. `more` are
    properties in property form, one text a row, and as `unique_keys` known to be right. Bodies that are empty or have
    more than `body_size_max` bytes are odd.
    """
    body = body.cast(pa.binary())
    body_sizes = pc.fill_null(pc.binary_length(body), 0)
    odd = [pc.equal(body_sizes, 0), pc.greater(body_sizes, body_size_max)]
    parts: list[pa.Array | pa.Scalar] = [
        _text(f"{UNIQ_KEY}\x01"),
        pa.array(unique_keys, pa.string()),
        _text("\x02"),
    ]
    if tags is not None:
        tags = tags.cast(pa.string())
        odd.append(_separates(tags))
        parts.append(_property(TAGS, tags))
    if keys is not None:
        joined, unclear = _joined(keys)
        odd += [unclear, _separates(joined)]
        parts.append(_property(KEYS, joined))
    if more is not None:
        parts.append(pa.array(more, pa.string()))
    properties = pc.binary_join_element_wise(*parts, _text("")).cast(pa.binary())
    odd.append(pc.greater(pc.binary_length(properties), PROPERTIES_SIZE_MAX))
    # Null where there are no tags or keys to be odd.
    is_odd = reduce(pc.or_, [pc.fill_null(one, False) for one in odd])
    if pc.any(is_odd).as_py():
        plain = pc.invert(is_odd)
        body, properties = body.filter(plain), properties.filter(plain)
    return PlainRows(*_encoded(body, properties), is_odd)


def _encoded(body: pa.Array, properties: pa.Array) -> tuple[pa.Array, Ints, int]:
    body_sizes = pc.binary_length(body).to_numpy()
    property_sizes = pc.binary_length(properties).to_numpy()
    sizes = ENTRY_OVERHEAD + body_sizes.astype(np.int64) + property_sizes
    head = np.zeros(len(sizes), _HEAD)
    head["size"] = sizes
    head["body_length"] = body_sizes
    lengths = property_sizes.astype(">i2")
    entries = pc.binary_join_element_wise(
        _fixed(head), body, _fixed(lengths), properties, pa.scalar(b"", pa.binary())
    )
    return entries, sizes, int(body_sizes.sum())


def _fixed(values: NDArray[Any]) -> pa.Array:
    """The bytes of each value."""
    width = values.dtype.itemsize
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.string())


def _property(name: str, values: pa.Array) -> pa.Array:
    """The property in its form; nothing for rows that have none."""
    filled = pc.binary_join_element_wise(_text(f"{name}\x01"), values, _text("\x02"), _text(""))
    return pc.if_else(pc.fill_null(pc.equal(values, ""), True), "", filled)


def _joined(keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Keys with blanks between, and the rows of which it is not clear that these are they."""
    if not pa.types.is_list(keys.type):
        return keys.cast(pa.string()), pa.array(np.zeros(len(keys), np.bool_))
    # Spark's lists may have elements that cannot be null, for which there is no such function.
    joined = pc.binary_join(keys.cast(pa.list_(pa.string())), " ")
    # Null or empty keys among others are left out by the careful way.
    holes = pc.and_(pc.is_valid(keys), pc.is_null(joined))
    for edge in (pc.starts_with(joined, " "), pc.ends_with(joined, " "), pc.match_substring(joined, "  ")):
        holes = pc.or_(holes, pc.fill_null(edge, False))
    return joined, holes


def _separates(values: pa.Array) -> pa.Array:
    """Rows whose text holds a byte that separates properties."""
    return pc.or_(pc.match_substring(values, "\x01"), pc.match_substring(values, "\x02"))
