import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aerobee import (
    BrokerRefused,
    BufferFull,
    Client,
    ClientClosed,
    InvalidMessage,
    MessageQueue,
    NoRoute,
    NotPermitted,
    OutgoingMessage,
    Producer,
    SendFailed,
    SendStatus,
)
from aerobee_proto.codes import RequestCode, ResponseCode, SysFlag
from aerobee_proto.compression import decompress_body
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import Request, Response
from client.events import captured_events
from client.fakes import (
    FakeBroker,
    FakeCluster,
    FakeNameserver,
    fake_cluster,
    hang_up,
    new_master,
    silence,
    unique_keys,
)

SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
BUSY = Response(ResponseCode.SYSTEM_BUSY, "[PCBUSY_CLEAN_QUEUE]broker busy")


@asynccontextmanager
async def producing(
    broker_count: int = 1, queues: int = 2, **settings: Any
) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    async with (
        fake_cluster(broker_count, queues) as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer(**settings) as producer,
    ):
        yield cluster, producer


def sends(broker: FakeBroker) -> int:
    return len(broker.asked(SINGLE)) + len(broker.asked(BATCH))


# --- batching ---------------------------------------------------------------------------------------------------


async def test_messages_of_one_turn_travel_together_and_get_their_own_results() -> None:
    async with producing() as (cluster, producer):
        futures = [producer.send_nowait("T", b"m%d" % number, flag=number) for number in range(5)]
        results = await asyncio.gather(*futures)
        assert len(cluster.broker.asked(BATCH)) == 1
        assert not cluster.broker.asked(SINGLE)
        assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
        assert [result.message_id for result in results] == unique_keys(cluster.broker, "T")
        assert len({result.offset_message_id for result in results}) == 5
        assert cluster.broker.bodies("T") == [b"m0", b"m1", b"m2", b"m3", b"m4"]
        queue = cluster.broker.queues["T", results[0].queue.queue_id]
        assert [decode_record(record).flag for record in queue] == [0, 1, 2, 3, 4]


async def test_concurrent_sends_share_requests() -> None:
    async with producing() as (cluster, producer):
        await asyncio.gather(*(producer.send("T", b"x") for _ in range(50)))
        assert len(cluster.broker.bodies("T")) == 50
        assert sends(cluster.broker) < 10


async def test_one_message_travels_as_a_single_one_with_its_properties() -> None:
    async with producing() as (cluster, producer):
        result = await producer.send("T", "grüße", tags="new", keys=["a", "b"], properties={"shop": "ü"})
        (fields,) = cluster.broker.asked(SINGLE)
        assert (fields["b"], fields["c"], fields["d"], fields["m"]) == ("T", "TBW102", "4", "false")
        assert fields["n"] == "b-a"
        assert decode_properties(fields["i"]) == {
            "UNIQ_KEY": result.message_id,
            "TAGS": "new",
            "KEYS": "a b",
            "shop": "ü",
        }
        assert cluster.broker.bodies("T") == ["grüße".encode()]


async def test_batches_rotate_over_the_queues() -> None:
    async with producing(2) as (cluster, producer):
        used = {(await producer.send("T", b"x")).queue for _ in range(4)}
        assert used == {MessageQueue("T", name, queue_id) for name in ("b-a", "b-b") for queue_id in (0, 1)}
        assert [len(broker.bodies("T")) for broker in cluster.brokers] == [2, 2]


async def test_messages_linger_for_company_until_the_batch_is_full() -> None:
    async with producing(linger_s=3600.0, batch_count=3) as (cluster, producer):
        futures = [producer.send_nowait("T", b"%d" % number) for number in range(2)]
        await producer.queues("T")
        assert not sends(cluster.broker)
        futures.append(producer.send_nowait("T", b"2"))
        await asyncio.gather(*futures)
        assert len(cluster.broker.asked(BATCH)) == 1


