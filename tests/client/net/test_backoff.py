from itertools import islice

from aerobee.net.backoff import pauses


def test_pauses_double_up_to_their_bound() -> None:
    assert list(islice(pauses(1, 5, random=lambda: 1.0), 5)) == [1, 2, 4, 5, 5]


def test_in_the_first_second_no_pause_is_long() -> None:
    """A set had its next master after 0.2 s, and clients came back after 0.6 or 1.2."""
    found = list(islice(pauses(0.05, 1.0, random=lambda: 1.0), 10))
    assert found == [0.05, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4, 0.8, 1.0]


def test_pauses_are_scattered_between_half_and_all() -> None:
    assert list(islice(pauses(2, 8, random=lambda: 0.0), 4)) == [1, 2, 4, 4]
    drawn = {next(pauses(1, 1)) for _ in range(50)}
    assert len(drawn) > 10
    assert all(0.5 <= pause_s <= 1 for pause_s in drawn)
