"""Whether to look for the next read or to sleep: by which of the two it was there earlier."""

from collections.abc import Callable

import pytest

from aerobee_service.turns.wakefulness import ROUND, TRIED, Wakefulness

LIMIT_S = 1 / 8192
WORK_S = 1 / 1024


def reads(
    wakefulness: Wakefulness, count: int, gap_s: Callable[[bool], float], began: float = 1.0
) -> list[bool]:
    """Before each read: whether it was looked for. `gap_s` says when it comes, by that."""
    now, looked = began, []
    for _ in range(count):
        looks = wakefulness.looks(now)
        looked.append(looks)
        gap = gap_s(looks)
        assert wakefulness.looks(now + gap) is (looks and gap < LIMIT_S)  # not beyond the limit
        now += gap
        wakefulness.served(now, now + WORK_S)
        now += WORK_S
    return looked


TRIAL = [False] * TRIED + [True] * TRIED


@pytest.mark.parametrize(
    ("asleep_s", "awake_s", "pays"),
    [
        (LIMIT_S / 2, LIMIT_S / 4, True),  # an idle machine
        (LIMIT_S / 2, LIMIT_S / 2, False),  # its processors are awake anyway
        (LIMIT_S / 4, LIMIT_S, False),  # who asks needs this processor
        (0.0, 0.0, False),  # many ask
        (10.0, 10.0, False),  # hardly anybody does
        (2 * LIMIT_S, LIMIT_S / 2, True),
    ],
)
def test_what_was_better_is_done_for_the_rest_of_a_round(asleep_s: float, awake_s: float, pays: bool) -> None:
    wakefulness = Wakefulness(LIMIT_S)
    looked = reads(wakefulness, 2 * ROUND, lambda looks: awake_s if looks else asleep_s)
    round_of = TRIAL + [pays] * (ROUND - 2 * TRIED)
    assert looked == 2 * round_of


def test_some_that_come_late_change_nothing() -> None:
    numbers = iter(range(ROUND))
    looked = reads(
        Wakefulness(LIMIT_S),
        ROUND,
        lambda looks: 1.0 if next(numbers) % 4 == 1 else LIMIT_S / (4 if looks else 2),
    )
    assert looked[2 * TRIED :] == [True] * (ROUND - 2 * TRIED)


def test_each_round_finds_out_again() -> None:
    wakefulness = Wakefulness(LIMIT_S)
    assert reads(wakefulness, ROUND, lambda looks: LIMIT_S / (4 if looks else 2))[-1]
    assert not reads(wakefulness, ROUND, lambda looks: LIMIT_S / 2, began=100.0)[-1]


def test_who_always_sleeps_never_looks() -> None:
    assert not any(reads(Wakefulness(0.0), ROUND, lambda _: 0.0))
