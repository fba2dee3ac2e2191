"""Filters by their expressions: tags are hashed, SQL92 is compiled once, nothing piles up."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_broker.members.filters import (
    CACHE_SIZE_MAX,
    SCAN_MIN,
    TOGETHER_MIN,
    Filters,
    check_type,
    tag_filter_of,
)
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.javahash import tag_hash
from aerobee_proto.properties import decode_properties, encode_properties
from aerobee_proto.sql92 import compile_sql

# --- tags -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", ["TagA"]),
        ("TagA || TagB", ["TagA", "TagB"]),
        ("TagA||TagB", ["TagA", "TagB"]),
        ("  TagA  ", ["TagA"]),
        ("TagA || ", ["TagA"]),
        ("a|b", ["a|b"]),
        ("* || TagA", ["*", "TagA"]),
        ("标签", ["标签"]),
    ],
)
def test_tags_are_split_and_hashed(expression: str, tags: list[str]) -> None:
    assert tag_filter_of(expression) == frozenset(tag_hash(tag) for tag in tags)


@pytest.mark.parametrize("count", [TOGETHER_MIN - 1, TOGETHER_MIN, 900])
@pytest.mark.parametrize("odd", ["t", "标签", "\N{GRINNING FACE}"])
def test_many_tags_are_hashed_as_few_are(count: int, odd: str) -> None:
    tags = [f"{odd if i % 50 == 7 else 'tag'}-{i}" for i in range(count)]
    expression = " || || ".join(tags) + "||  "
    assert tag_filter_of(expression) == frozenset(map(tag_hash, tags))


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_means_everything(expression: str | None) -> None:
    assert tag_filter_of(expression) is None


def test_a_long_expression_is_read_in_no_time_and_one_too_long_is_refused() -> None:
    many: Callable[[int], str] = lambda count: "||".join(f"t{i}" for i in range(count))  # noqa: E731
    assert len(tag_filter_of(many(2000)) or ()) == 2000
    with pytest.raises(RequestError) as refused:
        tag_filter_of(many(100_000))
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_tag_filters_of_hostile_clients_do_not_pile_up() -> None:
    filters = Filters()
    for i in range(200):
        filters.tags(" || ".join(f"{i}-{tag}" for tag in range(1200)))
        assert filters.by_tags.size <= CACHE_SIZE_MAX
    assert len(filters.by_tags.filters) > 1


# --- SQL92 ----------------------------------------------------------------------------------------------------


def test_sql_is_compiled_once_and_looks_at_raw_properties() -> None:
    filters = Filters()
    found = filters.sql("price > 3 AND name = '标签'")
    assert filters.sql("price > 3 AND name = '标签'") is found
    assert found.tag_hashes is None
    assert found.selector is not None
    for price, expected in (("4", True), ("3", False), ("x", False)):
        raw = encode_properties({"UNIQ_KEY": "1", "price": price, "name": "标签"}).encode()
        assert found.selector.matches(raw) is expected
    assert not found.selector.matches(b"")
    assert not found.selector.matches(b"price\xff\x01\x02\x02\x01")


RAW_PIECES = st.sampled_from([b"a", b"\x01", b"\x02", b"5", b"\xff", b"ba"])


@given(st.binary(max_size=60) | st.lists(RAW_PIECES).map(b"".join))
def test_any_bytes_of_properties_are_read_as_clients_read_them(raw: bytes) -> None:
    """Whether all of them are decoded or the few that the expression names are looked for."""
    properties = decode_properties(raw.decode("utf-8", "replace"))
    for expression in ("a IS NULL", "a = '5'", "a > 4 OR ba = a", "a = '5' OR b = c OR d = e OR f = ''"):
        selector = Filters().sql(expression).selector
        assert selector is not None
        assert selector.matches(raw) is compile_sql(expression).matches(properties)


@pytest.mark.parametrize(
    "expression", [None, "", "a >", "a = 'x" + "x" * 9_000, "(" * 100 + "a = 1" + ")" * 100]
)
def test_what_is_no_sql_is_refused_in_few_words(expression: str | None) -> None:
    with pytest.raises(RequestError, match="SQL92 filter") as refused:
        Filters().sql(expression)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(refused.value.remark) < 400


def test_a_read_looks_at_fewer_records_the_longer_the_expression_is() -> None:
    short, long = Filters().sql("a = 1"), Filters().sql(" OR ".join(f"a={i}" for i in range(900)))
    assert short.selector is not None
    assert long.selector is not None
    assert short.selector.scan_max >= 800 > long.selector.scan_max >= SCAN_MIN


def test_text_behind_an_expression_is_told_to_the_operator() -> None:
    filters = Filters()
    with capture_logs() as logs:
        filters.sql("a LIKE 'x%'")
        filters.sql("a LIKE 'x%'")
    assert [(line["event"], line["ignored"]) for line in logs] == [
        ("broker.filter_text_ignored", "LIKE 'x%'")
    ]


def test_sql_filters_of_hostile_clients_do_not_pile_up() -> None:
    filters = Filters()
    for i in range(100):
        filters.sql(f"a = '{i}'".ljust(8_000))
        assert filters.by_sql.size <= CACHE_SIZE_MAX
    assert len(filters.by_sql.filters) > 1


# --- types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("kind", [None, "", "TAG"])
def test_no_type_means_tags(kind: str | None, enabled: bool) -> None:
    assert check_type(kind, sql_enabled=enabled)


def test_sql_has_to_be_turned_on() -> None:
    assert not check_type("SQL92", sql_enabled=True)
    with pytest.raises(RequestError, match="enablePropertyFilter is off") as refused:
        check_type("SQL92", sql_enabled=False)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_unknown_types_are_refused() -> None:
    with pytest.raises(RequestError, match="TAG and SQL92 are served") as refused:
        check_type("sql92", sql_enabled=True)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
