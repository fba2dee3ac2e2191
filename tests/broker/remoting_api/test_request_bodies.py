"""aerobee_broker.remoting_api.request_bodies: lists that are worked on in runs."""

import asyncio

import pytest

from aerobee_broker.remoting_api.request_bodies import RUN_MAX, in_runs


@pytest.mark.parametrize(
    ("count", "turns_of_others"),
    [(0, 0), (1, 0), (RUN_MAX, 0), (RUN_MAX + 1, 1), (3 * RUN_MAX, 2), (3 * RUN_MAX + 1, 3)],
)
async def test_others_have_a_turn_between_two_runs_and_none_after_the_last(
    count: int, turns_of_others: int
) -> None:
    """A turn after the last let the writer of the settings in before the request that changed them. When its write
    failed, that was logged, and the request wrote once more and was answered with success, which was true by then; but
    it never heard of the failure of its own change."""
    loop = asyncio.get_running_loop()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop.call_soon(turn)
    runs = [run async for run in in_runs(range(count))]
    assert turns == turns_of_others
    assert [item for run in runs for item in run] == list(range(count))
    assert all(0 < len(run) <= RUN_MAX for run in runs)
