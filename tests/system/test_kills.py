"""Nothing acknowledged is lost, moved, changed or doubled, however often the broker is killed.

150 cycles in every run: five stores, each of which lives through thirty kills. The moments follow from a seed, which
every failure names; AEROBEE_KILL_SEED=N runs that seed alone, and `./dev test --long` goes on with fresh seeds. Odd
seeds run with the native engine for sends, where it is there.
"""

import os
import random
from pathlib import Path

import pytest

from engines import engine_of
from system.kills import Ledger, check_closed_store, endings, find_by_key, run_cycle, start, verify
from system.running import talking

pytestmark = pytest.mark.spread

CYCLES = 30
GIVEN = os.environ.get("AEROBEE_KILL_SEED")
SEEDS = [int(GIVEN)] if GIVEN else [1, 2, 3, 4, 5]
FRESH_SEEDS = 50


async def live_through(store: Path, seed: int) -> None:
    """Thirty kills of one store, then an orderly stop."""
    ledger = Ledger.of(seed)
    settings: dict[str, object] = {
        "flushDiskType": "ASYNC_FLUSH" if seed % 5 == 0 else "SYNC_FLUSH",
        "sendEngine": engine_of(seed),
    }
    for number, ending in enumerate(endings(seed, CYCLES, first=seed * CYCLES * 3 // 5)):
        print(f"AEROBEE_KILL_SEED={seed} cycle {number}: {ending}, {len(ledger.acknowledged)} acknowledged")
        assert await run_cycle(store, ledger, ending, settings), f"{ending.failpoint} was not passed"
    broker = await start(store, settings)
    try:
        async with talking(broker.port) as client:
            await verify(client, ledger)
            try:
                assert await find_by_key(client, ledger) >= len(ledger.owed) // 20
            finally:
                print(*[line for line in broker.events() if line["level"] not in ("debug", "info")], sep="\n")
        broker.program.process.terminate()
        assert await broker.ended() == 0
    finally:
        broker.program.kill()
    assert not (store / "abort").exists()
    assert len(ledger.acknowledged) > 1000
    assert ledger.commit_on_disk > 0
    assert ledger.verified > CYCLES // 3
    check_closed_store(store, settings)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_acknowledged_outlives_thirty_kills(tmp_path: Path, seed: int) -> None:
    await live_through(tmp_path / "store", seed)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(FRESH_SEEDS))
async def test_what_was_acknowledged_outlives_kills_at_fresh_moments(tmp_path: Path, number: int) -> None:
    await live_through(tmp_path / "store", random.SystemRandom().randrange(10, 1 << 31))
