"""Classic replication with the official programs: our slave of an official master, and an official slave of ours.

Both sets live at one official nameserver, and are started once for all tests of this module.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import official
import ours
from plain_remoting import call, consumer_offset, make_topic, max_offset, wait_until
from programs import Server, free_port

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

FILE_SIZE = 65_536
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "slaveReadEnable": "true",
    "brokerIP2": "127.0.0.1",
}
GROUP = "readers"
TABLES_S = 150  # an official slave reads tables once a minute
SEND, COMMIT, GET_CONFIG, CLUSTER_INFO, HA_STATUS = 310, 15, 21, 106, 907
UPDATE_CONFIG, PULL, GET_GROUPS = 25, 11, 201


@dataclass
class Set:
    """A master and its slave."""

    name: str
    nameserver: Server
    master: Server
    slave: Server
    folder: Path
    slave_settings: dict[str, object]

    @property
    def master_store(self) -> Path:
        return self.folder / "master" / "store"

    @property
    def slave_store(self) -> Path:
        return self.folder / "slave" / "store"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Set]]:
    """The set whose slave is ours, and the set whose master is ours, by that."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        nameserver = stack.enter_context(official.start_nameserver(tmp_path_factory.mktemp("names")))
        at = nameserver.address

        def start(ours_is: str) -> Set:
            folder = tmp_path_factory.mktemp(f"our-{ours_is}")
            theirs, mine = official.start_broker, ours.start_broker
            start_master, start_slave = (mine, theirs) if ours_is == "master" else (theirs, mine)
            name = f"broker-{ours_is}"
            # Official slaves ask for tables at the port two below, official masters listen there.
            port = free_port(-2, 1)
            config = {**SETTINGS, "brokerRole": "ASYNC_MASTER", "haListenPort": port + 1}
            master = stack.enter_context(
                start_master(folder / "master", at, name=name, port=port, config=config)
            )
            fill(Set(name, nameserver, master, master, folder, {}), "Before", 120)
            config = {**SETTINGS, "brokerRole": "SLAVE", "brokerId": 1}
            slave = stack.enter_context(start_slave(folder / "slave", at, name=name, config=config))
            return Set(name, nameserver, master, slave, folder, config)

        started = dict(zip(("master", "slave"), threads.map(start, ("master", "slave")), strict=True))
        yield started


@pytest.fixture(params=["slave", "master"])
def one(request: pytest.FixtureRequest, sets: dict[str, Set]) -> Set:
    """A set of which this part is ours."""
    return sets[request.param]


