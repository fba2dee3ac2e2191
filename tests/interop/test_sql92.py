"""Our SQL92 filter and the official one: the same verdicts on thousands of expressions, nonsense included; and our
client selects by it on both brokers. (What official consumers do with our broker: test_scenarios.py.)
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import official
from aerobee import BrokerRefused, Client, SqlFilter
from aerobee_proto.sql92 import SqlError, SqlValueError, compile_sql
from client_scenarios import shown
from clusters import Cluster
from plain_remoting import UPDATE_BROKER_CONFIG, call, make_topic
from proto.sql92_corpus import VALUES, expressions, property_sets

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

SEED, EXPRESSIONS, MESSAGES = 92, 12_000, 40
# Each property value beside each kind of literal, and beside each other.
EDGES = [
    *(
        "a > 1",
        "a >= 3L",
        "a = 5",
        "a = 5L",
        "a <> 2147483648",
        "a < 1.5",
        "a = 1.5",
        "5 < a",
        "2147483648 = a",
    ),
    *("1.5 <> a", "a = TRUE", "a <> FALSE", "TRUE = a", "a = b", "a < b", "a > -5", "a BETWEEN -5 AND 17"),
    *("a = '5'", "a CONTAINS '5'", "a", "NOT a", "a IS NULL", "-a IS NULL", "a = b OR b > 1 OR TRUE"),
]


def ours(expression: str, messages: list[dict[str, str]]) -> str | list[bool | str | None]:
    try:
        sql = compile_sql(expression)
    except SqlError:
        return "refused"
    verdicts: list[bool | str | None] = []
    for properties in messages:
        try:
            verdicts.append(sql.evaluate(properties))
        except SqlValueError:
            verdicts.append("error")
    return verdicts


def theirs(folder: Path, asked: list[tuple[str, list[dict[str, str]]]]) -> list[Any]:
    questions, answers = folder / "questions.jsonl", folder / "answers.jsonl"
    with questions.open("w", encoding="utf-8") as out:
        for expression, messages in asked:
            out.write(json.dumps({"expression": expression, "properties": messages}) + "\n")
    report = official.judge("sql", questions=questions, answers=answers)
    assert report["lines"] == len(asked)
    with answers.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_verdict_is_the_official_one(tmp_path: Path) -> None:
    messages = property_sets(SEED, MESSAGES)
    asked = [(text, messages[number % 5 :: 5]) for number, text in enumerate(expressions(SEED, EXPRESSIONS))]
    pairs = [{"a": a, "b": b} for a in VALUES for b in VALUES[::7]]
    asked += [(text, pairs) for text in EDGES]
    seen: Counter[str] = Counter()
    wrong = []
    for (expression, properties), official_one in zip(asked, theirs(tmp_path, asked), strict=True):
        own = ours(expression, properties)
        if own != official_one:
            wrong.append((expression, own, official_one))
        seen.update(["refused"] if official_one == "refused" else map(str, official_one))
    assert not wrong, f"{len(wrong)} expressions differ, the first: {wrong[:5]}"
    # The corpus is worth its name only while it holds plenty of each.
    assert min(seen[kind] for kind in ("refused", "True", "False", "None", "error")) > 1_000, seen


# --- our client, both brokers -------------------------------------------------------------------------------------

CHOICES = {
    "n > 90": range(91, 100),
    "n BETWEEN 10 AND 14 OR even IS NULL AND n < 4": [1, 3, *range(10, 15)],
    "TAGS = 'TagB' AND NOT (n < 95)": [96, 98],
    "even ENDSWITH 'es' AND n IN ('8', '9')": [8],
}


@pytest.fixture(scope="module")
def filtering(either: Cluster) -> Cluster:
    """Servers whose broker has SQL92 turned on."""
    make_topic(either.nameserver.address, either.broker.address, "Numbers", queues=2)
    return either


async def test_our_client_selects_on_both_brokers(filtering: Cluster) -> None:
    async with Client(filtering.nameserver.address) as client, client.producer() as producer:
        before = await ends(client)
        for number in range(100):
            properties = {"n": str(number)} | ({} if number % 2 else {"even": "yes"})
            await producer.send(
                "Numbers", b"%d" % number, tags="TagA" if number % 2 else "TagB", properties=properties
            )
        await shown(client, "Numbers", sum(before.values()) + 100)
        for expression, expected in CHOICES.items():
            async with client.pull_consumer(
                "chooser", "Numbers", end="now", filter=SqlFilter(expression)
            ) as consumer:
                for queue, offset in before.items():
                    await consumer.seek(offset, queue)
                got = sorted([int(message.body) async for message in consumer])
            assert got == list(expected), expression


async def test_a_reader_that_waits_gets_the_next_match_from_both_brokers(filtering: Cluster) -> None:
    async with (
        Client(filtering.nameserver.address) as client,
        client.producer() as producer,
        client.reader("Numbers", start="latest", filter=SqlFilter("color = 'red'")) as reader,
    ):
        for color in ("blue", "green", "red", "blue"):
            await producer.send("Numbers", color.encode(), properties={"color": color})
        batch = await reader.next_batch()
        assert batch is not None
        assert [message.body for message in batch] == [b"red"]


async def test_a_broker_with_sql_turned_off_says_so(either: Cluster) -> None:
    make_topic(either.nameserver.address, either.broker.address, "Plain")
    serve_sql(either, "false")
    try:
        async with Client(either.nameserver.address) as client:
            reader = client.reader("Plain", filter=SqlFilter("n > 1"))
            with pytest.raises(
                BrokerRefused, match="does not support consumer to filter message by SQL92"
            ) as logged:
                await reader.next_batch()
            assert logged.value.code == 1
    finally:
        serve_sql(either, "true")


def serve_sql(cluster: Cluster, value: str) -> None:
    """Turn the filters on or off."""
    change = f"enablePropertyFilter={value}\n".encode()
    answer, _ = call(cluster.broker.address, UPDATE_BROKER_CONFIG, body=change)
    assert answer["code"] == 0, answer


async def ends(client: Client) -> dict[Any, int]:
    return {queue: await client.admin.max_offset(queue) for queue in await client.queues("Numbers")}
