"""Seeds: each stands for one scenario, drawn from it, and for everything that happens there."""

import gc
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import ref

from simulation.edges import edges
from simulation.election import ElectionSimulation
from simulation.ledger import Broken
from simulation.pair import PairSimulation
from simulation.scenario import Simulation
from simulation.world import Stuck, World

__all__ = ["SCENARIOS", "Outcome", "scenario_of", "simulate"]

SCENARIOS: Final[dict[str, type[Simulation]]] = {
    "broker": Simulation,
    "pair": PairSimulation,
    "election": ElectionSimulation,
}


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    scenario: str
    failure: str | None = None
    simulated_s: float = 0.0
    digest: str = ""
    messages: int = 0
    acknowledged: int = 0
    faults: list[str] = field(default_factory=list)
    history: list[tuple[float, str, str]] = field(default_factory=list)
    is_freed: bool = True


def scenario_of(world: World) -> str:
    """Its name, drawn."""
    return world.chance("kind").choice(list(SCENARIOS))


def simulate(
    seed: int,
    kinds: list[str] | None = None,
    engine: str | None = None,
    scenario: str | None = None,
    size: str | None = None,
) -> Outcome:
    """Run one seed; `kinds` of faults, the engine for sends, scenario and size, where they are not drawn."""
    gc.disable()
    scenario = scenario or scenario_of(World(seed))
    outcome = Outcome(seed, scenario)
    simulation = SCENARIOS[scenario](seed, kinds, engine, size)
    world = simulation.world
    with edges.use(simulation.cluster.threads, simulation.cluster.network):
        try:
            simulation.run()
        except Stuck as stuck:
            outcome.failure = f"Stuck: {stuck}"
        except Broken as broken:
            outcome.failure = f"Broken: {broken}"
        except Exception as failed:
            where = traceback.extract_tb(failed.__traceback__)[-1]
            outcome.failure = (
                f"{type(failed).__name__}: {failed} ({Path(where.filename).name}:{where.lineno})"
            )
        if outcome.failure is not None:
            world.note("-", outcome.failure)
        simulation.cluster.is_closing = True
        simulation.cluster.close()
        outcome.simulated_s, outcome.digest = world.now, world.digest
        outcome.messages = len(simulation.ledger.sent)
        outcome.acknowledged = simulation.ledger.acknowledged
        outcome.faults = simulation.faults.made
        outcome.history = world.history
        for loop in simulation.cluster.loops:
            loop.tasks.clear()
    kept = ref(simulation)
    del simulation, world, loop
    let_go()
    outcome.is_freed = kept() is None
    return outcome


def let_go() -> None:
    """Free what is over. Nobody is told how coroutines of killed processes end: where they stood, nothing would end in
    life."""
    told, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = told
