"""Groups sent to other offsets, here and through their members."""

from collections.abc import Callable

import pytest

from aerobee_broker.assembly import Parts
from aerobee_proto.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageQueue,
    QueueOffset,
    ResetOffsetBody,
    ResetOffsetListBody,
    SubscriptionData,
)
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.frames import Command, encode_command
from broker.support import START_MS, Clock, Peer, put

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
Q0, Q1 = MessageQueue("T", "golden-a", 0), MessageQueue("T", "golden-a", 1)
END = {"group": "g", "topic": "T", "timestamp": "-1"}
STEP_MS = 1_000


@pytest.fixture
async def puller(parts: Parts, clock: Clock) -> Peer:
    """T with two queues, of which 0 has five messages a second apart; g is at 3 there. A client that only pulls."""
    parts.topics.restore({"T": 2})
    parts.groups.find("g")
    for _ in range(5):
        put(parts, "T")
        clock.now_ms += STEP_MS
    parts.offsets.commit("g", "T", 0, 3)
    return Peer(parts.server.handlers, port=49_999)


def pull_fields(offset: int, *, queue_id: int = 0, flags: int = 0, commit: int = 0) -> dict[str, str]:
    return {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(PullFlag.SUBSCRIPTION | flags),
        "commitOffset": str(commit),
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
    }


async def reset(peer: Peer, **fields: object) -> dict[MessageQueue, int]:
    answer = await peer.ask(RESET, END | {name: str(value) for name, value in fields.items()})
    assert answer.code == 0, answer.remark
    return ResetOffsetBody.from_bytes(answer.body).offset_table


class TestHere:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, {Q0: 5, Q1: 0}),
            ({"timestamp": START_MS + 2 * STEP_MS}, {Q0: 2, Q1: 0}),
            ({"timestamp": 0}, {Q0: 0, Q1: 0}),
            ({"queueId": 0}, {Q0: 5}),
            ({"queueId": 0, "offset": -1, "timestamp": START_MS}, {Q0: 0}),
            ({"queueId": 0, "offset": 1, "timestamp": 0}, {Q0: 1}),
            ({"queueId": 0, "offset": 5, "timestamp": 0}, {Q0: 5}),
        ],
        ids=str,
    )
    async def test_where_queues_go_on(
        self,
        fields: dict[str, object],
        expected: dict[MessageQueue, int],
        parts: Parts,
        peer: Peer,
        puller: Peer,
    ) -> None:
        assert await reset(peer, **fields) == expected
        for queue, offset in expected.items():
            assert parts.offsets.get("g", "T", queue.queue_id) == offset

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"group": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"queueId": "2"}, ResponseCode.SYSTEM_ERROR),
            ({"queueId": "0", "offset": "6"}, ResponseCode.SYSTEM_ERROR),
            ({"queueId": "0", "offset": "-2"}, ResponseCode.SYSTEM_ERROR),
        ],
    )
    async def test_refusals_change_nothing(
        self, fields: dict[str, str], code: int, parts: Parts, peer: Peer, puller: Peer
    ) -> None:
        answer = await peer.ask(RESET, END | fields)
        assert answer.code == code
        assert answer.remark
        assert parts.offsets.get("g", "T", 0) == 3
        assert "unknown" not in parts.groups

    async def test_the_next_pull_learns_of_it_and_commits_before_are_ignored(
        self, parts: Parts, peer: Peer, puller: Peer
    ) -> None:
        await reset(peer, timestamp=START_MS)
        commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "4"}
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        asked = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)).ext == {"offset": "0"}

        moved = await puller.ask(
            RequestCode.PULL_MESSAGE, pull_fields(5, flags=PullFlag.COMMIT_OFFSET, commit=4)
        )
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext["nextBeginOffset"] == "0"

        found = await puller.ask(RequestCode.PULL_MESSAGE, pull_fields(0))
        assert (found.code, found.ext["nextBeginOffset"]) == (0, "5")
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        assert parts.offsets.get("g", "T", 0) == 4

    async def test_a_pull_that_waits_learns_of_it_at_once(
        self, parts: Parts, peer: Peer, puller: Peer
    ) -> None:
        """Else a group that waits at the end of an idle queue would stay there for half a minute."""
        waits = Command(
            RequestCode.PULL_MESSAGE, opaque=77, ext_fields=pull_fields(5, flags=PullFlag.SUSPEND)
        )
        puller.connection.data_received(encode_command(waits))
        other = pull_fields(0, queue_id=1, flags=PullFlag.SUSPEND)
        puller.connection.data_received(
            encode_command(Command(RequestCode.PULL_MESSAGE, opaque=78, ext_fields=other))
        )
        await reset(peer, queueId=0, offset=2)
        moved = await puller.next_request()
        assert (moved.opaque, moved.code) == (77, ResponseCode.PULL_OFFSET_MOVED)
        assert moved.ext["nextBeginOffset"] == "2"
        assert puller.pending_requests() == [], "the pull of the other queue waits on"
        assert parts.offsets.take_reset("g", "T", 0) is None


