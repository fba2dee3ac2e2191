"""`aerobee pipeline`, as far as it goes without Spark."""

from pathlib import Path

import pytest

from aerobee_console.jobs import pipelines
from console.support import Runner


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(name: str, master: str) -> None:
        raise AssertionError(f"Spark was started for {name} on {master}")

    monkeypatch.setattr(pipelines, "_spark", started)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "--path", "{folder}/none"], "{folder}/none"),
        (["archive", "{folder}/new", "--path", "{folder}"], "there is no log in it"),
        (["reindex", "{folder}/new", "--path", "{folder}/none"], "{folder}/none"),
        (["restore", "{folder}/none"], "there is no archive in {folder}/none"),
        (["audit", "--path", "{folder}", "--topics", "t"], "--topics goes with --nameserver"),
        (["restore", "{folder}/none", "--rename", "a"], "--rename a: write it as name=value"),
    ],
)
def test_what_is_to_be_read_is_looked_for_before_spark_starts(
    words: list[str], said: str, tmp_path: Path, aerobee: Runner
) -> None:
    """The right message came after 25 seconds, behind seven lines of Spark."""
    refused = aerobee("pipeline", *(word.format(folder=tmp_path) for word in words))
    assert (refused.code, refused.out) == (2, "")
    assert said.format(folder=tmp_path) in refused.err


def test_a_nameserver_that_does_not_answer_is_told_before_spark_starts(aerobee: Runner) -> None:
    for words in (["lag"], ["audit"], ["archive", "new", "--topics", "t"]):
        refused = aerobee("pipeline", *words, "-n", "127.0.0.1:1")
        assert refused.code == 3
        assert "no nameserver answered" in refused.err
