"""The commands of `aerobee pipeline`, and the same jobs as programs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aerobee_console.main import main
from aerobee_pytest import Server

pytestmark = pytest.mark.timeout(300)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["pipeline", *words, "-o", "json"])
    out, error = capsys.readouterr()
    return code, json.loads(out) if out else {"error": error}


def test_archive_and_restore(
    spark: SparkSession, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, target = server.new_topic("commands"), server.new_topic("commands-back")
    with server.sync_client() as mq, mq.producer() as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    folder = str(tmp_path / "a")
    code, report = run(capsys, "archive", folder, "-n", server.nameserver, "--topics", topic)
    assert (code, report["rows"], report["commits"]) == (0, 10, 1)
    code, report = run(capsys, "restore", folder, "-n", server.nameserver, "--rename", f"{topic}={target}")
    assert (code, report["topics"]) == (0, {target: 10})


def test_audit_reindex_and_lag(
    spark: SparkSession,
    server: Server,
    store_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "audit.html"
    code, report = run(capsys, "audit", "--path", str(store_folder), "--html", str(page))
    assert (code, report["messages"]) == (0, 400)
    assert "Nothing is wrong" in page.read_text()
    words = ("--path", str(store_folder), "--slots", "97", "--entries", "300")
    code, report = run(capsys, "reindex", str(tmp_path / "index"), *words)
    assert (code, report["files"]) == (0, 3)
    code, report = run(capsys, "lag", "-n", server.nameserver)
    assert code == 0
    assert "groups" in report


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("archive", "x"), "either --path or --nameserver"),
        (("audit", "--path", "/nowhere"), "there is no log in it"),
        (("archive", "x", "--path", "y", "--option", "broken"), "write it as name=value"),
        (
            ("archive", "x", "--path", "y", "--option", "brokername=b", "--option", "tpic=a"),
            "did you mean topic",
        ),
    ],
)
def test_wrong_words_are_explained(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], complaint: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, report = run(capsys, *words)
    assert code == 2
    assert complaint in report["error"]


@pytest.mark.slow
def test_a_job_is_a_program(store_folder: Path, tmp_path: Path) -> None:
    words = ["--path", str(store_folder), "--topics", "Orders", str(tmp_path / "a"), "--master", "local[1]"]
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_aerobee.jobs.archive", *words],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 134
    # Spark used to tell in seven lines how it starts. One that Java itself writes is left, where it has the module.
    said = [line for line in done.stderr.splitlines() if "Using incubator modules" not in line]
    assert said == []
