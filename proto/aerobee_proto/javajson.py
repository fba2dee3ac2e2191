"""JSON as fastjson 1.2 writes and reads it, which is not quite JSON.

Touches  nothing.
Written  compact, sorted names, null members left out. Keys that are not text stand raw: numbers bare
         (`{0:"a"}`), message queues as objects (`{{"brokerName":"b","queueId":0,"topic":"T"}:5}`).
Read     all that, and quoted numbers, single quotes, bare names, surplus commas, comments, number suffixes, and
         `{"$ref":"$.path"}` for a value that stands elsewhere in the text.

Invariants
- loads(dumps(value)) == value for values of dict, list, str, int, float, bool with str, int or MessageQueue keys,
  apart from null members and keys that only look alike.
- Any bytes raise FormatError or give a value; nesting and size are bounded.
- Standard JSON takes the fast path through msgspec; everything else the parser below, at up to 1.4 us a byte:
  where a stranger sends it, loads gets tolerant_size_max=TOLERANT_SIZE_MAX.
- References add at most as many values as the text has bytes (or REFERENCED_MIN, if that is more): whoever copies
  the value afterwards has work and memory in proportion to the text.
"""

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from heapq import merge
from itertools import accumulate, islice
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from aerobee_proto.errors import FormatError

__all__ = [
    "DEPTH_MAX",
    "SIZE_MAX",
    "TOLERANT_SIZE_MAX",
    "MessageQueue",
    "dumps",
    "dumps_standard",
    "dumps_steps",
    "loads",
    "message_queue_of",
    "sorted_steps",
]

DEPTH_MAX: Final = 64
SIZE_MAX: Final = 16 * 1024 * 1024  # bytes; no frame carries more
TOLERANT_SIZE_MAX: Final = 16 * 1024  # bytes of a stranger's near-JSON: 30 ms of an event loop at the worst
REFERENCED_MIN: Final = 10_000  # values that references may add to a text of any size
SMALL_MAX: Final = 16  # members of a container that is written in one go
STEP_MEMBERS: Final = 256  # values that are written in one step
TEXT_OF_MEMBER: Final = 32  # characters of a text that count as a member
SORT_MAX: Final = 4096  # values that are sorted in one step
PAIRED_MAX: Final = 32_768  # values in two sorted runs that are merged in one step

T = TypeVar("T")


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel", gc=False):
    """One queue of a topic on one broker; also the key of the tables that RocketMQ keys by queue."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0


# --- writing ------------------------------------------------------------------------------------------------


def dumps(value: Any) -> bytes:
    """`value` in fastjson's form, UTF-8. Takes msgspec structs (by their wire names) wherever a dict may stand.

    Raises FormatError when the value is nested deeper than DEPTH_MAX, TypeError for what JSON cannot carry.
    """
    return _Writer(encode_basestring, raw_keys=True).text(value).encode("utf-8", "replace")


def dumps_standard(value: Any) -> bytes:
    """As dumps, but strictly valid JSON in ASCII: every key quoted, other characters as \\uXXXX."""
    return _Writer(encode_basestring_ascii, raw_keys=False).text(value).encode("ascii")


def dumps_steps(
    value: Any, *, standard: bool = False, size_max: int | None = None
) -> Generator[None, None, bytes]:
    """As dumps (or dumps_standard) in steps of a fraction of a millisecond each, for large values.

    Lists may be given as iterators, and any Mapping as a map: members are made when they are written.
    FormatError as soon as it has more than `size_max` bytes.
    """
    quote = encode_basestring_ascii if standard else encode_basestring
    writer = _StepWriter(quote, raw_keys=not standard, size_max=size_max)
    yield from writer.write(value, 0)
    return writer.end()


def sorted_steps(
    values: Iterable[T], key: Callable[[T], Any] | None = None
) -> Generator[None, None, list[T]]:
    """sorted(), in steps: runs are sorted one by one, and merged; without a key by pairs at first, as sorted() is
    quick with what is sorted already.
    """
    order: Any = key  # None too: for values that can be compared
    items = list(values)
    if len(items) <= SORT_MAX:
        return sorted(items, key=order)
    runs = []
    for start in range(0, len(items), SORT_MAX):
        runs.append(sorted(items[start : start + SORT_MAX], key=order))
        yield
    while key is None and len(runs) > 1 and len(runs[0]) < PAIRED_MAX:
        halves, runs = runs, []
        for start in range(0, len(halves), 2):
            runs.append(sorted([item for half in halves[start : start + 2] for item in half], key=order))
            yield
    result: list[T] = []
    merged = merge(*runs, key=order)
    while piece := list(islice(merged, STEP_MEMBERS)):
        result += piece
        yield
    return result


@cache
def _members_of(cls: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(wire name, attribute) of a struct's fields, sorted by wire name."""
    return tuple(sorted(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)))


