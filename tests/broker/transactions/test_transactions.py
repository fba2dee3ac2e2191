"""Transactions over a real broker: what becomes of half messages that are committed or rolled back, once or twice."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.messages import visibility
from aerobee_broker.metrics.metric_families import families, take_snapshot
from aerobee_broker.transactions import transactions
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.names import TRANSACTION_GROUP
from aerobee_proto.records import StoredRecord
from aerobee_store.faults import failpoints
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import START_MS, Clock, forget_marks
from system.running import Talker, running_broker, send_request, talking, text_of
from system.transacting import (
    COMMIT,
    HALF_TOPIC,
    OP_TOPIC,
    ROLLBACK,
    UNKNOWN,
    Half,
    end,
    end_request,
    send_half,
)

BORN = str(START_MS)


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as talker:
        yield talker


async def half_of(client: Talker, body: bytes = b"paid", *, key: str = "K1", **how: str) -> Half:
    return await send_half(client, "Orders", body, key=key, **({"born": BORN} | how))


async def bodies(client: Talker, topic: str = "Orders", queue_id: int = 0) -> list[bytes]:
    return [bytes(record.body) for record in await client.records(topic, queueId=queue_id)]


# --- half messages ------------------------------------------------------------------------------------------------


async def test_a_half_message_is_stored_apart_and_nobody_sees_it(broker: Broker, client: Talker) -> None:
    half = await half_of(client, queue_id="2", TAGS="TagA", KEYS="k1", DELAY="3")
    assert half.offset == 0
    (stored,) = await client.records(HALF_TOPIC)
    assert (stored.body, stored.sys_flag, stored.queue_id) == (b"paid", 0, 0)
    assert stored.physical_offset == half.physical_offset
    added = {"REAL_TOPIC": "Orders", "REAL_QID": "2", "__transactionId__": "K1", "TRAN_MSG": "true"}
    brokers = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "TestCluster"}
    assert (added | brokers).items() <= stored.property_map.items()
    assert [await bodies(client, queue_id=queue) for queue in range(4)] == [[]] * 4
    assert broker.parts.transactions.open_count == 1


async def test_a_client_cannot_bring_the_brokers_own_notes(client: Talker) -> None:
    await half_of(client, TRANSACTION_CHECK_TIMES="14", TRAN_PREPARED_QUEUE_OFFSET="0", REAL_TOPIC="Other")
    (stored,) = await client.records(HALF_TOPIC)
    assert stored.property_map["REAL_TOPIC"] == "Orders"
    assert {"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"}.isdisjoint(stored.property_map)


async def test_a_retried_message_of_an_old_client_is_no_transaction(client: Talker) -> None:
    """Before 4.6.1 a message that was consumed in vain came back with all its properties, TRAN_MSG too."""
    properties = text_of({"TRAN_MSG": "true", "PGROUP": "g", "DELAY": "3"})
    assert (await client.put("Orders", properties=properties, reconsumeTimes="1")).code == 0
    assert await client.records(HALF_TOPIC) == []


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"reject_transaction_message": True}, ResponseCode.NO_PERMISSION, "rejectTransactionMessage"),
        ({"max_open_transactions": 1}, ResponseCode.SYSTEM_BUSY, "maxOpenTransactions"),
    ],
)
async def test_transactions_can_be_refused(
    tmp_path: Path, settings: dict[str, Any], code: ResponseCode, words: str
) -> None:
    async with running_broker(tmp_path, **settings) as broker, talking_in_memory(broker) as client:
        properties = text_of({"TRAN_MSG": "true", "PGROUP": "g"})
        answers = [await client.put("Orders", properties=properties, sysFlag="4") for _ in range(2)]
        assert answers[-1].code == code
        assert words in (answers[-1].remark or "")
        assert (await client.put("Orders")).code == 0


# --- ends ---------------------------------------------------------------------------------------------------------


async def test_a_committed_message_is_the_half_at_its_own_place(broker: Broker, client: Talker) -> None:
    half = await half_of(client, queue_id="2", TAGS="TagA", KEYS="k1")
    assert (await end(client, half, COMMIT)).code == 0
    (record,) = await client.records("Orders", queueId=2)
    (stored,) = await client.records(HALF_TOPIC)
    assert (record.body, record.sys_flag, record.queue_offset) == (b"paid", COMMIT, 0)
    assert record.prepared_transaction_offset == half.physical_offset
    assert (record.born_timestamp, record.born_host) == (START_MS, stored.born_host)
    assert without_checksum(record) == without_checksum(stored)
    assert await client.records("Orders", queueId=2, subscription="TagB") == []
    assert broker.parts.transactions.open_count == 0


def without_checksum(record: StoredRecord) -> dict[str, str]:
    return {name: value for name, value in record.property_map.items() if name != "__CRC32C"}


async def test_a_compressed_half_stays_compressed(client: Talker) -> None:
    properties = text_of({"TRAN_MSG": "true", "PGROUP": "tx-producers", "UNIQ_KEY": "K1"})
    answer = await client.put("Orders", b"zipped", properties=properties, sysFlag=str(4 | 0x201))
    half = Half(0, int(answer.ext["msgId"][-16:], 16), "K1")
    assert (await end(client, half, COMMIT)).code == 0
    (record,) = await client.records("Orders")
    assert (record.body, record.sys_flag) == (b"zipped", COMMIT | 0x201)


async def test_a_delay_begins_with_the_commit(client: Talker) -> None:
    half = await half_of(client, DELAY="3")
    assert (await end(client, half, COMMIT)).code == 0
    assert await bodies(client) == []
    (scheduled,) = await client.records("SCHEDULE_TOPIC_XXXX", queueId=2)
    assert (scheduled.body, scheduled.property_map["REAL_TOPIC"]) == (b"paid", "Orders")


async def test_a_time_of_delivery_counts_from_the_commit_on(client: Talker) -> None:
    half = await half_of(client, TIMER_DELAY_SEC="60")
    assert (await end(client, half, COMMIT)).code == 0
    assert await bodies(client) == []
    (scheduled,) = await client.records("rmq_sys_wheel_timer")
    assert (scheduled.body, scheduled.property_map["REAL_TOPIC"]) == (b"paid", "Orders")
    assert (await end(client, half, COMMIT)).code == 0
    assert len(await client.records("rmq_sys_wheel_timer")) == 1


async def test_what_is_rolled_back_is_never_seen(broker: Broker, client: Talker) -> None:
    half = await half_of(client)
    assert (await end(client, half, ROLLBACK)).code == 0
    assert await bodies(client) == []
    assert broker.parts.transactions.open_count == 0


async def test_i_do_not_know_yet_gets_no_answer_and_changes_nothing(broker: Broker, client: Talker) -> None:
    half = await half_of(client)
    client.send(end_request(half, UNKNOWN))
    assert (await end(client, half, COMMIT)).code == 0  # the first answer that comes
    assert await bodies(client) == [b"paid"]


async def test_a_oneway_end_counts_even_when_the_client_leaves_at_once(
    broker: Broker, client: Talker
) -> None:
    """A Java producer that ends its last transaction and shuts down."""
    half = await half_of(client)
    async with talking_in_memory(broker) as leaving:
        leaving.send(end_request(half, COMMIT, oneway=True))
        await leaving.writer.drain()
        leaving.writer.write_eof()
        assert await leaving.reader.read() == b""
    assert (await client.put("Other")).code == 0  # synced, and so is what came before it
    assert await bodies(client) == [b"paid"]
    assert (await end(client, half, COMMIT)).code == 0
    assert await bodies(client) == [b"paid"]


async def test_an_answer_that_nobody_waits_for_any_more(broker: Broker, client: Talker) -> None:
    half = await half_of(client)
    async with talking_in_memory(broker) as leaving:
        leaving.send(end_request(half, COMMIT))
        await leaving.writer.drain()
        leaving.writer.transport.abort()
        assert (await end(client, half, COMMIT)).code == 0
    assert await bodies(client) == [b"paid"]


async def test_the_same_end_twice_is_well_and_stores_nothing_twice(client: Talker) -> None:
    committed, rolled_back = await half_of(client), await half_of(client, key="K2")
    for half, how in ((committed, COMMIT), (rolled_back, ROLLBACK)):
        assert [(await end(client, half, how)).code for _ in range(3)] == [0, 0, 0]
    assert await bodies(client) == [b"paid"]


async def test_two_commits_of_one_read_store_one_message_and_both_wait_for_the_disk(client: Talker) -> None:
    half = await half_of(client)
    requests = [end_request(half, COMMIT), end_request(half, COMMIT), end_request(half, ROLLBACK)]
    for opaque, request in enumerate(requests, 1):
        request.opaque = opaque
    client.send(*requests)
    answers = await client.answers(3)
    assert [answers[opaque].code for opaque in (1, 2)] == [0, 0]
    assert "being committed" in (answers[3].remark or "")
    assert await bodies(client) == [b"paid"]


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
async def test_another_end_is_refused(client: Talker, first: int, second: int) -> None:
    half = await half_of(client)
    assert (await end(client, half, first)).code == 0
    refused = await end(client, half, second)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "already" in (refused.remark or "")
    assert await bodies(client) == ([b"paid"] if first == COMMIT else [])


async def test_ends_that_do_not_fit_the_half_are_refused(client: Talker) -> None:
    half = await half_of(client)
    answer = await client.put("Orders", b"plain")
    plain = Half(0, int(answer.ext["msgId"][-16:], 16), "K")
    for wrong, group, words in [
        (half._replace(physical_offset=half.physical_offset + 1), None, "Find prepared"),
        (half._replace(physical_offset=-1), None, "Find prepared"),
        (half._replace(physical_offset=2**62), None, "Find prepared"),
        (plain, None, "Find prepared"),
        (half._replace(offset=1), None, "table offset wrong"),
        (half, "others", "producer group wrong"),
    ]:
        for how in (COMMIT, ROLLBACK):
            refused = await end(client, wrong, how, group=group or "tx-producers")
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert words in (refused.remark or "")
    assert await bodies(client) == [b"plain"]


async def test_after_the_immunity_that_a_message_chose_only_answers_to_checks_count(
    client: Talker, clock: Clock
) -> None:
    half = await half_of(client, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    clock.now_ms += 60_001
    for how in (COMMIT, ROLLBACK):
        assert (await end(client, half, how)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end(client, half, how, group="others")).code == ResponseCode.ILLEGAL_OPERATION
    assert (await end(client, half, COMMIT, check=True)).code == 0
    assert await bodies(client) == [b"paid"]


async def test_the_chosen_immunity_is_at_least_the_time_out(client: Talker, clock: Clock) -> None:
    half = await half_of(client, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    clock.now_ms += 6_000
    assert (await end(client, half, COMMIT)).code == 0


async def test_a_commit_to_a_topic_that_is_gone_leaves_the_transaction_open(
    broker: Broker, client: Talker
) -> None:
    half = await half_of(client)
    gone = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    assert gone.code == 0
    assert (await end(client, half, COMMIT)).code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.parts.transactions.open_count == 1
    await client.put("Orders", b"made again")
    assert (await end(client, half, COMMIT)).code == 0
    assert await bodies(client) == [b"made again", b"paid"]


async def test_an_end_counts_although_queues_begin_before_its_message_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few queues begin in a turn of the loop; a half message behind them was not found, and its end was lost: its
    producer was asked for it, up to a minute later."""
    monkeypatch.setattr(visibility, "BEGUN_AT_LEAST", 1)
    monkeypatch.setattr(visibility, "BEGUN_AT_MOST", 1)
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as broker, AsyncExitStack() as stack:
        client, *others = [await stack.enter_async_context(talking(broker)) for _ in range(101)]
        await client.make_topic("Wide", len(others))
        await client.make_topic("Orders")
        for queue, other in enumerate(others):
            other.send(send_request("Wide", queue_id=queue))
        half = await half_of(client)
        ending = end_request(half, COMMIT)
        ending.opaque = 1
        place = {"topic": HALF_TOPIC, "queueId": "0"}
        client.send(Command(RequestCode.GET_MAX_OFFSET, ext_fields=place, opaque=2), ending)
        answers = await client.answers(2)
        assert answers[2].ext["offset"] == "0"
        assert answers[1].code == 0


