"""A broker that is killed at every step of transactions: nothing that was committed is lost or seen twice, nothing that
was rolled back is seen at all, and what was left open is asked about."""

import asyncio
import itertools
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from aerobee_proto.codes import RequestCode
from aerobee_store.faults.failpoints import SERVICE_FAILPOINTS
from programs import ProgramError
from system.kills import CONNECTION_LOST, check_closed_store, start
from system.running import Talker, talking
from system.transacting import (
    COMMIT,
    HALF_TOPIC,
    OP_TOPIC,
    ROLLBACK,
    end,
    end_request,
    join_group,
    next_question,
    send_half,
)

pytestmark = [pytest.mark.slow, pytest.mark.spread, pytest.mark.timeout(120)]

TOPIC: Final = "Orders"
SETTINGS: Final[dict[str, object]] = {
    "transactionTimeOut": 50,
    "transactionCheckInterval": 20,
    "transactionCheckMax": 1_000_000,
    "transactionOpBatchInterval": 30,
    "flushConsumerOffsetInterval": 40,
}
TRANSACTION_STEPS: Final = sorted(name for name in SERVICE_FAILPOINTS if name.startswith("transactions."))
# Passed by the write of a half message, of a committed one, of marks and of copies, in turn.
STORE_STEPS: Final = ("commit_log.before_write", "commit_log.after_write", "commit_log.after_sync")
# At which pass the first and the second run of a broker is killed.
STEPS: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(TRANSACTION_STEPS, (1, 3)),
    **dict.fromkeys(STORE_STEPS, (4, 23)),
    "consume_queue.before_write": (3, 11),
    "io.before_rename": (3, 5),  # files of the broker's tables, the progress of transactions among them
}


@dataclass(slots=True)
class Ledger:
    """What producers want of their transactions, by the keys and bodies of the messages."""

    decided: dict[str, int] = field(default_factory=dict)
    owed: set[str] = field(default_factory=set)  # whose half message was acknowledged
    answered: set[str] = field(default_factory=set)  # whose end was


async def produce(talker: Talker, ledger: Ledger) -> None:
    """Transactions without end: one is committed, one rolled back, one left to the broker's questions."""
    await join_group(talker)
    for number, how in zip(itertools.count(len(ledger.decided)), itertools.cycle((COMMIT, ROLLBACK, 0))):
        key = f"{number}-{how}"
        ledger.decided[key] = how or COMMIT
        half = await send_half(talker, TOPIC, key.encode(), key=key, born=str(time.time_ns() // 1_000_000))
        ledger.owed.add(key)
        if how:
            answer = await end(talker, half, how)
            assert answer.code == 0, answer.remark
            ledger.answered.add(key)


async def live_until_killed(store: Path, ledger: Ledger, step: str) -> None:
    """A run that ends itself at the step; it may not even get to serve."""
    try:
        broker = await start(store, SETTINGS, failpoints=step)
    except ProgramError as failed:
        if failed.args[1] == -signal.SIGKILL:
            return
        raise
    try:
        with suppress(*CONNECTION_LOST):
            async with talking(broker.port) as talker:
                await produce(talker, ledger)
        assert await broker.ended() == -signal.SIGKILL, broker.program.output
    finally:
        broker.program.kill()


async def answer_questions(talker: Talker, ledger: Ledger) -> None:
    """Be a producer that knows how all its transactions end."""
    while True:
        half, _, record = await next_question(talker)
        assert bytes(record.body).decode() == half.key
        talker.send(end_request(half, ledger.decided[half.key], check=True, oneway=True))


async def none_is_open(talker: Talker) -> None:
    """Return when every half message has its end: each mark that arrives is a reason to look.

    The progress is asked for before the end of the queue: it passes a message that a check copies, and equals the end
    that the queue had before the copy.
    """
    marks = 0
    while True:
        place = {"topic": HALF_TOPIC, "queueId": "0"}
        fields = place | {"consumerGroup": "CID_RMQ_SYS_TRANS", "setZeroIfNotFound": "false"}
        answer = await talker.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        until = (await talker.ask(RequestCode.GET_MAX_OFFSET, place)).ext["offset"]
        if answer.code == 0 and answer.ext["offset"] == until:
            return
        answer = await talker.pull(OP_TOPIC, marks, sysFlag=6, suspendTimeoutMillis=200)
        marks = int(answer.ext["nextBeginOffset"])


async def settle(store: Path, ledger: Ledger) -> Counter[str]:
    """A run in which all open transactions are ended; how often each message is seen then."""
    broker = await start(store, SETTINGS)
    try:
        async with AsyncExitStack() as stack:
            producer, reader = [await stack.enter_async_context(talking(broker.port)) for _ in range(2)]
            await join_group(producer)
            answering = asyncio.create_task(answer_questions(producer, ledger))
            await none_is_open(reader)
            answering.cancel()
            seen = Counter(bytes(record.body).decode() for record in await reader.records(TOPIC))
        broker.program.process.terminate()
        assert await broker.ended() == 0
    finally:
        broker.program.kill()
    return seen


@pytest.mark.parametrize(("step", "passes"), STEPS.items(), ids=STEPS)
async def test_what_was_decided_holds_after_kills_at_every_step(
    tmp_path: Path, step: str, passes: tuple[int, int]
) -> None:
    store, ledger = tmp_path / "store", Ledger()
    for count in passes:
        await live_until_killed(store, ledger, f"{step}=kill@{count}")
    seen = await settle(store, ledger)
    committed = {key for key, how in ledger.decided.items() if how == COMMIT}
    assert seen.keys() <= committed, "a message that was rolled back is seen"
    assert committed & ledger.owed <= seen.keys(), "a message that was committed is lost"
    assert set(seen.values()) <= {1}, "a message is seen twice"
    check_closed_store(store, SETTINGS)
