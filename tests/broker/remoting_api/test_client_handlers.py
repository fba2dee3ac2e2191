"""Heartbeats, good-byes, member lists and queue locks, asked as clients ask."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts
from aerobee_proto.bodies import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.connection import Connection
from broker.support import Clock, Peer, notifications

Connect = Callable[[], Peer]


def heartbeat(
    client_id: str = "c1",
    group: str = "g",
    *topics: str,
    producer: str = "",
    fingerprint: int = 0,
    short: bool = False,
) -> bytes:
    consumers = []
    if group:
        subscriptions = (
            [] if short else [SubscriptionData(topic=topic, sub_version=1) for topic in topics or ("T",)]
        )
        consumers = [ConsumerData(group_name=group, subscription_data_set=subscriptions)]
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=consumers,
        producer_data_set=[ProducerData(group_name=producer)] if producer else [],
        heartbeat_fingerprint=fingerprint,
        without_sub=short,
    ).to_bytes()


def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """For each turn that a task waits for from now on, the connection that it works for."""
    turns: list[Connection] = []
    another_turn = Connection.another_turn

    async def counted(connection: Connection) -> None:
        turns.append(connection)
        await another_turn(connection)

    monkeypatch.setattr(Connection, "another_turn", counted)
    return turns


async def members(peer: Peer, group: str = "g") -> list[str]:
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return ConsumerIdList.from_bytes(answer.body).consumer_id_list if answer.code == 0 else []


class TestHeartbeats:
    async def test_a_heartbeat_makes_group_and_retry_topic_and_a_member(
        self, parts: Parts, peer: Peer
    ) -> None:
        answer = await peer.ask(RequestCode.HEART_BEAT, body=heartbeat())
        assert (answer.code, answer.ext["IS_SUB_CHANGE"], answer.version) == (0, "true", 479)
        assert "g" in parts.groups
        assert parts.topics.require("%RETRY%g").perm == 6
        assert await members(peer) == ["c1"]

    async def test_members_hear_of_newcomers_and_of_losses(self, connect: Connect) -> None:
        first, second = connect(), connect()
        await first.ask(RequestCode.HEART_BEAT, body=heartbeat("c1"))
        await second.ask(RequestCode.HEART_BEAT, body=heartbeat("c2"))
        assert notifications(first) == ["g", "g"]
        assert notifications(second) == ["g"]
        second.close()
        assert notifications(first) == ["g"]
        assert await members(first) == ["c1"]

    async def test_a_good_bye_is_heard_too(self, connect: Connect) -> None:
        first, second = connect(), connect()
        await first.ask(RequestCode.HEART_BEAT, body=heartbeat("c1", producer="p"))
        await second.ask(RequestCode.HEART_BEAT, body=heartbeat("c2"))
        notifications(second)
        leave = {"clientID": "c1", "consumerGroup": "g", "producerGroup": "p"}
        assert (await first.ask(RequestCode.UNREGISTER_CLIENT, leave)).code == 0
        # Not at once: the leaver's last offsets may still be on their way.
        assert notifications(second) == []
        assert (await second.next_request()).ext == {"consumerGroup": "g"}
        answer = await first.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        assert answer.code == ResponseCode.SYSTEM_ERROR

    async def test_a_group_that_wants_no_notifications_gets_none(self, parts: Parts, peer: Peer) -> None:
        config = parts.groups.require("g")
        config.notify_consumer_ids_changed_enable = False
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat())
        assert notifications(peer) == []

    async def test_a_large_heartbeat_goes_in_turns(
        self, parts: Parts, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """10,000 subscriptions held the event loop for 60 ms: to be read, and to be taken."""
        turns = turns_of(monkeypatch)
        topics = [f"T{number}" for number in range(10_000)]
        first, second = connect(), connect()
        assert (await first.ask(RequestCode.HEART_BEAT, body=heartbeat("c1", "g", *topics))).code == 0
        assert len(turns) > 10  # a millisecond each
        assert await members(second) == ["c1"]
        found = parts.consumers.get("g")
        assert found is not None
        assert len(found.subscriptions) == 10_000
        answer = await second.ask(RequestCode.HEART_BEAT, body=heartbeat("c2", "g", *topics, "T10000"))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "maxSubscriptionsPerGroup" in str(answer.remark) or "10001 topics" in str(answer.remark)
        assert notifications(first) == ["g"]
        answer = await second.ask(RequestCode.HEART_BEAT, body=heartbeat("c2", "g", *topics)[:-1])
        assert answer.code == ResponseCode.SYSTEM_ERROR

    async def test_short_heartbeats(self, peer: Peer) -> None:
        async def changed(body: bytes) -> str:
            return (await peer.ask(RequestCode.HEART_BEAT, body=body)).ext["IS_SUB_CHANGE"]

        assert await changed(heartbeat(fingerprint=9, short=True)) == "true"
        assert await changed(heartbeat(fingerprint=9)) == "false"
        assert await changed(heartbeat(fingerprint=9, short=True)) == "false"
        assert await changed(heartbeat(fingerprint=8, short=True)) == "true"

    async def test_a_group_with_a_bad_name_is_left_out(self, parts: Parts, peer: Peer) -> None:
        with capture_logs() as logs:
            answer = await peer.ask(RequestCode.HEART_BEAT, body=heartbeat(group="../etc"))
        assert answer.code == 0
        assert "../etc" not in parts.groups
        assert parts.consumers.get("../etc") is None
        assert "broker.group_refused" in [line["event"] for line in logs]

    async def test_members_that_disagree_are_reported(self, connect: Connect) -> None:
        with capture_logs() as logs:
            await connect().ask(RequestCode.HEART_BEAT, body=heartbeat("c1", "g", "T"))
            await connect().ask(RequestCode.HEART_BEAT, body=heartbeat("c2", "g", "U"))
        (line,) = [line for line in logs if line["event"] == "broker.subscriptions_conflict"]
        assert (line["group"], line["topics"]) == ("g", ("T", "U"))

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"clientID":5}',
            b'{"clientID":""}',
            b'{"clientID":"' + b"x" * 600 + b'"}',
        ],
    )
    async def test_broken_heartbeats_are_answered(self, body: bytes, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
        assert answer.remark
        assert (await peer.ask(RequestCode.HEART_BEAT, body=heartbeat())).code == 0

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=300))
    async def test_any_bytes_are_answered(self, peer: Peer, body: bytes) -> None:
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code in (0, 1, 29)


class TestExpiry:
    async def test_a_silent_client_is_gone_after_two_minutes(
        self, parts: Parts, clock: Clock, connect: Connect
    ) -> None:
        silent, alive = connect(), connect()
        await silent.ask(RequestCode.HEART_BEAT, body=heartbeat("silent", producer="p"))
        await alive.ask(RequestCode.HEART_BEAT, body=heartbeat("alive"))
        clock.now_ms += 100_000
        await alive.ask(RequestCode.HEART_BEAT, body=heartbeat("alive"))
        notifications(alive)
        assert parts.clients.scan() == 0
        clock.now_ms += 20_001
        assert parts.clients.scan() == 1
        assert silent.connection.is_closed
        assert notifications(alive) == ["g"]
        assert await members(alive) == ["alive"]
        assert parts.producers.members("p") == []

    async def test_a_connection_stays_while_one_of_its_clients_is_alive(
        self, parts: Parts, clock: Clock, peer: Peer
    ) -> None:
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("silent"))
        clock.now_ms += 100_000
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("alive"))
        clock.now_ms += 100_000
        assert parts.clients.scan() == 0
        assert not peer.connection.is_closed
        assert parts.consumers.client_ids("g") == ["alive"]


async def test_an_empty_group_has_no_members(peer: Peer) -> None:
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "nobody" in (answer.remark or "")


@pytest.mark.parametrize(("kind", "code"), [("TAG", 0), ("SQL92", 1), ("ODD", 1)])
async def test_filters_are_checked_before_they_are_used(kind: str, code: int, peer: Peer) -> None:
    subscription = SubscriptionData(topic="T", expression_type=kind, sub_string="a > 1")
    body = CheckClientConfigBody(client_id="c", group="g", subscription_data=subscription).to_bytes()
    assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "a", 0),
        ("SQL92", "a > 1", 0),
        ("SQL92", "a > > 1", 23),
        ("SQL92", "", 23),
        ("ODD", "a > 1", 23),
    ],
)
async def test_sql_is_compiled_before_it_is_used(
    kind: str, expression: str, code: int, parts: Parts, peer: Peer
) -> None:
    parts.live.value = parts.config.model_copy(update={"enable_property_filter": True})
    subscription = SubscriptionData(topic="T", expression_type=kind, sub_string=expression)
    body = CheckClientConfigBody(client_id="c", group="g", subscription_data=subscription).to_bytes()
    assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


class TestLocks:
    async def lock(
        self, peer: Peer, client_id: str, *queues: MessageQueue, code: int = 41
    ) -> list[MessageQueue]:
        body = LockBatchBody(client_id=client_id, consumer_group="g", mq_set=list(queues)).to_bytes()
        answer = await peer.ask(code, body=body)
        assert answer.code == 0
        return LockedQueues.from_bytes(answer.body).locked if answer.body else []

    async def test_a_queue_is_locked_by_one_client(self, parts: Parts, clock: Clock, peer: Peer) -> None:
        parts.topics.for_send("T", template="TBW102", queue_count=2)
        queues = [MessageQueue("T", "golden-a", number) for number in range(2)]
        assert await self.lock(peer, "a", *queues) == queues
        assert await self.lock(peer, "b", *queues) == []
        assert await self.lock(peer, "a", queues[0], code=42) == []
        assert await self.lock(peer, "b", *queues) == [queues[0]]
        clock.now_ms += 60_001
        assert await self.lock(peer, "c", *queues) == queues

    async def test_locks_of_thousands_of_queues_go_in_turns(
        self, parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """9,000 queues of a body of 1 MiB held the event loop for some 10 ms."""
        turns = turns_of(monkeypatch)
        parts.topics.for_send("T", template="TBW102", queue_count=2)
        queues = [MessageQueue("T", "golden-a", number) for number in (0, 1)]
        many = [queues[0], *(MessageQueue(f"U{number}", "golden-a", 0) for number in range(9_000)), queues[1]]
        assert await self.lock(peer, "a", *many) == queues
        took = len(turns)
        assert took > 2
        assert len(parts.locks) == 2
        assert await self.lock(peer, "a", *many, code=42) == []
        assert len(turns) > took + 2
        assert len(parts.locks) == 0

    async def test_only_queues_of_this_broker_can_be_locked(self, parts: Parts, peer: Peer) -> None:
        parts.topics.for_send("T", template="TBW102", queue_count=2)
        strangers = [
            MessageQueue("T", "golden-a", 2),
            MessageQueue("T", "golden-a", -1),
            MessageQueue("T", "other", 0),
            MessageQueue("Unknown", "golden-a", 0),
        ]
        assert await self.lock(peer, "a", *strangers) == []
        assert len(parts.locks) == 0

    async def test_invented_groups_get_no_locks(self, parts: Parts, peer: Peer) -> None:
        """Each lock is kept for a minute: without a bound on groups one peer could fill the memory with them."""
        parts.live.value = parts.config.model_copy(update={"max_groups_auto_created": 1})
        parts.topics.for_send("T", template="TBW102", queue_count=2)
        queue = MessageQueue("T", "golden-a", 0)
        codes = []
        for number in range(3):
            body = LockBatchBody(client_id="c", consumer_group=f"g{number}", mq_set=[queue]).to_bytes()
            codes.append((await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)).code)
        assert codes == [0, 26, 26]
        assert len(parts.locks) == 1
