"""Recorded messages arrive as they were, and travel together only where nothing is lost by it."""

import pytest

from aerobee import Client, MessageQueue
from aerobee.consuming.ranges import QueueRange
from aerobee.errors import BrokerRefused
from aerobee.producing.replay import RecordedMessage, ReplayConfig, _batches
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_pytest import Server


def recorded(number: int, born_ms: int, body: bytes = b"body") -> RecordedMessage:
    properties = f"UNIQ_KEY\x01ID{number}\x02TAGS\x01red\x02n\x01{number}\x02".encode()
    return RecordedMessage(body, properties, born_ms)


async def stored(mq: Client, queue: MessageQueue) -> list[StoredRecord]:
    ranges = mq.ranges()
    reader = ranges.reader([QueueRange(queue, *await ranges.bounds(queue))])
    found = []
    while pieces := await reader.next(1 << 20):
        for piece in pieces:
            at = 0
            while at < len(piece.body):
                found.append(decode_record(piece.body, at))
                at += found[-1].size
    await reader.close()
    return found


async def test_ids_times_and_order_are_kept(aerobee_own_server: Server) -> None:
    topic = aerobee_own_server.new_topic("replayed")
    messages = [recorded(number, 1_500_000_000_000 + number // 10) for number in range(95)]
    messages.append(recorded(95, 1_500_000_000_999, b"large " * 400_000))
    async with Client(nameservers=aerobee_own_server.nameserver) as mq:
        replay = mq.replay()
        queue = (await replay.queues(topic))[1]
        await replay.send(queue, messages)
        found = await stored(mq, queue)
    assert [record.unique_key for record in found] == [f"ID{number}" for number in range(96)]
    assert [record.born_timestamp for record in found] == [one.born_timestamp_ms for one in messages]
    assert {record.tags for record in found} == {"red"}
    assert len(found[-1].body) < 100_000  # compressed


async def test_what_a_broker_refuses_is_raised(aerobee_own_server: Server) -> None:
    topic = aerobee_own_server.new_topic("refused")
    async with Client(nameservers=aerobee_own_server.nameserver) as mq:
        replay = mq.replay()
        queue = (await replay.queues(topic))[0]
        with pytest.raises(BrokerRefused, match="send again"):
            await replay.send(queue._replace(queue_id=99), [recorded(1, 1)])


def test_messages_travel_together_within_bounds() -> None:
    times = [10, 10, 11, 15, 16, 9]
    messages = [recorded(number, at) for number, at in enumerate(times)]

    def cut(config: ReplayConfig) -> list[list[int]]:
        return [[one.born_timestamp_ms for one in batch] for batch in _batches(messages, config)]

    assert cut(ReplayConfig()) == [[10, 10], [11], [15], [16], [9]]
    assert cut(ReplayConfig(born_within_ms=5)) == [[10, 10, 11, 15], [16], [9]]
    assert cut(ReplayConfig(born_within_ms=5, batch_count=2)) == [[10, 10], [11, 15], [16], [9]]
    assert cut(ReplayConfig(born_within_ms=5, batch_bytes=1)) == [[at] for at in times]
