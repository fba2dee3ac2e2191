"""Check-back: who is asked when, about what, and what is given up. The clock is turned by hand."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.transactions import transaction_checks
from aerobee_broker.transactions.half_messages import read_half
from aerobee_broker.transactions.transaction_checks import (
    Limits,
    RoundReport,
    Verdict,
    judge,
)
from aerobee_proto.codes import RequestCode
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.names import TRANSACTION_GROUP
from aerobee_proto.records import encode_record
from aerobee_store.faults import failpoints
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import START_MS, Clock, forget_marks
from system.running import Talker, running_broker
from system.transacting import (
    COMMIT,
    HALF_TOPIC,
    ROLLBACK,
    Half,
    end,
    join_group,
    next_question,
    send_half,
)

GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
LIMITS = Limits(timeout_ms=6_000, check_max=15, reserved_ms=72 * 3_600_000)


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as talker:
        yield talker


async def half_of(client: Talker, *, key: str = "K1", **how: str) -> Half:
    return await send_half(client, "Orders", b"paid", key=key, **({"born": str(START_MS)} | how))


async def round_of(broker: Broker) -> RoundReport:
    report = await broker.parts.checks.run_round()
    broker.parts.transactions.table.check()
    return report


# --- the decision -------------------------------------------------------------------------------------------------


def judged(age_ms: int, *, is_online: bool = True, **properties: str) -> Verdict:
    own = {"REAL_TOPIC": "T", "REAL_QID": "0", "PGROUP": "g", **properties}
    data = encode_record(
        topic=HALF_TOPIC,
        queue_id=0,
        queue_offset=7,
        physical_offset=0,
        born_timestamp=START_MS,
        born_host=("127.0.0.1", 1),
        store_timestamp=START_MS,
        store_host=("127.0.0.1", 2),
        body=b"x",
        properties="".join(f"{name}\x01{value}\x02" for name, value in own.items()),
    )
    half = read_half(data)
    assert half is not None
    return judge(half, LIMITS, now_ms=START_MS + age_ms, is_online=is_online)


IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CASES: dict[str, tuple[Verdict, int, dict[str, Any]]] = {
    "just old enough": (Verdict.ASK, 6_001, {}),
    "too young": (Verdict.STOP, 6_000, {}),
    "born now": (Verdict.STOP, 0, {}),
    "born in the future": (Verdict.ASK, -1, {}),
    "nobody there": (Verdict.LEAVE, 6_001, {"is_online": False}),
    "a chosen time is not over": (Verdict.POSTPONE, 60_000, {IMMUNITY: "60"}),
    "a chosen time is over": (Verdict.ASK, 60_001, {IMMUNITY: "60"}),
    "a chosen time below the time-out": (Verdict.POSTPONE, 6_000, {IMMUNITY: "1"}),
    "a chosen time that is none": (Verdict.ASK, 6_001, {IMMUNITY: "soon"}),
    "one question left": (Verdict.ASK, 6_001, {"TRANSACTION_CHECK_TIMES": "14"}),
    "no question left": (Verdict.GIVE_UP, 6_001, {"TRANSACTION_CHECK_TIMES": "15"}),
    "no question left, nobody there": (
        Verdict.GIVE_UP,
        6_001,
        {"TRANSACTION_CHECK_TIMES": "15", "is_online": False},
    ),
    "as old as files become": (Verdict.GIVE_UP, 72 * 3_600_000 + 1, {"is_online": False}),
}


@pytest.mark.parametrize(("verdict", "age_ms", "how"), CASES.values(), ids=CASES)
def test_what_is_done_with_an_open_half_message(verdict: Verdict, age_ms: int, how: dict[str, Any]) -> None:
    assert judged(age_ms, **how) is verdict


# --- rounds -------------------------------------------------------------------------------------------------------


async def test_a_producer_is_asked_about_a_copy_and_its_answer_counts(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await join_group(client)
    first = await half_of(client, TAGS="TagA", queue_id="2")
    clock.now_ms += 6_001
    report = await round_of(broker)
    assert report == RoundReport(asked=1)
    half, command, record = await next_question(client)
    assert command.is_oneway
    assert half == Half(1, half.physical_offset, "K1")
    assert command.ext["topic"] == HALF_TOPIC
    assert (command.ext["msgId"], command.ext["bname"]) == ("K1", "test-a")
    place = decode_offset_message_id(command.ext["offsetMsgId"])
    assert (place.port, place.physical_offset) == (broker.port, half.physical_offset)
    assert (record.topic, record.queue_id, record.body) == ("Orders", 2, b"paid")
    assert (record.queue_offset, record.physical_offset) == (1, half.physical_offset)
    assert record.property_map["TRANSACTION_CHECK_TIMES"] == "1"
    copy = (await client.records(HALF_TOPIC))[1]
    assert copy.physical_offset == half.physical_offset
    own = {name: value for name, value in copy.property_map.items() if name != "__CRC32C"}
    assert record.property_map == own
    assert (await end(client, half, COMMIT, check=True)).code == 0
    assert [bytes(one.body) for one in await client.records("Orders", queueId=2)] == [b"paid"]
    assert (await end(client, first, COMMIT)).code == 0  # the producer's own, late: nothing twice
    assert len(await client.records("Orders", queueId=2)) == 1
    assert broker.parts.transactions.open_count == 0


async def test_the_producers_own_end_reaches_the_newest_copy(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    """Committed by the place that its send was told, after it was copied: the copy must not be asked about again."""
    await join_group(client)
    first = await half_of(client)
    for _ in range(3):
        clock.now_ms += 30_000
        assert (await round_of(broker)).asked == 1
    assert (await end(client, first, COMMIT)).code == 0
    clock.now_ms += 30_000
    assert await round_of(broker) == RoundReport()
    broker.parts.transactions.write_marks()
    await broker.parts.writer.durable()
    assert broker.parts.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 4
    assert len(await client.records("Orders")) == 1


async def test_the_young_wait_and_those_that_ended_are_not_asked_about(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await join_group(client)
    halves = [await half_of(client, key=f"K{number}") for number in range(40)]
    for half in halves[:39]:
        await end(client, half, ROLLBACK)
    clock.now_ms += 6_000
    assert await round_of(broker) == RoundReport()
    young = await half_of(client, key="young", born=str(clock.now_ms))
    clock.now_ms += 1
    assert (await round_of(broker)).asked == 1
    assert (await next_question(client))[0].key == "K39"
    assert (await end(client, young, COMMIT)).code == 0


async def test_producers_take_turns(broker: Broker, clock: Clock) -> None:
    async with (
        talking_in_memory(broker) as one,
        talking_in_memory(broker) as other,
        talking_in_memory(broker) as stranger,
    ):
        await join_group(one, client_id="one")
        await join_group(other, client_id="other")
        await join_group(stranger, "another-group", client_id="stranger")
        for number in range(4):
            await half_of(one, key=f"K{number}")
        clock.now_ms += 6_001
        assert (await round_of(broker)).asked == 4
        for talker in (one, other):
            keys = [(await next_question(talker))[0].key for _ in range(2)]
            assert len(set(keys)) == 2
        assert (await stranger.ask(RequestCode.GET_MAX_OFFSET, {"topic": "x", "queueId": "0"})).code == 0


async def test_nothing_is_counted_while_nobody_is_there(broker: Broker, client: Talker, clock: Clock) -> None:
    await half_of(client)
    await half_of(client, key="K2")
    for _ in range(20):
        clock.now_ms += 30_000
        assert await round_of(broker) == RoundReport(offline=2)
    assert len(await client.records(HALF_TOPIC)) == 2
    await join_group(client)
    assert (await round_of(broker)).asked == 2
    assert (await next_question(client))[2].property_map["TRANSACTION_CHECK_TIMES"] == "1"


async def test_who_waits_for_its_producers_does_not_hold_everything_back(
    broker: Broker, client: Talker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "HELD_BACK_MAX", 2)
    await half_of(client)
    for number in range(3):
        await end(client, await half_of(client, key=f"R{number}"), ROLLBACK)
    clock.now_ms += 30_000
    assert (await round_of(broker)).postponed == 1
    table = broker.parts.transactions.table
    assert (table.progress, table.held_back_count) == (4, 0)
    copy = (await client.records(HALF_TOPIC))[-1]
    assert "TRANSACTION_CHECK_TIMES" not in copy.property_map


async def test_a_message_is_given_up_after_so_many_questions_and_can_be_resumed(
    tmp_path: Path, clock: Clock
) -> None:
    async with (
        running_broker(tmp_path, clock=clock, transaction_check_max=3) as broker,
        talking_in_memory(broker) as client,
    ):
        await join_group(client)
        await half_of(client, TAGS="TagA")
        clock.now_ms += 6_001
        reports = [await round_of(broker) for _ in range(5)]
        assert [report.asked for report in reports] == [1, 1, 1, 0, 0]
        assert [report.given_up for report in reports] == [0, 0, 0, 1, 0]
        halves = [(await next_question(client))[0] for _ in range(3)]
        assert (await end(client, halves[-1], COMMIT, check=True)).code == 1
        assert await client.records("Orders") == []
        (given_up,) = await client.records(GIVEN_UP_TOPIC)
        assert given_up.property_map["TRANSACTION_CHECK_TIMES"] == "3"
        assert broker.parts.transactions.statistics().given_up == 1
        fields = {"topic": GIVEN_UP_TOPIC, "msgId": given_up.offset_message_id}
        assert (await client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)).code == 0
        assert (await round_of(broker)).asked == 1
        half, _, record = await next_question(client)
        assert record.property_map["TRANSACTION_CHECK_TIMES"] == "1"
        assert (await end(client, half, COMMIT, check=True)).code == 0
        assert [bytes(one.body) for one in await client.records("Orders")] == [b"paid"]


async def test_a_message_that_chose_its_time_is_copied_until_then(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await join_group(client)
    half = await half_of(client, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    for _ in range(2):
        clock.now_ms += 30_000
        assert await round_of(broker) == RoundReport(postponed=1)
    copy = (await client.records(HALF_TOPIC))[-1]
    assert copy.property_map["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in copy.property_map
    assert (await end(client, half, COMMIT)).code == 0  # within its time, by the place it was told
    clock.now_ms += 30_000
    assert await round_of(broker) == RoundReport()
    assert len(await client.records("Orders")) == 1


async def test_copies_are_known_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    """The progress was not saved: both the message and its copies are in the queue, and are one transaction."""
    async with running_broker(tmp_path, clock=clock) as broker, talking_in_memory(broker) as client:
        await join_group(client)
        first = await half_of(client)
        for _ in range(2):
            clock.now_ms += 30_000
            await round_of(broker)
    for path in (tmp_path / "config").glob("consumerOffset.json*"):
        path.unlink()
    async with running_broker(tmp_path, clock=clock) as broker, talking_in_memory(broker) as client:
        assert broker.parts.transactions.open_count == 1
        await join_group(client)
        clock.now_ms += 30_000
        assert (await round_of(broker)).asked == 1
        assert (await end(client, first, COMMIT)).code == 0
        assert broker.parts.transactions.open_count == 0
        assert await round_of(broker) == RoundReport()
        assert len(await client.records("Orders")) == 1


async def test_what_an_earlier_run_committed_is_settled_without_a_question(
    tmp_path: Path, clock: Clock
) -> None:
    async with running_broker(tmp_path, clock=clock) as broker, talking_in_memory(broker) as client:
        half = await half_of(client)
        assert (await end(client, half, COMMIT)).code == 0
        forget_marks(broker.parts.transactions)
    async with running_broker(tmp_path, clock=clock) as broker, talking_in_memory(broker) as client:
        await join_group(client)
        clock.now_ms += 30_000
        assert await round_of(broker) == RoundReport(settled=1)
        assert len(await client.records("Orders")) == 1


async def test_a_full_disk_ends_the_round_and_the_next_goes_on(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await join_group(client)
    await half_of(client)
    clock.now_ms += 6_001
    broker.parts.store.refuse_sends("the disk is full")
    assert await round_of(broker) == RoundReport()
    broker.parts.store.refuse_sends(None)
    assert (await round_of(broker)).asked == 1


async def test_the_saved_progress_does_not_pass_a_message_whose_copy_is_not_on_disk(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    """The disk fails while a copy is synced: what is saved at the end must not skip the message itself."""
    await join_group(client)
    await half_of(client)
    clock.now_ms += 6_001
    with failpoints.armed("commit_log.before_sync", _disk_fault):
        assert (await round_of(broker)).asked == 0
    await broker.failed
    broker.parts.transactions.save_progress()
    assert (broker.parts.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0) == 0


def _disk_fault() -> None:
    raise OSError(5, "Input/output error")


async def test_a_message_without_room_for_our_notes_is_asked_about_where_it_lies(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await join_group(client)
    half = None
    for size in range(32_700, 32_000, -20):  # as long as it may be
        with contextlib.suppress(AssertionError):
            half = await half_of(client, Long="x" * size)
            break
    clock.now_ms += 6_001
    assert (await round_of(broker)).asked == 1
    asked, _, _ = await next_question(client)
    assert asked == half
    assert (await end(client, asked, COMMIT, check=True)).code == 0


async def test_the_rounds_come_by_themselves(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"transaction_check_interval": 1, "transaction_time_out": 1}
    async with running_broker(tmp_path, **settings) as broker, talking_in_memory(broker) as client:
        await join_group(client)
        await half_of(client, born=str(broker.parts.clock()))
        half, _, _ = await next_question(client)
        assert (await end(client, half, ROLLBACK, check=True)).code == 0
