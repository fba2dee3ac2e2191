"""Bulk sending: entries as they travel, one result a batch."""

import pytest

from aerobee import BrokerRefused, Client, InvalidMessage, MessageQueue, NoRoute, SendFailed
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import Response
from client.fakes import fake_cluster, hang_up

BATCH = RequestCode.SEND_BATCH_MESSAGE


async def test_a_batch_lies_in_one_queue_in_order() -> None:
    async with fake_cluster(queues=2) as cluster, Client(cluster.nameserver.addr) as mq:
        bulk = mq.bulk_sender("loader")
        entries = [
            bulk.entry(b"%d" % n, tags="t", keys=["a", f"k{n}"], properties={"p": "ü"}) for n in range(50)
        ]
        result = await bulk.send("T", entries)
        again = await bulk.send("T", entries[:1], MessageQueue("T", "b-a", result.queue.queue_id))
        assert (result.queue_offset, result.message_count) == (0, 50)
        assert again.queue_offset == 50
        records = [decode_record(one) for one in cluster.broker.queues["T", result.queue.queue_id]]
        assert [record.body for record in records] == [b"%d" % n for n in range(50)] + [b"0"]
        found = decode_properties(records[7].properties)
        assert (found["TAGS"], found["KEYS"], found["p"]) == ("t", "a k7", "ü")
        assert len({record.unique_key for record in records[:50]}) == 50
        assert cluster.broker.asked(BATCH)[0]["a"] == "loader"


async def test_a_batch_of_one_is_a_batch() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        bulk = mq.bulk_sender()
        result = await bulk.send("T", [bulk.entry(b"one")])
        assert cluster.broker.stored("T", result.queue.queue_id) == [b"one"]


async def test_it_is_tried_again_and_given_up() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        bulk = mq.bulk_sender(attempts_max=3)
        cluster.broker.script(BATCH, hang_up, Response(ResponseCode.SYSTEM_BUSY, "busy"))
        assert (await bulk.send("T", [bulk.entry(b"a")])).queue_offset == 0
        cluster.broker.always(BATCH, Response(ResponseCode.SYSTEM_BUSY, "busy"))
        with pytest.raises(SendFailed, match="3 attempts failed"):
            await bulk.send("T", [bulk.entry(b"a")])
        cluster.broker.always(BATCH, Response(ResponseCode.MESSAGE_ILLEGAL, "not such a message"))
        with pytest.raises(BrokerRefused, match="not such a message"):
            await bulk.send("T", [bulk.entry(b"a")])
        with pytest.raises(NoRoute):
            await bulk.send("nowhere", [bulk.entry(b"a")])


async def test_what_no_broker_takes_is_no_entry() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        bulk = mq.bulk_sender()
        for body in (b"", b"x" * (5 << 20)):
            with pytest.raises(InvalidMessage, match="body"):
                bulk.entry(body)
        for properties in ({"TAGS": "a"}, {"a": ""}, {"a": "\x01"}, {"a": "x" * 40_000}, {"a": "\ud800"}):
            with pytest.raises(InvalidMessage):
                bulk.entry(b"a", properties=properties)
