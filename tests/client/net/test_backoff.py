from itertools import islice

from aerobee.net.backoff import pauses


def test_pauses_double_up_to_their_bound() -> None:
    assert list(islice(pauses(1, 5, random=lambda: 1.0), 5)) == [1, 2, 4, 5, 5]


def test_pauses_are_scattered_between_half_and_all() -> None:
    assert list(islice(pauses(2, 8, random=lambda: 0.0), 4)) == [1, 2, 4, 4]
    drawn = {next(pauses(1, 1)) for _ in range(50)}
    assert len(drawn) > 10
    assert all(0.5 <= pause_s <= 1 for pause_s in drawn)
