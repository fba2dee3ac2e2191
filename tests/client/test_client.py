import ssl

import pytest
import trustme

from aerobee import Client, NoRoute
from aerobee_remoting.server import ServerConfig, TlsMode
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


async def test_tls_to_nameserver_and_broker() -> None:
    authority = trustme.CA()
    served, trusting = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.configure_trust(trusting)
    config = ServerConfig(tls_mode=TlsMode.ENFORCING, tls=served)
    async with fake_cluster(config=config) as cluster:
        async with Client(cluster.nameserver.addr, tls=trusting) as mq, mq.producer() as producer:
            await producer.send("T", b"secret")
            assert [message.body async for message in mq.reader("T", end="now")] == [b"secret"]
        for tls in (None, True):  # in clear, and with an authority that is not ours
            async with Client(cluster.nameserver.addr, tls=tls) as mq:
                with pytest.raises(NoRoute, match="nameserver 127"):
                    await mq.queues("T")
