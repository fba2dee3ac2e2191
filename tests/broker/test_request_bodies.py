"""aerobee_broker.request_bodies: lists that are worked on in slices."""

import asyncio

import pytest

from aerobee_broker.request_bodies import IN_TURN_MAX, in_slices, in_turns


@pytest.mark.parametrize(
    ("count", "turns_of_others"),
    [(0, 0), (1, 0), (IN_TURN_MAX, 0), (IN_TURN_MAX + 1, 1), (3 * IN_TURN_MAX, 2), (3 * IN_TURN_MAX + 1, 3)],
)
async def test_others_have_a_turn_between_two_slices_and_none_after_the_last(
    count: int, turns_of_others: int
) -> None:
    """A turn after the last let the writer of the settings in before the request that changed them: a failed write
    was then nobody's, and the request was answered with success."""
    loop = asyncio.get_running_loop()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop.call_soon(turn)
    runs = [run async for run in in_slices(range(count))]
    assert turns == turns_of_others
    assert [item for run in runs for item in run] == list(range(count))
    assert all(0 < len(run) <= IN_TURN_MAX for run in runs)
    turns = 0
    assert [item async for item in in_turns(range(count))] == list(range(count))
    assert turns == turns_of_others
