"""Options of reads of topics: what they mean, and what is refused before a cluster is asked."""

from typing import Any

import pytest

from aerobee import MessageQueue, SqlFilter, TagFilter
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.options import Options
from pyspark_aerobee.topic_options import End, PerQueue, TopicOptions, read_topic_options

NOW_MS = 1_800_000_000_000
Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def parsed(*, streaming: bool = False, **options: Any) -> TopicOptions:
    given = {"nameServer": "mq:9876", "subscribe": "T"} | {
        name: str(value) for name, value in options.items()
    }
    if {"topic", "assign", "subscribePattern"} & set(options):
        del given["subscribe"]
    return read_topic_options(given, now_ms=NOW_MS, streaming=streaming)


def test_what_is_not_said() -> None:
    batch, stream = parsed(), parsed(streaming=True)
    assert (batch.start.where, batch.end.where) == (End.EARLIEST, End.LATEST)
    assert stream.start.where is End.LATEST
    assert (batch.filter, batch.fail_on_data_loss, batch.min_partitions) == (TagFilter(), True, 1)
    assert batch.cluster.nameservers == ("mq:9876",)


def test_names_are_read_whatever_their_case() -> None:
    given = {"NAMESRVADDR": "a;b:1", "Topic": "x, y", "STARTINGOFFSETS": "Earliest"}
    found = read_topic_options(given, now_ms=NOW_MS)
    assert found.cluster.nameservers == ("a:9876", "b:1")
    assert found.choice.topics == ("x", "y")


def test_places() -> None:
    logged = '{"T": {"broker-a": {"0": 23, "1": -2}}}'
    assert parsed(startingOffsets=logged).start.where == PerQueue({Q0: 23, Q1: -2})
    assert parsed(startingOffsets="group-offsets", group="g").start.where is End.GROUP
    assert parsed(startingTimestamp="-1h").start.where == NOW_MS - 3_600_000
    assert parsed(endingTimestamp="2026-01-31T08:00:00Z").end.where == 1_769_846_400_000
    times = parsed(startingOffsetsByTimestamp='{"T": {"broker-a": {"0": 1700000000000, "1": "-1d"}}}').start
    assert times.where == PerQueue({Q0: 1_700_000_000_000, Q1: NOW_MS - 86_400_000}, times=True)
    assert times.is_time


def test_choices_of_queues() -> None:
    assigned = parsed(assign='{"T": {"broker-a": [0, 2]}, "U": [1]}').choice
    queues = [MessageQueue("T", "broker-a", 2), MessageQueue("T", "broker-b", 0), MessageQueue("U", "any", 1)]
    assert [assigned.selects(queue) for queue in queues] == [True, False, True]
    assert assigned.selects_topic("U")
    narrowed = parsed(queueId="0, 1", brokerName="broker-b").choice
    assert [narrowed.selects(queue) for queue in queues] == [False, True, False]
    pattern = parsed(subscribePattern="a.*z").choice
    assert [pattern.selects_topic(name) for name in ("abcz", "abczz1", "xaz")] == [True, False, False]


def test_filters() -> None:
    assert parsed(subExpression="a || b").filter == TagFilter("a || b")
    assert parsed(tags="a,b").filter == TagFilter(["a", "b"])
    assert isinstance(parsed(subExpression="x > 3", filterType="SQL92").filter, SqlFilter)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"assign": '{"a": '}, "it is no JSON"),
        ({"assign": "[]"}, "write it as"),
        ({"assign": '{"a": {}}'}, "brokers with lists of queue ids"),
        ({"assign": '{"a": ["x"]}'}, "'x' is no queue id"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"topic": " , "}, "at least one topic"),
        ({"queueId": "-1"}, "is no queue id"),
        ({"startingOffsets": "latest"}, "reads nothing"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"startingOffsets": "earlest"}, "did you mean earliest"),
        ({"startingOffsets": "group"}, "name the group"),
        ({"startingOffsets": '{"T": 5}'}, "topic T: write it as"),
        ({"startingOffsets": '{"T": {"0": 5}}'}, "it must be a broker with queues"),
        ({"startingOffsets": '{"T": {"b": {"0": "5"}}}'}, "'5' is no whole number"),
        ({"startingOffsets": '{"T": {"b": {"0": -3}}}'}, "neither an offset nor"),
        ({"startingOffsetsByTimestamp": '{"T": {"b": {"0": -3}}}'}, "is no time"),
        ({"startingTimestamp": "yesterday"}, "ISO 8601"),
        (
            {"startingTimestamp": "-1h", "startingOffsets": "earliest"},
            "cannot be combined with startingOffsets",
        ),
        ({"maxOffsetsPerTrigger": "5"}, "it is for streams"),
        ({"accessKey": "a"}, "go together"),
        ({"filterType": "sql92"}, "give the condition"),
        ({"filterType": "sql92", "subExpression": "n >"}, "SQL92 filter"),
        ({"subExpression": "a || *"}, "cannot be one of several"),
        ({"tags": "a", "subExpression": "a"}, "cannot be combined"),
        ({"nameServer": "a:b:c"}, "not a nameserver address"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parsed(**options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "key"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match="a stream has no such bound"):
        parsed(streaming=True, **{name: "1"})


def test_limits_of_a_stream_have_to_fit_together() -> None:
    with pytest.raises(OptionError, match="larger than maxOffsetsPerTrigger"):
        parsed(streaming=True, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=5)


def test_secrets_are_not_told() -> None:
    with pytest.raises(OptionError) as refused:
        Options({"secretKeyy": "hunter2"}, ["secretKey"])
    assert "hunter2" not in str(refused.value)
    assert "did you mean secretKey" in str(refused.value)
