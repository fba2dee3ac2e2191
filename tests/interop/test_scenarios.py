"""What the official Java clients 5.3.3 and 4.9.8 do with a broker besides sending and reading, scenario by scenario.

All scenarios of both clients run at once against one nameserver and broker, one JVM a client (Java sources:
interop/scenarios). A scenario reports what its clients saw; the tests judge it: nothing lost, nothing altered, nothing
twice, in order where that is promised, and not before its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import official
from admin_shell import AdminShell
from aerobee import Client
from clusters import KINDS, Cluster, start_cluster
from plain_remoting import make_topic, max_offset, wait_until
from programs import Program
from traffic import LARGE_EACH, Ledger, Piece, by_tag, pieces

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

SCENARIOS = [
    "Concurrent",
    "Orderly",
    "Broadcasting",
    "LitePull",
    "Transactions",
    "Delay",
    "Retry",
    "OrderlyRetry",
    "RequestReply",
    "Sql",
    "Trace",
]
SCENARIOS_OF_5 = ["five.Timed", "five.Codecs"]
QUEUES = 4
RESULT_TIMEOUT_S = 200.0
LEVELS_MS = [0, 1_000, 2_000, 3_000]
LATE_MAX_MS = 3_000  # both cores are busy with everything else

# Time that passes in tests is time that everybody waits: short levels and short rounds of checks.
SETTINGS: dict[str, object] = {
    "messageDelayLevel": "1s 2s 3s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": 1_500,
    "transactionCheckInterval": 1_500,
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
}
# The official broker collects the ends of transactions for three seconds before it writes them down.
OFFICIAL_ONLY: dict[str, object] = {
    "transactionOpBatchInterval": 100,
    "timerPrecisionMs": 100,
}

Facts = dict[str, Any]


@dataclass(slots=True)
class Stage:
    """One client's JVM that runs all of its scenarios against one cluster."""

    client: str
    cluster: Cluster
    program: Program

    def result(self, scenario: str) -> Facts:
        """What the scenario reported; AssertionError with its complaints when it failed."""
        line = self.program.wait_line(rf"^(RESULT|FAILED) {scenario} ", RESULT_TIMEOUT_S)
        verdict, _, text = line.split(" ", 2)
        assert verdict == "RESULT", f"{text}\n{self.complaints()}"
        found: Facts = json.loads(text)
        return found

    def complaints(self) -> str:
        """The last lines of the program's output, without results, stack frames and pulls that a shutdown broke off."""
        lines = self.program.output.splitlines()
        dull = re.compile(r"^RESULT|^\t|PullMsgThread|RemotingSendRequestException")
        return "\n".join([line for line in lines if not dull.search(line)][-20:])

    def topic(self, scenario: str) -> str:
        return topic_of(self.client, scenario)


@pytest.fixture(scope="module", params=KINDS)
def stages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Stage]]:
    """Both clients at work, by name."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = {**SETTINGS, **(OFFICIAL_ONLY if request.param == "official" else {})}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(start_cluster(request.param, folder, settings))
        addresses = cluster.nameserver.address, cluster.broker.address
        for scenario in SCENARIOS + SCENARIOS_OF_5:
            for client in ("v5", "v4"):
                make_topic(*addresses, topic_of(client, scenario), queues=QUEUES)
        yield {
            "v5": start(stack, cluster, "v5", official.JAVA_PROJECT, SCENARIOS + SCENARIOS_OF_5, "JSON"),
            "v4": start(stack, cluster, "v4", official.CLIENT_4_9, SCENARIOS, "ROCKETMQ"),
        }


def topic_of(client: str, scenario: str) -> str:
    return f"{client}-{scenario.rpartition('.')[2]}"


def start(
    stack: contextlib.ExitStack,
    cluster: Cluster,
    client: str,
    project: Path,
    scenarios: list[str],
    codec: str,
) -> Stage:
    program = official.start_scenarios(
        project,
        cluster.nameserver.address,
        scenarios,
        prefix=client,
        codec=codec,
        folder=cluster.folder / client,
    )
    return Stage(client, cluster, stack.enter_context(program))


@pytest.fixture(params=["v5", "v4"])
def stage(request: pytest.FixtureRequest, stages: dict[str, Stage]) -> Stage:
    """Each client's stage in turn."""
    return stages[request.param]


@pytest.fixture
def stage5(stages: dict[str, Stage]) -> Stage:
    """The stage of the client that knows everything."""
    return stages["v5"]


