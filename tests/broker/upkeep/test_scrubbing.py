"""The scrub's task: at the rate that is set, a round in its time, nothing while it is turned off."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts
from aerobee_broker.upkeep.scrubbing import FIRST_ROUND_S, LOOK_S, SHARE, Scrubbing
from aerobee_store.checking.scrub import ScrubStep
from aerobee_store.faults.errors import StoreFull
from broker.support import put
from store.inside import settings_of


class _Here(Executor):
    """Does the work at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as failed:
            done.set_exception(failed)
        return done


class _Over(BaseException):
    pass


class _Time:
    """Sleeps pass at once and are written down; after `last` of them it is over."""

    def __init__(self, last: int) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._last = last

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds
        if len(self.slept) == self._last:
            raise _Over
        await asyncio.sleep(0)


async def run(parts: Parts, last: int, *, step_s: float = 0.0) -> list[float]:
    """What was slept; each step takes `step_s` of the processor."""
    time = _Time(last)
    worked = itertools.count(step=step_s)
    scrubbing = Scrubbing(
        _Here(),
        live=parts.live,
        store=parts.store,
        sleep=time.sleep,
        uptime=lambda: time.now,
        thread_time=lambda: float(next(worked)),
    )
    with pytest.raises(_Over):
        await scrubbing.run()
    return time.slept


def settings(parts: Parts, **changes: int) -> None:
    parts.live.value = parts.config.model_copy(update=changes)


async def test_steps_keep_to_the_rate_and_rounds_to_their_interval(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([ScrubStep(3_000), ScrubStep(1_000), ScrubStep(500, is_round_done=True)] * 2)
    monkeypatch.setattr(parts.store.scrubbing, "step", lambda: next(steps))
    settings(parts, scrub_bytes_per_second=1_000, scrub_interval=25_000)
    slept = await run(parts, 7)
    assert slept == [FIRST_ROUND_S, 3.0, 1.0, LOOK_S, LOOK_S, 1.0, 3.0]


async def test_a_costly_step_is_followed_by_a_longer_pause(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([ScrubStep(3_000), ScrubStep(1_000)] * 2)
    monkeypatch.setattr(parts.store.scrubbing, "step", lambda: next(steps))
    settings(parts, scrub_bytes_per_second=1_000)
    assert await run(parts, 3, step_s=SHARE * 2) == [FIRST_ROUND_S, 3.0, 2.0]


async def test_a_real_round_is_told(parts: Parts) -> None:
    for _ in range(20):
        put(parts, "T")
    parts.store.flush_disk()
    parts.store.flush_queues()
    with capture_logs() as said:
        await run(parts, 4)
    finished = [one for one in said if one["event"] == "store.scrub_finished"]
    assert [one["end_offset"] for one in finished] == [parts.store.end_offset]
    assert parts.store.statistics().scrubbed_bytes == parts.store.end_offset


async def test_a_rate_of_nothing_reads_nothing_until_it_is_changed(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def scrub() -> ScrubStep:
        nonlocal calls
        calls += 1
        return ScrubStep(0, is_round_done=True)

    monkeypatch.setattr(parts.store.scrubbing, "step", scrub)
    settings(parts, scrub_bytes_per_second=0)
    assert await run(parts, 5) == [FIRST_ROUND_S, LOOK_S, LOOK_S, LOOK_S, LOOK_S]
    assert calls == 0
    settings(parts, scrub_bytes_per_second=1)
    await run(parts, 3)
    assert calls == 1


async def test_no_room_for_a_copy_is_told_and_tried_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scrub() -> ScrubStep:
        raise StoreFull(settings_of(parts.store).root, 100)

    monkeypatch.setattr(parts.store.scrubbing, "step", scrub)
    with capture_logs() as said:
        assert await run(parts, 3) == [FIRST_ROUND_S, LOOK_S, LOOK_S]
    assert [one["event"] for one in said] == ["store.scrub_delayed"] * 2
