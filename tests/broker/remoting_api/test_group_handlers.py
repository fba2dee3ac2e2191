"""Groups, asked as administrators ask."""

from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.assembly import Parts
from aerobee_proto import javajson
from aerobee_proto.bodies import (
    BrokerConsumeStats,
    ConsumerConnection,
    ConsumerData,
    ConsumeStats,
    GroupConfigList,
    GroupForbidden,
    HeartbeatData,
    ProducerConnection,
    ProducerData,
    ProducerTableInfo,
    SubscriptionBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicList,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from broker.support import Clock, Peer, put
from store.memory_io import MemoryIo


def saved(disk: MemoryIo, name: str) -> Any:
    raw = disk.read_bytes(Path("/store/config") / name)
    assert raw is not None
    return javajson.loads(raw)


@pytest.fixture
async def online(parts: Parts, peer: Peer) -> Peer:
    """A client that consumes T in g and produces in p."""
    parts.topics.restore({"T": 1, "U": 1})
    subscription = SubscriptionData(
        topic="T", sub_string="TagA", tags_set=frozenset({"TagA"}), code_set=frozenset({2598919})
    )
    body = HeartbeatData(
        client_id="c1",
        consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=[subscription])],
        producer_data_set=[ProducerData(group_name="p")],
    )
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body.to_bytes())).code == 0
    return peer