async def test_linger_ends_by_time() -> None:
    async with producing(linger_s=0.005) as (cluster, producer):
        assert (await producer.send("T", b"x")).status is SendStatus.OK
        assert sends(cluster.broker) == 1


async def test_flush_and_close_do_not_wait_for_linger() -> None:
    async with producing(linger_s=3600.0) as (cluster, producer):
        first = producer.send_nowait("T", b"1")
        await producer.flush()
        assert first.done()
        second = producer.send_nowait("T", b"2")
    assert second.done()
    assert sorted(cluster.broker.bodies("T")) == [b"1", b"2"]
    assert (producer.pending_count, producer.pending_bytes) == (0, 0)


async def test_batches_keep_the_byte_limit() -> None:
    async with producing(batch_bytes=300, compress_over=None) as (cluster, producer):
        await asyncio.gather(*(producer.send("T", b"x" * 100) for _ in range(6)))
        assert all(len(body) <= 300 for code, _, body in cluster.broker.requests if code == BATCH)
        assert len(cluster.broker.bodies("T")) == 6


async def test_messages_gather_while_requests_are_out() -> None:
    async with producing(in_flight_max=1) as (cluster, producer):
        hold = cluster.broker.hold(SINGLE)
        first = producer.send_nowait("T", b"first")
        await hold.wait_for(1)
        later = [producer.send_nowait("T", b"%d" % number) for number in range(20)]
        await producer.queues("T")
        assert sends(cluster.broker) == 1
        hold.let_go()
        await asyncio.gather(first, *later)
        assert sends(cluster.broker) == 2


async def test_large_bodies_are_compressed_and_travel_alone() -> None:
    body = b"aerobee " * 1000
    async with producing() as (cluster, producer):
        await asyncio.gather(*(producer.send("T", one) for one in (b"small", body, b"small too")))
        records = [decode_record(record) for queue in cluster.broker.queues.values() for record in queue]
        (large,) = [record for record in records if record.sys_flag & SysFlag.COMPRESSED]
        assert large.sys_flag & SysFlag.COMPRESSION_MASK == SysFlag.COMPRESSION_ZLIB
        assert len(large.body) < len(body)
        assert decompress_body(large.body, large.sys_flag, len(body)) == body


@pytest.mark.parametrize(("size", "limit"), [(4096, 4096), (5000, None)])
async def test_bodies_up_to_the_limit_are_not_compressed(size: int, limit: int | None) -> None:
    async with producing(compress_over=limit) as (cluster, producer):
        await producer.send("T", b"a" * size)
        assert cluster.broker.bodies("T") == [b"a" * size]


async def test_a_body_that_does_not_shrink_stays_as_it_is() -> None:
    body = bytes(range(256)) * 17
    noise = bytes(value * 97 % 251 ^ index * 31 & 0xFF for index, value in enumerate(body))
    async with producing(compress_over=100, compression="lz4") as (cluster, producer):
        await producer.send("T", noise[:101])
        assert cluster.broker.bodies("T") == [noise[:101]]


async def test_delayed_messages_travel_alone() -> None:
    async with producing() as (cluster, producer):
        await asyncio.gather(*(producer.send("T", b"x", delay_level=level) for level in (0, 3, 0)))
        delays = [decode_properties(fields["i"]).get("DELAY") for fields in cluster.broker.asked(SINGLE)]
        assert "3" in delays


# --- order ------------------------------------------------------------------------------------------------------


async def test_equal_sharding_keys_stay_in_order_even_through_retries() -> None:
    async with producing(2, queues=4) as (cluster, producer):
        for broker in cluster.brokers:
            broker.script(SINGLE, BUSY)
            broker.script(BATCH, BUSY, hang_up)
        futures = []
        for number in range(30):
            futures += [
                producer.send_nowait("T", b"%s-%02d" % (key.encode(), number), sharding_key=key)
                for key in ("alice", "bob")
            ]
            if number % 7 == 0:
                await asyncio.gather(*futures)
        results = await asyncio.gather(*futures)
        assert len({result.queue for result in results[::2]}) == 1
        for name in (b"alice", b"bob"):
            stored = [
                body for broker in cluster.brokers for body in broker.bodies("T") if body.startswith(name)
            ]
            assert stored == sorted(stored)
            assert len(set(stored)) == 30


