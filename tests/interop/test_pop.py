"""POP judged by the official client: the push consumer that lets the broker assign, and the calls of the proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import official
import ours
from aerobee_proto.properties import POP_CK
from aerobee_proto.records import decode_records
from clusters import FILE_SIZES, Cluster
from plain_remoting import call, make_topic, wait_until
from programs import Server

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

QUEUES = 4
SEND_MESSAGE, POP_MESSAGE, ACK_MESSAGE = 10, 200050, 200051


def where(cluster: Cluster, topic: str, group: str) -> dict[str, Any]:
    return {
        "namesrv": cluster.nameserver.address,
        "broker": cluster.broker.address,
        "topic": topic,
        "group": group,
    }


def filled(cluster: Cluster, topic: str, count: int) -> None:
    """A topic with `count` messages, spread over its queues."""
    make_topic(cluster.nameserver.address, cluster.broker.address, topic, queues=QUEUES)
    for i in range(count):
        fields = {
            "producerGroup": "p",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(i % QUEUES),
            "sysFlag": "0",
            "bornTimestamp": str(time.time_ns() // 1_000_000),
            "flag": "0",
        }
        answer, _ = call(cluster.broker.address, SEND_MESSAGE, fields, b"%d" % i)
        assert answer["code"] == 0


def test_a_push_consumer_that_pops_gets_everything_and_again_what_it_gave_back(cluster: Cluster) -> None:
    filled(cluster, "Pushed", 200)
    found = official.judge("pop-push", **where(cluster, "Pushed", "poppers"), expect=200, failing=20)
    assert (found["complete"], found["distinct"], found["popped"]) == (True, 200, True)
    given_back = found["deliveries"] - 200
    assert 0 < given_back < 40
    assert found["brought"] == ["Pushed 1"]


def test_the_calls_of_the_proxy(cluster: Cluster) -> None:
    filled(cluster, "Proxied", 40)
    found = official.judge("pop-api", **where(cluster, "Proxied", "proxied"), expect=40)
    assert (found["first"], found["again"]) == (40, 10)
    assert found["statuses"] == ["OK"]
    assert found["times"] == ["Proxied 1"]
    assert found["rest"] == "POLLING_NOT_FOUND"
    assert found["notified"] is False


def test_in_order_as_the_proxy_asks_for_it(cluster: Cluster) -> None:
    filled(cluster, "Ordered", 80)
    found = official.judge("pop-ordered", **where(cluster, "Ordered", "ordered"), expect=80)
    assert (found["received"], found["rising"], found["blocked"]) == (80, True, True)
    assert set(found["times"]) == {0, 1}


# --- a store that changes hands -----------------------------------------------------------------------------------


def start(kind: str, folder: Path, nameserver: str) -> Server:
    start_broker = ours.start_broker if kind == "ours" else official.start_broker
    return start_broker(folder, nameserver, config=FILE_SIZES)


def pop_all(address: str, topic: str, *, invisible_ms: int) -> dict[int, str]:
    """Everything that can be popped now: the number in its body, and its name for acknowledgements."""
    found: dict[int, str] = {}
    while True:
        fields = {
            "consumerGroup": "movers",
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": str(invisible_ms),
            "pollTime": "200",
            "bornTime": str(time.time_ns() // 1_000_000),
            "initMode": "0",
            "order": "false",
        }
        answer, body = call(address, POP_MESSAGE, fields)
        if answer["code"] != 0:
            return found
        logged = answer["extFields"]
        starts = dict(part.rsplit(" ", 1) for part in logged["startOffsetInfo"].split(";"))
        pop = [logged[name] for name in ("popTime", "invisibleTime", "reviveQid")]
        for record in decode_records(body):
            place = [starts.get(f"0 {record.queue_id}", ""), *pop, "0", "broker-a", str(record.queue_id)]
            name = record.property_map.get(POP_CK, " ".join([*place, str(record.queue_offset)]))
            found[int(record.body)] = name


def acknowledge(address: str, topic: str, name: str) -> None:
    fields = name.split()
    real = topic if fields[4] == "0" else f"%RETRY%movers_{topic}"
    header = {
        "consumerGroup": "movers",
        "topic": real,
        "queueId": fields[6],
        "offset": fields[7],
        "extraInfo": name,
    }
    answer, _ = call(address, ACK_MESSAGE, header)
    assert answer["code"] == 0, answer


class Moved(NamedTuple):
    """What came back after a store had changed hands, and what could still be popped when it had."""

    again: dict[int, str]
    rest: dict[int, str]


def move(folder: Path, first: str, second: str) -> Moved:
    """Pop everything from one broker, acknowledge a part with it and a part with the other; then wait for the rest."""
    with ExitStack() as stack:
        nameserver = stack.enter_context(ours.start_nameserver())
        broker = start(first, folder, nameserver.address)
        stack.callback(broker.kill)
        cluster = Cluster(first, nameserver, broker, folder)
        filled(cluster, "Moved", 40)
        names: dict[int, str] = {}

        def everything_came() -> bool:
            names.update(pop_all(broker.address, "Moved", invisible_ms=30_000))
            return len(names) >= 40

        wait_until(everything_came, "forty messages", 20)  # queues follow the log of the official broker
        assert sorted(names) == list(range(40))
        for number in range(0, 40, 4):
            acknowledge(broker.address, "Moved", names[number])
        assert broker.stop() in (0, 143)  # a JVM says which signal it was
        broker = start(second, folder, nameserver.address)
        stack.callback(broker.kill)
        for number in range(1, 40, 4):
            acknowledge(broker.address, "Moved", names[number])
        again: dict[int, str] = {}

        def come_back() -> bool:
            came = pop_all(broker.address, "Moved", invisible_ms=60_000)
            for name in came.values():
                acknowledge(broker.address, "Moved", name)
            again.update(came)
            return len(again) >= 20

        wait_until(come_back, "the messages that nobody acknowledged", 90)
        return Moved(again, pop_all(broker.address, "Moved", invisible_ms=60_000))


MOVES = [("ours", "official"), ("official", "ours")]


@pytest.fixture(scope="module")
def moves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future[Moved]]]:
    """Both ways at once: they wait more than they work."""
    with ThreadPoolExecutor(len(MOVES)) as pool:
        yield {way: pool.submit(move, tmp_path_factory.mktemp("-".join(way)), *way) for way in MOVES}


@pytest.mark.parametrize("way", MOVES, ids=["to RocketMQ", "from RocketMQ"])
def test_what_is_outstanding_outlives_a_change_of_brokers(
    moves: dict[tuple[str, str], Future[Moved]], way: tuple[str, str]
) -> None:
    """Acknowledged with either broker: gone. The others come back, once their time is over."""
    moved = moves[way].result()
    assert sorted(moved.again) == [number for number in range(40) if number % 4 > 1]
    assert moved.rest == {}
