"""The nameserver as a program."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_nameserver.main import main
from programs import Program

PROGRAM = [sys.executable, "-m", "aerobee_nameserver"]


def started(tmp_path: Path, *arguments: str) -> Program:
    common = ["--listen", "127.0.0.1:0", "--set", f"kvConfigPath={tmp_path / 'kv.json'}"]
    return Program("nameserver", [*PROGRAM, *common, *arguments])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_orderly_stop(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as program:
        ready = json.loads(program.wait_line("nameserver.ready", 20))
        assert ready["address"].startswith("127.0.0.1:")
        program.process.send_signal(number)
        program.wait_line("nameserver.stopped", 10)
        assert program.process.wait(10) == 0


def test_a_taken_port_ends_the_program_with_one_line_that_names_it(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        address = json.loads(first.wait_line("nameserver.ready", 20))["address"]
        second = subprocess.run(
            [*PROGRAM, "--listen", address, "--set", f"kvConfigPath={tmp_path / 'kv.json'}"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert second.returncode == 1
    (line,) = [json.loads(line) for line in second.stdout.splitlines() if "start_failed" in line]
    assert line["reason"].startswith(f"{address} is taken by ")
    assert line["way_out"] == "stop what listens there, or set listenPort to another port"


def test_a_missing_certificate_ends_the_program_with_one_line(tmp_path: Path) -> None:
    with started(
        tmp_path,
        *("--set", "tlsServerMode=enforcing"),
        *("--set", "tlsServerCertPath=/nowhere/cert.pem"),
        *("--set", "tlsServerKeyPath=/nowhere/key.pem"),
    ) as program:
        line = program.wait_line("nameserver.start_failed", 20)
        assert "No such file" in json.loads(line)["reason"]
        assert program.process.wait(10) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "listenPrt=1"], "did you mean listenPort?"),
        (["--set", "listenPort"], "write key=value"),
        (["--listen", "9876"], "write HOST:PORT"),
        (["--listen", "127.0.0.1:x"], "an integer from 0 to 65535"),
        (["-c", "/nowhere/namesrv.conf"], "cannot be read"),
    ],
)
def test_wrong_arguments_are_explained(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
