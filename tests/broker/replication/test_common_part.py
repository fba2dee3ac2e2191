"""Where two logs part is found exactly, in few rounds, looking at little."""

from random import Random

import pytest

from aerobee_broker.replication.common_part import FAN, Borders, Same, common_end_by_bytes
from broker.replication.histories import HistoryLog


def found(own: HistoryLog, other: HistoryLog, window: int) -> tuple[int, int, int]:
    """Where they part, in how many rounds, and how many bytes were looked at."""
    begin, end = max(own.begin, other.begin), min(own.end, other.end)
    search = common_end_by_bytes(begin, end, window)
    rounds = looked = 0
    asked = next(search)
    while True:
        try:
            if isinstance(asked, Borders):
                asked = search.send(own.borders_in(asked.begin, asked.end))
                continue
            assert isinstance(asked, Same)
            assert len(asked.ranges) <= max(2 * FAN, 40)
            rounds += 1
            looked += sum(b - a for a, b in asked.ranges)
            mine, theirs = own.digests(asked.ranges), other.digests(asked.ranges)
            asked = search.send([a == b for a, b in zip(mine, theirs, strict=True)])
        except StopIteration as done:
            return done.value, rounds, looked


@pytest.mark.parametrize("window", [64, 1000, 1 << 16])
@pytest.mark.parametrize("seed", range(20))
def test_the_last_border_of_what_two_logs_have_in_common(seed: int, window: int) -> None:
    random = Random(seed)
    own = HistoryLog(random.choice((0, 4096)))
    own.grow(random, random.choice((0, 1, 2, 30, 300)))
    other = own.copy(random.randrange(len(own.borders)))
    own.grow(random, random.choice((0, 1, 5, 100)))
    other.grow(random, random.choice((0, 1, 5, 100)))
    if random.random() < 0.3:
        other.clean(random.choice([at for at in other.borders if at in own.borders]))
    assert found(own, other, window)[0] == own.common_end(other)


def test_a_border_of_the_other_log_alone_is_none() -> None:
    """What is the same ends inside of a message of this log: the message does not belong to it."""
    own, other = HistoryLog(), HistoryLog()
    own.grow(Random(1), 20)
    other.data, other.borders = bytearray(own.data[: own.borders[15] + 10]), [0]
    other.data += b"x" * 500
    assert found(own, other, 100)[0] == own.borders[15]


def test_a_large_log_is_looked_at_in_few_places() -> None:
    random = Random(2)
    own = HistoryLog()
    own.grow(random, 20_000, 1000)
    for at in (10, 5_000, 19_990):
        other = own.copy(at)
        other.grow(random, 3_000)
        place, rounds, looked = found(own, other, 4096)
        assert place == own.borders[at]
        assert rounds <= 8
        assert looked < 1 << 20


def test_a_damaged_place_in_an_old_part_is_not_where_they_part() -> None:
    random = Random(3)
    own = HistoryLog()
    own.grow(random, 5_000)
    other = own.copy(4_900)
    other.grow(random, 50)
    own.data[1000] ^= 1
    assert found(own, other, 1024)[0] == own.borders[4_900]
