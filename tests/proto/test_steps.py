"""Work in steps, done at once."""

from collections.abc import Generator

import pytest

from aerobee_proto.steps import CallSteps, finished, finished_here


def counted(*, to: int, breaks: bool = False) -> Generator[None, None, int]:
    for _ in range(to):
        yield
    if breaks:
        raise ValueError("broken")
    return to


@pytest.mark.parametrize("to", [0, 1, 5])
def test_what_the_steps_come_to_is_returned(to: int) -> None:
    assert finished(counted(to=to)) == to


def test_what_breaks_a_step_is_raised() -> None:
    with pytest.raises(ValueError, match="broken"):
        finished(counted(to=3, breaks=True))


def test_calls_that_steps_give_are_made_and_what_they_raise_comes_where_they_were_given() -> None:
    def fail() -> object:
        raise ValueError("no")

    def steps() -> CallSteps[list[object]]:
        yield None
        made = yield lambda: 1
        assert made is not None
        found = [made()]
        failed = yield fail
        assert failed is not None
        with pytest.raises(ValueError, match="no"):
            failed()
        yield None
        return found

    assert finished_here(steps()) == [1]
