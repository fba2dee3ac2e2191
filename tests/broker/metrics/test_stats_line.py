"""The line for operators: at its interval, with what belongs into it."""

import asyncio

import pytest
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts
from aerobee_broker.metrics import stats_line
from aerobee_broker.metrics.stats_line import run_stats
from broker.support import Clock


async def test_the_stats_line_comes_at_its_interval(
    parts: Parts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_line, "SAMPLE_S", 0)
    reported = asyncio.Event()

    def facts() -> dict[str, object]:
        reported.set()
        return {"connections": 7}

    with capture_logs() as logs:
        run = asyncio.create_task(run_stats(parts.live, parts.clock, parts.stats, facts))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reported.is_set()
        clock.now_ms += 60_000
        async with asyncio.timeout(10):
            await reported.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    (line,) = [line for line in logs if line["event"] == "broker.stats"]
    assert (line["connections"], line["interval_s"]) == (7, 60.0)
