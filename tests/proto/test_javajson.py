"""fastjson's dialect: what it writes, what it reads, captured bodies, and any bytes at all."""

import gc
import gzip
import itertools
import json
import math
import time
from base64 import b64decode
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_proto import javajson
from aerobee_proto.errors import FormatError
from aerobee_proto.javajson import (
    DEPTH_MAX,
    MessageQueue,
    dumps,
    dumps_standard,
    dumps_steps,
    loads,
    message_queue_of,
    sorted_steps,
)
from proto.strategies import I32, I64, TEXT_CHARACTERS, TOPICS, json_values
from proto.tables import GOLDEN
from turns import TURN_MAX, cpu_ms, reference

QUEUE = MessageQueue("T1", "b-a", 0)
QUEUES = st.builds(MessageQueue, TOPICS, TOPICS, I32)
# Where standard JSON and the tolerant parser must agree, the parser is asked directly.
parse = javajson.Parser
END = object()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"b": 1, "a": None, "c": [None, True, False]}, b'{"b":1,"c":[null,true,false]}'),
        ({0: "10.0.0.7:10911", 10: "x", 2: "y"}, b'{0:"10.0.0.7:10911",2:"y",10:"x"}'),
        ({QUEUE: 12}, b'{{"brokerName":"b-a","queueId":0,"topic":"T1"}:12}'),
        ({"q": QUEUE}, b'{"q":{"brokerName":"b-a","queueId":0,"topic":"T1"}}'),
        ([0.0, 1e10, 0.001, 9999999.0, 12.5, -0.0], b"[0.0,1.0E10,0.001,9999999.0,12.5,-0.0]"),
        ([1e7, 1.5e-4, -1.25e300, 12345678.9], b"[1.0E7,1.5E-4,-1.25E300,1.23456789E7]"),
        ([math.inf, math.nan], b"[null,null]"),
        (
            '\u4e3b\u9898 \U0001f600 "\\/\b\f\n\r\t\x01',
            '"\u4e3b\u9898 \U0001f600 \\"\\\\/\\b\\f\\n\\r\\t\\u0001"'.encode(),
        ),
        ({"b", "a"}, b'["a","b"]'),
        ((1, "x"), b'[1,"x"]'),
        ({}, b"{}"),
    ],
)
def test_written_form(value: Any, written: bytes) -> None:
    assert dumps(value) == written


def test_standard_form_is_json_in_ascii_with_quoted_keys() -> None:
    text = dumps_standard({0: "\u4e3b", QUEUE: 1, "n": {"m": None}})
    assert text.isascii()
    assert json.loads(text) == {"0": "\u4e3b", '{"brokerName":"b-a","queueId":0,"topic":"T1"}': 1, "n": {}}
    assert message_queue_of(list(loads(text))[2]) == QUEUE


@pytest.mark.parametrize("value", [object(), b"bytes", {b"k": 1}, {1.5: 1}, {("a",): 1}])
def test_what_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ('{"0":"a"}', {"0": "a"}),
        ("{-1:{+2:3}}", {-1: {2: 3}}),
        ('{{"brokerName":"b-a","queueId":0,"topic":"T1"}:12}', {QUEUE: 12}),
        ('{ { "topic" : "T1" , "queueId" : "0" , "brokerName" : "b-a" } : 12 }', {QUEUE: 12}),
        ("{{brokerName:'b-a',queueId:0,topic:'T1',extra:null}:12,}", {QUEUE: 12}),
        ("{'a':'it\\'s',\"b\":\"it's\"}", {"a": "it's", "b": "it's"}),
        ("{a:1,$b_2:[1,2,],,c.d:true}", {"a": 1, "$b_2": [1, 2], "c.d": True}),
        ("[,1,,2,]", [1, 2]),
        ("// one\n{/* two */ a /* ** */ : 1 // three\n}", {"a": 1}),
        ("\ufeff {}", {}),
        ("[12L,1.5F,2D,3B,.5,1.,-2e3]", [12, 1.5, 2, 3, 0.5, 1.0, -2000.0]),
        ("{a:NaN,b:undefined,c:null}", {"a": None, "b": None, "c": None}),
        ("'\\x41\\u4e3b\\uD83D\\uDE00\\v\\0\\7'", "A\u4e3b\U0001f600\v\0\x07"),
        ("'\\ud83d alone \\ude00'", "\ufffd alone \ufffd"),
        ('"raw \n newline"', "raw \n newline"),
        ("{1.5:1}", {"1.5": 1}),
        ("{null:1}", {"null": 1}),
        ("{a:1,a:2}", {"a": 2}),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_tolerated_forms(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[",
        "{]",
        "[}",
        "{a}",
        "{a:}",
        "{:1}",
        "{a 1}",
        "[1 2]",
        "{a:1 b:2}",
        "nul",
        "1 2",
        "{} x",
        "'open",
        '"open\\',
        "'\\q'",
        "'\\u12'",
        "'\\xg1'",
        "/* open",
        "{[1]:2}",
        "{{}:1}",
        "{{a:1}:1}",
        "{{topic:1}:1}",
        "{{topic:'t',queueId:'x'}:1}",
        "--1",
        "1e999",
        "9" * 5000,
        "@",
    ],
)
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        loads(text.encode())


