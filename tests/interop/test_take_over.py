"""A live set of official brokers moves to ours: an official producer and an official consumer go on all the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import official
import ours
from aerobee_proto.bodies import ClusterInfo
from clusters import FILE_SIZES
from console.support import Result, program
from interop.test_kills import QUEUES, TOPIC, find_all
from plain_remoting import UPDATE_BROKER_CONFIG, call, make_topic, max_offset, wait_until
from programs import Server
from system.running import talking

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "broker-a"
CLUSTER_INFO, HA_STATUS, GET_CONFIG = 106, 907, 26
CONSUMED = 3000
ROUTE_MS = 1000  # clients here ask for the route each second, not each 30 s


@dataclass
class Set:
    nameserver: str
    official: Server
    mine: Server
    folder: Path


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Set]:
    """An official master with our slave, which has everything from the beginning."""
    with (
        official.start_nameserver(tmp_path / "names") as nameserver,
        official.start_broker(tmp_path / "official", nameserver.address, name=NAME, config=FILE_SIZES) as old,
    ):
        at = nameserver.address
        config = {**FILE_SIZES, "brokerRole": "SLAVE", "brokerId": 1, "brokerIP2": "127.0.0.1"}
        with ours.start_broker(tmp_path / "ours", at, name=NAME, config=config) as mine:
            wait_until(lambda: is_linked(mine.address), "our slave follows", 60)
            make_topic(at, old.address, TOPIC, queues=QUEUES)
            yield Set(at, old, mine, tmp_path)


def is_linked(addr: str) -> bool:
    return bool(call(addr, HA_STATUS)[0]["extFields"].get("linked") == "true")


def members(nameserver: str) -> dict[int, str]:
    table = ClusterInfo.from_stranger(call(nameserver, CLUSTER_INFO)[1]).broker_addr_table
    return dict(table[NAME].broker_addrs)


def take_over(live: Set, *words: str) -> Result:
    return program("cluster", "take-over", NAME, "-n", live.nameserver, *words)


def role_of(addr: str) -> str:
    lines = call(addr, GET_CONFIG)[1].decode().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("brokerRole="))


async def test_a_live_set_moves_to_ours_and_nothing_is_lost_or_twice(live: Set) -> None:
    journal, until = live.folder / "journal", live.folder / "until"
    consumer = official.start_judge(
        "push",
        namesrv=live.nameserver,
        topic=TOPIC,
        group="moved-readers",
        expect=CONSUMED,
        seconds=120,
        poll=ROUTE_MS,
    )
    producer = official.start_judge(
        "endure",
        namesrv=live.nameserver,
        topic=TOPIC,
        run="m",
        journal=journal,
        until=until,
        poll=ROUTE_MS,
    )
    with consumer, producer:
        consumer.wait_line("READY", 60)
        producer.wait_line("^AT 500$", 60)
        moved = take_over(live, "--settle", "4", "-o", "json")
        print(moved.err, moved.out)
        assert moved.code == 0, moved.err
        said = moved.json
        assert (said["master_addr"], said["former_addr"]) == (live.mine.address, live.official.address)
        assert members(live.nameserver) == {0: live.mine.address, 2: live.official.address}
        count = int([line for line in producer.output.splitlines() if line.startswith("AT ")][-1][3:])
        producer.wait_line(f"^AT {max(CONSUMED, count) + 500}$", 120)
        until.touch()
        report = official.result_of(producer)
        read = official.result_of(consumer)
        print(report, {key: value for key, value in read.items() if key != "totals"})
    lines = [line.split() for line in journal.read_text().splitlines()]
    assert report["acknowledged"] == len(lines) >= CONSUMED
    async with talking(int(live.mine.address.rpartition(":")[2])) as client:
        await find_all(client, lines)  # each once, at the place that the producer was told
    assert read["complete"]
    assert read.get("duplicates", 0) == 0
    # The official broker is a slave of its set by its own settings file: no second master when it is started again.
    assert role_of(live.official.address) == "SLAVE"
    (conf,) = (live.folder / "official").glob("broker-*/broker.conf")
    written = conf.read_text()
    assert "brokerRole=SLAVE" in written
    assert "brokerId=2" in written


def test_what_is_not_as_needed_is_refused_and_the_fence_is_undone(live: Set) -> None:
    switched = program("cluster", "switch", NAME, "-n", live.nameserver)
    assert switched.code == 4
    assert "is an official broker" in switched.err
    # A slave that cannot go on: its process stands still behind the look at it.
    live.mine.stop()
    gone = take_over(live)
    assert gone.code == 4, gone.out
    assert "start one with brokerName=broker-a, brokerRole=SLAVE" in gone.err
    assert role_of(live.official.address) == "ASYNC_MASTER"
    answer, _ = call(live.official.address, UPDATE_BROKER_CONFIG, {}, b"brokerRole=SLAVE\n")
    assert answer["code"] == 0
    end = max_offset(live.official.address, TOPIC, 0)
    assert end == 0