async def test_sharding_agrees_with_the_java_client() -> None:
    """In Java "order-created".hashCode() is -392709271; its absolute value modulo 5 is 1."""
    async with producing(queues=5) as (_, producer):
        assert (await producer.send("T", b"x", sharding_key="order-created")).queue.queue_id == 1


async def test_a_queue_can_be_named_by_position_or_by_itself() -> None:
    async with producing(2) as (_, producer):
        queues = await producer.queues("T")
        assert [(await producer.send("T", b"x", queue=position)).queue for position in range(4)] == list(
            queues
        )
        assert (await producer.send("T", b"x", queue=queues[2])).queue == queues[2]
        with pytest.raises(InvalidMessage, match="queues 0 to 3"):
            await producer.send("T", b"x", queue=4)
        with pytest.raises(InvalidMessage, match="not one of topic"):
            await producer.send("T", b"x", queue=MessageQueue("U", "b-a", 0))


async def test_a_first_bound_message_waits_for_the_route() -> None:
    async with producing() as (cluster, producer):
        futures = [producer.send_nowait("T", b"%d" % number, queue=1) for number in range(3)]
        await asyncio.gather(*futures)
        assert cluster.broker.stored("T", 1) == [b"0", b"1", b"2"]


async def test_a_batch_lands_side_by_side_in_one_queue() -> None:
    async with producing(2, batch_count=4) as (_, producer):
        messages = [OutgoingMessage(b"%d" % number, keys=f"k{number}") for number in range(10)]
        results = await producer.send_batch("T", [*messages, b"raw", "text"])
        assert len({result.queue for result in results}) == 1
        assert [result.queue_offset for result in results] == list(range(12))
        assert await producer.send_batch("T", []) == []


async def test_a_list_of_plain_bodies_is_stored_as_a_list_of_messages_is() -> None:
    bodies = [b"a", b"x" * 9000, b"b", b"y" * 300]  # the second is compressed, so it travels alone
    async with producing(compress_over=4096) as (cluster, producer):
        plain = await producer.send_batch("T", bodies, sharding_key="k")
        full = await producer.send_batch("T", [OutgoingMessage(body) for body in bodies], sharding_key="k")
        (queue,) = cluster.broker.queues.values()
        stored = []
        for raw, result in zip(queue, plain + full, strict=True):
            record = decode_record(raw)
            mapping = decode_properties(record.properties)
            assert mapping.pop("UNIQ_KEY") == result.message_id
            del mapping["__CRC32C"]
            stored.append((record.body, record.sys_flag, record.flag, mapping))
        assert stored[:4] == stored[4:]
        assert [body for body, *_ in stored[::2]] == [b"a", b"b"] * 2
        assert len({result.message_id for result in plain + full}) == 8


async def test_of_a_list_with_a_body_that_nobody_takes_nothing_is_sent() -> None:
    async with producing() as (cluster, producer):
        for bad in (b"", b"x" * (5 << 20)):
            for bodies in ([bad, b"x"], [b"x", bad]):
                with pytest.raises(InvalidMessage, match="body"):
                    await producer.send_batch("T", bodies)
        assert cluster.broker.bodies("T") == []
        assert producer.pending_count == 0


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [BUSY, hang_up, Response(ResponseCode.SERVICE_NOT_AVAILABLE, "full")])
async def test_a_failed_try_goes_to_another_broker(fault: Any) -> None:
    async with producing(2) as (cluster, producer):
        for broker in cluster.brokers:
            broker.script(SINGLE, fault)
        # whichever broker is first fails once, the second fails once, the third try finds the first one well
        result = await producer.send("T", b"x")
        assert result.status is SendStatus.OK
        assert [len(broker.asked(SINGLE)) for broker in cluster.brokers] in ([2, 1], [1, 2])
        assert sum(len(broker.bodies("T")) for broker in cluster.brokers) == 1


