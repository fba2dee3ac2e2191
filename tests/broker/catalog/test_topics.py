"""The topic table: creation by use, administration, system topics, what nameservers hear of."""

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from broker.support import Clock


class Heard:
    """What the registrar would have heard of, and how often the file was behind."""

    def __init__(self) -> None:
        self.changes: list[list[str]] = []
        self.dirty = 0

    def note(self, topics: Sequence[TopicConfig]) -> None:
        self.changes.append([topic.topic_name for topic in topics])

    def note_dirty(self) -> None:
        self.dirty += 1


def make_table(received: Heard | None = None, **settings: Any) -> TopicTable:
    clock, received = Clock(), received or Heard()
    live = LiveConfig(BrokerConfig(**settings), now_ms=clock())
    return TopicTable(live, clock, on_dirty=received.note_dirty, on_change=received.note)


# --- creation by a send ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "template_queues", "created"), [(4, 8, 4), (16, 8, 8), (0, 8, 1), (-3, 8, 1), (8, 2, 2)]
)
def test_a_send_creates_its_topic_with_the_smaller_queue_count(
    requested: int, template_queues: int, created: int
) -> None:
    table = make_table(default_topic_queue_nums=template_queues)
    topic = table.for_send("T", template="TBW102", queue_count=requested)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (created, created, 6)


def test_a_known_topic_is_found_and_nothing_moves() -> None:
    table = make_table()
    first = table.for_send("T", template="TBW102", queue_count=4)
    before = (table.version, table.revision)
    assert table.for_send("T", template="nonsense", queue_count=99) is first
    assert (table.version, table.revision) == before


REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "auto-create is off": ({"auto_create_topic_enable": False}, "TBW102", "autoCreateTopicEnable"),
    "the template is unknown": ({}, "NoSuchTemplate", "NoSuchTemplate"),
    "the template lets nothing inherit": ({}, "SELF_TEST_TOPIC", "inherit"),
    "the bound is reached": ({"max_topics_auto_created": 0}, "TBW102", "maxTopicsAutoCreated"),
}


