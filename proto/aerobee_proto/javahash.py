"""Java's string hash, which tag codes and index key hashes are made of.

Touches  nothing; numpy is imported only when many texts are hashed at once.
Hash     h = 31 * h + c over the UTF-16 code units of the text, wrapped to a signed 32-bit integer.

Invariants
- java_hash_many(texts)[i] == java_hash(texts[i]) for every text, also with unpaired surrogates.
- index_key_hash(text) is never negative.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "index_key_hash",
    "index_key_hash_many",
    "index_key_hash_of",
    "java_hash",
    "java_hash_many",
    "tag_hash",
]

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
# Code units hashed by one pass of java_hash_many: it bounds the tables of powers to 256 KiB each.
_UNITS_PER_PASS_MAX: Final = 1 << 16
_TAGS_REMEMBERED_MAX: Final = 8192


def java_hash(text: str) -> int:
    """Hash of `text` as Java's String.hashCode gives it: a signed 32-bit integer."""
    value = _extended(0, text)
    return value - (1 << 32) if value & _SIGN else value


def _extended(value: int, text: str) -> int:
    """The hash of what `value` is the hash of, followed by this text, as 32 bits."""
    units: bytes | memoryview
    if text.isascii():
        units = text.encode("ascii")
    else:
        units = memoryview(text.encode("utf-16", "surrogatepass"))[2:].cast("H")  # machine order, no mark
    for unit in units:
        value = (31 * value + unit) & _MASK
    return value


def index_key_hash(text: str) -> int:
    """Hash of an index key text (`topic#key`): the absolute value of java_hash, 0 where that has none."""
    return _of_key(_extended(0, text))


def index_key_hash_of(topic: str, key: str) -> int:
    """As index_key_hash() of `topic#key`; the part of a topic that was asked for lately is known."""
    return _of_key(_extended(_topic_hash(topic), key))


def _of_key(value: int) -> int:
    return 0 if value == _SIGN else min(value, (1 << 32) - value)


@lru_cache(maxsize=_TAGS_REMEMBERED_MAX)
def _topic_hash(topic: str) -> int:
    return _extended(0, f"{topic}#")


@lru_cache(maxsize=_TAGS_REMEMBERED_MAX)
def tag_hash(tag: str | None) -> int:
    """Tag code of a queue entry: java_hash of the whole TAGS value, 0 without one."""
    return java_hash(tag) if tag else 0


class _Powers:
    """31**i and 31**-i modulo 2**32 for i < _UNITS_PER_PASS_MAX, as numpy uint32 arrays."""

    _INVERSE_OF_31: Final = pow(31, -1, 1 << 32)
    _lock: Final = threading.Lock()
    _made: "_Powers | None" = None

    def __init__(self) -> None:
        self.up = _powers_of(31)
        self.down = _powers_of(self._INVERSE_OF_31)

    @classmethod
    def get(cls) -> "_Powers":
        """The one table, made by whoever asks first."""
        with cls._lock:
            if cls._made is None:
                cls._made = cls()
            return cls._made


def _powers_of(base: int) -> "NDArray[np.uint32]":
    import numpy as np

    factors = np.full(_UNITS_PER_PASS_MAX, base, dtype=np.uint32)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint32)


def _hash_pass(units: "NDArray[Any]", lengths: "NDArray[np.int64]") -> "NDArray[np.int32]":
    """Hash texts that lie behind each other; together at most _UNITS_PER_PASS_MAX code units.

    With D(i) = sum of unit(k) * 31**-k over the first i units of the joined texts, the hash of the text in
    [start, end) is 31**(end - 1) * (D(end) - D(start)): three passes over the units, no loop over texts.
    """
    import numpy as np

    powers = _Powers.get()
    sums = np.zeros(len(units) + 1, dtype=np.uint32)
    np.cumsum(units * powers.down[: len(units)], dtype=np.uint32, out=sums[1:])
    ends = np.cumsum(lengths)
    scale = powers.up[np.maximum(ends - 1, 0)]
    hashes: NDArray[np.uint32] = (sums[ends] - sums[ends - lengths]) * scale
    return hashes.view(np.int32)


def java_hash_many(texts: Sequence[str]) -> "NDArray[np.int32]":
    """java_hash of every text, in order, as an int32 array of len(texts).

    A batch of 20,000 texts of 45 characters takes 0.3 to 0.5 us a text, against 2.4 us one by one.
    """
    import numpy as np

    joined = "".join(texts)
    units: NDArray[Any]
    if joined.isascii():
        units = np.frombuffer(joined.encode(), dtype=np.uint8)
    else:
        units = np.frombuffer(joined.encode("utf-16-le", "surrogatepass"), dtype="<u2")
    if len(units) > _UNITS_PER_PASS_MAX:
        if len(texts) == 1:
            return np.array([java_hash(joined)], dtype=np.int32)
        half = len(texts) // 2
        return np.concatenate((java_hash_many(texts[:half]), java_hash_many(texts[half:])))
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    if len(units) > len(joined):
        # Some characters have two units.
        characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        counts = np.concatenate(([0], np.cumsum(1 + (characters > 0xFFFF))))
        ends = np.cumsum(lengths)
        lengths = counts[ends] - counts[ends - lengths]
    return _hash_pass(units, lengths)


def index_key_hash_many(texts: Sequence[str]) -> "NDArray[np.int32]":
    """index_key_hash of every text, in order, as an int32 array of len(texts)."""
    import numpy as np

    hashes = java_hash_many(texts)
    hashes[hashes == np.int32(-_SIGN)] = 0
    return np.abs(hashes)
