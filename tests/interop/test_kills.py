"""The official producer, with its retries, and our broker killed twenty times: what it calls SEND_OK is there."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import official
import ours
from aerobee_proto.codes import RequestCode, SysFlag
from aerobee_proto.compression import decompress_body
from aerobee_proto.records import StoredRecord, decode_records
from clusters import FILE_SIZES
from plain_remoting import make_topic
from programs import free_port
from system.running import Talker, talking
from traffic import Ledger, Piece

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

CYCLES = 20
QUEUES = 4
TOPIC = "Endured"
BODY_MAX = 1 << 20
STEP = 25  # acknowledgements between two lines of the producer
SEED = int(os.environ.get("AEROBEE_KILL_SEED", "1"))


async def test_what_the_official_producer_calls_sent_outlives_twenty_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"AEROBEE_KILL_SEED={SEED}")
    port = free_port(-2, 1)
    settings = {**FILE_SIZES, "mappedFileSizeCommitLog": 64 * 1024}
    journal, until = tmp_path / "journal", tmp_path / "until"
    with ours.start_nameserver() as nameserver:
        at = nameserver.address
        broker = ours.start_broker(tmp_path, at, port=port, config=settings)
        try:
            make_topic(at, broker.address, TOPIC, queues=QUEUES)
            with official.start_judge(
                "endure", namesrv=at, topic=TOPIC, run="e", journal=journal, until=until
            ) as producer:
                count = 0
                for _ in range(CYCLES):
                    count += STEP * rng.randint(1, 20)
                    producer.wait_line(rf"^AT {count}$", 120)
                    broker.kill()
                    # What was under way when it was killed may count on; what is to come has to be after that.
                    count = int(last_line(producer.output).removeprefix("AT "))
                    broker = ours.start_broker(tmp_path, at, port=port, config=settings)
                producer.wait_line(rf"^AT {count + STEP * 10}$", 120)
                until.touch()
                report = official.result_of(producer)
            lines = [line.split() for line in journal.read_text().splitlines()]
            assert report["acknowledged"] == len(lines) >= CYCLES * STEP
            async with talking(port) as client:
                await find_all(client, lines)
            assert broker.stop() == 0
        finally:
            broker.kill()


def last_line(output: str) -> str:
    return [line for line in output.splitlines() if line.startswith("AT ")][-1]


async def find_all(client: Talker, lines: list[list[str]]) -> None:
    """Every message of the journal is at the place that the producer was told, with everything it had."""
    found: dict[tuple[int, int], StoredRecord] = {}
    for queue_id in range(QUEUES):
        place = {"topic": TOPIC, "queueId": str(queue_id)}
        until = int((await client.ask(RequestCode.GET_MAX_OFFSET, place)).ext["offset"])
        offset = 0
        while offset < until:
            answer = await client.pull(TOPIC, offset, queueId=queue_id)
            for record in decode_records(answer.body):
                assert record.queue_offset == offset
                found[queue_id, offset] = record
                offset += 1
    lost = [line for line in lines if not is_it(found.get((int(line[1]), int(line[2]))), line)]
    assert not lost, f"{len(lost)} of {len(lines)} are not there: {lost[:5]}"
    assert len({(line[1], line[2]) for line in lines}) == len(lines), "two messages at one place"


def is_it(record: StoredRecord | None, line: list[str]) -> bool:
    """Whether a record is the message of a journal line: key and sum over all of it."""
    if record is None or record.keys != (line[0],):
        return False
    facts: dict[str, Any] = record.property_map
    body = record.body
    if record.sys_flag & SysFlag.COMPRESSED:
        body = decompress_body(body, record.sys_flag, BODY_MAX)
    ledger = Ledger(TOPIC)
    ledger.add(Piece(record.tags or "", line[0], facts, record.flag, body))
    return next(iter(ledger.totals.values())) == (1, int(line[3]))
