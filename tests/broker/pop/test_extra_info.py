"""The texts by which popped messages are named, and the names of retry topics."""

import pytest

from aerobee_broker.pop.extra_info import (
    PopInfo,
    extra_info,
    message_offsets,
    normal_topic,
    order_count,
    parse_extra_info,
    pop_retry_topic,
    real_topic,
    retry_mark,
    start_offset,
)
from aerobee_proto.errors import RequestError
from aerobee_proto.names import check_topic

INFO = PopInfo(5, 1_700_000_000_000, 60_000, 3, "0", "broker-a", 2)


def test_what_is_handed_out_is_read_again() -> None:
    text = extra_info(INFO, 7)
    assert text == "5 1700000000000 60000 3 0 broker-a 2 7"
    assert parse_extra_info(text) == INFO
    assert parse_extra_info(text.rsplit(" ", 1)[0]) == INFO


@pytest.mark.parametrize("text", ["", "5", "5 6 7 8 0 broker-a", "5 6 7 8 0 broker-a x", "a b c d e f g h"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="extraInfo"):
        parse_extra_info(text)


@pytest.mark.parametrize(("v2", "name", "mark"), [(False, "%RETRY%g_1_T", "1"), (True, "%RETRY%g_1+T", "2")])
def test_retry_topics_are_made_and_taken_apart(v2: bool, name: str, mark: str) -> None:
    assert pop_retry_topic("g_1", "T", v2=v2) == real_topic("g_1", "T", mark) == name
    assert (retry_mark(name), normal_topic("g_1", name)) == (mark, "T")
    check_topic(name, internal=True)


def test_other_topics_are_their_own() -> None:
    assert (retry_mark("T"), normal_topic("g", "T"), real_topic("g", "T", "0")) == ("0", "T", "T")
    with pytest.raises(RequestError, match="retry mark"):
        real_topic("g", "T", "3")
    with pytest.raises(RequestError):
        check_topic("%RETRY%g+T")  # nobody may ask for it by name
    with pytest.raises(RequestError):
        check_topic("%RETRY%g+a+b", internal=True)


def test_what_an_answer_says_of_its_queues() -> None:
    assert start_offset("T", 2, 5) == "0 2 5"
    assert message_offsets("%RETRY%g_T", 0, [5, 7]) == "1 0 5,7"
    assert order_count("T", 2, 5, 1) == "0 qo2%5 1"
    assert order_count("%RETRY%g+T", 2, None, 0) == "2 2 0"