class TestInTheClients:
    @pytest.fixture(autouse=True)
    def _the_old_way(self, parts: Parts) -> None:
        parts.live.replace({"useServerSideResetOffset": "false"}, origin="test", now_ms=parts.clock())

    @pytest.fixture
    async def members(self, parts: Parts, puller: Peer, connect: Callable[[], Peer]) -> dict[str, Peer]:
        """One member of g in each of two languages; queue 1 has an offset too."""
        parts.offsets.commit("g", "T", 1, 0)
        found = {}
        for language in ("JAVA", "CPP"):
            found[language] = member = connect()
            data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
            body = HeartbeatData(client_id=language, consumer_data_set=[data]).to_bytes()
            beat = Command(RequestCode.HEART_BEAT, opaque=1, language=language, body=body)
            assert (await member.ask_raw(encode_command(beat), 1)).code == 0
        for member in found.values():
            member.pending_requests()
        return found

    async def test_members_are_told_each_in_its_form(
        self, parts: Parts, peer: Peer, members: dict[str, Peer]
    ) -> None:
        asked = {"timestamp": START_MS, "isForce": "true"}
        assert await reset(peer, **asked) == {Q0: 0, Q1: 0}
        logged = {name: member.pending_requests() for name, member in members.items()}
        for (order,) in logged.values():
            assert (order.code, order.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
            assert order.ext == {
                "topic": "T",
                "group": "g",
                "timestamp": str(START_MS),
                "isForce": "true",
            }
        assert ResetOffsetBody.from_bytes(logged["JAVA"][0].body).offset_table == {Q0: 0, Q1: 0}
        assert ResetOffsetListBody.from_bytes(logged["CPP"][0].body).offset_table == [
            QueueOffset(broker_name="golden-a", offset=0, queue_id=queue_id, topic="T") for queue_id in (0, 1)
        ]
        assert parts.offsets.get("g", "T", 0) == 3, "members commit by themselves"

    @pytest.mark.parametrize(("force", "expected"), [("false", 3), ("true", 5)])
    async def test_only_force_moves_forward(
        self, force: str, expected: int, peer: Peer, members: dict[str, Peer]
    ) -> None:
        assert await reset(peer, isForce=force) == {Q0: expected, Q1: 0}

    async def test_one_queue_is_reset_alone(self, peer: Peer, members: dict[str, Peer]) -> None:
        """Its offset is all that is needed: others of the group's queues may have none yet."""
        assert await reset(peer, queueId=0, offset=2) == {Q0: 2}
        (order,) = members["JAVA"].pending_requests()
        assert ResetOffsetBody.from_bytes(order.body).offset_table == {Q0: 2}

    async def test_nobody_online(self, parts: Parts, peer: Peer, puller: Peer) -> None:
        parts.offsets.commit("g", "T", 1, 0)
        assert (await peer.ask(RESET, END)).code == ResponseCode.CONSUMER_NOT_ONLINE

    async def test_a_group_that_never_consumed(self, peer: Peer, members: dict[str, Peer]) -> None:
        answer = await peer.ask(RESET, END | {"group": "other"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no offset" in (answer.remark or "")

    async def test_a_member_that_is_gone_does_not_stop_the_others(
        self, peer: Peer, members: dict[str, Peer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its connection closes, but the loss was not noticed yet."""
        monkeypatch.setattr(members["JAVA"].connection.transport, "is_closing", lambda: True)
        await reset(peer)
        assert len(members["CPP"].pending_requests()) == 1