@given(json_values())
def test_standard_json_reads_the_same_both_ways(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert loads(text.encode()) == value
    assert parse(text).document() == value


@given(json_values())
def test_write_then_read_is_identity(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert parse(dumps(value).decode()).document() == value
    assert json.loads(dumps(value)) == value
    assert loads(dumps_standard(value)) == value


KEYED = st.recursive(
    I64,
    lambda inner: st.one_of(
        st.dictionaries(I64, inner, max_size=3),
        st.dictionaries(QUEUES, inner, max_size=3),
        st.lists(inner, max_size=3),
    ),
    max_leaves=10,
)


@given(KEYED)
def test_tables_with_raw_keys_round_trip(value: Any) -> None:
    assert loads(dumps(value)) == value


@given(st.one_of(json_values(), KEYED))
@example({"n": None, "m": {"n": None}, "e": [[], {}]})
@example([{"b", "a"}, ("x", None, 1.5), QUEUE])
def test_what_is_written_in_steps_is_what_is_written_at_once(value: Any) -> None:
    assert run(dumps_steps(value))[0] == dumps(value)
    assert run(dumps_steps(value, standard=True))[0] == dumps_standard(value)


def run(steps: Any) -> tuple[Any, int]:
    """What the steps return, and how many there were."""
    for count in itertools.count():
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
    raise AssertionError


def longest_step(steps: Any) -> float:
    """Processor time of the longest step, in units of `turns.reference`; no sweeps over what tests keep."""
    longest = 0.0
    gc.collect()
    gc.freeze()
    try:
        for _ in range(100_000):
            began = time.thread_time()
            ended = next(steps, END) is END
            longest = max(longest, time.thread_time() - began)
            if ended:
                return longest * 1000 / min(cpu_ms(reference) for _ in range(5))
    finally:
        gc.unfreeze()
    raise AssertionError


def test_a_large_value_is_written_in_steps_none_of_which_is_long() -> None:
    """Lists of 100,000 topics were sorted and written in one turn of the event loop."""
    names = [f"topic-{number * 7919 % 100_003}" for number in range(50_000)]
    table = {name: {"x": [number, "y" * 100]} for number, name in enumerate(names)}
    for value in (names, table, set(names), dict(enumerate(names))):
        assert longest_step(dumps_steps(value)) < TURN_MAX / 4
    assert run(dumps_steps(table))[0] == dumps(table)
    for key in (None, str.swapcase):
        result, count = run(sorted_steps(names, key))
        assert result == sorted(names, key=key)
        assert count > 50_000 / 256


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 9000, 32_768, 32_769, 70_000])
def test_any_count_is_sorted_in_an_end_of_steps(count: int) -> None:
    """From 4,097 to 32,768 texts there was no end: a nameserver never listed that many topics."""
    names = [str(number * 7919 % 100_003) for number in range(count)]
    result, steps = run(islice_of(sorted_steps(names), 1000))
    assert (result, steps < 1000) == (sorted(names), True)


def islice_of(steps: Generator[None, None, list[str]], count: int) -> Generator[None, None, list[str]]:
    """The same work, but no more than so many steps of it."""
    for _ in range(count):
        try:
            yield next(steps)
        except StopIteration as end:
            found: list[str] = end.value
            return found
    return []


def test_members_of_a_list_may_be_made_one_by_one() -> None:
    made: list[int] = []

    def members() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    steps = dumps_steps({"all": members()})
    next(steps)
    assert 0 < len(made) < 1000
    assert run(steps)[0] == dumps({"all": list(range(1000))})


def test_a_value_beyond_its_size_is_refused_before_it_is_written_out() -> None:
    made: list[int] = []

    def members() -> Iterator[str]:
        for number in range(1000):
            made.append(number)
            yield "x" * 1000

    steps = dumps_steps(members(), size_max=50_000)
    with pytest.raises(FormatError, match="more than 50000 bytes"):
        run(steps)
    assert len(made) < 200
    with pytest.raises(FormatError, match="deeper than 64"):
        run(dumps_steps([loads(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)]))
    with pytest.raises(TypeError):
        run(dumps_steps([b"bytes"]))


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(1.7976931348623157e308)
@example(0.0009999999999999999)
@example(9999999.999999998)
def test_doubles_survive_in_java_form(value: float) -> None:
    text = dumps(value).decode()
    assert float(text) == value
    assert "." in text
    assert "e" not in text
    assert ("E" in text) == (value != 0 and not 1e-3 <= abs(value) < 1e7)


@given(st.binary(max_size=100))
def test_any_bytes_raise_only_format_errors(raw: bytes) -> None:
    with suppress(FormatError):
        loads(raw)


