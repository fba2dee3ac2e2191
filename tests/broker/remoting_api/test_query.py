"""Look-ups by key, by unique key, by time and by position, on connections in memory."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack
from itertools import count

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_record, decode_records
from aerobee_store.reading.query import QueryResult
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import START_MS, Clock
from system.running import Talker, send_request, text_of

FOREVER = 2**63 - 1


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


async def query(
    client: Talker,
    key: str,
    *,
    topic: str = "T",
    count: int = 10,
    begin: int = 0,
    end: int = FOREVER,
    unique: str | None = None,
    codec: int = 0,
) -> Command:
    ext = {
        "topic": topic,
        "key": key,
        "maxNum": str(count),
        "beginTimestamp": str(begin),
        "endTimestamp": str(end),
    }
    if unique is not None:
        ext["_UNIQUE_KEY_QUERY"] = unique
    return await client.ask(RequestCode.QUERY_MESSAGE, ext, codec=codec)


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [one.body for one in decode_records(answer.body)]


async def put_keys(client: Talker, *messages: tuple[bytes, str], topic: str = "T") -> None:
    for body, keys in messages:
        await client.put(topic, body, properties=text_of({"KEYS": keys}))


@pytest.mark.parametrize("codec", [0, 1, 2], ids=["json", "rocketmq", "msgpack"])
async def test_a_key_finds_its_messages(client: Talker, codec: int) -> None:
    await put_keys(client, (b"1", "order"), (b"2", "other"), (b"3", "more order keys"))
    answer = await query(client, "order", codec=codec)
    assert bodies(answer) == [b"1", b"3"]
    assert answer.ext.keys() == {"indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"}
    assert answer.ext["indexLastUpdateTimestamp"] == str(START_MS)
    assert int(answer.ext["indexLastUpdatePhyoffset"]) == decode_records(answer.body)[-1].physical_offset


async def test_a_message_is_found_as_soon_as_its_send_is_answered(client: Talker) -> None:
    for i in range(20):
        await put_keys(client, (b"%d" % i, f"key-{i}"))
        assert bodies(await query(client, f"key-{i}")) == [b"%d" % i]


@pytest.mark.parametrize("unique", [None, "true"])
async def test_the_unique_key_finds_its_message(client: Talker, unique: str | None) -> None:
    await client.put("T", b"mine", properties=text_of({"UNIQ_KEY": "AB" * 16}))
    answer = await client.put("T", b"other")
    assert bodies(await query(client, "AB" * 16, unique=unique)) == [b"mine"]
    assert bodies(await query(client, answer.ext["transactionId"], unique=unique)) == [b"other"]


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        ("T", "orde"),
        ("T", "ORDER"),
        ("T", "order keys"),
        ("T", ""),
        ("U", "order"),
        ("Nowhere", "order"),
        ("../x", "order"),
        ("", "order"),
        ("T", "ключ"),
    ],
)
async def test_what_is_not_there_is_told(client: Talker, topic: str, key: str) -> None:
    await put_keys(client, (b"1", "order keys"))
    await put_keys(client, (b"2", "other"), topic="U")
    answer = await query(client, key, topic=topic)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.body == b""
    assert answer.remark


async def test_keys_with_one_hash_are_told_apart(client: Talker) -> None:
    """Java's hash of "Aa" is that of "BB"; the index holds hashes only."""
    await put_keys(client, (b"a", "Aa"), (b"b", "BB"))
    assert bodies(await query(client, "Aa")) == [b"a"]
    assert bodies(await query(client, "BB")) == [b"b"]


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [
        (0, FOREVER, [b"0", b"1", b"2"]),
        (-(2**63), FOREVER, [b"0", b"1", b"2"]),
        (START_MS + 60_000, FOREVER, [b"1", b"2"]),
        (0, START_MS + 60_000, [b"0", b"1"]),
        (START_MS + 60_000, START_MS + 60_000, [b"1"]),
        (START_MS + 200_000, FOREVER, None),
        (0, START_MS - 60_000, None),
        (FOREVER, 0, None),
    ],
)
async def test_the_time_range_holds(
    client: Talker, clock: Clock, begin: int, end: int, found: list[bytes] | None
) -> None:
    for i in range(3):
        await put_keys(client, (b"%d" % i, "k"))
        clock.now_ms += 60_000
    answer = await query(client, "k", begin=begin, end=end)
    if found is None:
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
    else:
        assert bodies(answer) == found


