from aerobee import Client
from client.fakes import fake_cluster


async def test_messages_sent_are_read_back() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        async with mq.producer() as producer:
            result = await producer.send("T", b"one", tags="new", keys="o-1", properties={"a": "1"})
            assert result.queue_offset == 0
        got = [message async for message in mq.reader("T", end="now")]
        assert [message.body for message in got] == [b"one"]
        message = got[0]
        assert (message.tags, message.keys, message.properties["a"]) == ("new", ("o-1",), "1")
        assert message.message_id == result.message_id
        assert message.offset_message_id == result.offset_message_id
        assert message.queue == result.queue