@given(st.text("{}[]:,'\"\\abu0129.-+eELnrtx /*$@\n\ufeff", max_size=60))
def test_any_near_json_raises_only_format_errors(text: str) -> None:
    with suppress(FormatError):
        loads(text.encode())


@given(st.text(TEXT_CHARACTERS))
def test_any_text_survives_quoted(text: str) -> None:
    assert loads(dumps(text)) == text
    assert loads(dumps_standard(text)) == text


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{a:", b"{0:[", b"{{"])
def test_depth_is_bounded(opening: bytes) -> None:
    with pytest.raises(FormatError):
        loads(opening * 100_000)
    nested = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert dumps(loads(nested)) == nested
    with pytest.raises(FormatError, match="deeper than 64"):
        loads(b"[" + nested + b"]")
    with pytest.raises(FormatError, match="deeper than 64"):
        dumps([loads(nested)])


def test_brackets_in_strings_and_side_by_side_are_not_depth() -> None:
    value = ["[{" * 500, [[]] * 200]
    assert loads(dumps(value)) == value


def test_size_is_bounded() -> None:
    with pytest.raises(FormatError, match="11 bytes; at most 10"):
        loads(b'"123456789"', size_max=10)


def test_queues_are_read_out_of_text_keys() -> None:
    assert message_queue_of('{"brokerName":"b-a","queueId":0,"topic":"T1"}') == QUEUE
    assert message_queue_of(QUEUE) is QUEUE
    for key in ("T1", 5, "{broken", '{"a":1}', "[1]"):
        with pytest.raises(FormatError):
            message_queue_of(key)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        (
            '{"a":[{"x":1}],"b":[{"$ref":"$.a[0]"},{"$ref":"$.a[0].x"}]}',
            {"a": [{"x": 1}], "b": [{"x": 1}, 1]},
        ),
        ('{0:{"$ref":"$.T\\\\.1"},"T.1":[]}', {0: [], "T.1": []}),
        ('{"a":{"$ref":"$.nowhere"}}', {"a": {"$ref": "$.nowhere"}}),
        ('{"a":{"$ref":"$.l[7]"},"l":[]}', {"a": {"$ref": "$.l[7]"}, "l": []}),
        ('{"a":{"$ref":"$"}}', {"a": {"$ref": "$"}}),
        ('{"a":{"$ref":".."}}', {"a": {"$ref": ".."}}),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}', {"a": {"$ref": "$.b"}, "b": {"$ref": "$.a"}}),
        ('{"$ref":"$.a"}', {"$ref": "$.a"}),
        ('{"$ref":5,"a":1}', {"$ref": 5, "a": 1}),
    ],
)
def test_references(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


def test_references_do_not_multiply() -> None:
    """Each level refers to the one before twice: resolved blindly, 60 levels would be 2**60 values."""
    levels = {"l0": [1]} | {f"l{i}": [{"$ref": f"$.l{i - 1}"}] * 2 for i in range(1, 60)}
    value = loads(json.dumps(levels).encode())
    assert value["l1"] == [[1], [1]]
    assert value["l2"] == [{"$ref": "$.l1"}] * 2


def test_references_are_counted_before_anybody_copies_them() -> None:
    """One list of 20,000 values that was named 60 times made 1.2 million values of 600 KB, and of 4 MiB tens of GB."""
    text = {"list": [{"x": 1}] * 5_000, "again": [{"$ref": "$.list"}] * 60}
    with pytest.raises(FormatError, match="references of the text stand for more than"):
        loads(json.dumps(text).encode())
    small = {"list": [{"x": 1}] * 20, "again": [{"$ref": "$.list"}] * 60}
    assert loads(json.dumps(small).encode())["again"] == [[{"x": 1}] * 20] * 60


def test_only_standard_json_is_read_beyond_the_tolerant_bound() -> None:
    """One pair of single quotes in 4 MiB was enough for seconds in the parser, in the event loop of a server."""
    assert loads(b"{'a':1}", tolerant_size_max=7) == {"a": 1}
    with pytest.raises(FormatError, match=r"8 bytes that are not standard JSON .*; at most 7 are read then"):
        loads(b"{'a':12}", tolerant_size_max=7)
    assert loads(b'{"a":[1,2,3]}', tolerant_size_max=7) == {"a": [1, 2, 3]}
    with pytest.raises(FormatError, match="at most 7 are read then"):
        loads(b"[" * 65 + b"]" * 65, tolerant_size_max=7)


def captured_bodies() -> Iterator[bytes]:
    for path in sorted((GOLDEN / "wire").glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if row.get("body_kind") == "json":
                    yield b64decode(row["frame_b64"])[-row["body_len"] :]


def test_captured_bodies_are_read_and_written_again() -> None:
    """Same bytes in another order: official maps are unordered, ours are sorted."""
    count = 0
    for body in captured_bodies():
        value = loads(body)
        written = dumps(value)
        assert loads(written) == value
        assert sorted(written) == sorted(body)
        count += 1
    assert count > 1000
