"""Questions passed on to consumers, and their answers passed back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aerobee_broker.assembly import Parts
from aerobee_broker.remoting_api import client_relay
from aerobee_proto.bodies import ConsumerData, ConsumerStatusBody, HeartbeatData, MessageQueue
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.records import decode_records
from broker.support import Peer, put

INFO, DIRECTLY = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
ASKED: dict[str, str] = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true", "more": "kept"}
OF_GROUP = {"group": "g", "topic": "T"}
HERE = MessageQueue("T", "golden-a", 0)


async def join(peer: Peer, client_id: str, *, version: int = 479) -> Peer:
    body = HeartbeatData(client_id=client_id, consumer_data_set=[ConsumerData(group_name="g")]).to_bytes()
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body, version=version)).code == 0
    peer.pending_requests()
    return peer


@pytest.fixture
async def consumer(parts: Parts, connect: Callable[[], Peer]) -> Peer:
    """c1 of group g, whose connection answers when a test says so."""
    parts.topics.restore({"T": 1})
    return await join(connect(), "c1")


async def relayed(
    peer: Peer, consumer: Peer, question: int, ext: dict[str, str], **reply: Any
) -> tuple[Command, Command]:
    """Ask through the broker: (what reached the consumer, what came back)."""
    asking = asyncio.create_task(peer.ask(question, ext))
    request = await consumer.next_request()
    consumer.reply(request, **reply)
    return request, await asking


class TestOneClient:
    async def test_the_question_and_its_answer_pass_unchanged(self, peer: Peer, consumer: Peer) -> None:
        request, answer = await relayed(peer, consumer, INFO, ASKED, body=b'{"jstack":"main"}')
        assert (request.code, request.ext) == (INFO, ASKED)
        assert (answer.code, answer.body) == (0, b'{"jstack":"main"}')

    async def test_a_refusal_of_the_client_is_the_answer(self, peer: Peer, consumer: Peer) -> None:
        _, answer = await relayed(peer, consumer, INFO, ASKED, code=1, remark="not my group")
        assert (answer.code, answer.remark) == (1, "not my group")

    async def test_a_silent_client_is_a_timeout(
        self, peer: Peer, consumer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_relay, "RELAY_TIMEOUT_S", 0.05)
        answer = await peer.ask(INFO, ASKED)
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert "c1" in (answer.remark or "")
        late = await consumer.next_request()
        consumer.reply(late, body=b"{}")
        assert (await peer.ask(RequestCode.GET_BROKER_HA_STATUS)).code == 0, "the late answer hurt nobody"

    async def test_a_client_that_leaves_meanwhile(self, peer: Peer, consumer: Peer) -> None:
        asking = asyncio.create_task(peer.ask(INFO, ASKED))
        await consumer.next_request()
        consumer.close()
        answer = await asking
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "lost" in (answer.remark or "")

    @pytest.mark.parametrize("fields", [{"clientId": "c2"}, {"consumerGroup": "h"}])
    async def test_nobody_there(self, fields: dict[str, str], peer: Peer, consumer: Peer) -> None:
        answer = await peer.ask(INFO, ASKED | fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not online" in (answer.remark or "")
        assert consumer.pending_requests() == []

    async def test_a_client_that_is_too_old_is_not_asked(
        self, peer: Peer, connect: Callable[[], Peer]
    ) -> None:
        old = await join(connect(), "old", version=61)
        answer = await peer.ask(INFO, ASKED | {"clientId": "old"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "3.1.8" in (answer.remark or "")
        assert old.pending_requests() == []


class TestDirectConsumption:
    async def test_the_stored_message_goes_to_the_client(
        self, parts: Parts, peer: Peer, consumer: Peer
    ) -> None:
        put(parts, "T", body=b"first")
        place = parts.store.end_offset
        put(parts, "T", body=b"second")
        message_id = encode_offset_message_id("127.0.0.1", 10911, place)
        ext = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "T"}
        result = b'{"consumeResult":"CR_SUCCESS"}'
        request, answer = await relayed(peer, consumer, DIRECTLY, ext, body=result)
        assert request.ext == ext | {"brokerName": "golden-a", "topicSysFlag": "0", "groupSysFlag": "0"}
        (record,) = decode_records(request.body)
        assert bytes(record.body) == b"second"
        assert answer.body == result

    @pytest.mark.parametrize("message_id", ["", "nonsense", encode_offset_message_id("127.0.0.1", 1, 999)])
    async def test_messages_that_are_not_there(self, message_id: str, peer: Peer, consumer: Peer) -> None:
        answer = await peer.ask(DIRECTLY, ASKED | {"msgId": message_id})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert consumer.pending_requests() == []


class TestStatus:
    async def test_every_member_tells_where_it_is(
        self, peer: Peer, consumer: Peer, connect: Callable[[], Peer]
    ) -> None:
        other = await join(connect(), "c2")
        consumer.pending_requests()  # that the group changed
        asking = asyncio.create_task(peer.ask(STATUS, OF_GROUP))
        for client, offset in ((consumer, 5), (other, 7)):
            request = await client.next_request()
            assert request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            assert request.ext == OF_GROUP
            body = ConsumerStatusBody(message_queue_table={HERE: offset}).to_bytes()
            client.reply(request, body=body)
        logged = ConsumerStatusBody.from_bytes((await asking).body)
        assert logged.consumer_table == {"c1": {HERE: 5}, "c2": {HERE: 7}}

    async def test_one_member(self, peer: Peer, consumer: Peer, connect: Callable[[], Peer]) -> None:
        other = await join(connect(), "c2")
        consumer.pending_requests()
        body = ConsumerStatusBody(message_queue_table={HERE: 5}).to_bytes()
        _, answer = await relayed(peer, consumer, STATUS, OF_GROUP | {"clientAddr": "c1"}, body=body)
        assert ConsumerStatusBody.from_bytes(answer.body).consumer_table == {"c1": {HERE: 5}}
        assert other.pending_requests() == []

    @pytest.mark.parametrize("reply", [{"code": 1}, {"body": b"{"}, {}])
    async def test_who_cannot_tell_is_left_out(
        self, reply: dict[str, Any], peer: Peer, consumer: Peer
    ) -> None:
        _, answer = await relayed(peer, consumer, STATUS, OF_GROUP, **reply)
        assert answer.code == 0
        assert ConsumerStatusBody.from_bytes(answer.body).consumer_table == {}

    async def test_nobody_online(self, peer: Peer) -> None:
        assert (await peer.ask(STATUS, OF_GROUP)).code == ResponseCode.CONSUMER_NOT_ONLINE
