"""Long work in a thread, in pieces."""

import time

import pytest

from aerobee_service.giving_way import PIECE_S, REST_S, GivingWay


def test_it_rests_after_each_piece_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    rests: list[float] = []

    def slept(seconds: float) -> None:
        nonlocal now
        rests.append(seconds)
        now += 0.1

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", slept)
    give_way = GivingWay()
    for _ in range(4):
        give_way()
        now += PIECE_S / 2
    assert rests == [REST_S]
    now += PIECE_S
    give_way()
    give_way()
    assert rests == [REST_S, REST_S]
