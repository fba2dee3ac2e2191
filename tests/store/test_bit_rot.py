"""Single flipped bits and missing file ends in every kind of file: found, never served, little lost, never a riddle.

CI spoils the first quarter of the stores; `./dev test --long` all of them.
"""

import os
from collections import Counter
from collections.abc import Callable

import pytest

from store.bit_rot import Outcomes, flip_many, images, truncate_many

pytestmark = [pytest.mark.spread, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = bool(os.environ.get("AEROBEE_LONG"))
# Each piece has stores of its own, and is a test, so that workers share them.
PIECES = 20 if LONG else 5
FLIPS, TRUNCATIONS = 500 * PIECES, 100 * PIECES
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
Record = Callable[[str, object], None]


def logged(found: Outcomes, what: str, record_property: Record) -> None:
    """How many ended how, for the sums at the end of the run."""
    ends: Counter[str] = Counter()
    for (_, end), count in found.kinds.items():
        ends[end] += count
    for end, count in ends.items():
        record_property(f"{what}: {end}", count)


@pytest.mark.parametrize("piece", range(PIECES))
def test_a_flipped_bit_is_found_and_never_served(piece: int, record_property: Record) -> None:
    found = flip_many(piece, FLIPS // PIECES)
    logged(found, "flipped bits", record_property)
    assert found.trials == found.kinds.total() == FLIPS // PIECES
    assert {kind for kind, _ in found.kinds} == found.possible
    assert found.kinds["commitlog", "message lost and named"] > FLIPS // PIECES // 50


@pytest.mark.parametrize("piece", range(PIECES))
def test_a_file_without_its_end_costs_at_most_what_was_in_it(piece: int, record_property: Record) -> None:
    found = truncate_many(piece, TRUNCATIONS // PIECES)
    logged(found, "truncated files", record_property)
    assert found.trials == found.kinds.total() == TRUNCATIONS // PIECES
    # The others are in one of its stores or two: not every piece comes upon each.
    assert {"commitlog", "consumequeue", "index", "checkpoint"} <= {kind for kind, _ in found.kinds} <= KINDS
    assert found.kinds["commitlog", "start refused"] > TRUNCATIONS // PIECES // 100


def test_every_kind_of_file_is_there_to_be_spoilt() -> None:
    assert {kind for image in images(0) for kind in image.kinds()} == KINDS
