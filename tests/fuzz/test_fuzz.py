"""The targets by what they begin with, and what is kept beside them; test_run has the runs."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.engines import close_engines
from fuzz.run import CORPUS, KEPT_SIZE_MAX, LEDGER, _finding, corpus_of
from fuzz.target import Target, TookTooLong, patched
from fuzz.targets import TARGETS, parts

pytestmark = pytest.mark.spread

RUNS_MIN = 3_000_000
RUNS_OF_EACH_MIN = 8_000  # of those that open files or whole settings: a quarter of a minute
# Whole stores and brokers, a hundred times as long as what reads a few bytes.
FEW_RUNS = {"stores", "send_engines"}


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    yield
    close_engines()


def test_the_parts_are_three_million_runs_of_all_targets() -> None:
    assert sorted(sum(parts(), [])) == sorted(TARGETS)  # noqa: RUF017  # two short lists
    assert sum(target.runs for target in TARGETS.values()) >= RUNS_MIN
    assert {name for name, target in TARGETS.items() if target.runs < RUNS_OF_EACH_MIN} == FEW_RUNS


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept_and_what_it_begins_with_is_read_or_refused(name: str) -> None:
    inputs = [*TARGETS[name].seeds(), *corpus_of(name)]
    assert inputs
    for data in inputs[: 20 if name in FEW_RUNS else None]:
        TARGETS[name](data)


def test_a_finding_is_told_with_a_line_that_runs_it_again(tmp_path: Path) -> None:
    data = b"\x00found"
    written = tmp_path / "frames-crash-1"
    written.write_bytes(data)
    said = _finding("frames", f"Test unit written to {written}\n", 7)
    assert said.splitlines()[-1] == f"./dev fuzz frames --bytes '{base64.b64encode(data).decode()}'"
    assert "seed 7" in said


def test_an_input_that_takes_too_long_is_a_finding() -> None:
    def slow(data: bytes) -> None:
        sum(range(100_000 * len(data)))

    target = Target(slow, lambda: (), 1, time_max_s=0.001)
    target(b"")
    with pytest.raises(TookTooLong, match="20 bytes"):
        target(bytes(20))


def test_patches_lie_within_the_file() -> None:
    assert patched(b"abcdef", b"\x00\x01\x02XYx") == b"aXYdef"
    assert patched(b"abcdef", b"\x00\x05\x02XY") == b"abcdeX"
    assert patched(b"abcdef", b"\x00\x07\x01X") == b"aXcdef"
    assert patched(b"", b"\x00\x07\x01X") == b""


def test_the_corpus_is_small_and_of_targets_that_there_are() -> None:
    kept = list(CORPUS.iterdir())
    assert {path.stem for path in kept} <= TARGETS.keys()
    assert max(path.stat().st_size for path in kept) <= KEPT_SIZE_MAX


def test_the_ledger_counts_every_target() -> None:
    ledger = json.loads(LEDGER.read_text())
    assert ledger.keys() == TARGETS.keys()
    assert sum(entry["runs"] for entry in ledger.values()) > RUNS_MIN
