import asyncio

from aerobee import Client, ClientConfig
from aerobee.session.trace import TraceRecord, TraceWriter, parse_trace
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import Response
from client.events import captured_events
from client.fakes import fake_cluster

# As clients of 5.3.3 and 4.9.8 write them.
OFFICIAL = (
    "Pub\x011700000000000\x01DefaultRegion\x01pg\x01T\x01ID1\x01TagA\x01k1 k2\x0110.0.0.1:10911\x014\x017\x010\x01"
    "7F00000100002A9F0000000000000000\x01true\x02"
    "SubBefore\x011700000000100\x01DefaultRegion\x01cg\x01REQ\x01ID1\x012\x01null\x02"
    "SubAfter\x01REQ\x01ID1\x015\x01false\x01null\x012\x011700000000105\x02"
    "EndTransaction\x011700000000200\x01DefaultRegion\x01pg\x01T\x01ID2\x01null\x01null\x0110.0.0.1:10911\x012\x01ID2\x01"
    "COMMIT_MESSAGE\x01false\x02"
)


def test_official_records_are_read_and_written_again_unchanged() -> None:
    records = parse_trace(OFFICIAL)
    assert [record.kind for record in records] == ["Pub", "SubBefore", "SubAfter", "EndTransaction"]
    pub, before, after, end = records
    assert (pub.group, pub.topic, pub.tags, pub.keys, pub.body_size, pub.took_ms) == (
        "pg", "T", "TagA", "k1 k2", 4, 7,
    )  # fmt: skip
    assert (before.request_id, before.reconsume_times, before.keys) == ("REQ", 2, None)
    assert (after.ok, after.outcome, after.timestamp_ms) == (False, 2, 1_700_000_000_105)
    assert (end.transaction_state, end.transaction_id, end.from_check) == ("COMMIT_MESSAGE", "ID2", False)
    assert "".join(record.encode() for record in records) == OFFICIAL


def test_older_and_newer_forms_are_read() -> None:
    old = "Pub\x0117\x01r\x01g\x01T\x01ID\x01t\x01k\x01h\x014\x017\x010\x01true\x02"
    old += "SubAfter\x01R\x01ID\x015\x01true\x01k\x02"
    new = "Pub\x0117\x01r\x01g\x01T\x01ID\x01t\x01k\x01h\x014\x017\x013\x01OID\x01true\x0110.0.0.9\x02"
    pub, after = parse_trace(old)
    assert (pub.ok, pub.offset_message_id, after.outcome, after.timestamp_ms) == (True, None, None, 0)
    (newer,) = parse_trace(new)
    assert (newer.ok, newer.offset_message_id, newer.client_host, newer.message_kind) == (
        True, "OID", "10.0.0.9", 3,
    )  # fmt: skip


def test_what_is_no_record_is_left_out() -> None:
    assert parse_trace("") == []
    assert parse_trace("Recall\x011\x02Pub\x01x\x02nonsense\x02Pub") == []


async def test_records_are_written_with_ids_and_keys_to_find_them_by() -> None:
    config = ClientConfig(trace=True)
    async with fake_cluster(queues=1) as cluster:
        cluster.nameserver.add_topic("RMQ_SYS_TRACE_TOPIC", cluster.broker, queues=1)
        async with Client(cluster.nameserver.addr, config=config) as mq, mq.producer("p") as producer:
            sent = await producer.send("T", b"x", tags="t", keys=["a", "b"])
            async with mq.consumer("g", "T") as consumer:
                async for message in consumer:
                    await message.retry_later()
                    break
        (message_of_traces,) = cluster.broker.queues["RMQ_SYS_TRACE_TOPIC", 0]
    record = decode_record(message_of_traces)
    assert record.keys == (sent.message_id, "a", "b")
    pub, before, after = parse_trace(record.body.decode())
    assert (pub.message_id, pub.ok, pub.store_host) == (sent.message_id, True, cluster.broker.addr)
    assert (before.group, before.request_id) == ("g", after.request_id)
    assert (after.ok, after.outcome) == (False, 4)


async def test_traces_that_cannot_be_written_disturb_nobody() -> None:
    config = ClientConfig(trace=True)
    async with fake_cluster() as cluster:
        cluster.nameserver.add_topic("RMQ_SYS_TRACE_TOPIC", cluster.broker)
        with captured_events() as logs:
            async with Client(cluster.nameserver.addr, config=config) as mq, mq.producer("p") as producer:
                await producer.send("T", b"x")
                refusal = Response(ResponseCode.MESSAGE_ILLEGAL, "no traces here")
                cluster.broker.always(RequestCode.SEND_MESSAGE_V2, refusal)
    lost = [entry for entry in logs if entry["event"] == "client.trace_lost"]
    assert [(entry["record_count"], entry["log_level"]) for entry in lost] == [(1, "warning")]


async def test_a_message_of_traces_stays_within_what_properties_may_hold() -> None:
    written: list[tuple[str, list[str]]] = []

    class Sender:
        async def __aenter__(self) -> "Sender":
            return self

        async def __aexit__(self, *_: object) -> None:
            return

        async def send(self, topic: str, body: str, *, keys: list[str]) -> None:
            written.append((body, keys))

    writer = TraceWriter(Sender, topic="TT", clock_ms=lambda: 0, new_id=lambda: "")  # type: ignore[arg-type]
    for number in range(250):
        writer.add(TraceRecord(kind="Pub", message_id=f"{number}", keys="k" * 1000 + str(number)))
    await writer.close()
    assert sum(len(parse_trace(body)) for body, _ in written) == 250
    assert max(sum(map(len, keys)) for _, keys in written) < 32_000
    assert not asyncio.all_tasks() - {asyncio.current_task()}