def test_a_consumer_gets_what_is_sent_in_each_way_and_so_does_a_second_group(stage: Stage) -> None:
    facts = stage.result("Concurrent")
    sent, each_way = facts["sent"], 300
    assert (sent["failed"], sent.get("firstFailure"), sent["distinct"]) == (0, None, 4 * each_way)
    for reader in (facts["pushed"], facts["polled"]):
        assert by_tag(reader) == by_tag(sent)
        assert (reader["duplicates"], reader["placesReused"], reader["complete"]) == (0, 0, True)


def test_orderly_consumers_see_each_lane_in_order_each_message_once_and_one_at_a_time(stage: Stage) -> None:
    facts = stage.result("Orderly")
    each_once(facts["deliveries"], facts["sent"])
    lanes: dict[int, list[int]] = defaultdict(list)
    for one in facts["deliveries"]:
        lanes[one["index"] % facts["lanes"]].append(one["index"])
    assert lanes == {lane: sorted(indexes) for lane, indexes in lanes.items()}
    assert len(facts["refused"]) == 10  # each of them came again, in its place
    assert facts["overlaps"] == 0
    assert sorted(len(queues) for queues in facts["queuesOf"].values()) == [2, 2]


def test_each_broadcasting_consumer_gets_everything_and_goes_on_where_it_stopped(stage: Stage) -> None:
    facts = stage.result("Broadcasting")
    each_once(facts["always"], facts["before"] | facts["after"])
    each_once(facts["early"], facts["before"])
    each_once(facts["late"], facts["after"])


def test_a_lite_pull_consumer_hands_over_what_it_has_not_polled(stage: Stage) -> None:
    facts = stage.result("LitePull")
    assert (len(facts["first"]), len(facts["second"])) == (100, 100)
    each_once(facts["first"] + facts["second"], facts["sent"])


def test_an_assigned_lite_pull_consumer_seeks_pauses_and_asks_for_offsets(stage: Stage) -> None:
    facts = stage.result("LitePull")
    whole, tail = facts["queues"]
    assert places(facts["assigned"]) == {whole: list(range(50)), tail: list(range(50))}
    assert places(facts["sought"]) == {whole: list(range(50)), tail: list(range(20, 50))}
    assert places(facts["paused"]) == {whole: list(range(50, 55)), tail: list(range(50, 55))}
    assert (facts["offsetOfBegin"], facts["offsetOfEnd"]) == (0, 55)
    assert places(facts["fromEnd"]) == {tail: list(range(55, 60))}
    for one in facts["sought"]:
        assert one["sum"] == facts["sent"][one["key"]]


def test_transactions_appear_when_they_are_committed_and_only_then(stage: Stage) -> None:
    facts = transactions(stage)
    committed = {key: total for key, total in facts["sent"].items() if kind(key, facts) in (0, 2, 4)}
    each_once(facts["deliveries"], committed)
    total = sum(
        max_offset(stage.cluster.broker.address, stage.topic("Transactions"), q) for q in range(QUEUES)
    )
    assert total == facts["total"]
    states = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW", "UNKNOW", "UNKNOW"]
    assert facts["states"] == {key: f"SEND_OK {states[kind(key, facts)]}" for key in facts["sent"]}


def test_only_open_transactions_are_checked_and_with_the_message_that_was_sent(stage: Stage) -> None:
    facts = transactions(stage)
    times = {key: len(facts["checks"].get(key, ())) for key in facts["sent"]}
    expected = {key: [0, 0, 1, 1, 2][kind(key, facts)] for key in facts["sent"]}
    too_few = {key: (times[key], count) for key, count in expected.items() if times[key] < count}
    assert not too_few
    # A machine that stands still for a round is asked again: what counts is what the broker had been told.
    too_late = {
        key: (copies, told_by(key, facts))
        for key, copies in facts["checks"].items()
        if any(copy > told_by(key, facts) for copy in copies)
    }
    if stage.cluster.kind == "ours":  # the official one has several threads for what comes on one connection
        assert not too_late
    assert facts["checkedSums"] == {key: facts["sent"][key] for key, count in times.items() if count}


def told_by(key: str, facts: Facts) -> int:
    """The number in the queue of half messages by which the broker has been told how a transaction ends: that of what
    was sent next, behind the answer."""
    behind, (first_mark, second_mark) = facts["places"][number(key) + 1], facts["places"][-2:]
    until: int = [behind, behind, first_mark, first_mark, second_mark][kind(key, facts)]
    return until


def test_delay_levels_are_kept(stage: Stage) -> None:
    facts = stage.result("Delay")
    each_once(facts["deliveries"], facts["sent"])
    for one in facts["deliveries"]:
        due = facts["sentMs"][one["key"]] + LEVELS_MS[one["index"] % facts["levels"]]
        assert 0 <= one["atMs"] - due < LATE_MAX_MS, one


