"""Which messages of a topic a reader wants: by tags, or by an SQL92 expression over the properties. Pure.

    mq.reader("orders", filter=SqlFilter("price > 3 AND region IN ('eu', 'us')"))
    mq.pull_consumer("g", "orders", tags="new || paid")                # the same as filter=TagFilter("new || paid")

Brokers choose. What they cannot tell for sure, that a tag is really the one whose hash they compared, is looked at
here again. SQL92 must be turned on in them (`enablePropertyFilter`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aerobee.errors import InvalidMessage
from aerobee_proto.bodies import SubscriptionData
from aerobee_proto.records import StoredRecord

if TYPE_CHECKING:
    from aerobee_proto.sql92 import SqlExpression

if TYPE_CHECKING:
    from aerobee_proto.sql92 import SqlExpression

__all__ = ["Filter", "SqlFilter", "TagFilter", "chosen_filter", "filter_of", "parse_tags"]

TEXT_SHOWN_MAX: Final = 80


@dataclass(slots=True, frozen=True, init=False)
class TagFilter:
    """Messages with one of some tags: `"new || paid"`, several texts; None and "*" want every message.

    InvalidMessage when "*" is one of several.
    """

    text: str
    tags: frozenset[str] | None  # None: every message

    def __init__(self, tags: str | Iterable[str] | None = None) -> None:
        text, names = parse_tags(tags)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "tags", names)

    @property
    def expression_type(self) -> str:
        """The kind of filter as brokers call it."""
        return "TAG"

    def subscription(self, topic: str, version_ms: int) -> SubscriptionData:
        """As heartbeats carry it; `version_ms` orders the subscriptions of a client in time."""
        return SubscriptionData.of_tags(topic, self.text, version_ms)

    def passes(self, record: StoredRecord) -> bool:
        """Whether a record that the broker let through is really wanted."""
        return self.tags is None or record.tags in self.tags


@dataclass(slots=True, frozen=True)
class SqlFilter:
    """Messages for which an SQL92 expression over their properties is true, `"price > 3 AND TAGS = 'new'"`.

    InvalidMessage says what is wrong with the expression, before any broker is asked. It also refuses text behind the
    expression, which brokers would ignore: `name LIKE 'x%'` would match nothing.
    """

    text: str
    _compiled: "SqlExpression" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Here, so that programs without such filters do not load the language (8 ms).
        from aerobee_proto.sql92 import SqlError, compile_sql

        shown = f"SQL92 filter {self.text[:TEXT_SHOWN_MAX]!r}"
        try:
            compiled = compile_sql(self.text)
        except SqlError as error:
            raise InvalidMessage(f"{shown}: {error}") from error
        if compiled.ignored_from is not None:
            raise InvalidMessage(
                f"{shown}: the expression ends before character {compiled.ignored_from + 1};"
                f" brokers would ignore {compiled.ignored[:TEXT_SHOWN_MAX]!r}"
            )
        object.__setattr__(self, "_compiled", compiled)

    @property
    def expression_type(self) -> str:
        """The kind of filter as brokers call it."""
        return "SQL92"

    @property
    def tags(self) -> None:
        """No tags are looked at here."""
        return

    def subscription(self, topic: str, version_ms: int) -> SubscriptionData:
        """As heartbeats carry it; `version_ms` orders the subscriptions of a client in time."""
        return SubscriptionData(
            topic=topic, expression_type=self.expression_type, sub_string=self.text, sub_version=version_ms
        )

    def passes(self, record: StoredRecord) -> bool:
        """Whether a record that the broker let through is really wanted: the broker has read its properties."""
        return True

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a broker lets a message with these properties through."""
        return self._compiled.matches(properties)


Filter = TagFilter | SqlFilter


def parse_tags(expression: str | Iterable[str] | None) -> tuple[str, frozenset[str] | None]:
    """The filter text for the broker and the set for the exact test here; None means every message.

    Tags come as text (`"new || paid"`, `"*"`) or as several texts.
    """
    if expression is None:
        return "*", None
    parts = expression.split("||") if isinstance(expression, str) else list(expression)
    tags = [tag.strip() for tag in parts if tag.strip()]
    if not tags or tags == ["*"]:
        return "*", None
    if "*" in tags:
        raise InvalidMessage(f"tags {expression!r}: '*' stands for all of them and cannot be one of several")
    return " || ".join(tags), frozenset(tags)


def filter_of(chosen: Filter | str | Iterable[str] | None) -> Filter:
    """The filter meant by a filter, by tags, or by nothing."""
    return chosen if isinstance(chosen, TagFilter | SqlFilter) else TagFilter(chosen)


def chosen_filter(tags: str | Iterable[str] | None, given: Filter | None) -> Filter:
    """The filter of a call that takes tags or a filter; InvalidMessage for both."""
    if given is None:
        return TagFilter(tags)
    if tags is not None:
        raise InvalidMessage("give tags or a filter, not both; SQL92 can ask for TAGS = 'new' too")
    return given
