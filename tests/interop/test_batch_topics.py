"""Topics with queues of batches: the same answers as the official broker's, and stores that both open.

The same requests go to both brokers; then each opens what the other has written, serves it and writes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import official
from aerobee_proto.batch import BatchEntry
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command
from aerobee_proto.records import StoredRecord, decode_records
from clusters import Cluster, start_cluster
from system.running import Talker, talking, text_of

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC = "Batched"
SIZES = {"mapperFileSizeBatchConsumeQueue": 46 * 20}
PULL_FLAGS = {"sysFlag": 4, "suspendTimeoutMillis": 0}
INNER = str(0xC0)


def entries(run: str, count: int) -> list[BatchEntry]:
    return [
        BatchEntry(
            0, f"{run}-{at}".encode(), text_of({"UNIQ_KEY": f"{run}K{at}", "TAGS": "TagA", "WAIT": "true"})
        )
        for at in range(count)
    ]


def what(answer: Command) -> list[Any]:
    """Of an answer to a send what both must agree about."""
    ext = answer.ext
    return [
        int(answer.code),
        ext.get("queueOffset"),
        ext.get("batchUniqId"),
        (ext.get("msgId") or "").count(","),
    ]


def of_record(record: StoredRecord) -> list[Any]:
    kept = {"INNER_NUM", "INNER_BASE", "UNIQ_KEY", "TAGS", "KEYS"}
    found = {name: value for name, value in record.property_map.items() if name in kept}
    return [record.queue_offset, record.sys_flag, record.flag, record.body.hex(), found]


async def send_some(peer: Talker, run: str) -> list[Any]:
    """Every kind of send; what was answered."""
    key = f"{run}B"
    of_all = {"UNIQ_KEY": key, "KEYS": f"{run}key", "TAGS": "TagA"}
    return [
        what(await peer.put(TOPIC, b"single", properties=text_of({"UNIQ_KEY": f"{run}S", "TAGS": "TagA"}))),
        what(await peer.put_batch(TOPIC, entries(run, 3), properties=text_of(of_all))),
        what(await peer.put_batch(TOPIC, entries(f"{run}p", 3), properties=text_of({"TAGS": "TagA"}))),
        what(await peer.put(TOPIC, b"odd", properties=text_of({"UNIQ_KEY": f"{run}f"}), sysFlag=INNER)),
        what(await peer.put_batch(TOPIC, entries(f"{run}q", 2), properties=text_of({"UNIQ_KEY": f"{run}Q"}))),
    ]


async def refused(peer: Talker) -> list[int]:
    """What no topic, or no topic of the other kind, takes."""
    number = text_of({"UNIQ_KEY": "X", "INNER_NUM": "2"})
    answers = [
        await peer.put(TOPIC, b"no flag", properties=number),
        await peer.put("Plain", b"no such queues", properties=number, sysFlag=INNER),
        await peer.put("Plain", b"no such queues", properties=text_of({"UNIQ_KEY": "X"}), sysFlag=INNER),
    ]
    return [int(answer.code) for answer in answers]


async def read_from(peer: Talker, offset: int, **fields: Any) -> list[Any]:
    answer = await peer.pull(TOPIC, offset, **{**PULL_FLAGS, **fields})
    ext = answer.ext
    head = [int(answer.code), ext.get("nextBeginOffset"), ext.get("minOffset"), ext.get("maxOffset")]
    return [*head, [of_record(record) for record in decode_records(answer.body)]]


async def numbers(peer: Talker) -> list[Any]:
    """What is said of the queue: its ends, offsets by time, its entries, the statistics."""
    queue = {"topic": TOPIC, "queueId": "0"}
    found: list[Any] = []
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        found.append((await peer.ask(code, queue)).ext["offset"])
    for timestamp in ("0", str(1 << 50)):
        asked = {**queue, "timestamp": timestamp}
        found.append((await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked)).ext["offset"])
    answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    found.append([answer.body.count(b'"maxOffset":'), answer.code])
    return found


async def everything(peer: Talker, count: int) -> list[Any]:
    """All records, in reads of one message at least, and the state of the queue, once there are so many.

    An official broker makes queue entries a moment after its answers.
    """
    found = await whole(peer)
    async with asyncio.timeout(30):
        while len(found[0]) < count:
            await asyncio.sleep(0.05)
            found = await whole(peer)
    assert len(found[0]) == count
    return found


async def whole(peer: Talker) -> list[Any]:
    found: list[Any] = []
    offset = 0
    while True:
        code, following, _, _, records = await read_from(peer, offset)
        if code != 0:
            return [found, await numbers(peer)]
        found += records
        offset = int(following)


async def first_exchange(address: str) -> dict[str, Any]:
    async with talking(port_of(address)) as peer:
        made = await peer.make_topic(TOPIC, attributes="+queue.type=BatchCQ")
        plain = await peer.make_topic("Plain", attributes="")
        again = await peer.make_topic(TOPIC, attributes="+queue.type=SimpleCQ")
        later = await peer.make_topic("Plain", attributes="+queue.type=BatchCQ")
        sent = await send_some(peer, "a")
        return {
            "topics": [int(made.code), int(plain.code), int(again.code) != 0, int(later.code) != 0],
            "sent": sent,
            "refused": await refused(peer),
            "whole": await everything(peer, 7),
            "inside": [await read_from(peer, offset, maxMsgNums=1) for offset in range(9)],
            "few": [await read_from(peer, 0, maxMsgNums=count) for count in range(1, 9)],
            "beyond": [await read_from(peer, offset) for offset in (10, 11, 50)],
            "tags": [await read_from(peer, 0, subscription=tag) for tag in ("TagA", "TagB")],
        }


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def stop(cluster: Cluster) -> None:
    assert cluster.broker.stop() in (0, 143)


async def test_both_brokers_answer_alike(tmp_path: Path) -> None:
    found = {}
    for kind in ("official", "ours"):
        with start_cluster(kind, tmp_path / kind, SIZES) as cluster:
            found[kind] = await first_exchange(cluster.broker.address)
    differs = {name for name, theirs in found["official"].items() if found["ours"][name] != theirs}
    assert not differs, {name: (found["official"][name], found["ours"][name]) for name in differs}


async def hand_on(folder: Path, first: str, end: str) -> None:
    """Three times one of the brokers: each finds what the one before has read at its end, and writes more."""
    other = "ours" if first == "official" else "official"
    before: list[Any] = []
    for turn, kind in enumerate((first, other, first)):
        with start_cluster(kind, folder, SIZES) as cluster:
            async with talking(port_of(cluster.broker.address)) as peer:
                if not turn:
                    assert (await peer.make_topic(TOPIC, attributes="+queue.type=BatchCQ")).code == 0
                else:
                    assert await everything(peer, 63 * turn) == before
                for number in range(9):
                    sent = await send_some(peer, f"{turn}{number}")
                    assert [answer[0] for answer in sent] == [0] * 5
                before = await everything(peer, 63 * (turn + 1))
            if end == "kill":
                cluster.broker.kill()
            else:
                stop(cluster)


FIRST, ENDS = ("official", "ours"), ("orderly", "kill")


@pytest.fixture(scope="module")
def handed_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future[None]]]:
    """Two at once, for a program that starts or stops waits half of its time; no more, for each takes a gigabyte."""
    official.classpath()
    with ThreadPoolExecutor(2) as pool:
        yield {
            (first, end): pool.submit(
                lambda first, end, folder: asyncio.run(hand_on(folder, first, end)),
                first,
                end,
                tmp_path_factory.mktemp(f"{first}-{end}"),
            )
            for first in FIRST
            for end in ENDS
        }


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("end", ENDS)
def test_each_goes_on_with_what_the_other_wrote(
    handed_on: dict[tuple[str, str], Future[None]], first: str, end: str
) -> None:
    """What one has read at its end the other reads first, and numbers go on; then the first has it back."""
    handed_on[first, end].result()