def _java_double(value: float) -> str:
    """A double as Java's Double.toString shows it; null for what JSON cannot carry, as fastjson does."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()  # the shortest digits that give the value back
    text = "".join(map(str, digits))
    power = len(digits) - 1 + int(exponent)
    return f"{'-' if sign else ''}{text[0]}.{text[1:].rstrip('0') or '0'}E{power}"


def _key_order(key: Any) -> tuple[int, Any]:
    if isinstance(key, str):
        return 0, key
    return (1, key) if isinstance(key, int) else (2, key)


class _Writer:
    """Writes one value; `quote` makes a JSON string of a text."""

    def __init__(self, quote: Callable[[str], str], raw_keys: bool) -> None:
        self._quote = quote
        self._raw_keys = raw_keys

    def text(self, value: Any, depth: int = 0) -> str:
        if isinstance(value, str):
            return self._quote(value)
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return int.__repr__(value)
        if isinstance(value, float):
            return _java_double(value)
        if depth >= DEPTH_MAX:
            raise FormatError(f"the value is nested deeper than {DEPTH_MAX} levels")
        if isinstance(value, msgspec.Struct):
            return self._struct(value, depth + 1)
        if isinstance(value, Mapping):
            return self._map(value, depth + 1)
        if isinstance(value, set | frozenset):
            return self._array(sorted(value, key=_key_order), depth + 1)
        if isinstance(value, list | tuple):
            return self._array(value, depth + 1)
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")

    def _struct(self, value: msgspec.Struct, depth: int) -> str:
        parts = []
        for name, attribute in _members_of(type(value)):
            member = getattr(value, attribute)
            if member is not None:
                parts.append(f'"{name}":{self.text(member, depth)}')
        return "{" + ",".join(parts) + "}"

    def _map(self, value: Mapping[Any, Any], depth: int) -> str:
        parts = []
        for key in sorted(value, key=_key_order):
            member = value[key]
            if member is not None:
                parts.append(f"{self._key(key, depth)}:{self.text(member, depth)}")
        return "{" + ",".join(parts) + "}"

    def _array(self, value: Iterable[Any], depth: int) -> str:
        return "[" + ",".join([self.text(member, depth) for member in value]) + "]"

    def _key(self, key: Any, depth: int) -> str:
        if isinstance(key, str):
            return self._quote(key)
        if not isinstance(key, int | msgspec.Struct):
            raise TypeError(f"{type(key).__name__} cannot be a key")
        raw = self.text(key, depth)
        return raw if self._raw_keys else self._quote(raw)


class _StepWriter(_Writer):
    """As _Writer, with a pause every so many values."""

    def __init__(self, quote: Callable[[str], str], raw_keys: bool, size_max: int | None) -> None:
        super().__init__(quote, raw_keys)
        self._size_max = size_max
        self._size = 0
        self._done: list[bytes] = []
        self._texts: list[str] = []  # since the last step
        self._left = STEP_MEMBERS

    def end(self) -> bytes:
        self._flush()
        return b"".join(self._done)

    def _flush(self) -> None:
        piece = "".join(self._texts).encode("utf-8", "replace")
        self._texts.clear()
        self._done.append(piece)
        self._size += len(piece)
        self._left = STEP_MEMBERS
        if self._size_max is not None and self._size > self._size_max:
            raise FormatError(f"the value takes more than {self._size_max} bytes")

    def write(self, value: Any, depth: int) -> Generator[None, None, None]:
        if _is_small(value):
            text = self.text(value, depth)
            self._texts.append(text)
            self._left -= 1 + len(text) // TEXT_OF_MEMBER
            if self._left <= 0:
                self._flush()
                yield
            return
        if depth >= DEPTH_MAX:
            raise FormatError(f"the value is nested deeper than {DEPTH_MAX} levels")
        if isinstance(value, msgspec.Struct | Mapping):
            yield from self._members(value, depth + 1)
            return
        if isinstance(value, set | frozenset):
            value = yield from sorted_steps(value, key=_key_order)
        opening = "["
        for member in value:
            self._texts.append(opening)
            yield from self.write(member, depth + 1)
            opening = ","
        self._texts.append("[]" if opening == "[" else "]")

    def _members(self, value: Any, depth: int) -> Generator[None, None, None]:
        opening = "{"
        if isinstance(value, msgspec.Struct):
            pairs: Iterable[tuple[str, Any]] = (
                (f'"{name}"', getattr(value, attribute)) for name, attribute in _members_of(type(value))
            )
        else:
            keys = yield from sorted_steps(value, key=_key_order)
            pairs = ((self._key(key, depth), value[key]) for key in keys)
        for name, member in pairs:
            if member is not None:
                self._texts.append(f"{opening}{name}:")
                yield from self.write(member, depth)
                opening = ","
        self._texts.append("{}" if opening == "{" else "}")


_CONTAINERS: Final = (msgspec.Struct, Mapping, set, frozenset, list, tuple, Iterator)
_PLAIN_KINDS: Final = frozenset({str, int, float, bool, type(None)})


def _is_small(value: Any) -> bool:
    """Whether it is written in one go, a third of the work of many steps: one value, or a few in one object.

    Texts may be of any length: those that are written this way are names, and settings within their bounds.
    """
    if type(value) in _PLAIN_KINDS or not isinstance(value, _CONTAINERS):
        return True
    if isinstance(value, msgspec.Struct):
        return all(map(_is_plain, msgspec.structs.astuple(value)))
    if isinstance(value, dict):
        return len(value) <= SMALL_MAX and all(map(_is_plain, value.values()))
    return isinstance(value, list | tuple) and len(value) <= SMALL_MAX and all(map(_is_plain, value))


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN_KINDS or not value


# --- reading ------------------------------------------------------------------------------------------------


def loads(
    data: bytes | bytearray | memoryview, size_max: int = SIZE_MAX, *, tolerant_size_max: int = SIZE_MAX
) -> Any:
    """The value of JSON or near-JSON bytes.

    Raw numeric keys become int, raw object keys MessageQueue; quoted keys stay text (message_queue_of reads a
    queue out of such a text). Raises FormatError for broken text, nesting beyond DEPTH_MAX, size over `size_max`
    bytes, and text that is not standard JSON over `tolerant_size_max` bytes.
    """
    if len(data) > size_max:
        raise FormatError(f"JSON text of {len(data)} bytes; at most {size_max} are read")
    raw = bytes(data)
    value = _loads_any(raw, tolerant_size_max)
    return _resolve_references(value, len(raw)) if b"$ref" in raw else value


def _loads_any(raw: bytes, tolerant_size_max: int) -> Any:
    reason = "the nesting is too deep or the brackets do not match"
    if _depth_bound(raw) <= DEPTH_MAX:
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = str(error)  # not standard JSON, not UTF-8, or broken: the parser below tells
    if len(raw) > tolerant_size_max:
        raise FormatError(
            f"{len(raw)} bytes that are not standard JSON ({reason}); at most {tolerant_size_max} are read then"
        )
    return Parser(raw.decode("utf-8", "replace")).document()


_BRACKET_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(_BRACKET_STEPS))


def _depth_bound(raw: bytes) -> int:
    """At least the nesting depth; brackets inside strings count as well. Exact where it could matter: the parser."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_MAX:
        return 0
    brackets = raw.translate(None, delete=_NOT_BRACKETS)
    return max(accumulate(map(_BRACKET_STEPS.__getitem__, brackets)))


