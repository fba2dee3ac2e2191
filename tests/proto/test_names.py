"""Names: the allowed characters, the limits, and what an error tells."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto import names
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from proto.strategies import TOPICS


@given(TOPICS)
def test_legal_names_pass(name: str) -> None:
    names.check_topic(name)
    names.check_group(name)


@given(st.text(max_size=300))
def test_whatever_passes_is_safe_as_a_folder(name: str) -> None:
    for check in (names.check_topic, names.check_group):
        with suppress(RequestError):
            check(name)
            assert name.isascii()
            assert 0 < len(name) <= 255
            assert not set(name) & set("/\\.: \0\n")


@pytest.mark.parametrize("name", ["", "a b", "..", "a/b", "a\\b", "a\n", "a\0", "主题", "a.b", "a:b", "ａ"])
def test_illegal_characters_are_refused(name: str) -> None:
    for check in (names.check_topic, names.check_group):
        with pytest.raises(RequestError) as refusal:
            check(name)
        assert refusal.value.code == ResponseCode.INVALID_PARAMETER


def test_the_refusal_names_what_where_and_the_limit() -> None:
    with pytest.raises(RequestError, match=r"topic name 'or ders' has ' ' at character 3; allowed are ASCII"):
        names.check_topic("or ders")
    with pytest.raises(RequestError, match=r"topic name 'ttt.*'\.\.\. has 128 characters, at most 127"):
        names.check_topic("t" * 128)
    with pytest.raises(RequestError, match=r"group name .* has 256 characters, at most 255"):
        names.check_group("g" * 256)
    with pytest.raises(RequestError, match="the group name is empty"):
        names.check_group("")


def test_topics_made_of_groups_may_be_longer() -> None:
    for make in (names.retry_topic, names.dlq_topic):
        topic = make("g" * 240)
        names.check_topic(topic, internal=True)
        with pytest.raises(RequestError, match="at most 127"):
            names.check_topic(topic)
        with pytest.raises(RequestError, match="at most 255"):
            names.check_topic(make("g" * 251), internal=True)
    with pytest.raises(RequestError, match="at most 127"):
        names.check_topic("t" * 128, internal=True)


def test_special_topics_are_known() -> None:
    assert names.retry_topic("g1") == "%RETRY%g1"
    assert names.dlq_topic("g1") == "%DLQ%g1"
    assert names.reply_topic("c1") == "c1_REPLY_TOPIC"
    assert names.is_retry_topic("%RETRY%g1")
    assert not names.is_retry_topic("RETRY")
    assert names.is_internal_topic("%DLQ%g1")
    assert not names.is_internal_topic("T1")
    for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "SELF_TEST_TOPIC", "c1", "b1"):
        assert names.is_system_topic(topic, cluster_name="c1", broker_name="b1")
    assert names.is_system_topic("c1_REPLY_TOPIC", cluster_name="c1")
    assert not names.is_system_topic("c1")
    assert not names.is_system_topic("")
    assert not names.is_system_topic("T1", cluster_name="c1", broker_name="b1")
    assert all(names.is_system_topic(topic) for topic in names.KEPT_TOPICS)
