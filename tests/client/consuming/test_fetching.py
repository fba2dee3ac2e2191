import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from aerobee import (
    BrokerRefused,
    Client,
    ClientClosed,
    ClientConfig,
    DamagedRecord,
    InvalidMessage,
    MessageQueue,
    NoRoute,
    Reader,
)
from aerobee.terms.filters import parse_tags
from aerobee.terms.start_at import Where
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode, SysFlag
from aerobee_proto.compression import compress_body
from aerobee_proto.properties import encode_properties
from aerobee_remoting.exchange.handlers import Response
from client.fakes import STORE_TIME_MS, FakeCluster, fake_cluster, hang_up
from client.inside import session_of

PULL = RequestCode.PULL_MESSAGE
Q0 = MessageQueue("T", "b-a", 0)


@asynccontextmanager
async def filled(
    count: int = 10, queues: int = 1, **config: Any
) -> AsyncIterator[tuple[FakeCluster, Client]]:
    """A cluster whose queue 0 of T holds the messages 0, 1, 2 ..."""
    async with fake_cluster(queues=queues) as cluster:
        for number in range(count):
            cluster.broker.append("T", 0, b"%d" % number)
        async with Client(cluster.nameserver.addr, config=ClientConfig(**config)) as mq:
            yield cluster, mq


async def bodies(reader: Reader) -> list[bytes]:
    return [message.body async for message in reader]


async def read_into(got: list[bytes], reader: Reader) -> None:
    async for message in reader:
        got.append(message.body)


def numbers(*spans: int) -> list[bytes]:
    return [b"%d" % number for number in range(*spans)]


# --- where it starts and ends ----------------------------------------------------------------------------------

SPANS: dict[str, tuple[Where, Where, list[bytes]]] = {
    "everything there": ("earliest", "now", numbers(10)),
    "from an offset": (4, "latest", numbers(4, 10)),
    "to an offset": ("earliest", 3, numbers(3)),
    "nothing": (5, 5, []),
    "from the end": ("latest", "now", []),
    "from a time": (datetime.fromtimestamp((STORE_TIME_MS + 7) / 1000, UTC), "now", numbers(7, 10)),
    "to a time": ("earliest", datetime.fromtimestamp((STORE_TIME_MS + 2) / 1000, UTC), numbers(2)),
    "a time after the last": ("-1h", "now", []),
    "start beyond the end": (99, 100, []),
}


@pytest.mark.parametrize(("start", "end", "expected"), SPANS.values(), ids=SPANS)
async def test_a_reader_reads_its_span(start: Where, end: Where, expected: list[bytes]) -> None:
    async with filled() as (cluster, mq):
        if start == 99:
            for number in range(10, 100):
                cluster.broker.append("T", 0, b"%d" % number)
            expected = [b"99"]
        assert await bodies(mq.reader("T", start=start, end=end)) == expected


async def test_several_queues_are_read_each_in_order() -> None:
    async with fake_cluster(broker_count=2, queues=3) as cluster, Client(cluster.nameserver.addr) as mq:
        for broker in cluster.brokers:
            for number in range(120):
                broker.append("T", number % 3, b"%s %03d" % (broker.name.encode(), number))
        got: dict[MessageQueue, list[bytes]] = {}
        async for message in mq.reader("T", end="now"):
            got.setdefault(message.queue, []).append(message.body)
        assert len(got) == 6
        assert all(len(queue) == 40 and queue == sorted(queue) for queue in got.values())


async def test_chosen_queues_only() -> None:
    async with fake_cluster(queues=3) as cluster, Client(cluster.nameserver.addr) as mq:
        for queue_id in range(3):
            cluster.broker.append("T", queue_id, b"%d" % queue_id)
        assert await bodies(mq.reader("T", end="now", queues=[1])) == [b"1"]
        chosen = [MessageQueue("T", "b-a", 2)]
        assert await bodies(mq.reader("T", end="now", queues=chosen)) == [b"2"]
        for wrong in ([7], [MessageQueue("T", "b-z", 0)], []):
            with pytest.raises(InvalidMessage, match=r"has no queue .*T/b-a/0"):
                await bodies(mq.reader("T", end="now", queues=wrong))


