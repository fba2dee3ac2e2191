"""`aerobee cluster status` and `aerobee doctor` of a service of workers."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ours
from aerobee_console.checks.checkup import Checkup
from aerobee_console.checks.local_checks import check_settings
from aerobee_console.cluster.workers import Place, place_of
from console.support import Runner
from programs import Server, free_port


@dataclass(slots=True)
class Pair:
    """A service of two workers, and the nameserver that knows them."""

    nameserver: str
    server: Server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    port = free_port(1, 10, 11)
    with ours.start_nameserver() as nameserver:
        settings = {
            "workers": 2,
            "brokerName": "pair",
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "metricsPromExporterPort": 0,
            "namesrvAddr": nameserver.address,
            "storePathRootDir": tmp_path_factory.mktemp("pair"),
            "mappedFileSizeCommitLog": 1 << 20,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
        }
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [*ours.command(), "broker", *words]
        with Server("service", command, f"127.0.0.1:{port}", r'"workers\.ready"') as server:
            for worker in ("pair-1", "pair-2"):
                server.wait_line(f'"broker.registered","worker":"{worker}"', 90)
            yield Pair(nameserver.address, server)


@pytest.fixture
def asked(pair: Pair, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys, pair.nameserver)


def test_a_service_has_a_line_for_each_worker(asked: Runner) -> None:
    assert asked("send", "Counted", "hello").code == 0
    shown = asked("cluster", "status", "pair").lines
    assert shown[0] == "pair: 2 of 2 workers are registered"
    assert [line.split()[0] for line in shown[1:]] == ["worker", "pair-1", "pair-2"]
    rows = asked("cluster", "status", "pair", "-o", "json").json["workers"]
    assert [(row["number"], row["of"]) for row in rows] == [(1, 2), (2, 2)]
    assert sum(row["stored"] for row in rows) == 1
    one = asked("cluster", "status", "pair-2", "-o", "json").json["status"]
    assert one["aerobeeWorker"] == "2 of 2 of pair"
    nobody = asked("cluster", "status", "pai")
    assert (nobody.code, "pai" in nobody.err) == (5, True)


def test_doctor_names_topics_that_a_worker_lacks_and_workers_that_are_missing(
    asked: Runner, pair: Pair
) -> None:
    asked("topic", "create", "OnOne", "--queues", "1", "--broker", "pair-1")
    checks = asked("doctor", "-o", "json").json["checks"]
    found = {one["check"]: one for one in checks if one["check"].startswith(("workers of", "topic "))}
    assert found["workers of pair"]["text"] == "all 2 are registered"
    assert found["topic OnOne"]["status"] == "note"
    assert "pair-2 of service pair lacks it" in found["topic OnOne"]["text"]
    assert found.keys() == {"workers of pair", "topic OnOne"}
    assert asked("topic", "create", "OnOne", "--queues", "1").code == 0  # as it says
    started = json.loads(pair.server.wait_line('"worker.started","worker":"pair-2"', 1))
    os.kill(started["pid"], signal.SIGTERM)
    pair.server.wait_line('"worker.left_down","worker":"pair-2","exit_code":0', 90)
    result = asked("doctor", "-o", "json")
    assert result.code == 1
    (missing,) = [one for one in result.json["checks"] if one["check"] == "workers of pair"]
    assert missing["text"] == "1 of 2 are registered; pair-2 is missing"
    assert "OnOne" not in str(result.json)


def test_doctor_looks_at_the_ports_of_every_worker(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    port = free_port(1, 10, 11)
    file.write_text(
        f"workers=2\nlistenPort={port}\nhaListenPort={port + 1}\nnamesrvAddr=127.0.0.1:1\nmetricsExporterType=DISABLE\n"
    )
    checkup = Checkup()
    assert check_settings(checkup, file) is not None
    said = [one.text for one in checkup.checks if one.name == "port"]
    assert said == [f"listenPort {port} is free", f"listenPort {port + 10} is free"]
    file.write_text("workers=2\nlistenPort=65530\n")
    assert check_settings(checkup, file) is None
    assert "listenPort = 65540" in checkup.faults[-1].text


def test_what_is_no_place_is_none() -> None:
    assert place_of({"aerobeeWorker": "2 of 4 of a of b"}) == Place(2, 4, "a of b")
    assert place_of({"aerobeeWorker": "many"}) is None
    assert place_of({}) is None
