"""Topics, asked as administrators ask."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts
from aerobee_broker.remoting_api.topic_handlers import ENTRIES_PER_QUERY_MAX
from aerobee_proto import javajson
from aerobee_proto.bodies import (
    ConsumerData,
    ConsumeTimeSpanBody,
    GroupList,
    HeartbeatData,
    MessageQueue,
    QueryConsumeQueueBody,
    SubscriptionData,
    TopicConfig,
    TopicConfigList,
    TopicConfigWrapper,
    TopicList,
    TopicStatsTable,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.javahash import tag_hash
from aerobee_service.turns.slices import Steps, in_slices
from broker.support import Clock, Peer, put
from store.memory_io import MemoryIo

WANTED = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "attributes": "",
}


def endless() -> Steps[None]:
    while True:
        yield


def saved(disk: MemoryIo) -> Mapping[str, Any]:
    """The topics that are on disk now."""
    raw = disk.read_bytes(Path("/store/config/topics.json"))
    assert raw is not None
    table: Mapping[str, Any] = javajson.loads(raw)["topicConfigTable"]
    return table


class TestUpdates:
    async def test_a_topic_is_made_and_on_disk(self, disk: MemoryIo, parts: Parts, peer: Peer) -> None:
        ext = WANTED | {"attributes": "+message.type=FIFO"}
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": "true"})
        config = TopicConfig.from_bytes(answer.body)
        assert (config.read_queue_nums, config.write_queue_nums, config.attributes) == (
            3,
            2,
            {"message.type": "FIFO"},
        )
        assert "T" in saved(disk)

    async def test_two_changes_at_the_same_time_are_both_in_effect_however_busy_the_loop_is(
        self, parts: Parts, peer: Peer
    ) -> None:
        """What a change keeps is read from the table when it is checked: with a turn for others before it is done, the
        other one would be undone. Work in slices gives such turns as soon as there is other work in slices."""
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED)
        long_work = asyncio.create_task(in_slices(endless()))
        await asyncio.sleep(0)
        other = Peer(peer.handlers, port=50_001)
        kind = WANTED | {"attributes": "+message.type=FIFO"}
        count = WANTED | {"readQueueNums": "7"}
        answers = await asyncio.gather(
            peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, kind),
            other.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, count),
        )
        assert [answer.code for answer in answers] == [0, 0]
        config = parts.topics.get("T")
        assert config is not None
        assert (config.read_queue_nums, config.attributes) == (7, {"message.type": "FIFO"})
        assert not long_work.done()
        long_work.cancel()

    async def test_the_same_again_is_success_without_a_new_version(self, parts: Parts, peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED)
        version = parts.topics.version
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED)).code == 0
        assert parts.topics.version == version

    async def test_fewer_queues_are_done_and_what_they_hide_is_logged(self, parts: Parts, peer: Peer) -> None:
        """An official tool takes queues away without a question; nothing said what became unreadable."""
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED | {"writeQueueNums": "3"})
        for queue_id in (0, 2, 2):
            put(parts, "T", queue_id=queue_id)
        fewer = WANTED | {"readQueueNums": "1", "writeQueueNums": "1"}
        with capture_logs() as logs:
            assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fewer)).code == 0
        (said,) = [line for line in logs if line["event"] == "broker.messages_hidden"]
        assert (said["topic"], said["message_count"], said["queue_count"]) == ("T", 2, 1)

    async def test_queues_that_nobody_reads_are_done_and_logged(self, parts: Parts, peer: Peer) -> None:
        with capture_logs() as logs:
            answer = await peer.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED | {"readQueueNums": "1", "writeQueueNums": "4"}
            )
        assert answer.code == 0
        (said,) = [line for line in logs if line["event"] == "broker.queues_not_read"]
        assert (said["topic"], said["read_queue_count"], said["write_queue_count"]) == ("T", 1, 4)

    async def test_an_ordinary_change_says_nothing_of_the_kind(self, parts: Parts, peer: Peer) -> None:
        with capture_logs() as logs:
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED)
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED | {"perm": "4"})
        assert {line["event"] for line in logs if line["log_level"] == "warning"} == set()

    @pytest.mark.parametrize(
        "change",
        [
            {"topic": "../x"},
            {"topic": "TBW102"},
            {"topic": ""},
            {"readQueueNums": "0"},
            {"perm": "9"},
            {"topicFilterType": "ODD"},
            {"attributes": "+queue.type=RocksDBCQ"},
            {"attributes": "nonsense"},
        ],
    )
    async def test_bad_topics_are_refused(self, change: dict[str, str], parts: Parts, peer: Peer) -> None:
        before = parts.topics.all()
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED | change)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark
        assert parts.topics.all() == before

    async def test_a_missing_field_is_answered(self, peer: Peer) -> None:
        sent = {name: value for name, value in WANTED.items() if name != "perm"}
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, sent)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "perm" in (answer.remark or "")

    async def test_a_list_is_taken_whole_or_not_at_all(self, parts: Parts, peer: Peer) -> None:
        good = [TopicConfig(topic_name=name, attributes={"+message.type": "FIFO"}) for name in ("T", "U")]
        bad = TopicConfigList(topic_config_list=[*good, TopicConfig(topic_name="a/b")]).to_bytes()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=bad)).code == 29
        assert "T" not in parts.topics
        body = TopicConfigList(topic_config_list=good).to_bytes()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
        assert parts.topics.require("U").attributes == {"message.type": "FIFO"}
        twice = TopicConfigList(topic_config_list=[good[0], good[0]]).to_bytes()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=twice)).code == 29


class TestDeletes:
    async def test_queues_offsets_and_statistics_go_too(
        self, disk: MemoryIo, parts: Parts, peer: Peer
    ) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED)
        put(parts, "T")
        parts.stats.put("T", 1, 100)
        parts.offsets.commit("g", "T", 0, 1)
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert "T" not in parts.topics
        assert parts.store.reading.max_offset("T", 0) == 0
        assert parts.offsets.topics_of("g") == []
        assert "T" not in parts.stats.topics
        assert "T" not in saved(disk)

    async def test_pop_retry_topics_go_too(self, parts: Parts, peer: Peer) -> None:
        for name in ("T", "%RETRY%g_T", "%RETRY%g+T", "%RETRY%g"):
            parts.topics.restore({name: 1})
        parts.offsets.commit("g", "T", 0, 1)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert {name for name in parts.topics.all() if name.startswith("%RETRY%")} == {"%RETRY%g"}

    @pytest.mark.parametrize(("topic", "code"), [("Unknown", 0), ("TBW102", 29), (" ", 29), ("golden-a", 29)])
    async def test_what_may_be_deleted(self, topic: str, code: int, peer: Peer) -> None:
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == code


class TestLooking:
    async def test_unknown_topics(self, peer: Peer) -> None:
        for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO):
            answer = await peer.ask(code, {"topic": "Unknown"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        answer = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Unknown", "group": "g"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    async def test_all_topics(self, parts: Parts, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        wrapper = TopicConfigWrapper.from_bytes(answer.body)
        assert wrapper.topic_config_table == parts.topics.all()

    async def test_state_of_the_queues(self, parts: Parts, clock: Clock, peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, WANTED)
        put(parts, "T", queue_id=1)
        answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        table = TopicStatsTable.from_bytes(answer.body).offset_table
        states = {
            queue.queue_id: (state.min_offset, state.max_offset, state.last_update_timestamp)
            for queue, state in table.items()
        }
        assert states == {0: (0, 0, 0), 1: (0, 1, clock.now_ms), 2: (0, 0, 0)}
        assert MessageQueue("T", "golden-a", 1) in table

    async def test_system_topics(self, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        topics = TopicList.from_bytes(answer.body).topic_list
        assert {"TBW102", "golden-a", "GoldenCluster"} <= set(topics)

    async def test_who_consumes(self, parts: Parts, peer: Peer) -> None:
        parts.offsets.commit("stored", "T", 0, 1)
        online = ConsumerData(group_name="online", subscription_data_set=[SubscriptionData(topic="T")])
        await peer.ask(
            RequestCode.HEART_BEAT, body=HeartbeatData(client_id="c", consumer_data_set=[online]).to_bytes()
        )
        answer = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
        assert GroupList.from_bytes(answer.body).group_list == ["online", "stored"]

    @pytest.mark.parametrize(
        ("consumed", "place", "delay"), [(None, 0, 4_000), (1, 0, 3_000), (2, 1_000, 2_000), (3, 2_000, 0)]
    )
    async def test_time_span(
        self, consumed: int | None, place: int, delay: int, parts: Parts, clock: Clock, peer: Peer
    ) -> None:
        parts.topics.restore({"T": 1})
        start = clock.now_ms
        for _ in range(3):
            put(parts, "T")
            clock.now_ms += 1_000
        clock.now_ms += 1_000
        if consumed is not None:
            parts.offsets.commit("g", "T", 0, consumed)
        answer = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
        (span,) = ConsumeTimeSpanBody.from_bytes(answer.body).consume_time_span_set
        assert (span.min_time_stamp - start, span.max_time_stamp - start) == (0, 2_000)
        assert (span.consume_time_stamp - start, span.delay_time) == (place, delay)

    @pytest.mark.parametrize(
        ("index", "count", "found"), [(0, 2, 2), (2, 9, 1), (5, 1, 0), (-4, 1, 1), (0, -1, 0), (0, 10**6, 3)]
    )
    async def test_queue_entries(self, index: int, count: int, found: int, parts: Parts, peer: Peer) -> None:
        parts.topics.restore({"T": 1})
        for _ in range(3):
            put(parts, "T", tag="TagB")
        ext = {"topic": "T", "queueId": "0", "index": str(index), "count": str(count)}
        answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, ext)
        body = QueryConsumeQueueBody.from_bytes(answer.body)
        assert (body.min_queue_index, body.max_queue_index) == (0, 3)
        assert [entry.tags_code for entry in body.queue_data] == [tag_hash("TagB")] * found
        assert found <= ENTRIES_PER_QUERY_MAX

    @pytest.mark.parametrize(("topic", "queue_id"), [("T", 1), ("T", -1), ("Unknown", 0)])
    async def test_queues_that_do_not_exist(
        self, topic: str, queue_id: int, parts: Parts, peer: Peer
    ) -> None:
        parts.topics.restore({"T": 1})
        put(parts, "T")
        ext = {"topic": topic, "queueId": str(queue_id), "index": "0", "count": "1"}
        answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR
