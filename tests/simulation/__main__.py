"""Simulations by their seeds.

./dev simulate SEED...            each one; the first that fails is shown with its history
./dev simulate A-B                all from A to B
./dev simulate A- --for 60        from A on, as many as there is time for in 60 s
./dev simulate A-B --planted NAME with a fault in the product; stops where it is found
./dev simulate A-B --planted each every such fault but the rare ones, in the scenario where it belongs, until a seed has
                                  found it; `known` stands for the seed that found it first
./dev simulate A-B --engine native with that engine for sends; without, half of the seeds have each
./dev simulate A-B --scenario pair  a master with slaves; election: a set with etcd; broker: one; drawn without
./dev simulate A-B --size whole   many faults, and time to settle; brief: a few seconds, as most are; drawn without
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from itertools import count

from simulation.edges import install

install()


EACH, KNOWN = "each", "known"
SHOWN_MAX = 160  # of what a seed has found


def seeds_of(texts: list[str], known: int | None = None) -> Iterator[int]:
    """The seeds that are named."""
    for text in texts:
        first, dash, last = text.partition("-")
        if text == KNOWN and known is not None:
            yield known
        elif not dash:
            yield int(first)
        elif last:
            yield from range(int(first), int(last) + 1)
        else:
            yield from count(int(first))


def search(parsed: argparse.Namespace, kinds: list[str] | None) -> int:
    """Look for each planted fault that is not rare; 1 when one is not found."""
    from simulation.planted import FOUND_BY, planted
    from simulation.planted_sets import RARE
    from simulation.seeds import simulate

    found = True
    for name, (scenario, known) in FOUND_BY.items():
        if name in RARE or parsed.scenario not in (None, scenario):
            continue
        said, done, began = "not found", 0, time.process_time()
        for seed in seeds_of(parsed.seeds, known):
            with planted(name):
                outcome = simulate(seed, kinds, parsed.engine, scenario, parsed.size)
            done += 1
            if outcome.failure is not None:
                said = f"seed {seed} of {scenario}, {outcome.failure[:SHOWN_MAX]}"
                break
        else:
            found = False
        print(f"{name}: {said}; {done} seeds, {time.process_time() - began:.1f} s", flush=True)
    return 0 if found else 1


def main() -> int:
    """The exit code: 1 when a seed has failed; of a search for each planted fault, when one is not found."""
    from aerobee_broker.native.engine import EngineMissing, find_engine
    from simulation.cluster import log_into_history
    from simulation.planted import PLANTED, planted
    from simulation.scenario import ENGINES, SIZES
    from simulation.seeds import SCENARIOS, simulate

    parser = argparse.ArgumentParser(
        prog="./dev simulate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("seeds", nargs="+", help="numbers, A-B or A-")
    parser.add_argument("--history", action="store_true", help="show what happened, also when all is well")
    parser.add_argument("--for", dest="seconds", type=float, help="begin no seed after so many seconds")
    parser.add_argument("--planted", choices=[EACH, *PLANTED], help="put this fault into the product")
    parser.add_argument("--faults", help="only of these kinds, with commas between them")
    parser.add_argument("--engine", choices=ENGINES, help="for sends; drawn without")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="drawn without")
    parser.add_argument("--size", choices=list(SIZES), help="drawn without")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a seed that fails")
    parsed = parser.parse_args()
    kinds = parsed.faults.split(", ") if parsed.faults else None
    if parsed.engine is not None:
        try:
            find_engine(parsed.engine)
        except EngineMissing as missing:
            parser.error(str(missing))
    log_into_history()
    gc.collect()
    gc.freeze()  # what is there for all seeds is not looked at after each
    if parsed.planted == EACH:
        return search(parsed, kinds)
    failed = done = messages = kept = 0
    simulated = 0.0
    began, began_at = time.process_time(), time.monotonic()
    for seed in seeds_of(parsed.seeds):
        if parsed.seconds is not None and time.monotonic() - began_at > parsed.seconds:
            break
        with planted(parsed.planted):
            outcome = simulate(seed, kinds, parsed.engine, parsed.scenario, parsed.size)
        done += 1
        kept += not outcome.is_freed
        simulated += outcome.simulated_s
        messages += outcome.messages
        is_first = outcome.failure is not None and not failed
        if parsed.history or (is_first and not parsed.planted):
            for when, who, what in outcome.history:
                print(f"{when:12.6f}  {who:14} {what}")
        if outcome.failure is not None:
            failed += 1
            again = f" --planted '{parsed.planted}'" if parsed.planted else ""
            again += f" --faults '{parsed.faults}'" if parsed.faults else ""
            again += f" --engine {parsed.engine}" if parsed.engine else ""
            again += f" --scenario {parsed.scenario}" if parsed.scenario else ""
            again += f" --size {parsed.size}" if parsed.size else ""
            print(f"seed {seed}: {outcome.failure}\n  again with: ./dev simulate {seed}{again}", flush=True)
            if not parsed.keep_going:
                break
        if parsed.history:
            print(f"seed {seed}, {outcome.scenario}: {', '.join(outcome.faults)}; digest {outcome.digest}")
    took = time.process_time() - began
    print(
        f"{done} seeds, {failed} failed; {messages} messages, {simulated:.0f} s simulated in {took:.1f} s of "
        f"processor time: {simulated / max(took, 0.001):.0f} a second"
    )
    if kept:
        print(f"{kept} of them are kept in memory by something of the product, or of the simulation")
    return 1 if failed or kept else 0


if __name__ == "__main__":
    sys.exit(main())
