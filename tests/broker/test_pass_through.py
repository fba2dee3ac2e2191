"""What clients agree on among themselves goes through unchanged: compression, sharding keys, batches, traces."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry
from aerobee_proto.codes import RequestCode, SysFlag
from aerobee_proto.compression import CompressionKind, compress_body, decompress_body
from broker.in_memory import broker_in_memory, talking_in_memory
from system.running import Talker, text_of

BODY = b"a body that is long enough to be worth it " * 200
KINDS = pytest.mark.parametrize("kind", ["lz4", "zstd", "zlib"])
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with broker_in_memory() as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as talker:
        yield talker


@KINDS
async def test_a_compressed_body_comes_back_as_it_was_sent(client: Talker, kind: CompressionKind) -> None:
    packed, flag = compress_body(BODY, kind)
    assert (await client.put("T", packed, sysFlag=str(flag))).code == 0
    (record,) = await client.records("T")
    assert (record.body, record.sys_flag) == (packed, flag)
    assert decompress_body(record.body, record.sys_flag, 1 << 20) == BODY


async def test_old_clients_say_only_that_a_body_is_compressed(client: Talker) -> None:
    packed, _ = compress_body(BODY, "zlib")
    await client.put("T", packed, sysFlag=str(SysFlag.COMPRESSED))
    (record,) = await client.records("T")
    assert (record.body, record.sys_flag) == (packed, SysFlag.COMPRESSED)


@KINDS
async def test_a_batch_of_compressed_bodies_keeps_them(client: Talker, kind: CompressionKind) -> None:
    bodies = [BODY + bytes([number]) for number in range(3)]
    packed = [compress_body(body, kind) for body in bodies]
    entries = [BatchEntry(0, body, text_of({"UNIQ_KEY": f"K{at}"})) for at, (body, _) in enumerate(packed)]
    answer = await client.put_batch("T", entries, sysFlag=str(packed[0][1]))
    assert answer.code == 0
    records = await client.records("T")
    assert [decompress_body(record.body, record.sys_flag, 1 << 20) for record in records] == bodies


async def test_what_has_one_sharding_key_stays_in_order(client: Talker) -> None:
    """Clients choose the queue by the key; the broker keeps the order of a queue, of singles and batches together."""
    keys = ["red", "blue"]
    for number in range(20):
        key = number % 2
        own = text_of({"__SHARDINGKEY": keys[key], "UNIQ_KEY": f"K{number}"})
        body = str(number).encode()
        if number % 5:
            await client.put("T", body, queue_id=key, properties=own)
        else:
            await client.put_batch("T", [BatchEntry(0, body, own)], queue_id=key)
    for key, name in enumerate(keys):
        records = await client.records("T", queueId=key)
        assert [int(record.body) for record in records] == list(range(key, 20, 2))
        assert {record.property_map["__SHARDINGKEY"] for record in records} == {name}


async def test_clients_may_write_traces_when_the_topic_is_wanted() -> None:
    async with broker_in_memory(trace_topic_enable=True) as broker, talking_in_memory(broker) as client:
        body = b"Pub\x011700000000000\x01DefaultRegion\x01g\x01T\x01K1\x01\x02"
        sent = await client.put(TRACE_TOPIC, body, properties=text_of({"KEYS": "K1", "UNIQ_KEY": "T1"}))
        assert sent.code == 0
        fields = {"topic": TRACE_TOPIC, "key": "K1", "maxNum": "64", "beginTimestamp": "0"}
        found = await client.ask(RequestCode.QUERY_MESSAGE, fields | {"endTimestamp": str(2**62)})
        assert (found.code, body in found.body) == (0, True)


@pytest.mark.parametrize("name", ["My-Traces", TRACE_TOPIC])
async def test_the_trace_topic_has_the_name_and_is_there_only_when_wanted(name: str) -> None:
    for expected in (True, False):
        settings: dict[str, Any] = {"trace_topic_enable": expected, "msg_trace_topic_name": name}
        async with broker_in_memory(**settings) as broker:
            topic = broker.parts.topics.get(name)
            assert (topic is not None) is expected
            if topic is not None:
                assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
