"""The JSON that RocketMQ writes into its files: standard but for numbers that stand bare as keys, `{0:"a"}`.

Touches  nothing.

For files there is no reading that takes what it can: a reader that steers round what it does not know would take a
damaged file for one with less in it. `javajson` reads what a peer's older library may send; this reads what a file may
hold, and nothing else.

Invariants
- Every byte is accounted for: what standard_form() gives is the text it got with quotes around bare keys, or it
  raises FormatError.
"""

import re
from typing import Any, Final

import msgspec

from aerobee_proto import javajson
from aerobee_proto.errors import FormatError

__all__ = ["read_written", "standard_form"]

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
REFERENCE: Final = b'"$ref"'

_PLAIN: Final = r'[^"\\\x00-\x1f]*'
_ESCAPE: Final = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_TOKEN: Final = re.compile(
    rf'(?P<blank>[ \t\r\n]+)|(?P<text>"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*")|(?P<mark>[{{}}\[\]:,])'
    r"|(?P<number>-?[0-9]+)(?![0-9.eE])|(?P<other>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)"
)


def read_written(raw: bytes) -> Any:
    """The value in a file that we or RocketMQ wrote. FormatError when a byte of it is of nobody's writing."""
    if (zero := raw.find(0)) >= 0:
        raise FormatError(f"it has zeros in it, from byte {zero} on, which no broker writes: it is damaged")
    raw = raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(str(error)) from error
    except RecursionError as error:
        raise FormatError("it is nested too deeply") from error


def _decode(raw: bytes) -> Any:
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raw = standard_form(raw)
        content = msgspec.json.decode(raw)
    if REFERENCE in raw:
        # RocketMQ's library writes what it has written before as a path to it.
        content = javajson.loads(raw)
        if REFERENCE in msgspec.json.encode(content):
            raise FormatError("a reference in it leads nowhere")
    return content


def standard_form(raw: bytes) -> bytes:
    """The same as standard JSON, to be read by a strict reader, which checks the rest."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}") from error
    pieces: list[str] = []
    open_marks: list[str] = []
    at_key = False
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise FormatError(f"not JSON at character {at}, near {text[at : at + 20]!r}")
        kind, piece, at = token.lastgroup, token.group(), token.end()
        if kind == "mark":
            at_key = _take_mark(piece, open_marks)
        elif kind == "number" and at_key:
            piece, at_key = f'"{piece}"', False
        elif kind != "blank":
            at_key = False
        pieces.append(piece)
    return "".join(pieces).encode()


def _take_mark(mark: str, open_marks: list[str]) -> bool:
    """Whether a key may follow."""
    if mark in "{[":
        open_marks.append(mark)
    elif mark in "}]" and open_marks:
        open_marks.pop()
        return False
    return mark in "{," and open_marks[-1:] == ["{"]
