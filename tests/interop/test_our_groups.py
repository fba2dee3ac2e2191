"""Our consumers and official programs in one group: shared out alike, seen and moved by mqadmin alike."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import official
from admin_shell import AdminShell
from aerobee import Client, ClientConfig, GroupConsumer, GroupMessage
from clusters import Cluster
from plain_remoting import make_topic
from traffic import Ledger, Piece, add_up, by_tag, pieces

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

QUEUES = 4
EACH = 50


async def until(condition: Callable[[], bool]) -> None:
    """Wait for queues to change hands; no event tells."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def own(consumer: GroupConsumer[bytes], topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.queues)


async def test_members_in_java_and_in_python_share_a_topic(either: Cluster) -> None:
    topic = "Mixed"
    make_topic(either.nameserver.address, either.broker.address, topic)
    mine, sent = Ledger(topic), Ledger(topic)

    async def handler(message: GroupMessage[bytes]) -> None:
        mine.add(
            Piece(
                message.tags or "",
                " ".join(message.keys),
                dict(message.properties),
                message.flag,
                message.body,
            )
        )

    async with (
        Client(either.nameserver.address) as mq,
        mq.consumer("mixed", topic) as consumer,
        mq.producer() as producer,
    ):
        working = asyncio.create_task(consumer.run(handler))
        with official.start_judge(
            "push",
            namesrv=either.nameserver.address,
            topic=topic,
            group="mixed",
            filter="*",
            expect=EACH * QUEUES // 2,
        ) as java:
            await asyncio.to_thread(java.wait_line, "^READY", 60)
            await until(lambda: own(consumer, topic) == QUEUES // 2)
            queues = await mq.queues(topic)
            for number, piece in enumerate(pieces("mixed", EACH * QUEUES, large=False)):
                sent.add(piece)
                await producer.send(
                    topic,
                    piece.body,
                    tags=piece.tag,
                    keys=piece.key,
                    properties=piece.properties,
                    flag=piece.flag,
                    queue=queues[number % QUEUES],
                )
            report = await asyncio.to_thread(official.result_of, java)
        # Ours, too, has its half, before it leaves: a pull that missed its message is held for some seconds.
        await until(lambda: len(mine.keys) >= EACH * QUEUES // 2)
        await until(lambda: own(consumer, topic) == QUEUES)
    await working
    assert add_up(mine.totals, by_tag(report)) == sent.totals
    assert (len(mine.keys), mine.duplicates, report["duplicates"]) == (EACH * QUEUES // 2, 0, 0)


async def test_mqadmin_sees_and_moves_our_members_and_reads_their_traces(
    either: Cluster, tmp_path: Path
) -> None:
    topic, group = "Seen", "seen-group"
    nameserver = either.nameserver.address
    make_topic(nameserver, either.broker.address, topic)
    seen: Counter[str] = Counter()

    async def handler(message: GroupMessage[bytes]) -> None:
        seen[message.text()] += 1

    with AdminShell(nameserver, tmp_path) as shell:

        async def mqadmin(*words: str) -> str:
            return await asyncio.to_thread(shell.run, *words)

        async with (
            Client(config=ClientConfig(nameservers=(nameserver,), trace=True)) as mq,
            mq.consumer(group, {topic: "a || b"}) as consumer,
            mq.producer() as producer,
        ):
            working = asyncio.create_task(consumer.run(handler, concurrency=7))
            sent = [await producer.send(topic, f"{n}", tags="a", keys=f"k{n}") for n in range(8)]
            await until(lambda: sum(seen.values()) == 8)
            # A message is done when its handler has returned, which is a moment after it was seen.
            async with asyncio.timeout(60):
                said = ""
                while "Consume Diff Total: 0" not in said:
                    await consumer.commit()
                    said = await mqadmin("consumerProgress", "-g", group)
            said = await mqadmin("consumerStatus", "-g", group, "-i", mq.client_id, "-s")
            assert re.search(r"PROP_CONSUME_TYPE +: CONSUME_PASSIVELY", said)
            assert re.search(r"PROP_THREADPOOL_CORE_SIZE +: 7", said)
            assert re.search(rf"Topic: {topic} +ClassFilter: false +SubExpression: a \|\| b", said), said
            assert "handler 0" in said, "tasks and threads are shown"
            await mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
            await until(lambda: sum(seen.values()) == 16)
        await working
        assert set(seen.values()) == {2}
        said = ""
        async with asyncio.timeout(60):
            while not re.search(r"^Sub .*success", said, re.MULTILINE):
                said = await mqadmin("queryMsgTraceById", "-i", sent[0].message_id)  # the index follows
        assert re.search(r"^Pub .*success", said, re.MULTILINE)
