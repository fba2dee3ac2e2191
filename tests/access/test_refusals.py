"""Who guesses has to wait."""

from aerobee_access.refusals import ADDRESSES_MAX, DELAY_MAX_S, FORGOTTEN_S, FREE, REASONS, STEP_S, Refusals


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_few_are_answered_at_once_and_the_others_stand_in_line() -> None:
    refusals = Refusals(Clock())
    assert [refusals.refused("a", "signature") for _ in range(FREE)] == [0.0] * FREE
    waits = [refusals.refused("a", "signature") for _ in range(5)]
    assert [round(wait, 6) for wait in waits] == [round(STEP_S * (at + 1), 6) for at in range(5)]
    assert refusals.refused("b", "signature") == 0.0
    assert refusals.total == FREE + 6


def test_nobody_waits_longer_than_the_bound() -> None:
    refusals = Refusals(Clock())
    assert max(refusals.refused("a", "signature") for _ in range(10_000)) <= DELAY_MAX_S


def test_a_pause_makes_it_forgotten() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for _ in range(FREE + 1):
        refusals.refused("a", "signature")
    clock.now_s += FORGOTTEN_S + 1
    assert refusals.refused("a", "signature") == 0.0


def test_addresses_are_bounded_and_the_quietest_goes() -> None:
    refusals = Refusals(Clock())
    for number in range(ADDRESSES_MAX):
        refusals.refused(str(number), "signature")
    for _ in range(FREE):
        refusals.refused("0", "signature")
    refusals.refused("one more", "signature")
    assert len(refusals) == ADDRESSES_MAX
    assert refusals.refused("0", "signature") > 0
    assert refusals.refused("1", "signature") == 0.0


def test_reasons_and_delays_are_counted() -> None:
    refusals = Refusals(Clock())
    assert refusals.by_reason == dict.fromkeys(REASONS, 0)
    refusals.count("rights")
    for _ in range(FREE + 2):
        refusals.refused("a", "unknown")
    assert (refusals.by_reason["rights"], refusals.by_reason["unknown"]) == (1, FREE + 2)
    assert (refusals.total, refusals.delayed) == (FREE + 3, 2)


def test_all_addresses_of_an_ipv6_network_are_one() -> None:
    refusals = Refusals(lambda: 0.0)
    delays = [refusals.refused(f"2001:db8::{number:x}", "signature") for number in range(FREE + 1)]
    assert delays == [0.0] * FREE + [STEP_S]
    assert refusals.refused("2001:db8:0:1::1", "signature") == 0.0
    assert len(refusals) == 2