async def test_batches_tell_where_they_stand() -> None:
    async with filled(40) as (_, mq):
        batches = [batch async for batch in mq.reader("T", end="now").batches()]
        assert [(len(batch), batch.next_offset, batch.max_offset) for batch in batches] == [
            (32, 32, 40),
            (8, 40, 40),
        ]
        assert batches[0][3].body == b"3"
        assert [message.body for message in batches[1]] == numbers(32, 40)
        assert batches[0].queue == Q0


# --- waiting for more ------------------------------------------------------------------------------------------


async def test_an_endless_reader_waits_in_a_held_pull() -> None:
    async with filled(1) as (cluster, mq), mq.reader("T", hold_s=7.0) as reader:
        messages = aiter(reader)
        assert (await anext(messages)).body == b"0"
        fields = (await cluster.broker.wait_asked(PULL, 2))[-1]
        assert (fields["queueOffset"], fields["suspendTimeoutMillis"]) == ("1", "7000")
        assert int(fields["sysFlag"]) == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
        assert fields["consumerGroup"] == "TOOLS_CONSUMER"
        cluster.broker.append("T", 0, b"new")
        assert (await anext(messages)).body == b"new"


async def test_pulling_stops_while_the_buffer_is_full() -> None:
    async with filled(200) as (cluster, mq), mq.reader("T", end="now", buffered_bytes_max=1) as reader:
        batches = reader.batches()
        await cluster.broker.wait_asked(PULL, 1)
        first = await anext(batches)
        await cluster.broker.wait_asked(PULL, 2)
        assert len(cluster.broker.asked(PULL)) == 2
        rest = [len(batch) async for batch in batches]
        assert len(first) + sum(rest) == 200


async def test_queues_that_a_topic_gets_later_are_read_from_their_beginning() -> None:
    async with filled(1) as (cluster, mq), mq.reader("T", start="latest") as reader:
        await cluster.broker.wait_asked(PULL, 1)
        cluster.nameserver.add_topic("T", cluster.broker, queues=2)
        cluster.broker.append("T", 1, b"in the new queue")
        await session_of(mq).routes.refresh_all()
        assert (await anext(aiter(reader))).body == b"in the new queue"


# --- filters ---------------------------------------------------------------------------------------------------


def test_tags_are_read_in_every_form() -> None:
    for everything in (None, "*", "", " ", [], ["*"]):
        assert parse_tags(everything) == ("*", None)
    for two in ("a||b", " a || b ", ["a", "b"], ["a ", "", "b"]):
        assert parse_tags(two) == ("a || b", frozenset({"a", "b"}))
    with pytest.raises(InvalidMessage, match="cannot be one of several"):
        parse_tags("a || *")


async def test_the_exact_tag_is_tested_here_too() -> None:
    """The fake broker filters nothing, as a real one does when two tags have one hash."""
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for tag in ("Aa", "BB", "Aa", "C"):
            cluster.broker.append("T", 0, tag.encode(), encode_properties({"TAGS": tag}))
        reader = mq.reader("T", end="now", tags="Aa || C")
        assert await bodies(reader) == [b"Aa", b"Aa", b"C"]
        assert cluster.broker.asked(PULL)[0]["subscription"] == "Aa || C"
        assert reader.positions == {Q0: 4}


async def test_positions_pass_what_the_filter_leaves_out() -> None:
    async with filled(3) as (cluster, mq):
        cluster.broker.script(
            PULL,
            Response(ResponseCode.PULL_RETRY_IMMEDIATELY, ext={"nextBeginOffset": "3", "maxOffset": "3"}),
        )
        reader = mq.reader("T", end="now", tags="x")
        assert await bodies(reader) == []
        assert reader.positions == {Q0: 3}


# --- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [hang_up, Response(ResponseCode.SYSTEM_BUSY, "busy"), Response(ResponseCode.TOPIC_NOT_EXIST, "?")],
)
async def test_passing_faults_are_waited_out(fault: Any) -> None:
    async with filled() as (cluster, mq):
        cluster.broker.script(PULL, fault, fault)
        assert await bodies(mq.reader("T", end="now", retry_s=0.001)) == numbers(10)