class TestChanges:
    async def test_a_group_is_made_and_on_disk(self, disk: MemoryIo, parts: Parts, peer: Peer) -> None:
        body = SubscriptionGroupConfig(group_name="g", retry_max_times=3).to_bytes()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
        assert SubscriptionGroupConfig.from_bytes(answer.body).retry_max_times == 3
        assert "g" in saved(disk, "subscriptionGroup.json")["subscriptionGroupTable"]

    async def test_a_list_is_taken_whole_or_not_at_all(self, parts: Parts, peer: Peer) -> None:
        def body(*names: str) -> bytes:
            groups = [SubscriptionGroupConfig(group_name=name) for name in names]
            return GroupConfigList(group_config_list=groups).to_bytes()

        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        assert (await peer.ask(code, body=body("g", "a b"))).code == ResponseCode.INVALID_PARAMETER
        assert "g" not in parts.groups
        assert (await peer.ask(code, body=body("g", "h"))).code == 0
        assert "h" in parts.groups

    @pytest.mark.parametrize("body", [b"", b"{", b'{"groupName":"a/b"}', b"{}"])
    async def test_bad_groups_are_refused(self, body: bytes, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert answer.code in (1, 29)
        assert answer.remark

    @pytest.mark.parametrize(
        ("flags", "left"),
        [
            ({}, ["T"]),
            ({"cleanOffset": "true"}, []),
            ({"removeOffset": "true"}, []),
            ({"cleanOffset": "false"}, ["T"]),
        ],
    )
    async def test_a_deletion_takes_offsets_on_demand(
        self, flags: dict[str, str], left: list[str], parts: Parts, peer: Peer
    ) -> None:
        parts.groups.find("g")
        parts.offsets.commit("g", "T", 0, 1)
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"} | flags)).code == 0
        assert "g" not in parts.groups
        assert parts.offsets.topics_of("g") == left

    async def test_deleting_an_unknown_group_is_success(self, peer: Peer) -> None:
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "none"})).code == 0

    async def test_a_topic_is_forbidden_and_allowed(self, parts: Parts, online: Peer) -> None:
        async def forbid(**fields: str) -> bool:
            ext = {"group": "g", "topic": "T"} | fields
            answer = await online.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
            return GroupForbidden.from_bytes(answer.body).readable

        assert await forbid()
        assert not await forbid(readable="false")
        assert parts.groups.is_forbidden("g", "T")
        assert not await forbid()
        assert await forbid(readable="true")

    async def test_offsets_are_cloned(self, disk: MemoryIo, parts: Parts, online: Peer) -> None:
        parts.offsets.commit("g", "T", 0, 5)
        parts.offsets.commit("g", "U", 0, 6)
        ext = {"srcGroup": "g", "destGroup": "h", "topic": "T"}
        assert (await online.ask(RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
        assert parts.offsets.topics_of("h") == ["T"]
        await online.ask(RequestCode.CLONE_GROUP_OFFSET, ext | {"topic": ""})
        assert parts.offsets.topics_of("h") == ["T"], "g is online and has given up U"
        await online.ask(RequestCode.CLONE_GROUP_OFFSET, ext | {"topic": "", "offline": "true"})
        assert parts.offsets.get("h", "U", 0) == 6
        assert saved(disk, "consumerOffset.json")["offsetTable"]["T@h"] == {"0": 5}


class TestWhoIsOnline:
    async def test_consumers(self, online: Peer) -> None:
        answer = await online.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        body = ConsumerConnection.from_bytes(answer.body)
        (client,) = body.connection_set
        assert (client.client_id, client.client_addr, client.version) == ("c1", "10.1.1.1:50000", 479)
        assert body.subscription_table["T"].sub_string == "TagA"
        assert body.consume_type == "CONSUME_PASSIVELY"

    async def test_nobody(self, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        answer = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
        assert ProducerTableInfo.from_bytes(answer.body).data == {}

    async def test_producers(self, clock: Clock, online: Peer) -> None:
        answer = await online.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        assert [one.client_id for one in ProducerConnection.from_bytes(answer.body).connection_set] == ["c1"]
        answer = await online.ask(RequestCode.GET_ALL_PRODUCER_INFO)
        (producer,) = ProducerTableInfo.from_bytes(answer.body).data["p"]
        assert (producer.remote_ip, producer.last_update_timestamp) == ("10.1.1.1:50000", clock.now_ms)

    async def test_topics_and_subscription(self, parts: Parts, online: Peer) -> None:
        parts.offsets.commit("g", "T", 0, 1)
        answer = await online.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})
        assert TopicList.from_bytes(answer.body).topic_list == ["T"]
        answer = await online.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g", "topic": "T"})
        held = SubscriptionBody.from_bytes(answer.body).subscription_data
        assert held is not None
        assert held.tags_set == {"TagA"}
        answer = await online.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g", "topic": "U"})
        assert SubscriptionBody.from_bytes(answer.body).subscription_data is None


async def test_all_groups(parts: Parts, peer: Peer) -> None:
    parts.groups.find("g")
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    body = javajson.loads(answer.body)
    assert body["subscriptionGroupTable"].keys() == parts.groups.all().keys()
    assert body["dataVersion"]["counter"] == 1


class TestHowFarTheyAre:
    @pytest.fixture(autouse=True)
    def messages(self, parts: Parts) -> None:
        parts.topics.restore({"T": 1, "U": 1})
        for _ in range(5):
            put(parts, "T")
            put(parts, "U")
        parts.groups.find("g")
        parts.offsets.commit("g", "T", 0, 2)
        parts.offsets.commit("g", "U", 0, 5)
        parts.offsets.note_pull("g", "T", 0, 4)

    async def ask(self, peer: Peer, **fields: str) -> dict[str, tuple[int, int, int]]:
        answer = await peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"} | fields)
        assert answer.code == 0
        table = ConsumeStats.from_bytes(answer.body).offset_table
        return {
            queue.topic: (state.broker_offset, state.consumer_offset, state.pull_offset)
            for queue, state in table.items()
        }

    @pytest.mark.parametrize(
        ("fields", "topics"),
        [
            ({}, {"T", "U"}),
            ({"topic": "T"}, {"T"}),
            ({"topicList": "U;"}, {"U"}),
            ({"topic": "T", "topicList": "U;T"}, {"T", "U"}),
            ({"topic": "Unknown"}, set()),
        ],
    )
    async def test_the_topics_that_were_asked_for(
        self, fields: dict[str, str], topics: set[str], peer: Peer
    ) -> None:
        assert (await self.ask(peer, **fields)).keys() == topics

    async def test_the_offsets(self, peer: Peer) -> None:
        assert await self.ask(peer) == {"T": (5, 2, 4), "U": (5, 5, 5)}

    async def test_an_online_group_shows_what_it_subscribes_to(self, online: Peer) -> None:
        assert (await self.ask(online)).keys() == {"T"}

    @pytest.mark.parametrize(("ordered", "diff", "topics"), [("false", 3, 2), ("true", 0, 0)])
    async def test_all_groups_of_the_broker(self, ordered: str, diff: int, topics: int, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": ordered})
        body = BrokerConsumeStats.from_bytes(answer.body)
        tables = {group: stats for entry in body.consume_stats_list for group, stats in entry.items()}
        assert len(tables["g"]) == topics
        assert tables["TOOLS_CONSUMER"] == []
        assert (body.total_diff, body.broker_addr) == (diff, "127.0.0.2:12911")
