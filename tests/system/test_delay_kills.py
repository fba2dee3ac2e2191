"""Delayed messages through kills and restarts of a real broker: nothing early, nothing lost, nothing twice."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aerobee_proto.records import StoredRecord
from engines import engine_of
from system.kills import CONNECTION_LOST, BrokerProcess, make_topic, start
from system.running import Talker, running_broker, send_request, talking, text_of

pytestmark = pytest.mark.spread

TOPIC = "Delayed"
QUEUES = 2
LEVELS = (1000, 2000)
WINDOW = 64
GIVEN = os.environ.get("AEROBEE_KILL_SEED")
SEEDS = [int(GIVEN)] if GIVEN else [1, 2]
SETTINGS: dict[str, object] = {
    "messageDelayLevel": "1s 2s",
    "mappedFileSizeTimerLog": 65_536,
    "mappedFileSizeCommitLog": 1 << 20,
}


class Ledger:
    """What was sent, by number, and what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.earliest_ms: list[int] = []
        self.acknowledged: set[int] = set()

    def request(self) -> Any:
        number, now_ms = len(self.earliest_ms), int(time.time() * 1000)
        kind = self.rng.randrange(4)
        wait_ms = self.rng.choice(LEVELS) if kind == 0 else self.rng.randrange(1, 2500)
        properties = {
            0: {"DELAY": str(1 + LEVELS.index(wait_ms)) if kind == 0 else ""},
            1: {"TIMER_DELAY_MS": str(wait_ms)},
            2: {"TIMER_DELIVER_MS": str(now_ms + wait_ms)},
            3: {"TIMER_DELAY_SEC": str(1 + wait_ms // 1000)},
        }[kind]
        self.earliest_ms.append(now_ms + (1000 * (1 + wait_ms // 1000) if kind == 3 else wait_ms))
        body = b"%d" % number
        queue_id = number % QUEUES
        return send_request(TOPIC, body, opaque=number, queue_id=queue_id, properties=text_of(properties))

    async def load(self, talker: Talker, count: int) -> None:
        """Send, a window at a time, so many or until the connection is gone."""
        with suppress(*CONNECTION_LOST):
            for _ in range(count // WINDOW):
                talker.send(*[self.request() for _ in range(WINDOW)])
                for _ in range(WINDOW):
                    answer = await talker.receive()
                    assert answer.code == 0, answer
                    self.acknowledged.add(answer.opaque)


async def delivered(talker: Talker) -> list[StoredRecord]:
    found = [await talker.records(TOPIC, queueId=queue, suspendTimeoutMillis=0) for queue in range(QUEUES)]
    return [record for records in found for record in records]


async def wait_for_all(talker: Talker, ledger: Ledger) -> list[StoredRecord]:
    """Everything that was delivered, once all that was acknowledged is, or a minute is over."""
    async with asyncio.timeout(60):
        while True:
            records = await delivered(talker)
            if ledger.acknowledged <= {int(record.body) for record in records}:
                return records
            await talker.pull(TOPIC, 1 << 30, sysFlag=6, suspendTimeoutMillis=100)  # a moment


def check(records: list[StoredRecord], ledger: Ledger) -> None:
    counts = Counter(int(record.body) for record in records)
    twice = [number for number, count in counts.items() if count > 1]
    assert not twice, f"delivered twice: {twice[:10]} of {len(twice)}"
    lost = ledger.acknowledged - counts.keys()
    assert not lost, f"lost: {sorted(lost)[:10]} of {len(lost)}"
    early = [
        (int(record.body), ledger.earliest_ms[int(record.body)] - record.store_timestamp)
        for record in records
        if record.store_timestamp < ledger.earliest_ms[int(record.body)]
    ]
    assert not early, f"early: {early[:10]}"


async def end(broker: BrokerProcess, how: signal.Signals) -> None:
    broker.program.process.send_signal(how)
    code = await broker.ended()
    assert code == (0 if how is signal.SIGTERM else -how)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_kills_and_restarts(tmp_path: Path, seed: int) -> None:
    ledger, settings = Ledger(seed), SETTINGS | {"sendEngine": engine_of(seed)}
    for cycle in range(6):
        how = signal.SIGTERM if cycle % 3 == 2 else signal.SIGKILL
        print(f"AEROBEE_KILL_SEED={seed} cycle {cycle}: {how.name}, {len(ledger.acknowledged)} acknowledged")
        broker = await start(tmp_path / "store", settings)
        try:
            async with talking(broker.port) as talker:
                await make_topic(talker, TOPIC, QUEUES)
                until = len(ledger.acknowledged) + ledger.rng.randrange(300, 2000)
                load = asyncio.create_task(ledger.load(talker, 4000))
                async with talking(broker.port) as reader:
                    while len(ledger.acknowledged) < until or len(await delivered(reader)) < until // 4:
                        await reader.pull(TOPIC, 1 << 30, sysFlag=6, suspendTimeoutMillis=50)
                    check_no_repeats(await delivered(reader))
                await end(broker, how)
                await load
        finally:
            broker.program.kill()
    broker = await start(tmp_path / "store", settings)
    try:
        async with talking(broker.port) as talker:
            check(await wait_for_all(talker, ledger), ledger)
        await end(broker, signal.SIGTERM)
    finally:
        broker.program.kill()
    # An orderly restart brings nothing anew.
    broker = await start(tmp_path / "store", settings)
    try:
        async with talking(broker.port) as talker:
            await talker.put(TOPIC, b"-1", properties=text_of({"TIMER_DELAY_MS": "1500"}))
            ledger.acknowledged.add(-1)
            records = await wait_for_all(talker, ledger)
            ledger.acknowledged.discard(-1)
            check([record for record in records if record.body != b"-1"], ledger)
    finally:
        broker.program.kill()


def check_no_repeats(records: list[StoredRecord]) -> None:
    assert len({record.body for record in records}) == len(records)


async def takes_ms(talker: Talker, count: int) -> int:
    """How long sending so many messages takes on this machine now."""
    begun = time.monotonic()
    talker.send(*[send_request("Plain", b"x", opaque=number) for number in range(count)])
    assert {answer.code for answer in (await talker.answers(count)).values()} == {0}
    return int(1000 * (time.monotonic() - begun))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(120)
@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELIVER_MS": "due"}], ids=["level", "time"])
async def test_ten_thousand_at_once(tmp_path: Path, properties: dict[str, str]) -> None:
    """All are due at about the same moment: none comes early, all come soon."""
    count = 10_000
    async with (
        running_broker(
            tmp_path,
            message_delay_level="4s",
            mapped_file_size_timer_log=1 << 20,
            mapped_file_size_commit_log=1 << 24,
        ) as broker,
        talking(broker) as talker,
    ):
        await make_topic(talker, TOPIC, QUEUES)
        wait_ms = max(4000, 3 * count // 500 * await takes_ms(talker, 500))
        begun_ms = int(time.time() * 1000)
        due_ms = begun_ms + (4000 if "DELAY" in properties else wait_ms)
        given = {name: value.replace("due", str(due_ms)) for name, value in properties.items()}
        for first in range(0, count, 500):
            talker.send(
                *[
                    send_request(TOPIC, b"%d" % n, opaque=n, queue_id=n % QUEUES, properties=text_of(given))
                    for n in range(first, first + 500)
                ]
            )
            assert {answer.code for answer in (await talker.answers(500)).values()} == {0}
        sent_ms = int(time.time() * 1000)
        if "DELAY" not in given:
            assert sent_ms < due_ms, "this machine takes too long to send them"
        while len(records := await delivered(talker)) < count:
            await talker.pull(TOPIC, 1 << 30, sysFlag=6, suspendTimeoutMillis=100)
    assert sorted(int(record.body) for record in records) == list(range(count))
    times = [record.store_timestamp for record in records]
    last_due_ms = sent_ms + 4000 if "DELAY" in given else due_ms
    assert min(times) >= due_ms
    assert max(times) - last_due_ms < 10_000
    print(f"first {min(times) - due_ms} ms, last {max(times) - last_due_ms} ms after its time")
