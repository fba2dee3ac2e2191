"""Property texts as Java reads them: whole numbers of 32 and 64 bits, doubles, truth; and how doubles are ordered.

The official filter leaves this to Java's library, so an expression means what that library does: `1_000` is no number,
` 7 ` is a double but no whole number, `0x1p4` and `NaN` are doubles, and NaN is greater than everything.
Only texts longer than any real number are refused here where Java reads on.
"""

import re
from math import copysign, inf, isnan
from typing import Final

from aerobee_proto.errors import AerobeeError

__all__ = [
    "INT_RANGE",
    "LONG_RANGE",
    "SqlValueError",
    "order_doubles",
    "text_to_bool",
    "text_to_double",
    "text_to_whole",
]

INT_RANGE: Final = range(-(2**31), 2**31)
LONG_RANGE: Final = range(-(2**63), 2**63)
NUMBER_CHARS_MAX: Final = 1024  # a longer text is no number here, so that nobody makes brokers read long ones
WHOLE_DIGITS_MAX: Final = 64  # without leading zeros; far more than 64 bits have
VALUE_EXCERPT_CHARS: Final = 40

# Java's digits are one UTF-16 unit each: those beyond U+FFFF are none.
_WHOLE: Final = re.compile(r"[+-]?[^\D\U00010000-\U0010ffff]++")
_DOUBLE: Final = re.compile(
    r"""
    [\x00-\x20]*+
    (?: (?P<name>[+-]?(?:NaN|Infinity))
      | (?P<decimal>[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?
      | (?P<hex>[+-]?0[xX](?:[0-9a-fA-F]++\.?[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?
    )
    [\x00-\x20]*+
    """,
    re.VERBOSE,
)


class SqlValueError(AerobeeError):
    """A property's value cannot be compared as the expression asks; such a message does not match."""


def text_to_whole(text: str, bounds: range) -> int:
    """The whole number that a text is, within `bounds`; SqlValueError when it is none."""
    if len(text) <= NUMBER_CHARS_MAX and _WHOLE.fullmatch(text):
        sign = text[0] if text[0] in "+-" else ""
        digits = text[len(sign) :].lstrip("0")
        if len(digits) <= WHOLE_DIGITS_MAX:
            value = int(sign + (digits or "0"))
            if value in bounds:
                return value
    raise SqlValueError(f"{_shown(text)} is no whole number of {32 if bounds is INT_RANGE else 64} bits")


def text_to_double(text: str) -> float:
    """The double that a text is; SqlValueError when it is none."""
    found = _DOUBLE.fullmatch(text) if len(text) <= NUMBER_CHARS_MAX else None
    if found is None:
        raise SqlValueError(f"{_shown(text)} is no number")
    if (digits := found["hex"]) is None:
        return float(found["decimal"] or found["name"])
    try:
        return float.fromhex(digits)
    except OverflowError:
        return -inf if digits[0] == "-" else inf


def text_to_bool(text: str) -> bool:
    """True for `true` in any case, False for anything else."""
    return text.lower() == "true"


def order_doubles(left: float, right: float) -> int:
    """-1, 0 or 1: numbers by size, -0.0 below 0.0, NaN equal to itself and above all else."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left != 0 else int(copysign(1, left) - copysign(1, right)) // 2
    return isnan(left) - isnan(right)


def _shown(text: str) -> str:
    return repr(text[:VALUE_EXCERPT_CHARS])
