"""The part of YAML that files of accounts are written in."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_access.plain_yaml import Value, read_yaml, write_yaml
from aerobee_proto.errors import FormatError

OFFICIAL = """# RocketMQ's own example
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*   # the office

accounts:
  - accessKey: RocketMQ
    secretKey: '12345678'
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
    groupPerms: [groupA=DENY, "group#B=PUB"]

  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
"""


def test_the_official_example_is_read() -> None:
    assert read_yaml(OFFICIAL) == {
        "globalWhiteRemoteAddresses": ["10.10.103.*", "192.168.0.*"],
        "accounts": [
            {
                "accessKey": "RocketMQ",
                "secretKey": "12345678",
                "whiteRemoteAddress": None,
                "admin": False,
                "defaultTopicPerm": "DENY",
                "defaultGroupPerm": "SUB",
                "topicPerms": ["topicA=DENY", "topicB=PUB|SUB"],
                "groupPerms": ["groupA=DENY", "group#B=PUB"],
            },
            {"accessKey": "rocketmq2", "secretKey": 12345678, "admin": True},
        ],
    }


FORMS: dict[str, Value] = {
    "": None,
    "# x\n": None,
    "---\na: 1\n": {"a": 1},
    "a:\n- 1\n": {"a": [1]},
    "a: []\n": {"a": []},
    "a: [b, ]\n": {"a": ["b"]},
    "'a b': 1\n": {"a b": 1},
    "a: 'it''s'\n": {"a": "it's"},
    "-\n  a: b\n": [{"a": "b"}],
    "a: yes\nb: Off\nc: NULL\nd: tRue\n": {"a": True, "b": False, "c": None, "d": "tRue"},
    "a: 0\nb: -7\nc: 0123\nd: 1:1\n": {"a": 0, "b": -7, "c": "0123", "d": "1:1"},
}


@pytest.mark.parametrize(("text", "value"), FORMS.items())
def test_forms(text: str, value: Value) -> None:
    assert read_yaml(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "a: &x b\n",
        "a: *x\nb: !tag c\n",
        "a: |\n  text\n",
        "a: {b: c}\n",
        "a: [b\n",
        "a: 'b\n",
        "a: 1\na: 2\n",
        "a: 1\n---\nb: 2\n",
        "\ta: 1\n",
        "a: 1\n   b: 2\n",
        "just text\nmore\n",
        "a:\n" + "".join("  " * depth + "- a:\n" for depth in range(1, 20)),
        # Python's own errors came of these: of an empty text, and of a list in lists without end.
        "a: [b,,c]\n",
        "a: [,]\n",
        "a: [[b]]\n",
        "a: [b], c]\n",
        "a: [b, c{d}]\n",
        "a: " + "[" * 3000 + "]" * 3000 + "\n",
        "a: [\n",
        # What stands there is not what YAML makes of it.
        'a: "b\\tc"\n',
        'a: "b""c"\n',
        "- - b\n",
        "- -\n",
        "a: [-]\n",
        "- b c:\n",
    ],
)
def test_what_is_not_read_is_named_by_its_line(text: str) -> None:
    with pytest.raises(FormatError, match=r"line \d+"):
        read_yaml(text)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=12)
SCALARS = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), TEXTS)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
LISTS = st.recursive(st.lists(SCALARS, max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
FILES = st.dictionaries(
    KEYS,
    st.one_of(
        SCALARS,
        LISTS,
        st.lists(st.dictionaries(KEYS, SCALARS, min_size=1, max_size=3), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@given(FILES)
def test_what_is_written_is_read_again(value: dict[str, Value]) -> None:
    assert read_yaml(write_yaml(value)) == value


@pytest.mark.parametrize("key", ["a b", "it's", 'say "a"', "a:", "#a", "-", ""])
def test_a_key_that_is_no_plain_word_is_written_in_quotes(key: str) -> None:
    assert read_yaml(write_yaml({key: 1})) == {key: 1}


@pytest.mark.parametrize(
    "text", ["- [1, 2]", "-\n  - 1\n  -\n    - a: b\n", "c:\n- ['-']", "c:\n-\n  - 1\nd: 2"]
)
def test_a_list_in_a_list_is_written_as_it_is_read(text: str) -> None:
    """It was written behind the dash of the other one, where it was read as a text; a dash alone was no item."""
    content = read_yaml(text)
    assert read_yaml(write_yaml(content)) == content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: it's # his", "it's"),
        ("a: b:'c # d", "b:'c"),
        ("a: 'it''s # his' # hers", "it's # his"),
        ('a: "x # y" # z', "x # y"),
        ("a: [b'c, 'd # e', f] # g", ["b'c", "d # e", "f"]),
        ("a: ['it''s, his', b]", ["it's, his", "b"]),
        ("a: #b", None),
        ("a: b#c", "b#c"),
    ],
)
def test_a_quote_begins_where_a_value_does(text: str, value: Value) -> None:
    assert read_yaml(text) == {"a": value}


def test_brackets_in_quotes_are_letters() -> None:
    assert read_yaml("a: [\"[b]\", 'c]', d]\n") == {"a": ["[b]", "c]", "d"]}


def test_a_comment_behind_an_item_and_behind_a_quoted_key() -> None:
    assert read_yaml("- 'a # b' # c\n- it's # d\n") == ["a # b", "it's"]
    assert read_yaml("'a # b': 1 # c\n") == {"a # b": 1}


# Texts of what means something here: they reach further than any text does.
PIECES = st.sampled_from(
    ["a", "- ", "-", ": ", ":", "\n", "  ", " ", "[", "]", ",", "'", '"', "#", "1", "~", "true"]
)


@given(st.lists(PIECES, max_size=24).map("".join))
@settings(max_examples=400)
def test_what_is_read_is_written_as_it_was(text: str) -> None:
    try:
        content = read_yaml(text)
    except FormatError:
        return
    if content is not None:
        assert read_yaml(write_yaml(content)) == content


@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_one_error(text: str) -> None:
    with suppress(FormatError):
        read_yaml(text)
