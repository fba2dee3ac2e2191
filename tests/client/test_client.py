import ssl
from dataclasses import fields
from typing import Any

import pytest
import trustme

from aerobee import Client, ClientClosed, ClientConfig, InvalidMessage, NoRoute, OutgoingMessage
from aerobee.sync import Client as SyncClient
from aerobee_remoting.ends.server import ServerConfig, TlsMode
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


def test_every_setting_is_a_keyword_of_the_client() -> None:
    """`Client("...", trace=True)` was a TypeError; only a ClientConfig could say it."""
    values: dict[str, Any] = {
        field.name: getattr(ClientConfig(), field.name) for field in fields(ClientConfig)
    }
    values |= {"trace": True, "client_name": "me", "request_timeout_s": 7.0, "tls": True}
    assert Client(**values).config == ClientConfig(**values)
    assert SyncClient(**values)._twin.config == ClientConfig(**values)
    changed = Client("a:1", config=ClientConfig(trace=True), telemetry=True).config
    assert (changed.nameservers, changed.trace, changed.telemetry) == (("a:1",), True, True)
    with pytest.raises(InvalidMessage, match="unknown setting traces; there are body_size_max"):
        Client("a:1", traces=True)


async def test_a_reader_of_a_closed_client_says_so() -> None:
    """It said that there was no route, and to check that a nameserver runs."""
    async with fake_cluster() as cluster:
        async with Client(cluster.nameserver.addr) as mq:
            reader, other = mq.reader("T"), mq.pull_consumer("g", "T")
            admin = mq.admin
        with pytest.raises(ClientClosed, match="client is closed"):
            await anext(aiter(reader))
        with pytest.raises(ClientClosed, match="client is closed"):
            await other.__aenter__()
        with pytest.raises(ClientClosed, match="client is closed"):
            await admin.topics()


@pytest.mark.parametrize("keys", ["two words", ["one", "two words"], ["one", ""]])
async def test_a_key_has_no_blanks(keys: str | list[str]) -> None:
    """`keys="two words"` were two keys, and a query for them found nothing."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer("p") as producer:
        with pytest.raises(InvalidMessage, match=r"blank|empty"):
            await producer.send("T", b"x", keys=keys)
        with pytest.raises(InvalidMessage, match=r"blank|empty"):
            producer.transaction("T", b"x", keys=keys)
        with pytest.raises(InvalidMessage, match=r"blank|empty"):
            await producer.send_batch("T", [OutgoingMessage(b"x", keys=keys)])
        await producer.send("T", b"x", keys=["two", "words"])
        assert len(await mq.query("T", key="words")) == 1