async def test_a_silent_broker_costs_a_share_of_the_time_only() -> None:
    async with producing(2, send_timeout_s=3) as (cluster, producer):
        cluster.broker.always(SINGLE, silence)
        results = await asyncio.gather(*(producer.send("T", b"x", queue=None) for _ in range(1)))
        results.append(await producer.send("T", b"y"))
        assert {result.queue.broker_name for result in results} == {"b-b"}


async def test_when_every_try_fails_the_error_lists_them() -> None:
    async with producing(2, attempts_max=3) as (cluster, producer):
        for broker in cluster.brokers:
            broker.always(SINGLE, BUSY)
        with pytest.raises(SendFailed, match="3 attempts failed") as caught:
            await producer.send("T", b"x")
        attempts = caught.value.attempts
        assert sorted(attempt.tries for attempt in attempts) == [1, 2]
        assert {attempt.broker_name for attempt in attempts} == {"b-a", "b-b"}
        assert attempts[0].broker_name != attempts[1].broker_name
        text = str(caught.value)
        assert "SYSTEM_BUSY" in text
        assert "[PCBUSY_CLEAN_QUEUE]broker busy" in text
        assert all(text.count(broker.addr) == 1 for broker in cluster.brokers)


async def test_a_broker_that_cannot_just_now_is_tried_until_it_can() -> None:
    """Three tries within milliseconds were all that a restart of the broker was given."""
    async with producing() as (cluster, producer):
        cluster.broker.script(
            SINGLE, BUSY, hang_up, Response(ResponseCode.SERVICE_NOT_AVAILABLE, "ending"), BUSY, hang_up
        )
        assert (await producer.send("T", b"x")).status is SendStatus.OK
        assert len(cluster.broker.asked(SINGLE)) == 6


@pytest.mark.alone
async def test_the_error_says_when_and_how_often_it_was_tried() -> None:
    async with producing(send_timeout_s=0.6) as (cluster, producer):
        cluster.broker.script(SINGLE, hang_up)
        cluster.broker.always(SINGLE, BUSY)
        with pytest.raises(SendFailed, match=r"time was over after 0\.\d s and \d+ attempts") as caught:
            await producer.send("T", b"x")
        (attempt,) = caught.value.attempts
        assert attempt.tries == len(cluster.broker.asked(SINGLE)) > 1
        assert attempt.first_ms < attempt.last_ms
        assert (
            "the connection was lost: closed by the peer (once); refused with 2 SYSTEM_BUSY"
            in attempt.outcome
        )


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST])
async def test_what_is_refused_for_good_is_tried_once(code: ResponseCode) -> None:
    """NO_PERMISSION was tried three times, and the command line said that nobody had answered."""
    async with producing() as (cluster, producer):
        cluster.broker.always(SINGLE, Response(code, "not here"))
        with pytest.raises(BrokerRefused, match="not here") as caught:
            await producer.send("T", b"x")
        assert caught.value.code == code
        with pytest.raises(BrokerRefused, match="not here"):
            await producer.send("T", b"x", sharding_key="k")
        assert len(cluster.broker.asked(SINGLE)) == 2


async def test_what_one_broker_refuses_another_one_may_take_and_each_is_asked_once() -> None:
    async with producing(2) as (cluster, producer):
        closed, open_one = cluster.brokers
        closed.always(SINGLE, Response(ResponseCode.NO_PERMISSION, "takes no messages"))
        for _ in range(4):
            assert (await producer.send("T", b"x")).queue.broker_name == open_one.name
        open_one.always(SINGLE, Response(ResponseCode.NO_PERMISSION, "nor do I"))
        asked = sum(sends(broker) for broker in cluster.brokers)
        with pytest.raises(BrokerRefused):
            await producer.send("T", b"x")
        assert sum(sends(broker) for broker in cluster.brokers) == asked + 2


