"""Programs that are forked behave as those that are started."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nursery import Nursery, forking, processor_s
from plain_remoting import wait_until
from programs import Program

HELP = ["--help"]


def serving(folder: Path, **environ: str) -> Program:
    """A broker in the folder."""
    words = ["listenPort=0", "bindAddress=127.0.0.1", "storePathRootDir=store", "metricsExporterType=DISABLE"]
    given = [word for setting in words for word in ("--set", setting)]
    return Program("broker", given, env=environ, cwd=folder, spawn=forking("aerobee_broker"))


def test_it_prints_what_the_command_prints_and_ends_with_its_exit_code() -> None:
    script = Path(sys.executable).with_name("aerobee")
    for words in (HELP, ["no-such-command"]):
        done = subprocess.run(
            [script, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        with Program("forked", words, spawn=forking("aerobee")) as program:
            assert program.process.wait(60) == done.returncode
            wait_until(lambda said=done.stdout: program.output == said.rstrip("\n"), "the same output")  # type: ignore[misc]


def test_it_has_a_folder_an_environment_and_a_session_of_its_own(tmp_path: Path) -> None:
    with serving(tmp_path, AEROBEE_BROKER_BROKERNAME="named-by-environment") as program:
        program.wait_line(r'"broker\.ready"', 60)
        assert "named-by-environment" in program.output
        assert (tmp_path / "store" / "checkpoint").is_file()
        assert os.getsid(program.pid) == program.pid != os.getsid(0)


def test_signals_reach_it_and_its_end_is_told(tmp_path: Path) -> None:
    with serving(tmp_path) as program:
        program.wait_line(r'"broker\.ready"', 60)
        assert program.running
        assert program.stop() == 0
    assert json.loads(program.output.splitlines()[-1])["event"] == "broker.stopped"
    with serving(tmp_path) as program:
        program.wait_line(r'"broker\.ready"', 60)
        assert program.kill() == -signal.SIGKILL
        assert not program.running


def test_failpoints_are_its_own(tmp_path: Path) -> None:
    with serving(tmp_path, AEROBEE_FAILPOINTS="store.abort_written=kill") as program:
        assert program.process.wait(60) == -signal.SIGKILL
    with serving(tmp_path) as program:
        program.wait_line(r'"broker\.ready"', 60)


def test_what_it_used_of_processors_is_counted_when_it_has_ended(tmp_path: Path) -> None:
    """Programs that are nobody's children would be missing from the durations of the tests."""
    before = processor_s()
    with serving(tmp_path) as program:
        program.wait_line(r'"broker\.ready"', 60)
    assert program.process.poll() == 0
    assert before < processor_s() < before + 60


def test_it_is_waited_for_in_a_process_that_has_very_many_files_open(tmp_path: Path) -> None:
    """`select.select` takes no descriptor above 1,023: late in a run no program that was forked could be ended."""
    null = os.open(os.devnull, os.O_RDONLY)
    held = [null]
    try:
        while held[-1] < 1100:
            held.append(os.dup(null))
        with Program("forked", HELP, spawn=forking("aerobee")) as program:
            assert program.process.wait(60) == 0
        with serving(tmp_path) as program:
            program.wait_line(r'"broker\.ready"', 60)
            assert program.running
            assert program.stop() == 0
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_a_wait_has_an_end(tmp_path: Path) -> None:
    with serving(tmp_path) as program:
        program.wait_line(r'"broker\.ready"', 60)
        with pytest.raises(subprocess.TimeoutExpired):
            program.process.wait(0)


def test_the_programs_of_a_nursery_end_with_it(tmp_path: Path) -> None:
    """Or a run of the tests that was killed would leave its brokers behind."""
    own = Nursery()
    words = [
        "--set",
        "listenPort=0",
        "--set",
        f"storePathRootDir={tmp_path}",
        "--set",
        "bindAddress=127.0.0.1",
    ]
    with Program("broker", words, spawn=lambda *given: own.start("aerobee_broker", *given)) as program:
        program.wait_line(r'"broker\.ready"', 60)
        own.close()
        assert program.process.wait(60) == -signal.SIGKILL