def message_queue_of(key: Any) -> MessageQueue:
    """The queue that a table's key means: itself, or a text that holds its JSON. FormatError otherwise."""
    if isinstance(key, MessageQueue):
        return key
    if isinstance(key, str) and key.startswith("{"):
        return _queue_from(loads(key.encode("utf-8", "replace")))
    raise FormatError(f"key {str(key)[:64]!r} is not a message queue")


def _queue_from(members: Any) -> MessageQueue:
    if not isinstance(members, dict) or not members.keys() & {"topic", "brokerName", "queueId"}:
        raise FormatError("an object as key must be a message queue: topic, brokerName, queueId")
    members = {name: value for name, value in members.items() if value is not None}
    try:
        return msgspec.convert(members, MessageQueue, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FormatError(f"an object as key is not a message queue: {error}") from error


_BLANKS: Final = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_BLANKS_AND_COMMAS: Final = re.compile(r"(?:[\s\ufeff,]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NEVER_BLANK: Final = frozenset("{}[]:\"'-0123456789")
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.@%|\-]*")
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_HEX: Final = {length: re.compile(rf"[0-9a-fA-F]{{{length}}}") for length in (2, 4)}
_ESCAPES: Final = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_NUMBER_SUFFIXES: Final = frozenset("LSBFD")
_NUMBER_LENGTH_MAX: Final = 4096  # Python makes no integer of more than 4300 digits
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class Parser:
    """A recursive parser for what fastjson accepts. Depth is bounded by DEPTH_MAX, steps by the text's length."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Any:
        """The one value that the text holds; FormatError when there is none or more."""
        value = self._value(0)
        self._skip()
        if self._at != len(self._text):
            self._fail("text after the value")
        return value

    def _fail(self, what: str) -> NoReturn:
        near = self._text[self._at : self._at + 20]
        raise FormatError(f"not JSON: {what} at character {self._at}, near {near!r}")

    def _skip(self, blanks: re.Pattern[str] = _BLANKS) -> None:
        if self._text[self._at : self._at + 1] in _NEVER_BLANK:
            return  # most of the time; a third of the parser's time less
        match = blanks.match(self._text, self._at)
        assert match is not None, "the pattern matches the empty text"
        self._at = match.end()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        self._skip()
        first = self._peek()
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first in ('"', "'"):
            return self._string(first)
        word = _WORD.match(self._text, self._at)
        if word is None:
            return self._number()
        if word.group() not in _CONSTANTS:
            self._fail("unknown word")
        self._at = word.end()
        return _CONSTANTS[word.group()]

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._fail("no value")
        digits = match.group()
        if len(digits) > _NUMBER_LENGTH_MAX:
            self._fail("number too long")
        value = int(digits) if digits.lstrip("+-").isdigit() else float(digits)
        if isinstance(value, float) and not math.isfinite(value):
            self._fail("number out of range")
        self._at = match.end()
        if self._peek() in _NUMBER_SUFFIXES:
            self._at += 1
        return value

    def _array(self, depth: int) -> list[Any]:
        self._enter(depth)
        items: list[Any] = []
        while True:
            self._skip(_BLANKS_AND_COMMAS)
            if self._peek() == "]":
                self._at += 1
                return items
            items.append(self._value(depth))
            self._after_member("]")

    def _object(self, depth: int) -> dict[Any, Any]:
        self._enter(depth)
        members: dict[Any, Any] = {}
        while True:
            self._skip(_BLANKS_AND_COMMAS)
            if self._peek() == "}":
                self._at += 1
                return members
            key = self._key(depth)
            self._skip()
            if self._peek() != ":":
                self._fail("no colon after a key")
            self._at += 1
            members[key] = self._value(depth)
            self._after_member("}")

    def _enter(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX} levels")
        self._at += 1

    def _after_member(self, closing: str) -> None:
        self._skip()
        if self._peek() not in (",", closing):
            self._fail(f"no comma or {closing} after a value")

    def _key(self, depth: int) -> str | int | MessageQueue:
        first = self._peek()
        if first in ('"', "'"):
            return self._string(first)
        if first == "{":
            return _queue_from(self._object(depth + 1))
        word = _WORD.match(self._text, self._at)
        if word is not None:
            self._at = word.end()
            return word.group()
        number = self._number()
        return number if isinstance(number, int) else repr(number)

    def _string(self, quote: str) -> str:
        self._at += 1
        plain = _PLAIN[quote]
        pieces: list[str] = []
        while True:
            match = plain.match(self._text, self._at)
            assert match is not None, "the pattern matches the empty text"
            pieces.append(match.group())
            self._at = match.end()
            if self._peek() == quote:
                self._at += 1
                return _without_lone_surrogates("".join(pieces))
            if self._at >= len(self._text):
                self._fail("string without end")
            pieces.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in ("u", "x"):
            length = 4 if letter == "u" else 2
            match = _HEX[length].match(self._text, self._at + 2)
            if match is None:
                self._fail("broken escape")
            self._at += 2 + length
            return chr(int(match.group(), 16))
        if letter not in _ESCAPES:
            self._fail("unknown escape")
        self._at += 2
        return _ESCAPES[letter]


def _without_lone_surrogates(text: str) -> str:
    """Join surrogate pairs that were written as two escapes; what stays alone becomes U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_REFERENCE: Final = "$ref"