async def test_a_system_error_that_stays_is_given_up() -> None:
    async with producing() as (cluster, producer):
        cluster.broker.always(SINGLE, Response(ResponseCode.SYSTEM_ERROR, "a fault"))
        with pytest.raises(SendFailed, match="answered SYSTEM_ERROR 8 times"):
            await producer.send("T", b"x")


async def test_a_master_that_is_away_is_waited_for() -> None:
    """A nameserver that drops the master leaves a topic that may be written, with nobody to write to."""
    async with producing() as (cluster, producer):
        await producer.send("T", b"1")
        route = cluster.nameserver.routes["T"]
        route.broker_datas[0].broker_addrs = {1: "127.0.0.1:1"}
        await producer.routes.refresh("T")
        asked = len(cluster.nameserver.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        sending = [producer.send_nowait("T", b"2"), producer.send_nowait("T", b"3", sharding_key="k")]
        await cluster.nameserver.wait_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked + 4)
        assert not any(future.done() for future in sending)
        cluster.nameserver.add_topic("T", cluster.broker)
        await asyncio.gather(*sending)
        assert sorted(cluster.broker.bodies("T")) == [b"1", b"2", b"3"]


async def test_a_route_that_no_nameserver_can_tell_just_now_is_waited_for() -> None:
    async with producing() as (cluster, producer):
        cluster.nameserver.add_topic("U", cluster.broker)
        await producer.send("T", b"1")
        cluster.nameserver.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[hang_up] * 5)
        await asyncio.gather(producer.send("U", b"2"), producer.send("U", b"3", queue=0))
        assert sorted(cluster.broker.bodies("U")) == [b"2", b"3"]


async def test_a_nameserver_that_knows_no_broker_is_told_apart_from_a_silent_one() -> None:
    """It had answered several times, and the error said that there was no answer in time."""
    async with producing(send_timeout_s=3) as (cluster, producer):
        cluster.nameserver.routes.clear()
        with pytest.raises(NoRoute, match="does not know the topic"):
            await producer.send("U", b"x")
        assert cluster.nameserver.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)


async def test_a_client_that_no_nameserver_has_answered_fails_at_once() -> None:
    """An address with a typo must not cost half a minute."""
    async with producing() as (cluster, producer):
        await cluster.nameserver.close()
        with pytest.raises(NoRoute, match="check that a nameserver runs"):
            await producer.send("T", b"x")
        assert len(cluster.nameserver.requests) == 0


async def test_messages_of_one_batch_have_each_their_own_time() -> None:
    """A batch had the time of its most hurried message, and took the others down with it."""
    async with producing() as (cluster, producer):
        await producer.send("T", b"0")
        cluster.broker.always(BATCH, BUSY)
        hurried = producer.send_nowait("T", b"1", timeout_s=0.1)
        patient = producer.send_nowait("T", b"2")
        with pytest.raises(SendFailed):
            await hurried
        assert not patient.done()
        cluster.broker.always(BATCH, None)
        await patient
        assert sorted(cluster.broker.bodies("T")) == [b"0", b"2"]


async def test_waiting_for_room_counts_as_time_of_the_message() -> None:
    async with producing(pending_count_max=1, send_timeout_s=0.2) as (cluster, producer):
        hold = cluster.broker.hold(SINGLE)
        first = producer.send_nowait("T", b"1", timeout_s=30)
        await hold.wait_for(1)
        with pytest.raises(SendFailed, match=r"buffer was full for 0\.2 s"):
            await producer.send("T", b"2")
        hold.let_go()
        await first


async def test_trouble_with_a_broker_is_told_once_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """851 lines of retries in 12 seconds told nobody anything."""
    monkeypatch.setattr("aerobee.producing.delivery.WARN_AFTER_S", 0.05)
    async with producing() as (cluster, producer):
        cluster.broker.script(SINGLE, *[BUSY] * 6)
        with captured_events() as events:
            await producer.send("T", b"x")
        logged = [event["event"] for event in events if event["log_level"] != "debug"]
        assert logged == ["client.sends_held_up", "client.sends_work_again"]


