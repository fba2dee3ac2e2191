"""What our client promises its users, scenario by scenario, against any nameserver and broker.

`tests/system` runs them with our own broker in the same process, `tests/interop` with the official programs. Each
scenario gets a client and a folder of its own and names its topics and groups after itself.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aerobee import (
    BrokerRefused,
    Client,
    ClientConfig,
    DeadLetter,
    GroupConsumer,
    GroupMessage,
    JsonCodec,
    MessageQueue,
    NoReply,
    NoRoute,
    RetryLater,
    SendResult,
    SqlFilter,
)
from aerobee_proto import javajson
from aerobee_proto.bodies import ResetOffsetBody
from client.inside import session_of

__all__ = ["BROKER_SETTINGS", "SCENARIOS"]

PATIENCE_S = 60.0
# What the scenarios need of a broker, by RocketMQ's names.
BROKER_SETTINGS: dict[str, object] = {
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
}

Scenario = Callable[[Client, Path], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


class Order(msgspec.Struct):
    number: int
    item: str


@asynccontextmanager
async def another(mq: Client, **settings: Any) -> AsyncIterator[Client]:
    """A second client of the same cluster: a member of its own."""
    async with Client(config=ClientConfig(nameservers=mq.config.nameservers, **settings)) as client:
        yield client


async def fresh(mq: Client, topic: str, queues: int = 4) -> str:
    """A topic that the nameserver knows."""
    await mq.admin.create_topic(topic, queues=queues)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await mq.queues(topic)
            except NoRoute:
                await asyncio.sleep(0.05)  # the broker is telling the nameserver; no event tells us
            else:
                return topic


async def routed(mq: Client, topic: str, brokers: set[str]) -> None:
    """Wait until the nameserver knows the topic at all of them: each tells it by itself, after it has the topic."""
    async with asyncio.timeout(PATIENCE_S):
        while {broker.broker_name for broker in (await mq.admin.route(topic)).broker_datas} != brokers:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells: queues that change hands, offsets that are stored."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def take(consumer: GroupConsumer[Any], count: int) -> list[GroupMessage[Any]]:
    """The next messages, all acked."""
    found: list[GroupMessage[Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in consumer:
            await message.ack()
            found.append(message)
            if len(found) == count:
                break
    return found


async def committed(mq: Client, group: str, topic: str) -> int:
    """The sum of a group's offsets in a topic, as the broker has them."""
    found = await mq.admin.group_progress(group)
    return sum(one.consumer_offset for one in found.queues if one.queue.topic == topic)


