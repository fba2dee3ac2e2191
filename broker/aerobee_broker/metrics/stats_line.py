"""The line `broker.stats`, and the samples that rates are made of.

Touches  the log.
"""

import asyncio
from collections.abc import Callable

from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.stats import SAMPLE_S, BrokerStats
from aerobee_service.turns.slices import in_slices

__all__ = ["run_stats"]


async def run_stats(
    live: LiveConfig, clock: Callable[[], int], stats: BrokerStats, facts: Callable[[], dict[str, object]]
) -> None:
    """Sample the counters every 10 s and write the `broker.stats` line, until cancelled.

    `facts` gives what else belongs into the line: connections, held pulls, what waits to be flushed.
    """
    reported_ms = clock()
    while True:
        await asyncio.sleep(SAMPLE_S)
        now_ms = clock()
        await in_slices(stats.sample_steps(now_ms))
        if now_ms - reported_ms >= live.value.stats_interval_seconds * 1000 or now_ms < reported_ms:
            reported_ms = now_ms
            stats.report(now_ms, **facts())