async def put_many(client: Talker, count: int) -> None:
    keys = text_of({"KEYS": "k", "UNIQ_KEY": "u"})
    client.send(*[send_request("T", b"%d" % i, opaque=i, properties=keys) for i in range(count)])
    await client.answers(count)


@pytest.mark.parametrize(
    ("count", "unique", "found"),
    [(1, None, 1), (5, None, 5), (64, None, 64), (65, None, 64), (2**31 - 1, None, 64), (1, "true", 32)],
)
async def test_the_newest_are_given_up_to_the_number_asked_for_and_allowed(
    client: Talker, count: int, unique: str | None, found: int
) -> None:
    await put_many(client, 100)
    answer = await query(client, "u" if unique else "k", count=count, unique=unique)
    assert bodies(answer) == [b"%d" % i for i in range(100 - found, 100)]


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
async def test_no_messages_cannot_be_asked_for(client: Talker, count: int) -> None:
    answer = await query(client, "k", count=count)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert str(count) in (answer.remark or "")


async def test_a_key_too_long_to_be_one_is_refused(client: Talker) -> None:
    answer = await query(client, "k" * 16_385)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert len(answer.remark or "") < 200


async def test_without_an_index_nothing_is_found_and_nothing_breaks() -> None:
    async with broker_in_memory(message_index_enable=False) as broker, talking_in_memory(broker) as client:
        await put_keys(client, (b"1", "order"))
        assert (await query(client, "order")).code == ResponseCode.QUERY_NOT_FOUND
        assert [one.body for one in await client.records("T")] == [b"1"]


async def view(client: Talker, offset: object) -> Command:
    return await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": "T"})


async def test_a_position_gives_the_record_that_begins_there(client: Talker) -> None:
    await client.put("T", b"first")
    await client.put("T", b"second")
    first, second = await client.records("T")
    answer = await view(client, second.physical_offset)
    assert answer.code == 0
    assert decode_record(answer.body).body == b"second"
    assert len(answer.body) == second.size
    assert decode_record((await view(client, first.physical_offset)).body).body == b"first"


async def test_positions_where_no_record_begins_give_nothing(client: Talker) -> None:
    await client.put("T", b"first")
    await client.put("T", b"second")
    records = await client.records("T")
    end = records[-1].physical_offset + records[-1].size
    begins = {one.physical_offset for one in records}
    for offset in (-1, -(2**63), end, end + 1, 1 << 20, 2**62, 2**63 - 1, *range(0, end, 7)):
        answer = await view(client, offset)
        if offset in begins:
            continue
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"can not find message by the offset, {offset}"
        assert answer.body == b""


@pytest.mark.parametrize("offset", ["", "x", "1.5", 2**63])
async def test_positions_that_are_no_numbers_are_told(client: Talker, offset: object) -> None:
    answer = await view(client, offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "offset" in (answer.remark or "")


async def test_a_body_that_looks_like_a_record_is_not_one(client: Talker) -> None:
    """Positions come from clients: one that leads into a body must not show what a sender put there as stored."""
    await client.put("T", b"real")
    (real,) = await client.records("T")
    copy = (await view(client, real.physical_offset)).body
    await client.put("T", copy)
    outer = (await client.records("T"))[1]
    whole = (await view(client, outer.physical_offset)).body
    inside = outer.physical_offset + whole.index(copy)
    assert (await view(client, inside)).code == ResponseCode.SYSTEM_ERROR


async def test_others_are_answered_between_the_steps_of_queries_at_the_same_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of them, for a key that 300,000 messages share, let everybody else wait for 3.7 s."""
    loop = asyncio.get_running_loop()
    turn = 0
    steps: list[tuple[int, int]] = []  # query, turn of the loop
    queries = count()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if turn > 0:
            loop.call_soon(next_turn)

    def steps_of_one(*asked: object) -> Generator[None, None, QueryResult]:
        number = next(queries)
        for _ in range(5):
            steps.append((number, turn))
            yield
        return QueryResult([], 0, 0)

    monkeypatch.setattr(broker.parts.store.keys, "query_steps", steps_of_one)
    next_turn()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(talking_in_memory(broker)) for _ in range(3)]
        answers = await asyncio.gather(*[query(client, "a") for client in clients])
    turn = -1_000_000  # no more of them
    assert {answer.code for answer in answers} == {int(ResponseCode.QUERY_NOT_FOUND)}
    assert [number for number, _ in steps] == [0] * 5 + [1] * 5 + [2] * 5  # one query after the other
    assert len({at for _, at in steps}) == 15