# --- marks and progress -------------------------------------------------------------------------------------------


async def test_marks_are_collected_and_progress_is_saved(broker: Broker, client: Talker) -> None:
    halves = [await half_of(client, key=f"K{number}") for number in range(4)]
    for half in (halves[0], halves[1], halves[3]):
        await end(client, half, ROLLBACK)
    assert await client.records(OP_TOPIC) == []
    broker.parts.transactions.write_marks()
    await broker.parts.writer.durable()
    assert [(bytes(mark.body), mark.tags) for mark in await client.records(OP_TOPIC)] == [(b"0,1,3,", "d")]
    assert saved(broker) == (2, 0)
    await end(client, halves[2], COMMIT)
    broker.parts.transactions.write_marks()
    assert saved(broker) == (4, 2)
    broker.parts.transactions.table.check()


def saved(broker: Broker) -> tuple[int, ...]:
    offsets = broker.parts.offsets
    return tuple(offsets.get(TRANSACTION_GROUP, topic, 0) or 0 for topic in (HALF_TOPIC, OP_TOPIC))


async def test_many_marks_are_written_at_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"transaction_op_msg_max_size": 10, "transaction_op_batch_interval": 3_600_000}
    async with running_broker(tmp_path, **settings) as broker, talking_in_memory(broker) as client:
        for number in range(6):
            await end(client, await half_of(client, key=f"K{number}"), ROLLBACK)
        assert [bytes(mark.body) for mark in await client.records(OP_TOPIC)] == [b"0,1,2,3,4,"]