async def test_a_one_way_message_is_tried_until_a_connection_takes_it() -> None:
    async with producing() as (cluster, producer):
        await producer.send("T", b"1")
        moved = FakeBroker("b-a")
        await moved.start()
        try:
            await cluster.broker.close()
            leaving = asyncio.create_task(producer.send_oneway("T", b"2"))
            await cluster.nameserver.wait_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
            cluster.nameserver.add_topic("T", moved)
            await leaving
            await moved.wait_asked(SINGLE)
            assert moved.bodies("T") == [b"2"]
        finally:
            await moved.close()


async def test_no_answer_in_time_is_told() -> None:
    async with producing() as (cluster, producer):
        await producer.send("T", b"0")
        cluster.broker.always(SINGLE, silence)
        with pytest.raises(SendFailed, match="no answer within") as caught:
            await producer.send("T", b"x", timeout_s=0.2)
        assert len(caught.value.attempts) == 1
        assert producer.pending_count == 0


async def test_a_refusal_that_no_broker_would_lift_is_raised_at_once() -> None:
    async with producing(2) as (cluster, producer):
        for broker in cluster.brokers:
            broker.always(SINGLE, Response(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"))
        with pytest.raises(BrokerRefused, match="13 MESSAGE_ILLEGAL: the message is illegal"):
            await producer.send("T", b"x")
        assert sum(sends(broker) for broker in cluster.brokers) == 1


async def test_one_illegal_message_does_not_take_its_batch_down() -> None:
    def judge(request: Request[Any]) -> Response | None:
        if request.code == BATCH or request.body == b"bad":
            return Response(ResponseCode.MESSAGE_ILLEGAL, "no")
        return cluster.broker.usual[request.code](request)

    async with producing() as (cluster, producer):
        cluster.broker.always(BATCH, judge)
        cluster.broker.always(SINGLE, judge)
        futures = [producer.send_nowait("T", body) for body in (b"a", b"bad", b"c")]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(results[1], BrokerRefused)
        assert cluster.broker.bodies("T") == [b"a", b"c"]
        assert producer.pending_count == 0


@pytest.mark.parametrize("status", [status for status in SendStatus if status is not SendStatus.OK])
async def test_a_weaker_guarantee_is_a_result_not_an_error(status: SendStatus) -> None:
    async with producing() as (cluster, producer):
        usual = cluster.broker.usual[SINGLE]

        def weaker(request: Request[Any]) -> Response | None:
            response = usual(request)
            assert response is not None
            response.code = status.value
            return response

        cluster.broker.script(SINGLE, weaker)
        assert (await producer.send("T", b"x")).status is status


async def test_a_lost_connection_is_made_again() -> None:
    async with producing() as (cluster, producer):
        await producer.send("T", b"1")
        for connection in list(cluster.broker.server.connections):
            connection.abort("the test wants it")
        await producer.send("T", b"2")
        assert sorted(cluster.broker.bodies("T")) == [b"1", b"2"]


async def test_a_moved_broker_is_found_again() -> None:
    """The address in the cached route is dead; the retry asks the nameserver."""
    async with producing() as (cluster, producer):
        await producer.send("T", b"1")
        moved = FakeBroker("b-a")
        await moved.start()
        try:
            await cluster.broker.close()
            cluster.nameserver.add_topic("T", moved)
            await producer.send("T", b"2")
            assert moved.bodies("T") == [b"2"]
        finally:
            await moved.close()


async def test_what_waits_beyond_its_time_is_told_so() -> None:
    async with producing(in_flight_max=1, send_timeout_s=2) as (cluster, producer):
        hold = cluster.broker.hold(SINGLE)
        first = producer.send_nowait("T", b"first")
        await hold.wait_for(1)
        second = producer.send_nowait("T", b"second", timeout_s=0.01)
        with pytest.raises(SendFailed):
            await first
        with pytest.raises(SendFailed, match="slower than the calls"):
            await second


async def test_a_topic_that_cannot_be_written_is_told() -> None:
    async with producing() as (cluster, producer):
        cluster.nameserver.add_topic("R", cluster.broker, perm=4)
        with pytest.raises(NotPermitted, match=r"may be written.*b-a.*aerobee topic alter R --perm rw"):
            await producer.send("R", b"x")


# --- back-pressure ----------------------------------------------------------------------------------------------


async def test_send_nowait_refuses_when_the_buffer_is_full_and_ready_waits_for_room() -> None:
    async with producing(pending_count_max=3) as (cluster, producer):
        hold = cluster.broker.hold(BATCH)
        futures = [producer.send_nowait("T", b"x") for _ in range(3)]
        with pytest.raises(BufferFull, match=r"3 unanswered messages .*await producer\.ready"):
            producer.send_nowait("T", b"x")
        await hold.wait_for(1)
        waiting = asyncio.ensure_future(producer.ready())
        await producer.queues("T")
        assert not waiting.done()
        cluster.broker.always(BATCH, None)
        hold.let_go()
        await waiting
        futures.append(producer.send_nowait("T", b"x"))
        await asyncio.gather(*futures)
        assert len(cluster.broker.bodies("T")) == 4


async def test_bytes_are_bounded_too() -> None:
    async with producing(pending_bytes_max=1000, compress_over=None) as (_, producer):
        future = producer.send_nowait("T", b"x" * 1000)
        with pytest.raises(BufferFull):
            producer.send_nowait("T", b"x")
        await future
        await producer.send("T", b"x")


async def test_send_waits_for_room_and_everything_arrives() -> None:
    async with producing(pending_count_max=4, batch_count=2) as (cluster, producer):
        await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(100)))
        assert len(set(cluster.broker.bodies("T"))) == 100
        assert producer.pending_count == 0


