"""The part of YAML in which plain_acl.yml is written: blocks of mappings and lists, flow lists, quoted and plain texts.

Touches  nothing.

Anchors, tags, flow mappings, several documents, folded texts and escapes in double quotes are refused by their line:
who may come in does not hang on a guess. Values are texts, whole numbers, true, false, None, lists and mappings.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from aerobee_proto.errors import FormatError

__all__ = ["Value", "read_yaml", "write_yaml"]

Value = str | int | bool | None | list["Value"] | dict[str, "Value"]

DEPTH_MAX: Final = 8
_NAME: Final = r"[A-Za-z_][\w.-]*"
_KEY_FORM: Final = rf"""(?:{_NAME}|"[^"]*"|'[^']*')"""
_KEY: Final = re.compile(rf"({_KEY_FORM})\s*:(?:\s+(.*))?")
# What may stand before a value in its line: dashes of lists, a key.
_MARKS: Final = re.compile(rf"\s*(?:-\s+)*(?:{_KEY_FORM}\s*:\s+)?")
_BRACKETS: Final = frozenset("[]{}")
_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")  # 0123 is a key, not 83
_PLAIN_KEY: Final = re.compile(_NAME)
_PLAIN: Final = re.compile(r"[\w./%$+=|@-][\w./%$+=|@ ,:{}*-]*")
# As YAML 1.1, which SnakeYAML reads, has them: in small letters, with a capital first, in capitals.
_MEANINGS: Final = {
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None, "~": None, "": None,
}  # fmt: skip
_WORDS: Final = {
    form: meaning for word, meaning in _MEANINGS.items() for form in (word, word.capitalize(), word.upper())
}


class _Line(NamedTuple):
    number: int
    indent: int
    text: str

    @property
    def is_item(self) -> bool:
        """Whether an item of a list begins here. Its value may stand below."""
        return _is_item(self.text)


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def read_yaml(text: str) -> Value:
    """The value of a whole text. FormatError names the line that is not understood."""
    lines = list(_lines(text))
    if not lines:
        return None
    value, at = _block(lines, 0, lines[0].indent, 0)
    if at < len(lines):
        raise _wrong(lines[at], "its indent fits nothing before it")
    return value


def _lines(text: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw).rstrip()
        bare = line.lstrip(" ")
        if not bare or (bare == "---" and number == 1):
            continue
        if bare.startswith(("\t", "---", "...", "%")):
            raise FormatError(f"line {number}: tabs, directives and further documents are not read here")
        yield _Line(number, len(line) - len(bare), bare)


def _without_comment(line: str) -> str:
    """A quote begins where a value does, or a member of a list in brackets; elsewhere it is a letter like others."""
    match = _MARKS.match(line)
    at = match.end() if match else 0
    is_list, begins = line[at : at + 1] == "[", True
    while at < len(line):
        letter = line[at]
        if letter == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
        if letter in "\"'" and begins:
            at = _after_quoted(line, at)
            begins = False
            continue
        begins = is_list and (letter in "[," or (begins and letter == " "))
        at += 1
    return line


def _after_quoted(text: str, at: int) -> int:
    """Behind the quoted text that begins here; the end where it is not closed."""
    quote = text[at]
    while (at := text.find(quote, at + 1)) >= 0:
        if quote == "'" and text[at + 1 : at + 2] == quote:
            at += 1
            continue
        return at + 1
    return len(text)


