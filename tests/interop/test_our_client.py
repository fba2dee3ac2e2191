"""Our Python client with the official nameserver and broker, and with official clients at the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import official
from aerobee import Client, Message, OutgoingMessage
from client_scenarios import shown
from clusters import Cluster
from plain_remoting import make_topic
from traffic import ByTag, Ledger, Piece, by_tag, pieces

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

EACH = 500


async def test_an_official_consumer_gets_what_our_producer_sent(either: Cluster) -> None:
    sent = await send_all(either, "FromPython")
    received = official.judge(
        "lite",
        namesrv=either.nameserver.address,
        topic="FromPython",
        group="from-python",
        filter="*",
        expect=len(sent.keys),
    )
    assert by_tag(received) == sent.totals
    assert (received["duplicates"], received["placesReused"]) == (0, 0)


async def test_our_readers_get_what_an_official_producer_sent(either: Cluster) -> None:
    make_topic(either.nameserver.address, either.broker.address, "FromJava")
    report = official.judge(
        "send",
        namesrv=either.nameserver.address,
        topic="FromJava",
        modes="sync,async,oneway,batch",
        each=EACH,
        run="j",
    )
    sent = by_tag(report)
    async with Client(either.nameserver.address) as client:
        await shown(client, "FromJava", sum(count for count, _ in sent.values()))
        everything = await read(client.reader("FromJava", end="now"), "FromJava")
        filtered = await read(client.reader("FromJava", end="now", tags="TagB || TagC"), "FromJava")
        async with client.pull_consumer("from-java", "FromJava", end="now") as consumer:
            grouped = await read(consumer, "FromJava")
            await consumer.commit()
            queues = consumer.queues
        async with client.pull_consumer("from-java", "FromJava", end="now") as again:
            left = await read(again, "FromJava")
    assert (report["failed"], report.get("firstFailure")) == (0, None)
    assert everything == grouped == sent
    assert filtered == {"TagB": sent["TagB"]}
    assert (left, len(queues)) == ({}, 4)


async def test_our_client_finds_messages_by_key_and_by_both_ids(either: Cluster) -> None:
    make_topic(either.nameserver.address, either.broker.address, "Found")
    async with Client(either.nameserver.address) as client, client.producer() as producer:
        result = await producer.send("Found", "a body", keys=["first", "second"], tags="TagA")
        by_key = await find_by_key(client, "Found", "second")
        by_offset_id = await client.query_by_id(result.offset_message_id)
        by_unique_id = await client.query_by_id(result.message_id, "Found")
        assert await client.query("Found", key="third") == []
    found = [*by_key, by_offset_id, by_unique_id]
    assert [message.text() if message else None for message in found] == ["a body"] * 3
    assert {message.message_id if message else None for message in found} == {result.message_id}


async def send_all(either: Cluster, topic: str) -> Ledger:
    """Send in each way the producer has; what was sent."""
    make_topic(either.nameserver.address, either.broker.address, topic)
    sent = Ledger(topic)
    async with Client(either.nameserver.address) as client, client.producer() as producer:
        for piece in note(sent, pieces("awaited", EACH)):
            await producer.send(topic, piece.body, **fields(piece))  # type: ignore[arg-type]
        futures = [
            producer.send_nowait(topic, piece.body, **fields(piece))  # type: ignore[arg-type]
            for piece in note(sent, pieces("nowait", EACH))
        ]
        await asyncio.gather(*futures)
        for piece in note(sent, pieces("oneway", EACH)):
            await producer.send_oneway(topic, piece.body, **fields(piece))  # type: ignore[arg-type]
        batch = [
            OutgoingMessage(piece.body, piece.tag, piece.key, piece.properties, piece.flag)
            for piece in note(sent, pieces("batch", EACH, large=False))
        ]
        results = await producer.send_batch(topic, batch)
    assert len({(one.queue, one.queue_offset) for one in results}) == EACH
    return sent


def note(ledger: Ledger, made: list[Piece]) -> Iterator[Piece]:
    for piece in made:
        ledger.add(piece)
        yield piece


def fields(piece: Piece) -> dict[str, object]:
    return {"tags": piece.tag, "keys": piece.key, "properties": piece.properties, "flag": piece.flag}


async def read(source: object, topic: str) -> ByTag:
    """Totals of all messages of a reader or consumer."""
    ledger = Ledger(topic)
    assert hasattr(source, "__aiter__")
    async for message in source:
        assert isinstance(message, Message)
        ledger.add(
            Piece(
                message.tags or "",
                " ".join(message.keys),
                dict(message.properties),
                message.flag,
                message.body,
            )
        )
    assert ledger.duplicates == 0
    return ledger.totals


async def find_by_key(client: Client, topic: str, key: str) -> list[Message]:
    """The official broker indexes a moment after the send: ask until it is there."""
    async with asyncio.timeout(20):
        while not (found := await client.query(topic, key=key)):  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.05)
    return found
