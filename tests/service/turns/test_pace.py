"""A share of the time for one kind of work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_service.turns.pace import Pace


def test_there_is_a_credit_at_first_and_a_rest_after_it() -> None:
    pace = Pace(share=0.25, credit_max_s=0.01)
    assert pace.worked(0.004, now=100.0) == 0
    assert pace.worked(0.006, now=100.0) == 0
    assert pace.worked(0.002, now=100.0) == pytest.approx(0.008)


def test_who_rested_as_told_rests_for_its_own_work_alone() -> None:
    pace = Pace(share=0.25, credit_max_s=0.0)
    assert pace.worked(0.002, now=1.0) == pytest.approx(0.008)
    assert pace.worked(0.001, now=1.008) == pytest.approx(0.004)


def test_a_credit_comes_back_and_no_more_than_that() -> None:
    pace = Pace(share=0.5, credit_max_s=1.0)
    assert pace.worked(3.0, now=10.0) == pytest.approx(4.0)
    assert pace.worked(0.9, now=1000.0) == 0
    assert pace.worked(0.2, now=1000.0) == pytest.approx(0.2)


@given(st.lists(st.floats(0.0001, 0.1), min_size=50, max_size=200))
def test_whoever_obeys_has_its_share_and_its_credit(pieces: list[float]) -> None:
    pace, now = Pace(share=0.2, credit_max_s=0.5), 0.0
    for took_s in pieces:
        now += took_s
        now += pace.worked(took_s, now)
    assert sum(pieces) <= 0.5 + 0.2 * now + 1e-6
