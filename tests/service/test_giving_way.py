"""Long work in a thread, in pieces."""

import time

import pytest

from aerobee_service.giving_way import (
    LATE_S,
    PIECE_S,
    REST_MAX_S,
    REST_S,
    SPARING_MAX_S,
    SPARING_TIMES,
    GivingWay,
    Sparing,
)


class Clock:
    """Time that passes in sleeps alone, and `late_s` more in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.late_s = 0.0
        self.rests: list[float] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds + self.late_s

    def work(self, give_way: GivingWay, pieces: int) -> None:
        for _ in range(pieces):
            self.now += PIECE_S
            give_way()


def test_it_rests_after_each_piece_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    give_way = GivingWay()
    for _ in range(4):
        give_way()
        clock.now += PIECE_S / 2
    assert clock.rests == [REST_S]
    clock.now += PIECE_S
    give_way()
    give_way()
    assert clock.rests == [REST_S, REST_S]


def test_its_rests_grow_while_it_comes_back_late_and_shrink_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    give_way = GivingWay()
    clock.late_s = 2 * LATE_S
    clock.work(give_way, 8)
    busy = clock.rests
    assert busy[0] == REST_S
    assert busy == sorted(busy)
    assert busy[-1] == REST_MAX_S
    clock.rests, clock.late_s = [], LATE_S / 2  # what the system takes anyway
    clock.work(give_way, 8)
    assert clock.rests == sorted(clock.rests, reverse=True)
    assert clock.rests[-1] == REST_S


def test_who_spares_others_rests_some_times_as_long_as_each_part_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    clock.late_s = 0.25
    rest = Sparing()
    for took_s in (0.0, 0.0005, 0.001, 1.0):
        clock.now += took_s
        rest()
    assert clock.rests == pytest.approx([0.0, 0.0005 * SPARING_TIMES, 0.001 * SPARING_TIMES, SPARING_MAX_S])
    assert rest.rested_s == pytest.approx(sum(clock.rests) + 4 * 0.25)
    rest.is_hurried = True
    rest()
    assert len(clock.rests) == 4
