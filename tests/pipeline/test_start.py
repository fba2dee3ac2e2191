"""Sessions of programs that run in an environment of their own, while the PATH leads to another Python."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyspark_aerobee
from pyspark_aerobee.start import PythonMismatch, check_python, use_python

FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": FAST_JVM,
    "spark.log.level": "ERROR",
}
OURS = f"""
import sys
import pyspark_aerobee
spark = pyspark_aerobee.session("test", master="local[1]", settings={SETTINGS!r})
print("RESULT", spark.read.format("aerobee").load(sys.argv[1]).count())
spark.stop()
"""
BY_HAND = f"""
import sys
from pyspark.sql import SparkSession
import pyspark_aerobee
from pyspark_aerobee.java import use_java
use_java()
builder = SparkSession.builder.master("local[1]")
for key, value in {SETTINGS!r}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
try:
    pyspark_aerobee.register(spark)
except pyspark_aerobee.start.PythonMismatch as told:
    print("RESULT", told)
spark.stop()
"""


def bare_python(folder: Path) -> Path:
    """A folder with a `python3` that has no packages."""
    folder.mkdir(exist_ok=True)
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o755)
    return folder


def run(script: str, folder: Path, *words: str) -> str:
    """What a program prints that runs with this Python while the PATH leads to a bare one."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))
    }
    environment["PATH"] = f"{bare_python(folder / 'bin')}:{environment['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True, text=True, timeout=280, check=False, env=environment, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_session_of_the_package_finds_the_format(
    spark: object, store_folder: Path, tmp_path: Path
) -> None:
    """Spark asked the `python3` of the PATH: DATA_SOURCE_NOT_FOUND, in a program that had just imported the package."""
    assert "RESULT 400" in run(OURS, tmp_path, str(store_folder))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_by_hand_is_told_what_is_wrong(spark: object, tmp_path: Path) -> None:
    logged = run(BY_HAND, tmp_path)
    assert "RESULT Spark starts" in logged
    assert str(tmp_path / "bin" / "python3") in logged
    assert f"PYSPARK_PYTHON={sys.executable}" in logged
    assert "No module named" in logged


def session_that_starts(python: str, *, master: str = "local[2]") -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python, master=master))


def test_the_python_that_runs_this_is_taken(tmp_path: Path) -> None:
    check_python(session_that_starts(sys.executable))


def test_another_python_with_the_package_is_taken(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    check_python(session_that_starts(str(program)))


def test_executors_elsewhere_have_a_python_of_their_own() -> None:
    check_python(session_that_starts("no-such-python", master="spark://other:7077"))


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(PythonMismatch, match=r"no-such-python.*no such program on the PATH"):
        check_python(session_that_starts("no-such-python"))


def test_a_choice_that_was_made_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert use_python() == "/opt/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert pyspark_aerobee.use_python() == sys.executable == os.environ["PYSPARK_PYTHON"]