async def test_a_reader_can_be_told_to_give_up() -> None:
    async with filled() as (cluster, mq):
        cluster.broker.always(PULL, Response(ResponseCode.SYSTEM_BUSY, "busy"))
        with pytest.raises(BrokerRefused, match=r"pull T/b-a/0: .* refused with 2 SYSTEM_BUSY"):
            await bodies(mq.reader("T", end="now", retry_s=0.001, give_up_s=0.01))


async def test_a_refusal_that_waiting_cannot_cure_is_raised() -> None:
    async with filled() as (cluster, mq):
        cluster.broker.script(PULL, Response(ResponseCode.NO_PERMISSION, "the topic may not be read"))
        with pytest.raises(BrokerRefused, match="16 NO_PERMISSION: the topic may not be read"):
            await bodies(mq.reader("T", end="now"))


async def test_an_offset_that_has_moved_is_followed() -> None:
    """The broker has deleted what the reader asked for."""
    async with filled() as (cluster, mq):
        cluster.broker.script(
            PULL, Response(ResponseCode.PULL_OFFSET_MOVED, ext={"nextBeginOffset": "6", "minOffset": "6"})
        )
        assert await bodies(mq.reader("T", end="now")) == numbers(6, 10)


def moved_back(offset: int) -> Response:
    """What a broker says to who asks for more than its queue holds, for now or for ever."""
    return Response(
        ResponseCode.PULL_OFFSET_MOVED, ext={"nextBeginOffset": str(offset), "maxOffset": str(offset)}
    )


async def test_nothing_before_the_offset_asked_for_comes_from_a_queue_that_lags() -> None:
    async with filled() as (cluster, mq):
        cluster.broker.script(PULL, moved_back(2))
        assert await bodies(mq.reader("T", start=4, end=8)) == numbers(4, 8)
        cluster.broker.script(PULL, moved_back(2))
        batches = [batch async for batch in mq.reader("T", start=4, end=4 + 1).batches()]
        assert [(batch.next_offset, [one.body for one in batch]) for batch in batches] == [(5, [b"4"])]


async def test_nothing_before_the_offset_sought_comes_from_a_queue_that_lags() -> None:
    async with filled() as (cluster, mq), mq.reader("T") as reader:
        messages = aiter(reader)
        assert (await anext(messages)).body == b"0"
        cluster.broker.script(PULL, moved_back(3))
        reader.seek(Q0, 7)
        assert [(await anext(messages)).body for _ in range(3)] == numbers(7, 10)


async def test_a_queue_that_lost_its_end_is_read_from_its_new_end() -> None:
    """Who reads "latest" has named no offset: what is new is read, though its offsets have been there before."""
    async with filled() as (cluster, mq):
        reader = mq.reader("T", start="latest")
        cluster.broker.script(PULL, moved_back(6))
        async with reader:
            messages = aiter(reader)
            assert [(await anext(messages)).body for _ in range(4)] == numbers(6, 10)


async def test_a_suggested_slave_is_pulled_from() -> None:
    async with filled(40) as (cluster, mq), fake_cluster() as other:
        slave = other.broker
        slave.queues = cluster.broker.queues
        cluster.nameserver.routes["T"].broker_datas[0].broker_addrs[1] = slave.addr
        usual = cluster.broker.usual[PULL]

        def suggest(request: Any) -> Response | None:
            response = usual(request)
            assert response is not None
            assert response.ext is not None
            response.ext["suggestWhichBrokerId"] = "1"
            return response

        cluster.broker.script(PULL, suggest)
        assert await bodies(mq.reader("T", end="now")) == numbers(40)
        assert len(slave.asked(PULL)) == 1


async def test_a_damaged_record_is_named_after_what_is_sound_before_it() -> None:
    async with filled() as (cluster, mq):
        record = bytearray(cluster.broker.queues["T", 0][6])
        record[40] ^= 1  # the born timestamp: no body CRC covers it
        cluster.broker.queues["T", 0][6] = bytes(record)
        async with mq.reader("T", end="now") as reader:
            got: list[bytes] = []
            with pytest.raises(DamagedRecord, match=r"broker b-a, queue 0, offset 6: .*checksum") as caught:
                await read_into(got, reader)
            assert got == numbers(6)
            assert (caught.value.queue_id, caught.value.queue_offset) == (0, 6)
            with pytest.raises(DamagedRecord, match="offset 6"):
                await reader.next_batch()
            reader.seek(Q0, 7)
            assert await bodies(reader) == numbers(7, 10)


