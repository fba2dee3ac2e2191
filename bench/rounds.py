"""Faults in a set that elects its master, round after round, under load; then what was answered is looked for.

    .venv/bin/python bench/rounds.py [--rounds 20] [--seed 1] [--only TEXT] [--loads ours,rust,java] [-o table|json]

A set of three with etcd, each member in a network of its own where that is allowed (root, `ip`), under load from our
client, the generator bench/rload and an official Java producer. The kinds of faults follow each other in an order that
the seed gives. A round waits until three members are in sync again: three to eight seconds.

The table shows, for each kind of fault, the longest time in which a load got no answer (median - longest of its
rounds), and the time until the set was whole again; then how many sends were answered, how many of them are not where
they were said to be, and how many places were given out twice. Both have to be 0, else the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from system.elected import started  # noqa: E402  # found by the path above
from system.networks import network, why_no_network  # noqa: E402
from system.rounds import LOADS, Round, Verdict, faults, loads, run_round, table, verdicts, why_no_load  # noqa: E402

LAST_LINES = 60  # of each member, when a round fails


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="how many (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults (1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults that have this in their names")
    parser.add_argument("--loads", default=",".join(LOADS), help="who sends (ours,rust,java)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    chosen = []
    for name in options.loads.split(","):
        if name not in LOADS:
            parser.error(f"--loads {name}: there are {', '.join(LOADS)}")
        if reason := why_no_load(name):
            say(f"without the load {name}: {reason}")
        else:
            chosen.append(name)
    no_network = why_no_network()
    if no_network:
        say(f"without cuts of the network: {no_network}")
    kinds = [fault for fault in faults(has_network=not no_network) if options.only in fault.name]
    if not kinds:
        parser.error(f"--only {options.only}: no fault has this in its name")
    chance = random.Random(options.seed)  # noqa: S311  # of a test
    order = [kinds[number % len(kinds)] for number in range(options.rounds)]
    chance.shuffle(order)

    async def run(folder: Path) -> tuple[list[Round], list[Verdict]]:
        done: list[Round] = []
        with contextlib.ExitStack() as stack:
            wires = None if no_network else stack.enter_context(network([1, 2, 3]))
            trio = stack.enter_context(started(folder, wires))
            async with loads(trio, folder, chosen) as running:
                for number, fault in enumerate(order, 1):
                    try:
                        one = await run_round(trio, fault, running, chance.randrange(2))
                    except BaseException:
                        say(f"{number:4} {fault.name}: the set does not come to itself")
                        for member, server in trio.members.items():
                            last = "\n".join(server.output.splitlines()[-LAST_LINES:])
                            say(f"--- member {member}\n{last}")
                        raise
                    done.append(one)
                    times = ", ".join(f"{name} {silent_s:.2f}" for name, silent_s in one.silent_s.items())
                    say(f"{number:4} {one.fault}: no answer for {times} s; whole after {one.whole_s:.1f} s")
                return done, await verdicts(trio, running)

    with tempfile.TemporaryDirectory(prefix="aerobee-rounds-") as folder:
        done, found = asyncio.run(run(Path(folder)))
    if options.output == "json":
        print(
            json.dumps(
                {"rounds": [asdict(one) for one in done], "loads": [asdict(one) for one in found]}, indent=1
            )
        )
    else:
        print(table(done, found))
    return int(any(one.lost or one.twice for one in found))


def say(line: str) -> None:
    """Progress, beside the result."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