@pytest.mark.parametrize(("settings", "template", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_topic_that_is_not_created_says_why(settings: dict[str, Any], template: str, reason: str) -> None:
    table = make_table(**settings)
    with pytest.raises(RequestError, match=reason) as refused:
        table.for_send("T", template=template, queue_count=4)
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert "T" not in table


@pytest.mark.parametrize(("settings", "template", "_reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_retry_topic_is_created_without_a_template(
    settings: dict[str, Any], template: str, _reason: str
) -> None:
    topic = make_table(**settings).for_send("%RETRY%g", template=template, queue_count=4)
    assert (topic.write_queue_nums, topic.perm) == (1, 6)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ü", "x" * 128, "a\x00b", "a.b"])
def test_a_send_cannot_create_a_topic_with_a_bad_name(name: str) -> None:
    table = make_table()
    with pytest.raises(RequestError) as refused:
        table.for_send(name, template="TBW102", queue_count=4)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_the_cluster_topic_is_a_template_too() -> None:
    assert make_table().for_send("T", template="DefaultCluster", queue_count=99).write_queue_nums == 16


def test_endless_creation_stops_at_the_bound() -> None:
    table = make_table(max_topics_auto_created=3)
    for number in range(3):
        table.for_send(f"T{number}", template="TBW102", queue_count=1)
    with pytest.raises(RequestError, match="3 topics"):
        table.for_send("T4", template="TBW102", queue_count=1)


# --- versions and listeners -----------------------------------------------------------------------------------


def test_each_change_moves_the_version_and_is_heard_of() -> None:
    received = Heard()
    table = make_table(received)
    table.for_send("T", template="TBW102", queue_count=1)
    table.update([TopicConfig(topic_name="U")])
    table.update([TopicConfig(topic_name="U")])
    table.delete("T")
    table.delete("T")
    assert received.changes == [["T"], ["U"], []]
    assert (received.dirty, table.revision) == (3, 3)
    assert table.version.counter == 3


def test_system_topics_move_nothing() -> None:
    table = make_table()
    assert (table.version.counter, table.revision) == (0, 0)
    for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"):
        assert topic in table
        assert table.is_system(topic)


@pytest.mark.parametrize(
    ("settings", "topic", "perm"),
    [
        ({}, "DefaultCluster", 7),
        ({"cluster_topic_enable": False}, "DefaultCluster", 1),
        ({"broker_topic_enable": False}, "broker-a", 1),
        ({}, "TBW102", 7),
        ({"auto_create_topic_enable": False}, "TBW102", None),
        ({}, "RMQ_SYS_TRACE_TOPIC", None),
        ({"trace_topic_enable": True}, "RMQ_SYS_TRACE_TOPIC", 6),
    ],
)
def test_system_topics_follow_the_settings(settings: dict[str, Any], topic: str, perm: int | None) -> None:
    found = make_table(**settings).get(topic)
    assert (found.perm if found else None) == perm


def test_the_template_follows_a_hot_change() -> None:
    clock = Clock()
    live = LiveConfig(BrokerConfig(), now_ms=clock())
    table = TopicTable(live, clock, on_dirty=lambda: None, on_change=lambda _: None)
    live.replace({"autoCreateTopicEnable": "false"}, origin="test", now_ms=clock())
    assert table.ensure_system_topics() == []
    assert "TBW102" not in table
    live.replace(
        {"autoCreateTopicEnable": "true", "defaultTopicQueueNums": "3"}, origin="test", now_ms=clock()
    )
    (added,) = table.ensure_system_topics()
    assert (added.topic_name, added.write_queue_nums) == ("TBW102", 3)


# --- administration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        (TopicConfig(topic_name="../x"), "topic name"),
        (TopicConfig(topic_name="TBW102"), "broker itself"),
        (TopicConfig(topic_name="broker-a"), "broker itself"),
        (TopicConfig(topic_name="T", read_queue_nums=0), "0 read queues"),
        (TopicConfig(topic_name="T", write_queue_nums=-1), "-1 write queues"),
        (TopicConfig(topic_name="T", write_queue_nums=2_000_000), "2000000"),
        (TopicConfig(topic_name="T", perm=8), "perm 8"),
        (TopicConfig(topic_name="T", topic_filter_type="ODD"), "ODD"),
    ],
)
def test_bad_topics_are_refused(topic: TopicConfig, names: str) -> None:
    with pytest.raises(RequestError, match=names) as refused:
        make_table().check_update(topic, {})
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_attributes_come_from_the_alterations_alone() -> None:
    table = make_table()
    offered = TopicConfig(topic_name="T", attributes={"queue.type": "BatchCQ"})
    table.update([table.check_update(offered, {"+message.type": "FIFO"})])
    assert table.require("T").attributes == {"message.type": "FIFO"}
    assert table.check_update(offered, {}).attributes == {"message.type": "FIFO"}


def test_order_follows_the_nameservers_in_both_directions() -> None:
    table = make_table()
    table.update([TopicConfig(topic_name="T"), TopicConfig(topic_name="U", order=True)])
    assert sorted(table.mark_ordered(["T", "Unknown"])) == ["T", "U"]
    assert (table.require("T").order, table.require("U").order) == (True, False)
    assert table.mark_ordered(["T"]) == []


def test_stored_topics_without_settings_come_back() -> None:
    table = make_table()
    assert table.restore({"Lost": 3, "TBW102": 8}) == ["Lost"]
    assert table.require("Lost").read_queue_nums == 3


def test_retry_topics_of_groups() -> None:
    table = make_table()
    assert table.for_group("%RETRY%g", queue_count=0) is None
    made = table.for_group("%RETRY%" + "g" * 200, queue_count=2)
    assert made is not None
    assert made.write_queue_nums == 2


@pytest.mark.parametrize("topic", ["", "  ", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"])
def test_what_may_not_be_deleted(topic: str) -> None:
    with pytest.raises(RequestError):
        make_table().check_delete(topic)


# --- the file -------------------------------------------------------------------------------------------------


def test_content_survives_a_round_trip() -> None:
    table = make_table()
    table.update([TopicConfig(topic_name="T", attributes={"message.type": "FIFO"}, order=True)])
    other = make_table()
    other.take(other.parse(table.to_json()))
    assert other.all() == table.all()
    assert other.version == table.version


@pytest.mark.parametrize(
    "content",
    [{"topicConfigTable": []}, {"topicConfigTable": {"T": 5}}, {"dataVersion": "x"}, {"dataVersion": []}],
)
def test_content_of_another_form_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        make_table().parse(content)


def test_topics_that_came_with_attributes_that_are_not_served_are_named() -> None:
    """A topic with compaction was treated as any other without a word: its newest values go with the old files."""
    table = make_table()
    content = table.to_json()
    for topic, attributes in {
        "Compacted": {"cleanup.policy": "COMPACTION"},
        "Rocks": {"queue.type": "RocksDBCQ"},
        "Batched": {"queue.type": "BatchCQ"},
        "Plain": {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"},
    }.items():
        content["topicConfigTable"][topic] = {"topicName": topic, "attributes": attributes}
    with capture_logs() as logs:
        table.take(table.parse(content))
    logged = {
        entry["topic"]: entry["reason"] for entry in logs if entry["event"] == "broker.topic_not_served"
    }
    assert logged.keys() == {"Compacted", "Rocks"}
    assert logged["Compacted"].startswith("cleanup.policy=COMPACTION, which is not served")
    for topic in logged:
        with pytest.raises(RequestError, match="which is not served"):
            table.for_send(topic, template="TBW102", queue_count=4)
