"""Words of an SQL92 filter, cut one by one.

They are cut when they are asked for: what follows a complete expression is never looked at, be it words or not.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from aerobee_proto.errors import FormatError

__all__ = ["KEYWORDS", "Kind", "SqlError", "Token", "Tokens"]

EXCERPT_CHARS: Final = 24

KEYWORDS: Final = frozenset(
    {
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)

# The longest match wins in the official filter; this order and these quantifiers give the same. The possessive
# ones (++, *+) keep a hostile text from being walked back.
_TOKEN: Final = re.compile(
    r"""
      (?P<skipped>   [ \t\n\r\f]++ | --[^\n\r]*+(?:\r\n|\n|\r) | /\*[^*]*+\*++(?:[^*/][^*]*+\*++)*+/ )
    | (?P<decimal>   [0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)? | \.[0-9]++(?:[eE][+-]?[0-9]++)?
                   | [0-9]++[eE][+-]?[0-9]++ )
    | (?P<integer>   0 | [1-9][0-9]*+[lL]? )
    | (?P<text>      '(?:''|[^'])*' )
    | (?P<word>      [A-Za-z_$][A-Za-z0-9_$]*+ )
    | (?P<sign>      <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE,
)


class SqlError(FormatError):
    """An expression that is no filter; the text says what is wrong, and where (`position`, counted from 0)."""

    def __init__(self, what: str, position: int = 0) -> None:
        super().__init__(what)
        self.position = position


class Kind(Enum):
    """What a token is. A keyword or sign is told by its text (in capitals)."""

    END = "the end"
    KEYWORD = "keyword"
    NAME = "name"
    INTEGER = "integer"
    DECIMAL = "decimal number"
    TEXT = "text"
    SIGN = "sign"


class Token(NamedTuple):
    """One word; `text` is as written, but in capitals for keywords and unquoted for texts."""

    kind: Kind
    text: str
    position: int


class Tokens:
    """The words of one expression: the one in hand, and the next ones as they are asked for."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._at = 0
        self.current = self._cut()

    def take(self) -> Token:
        """The token in hand; the next one takes its place. SqlError when there begins no token."""
        taken = self.current
        self.current = self._cut()
        return taken

    def fault(self, expected: str) -> SqlError:
        """What to raise when the token in hand is not what is needed."""
        token = self.current
        if token.kind is Kind.END:
            return SqlError(f"the expression ends where {expected} is needed", token.position)
        place = self._expression[token.position : token.position + EXCERPT_CHARS]
        return SqlError(
            f"at character {token.position + 1}: {place!r} stands where {expected} is needed", token.position
        )

    def _cut(self) -> Token:
        expression = self._expression
        while self._at < len(expression):
            found = _TOKEN.match(expression, self._at)
            if found is None:
                raise SqlError(self._no_token(), self._at)
            position, self._at = self._at, found.end()
            if found.lastgroup != "skipped":
                return _token(found, position)
        return Token(Kind.END, "", len(expression))

    def _no_token(self) -> str:
        at, rest = self._at, self._expression[self._at : self._at + EXCERPT_CHARS]
        if rest[0] == "'":
            return f"the text that begins at character {at + 1} has no closing quote: {rest!r}"
        if rest.startswith("/*"):
            return f"the comment that begins at character {at + 1} has no end: {rest!r}"
        hint = {"!": "; unequal is written <>", '"': "; texts are written in single quotes"}.get(rest[0], "")
        return f"at character {at + 1}: {rest!r} begins with no word, number, text or sign of a filter{hint}"


def _token(found: re.Match[str], position: int) -> Token:
    text = found.group()
    match found.lastgroup:
        case "word":
            upper = text.upper()
            return (
                Token(Kind.KEYWORD, upper, position)
                if upper in KEYWORDS
                else Token(Kind.NAME, text, position)
            )
        case "text":
            return Token(Kind.TEXT, text[1:-1].replace("''", "'"), position)
        case "integer":
            return Token(Kind.INTEGER, text, position)
        case "decimal":
            return Token(Kind.DECIMAL, text, position)
    return Token(Kind.SIGN, text, position)
