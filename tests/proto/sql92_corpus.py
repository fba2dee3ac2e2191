"""Expressions and properties for tests of the SQL92 filter, the same at every run with one seed.

Half of the expressions follow the grammar, with values and spellings that lie at its edges; half are words thrown
together, of which some compile by chance and most must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["VALUES", "expressions", "property_sets"]

NAMES = ["a", "b", "c", "TAGS", "$x", "_y9", "A", "missing", "inner", "true1"]
TEXTS = ["'x'", "'it''s'", "''", "'1'", "'5'", "'tr'", "'true'", "'标签'", "'x y'", "' 7'", "'''", "'1.5'"]
NUMBERS = [
    *("0", "1", "5", "17", "3L", "17l", "0L", "007", "2147483647", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "99999999999999999999", "1.5", "5.", ".5", "0.0", "1e3", "1E-2", "5.0", "1e400"),
    *("1e-400", "2147483648.0", "9007199254740993", "9007199254740992.0", "1.5L", "12E", "4.9E-324"),
]
CONSTANTS = ["TRUE", "FALSE", "NULL", "true", "fAlSe", "null"]
SIGNS = ["=", "<>", ">", ">=", "<", "<="]
LOOSE = [
    *(
        "AND",
        "OR",
        "NOT",
        "IN",
        "IS",
        "BETWEEN",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
        "(",
        ")",
        ",",
        "+",
        "-",
    ),
    *(
        "!",
        "==",
        "!=",
        '"x"',
        "LIKE",
        "'x",
        "/* c */",
        "-- c\n",
        "--",
        "/*",
        "/**/",
        "/*/",
        ";",
        "%",
        "\u00e9",
        ".",
    ),
]
VALUES = [
    *(
        "x",
        "it's",
        "1",
        "5",
        "17",
        "0",
        "-0",
        "+5",
        "-5",
        "007",
        " 7",
        "7 ",
        "1.5",
        "5.0",
        "1e3",
        "1E-2",
        "NaN",
    ),
    *(
        "Infinity",
        "-Infinity",
        "+NaN",
        "0x10",
        "0x1p4",
        "0x.8p-1",
        "0x1p99999",
        "5d",
        "5f",
        "5L",
        "1_000",
        "nan",
    ),
    *(
        "inf",
        "true",
        "TRUE",
        "tRuE",
        "false",
        "yes",
        "标签",
        "x y",
        "٣",
        "５",
        "𝟓",
        "2147483647",
        "2147483648",
    ),
    *("-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *(
        "9007199254740993",
        "1e400",
        "1e-400",
        "-0.0",
        "0.0",
        ".5",
        "5.",
        ".",
        "-",
        "+",
        "e5",
        "\t5\n",
        "\u00a05",
    ),
    *("0" * 1000 + "7", "9" * 1000, "NaNd", "0x", "1e", "1e+", "--5", "trueish", "\x00 1.5", "4.9E-324"),
]


def expressions(seed: int, count: int) -> Iterator[str]:
    """`count` expressions; the same for the same seed."""
    choose = random.Random(seed)
    for number in range(count):
        if number % 2:
            yield _spelled(choose, _condition(choose, choose.randint(1, 4)))
        else:
            yield _soup(choose)


def property_sets(seed: int, count: int) -> list[dict[str, str]]:
    """Properties of `count` messages."""
    choose = random.Random(seed)
    sets: list[dict[str, str]] = [{}]
    for _ in range(count - 1):
        names = [name for name in NAMES if name != "missing" and choose.random() < 0.75]
        sets.append({name: choose.choice(VALUES) for name in names})
    return sets


def _condition(choose: random.Random, depth: int) -> str:
    if depth <= 0:
        return _simple(choose)
    kind = choose.randrange(8)
    if kind < 2:
        return (
            f"{_condition(choose, depth - 1)} {choose.choice(['AND', 'OR'])} {_condition(choose, depth - 1)}"
        )
    if kind < 4:
        return f"({_condition(choose, depth - 1)})"
    if kind == 4:
        return f"NOT ({_condition(choose, depth - 1)})"
    if kind == 5:
        other = choose.choice([*CONSTANTS, *NAMES, *TEXTS, *NUMBERS, f"({_condition(choose, depth - 1)})"])
        pair = [f"({_condition(choose, depth - 1)})", other]
        choose.shuffle(pair)
        return f"{pair[0]} {choose.choice(['=', '<>'])} {pair[1]}"
    if kind == 6:
        return f"({_condition(choose, depth - 1)}) IS {choose.choice(['', 'NOT '])}NULL"
    return _simple(choose)


def _simple(choose: random.Random) -> str:
    value, negation = _value(choose), choose.choice(["", "NOT "])
    kind = choose.randrange(10)
    if kind < 5:
        return f"{value} {choose.choice(SIGNS)} {_value(choose)}"
    if kind == 5:
        return f"{value} {negation}BETWEEN {_value(choose)} AND {_value(choose)}"
    if kind == 6:
        texts = ", ".join(choose.choice(TEXTS) for _ in range(choose.randint(1, 7)))
        return f"{choose.choice([*NAMES, value])} {negation}IN ({texts})"
    if kind == 7:
        return f"{value} IS {negation}NULL"
    if kind == 8:
        search = choose.choice(["CONTAINS", "STARTSWITH", "ENDSWITH"])
        return f"{value} {negation}{search} {choose.choice(TEXTS)}"
    return choose.choice([value, choose.choice(CONSTANTS), f"NOT {choose.choice(NAMES)}"])


def _value(choose: random.Random) -> str:
    kind = choose.randrange(12)
    if kind < 6:
        return choose.choice(NAMES)
    if kind < 9:
        return choose.choice(NUMBERS)
    if kind == 9:
        return choose.choice(TEXTS)
    if kind == 10:
        return (
            choose.choice("+-") + " " * choose.randint(0, 1) + choose.choice([*NUMBERS, *NAMES, "(a)", "-5"])
        )
    return choose.choice([*CONSTANTS, "(a > 1)", "-(b = 'x')", "(NULL)", "('x')"])


def _spelled(choose: random.Random, text: str) -> str:
    """The expression in other letters, with other blanks, and now and then with something behind it."""
    if choose.random() < 0.2:
        text = text.replace("AND", "anD").replace("NOT", "not").replace("BETWEEN", "Between")
    if choose.random() < 0.1:
        text = text.replace(" ", choose.choice(["\n", "\t", "  ", " /* c ** / */ ", " -- c\n"]))
    if choose.random() < 0.1:
        text += " " + choose.choice([*LOOSE, *NAMES, *NUMBERS])
    return text


def _soup(choose: random.Random) -> str:
    usual = [*NAMES, *NUMBERS, *TEXTS, *CONSTANTS, *SIGNS, *LOOSE]
    words = [choose.choice(usual) for _ in range(choose.randint(1, 7))]
    if choose.random() < 0.7:  # so that more of it gets past the first words
        words = [choose.choice(NAMES), choose.choice([*SIGNS, "IS", "NOT"]), choose.choice(usual), *words]
    return choose.choice([" ", " ", " ", ""]).join(words)