def fill(where: Set, topic: str, count: int) -> None:
    """Messages of several hundred bytes, over the ends of files."""
    address = where.master.address
    if max_offset_or_none(address, topic) is None:
        make_topic(where.nameserver.address, address, topic, queues=2, broker_name=where.name)
    ends = [end + (count + 1 - queue) // 2 for queue, end in enumerate(ends_of(address, topic))]
    for number in range(count):
        fields = {"a": "test", "b": topic, "c": "TBW102", "d": "4", "e": str(number % 2), "f": "0", "g": "1"}
        fields |= {"h": "0", "i": f"KEYS\x01k{number}\x02", "j": "0", "k": "false", "m": "false"}
        answer, _ = call(address, SEND, fields, b"message %06d " % number * 60)
        assert answer["code"] == 0, answer
    # An official broker makes queue entries a moment after its answers.
    wait_until(lambda: ends_of(address, topic) == ends, f"{address} shows {ends} of {topic}")


def ends_of(address: str, topic: str) -> list[int]:
    return [max_offset(address, topic, queue) for queue in range(2)]


def max_offset_or_none(address: str, topic: str) -> int | None:
    answer, body = call(address, GET_CONFIG)
    assert answer["code"] == 0
    return 0 if f'"{topic}":'.encode() in body else None


def log_end(address: str) -> int:
    _, body = call(address, HA_STATUS)
    status = json.loads(body)
    return int(status["masterCommitLogMaxOffset"] or status["haClientRuntimeInfo"]["maxOffset"])


def wait_level(where: Set, topic: str) -> None:
    """Until the slave shows what the master has of a topic."""
    ends = ends_of(where.master.address, topic)
    try:
        wait_until(
            lambda: ends_of(where.slave.address, topic) == ends,
            f"the slave of {where.name} has {ends} of {topic}",
            60,
        )
    except AssertionError as late:
        raise AssertionError(f"{late}; it said:\n{where.slave.output[-3000:]}") from None


def log_files(store: Path) -> dict[str, bytes]:
    """The files that hold something, by name."""
    found = {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}
    return {name: content for name, content in found.items() if content.strip(b"\0")}


def assert_same_log(where: Set) -> None:
    """From the slave's first file on: an empty slave begins with the master's last one."""
    slave, master = log_files(where.slave_store), log_files(where.master_store)
    assert slave
    assert slave == {name: content for name, content in master.items() if name >= min(slave)}


def test_the_logs_are_equal_byte_by_byte_over_the_ends_of_files(one: Set) -> None:
    wait_level(one, "Before")
    fill(one, "Before", 160)
    wait_level(one, "Before")
    assert_same_log(one)
    assert len(log_files(one.slave_store)) >= 3


def test_both_are_in_the_route_and_the_master_lists_its_slave(one: Set) -> None:
    wait_level(one, "Before")
    _, body = call(one.nameserver.address, CLUSTER_INFO)
    found = re.search(rb'"%s":\{"brokerAddrs":\{([^}]*)\}' % one.name.encode(), body)
    assert found, body
    assert found[1].decode() == f'0:"{one.master.address}",1:"{one.slave.address}"'
    _, body = call(one.master.address, HA_STATUS)
    status = json.loads(body)
    assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)
    (seen,) = status["haConnectionInfo"]
    assert seen["inSync"]
    wait_until(
        lambda: json.loads(call(one.master.address, HA_STATUS)[1])["haConnectionInfo"][0]["diff"] == 0,
        "the slave says that it has everything",
    )
    _, body = call(one.slave.address, HA_STATUS)
    assert json.loads(body)["master"] is False


def test_the_slave_has_topics_groups_and_offsets_of_its_master(one: Set) -> None:
    fill(one, "Tables", 4)
    pull(one.master.address, "Before", 0)  # makes the group
    fields = {"consumerGroup": GROUP, "topic": "Before", "queueId": "1", "commitOffset": "7"}
    assert call(one.master.address, COMMIT, fields)[0]["code"] == 0

    def has_all() -> bool:
        at = one.slave.address
        has_group = f'"{GROUP}":'.encode() in call(at, GET_GROUPS)[1]
        has_topic = max_offset_or_none(at, "Tables") is not None
        return has_group and has_topic and consumer_offset(at, GROUP, "Before", 1) == 7

    wait_until(has_all, f"the slave of {one.name} has its master's tables", TABLES_S)
    wait_level(one, "Tables")


def test_our_slave_is_read_from_while_its_official_master_is_there(sets: dict[str, Set]) -> None:
    one = sets["slave"]
    fill(one, "Later", 4)
    wait_until(
        lambda: max_offset_or_none(one.slave.address, "Later") is not None, "the topic is at the slave"
    )
    wait_level(one, "Later")
    # Read at the slave while the master is there: what is at its end belongs to the master.
    answer, body = pull(one.slave.address, "Later", 0)
    assert (answer["code"], answer["extFields"]["nextBeginOffset"]) == (0, "2"), answer
    assert body == pull(one.master.address, "Later", 0)[1]
    answer, _ = pull(one.slave.address, "Later", 2)
    assert (answer["code"], answer["extFields"]["suggestWhichBrokerId"]) == (20, "0"), answer


def test_a_slave_goes_on_after_a_kill(one: Set) -> None:
    wait_level(one, "Before")
    one.slave.kill()
    fill(one, "Before", 60)
    port = int(one.slave.address.rpartition(":")[2])
    start = ours.start_broker if one.name == "broker-slave" else official.start_broker
    one.slave = start(
        one.folder / "slave", one.nameserver.address, name=one.name, port=port, config=one.slave_settings
    )
    try:
        wait_level(one, "Before")
        assert_same_log(one)
    finally:
        one.slave.kill()


def pull(address: str, topic: str, offset: int) -> tuple[dict, bytes]:  # type: ignore[type-arg]
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": "0", "queueOffset": str(offset)}
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return call(address, PULL, {**fields, "subscription": "*", "subVersion": "0", "expressionType": "TAG"})