def test_a_failed_message_comes_again_and_becomes_a_dead_letter_at_its_limit(stage: Stage) -> None:
    facts = stage.result("Retry")
    tries: dict[str, list[int]] = defaultdict(list)
    for one in facts["deliveries"]:
        assert (one["sum"], one["topic"]) == (facts["sent"][one["key"]], stage.topic("Retry"))
        tries[one["key"]].append(one["reconsumeTimes"])
    expected = {0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [0]}
    assert tries == {key: expected[kind(key, facts)] for key in facts["sent"]}
    dead = {key: total for key, total in facts["sent"].items() if kind(key, facts) in (2, 3)}
    each_once(facts["dead"], dead)


def test_a_dead_letter_says_where_it_came_from(stage: Stage) -> None:
    facts = stage.result("Retry")
    first = {one["key"]: one for one in facts["deliveries"] if one["reconsumeTimes"] == 0}
    for one in facts["dead"]:
        properties = one["properties"]
        assert properties["RETRY_TOPIC"] == stage.topic("Retry")
        assert len(properties["ORIGIN_MESSAGE_ID"]) == 32
        assert properties["UNIQ_KEY"] == first[one["key"]]["properties"]["UNIQ_KEY"]
        assert one["reconsumeTimes"] == (3 if kind(one["key"], facts) == 2 else 1)
        assert one["bornMs"] == first[one["key"]]["bornMs"]


def test_an_orderly_consumer_gives_up_at_its_limit_and_goes_on(stage: Stage) -> None:
    facts = stage.result("OrderlyRetry")
    seen = [(one["index"], one["reconsumeTimes"]) for one in facts["deliveries"]]
    bad = [1, 6, 11, 16]
    expected = [(i, times) for i in range(20) for times in (range(3) if i in bad else [0])]
    assert seen == expected
    each_once(facts["dead"], {key: total for key, total in facts["sent"].items() if number(key) in bad})


def test_each_request_gets_its_own_reply_and_an_unanswered_one_times_out(stage: Stage) -> None:
    facts = stage.result("RequestReply")
    asked = [f"async-{i}" for i in range(20)]
    if stage.client == "v4":
        asked += [f"sync-{i}" for i in range(20)]
    assert facts["replies"] == {name: f"reply to question {name} Grüße 消息" for name in asked}
    assert facts["failures"] == dict.fromkeys(["async-20", "async-21", "async-22"], "RequestTimeoutException")


def test_sql_filters_choose_by_properties(stage: Stage) -> None:
    facts = stage.result("Sql")
    colors = ["red", "green", "blue"]
    color = {i: None if i % 5 == 0 else colors[i % 3] for i in range(201)}
    pushed = [i for i in range(10, 100) if color[i] in ("red", "blue") and i % 3]
    polled = [i for i in range(200) if (color[i] is None and i >= 50) or (color[i] == "green" and i > 150.5)]
    chosen(facts["pushed"], [*pushed, 200], facts["sent"])
    chosen(facts["polled"], [*polled, 200], facts["sent"])


def test_a_consumer_whose_filter_is_no_sql_is_told_so_at_its_start(stage: Stage) -> None:
    assert "CODE: 23" in stage.result("Sql")["refusal"]


def test_what_clients_trace_is_read_back_by_message_id(stage: Stage, tmp_path: Path) -> None:
    facts = stage.result("Trace")
    each_once(facts["deliveries"], facts["sent"])
    message_id = next(iter(facts["ids"].values()))
    said: list[list[str]] = []

    with AdminShell(stage.cluster.nameserver.address, tmp_path) as shell:

        def both_are_there() -> bool:
            text = shell.run("queryMsgTraceById", "-i", message_id)
            said[:] = [line.split() for line in text.splitlines() if line.startswith(("Pub ", "Sub "))]
            return len(said) == 2

        try:
            wait_until(both_are_there, f"producer's and consumer's trace of {message_id}", timeout_s=30)
        except AssertionError as late:
            raise AssertionError(f"{late}; found {said}") from None
    topic = stage.topic("Trace")
    assert [(line[0], line[1], line[-1]) for line in said] == [
        ("Pub", f"{topic}-producer", "success"),
        ("Sub", topic, "success"),
    ]


def test_messages_with_a_time_of_their_own_come_then_and_recalled_ones_never(stage5: Stage) -> None:
    facts = stage5.result("five.Timed")
    due = {key: total for key, total in facts["sent"].items() if number(key) == 40 or number(key) % 4 != 3}
    each_once(facts["deliveries"], due)
    assert len(facts["recalled"]) == 10
    early_max_ms = 0 if stage5.cluster.kind == "ours" else 100  # the official timer cuts to its step
    for one in facts["deliveries"]:
        late_ms = one["atMs"] - facts["dueMs"][one["key"]]
        assert -early_max_ms <= late_ms < LATE_MAX_MS, one