def _block(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    """The mapping or list whose lines have this indent, and the line after it."""
    if depth > DEPTH_MAX:
        raise _wrong(lines[at], "it is nested too deeply")
    if lines[at].is_item:
        return _list(lines, at, indent, depth)
    return _mapping(lines, at, indent, depth)


def _list(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    found: list[Value] = []
    while at < len(lines) and lines[at].indent == indent and lines[at].is_item:
        line = lines[at]
        rest = line.text[1:].lstrip(" ")
        if not rest:
            value, at = _nested(lines, at, indent + 1, depth)
        elif _KEY.fullmatch(rest):
            # A mapping that begins behind the dash: its other keys stand below the first.
            inner = indent + len(line.text) - len(rest)
            lines[at] = _Line(line.number, inner, rest)
            value, at = _mapping(lines, at, inner, depth + 1)
        else:
            value, at = _scalar(line, rest), at + 1
        found.append(value)
    return found, at


def _mapping(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    found: dict[str, Value] = {}
    while at < len(lines) and lines[at].indent == indent and not lines[at].is_item:
        line = lines[at]
        match = _KEY.fullmatch(line.text)
        if match is None:
            raise _wrong(line, "a key, a colon and a value are expected")
        key, rest = match[1], match[2] or ""
        key = key[1:-1] if key[0] in "\"'" else key
        if key in found:
            raise _wrong(line, f"{key} stands there twice")
        if rest:
            found[key], at = _scalar(line, rest), at + 1
        else:
            # A list may stand at the indent of its key.
            found[key], at = _nested(lines, at, indent, depth)
    return found, at


def _nested(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    """What stands below a line that has no value of its own."""
    at += 1
    if at < len(lines):
        below = lines[at]
        if below.indent > indent or (below.indent == indent and below.is_item):
            return _block(lines, at, below.indent, depth + 1)
    return None, at


def _scalar(line: _Line, text: str) -> Value:
    if text.startswith("["):
        if len(text) < 2 or not text.endswith("]"):
            raise _wrong(line, "the list is not closed")
        return [_member(line, part) for part in _parts(text[1:-1])]
    if text[0] in "\"'":
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1].replace(text[0] * 2, ""):
            raise _wrong(line, "the quoted text is not closed")
        if text[0] == '"' and ("\\" in text or '"' in text[1:-1]):
            raise _wrong(line, "escapes in double quotes are not read here; use single quotes")
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    if text[0] in "&!|>{}@`" or ": " in text or text.endswith(":") or _is_item(text):
        raise _wrong(line, "this form of YAML is not read here")
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _NUMBER.fullmatch(text) else text


def _member(line: _Line, text: str) -> Value:
    """Of a list in brackets: those hold no lists and mappings here, and nothing between two commas."""
    if not text or (text[0] not in "\"'" and not _BRACKETS.isdisjoint(text)):
        raise _wrong(
            line, "a text or a number is expected between commas; one with brackets in it stands in quotes"
        )
    return _scalar(line, text)


def _parts(text: str) -> Iterator[str]:
    """At commas, but for those in quotes, without blanks around them. Behind the last comma nothing has to follow."""
    begin = at = 0
    begins = True  # a member, with the next letter that is no blank
    while at < len(text):
        letter = text[at]
        if letter == ",":
            yield text[begin:at].strip()
            begin = at + 1
        if letter in "\"'" and begins:
            at = _after_quoted(text, at)
        else:
            at += 1
        begins = letter == "," or (begins and letter == " ")
    if part := text[begin:].strip():
        yield part


def _wrong(line: _Line, reason: str) -> FormatError:
    return FormatError(f"line {line.number}: {reason}")


def write_yaml(value: Value, indent: int = 0) -> str:
    """The same as text, in blocks."""
    pad = " " * indent
    if isinstance(value, dict):
        return "".join(f"{pad}{_key(key)}:{_after_key(member, indent)}" for key, member in value.items())
    if isinstance(value, list):
        return "".join(f"{pad}- {_item(member, indent + 2)}" for member in value)
    return f"{pad}{_word(value)}\n"


def _key(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    quote = "'" if '"' in key else '"'
    return f"{quote}{key}{quote}"


def _after_key(value: Value, indent: int) -> str:
    if isinstance(value, list) and value:
        return "\n" + write_yaml(value, indent)
    if isinstance(value, dict) and value:
        return "\n" + write_yaml(value, indent + 2)
    return f" {_word(value)}\n"


def _item(value: Value, indent: int) -> str:
    if isinstance(value, list) and value:
        return "\n" + write_yaml(value, indent)
    if isinstance(value, dict) and value:
        return write_yaml(value, indent)[indent:]
    return f"{_word(value)}\n"


def _word(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return "[]"
    is_plain = _PLAIN.fullmatch(value) and value not in _WORDS and not _NUMBER.fullmatch(value)
    if is_plain and ": " not in value and not value.endswith((" ", ":")) and value[0] not in "%@|-":
        return value
    return "'" + value.replace("'", "''") + "'"