async def test_a_record_that_is_cut_is_damaged_too() -> None:
    async with filled(2) as (cluster, mq):
        queue = cluster.broker.queues["T", 0]
        queue[1] = queue[1][:-3]
        with pytest.raises(DamagedRecord, match="offset 1"):
            await bodies(mq.reader("T", end="now"))


async def test_checks_can_be_turned_off() -> None:
    async with filled(2, check_records=False) as (cluster, mq):
        record = bytearray(cluster.broker.queues["T", 0][1])
        record[40] ^= 1
        cluster.broker.queues["T", 0][1] = bytes(record)
        assert await bodies(mq.reader("T", end="now")) == numbers(2)


async def test_a_body_that_inflates_too_far_is_refused() -> None:
    async with filled(0, decompressed_size_max=1000) as (cluster, mq):
        for size in (1000, 1001):
            packed, flags = compress_body(b"x" * size)
            cluster.broker.append("T", 0, packed, sys_flag=flags)
        got = [message async for message in mq.reader("T", end="now")]
        assert got[0].body == b"x" * 1000
        assert got[0].record.sys_flag & SysFlag.COMPRESSED
        with pytest.raises(DamagedRecord, match="larger than 1000 bytes"):
            _ = got[1].body


async def test_an_unknown_topic_is_no_route() -> None:
    async with filled() as (_, mq):
        with pytest.raises(NoRoute, match="no route for topic 'nothing'"):
            await bodies(mq.reader("nothing"))


# --- moving and closing ----------------------------------------------------------------------------------------


async def test_seek_inside_a_batch_takes_effect_at_once() -> None:
    async with filled(10) as (_, mq), mq.reader("T", end="now") as reader:
        got = []
        async for message in reader:
            got.append(message.body)
            if message.queue_offset == 3:
                reader.seek(Q0, 8)
        assert got == [*numbers(4), *numbers(8, 10)]
        with pytest.raises(InvalidMessage, match="is not being read here; queues: T/b-a/0"):
            reader.seek(MessageQueue("T", "b-a", 5), 0)


async def test_an_answer_to_the_question_before_a_seek_is_dropped() -> None:
    async with filled(10) as (cluster, mq):
        hold = cluster.broker.hold(PULL)
        async with mq.reader("T", end="now") as reader:
            await hold.wait_for(1)
            reader.seek(Q0, 5)
            await hold.wait_for(2)
            cluster.broker.always(PULL, None)
            hold.let_go()
            assert await bodies(reader) == numbers(5, 10)


async def test_positions_follow_single_messages() -> None:
    async with filled(10) as (_, mq), mq.reader("T", end="now") as reader:
        async for message in reader:
            assert reader.positions == {Q0: message.queue_offset + 1}
        assert reader.positions == {Q0: 10}


async def test_closing_ends_a_waiting_reader() -> None:
    async with filled(0) as (cluster, mq):
        reader = mq.reader("T")
        waiting = asyncio.ensure_future(reader.next_batch())
        await cluster.broker.wait_asked(PULL)
        await reader.close()
        with pytest.raises(ClientClosed, match="reader is closed"):
            await waiting
        with pytest.raises(ClientClosed):
            await reader.next_batch()


async def test_the_client_closes_its_readers() -> None:
    async with filled(0) as (cluster, mq):
        reader = mq.reader("T")
        waiting = asyncio.ensure_future(reader.next_batch())
        await cluster.broker.wait_asked(PULL)
        await mq.close()
        with pytest.raises(ClientClosed):
            await waiting


async def test_a_reader_that_has_ended_leaves_nothing_behind() -> None:
    """A client that lives for months makes readers by the thousand."""
    async with filled(3) as (_, mq):
        for _ in range(3):
            assert await bodies(mq.reader("T", end="now")) == numbers(3)
        gc.collect()
        assert not list(session_of(mq).fetchers)
        assert not dict(session_of(mq).followers)
