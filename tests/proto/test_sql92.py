"""The SQL92 filter: the official table, what is refused and how it is told, bounds, and any text at all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.sql92 import (
    DEPTH_MAX,
    EXPRESSION_CHARS_MAX,
    SqlError,
    SqlExpression,
    SqlValueError,
    compile_sql,
)
from aerobee_proto.sql92.values import order_doubles, text_to_double
from proto.sql92_corpus import VALUES, expressions, property_sets
from proto.tables import GOLDEN

TABLE: dict[str, Any] = json.loads((GOLDEN / "codec" / "sql92.json").read_bytes())
WORDS = st.sampled_from(
    [
        *(
            "a",
            "b",
            "1",
            "2.5",
            "'x'",
            "=",
            "<>",
            ">",
            "<=",
            "(",
            ")",
            "NOT",
            "AND",
            "OR",
            "IS",
            "NULL",
            "IN",
        ),
        *("BETWEEN", "CONTAINS", "-", "+", "TRUE", ",", "--", "/*", "'", "1e999", "\x00", "\n"),
    ]
)


def verdict(sql: SqlExpression, properties: dict[str, str]) -> object:
    try:
        return sql.evaluate(properties)
    except SqlValueError:
        return "throws"


@pytest.mark.parametrize("row", TABLE["expressions"], ids=lambda row: row["expression"])
def test_the_official_table(row: dict[str, Any]) -> None:
    if "results" not in row:
        with pytest.raises(SqlError):
            compile_sql(row["expression"])
        return
    sql = compile_sql(row["expression"])
    for properties, result in zip(TABLE["properties"], row["results"], strict=True):
        assert verdict(sql, properties) == ("throws" if isinstance(result, str) else result), properties
        assert sql.matches(properties) == (result is True)


@pytest.mark.parametrize(
    ("expression", "properties", "result"),
    [
        ("a > 3 OR b IS NULL", {"a": "x"}, "throws"),  # the left side is tried first
        ("b IS NULL OR a > 3", {"a": "x"}, True),
        ("a > 3 AND b > 3", {"b": "1"}, False),  # false whatever the unknown one is
        ("a > 3 AND b > 3", {"b": "5"}, None),
        ("NOT (a > 3)", {}, None),
        ("a = b", {}, True),  # two missing ones are equal
        ("a = b", {"b": "x"}, None),
        ("a = b", {"a": "x"}, False),
        ("a > b", {"a": "10", "b": "9"}, True),  # as numbers
        ("a > 2147483647", {"a": "2147483648"}, "throws"),  # the literal is an int, and this is none
        ("a > 2147483648", {"a": "2147483649"}, True),
        ("a NOT CONTAINS 'x'", {}, False),  # also in its negated form
        ("a NOT IN ('x')", {}, None),
        ("a NOT BETWEEN 3 AND 5", {"a": "2"}, True),
        ("a", {"a": "true"}, False),  # a text is no truth value
        ("a = TRUE", {"a": "TRUE"}, True),
        ("TRUE = (a = 'x')", {"a": "x"}, True),
        ("(a = 'x') = b", {"a": "x", "b": "true"}, "throws"),
        ("-a IS NULL", {"a": "5"}, True),
        ("a STARTSWITH 'it''s' -- so\n AND/* it * is */a endswith 'all'", {"a": "it's all"}, True),
    ],
)
def test_verdicts_that_surprise(expression: str, properties: dict[str, str], result: object) -> None:
    assert verdict(compile_sql(expression), properties) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "ends where"),
        ("a > > 3", r"character 5: '> 3' stands where"),
        ("a != 3", "unequal is written <>"),
        ('a = "x"', "single quotes"),
        ("a = 'x", "character 5 has no closing quote"),
        ("a /* b", "character 3 has no end"),
        ("a IN (1)", "a text in single quotes"),
        ("3 IN ('x')", "IN looks at a property"),
        ("a = NULL", "write IS NULL"),
        ("a BETWEEN 5 AND 3", "must not be greater"),
        ("a > 'x'", "only numbers and properties"),
        ("a > 9223372036854775808", "does not fit 64 bits"),
        ("a > 0.0", "is zero; write 0"),
        ("17", "17 is no condition"),
        ("a NOT 5", "BETWEEN, IN, CONTAINS"),
    ],
)
def test_what_is_wrong_is_told(expression: str, reason: str) -> None:
    with pytest.raises(SqlError, match=reason):
        compile_sql(expression)


@pytest.mark.parametrize(
    ("expression", "ignored"),
    [
        ("a = 1", ""),
        ("a = 1 -- c\n", ""),
        ("a LIKE 'x%'", "LIKE 'x%'"),
        ("a = 1) OR b", ") OR b"),
        ("a b !", "b !"),
    ],
)
def test_what_follows_an_expression_is_known(expression: str, ignored: str) -> None:
    assert compile_sql(expression).ignored == ignored


def test_names_and_cost() -> None:
    sql = compile_sql("a > 1 AND (b IN ('x', 'y') OR a IS NULL)")
    assert sql.names == {"a", "b"}
    assert 6 <= sql.cost <= 12


# --- bounds ---------------------------------------------------------------------------------------------------


def test_an_expression_may_be_long_but_not_longer() -> None:
    longest = "a = 'x'".ljust(EXPRESSION_CHARS_MAX)
    assert compile_sql(longest).matches({"a": "x"})
    with pytest.raises(SqlError, match=f"at most {EXPRESSION_CHARS_MAX} are allowed"):
        compile_sql(longest + " ")


NESTED = {
    "parentheses": lambda depth: "(" * depth + "a = 'x'" + ")" * depth,
    "NOT": lambda depth: "NOT " * (depth - 2) + "(a = 'x')",
    "equality": lambda depth: "a" + " = 'x'" * (depth - 1),
    "IS NULL": lambda depth: "a" + " IS NULL" * (depth - 1),
    "minus": lambda depth: "-" * (depth - 2) + "5 = 5",
    "both": lambda depth: "(NOT " * (depth // 2 - 1) + "a = 'x'" + ")" * (depth // 2 - 1),
}


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED)
def test_nesting_is_bounded(nest: Any) -> None:
    compile_sql(nest(DEPTH_MAX)).matches({"a": "x"})
    for deeper in (2 * DEPTH_MAX + 4, 800):
        with pytest.raises(SqlError, match=f"more than {DEPTH_MAX} levels"):
            compile_sql(nest(deeper))


def test_a_chain_is_one_level() -> None:
    sql = compile_sql(" OR ".join(f"a={number}" for number in range(800)))
    assert sql.matches({"a": "799"})
    assert not sql.matches({"a": "800"})


# --- any input ------------------------------------------------------------------------------------------------


def refusal(text: str) -> SqlError | None:
    try:
        compile_sql(text)
    except SqlError as error:
        return error
    return None


def survive(text: str, messages: list[dict[str, str]]) -> None:
    refused = refusal(text)
    if refused is not None:
        assert 0 <= refused.position <= len(text)
        assert len(str(refused)) < 200
        return
    sql = compile_sql(text)
    for properties in messages:
        assert verdict(sql, properties) in (True, False, None, "throws")
        assert sql.matches(properties) == (verdict(sql, properties) is True)


@given(st.text(max_size=60) | st.lists(WORDS, max_size=12).map(" ".join))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    survive(text, [{}, {"a": "x", "b": "1"}])


def test_the_corpus_compiles_or_is_refused() -> None:
    messages = property_sets(7, 5)
    for text in expressions(7, 2_000):
        survive(text, messages)


# --- numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((" 7\n", 7.0), ("5d", 5.0), ("1e400", float("inf")), ("0x1p4", 16.0), ("-0x.8p-1", -0.25)),
        *(("0x1p99999999999", float("inf")), ("-0x1p99999", float("-inf")), ("-Infinity", float("-inf"))),
    ],
)
def test_texts_that_are_doubles(text: str, value: float) -> None:
    assert text_to_double(text) == value


@pytest.mark.parametrize("text", ["", "1_0", "nan", "inf", "NaNd", "0x1", "1e", "٣", "\u00a05", "5L", "1 2"])
def test_texts_that_are_none(text: str) -> None:
    with pytest.raises(SqlValueError):
        text_to_double(text)


def test_a_text_that_is_too_long_is_no_number() -> None:
    """The text is a producer's: 32 KiB of digits must not keep a broker busy."""
    for expression in ("a > 1", "a > 1L", "a > 1.5", "a < a"):
        assert verdict(compile_sql(expression), {"a": "0" * 1023 + "7"}) in (True, False)
        assert verdict(compile_sql(expression), {"a": "0" * 1024 + "7"}) == "throws"


def test_doubles_have_one_order() -> None:
    nan = float("nan")
    ascending = [float("-inf"), -1.5, -0.0, 0.0, 1.5, float("inf"), nan]
    for i, low in enumerate(ascending):
        for j, high in enumerate(ascending):
            assert order_doubles(low, high) == (i > j) - (i < j)


@pytest.mark.parametrize("value", VALUES)
def test_no_value_breaks_a_comparison(value: str) -> None:
    for expression in ("a > 1", "a = 1L", "a < 1.5", "a = TRUE", "a > a", "a BETWEEN -5 AND 5"):
        assert verdict(compile_sql(expression), {"a": value}) in (True, False, "throws")
