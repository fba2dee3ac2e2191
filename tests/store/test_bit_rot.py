"""Single flipped bits and missing file ends in every kind of file: found, never served, little lost, never a riddle."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest

from store.bit_rot import Outcomes, flip_many, truncate_many

FLIPS = 10_000
TRUNCATIONS = 2_000
PIECES = 20
KINDS = {
    "commitlog",
    "consumequeue",
    "index",
    "checkpoint",
    "topics.json",
    "topics.json.bak",
    "deletedTopics.json",
    "queueEnds.json",
}
KINDS |= {"deletedTopics.json.bak", "abort", "lock"}


def tried(trial: Callable[[int, int], Outcomes], count: int) -> Counter[tuple[str, str]]:
    """`count` trials in pieces, each on stores of its own, by two processes; RotFailure at the first that fails."""
    total: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(trial, range(PIECES), [count // PIECES] * PIECES):
            assert found.trials == count // PIECES
            total += found.kinds
    return total


def tell(capsys: pytest.CaptureFixture[str], what: str, total: Counter[tuple[str, str]]) -> None:
    ends: Counter[str] = Counter()
    for (_, end), count in total.items():
        ends[end] += count
    with capsys.disabled():
        print(
            f"\n{total.total()} {what}: " + ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_flipped_bit_is_found_and_never_served(capsys: pytest.CaptureFixture[str]) -> None:
    total = tried(flip_many, FLIPS)
    tell(capsys, "flipped bits", total)
    assert total.total() == FLIPS
    assert {kind for kind, _ in total} == KINDS
    assert total["commitlog", "message lost and named"] > FLIPS // 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_without_its_end_costs_at_most_what_was_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    total = tried(truncate_many, TRUNCATIONS)
    tell(capsys, "truncated files", total)
    assert total.total() == TRUNCATIONS
    assert {kind for kind, _ in total} == KINDS
    assert total["commitlog", "start refused"] > TRUNCATIONS // 100