def test_bodies_come_back_whole_from_each_compression_and_from_batches_of_the_client(stage5: Stage) -> None:
    facts = stage5.result("five.Codecs")
    sent: dict[str, str] = {}
    bits: dict[str, int] = {}
    for name, sums in facts["compressed"].items():
        sent |= sums
        bits |= dict.fromkeys(sums, {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}[name])
    batched = [{**one, "key": str(one["index"])} for one in facts["deliveries"] if one["key"] == "batched"]
    compressed = [one for one in facts["deliveries"] if one["key"] != "batched"]
    each_once(batched, facts["batched"])
    each_once(compressed, sent)
    assert {one["key"]: one["sysFlag"] & 0x700 for one in compressed} == bits


async def test_our_client_reads_each_compression_of_the_official_one(stage5: Stage) -> None:
    facts = stage5.result("five.Codecs")
    topic = stage5.topic("five.Codecs")
    read: dict[str, str] = {}
    async with Client(stage5.cluster.nameserver.address) as client:
        async for message in client.reader(topic, end="now"):
            key, properties = " ".join(message.keys), dict(message.properties)
            ledger = Ledger(topic)
            ledger.add(Piece(message.tags or "", key, properties, message.flag, message.body))
            [(_, total)] = ledger.totals.values()
            read[properties["index"] if key == "batched" else key] = str(total)
    sent = dict(facts["batched"])
    for sums in facts["compressed"].values():
        sent |= sums
    assert read == sent


async def test_the_official_client_reads_each_compression_of_ours(stage5: Stage) -> None:
    addresses, topic = (stage5.cluster.nameserver.address, stage5.cluster.broker.address), "PythonCodecs"
    make_topic(*addresses, topic)
    sent = Ledger(topic)
    async with Client(addresses[0]) as client:
        for codec in ("zlib", "lz4", "zstd"):
            async with client.producer(compression=codec, batch_count=1) as producer:
                for piece in pieces(f"python-{codec}", LARGE_EACH + 1):
                    sent.add(piece)
                    await producer.send(
                        topic,
                        piece.body,
                        tags=piece.tag,
                        keys=piece.key,
                        properties=piece.properties,
                        flag=piece.flag,
                    )
    args: dict[str, Any] = {
        "namesrv": addresses[0],
        "topic": topic,
        "group": "python-codecs",
        "expect": len(sent.keys),
    }
    received = await asyncio.to_thread(official.judge, "lite", **args)
    assert by_tag(received) == sent.totals
    assert (received["duplicates"], received["placesReused"]) == (0, 0)


def each_once(deliveries: list[Facts], sent: dict[str, str]) -> None:
    """Each message that was sent was delivered once, as it was sent."""
    assert Counter(one["key"] for one in deliveries) == dict.fromkeys(sent, 1)
    assert {one["key"]: one["sum"] for one in deliveries} == sent


def chosen(deliveries: list[Facts], indexes: list[int], sent: dict[str, str]) -> None:
    """Exactly the messages of these indexes were delivered, each once and as it was sent."""
    each_once(deliveries, {key: total for key, total in sent.items() if number(key) in indexes})


def transactions(stage: Stage) -> Facts:
    """The report of Transactions; `total` is how many messages its topic may hold.

    The official broker may ask for a transaction that has just been committed, and then commits it again: such
    messages are taken out.
    """
    facts = stage.result("Transactions")
    facts["total"] = len(facts["deliveries"])
    if stage.cluster.kind == "official":
        times = Counter(one["key"] for one in facts["deliveries"])
        asked = {key for key in facts["checks"] if kind(key, facts) < 2}
        again = asked | {key for key, count in times.items() if count > 1}
        facts["deliveries"] = [one for one in facts["deliveries"] if one["key"] not in again]
        for name in ("sent", "states", "checks", "checkedSums"):
            facts[name] = {key: value for key, value in facts[name].items() if key not in again}
    return facts


def places(deliveries: list[Facts]) -> dict[int, list[int]]:
    """Queue offsets by queue id, in the order of delivery."""
    found: dict[int, list[int]] = defaultdict(list)
    for one in deliveries:
        found[one["queueId"]].append(one["queueOffset"])
    return found


def number(key: str) -> int:
    return int(key.rpartition("-")[2])


def kind(key: str, facts: Facts) -> int:
    """Which of its scenario's kinds a message is."""
    kinds: int = facts["kinds"]
    return number(key) % kinds
