"""Delays, retries and dead letters by the official Java client, and stores with waiting messages that change hands."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import official
import ours
from aerobee_proto.records import StoredRecord
from clusters import FILE_SIZES, KINDS, Cluster, start_cluster
from plain_remoting import make_topic
from programs import Server
from system.running import talking

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

LEVELS = "1s 2s 1s 1s 1s 1s 3s"
SETTINGS: dict[str, Any] = {"messageDelayLevel": LEVELS, "recallMessageEnable": "true"}
EXACT_MS = 100
OFFICIAL_STEP_MS = 2_100  # its timer has steps of a second, and looks for due messages of levels every 100 ms
TOPIC = "Delayed"


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with start_cluster(request.param, tmp_path, SETTINGS) as started:
        make_topic(started.nameserver.address, started.broker.address, TOPIC)
        yield started


def test_a_recall_is_traced(either: Cluster) -> None:
    """The producer traces a recall only when the answer names a region, and it did not."""
    for topic in ("TakenBack", "Traces"):
        make_topic(either.nameserver.address, either.broker.address, topic, queues=1)
    judged = official.judge(
        "delay-send",
        namesrv=either.nameserver.address,
        topic="TakenBack",
        delays="in:60000",
        recall="0",
        trace="Traces",
        jvm=["-Xmx256m", "-Dcom.rocketmq.recall.default.trace.enable=true"],
    )
    assert judged["sent"][0]["recalled"] == judged["sent"][0]["msgId"]
    assert traces(either.broker).count("Recall") == 1


def traces(broker: Server) -> list[str]:
    """What kinds of traces there are, whichever of the producer's two dispatchers was first."""
    lines = [bytes(record.body).decode().split("\x02") for record in read(broker, "Traces", queues=1)]
    return [line.split("\x01")[0] for trace in lines for line in trace if line]


def read(broker: Server, topic: str, queues: int = 4) -> list[StoredRecord]:
    """Everything in a topic's queues."""

    async def pull() -> list[StoredRecord]:
        async with talking(int(broker.address.rpartition(":")[2])) as client:
            found = [
                await client.records(topic, queueId=queue, suspendTimeoutMillis=0, sysFlag=4)
                for queue in range(queues)
            ]
        return [record for records in found for record in records]

    return asyncio.run(pull())


def wait_for(broker: Server, topic: str, count: int, seconds: float, queues: int = 4) -> list[StoredRecord]:
    """The topic's messages, once there are so many; whatever there is after the time."""
    deadline = time.monotonic() + seconds
    while True:
        found = read(broker, topic, queues)
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def expected_ms(word: str) -> int:
    kind, value = word.split(":")
    if kind == "level":
        return 1000 * int(LEVELS.split(" ")[int(value) - 1].removesuffix("s"))
    return int(value) * (1000 if kind == "sec" else 1)


def test_the_official_producers_delays_are_kept(cluster: Cluster) -> None:
    words = ["level:1", "level:2", "sec:2", "ms:1700", "in:2345", "in:2001", "level:7"]
    address = cluster.nameserver.address
    sent = official.judge("delay-send", namesrv=address, topic=TOPIC, delays=",".join(words))["sent"]
    assert {row["status"] for row in sent} == {"SEND_OK"}
    assert [row.get("recallHandle") is not None for row in sent] == [
        not word.startswith("level") for word in words
    ]
    records = {int(record.body): record for record in wait_for(cluster.broker, TOPIC, len(words), 15)}
    assert records.keys() == set(range(len(words)))
    slack = EXACT_MS if cluster.kind == "ours" else OFFICIAL_STEP_MS
    for number, (word, row) in enumerate(zip(words, sent, strict=True)):
        record = records[number]
        begun_ms = row["begunMs"] if word.startswith("in:") else record.born_timestamp
        late_ms = record.store_timestamp - begun_ms - expected_ms(word)
        assert 0 <= late_ms <= slack + 300, (word, late_ms)  # 300: the way to the broker and its disk
        assert record.unique_key == row["msgId"]
        assert record.offset_message_id != row["offsetMsgId"]
        assert (record.tags, record.keys) == ("TagD", (f"key-{number}",))


def test_the_official_producer_takes_a_message_back(cluster: Cluster) -> None:
    sent = official.judge(
        "delay-send", namesrv=cluster.nameserver.address, topic=TOPIC, delays="in:3000,in:3000", recall="0"
    )["sent"]
    assert sent[0]["recalled"] == sent[0]["msgId"]
    time.sleep(max(0.0, sent[1]["begunMs"] / 1000 + 5.2 - time.time()))
    assert [record.body for record in read(cluster.broker, TOPIC)] == [b"1"]