async def shown(mq: Client, topic: str, count: int) -> None:
    """Wait until a broker shows what it has acknowledged: the official one answers before its queues are written."""
    async with asyncio.timeout(PATIENCE_S):
        while sum([await mq.admin.max_offset(queue) for queue in await mq.queues(topic)]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def own(consumer: GroupConsumer[Any], topic: str) -> set[MessageQueue]:
    return {queue for queue in consumer.queues if queue.topic == topic}


async def send_numbers(mq: Client, topic: str, count: int, **how: Any) -> list[SendResult]:
    async with mq.producer() as producer:
        return list(await asyncio.gather(*(producer.send(topic, b"%d" % n, **how) for n in range(count))))


# --- groups


@scenario
async def members_share_the_queues_and_lose_no_message(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Shared")
    seen: dict[tuple[MessageQueue, int], bytes] = {}

    async def handler(message: GroupMessage[bytes]) -> None:
        # A queue that changes hands may bring some messages to both: at least once, so each counts once.
        seen[message.queue, message.queue_offset] = message.body

    async with another(mq) as second, mq.consumer("shared", topic) as one:
        assert len(own(one, topic)) == 4
        working = asyncio.create_task(one.run(handler))
        await send_numbers(mq, topic, 200)
        async with second.consumer("shared", topic) as two:
            also = asyncio.create_task(two.run(handler))
            await until(lambda: len(own(one, topic)) == len(own(two, topic)) == 2)
            assert not own(one, topic) & own(two, topic)
            await send_numbers(mq, topic, 200)
            await until(lambda: len(seen) == 400)
        await also
        await until(lambda: len(own(one, topic)) == 4)
        await send_numbers(mq, topic, 200)
        await until(lambda: len(seen) == 600)
    await working
    assert Counter(seen.values()) == {b"%d" % n: 3 for n in range(200)}
    assert await committed(mq, "shared", topic) == 600


@scenario
async def a_group_goes_on_where_it_stopped(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Resumed", queues=1)
    await send_numbers(mq, topic, 10, queue=0)
    async with mq.consumer("resumed", topic, auto_ack=False) as consumer:
        messages = []
        async for message in consumer:
            messages.append(message)
            if len(messages) == 10:
                break
        for message in (*messages[:4], *messages[6:]):
            await message.ack()
        assert list(consumer.positions.values()).count(4) == 1
    assert await committed(mq, "resumed", topic) == 4
    async with mq.consumer("resumed", topic) as consumer:
        again = await take(consumer, 6)
    assert [message.body for message in again] == [b"%d" % n for n in range(4, 10)]
    assert await committed(mq, "resumed", topic) == 10


@scenario
async def leaving_a_loop_gives_the_message_in_hand_back(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "InHand", queues=1)
    await send_numbers(mq, topic, 3, queue=0)
    async with mq.consumer("in-hand", topic) as consumer:
        async for message in consumer:
            if message.body == b"1":
                break
        assert [message.body for message in await take(consumer, 2)] == [b"1", b"2"]


@scenario
async def a_group_starts_where_it_is_told_to(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Start", queues=1)
    results = await send_numbers(mq, topic, 5, queue=0)
    (third,) = [m async for m in mq.reader(topic, start=3, end=4)]
    assert (len(results), third.body) == (5, b"3")
    await shown(mq, topic, 5)  # "latest" is what a broker shows
    async with mq.consumer("start-latest", topic, start="latest") as late:
        await send_numbers(mq, topic, 1, queue=0)
        assert [message.queue_offset for message in await take(late, 1)] == [5]
    async with mq.consumer("start-time", topic, start=third.store_time) as timed:
        first = (await take(timed, 1))[0]
        assert first.store_timestamp_ms >= third.store_timestamp_ms
    async with mq.consumer("start-earliest", topic) as early:
        assert [message.queue_offset for message in await take(early, 6)] == list(range(6))


@scenario
async def filters_choose_by_tag_and_by_expression(mq: Client, folder: Path) -> None:
    tagged, priced = await fresh(mq, "Tagged"), await fresh(mq, "Priced")
    async with mq.producer() as producer:
        for n in range(10):
            await producer.send(tagged, b"%d" % n, tags="odd" if n % 2 else "even")
            await producer.send(priced, b"%d" % n, properties={"price": str(n)})
    expected = {tagged: "odd || none", priced: SqlFilter("price BETWEEN 3 AND 5")}
    async with mq.consumer("filters", expected) as consumer:
        found = await take(consumer, 8)
    assert sorted(m.body for m in found if m.topic == tagged) == [b"1", b"3", b"5", b"7", b"9"]
    assert sorted(m.body for m in found if m.topic == priced) == [b"3", b"4", b"5"]


@scenario
async def seek_and_pause(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Seek", queues=1)
    await send_numbers(mq, topic, 5, queue=0)
    async with mq.consumer("seek", topic) as consumer:
        await take(consumer, 5)
        (queue,) = own(consumer, topic)
        consumer.pause(queue)
        await consumer.seek("earliest")
        assert consumer.positions[queue] == 0
        waiting = asyncio.create_task(take(consumer, 2))
        await until(lambda: consumer.member.owned[queue].waiting_count == 5)
        assert not waiting.done()
        consumer.resume(queue)
        assert [message.body for message in await waiting] == [b"0", b"1"]
        await consumer.commit()
    assert await committed(mq, "seek", topic) == 2


# --- retries and dead letters


@scenario
async def what_fails_comes_again_and_what_is_hopeless_becomes_a_dead_letter(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Failing")
    seen: dict[str, list[int]] = defaultdict(list)
    origins: dict[str, set[str]] = defaultdict(set)

    async def handler(message: GroupMessage[bytes]) -> None:
        seen[message.text()].append(message.reconsume_times)
        origins[message.text()].add(message.origin_message_id)
        assert message.topic == topic
        match message.text():
            case "later" if not message.reconsume_times:
                raise RetryLater(timedelta(seconds=1))
            case "raised" if not message.reconsume_times:
                await message.retry_later(delay_level=1)
                raise ValueError("settled already, so this is only logged")
            case "hopeless":
                raise DeadLetter("no use")

    async with mq.consumer("failing", topic) as consumer, mq.producer() as producer:
        working = asyncio.create_task(consumer.run(handler))
        for body in ("fine", "later", "raised", "hopeless"):
            await producer.send(topic, body, keys=f"k-{body}")
        await until(lambda: sum(map(len, seen.values())) >= 6)
    await working
    assert seen == {"fine": [0], "later": [0, 1], "raised": [0, 1], "hopeless": [0]}
    assert all(len(ids) == 1 for ids in origins.values())
    dead = await dead_letters(mq, "failing")
    assert [message.text() for message in dead] == ["hopeless"]


@scenario
async def the_limit_of_redeliveries_is_kept(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Limit", queues=1)
    times = []

    async def handler(message: GroupMessage[bytes]) -> None:
        times.append(message.reconsume_times)
        raise RetryLater(1)

    async with mq.consumer("limit", topic, max_reconsume_times=1) as consumer:
        working = asyncio.create_task(consumer.run(handler))
        await send_numbers(mq, topic, 1)
        await until(lambda: len(times) == 2)
    await working
    assert times == [0, 1]
    assert [message.body for message in await dead_letters(mq, "limit")] == [b"0"]


async def dead_letters(mq: Client, group: str) -> list[Any]:
    """The dead letters of a group; there is at least one on its way."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if found := [message async for message in mq.reader(f"%DLQ%{group}", end="now")]:
                    return found
            except NoRoute:
                pass  # the topic is being made
            await asyncio.sleep(0.05)


@scenario
async def bodies_are_values_and_unreadable_ones_dead_letters(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Typed")
    found: list[Order] = []

    async def handler(message: GroupMessage[Order]) -> None:
        found.append(message.value)

    async with (
        mq.consumer("typed", topic, codec=JsonCodec(Order)) as consumer,
        mq.producer(codec=JsonCodec(Order)) as producer,
        mq.producer() as stranger,
    ):
        working = asyncio.create_task(consumer.run(handler))
        await stranger.send(topic, b"{no order")
        await producer.send(topic, Order(17, "soap"))
        await until(lambda: len(found) == 1)
        assert len(await dead_letters(mq, "typed")) == 1
    await working
    assert found == [Order(17, "soap")]


# --- order


@scenario
async def an_orderly_group_keeps_the_order_when_members_come_and_go(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Orderly")
    lanes: dict[str, list[int]] = defaultdict(list)
    busy: set[MessageQueue] = set()

    async def handler(message: GroupMessage[bytes]) -> None:
        assert message.queue not in busy, "a queue is in two hands"
        busy.add(message.queue)
        lane, number = message.text().split(":")
        await asyncio.sleep(0)
        if not lanes[lane] or lanes[lane][-1] != int(number):
            lanes[lane].append(int(number))
        busy.remove(message.queue)

    async def send(first: int, last: int) -> None:
        async with mq.producer() as producer:
            futures = [
                producer.send_nowait(topic, f"{lane}:{n}", sharding_key=lane)
                for n in range(first, last)
                for lane in "abcde"
            ]
            await asyncio.gather(*futures)

    async with another(mq) as second, mq.consumer("orderly", topic, orderly=True) as one:
        working = asyncio.create_task(one.run(handler))
        await send(0, 40)
        async with second.consumer("orderly", topic, orderly=True) as two:
            also = asyncio.create_task(two.run(handler))
            await send(40, 80)
            await until(lambda: len(own(one, topic)) == len(own(two, topic)) == 2)
            await send(80, 120)
            await until(lambda: all(lanes[lane][-1:] == [119] for lane in "abcde"))
        await also
        await send(120, 140)
        await until(lambda: all(lanes[lane][-1:] == [139] for lane in "abcde"))
    await working
    assert dict(lanes) == {lane: list(range(140)) for lane in "abcde"}


@scenario
async def an_orderly_group_repeats_before_it_goes_on_and_gives_up_at_its_limit(
    mq: Client, folder: Path
) -> None:
    topic = await fresh(mq, "Stubborn", queues=1)
    seen: list[tuple[bytes, int]] = []

    async def handler(message: GroupMessage[bytes]) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"1":
            raise RetryLater

    async with mq.consumer(
        "stubborn", topic, orderly=True, suspend_s=0.05, max_reconsume_times=2
    ) as consumer:
        working = asyncio.create_task(consumer.run(handler))
        async with mq.producer() as producer:
            for n in range(3):
                await producer.send(topic, b"%d" % n)
        await until(lambda: (b"2", 0) in seen)
        assert [message.body for message in await dead_letters(mq, "stubborn")] == [b"1"]
    await working
    assert seen == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]


@scenario
async def one_key_stays_in_order_while_others_overtake(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Keyed", queues=1)
    ended: list[str] = []
    slow = asyncio.Event()

    async def handler(message: GroupMessage[bytes]) -> None:
        if message.text() == "a0":
            await slow.wait()
        ended.append(message.text())

    async with mq.consumer("keyed", topic) as consumer, mq.producer() as producer:
        working = asyncio.create_task(consumer.run(handler, concurrency=4))
        for text in ("a0", "b0", "a1", "b1", "a2"):
            await producer.send(topic, text, sharding_key=text[0], queue=0)
        await until(lambda: ended == ["b0", "b1"])
        slow.set()
        await until(lambda: len(ended) == 5)
    await working
    assert ended == ["b0", "b1", "a0", "a1", "a2"]


# --- broadcasting


@scenario
async def every_member_of_a_broadcasting_group_gets_everything(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Broadcast")
    await send_numbers(mq, topic, 20)

    def member(client: Client) -> GroupConsumer[bytes]:
        return client.consumer("everyone", topic, model="broadcasting", offsets_folder=folder)

    async with another(mq, client_name="one") as first, another(mq, client_name="two") as second:
        async with member(first) as one, member(second) as two:
            everything = [sorted(m.body for m in await take(each, 20)) for each in (one, two)]
        assert everything[0] == everything[1] == sorted(b"%d" % n for n in range(20))
    files = offset_files(folder)
    assert [file.split("@")[1] for file in files] == [
        "one/everyone/offsets.json",
        "two/everyone/offsets.json",
    ]
    table = ResetOffsetBody.from_bytes((folder / files[0]).read_bytes()).offset_table
    assert sum(table.values()) == 20
    await send_numbers(mq, topic, 5)
    async with another(mq, client_name="one") as first, member(first) as one:
        assert len(await take(one, 5)) == 5, "it goes on where it stopped"


def offset_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("offsets.json"))


# --- transactions, delays, replies


@scenario
async def transactions_are_seen_when_they_are_committed(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Transacted", queues=1)
    asked: set[str] = set()
    truth = {"lost": True, "lost and gone": False}

    async def check(message: Any) -> bool | None:
        asked.add(message.text())
        return truth.get(message.text())

    async with mq.consumer("transacted", topic) as consumer, mq.producer("shop", check=check) as producer:
        async with producer.transaction(topic, "committed", keys="k", tags="t") as tx:
            committed_id = tx.transaction_id
        with pytest.raises(KeyError):
            async with producer.transaction(topic, "failed"):
                raise KeyError("the database says no")
        async with producer.transaction(topic, "refused") as tx:
            tx.rollback()
        (seen,) = await take(consumer, 1)
        assert (seen.text(), seen.message_id, seen.keys, seen.tags) == (
            "committed",
            committed_id,
            ("k",),
            "t",
        )
        # Two programs that died inside the block.
        for body in truth:
            await producer.transaction(topic, body).__aenter__()
        assert (await take(consumer, 1))[0].text() == "lost"
        await until(lambda: set(truth) <= asked)


@scenario
async def messages_arrive_when_they_are_due(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Due", queues=1)
    async with mq.consumer("due", topic) as consumer, mq.producer() as producer:
        due: dict[str, float] = {}
        start = datetime.now(UTC)
        due["level"] = start.timestamp() + 1
        await producer.send(topic, "level", delay_level=1)
        due["after"] = datetime.now(UTC).timestamp() + 2
        await producer.send(topic, "after", deliver_after=2)
        due["at"] = (start + timedelta(seconds=3)).timestamp()
        sent = await producer.send(topic, "at", deliver_at=start + timedelta(seconds=3))
        withdrawn = await producer.send(topic, "withdrawn", deliver_after=timedelta(seconds=3))
        assert await producer.cancel(withdrawn) == withdrawn.message_id
        arrived = {message.text(): message for message in await take(consumer, 3)}
        assert set(arrived) == set(due)
        for text, message in arrived.items():
            # Timers count whole seconds at official brokers, which may be early by less than one.
            assert message.store_timestamp_ms / 1000 >= due[text] - 1.0
        assert arrived["at"].message_id == sent.message_id
        await producer.send(topic, "last", deliver_after=3)
        assert [message.text() for message in await take(consumer, 1)] == ["last"], (
            "what was withdrawn is gone"
        )


@scenario
async def a_request_gets_its_reply(mq: Client, folder: Path) -> None:
    topic, silent = await fresh(mq, "Asked"), await fresh(mq, "Silent")

    async def answer(message: GroupMessage[bytes]) -> None:
        await message.reply(message.body.upper(), properties={"from": "server"})

    async with another(mq) as server, server.consumer("server", topic) as consumer, mq.producer() as producer:
        working = asyncio.create_task(consumer.run(answer))
        bodies = [b"request %d" % n for n in range(20)]
        replies = await asyncio.gather(
            *(producer.request(topic, body, timeout_s=PATIENCE_S) for body in bodies)
        )
        assert [reply.body for reply in replies] == [body.upper() for body in bodies]
        assert {reply.properties["from"] for reply in replies} == {"server"}
        with pytest.raises(NoReply, match="no reply within"):
            await producer.request(silent, b"hello?", timeout_s=0.5)
    await working


# --- what operators do


@scenario
async def an_operator_sees_and_moves_a_group(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Operated", queues=1)
    seen: list[bytes] = []

    async def handler(message: GroupMessage[bytes]) -> None:
        seen.append(message.body)

    async with mq.consumer("operated", topic) as consumer:
        working = asyncio.create_task(consumer.run(handler))
        await send_numbers(mq, topic, 5, queue=0)
        await until(lambda: len(seen) == 5)
        await consumer.commit()
        await reset_to(mq, "operated", topic, timestamp_ms=0)
        await until(lambda: len(seen) == 10)
        info = await running_info(mq, "operated")
        assert info["subscriptionSet"][0]["topic"]
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
        assert "handler 0" in info["jstack"]
        assert "MainThread" in info["jstack"]
    await working
    assert Counter(seen) == {b"%d" % n: 2 for n in range(5)}


async def reset_to(mq: Client, group: str, topic: str, timestamp_ms: int) -> None:
    """As `mqadmin resetOffsetByTime` does."""
    for addr in await master_addrs(mq):
        await session_of(mq).peers.call(
            "reset",
            addr,
            222,
            {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"},
        )


async def running_info(mq: Client, group: str) -> dict[str, Any]:
    """As `mqadmin consumerStatus -s` does."""
    (addr,) = await master_addrs(mq)
    answer = await session_of(mq).peers.call(
        "info",
        addr,
        307,
        {"consumerGroup": group, "clientId": mq.client_id, "jstackEnable": "true"},
        timeout_s=PATIENCE_S,
    )
    found: dict[str, Any] = javajson.loads(bytes(answer.body))
    return found


async def master_addrs(mq: Client) -> Iterable[str]:
    return [node.addr for node in await mq.admin.brokers() if node.broker_id == 0]


@scenario
async def one_message_is_handled_for_a_trial(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Trial", queues=1)
    seen: list[str] = []

    async def handler(message: GroupMessage[bytes]) -> None:
        seen.append(message.text())
        if message.text() == "bad" and len(seen) > 2:
            raise ValueError("no good")

    async with mq.consumer("trial", topic) as consumer, mq.producer() as producer:
        working = asyncio.create_task(consumer.run(handler))
        good, bad = await producer.send(topic, "good"), await producer.send(topic, "bad")
        await until(lambda: len(seen) == 2)
        results = [await consume_directly(mq, "trial", topic, one) for one in (good, bad)]
        assert [result["consumeResult"] for result in results] == ["CR_SUCCESS", "CR_THROW_EXCEPTION"]
        assert "no good" in results[1]["remark"]
    await working
    assert seen == ["good", "bad", "good", "bad"]


async def consume_directly(mq: Client, group: str, topic: str, sent: SendResult) -> dict[str, Any]:
    """As the dashboard's "resend" does."""
    (addr,) = await master_addrs(mq)
    answer = await session_of(mq).peers.call(
        "trial",
        addr,
        309,
        {"consumerGroup": group, "clientId": mq.client_id, "topic": topic, "msgId": sent.offset_message_id},
        timeout_s=PATIENCE_S,
    )
    found: dict[str, Any] = javajson.loads(bytes(answer.body))
    return found


@scenario
async def traces_tell_what_happened_to_a_message(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Traced", queues=1)
    async with (
        another(mq, trace=True) as traced,
        traced.consumer("traced", topic) as consumer,
        traced.producer("tracer") as producer,
    ):
        sent = await producer.send(topic, "x", keys=["k1", "k2"], tags="t")
        await take(consumer, 1)
        async with producer.transaction(topic, "y") as tx:
            pass
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await mq.trace(sent.message_id)) < 3:  # noqa: ASYNC110  # the index follows
            await asyncio.sleep(0.05)
        while len(ended := await mq.trace(tx.transaction_id)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    pub, before, after = found
    assert (pub.kind, pub.topic, pub.tags, pub.keys, pub.ok) == ("Pub", topic, "t", "k1 k2", True)
    assert pub.offset_message_id == sent.offset_message_id
    assert (before.kind, before.group, after.kind, after.ok, after.outcome) == (
        "SubBefore", "traced", "SubAfter", True, 0,
    )  # fmt: skip
    assert before.request_id == after.request_id
    assert {record.kind: record.transaction_state for record in ended}["EndTransaction"] == "COMMIT_MESSAGE"


@scenario
async def a_filter_that_is_none_is_refused_at_the_start(mq: Client, folder: Path) -> None:
    topic = await fresh(mq, "Refused")
    subscription = SqlFilter("a > 1")
    object.__setattr__(subscription, "text", "a >")  # what a client of another make may send
    with pytest.raises(BrokerRefused) as refused:
        await mq.consumer("refused", {topic: subscription}).__aenter__()
    assert refused.value.code == 23
