"""Work in steps, done at once."""

from collections.abc import Generator

import pytest

from aerobee_proto.steps import finished


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
