"""The little language that changes attributes, as tables."""

import pytest

from aerobee_broker.catalog.attributes import alter, parse_alterations
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError

GOOD = {
    "nothing": (None, {}),
    "empty": ("", {}),
    "one": ("+message.type=FIFO", {"+message.type": "FIFO"}),
    "several": ("+message.type=FIFO,-reserve.time", {"+message.type": "FIFO", "-reserve.time": ""}),
    "a value with an equals sign": ("+a=b=c", {"+a": "b=c"}),
}
BAD = ["message.type=FIFO", "+message.type", "-reserve.time=1", "+", "-", ",", "+a=1,+a=2", "+=x", "x" * 5000]


@pytest.mark.parametrize(("text", "alterations"), GOOD.values(), ids=GOOD)
def test_good_texts(text: str | None, alterations: dict[str, str]) -> None:
    assert parse_alterations(text) == alterations


@pytest.mark.parametrize("text", BAD)
def test_bad_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_alterations(text)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("current", "alterations", "creating", "after"),
    [
        ({}, {"+message.type": "FIFO"}, True, {"message.type": "FIFO"}),
        ({}, {"+queue.type": "SimpleCQ"}, True, {"queue.type": "SimpleCQ"}),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY"}, False, {"message.type": "DELAY"}),
        ({"message.type": "FIFO"}, {"-message.type": ""}, False, {}),
        ({"reserve.time": "1"}, {"+reserve.time": "-1"}, False, {"reserve.time": "-1"}),
        ({}, {"-message.type": ""}, False, {}),
        ({"queue.type": "SimpleCQ"}, {"+queue.type": "SimpleCQ"}, False, {"queue.type": "SimpleCQ"}),
        ({"foreign": "kept"}, {}, False, {"foreign": "kept"}),
    ],
)
def test_changes_that_are_taken(
    current: dict[str, str], alterations: dict[str, str], creating: bool, after: dict[str, str]
) -> None:
    before = dict(current)
    assert alter(current, alterations, creating=creating) == after
    assert current == before


@pytest.mark.parametrize(
    ("alterations", "creating", "names"),
    [
        ({"+color": "red"}, True, "color"),
        ({"message.type": "FIFO"}, True, "message.type"),
        ({"": ""}, True, "unknown attribute"),
        ({"-message.type": ""}, True, "does not exist yet"),
        ({"+message.type": "ODD"}, True, "UNSPECIFIED"),
        ({"+reserve.time": "-2"}, True, "-1"),
        ({"+reserve.time": "9" * 30}, True, "integer"),
        ({"+reserve.time": "١"}, True, "integer"),
        ({"+queue.type": "RocksDBCQ"}, True, "SimpleCQ, BatchCQ"),
        ({"+queue.type": "BatchCQ"}, False, "after creation"),
        ({"+cleanup.policy": "COMPACTION"}, True, "DELETE"),
        ({"+cleanup.policy": "DELETE"}, False, "after creation"),
    ],
)
def test_changes_that_are_refused(alterations: dict[str, str], creating: bool, names: str) -> None:
    with pytest.raises(RequestError, match=names):
        alter({}, alterations, creating=creating)