async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    async with producing(pending_count_max=1) as (cluster, producer):
        hold = cluster.broker.hold(SINGLE)
        first = producer.send_nowait("T", b"first")
        await hold.wait_for(1)
        waiters = [asyncio.ensure_future(producer.send("T", b"%d" % number)) for number in range(3)]
        await producer.queues("T")
        waiters[0].cancel()
        cluster.broker.always(SINGLE, None)
        hold.let_go()
        await first
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert sorted(cluster.broker.bodies("T")) == [b"1", b"2", b"first"]


async def test_a_cancelled_send_does_not_disturb_the_others() -> None:
    async with producing() as (cluster, producer):
        hold = cluster.broker.hold(BATCH)
        calls = [asyncio.ensure_future(producer.send("T", b"%d" % number)) for number in range(3)]
        await hold.wait_for(1)
        calls[1].cancel()
        hold.let_go()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert [result.queue_offset for result in results if isinstance(result, tuple)] == [0, 2]


# --- arguments --------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty body": ({"body": b""}, "empty body"),
    "large body": ({"body": b"x" * 4_194_305}, "4194305 bytes; at most 4194304"),
    "body of numbers": ({"body": [1, 2]}, "bytes or text"),
    "lone surrogate body": ({"body": "\ud800"}, "not valid Unicode"),
    "bad topic": ({"topic": "a/b"}, "'/'"),
    "empty topic": ({"topic": ""}, "empty"),
    "reserved property": ({"properties": {"UNIQ_KEY": "x"}}, "belongs to the protocol"),
    "transient property": ({"properties": {"__RMQ.TRANSIENT.x": "x"}}, "belongs to the protocol"),
    "separator in property": ({"properties": {"a": "b\x02c"}}, "separate properties"),
    "separator in name": ({"properties": {"a\x01": "b"}}, "separate properties"),
    "separator in tags": ({"tags": "a\x01b"}, "separate properties"),
    "separator in keys": ({"keys": ["a", "b\x02"]}, "separate properties"),
    "empty property": ({"properties": {"a": ""}}, "drop empty"),
    "lone surrogate": ({"tags": "\ud800"}, "not valid Unicode"),
    "too many properties": ({"properties": {"a": "x" * 32768}}, "at most 32767"),
    "delay": ({"delay_level": 19}, r"1\.\.18"),
    "flag": ({"flag": 2**31}, "32-bit"),
}


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD)
async def test_what_no_broker_would_take_is_refused_before_it_is_sent(
    arguments: dict[str, Any], text: str
) -> None:
    async with producing() as (cluster, producer):
        with pytest.raises(InvalidMessage, match=text):
            await producer.send(**({"topic": "T", "body": b"x"} | arguments))
        assert producer.pending_count == 0
        assert not sends(cluster.broker)


