"""Properties of many records at once, as columns: found by numpy among the bytes, without an object a property.

Touches  buffers it is given. A property string: name U+0001 value U+0002, and so on (aerobee_proto.properties).

Positions count in the buffer. What is found is what find_property() finds: of several with one name the last that is
not empty.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FieldReader", "Flags", "Ints", "PropertyColumns", "Texts", "within"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NAME_END: Final = 1
_VALUE_END: Final = 2


class FieldReader:
    """Fields of any width at any positions of a buffer."""

    __slots__ = ("bytes", "size", "view")

    def __init__(self, buffer: memoryview) -> None:
        self.view = buffer
        self.size = len(buffer)
        self.bytes: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)

    def at(self, dtype: str | np.dtype[Any], positions: Ints) -> NDArray[Any]:
        """The values of `dtype` that begin at `positions`."""
        kind = np.dtype(dtype)
        # As mere bytes: numpy copies these ten times as fast as structures and numbers of the other byte order.
        overlapping: NDArray[Any] = np.ndarray(
            (self.size - kind.itemsize + 1,), f"V{kind.itemsize}", buffer=self.view, strides=(1,)
        )
        return overlapping[positions].view(kind)

    def rows(self, positions: Ints, length: int) -> NDArray[np.uint8]:
        """The `length` bytes from each of `positions`, one row each."""
        found: NDArray[np.uint8] = self.bytes[positions[:, None] + np.arange(length)]
        return found

    def is_same(self, begins: Ints, lengths: Ints) -> bool:
        """Whether the bytes at all of these places, at least one, are the same text of at least a byte."""
        length = int(lengths[0])
        if not length or not (lengths == length).all():
            return False
        if length < 8 and int(begins.max()) + 8 <= self.size:
            few = self.at("<u8", begins) & np.uint64((1 << 8 * length) - 1)
            return bool((few == few[0]).all())
        width = min(8, 1 << (length.bit_length() - 1))
        for at in [*range(0, length - width, width), length - width]:
            words = self.at(f"<u{width}", begins + at)
            if not (words == words[0]).all():
                return False
        return True


class Texts(NamedTuple):
    """Values of a property: the record of each (by index, ascending), where it begins, its length in bytes."""

    records: Ints
    begins: Ints
    lengths: Ints

    def where(self, chosen: Flags) -> "Texts":
        return Texts(self.records[chosen], self.begins[chosen], self.lengths[chosen])


class PropertyColumns:
    """The property strings that lie in ranges [begin, end) of a buffer, ascending and apart; one range a record."""

    __slots__ = ("_begins", "_ends", "_name_ends", "_reader", "_separators")

    def __init__(self, reader: FieldReader, begins: Ints, ends: Ints) -> None:
        self._reader = reader
        self._begins = begins
        self._ends = ends
        self._separators: tuple[Ints, Ints] | None = None
        self._name_ends: tuple[Ints, Ints] | None = None

    def values(self, name: bytes) -> Texts:
        """What find_property() finds under `name` (4 or 8 bytes) in each record that has it."""
        at, records = self.name_ends()
        reader, width = self._reader, len(name)
        word = np.frombuffer(name, f"<u{width}")[0]
        # Its last byte tells most other names apart, and one byte is fetched in a quarter of the time.
        likely = np.flatnonzero(reader.bytes[at - 1] == name[-1])
        named = likely[reader.at(f"<u{width}", np.maximum(at[likely] - width, 0)) == word]
        following = self._value_ends(named)
        at, records = at[named], records[named]
        begins = at - width
        first = self._begins[records]
        whole = (begins == first) | ((begins > first) & (reader.bytes[begins - 1] == _VALUE_END))
        lengths = np.minimum(following, self._ends[records]) - at - 1
        filled = whole & (lengths > 0)
        # Of several the last counts, and of several assignments to one place too.
        last = np.full(len(self._begins), -1, np.int64)
        last[records[filled]] = np.flatnonzero(filled)
        chosen = last[last >= 0]
        return Texts(records[chosen], at[chosen] + 1, lengths[chosen])

    def _value_ends(self, chosen: Ints) -> Ints:
        """Where the next byte that ends a value is, for the `chosen` of name_ends()."""
        at = self.name_ends()[0]
        ends = self.separators()[1]
        if len(ends) == len(at) + 1 and (at < ends[:-1]).all() and (ends[:-2] < at[1:]).all():
            return ends[:-1][chosen]  # they alternate, as nearly always
        found: Ints = ends[np.searchsorted(ends, at[chosen])]
        return found

    def name_ends(self) -> tuple[Ints, Ints]:
        """Positions of the bytes that end names, and the record of each."""
        if self._name_ends is None:
            self._name_ends = within(self.separators()[0], self._begins, self._ends)
        return self._name_ends

    def separators(self) -> tuple[Ints, Ints]:
        """Positions of all bytes of the buffer from the first property to the last that end a name, and of all that
        end a value; the latter with one beyond all."""
        if self._separators is None:
            begin, end = (int(self._begins[0]), int(self._ends[-1])) if len(self._begins) else (0, 0)
            piece = self._reader.bytes[begin:end]
            values = np.append(np.flatnonzero(piece == _VALUE_END), end - begin)
            self._separators = np.flatnonzero(piece == _NAME_END) + begin, values + begin
        return self._separators


def within(positions: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Those of the ascending positions that lie in ranges [begin, end), ascending and apart; the range of each."""
    count = len(begins)
    if len(positions) and count and not len(positions) % count:
        # As many in each, nearly always.
        rows = positions.reshape(count, -1)
        if (rows[:, 0] >= begins).all() and (rows[:, -1] < ends).all():
            return positions, np.repeat(np.arange(count), rows.shape[1])
    low, high = np.searchsorted(positions, begins), np.searchsorted(positions, ends)
    counts = high - low
    ranges = np.repeat(np.arange(count), counts)
    shifts = low - np.concatenate([[0], np.cumsum(counts)[:-1]])
    inside: Ints = positions[np.arange(len(ranges)) + np.repeat(shifts, counts)]
    return inside, ranges