async def test_few_marks_are_written_after_a_while(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, transaction_op_batch_interval=1) as broker,
        talking_in_memory(broker) as client,
    ):
        await end(client, await half_of(client), ROLLBACK)
        answer = await client.exchange(client.pull_request(OP_TOPIC, sysFlag=6))
        assert answer.code == 0


async def test_progress_that_a_client_has_moved_is_put_right(broker: Broker, client: Talker) -> None:
    """The offsets are a group's like any other's: an admin's tool may reach them."""
    half = await half_of(client)
    broker.parts.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 99)
    await end(client, half, ROLLBACK)
    broker.parts.transactions.write_marks()
    assert saved(broker) == (1, 1)


async def test_marks_wait_while_the_disk_is_full(broker: Broker, client: Talker) -> None:
    half = await half_of(client)
    broker.parts.store.refuse_sends("the disk is full")
    assert (await end(client, half, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await end(client, half, ROLLBACK)).code == 0
    with capture_logs() as logs:
        assert not broker.parts.transactions.write_marks()
    assert [(line["event"], line["count"]) for line in logs] == [("transactions.marks_waiting", 1)]
    broker.parts.store.refuse_sends(None)
    assert broker.parts.transactions.write_marks()
    assert saved(broker) == (1, 1)


async def test_nothing_is_ended_when_too_many_marks_wait(
    broker: Broker, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MARKS_MAX", 1)
    one, other = await half_of(client), await half_of(client, key="K2")
    broker.parts.store.refuse_sends("the disk is full")
    assert (await end(client, one, ROLLBACK)).code == 0
    assert (await end(client, other, ROLLBACK)).code == ResponseCode.SYSTEM_BUSY
    broker.parts.store.refuse_sends(None)
    assert (await end(client, other, ROLLBACK)).code == 0


async def test_what_is_counted(broker: Broker, client: Talker) -> None:
    halves = [await half_of(client, key=f"K{number}") for number in range(4)]
    await end(client, halves[0], COMMIT)
    await end(client, halves[1], ROLLBACK)
    found = {
        family.name: [(labels, value) for labels, value in family.rows]
        for family in families(take_snapshot(replace(broker.parts.observed, facts=dict)))
    }
    assert found["rocketmq_half_messages"] == [((), 2)]
    assert found["rocketmq_commit_messages"] == [(("Orders",), 1)]
    assert found["rocketmq_rollback_messages"] == [(("Orders",), 1)]
    assert found["aerobee_transaction_checks"] == [((), 0)]
    assert found["aerobee_transactions_given_up"] == [((), 0)]


# --- after a restart ----------------------------------------------------------------------------------------------


class Life:
    """One run of a broker on a store that outlives it."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root, self._clock = root, clock
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> tuple[Broker, Talker]:
        broker = await self._stack.enter_async_context(running_broker(self._root, clock=self._clock))
        return broker, await self._stack.enter_async_context(talking_in_memory(broker))

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


async def test_ends_are_known_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    async with Life(tmp_path, clock) as (_, client):
        committed, rolled_back = await half_of(client), await half_of(client, key="K2")
        open_one = await half_of(client, b"open", key="K3")
        assert (await end(client, committed, COMMIT)).code == 0
        assert (await end(client, rolled_back, ROLLBACK)).code == 0
    async with Life(tmp_path, clock) as (broker, client):
        assert broker.parts.transactions.open_count == 1
        assert (await end(client, committed, COMMIT)).code == 0
        refused = await end(client, rolled_back, COMMIT)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "has ended already" in (refused.remark or "")
        assert await bodies(client) == [b"paid"]
        assert (await end(client, open_one, COMMIT)).code == 0
        assert await bodies(client) == [b"paid", b"open"]


@pytest.mark.parametrize("delay", ["0", "3"], ids=["at once", "delayed"])
async def test_a_commit_whose_mark_was_lost_is_found_by_its_key(
    tmp_path: Path, clock: Clock, delay: str
) -> None:
    async with Life(tmp_path, clock) as (broker, client):
        committed, rolled_back = await half_of(client, DELAY=delay), await half_of(client, key="K2")
        assert (await end(client, committed, COMMIT)).code == 0
        assert (await end(client, rolled_back, ROLLBACK)).code == 0
        forget_marks(broker.parts.transactions)
    async with Life(tmp_path, clock) as (broker, client):
        assert broker.parts.transactions.open_count == 2
        assert (await end(client, committed, COMMIT)).code == 0
        assert (await end(client, rolled_back, ROLLBACK)).code == 0
        assert broker.parts.transactions.open_count == 0
        topic, queue_id = ("Orders", 0) if delay == "0" else ("SCHEDULE_TOPIC_XXXX", 2)
        assert await bodies(client, topic, queue_id) == [b"paid"]


async def test_a_commit_whose_mark_was_lost_cannot_be_rolled_back(tmp_path: Path, clock: Clock) -> None:
    async with Life(tmp_path, clock) as (broker, client):
        half = await half_of(client)
        assert (await end(client, half, COMMIT)).code == 0
        forget_marks(broker.parts.transactions)
    async with Life(tmp_path, clock) as (broker, client):
        refused = await end(client, half, ROLLBACK)
        assert "committed already" in (refused.remark or "")
        assert broker.parts.transactions.open_count == 0


async def test_commits_need_no_answer_from_a_disk_that_has_failed(tmp_path: Path, clock: Clock) -> None:
    """A sync that fails: the producer is told that nothing is promised, and no mark is written."""
    async with Life(tmp_path, clock) as (broker, client):
        half = await half_of(client)
        with failpoints.armed("commit_log.before_sync", _disk_fault):
            refused = await end(client, half, COMMIT)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.parts.transactions.open_count == 1
        await broker.failed


def _disk_fault() -> None:
    raise OSError(5, "Input/output error")


# --- those that were given up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message_id", ["", "x", "7F00000100002A9F" + "0" * 16, "7F00000100002A9F" + "F" * 16]
)
async def test_only_what_was_given_up_is_resumed(client: Talker, message_id: str) -> None:
    await half_of(client)
    answer = await client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "Orders", "msgId": message_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert len(await client.records(HALF_TOPIC)) == 1