async def test_oneway_leaves_without_an_answer() -> None:
    async with producing() as (cluster, producer):
        message_id = await producer.send_oneway("T", b"x", tags="new", queue=1)
        await cluster.broker.wait_asked(SINGLE)
        assert cluster.broker.stored("T", 1) == [b"x"]
        assert unique_keys(cluster.broker, "T") == [message_id]


async def test_a_closed_producer_says_so() -> None:
    async with producing() as (_, producer):
        await producer.send("T", b"x")
    for call in (producer.send("T", b"x"), producer.send_batch("T", [b"x"]), producer.send_oneway("T", b"x")):
        with pytest.raises(ClientClosed, match="producer is closed"):
            await call
    with pytest.raises(ClientClosed):
        producer.send_nowait("T", b"x")


async def test_a_producer_is_opened_by_its_block() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        with pytest.raises(ClientClosed):
            await mq.producer().send("T", b"x")


async def test_unknown_settings_are_named() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        with pytest.raises(InvalidMessage, match=r"unknown setting linger_ms; there are .*linger_s"):
            mq.producer(linger_ms=5)


async def test_a_master_that_has_become_a_slave_is_left_for_the_new_one() -> None:
    """It says that it is busy, as slaves do: until the next route poll, half a minute later, sends went there."""
    async with producing(send_timeout_s=5) as (cluster, producer):
        await producer.send("T", b"x")
        async with new_master(cluster) as master:
            cluster.broker.always(SINGLE, BUSY)
            await producer.send("T", b"y")
            assert master.bodies("T") == [b"y"]


@pytest.mark.parametrize("start", [0, 1])
async def test_a_nameserver_that_tells_what_leads_nowhere_is_not_asked_again_and_again(start: int) -> None:
    """Cut off from the brokers it tells the old master for two minutes; it answered, so nobody else was asked."""
    async with fake_cluster() as cluster, new_master(cluster) as master:
        other = FakeNameserver()
        await other.start()
        try:
            other.add_topic("T", master)
            cluster.nameserver.add_topic("T", cluster.broker)
            await cluster.broker.close()
            addrs = [cluster.nameserver.addr, other.addr]
            async with (
                Client(addrs[start:] + addrs[:start]) as mq,
                mq.producer(send_timeout_s=5) as producer,
            ):
                await producer.send("T", b"x")
            assert master.bodies("T") == [b"x"]
        finally:
            await other.close()


async def test_a_send_to_a_master_that_stands_still_goes_to_the_next_one_at_once() -> None:
    """It waited for the end of its try, and the next try took twice as long at the old master; so did other topics'."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.add_topic("Other", cluster.broker)
        async with mq.producer(try_timeout_s=60.0, send_timeout_s=60.0) as producer:
            await producer.send("T", b"before")
            await producer.send("Other", b"before")
            cluster.broker.always(SINGLE, silence)
            sending = [asyncio.create_task(producer.send(topic, b"after")) for topic in ("T", "Other")]
            await cluster.broker.wait_asked(SINGLE, 4)
            async with new_master(cluster) as master:
                cluster.nameserver.add_topic("Other", master)
                async with asyncio.timeout(20):
                    await asyncio.gather(*sending)
                assert master.bodies("T") == master.bodies("Other") == [b"after"]