_PATH_STEP: Final = re.compile(r"\.((?:[^.\[\]\\{}]|\\.)+)|\[(\d{1,9})\]")


def _resolve_references(root: Any, text_size: int) -> Any:
    """Put the value that each `{"$ref":"$.path"}` names in its place.

    Only targets that came without references of their own are taken, so that nothing turns in a circle; any other
    reference stays as it is. A target is shared here, but whoever reads the value on copies it for each reference:
    so every place counts. FormatError when they add more than the text's size allows.
    """
    if _reference_path(root) is None:
        holders: set[int] = set()
        _find_holders(root, holders)
        _References(root, holders, max(text_size, REFERENCED_MIN)).replace_in(root)
    return root


def _find_holders(value: Any, holders: set[int]) -> bool:
    """Collect the ids of all containers that hold a reference somewhere inside; whether `value` is one."""
    if isinstance(value, dict):
        found = _REFERENCE in value
        members: Iterable[Any] = value.values()
    elif isinstance(value, list):
        found, members = False, value
    else:
        return False
    for member in members:
        found = _find_holders(member, holders) or found
    if found:
        holders.add(id(value))
    return found


class _References:
    """Replaces the references of one document, and counts what they add."""

    def __init__(self, root: Any, holders: set[int], added_max: int) -> None:
        self._root = root
        self._holders = holders
        self._added_max = added_max
        self._added = 0
        self._counts: dict[int, int] = {}  # id of a target -> values in it; targets live as long as the root

    def replace_in(self, value: Any) -> None:
        """Replace every reference inside `value`."""
        if id(value) not in self._holders:
            return
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, member in pairs:
            path = _reference_path(member)
            if path is None:
                self.replace_in(member)
                continue
            target = _follow(self._root, path)
            if target is not None and id(target) not in self._holders:
                self._count(target)
                value[key] = target

    def _count(self, target: Any) -> None:
        count = self._counts.get(id(target))
        if count is None:
            count = self._counts[id(target)] = _values_in(target)
        self._added += count
        if self._added > self._added_max:
            raise FormatError(f"the references of the text stand for more than {self._added_max} values")


def _values_in(value: Any) -> int:
    """How many values a JSON value is, with keys and itself."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_values_in, value.values()))
    return 1 + sum(map(_values_in, value)) if isinstance(value, list) else 1


def _reference_path(value: Any) -> str | None:
    if isinstance(value, dict) and len(value) == 1:
        path = value.get(_REFERENCE)
        return path if isinstance(path, str) else None
    return None


def _follow(root: Any, path: str) -> Any:
    """What a path like `$.table.T1[0]` leads to; None when it leads nowhere."""
    if not path.startswith("$"):
        return None
    value, at = root, 1
    while at < len(path):
        step = _PATH_STEP.match(path, at)
        if step is None:
            return None
        name, index = step.groups()
        if name is not None and isinstance(value, dict):
            value = value.get(re.sub(r"\\(.)", r"\1", name))
        elif index is not None and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
        at = step.end()
    return value