def test_what_a_consumer_never_takes_becomes_a_dead_letter(cluster: Cluster) -> None:
    namesrv, group, limit = cluster.nameserver.address, "never-content", 3
    with official.start_judge(
        "delay-refuse", namesrv=namesrv, topic=TOPIC, group=group, max=limit, expect=2 * (limit + 1)
    ) as consumer:
        consumer.wait_line("READY", 60)
        official.judge("delay-send", namesrv=namesrv, topic=TOPIC, delays="ms:1,ms:1")
        seen = official.result_of(consumer)["seen"]
    assert {row["topic"] for row in seen} == {TOPIC}
    for body in ("0", "1"):
        mine = [row for row in seen if row["body"] == body]
        assert [row["times"] for row in mine] == list(range(limit + 1))
        pauses = [later["storedMs"] - earlier["atMs"] for earlier, later in itertools.pairwise(mine)]
        assert all(pause >= 1000 - 50 for pause in pauses), pauses
        assert len({row["msgId"] for row in mine}) == 1
    letters = wait_for(cluster.broker, f"%DLQ%{group}", 2, 10, queues=1)
    assert sorted(letter.body for letter in letters) == [b"0", b"1"]
    for letter in letters:
        assert letter.property_map["RETRY_TOPIC"] == TOPIC
        assert letter.reconsume_times == limit + 1


# --- stores that change hands -------------------------------------------------------------------------------------

# The later ones are due when the first broker has long been stopped, also on a busy machine.
WAITING = ["level:2", "in:1500", "in:2500", *["level:7"] * 3, *[f"in:{14_000 + 137 * n}" for n in range(12)]]


def start(kind: str, folder: Path, nameserver: str) -> Server:
    broker = ours.start_broker if kind == "ours" else official.start_broker
    settings = {**FILE_SIZES, **SETTINGS, "messageDelayLevel": LEVELS.removesuffix("3s") + "9s"}
    return broker(folder, nameserver, config=settings)


class Handover(NamedTuple):
    """What was sent to one broker, and all that its topic holds after the other one had the store."""

    sent: list[dict[str, Any]]
    records: list[StoredRecord]


def wait_until_noted(store: Path, delivered_ms: int) -> None:
    """Wait until the timer's checkpoint is past this time: both kinds write it every second or two."""
    deadline = time.monotonic() + 30
    while (read_ms := int.from_bytes((store / "config" / "timercheck").read_bytes()[:8])) <= delivered_ms:
        assert time.monotonic() < deadline, (read_ms, delivered_ms)
        time.sleep(0.1)


def hand_over(folder: Path, first: str, end: str) -> Handover:
    """Leave waiting messages to the other kind of broker, which gets a copy of the store."""
    other = "official" if first == "ours" else "ours"
    with ours.start_nameserver() as nameserver:
        with start(first, folder, nameserver.address) as broker:
            make_topic(nameserver.address, broker.address, TOPIC)
            sent = official.judge(
                "delay-send", namesrv=nameserver.address, topic=TOPIC, delays=",".join(WAITING)
            )["sent"]
            early = wait_for(broker, TOPIC, 3, 6)
            assert sorted(int(record.body) for record in early) == [0, 1, 2]
            if end == "kill":  # a timer that is not written down as delivered is delivered again
                wait_until_noted(folder / "store", max(record.store_timestamp for record in early))
            if end == "orderly":
                assert broker.stop() == (0 if first == "ours" else 143)  # the JVM tells of the signal
            else:
                broker.kill()
        left = folder / "other"
        shutil.copytree(folder / "store", left / "store")
        (left / "store" / "lock").unlink(missing_ok=True)
        with start(other, left, nameserver.address) as broker:
            records = wait_for(broker, TOPIC, len(WAITING), 30)
            time.sleep(2.5)
            records = read(broker, TOPIC)
    return Handover(sent, records)


FIRST, ENDS = ("ours", "official"), ("orderly", "kill")


@pytest.fixture(scope="module")
def handovers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future[Handover]]]:
    """All of them at once, by who is first and how it ends: they wait more than they work."""
    official.classpath()
    with ThreadPoolExecutor(len(FIRST) * len(ENDS)) as pool:
        yield {
            (first, end): pool.submit(hand_over, tmp_path_factory.mktemp(f"{first}-{end}"), first, end)
            for first in FIRST
            for end in ENDS
        }


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("end", ENDS)
def test_waiting_messages_are_delivered_by_the_other_broker(
    handovers: dict[tuple[str, str], Future[Handover]], first: str, end: str
) -> None:
    sent, records = handovers[first, end].result()
    counts = Counter(int(record.body) for record in records)
    assert counts.keys() == set(range(len(WAITING)))
    repeated = {number for number, count in counts.items() if count > 1}
    # Offsets of levels are written every ten seconds: a kill repeats what came before, timers are written each second.
    assert repeated <= ({0} if end == "kill" else set()), json.dumps(counts)
    for record in records:
        number = int(record.body)
        word = WAITING[number]
        waits = 9000 if word == "level:7" else expected_ms(word)
        assert record.store_timestamp >= sent[number]["begunMs"] + waits, (word, number)
