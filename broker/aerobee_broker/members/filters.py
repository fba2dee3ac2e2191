"""What readers want of a topic: everything, some tags, or what an SQL92 expression says.

Touches  the log; the account of what is kept for peers.

    TAG     "a || b"; the store compares tag hashes and reads no record for it. "*", empty, nothing: everything
    SQL92   an expression over the properties (`aerobee_proto.sql92`); served while enablePropertyFilter is on

Invariants
- Compiled filters are kept by their text, at most CACHE_SIZE_MAX bytes of each kind; who holds a pull keeps its filter
  beyond that.
- One read by SQL92 takes at most about STEPS_MAX steps: the longer the expression, the fewer records a read looks at.
"""

from array import array
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.javahash import java_hash_many, tag_hash
from aerobee_proto.properties import decode_properties, find_property
from aerobee_proto.sql92 import SqlError, SqlExpression, compile_sql
from aerobee_remoting.peers.peer_memory import NOBODY, PeerMemory
from aerobee_store.reading.get_message import Selector

__all__ = ["EVERYTHING", "SQL92", "TAG", "Filter", "Filters", "check_type", "tag_filter_of"]

log = structlog.get_logger()

TAG: Final = "TAG"
SQL92: Final = "SQL92"
TAG_EXPRESSION_SIZE_MAX: Final = 16_384
CACHE_SIZE_MAX: Final = 16 * 1024 * 1024
TOGETHER_MIN: Final = 64  # tags that are hashed in one go: 1,200 take 0.2 ms then, 1 ms one by one
FILTER_SIZE: Final = 512  # bytes of a filter with its place in the cache, besides what follows
TAG_SIZE: Final = 128  # of the hash of a tag in its set
SQL_CHAR_SIZE: Final = 100  # compiled, an expression takes up to that for each character
STEPS_MAX: Final = 40_000  # of 0.2 us
SCAN_MIN: Final = 16
SCAN_MAX: Final = 2_000
NAMES_SOUGHT_MAX: Final = 2

TagFilter = frozenset[int] | None


class Filter:
    """One filter, as the store takes it: hashes of tags (None: any) and a choice by properties (None: none).

    `packed_tags` are the same hashes in order, as i32 of this machine.
    """

    __slots__ = ("packed_tags", "selector", "size", "tag_hashes")

    def __init__(
        self, tag_hashes: TagFilter = None, selector: Selector | None = None, *, sql_chars: int = 0
    ) -> None:
        self.tag_hashes = tag_hashes
        self.packed_tags = None if tag_hashes is None else array("i", sorted(tag_hashes)).tobytes()
        self.selector = selector
        self.size = FILTER_SIZE + TAG_SIZE * len(tag_hashes or ()) + SQL_CHAR_SIZE * sql_chars  # bytes, about


EVERYTHING: Final = Filter()


def tag_filter_of(expression: str | None) -> TagFilter:
    """Hashes of the tags in `a || b`, None for everything. RequestError SUBSCRIPTION_PARSE_FAILED otherwise."""
    if not expression or expression == "*":
        return None
    if len(expression) > TAG_EXPRESSION_SIZE_MAX:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"tag expression of {len(expression)} characters, at most {TAG_EXPRESSION_SIZE_MAX} are allowed",
        )
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if len(tags) < TOGETHER_MIN:
        hashes = frozenset(map(tag_hash, tags))
    else:
        hashes = frozenset(java_hash_many(tags).tolist())
    if not hashes:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"tag expression {expression[:80]!r} names no tag"
        )
    return hashes


def check_type(kind: str | None, *, sql_enabled: bool) -> bool:
    """Whether a filter of this type goes by tags (True) or by SQL92 (False).

    RequestError SYSTEM_ERROR while SQL92 is turned off, SUBSCRIPTION_PARSE_FAILED for a type that nobody knows.
    """
    if kind == TAG or not kind:
        return True
    if not sql_enabled:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker does not support consumer to filter message by {kind[:40]}: enablePropertyFilter is off",
        )
    if kind != SQL92:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"there are no filters of type {kind[:40]!r}; {TAG} and {SQL92} are served",
        )
    return False


class Filters:
    """Filters by their expressions, compiled once."""

    def __init__(self, memory: PeerMemory | None = None) -> None:
        # The account of what is kept for peers.
        self.memory = memory or PeerMemory()
        self.by_tags = _Cache(self.memory)
        self.by_sql = _Cache(self.memory)

    def tags(self, expression: str | None) -> Filter:
        """The filter of a tag expression; RequestError SUBSCRIPTION_PARSE_FAILED when it names no tag."""
        key = expression or "*"
        try:
            return self.by_tags.filters[key]
        except KeyError:
            return self.by_tags.add(key, Filter(tag_filter_of(key)))

    def sql(self, expression: str | None) -> Filter:
        """The filter of an SQL92 expression; RequestError SUBSCRIPTION_PARSE_FAILED when it is none."""
        text = expression or ""
        try:
            return self.by_sql.filters[text]
        except KeyError:
            pass
        try:
            compiled = compile_sql(text)
        except SqlError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"SQL92 filter {text[:80]!r}: {error}"
            ) from error
        if compiled.ignored:
            log.warning("broker.filter_text_ignored", expression=text[:200], ignored=compiled.ignored[:80])
        return self.by_sql.add(text, Filter(selector=_selector(compiled), sql_chars=len(text)))


class _Cache:
    """Filters by their text; when they are too large together, it begins anew."""

    __slots__ = ("_memory", "filters", "size")

    def __init__(self, memory: PeerMemory) -> None:
        self._memory = memory
        self.filters: dict[str, Filter] = {}
        self.size = 0  # bytes, about

    def add(self, text: str, made: Filter) -> Filter:
        """Keep it, if there is room; the filter."""
        size = made.size + 4 * len(text)
        if not self._has_room(size):
            self._memory.give(NOBODY, "filters", self.size)
            self.filters.clear()
            self.size = 0
        if self._has_room(size):
            self._memory.note(NOBODY, "filters", size)
            self.filters[text] = made
            self.size += size
        return made

    def _has_room(self, size: int) -> bool:
        memory = self._memory
        return self.size + size <= CACHE_SIZE_MAX and memory.total + size <= memory.total_max


def _selector(sql: SqlExpression) -> Selector:
    return Selector(_by_properties(sql), max(SCAN_MIN, min(SCAN_MAX, STEPS_MAX // sql.cost)))


def _by_properties(sql: SqlExpression) -> Callable[[bytes], bool]:
    """What a selector asks of raw properties: those that the expression names are looked for, the rest stays bytes.

    One name among eight: 1.6 us instead of 4.5; from three names on decoding everything is as fast.
    """
    matches = sql.matches
    names = [(name, name.encode()) for name in sorted(sql.names)]

    def chosen_by_few(properties: bytes) -> bool:
        found = {}
        for name, raw in names:
            value = find_property(properties, raw)
            if value is not None:
                found[name] = value.decode("utf-8", "replace")
        return matches(found)

    def chosen(properties: bytes) -> bool:
        return matches(decode_properties(properties.decode("utf-8", "replace")))

    return chosen_by_few if len(names) <= NAMES_SOUGHT_MAX else chosen
