"""The official proxy 5.3.3 before our nameserver and broker, with the official Python client at its other side.

The proxy reaches the broker by the POP family, transactions, heartbeats of its own and admin requests; the client
knows nothing but gRPC. The scenarios are in grpc_scenarios.py; here they are judged.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import official
from clusters import KINDS, Cluster, start_cluster
from plain_remoting import call, make_topic
from programs import Program, Server

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

MESSAGE_TYPES = {
    "normal": "NORMAL",
    "invisible": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    "retry": "NORMAL",
}
QUEUES = 2
UPDATE_GROUP = 200
RESULT_TIMEOUT_S = 150.0
LATE_MAX_MS = 4_000  # both cores are busy with everything else

SETTINGS: dict[str, object] = {
    "transactionTimeOut": 1_500,
    "transactionCheckInterval": 1_500,
    "recallMessageEnable": "true",
}
# The official broker collects the ends of transactions for three seconds before it writes them down.
OFFICIAL_ONLY: dict[str, object] = {"transactionOpBatchInterval": 100}
PROXY_SETTINGS: dict[str, object] = {"minInvisibleTimeMillsForRecv": 1_000, "rocketmqMQClientNum": 2}

Facts = dict[str, Any]


@dataclass(slots=True)
class Stage:
    """The Python client's program, which runs all scenarios through one proxy."""

    cluster: Cluster
    proxy: Server
    program: Program

    def result(self, scenario: str) -> Facts:
        """What the scenario reported; AssertionError with its output when it failed."""
        line = self.program.wait_line(rf"^(RESULT|FAILED) {scenario} ", RESULT_TIMEOUT_S)
        verdict, _, text = line.split(" ", 2)
        said = [line for line in self.program.output.splitlines() if not line.startswith("RESULT")]
        assert verdict == "RESULT", "\n".join([text, *said[-30:]])
        found: Facts = json.loads(text)
        return found


@pytest.fixture(scope="module", params=KINDS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Nameserver, broker, proxy, and the client at work."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = {**SETTINGS, **(OFFICIAL_ONLY if request.param == "official" else {})}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(start_cluster(request.param, folder, settings))
        for scenario, message_type in MESSAGE_TYPES.items():
            make_topic(
                cluster.nameserver.address,
                cluster.broker.address,
                f"grpc-{scenario}",
                queues=QUEUES,
                message_type=message_type,
            )
        make_orderly_group(cluster.broker.address, "grpc-fifo")
        proxy = stack.enter_context(official.start_proxy(folder, cluster.nameserver.address, PROXY_SETTINGS))
        script = Path(__file__).with_name("grpc_scenarios.py")
        command = [sys.executable, str(script), proxy.address, *MESSAGE_TYPES]
        program = Program("gRPC scenarios", command, env={"HOME": str(folder), "GRPC_VERBOSITY": "ERROR"})
        yield Stage(cluster, proxy, stack.enter_context(program))
        proxy.kill()  # its orderly stop takes seconds


def test_everything_sent_arrives_once_and_whole_in_each_group(stage: Stage) -> None:
    facts = stage.result("normal")
    each_once(facts["pushed"], facts["sent"])
    each_once(facts["polled"], facts["sent"])
    assert len(set(facts["ids"])) == len(facts["sent"])


def test_a_subscription_to_a_tag_gets_that_tag_alone(stage: Stage) -> None:
    facts = stage.result("normal")
    each_once(facts["tagged"], {key: total for key, total in facts["sent"].items() if number(key) % 3 == 0})


def test_what_is_not_acknowledged_comes_again_when_its_time_is_over_and_then_no_more(stage: Stage) -> None:
    facts = stage.result("invisible")
    each_once(facts["first"], facts["sent"])
    each_once(facts["second"], facts["sent"])
    assert {one["attempt"] for one in facts["first"]} == {1}
    assert {one["attempt"] for one in facts["second"]} == {2}
    # Two seconds were asked for; the first were asked before all were changed.
    assert all(one["at_ms"] - first["at_ms"] > 1_900 for one, first in pairs(facts["second"], facts["first"]))
    assert facts["third"] == []


def test_message_groups_keep_their_order_and_a_failure_holds_them_up(stage: Stage) -> None:
    facts = stage.result("fifo")
    groups: dict[str, list[int]] = defaultdict(list)
    for one in facts["deliveries"]:
        if groups[one["group"]][-1:] != [one["index"]]:  # what failed comes again, before all else
            groups[one["group"]].append(one["index"])
    assert groups == {f"group-{i}": list(range(i, 80, 4)) for i in range(4)}
    assert facts["failed"] == [0, 40]
    assert len(facts["deliveries"]) == 82
    assert all(one["sum"] == facts["sent"][one["key"]] for one in facts["deliveries"])


def test_messages_for_a_time_come_then_and_those_taken_back_never(stage: Stage) -> None:
    facts = stage.result("delay")
    recalled = {3, 7, 11, 15}
    each_once(
        facts["deliveries"],
        {key: total for key, total in facts["sent"].items() if number(key) not in recalled},
    )
    early_max_ms = 0 if stage.cluster.kind == "ours" else 1_000  # the official timer cuts to its step
    for one in facts["deliveries"]:
        late_ms = one["at_ms"] - facts["due_ms"][one["key"]]
        assert -early_max_ms <= late_ms < LATE_MAX_MS, one


def test_transactions_appear_when_they_are_committed_and_only_then(stage: Stage) -> None:
    facts = stage.result("transaction")
    committed = {key: total for key, total in facts["sent"].items() if number(key) % 4 in (0, 2)}
    if stage.cluster.kind == "ours":
        each_once(facts["deliveries"], committed)
        assert facts["checked"] == [i for i in range(24) if i % 4 in (2, 3)]
    else:  # the official broker asks again while the answer is under way, and then commits again
        assert {one["key"]: one["sum"] for one in facts["deliveries"]}.items() <= committed.items()
        assert {i % 4 for i in facts["checked"]} >= {2, 3}


def test_a_message_that_failed_comes_again(stage: Stage) -> None:
    facts = stage.result("retry")
    tries: dict[int, list[int]] = defaultdict(list)
    for one in facts["deliveries"]:
        assert one["sum"] == facts["sent"][one["key"]]
        tries[one["index"]].append(one["attempt"])
    assert tries == {i: [1, 2] if i % 4 == 0 else [1] for i in range(16)}


def make_orderly_group(broker: str, group: str) -> None:
    """A group whose messages the proxy hands out in order."""
    config = {"groupName": group, "consumeMessageOrderly": True, "retryMaxTimes": 16}
    answer, _ = call(broker, UPDATE_GROUP, body=json.dumps(config).encode())
    assert answer["code"] == 0, answer


def each_once(deliveries: list[Facts], sent: dict[str, str]) -> None:
    """Each message that was sent was delivered once, as it was sent, and the client found its checksum right."""
    assert Counter(one["key"] for one in deliveries) == dict.fromkeys(sent, 1)
    assert {one["key"]: one["sum"] for one in deliveries} == sent
    assert not any(one["corrupted"] for one in deliveries)


def pairs(later: list[Facts], earlier: list[Facts]) -> list[tuple[Facts, Facts]]:
    """The two deliveries of each message."""
    first = {one["key"]: one for one in earlier}
    return [(one, first[one["key"]]) for one in later]


def number(key: str) -> int:
    return int(key.rpartition("-")[2])
