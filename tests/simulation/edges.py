"""Where the product touches the world outside: clocks, chance, threads, sockets. Here they are the simulation's.

`install` comes before the product is imported, because some of it remembers the clock at import; a process that has
called it is good for simulations alone. `Edges.use` says which world it is.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.network import Network
    from simulation.threads import SimThreading, Threads
    from simulation.world import Process

__all__ = ["HASH_SEED", "Edges", "edges", "install"]

HASH_SEED = "0"  # of texts: sets of them are walked in an order that rests on it


class Edges:
    """The clocks and the chance of whoever runs now."""

    def __init__(self) -> None:
        self.threads: Threads | None = None
        self.network: Network | None = None
        self.threading: SimThreading | None = None
        self.chance = Random(0)

    def _process(self) -> "Process | None":
        threads = self.threads
        if threads is None or (threads.current is None and threads.world.current is None):
            return None
        return threads.process()

    def monotonic(self) -> float:
        process = self._process()
        return process.monotonic() if process is not None else real_monotonic()

    def time_ns(self) -> int:
        process = self._process()
        return process.epoch_ms() * 1_000_000 if process is not None else real_time_ns()

    def urandom(self, size: int) -> bytes:
        return self.chance.randbytes(size)

    def listen(self, host: str, port: int) -> Any:
        assert self.threads is not None
        assert self.network is not None
        return self.network.listen(self.threads.process(), host, port)

    def local_ip(self) -> str:
        assert self.threads is not None
        return self.threads.process().host

    @contextmanager
    def use(self, threads: "Threads", network: "Network") -> Iterator[None]:
        """Everything is of this world."""
        from aerobee_service.turns.slices import QUEUES

        assert self.threading is not None
        self.threads = self.threading.threads = threads
        self.network = network
        self.chance = threads.world.chance("system")
        random.seed(f"{threads.world.seed} module")
        try:
            yield
        finally:
            self.threads = self.threading.threads = self.network = None
            QUEUES.clear()  # work of loops that were killed is begun, and has no end


edges = Edges()
real_monotonic, real_time_ns, real_perf_counter = time.monotonic, time.time_ns, time.perf_counter


def install() -> None:
    """Put the edges in their places, the clocks first."""
    assert not any(name.startswith("aerobee") for name in sys.modules), (
        "too late: clocks are remembered already"
    )
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        raise RuntimeError(f"runs are the same only with PYTHONHASHSEED={HASH_SEED}")
    time.monotonic = time.perf_counter = edges.monotonic
    time.time_ns = edges.time_ns
    time.time = lambda: edges.time_ns() / 1e9
    setattr(random, "_urandom", edges.urandom)  # noqa: B010
    os.getpid = lambda: 4711
    _replace_in_modules()


def _replace_in_modules() -> None:
    from aerobee import client
    from aerobee_broker import assembly, broker  # noqa: F401
    from aerobee_broker.messages import read
    from aerobee_broker.pop import service
    from aerobee_broker.upkeep import file_watching
    from aerobee_nameserver import handlers, server  # noqa: F401
    from aerobee_remoting.ends import server as listening
    from aerobee_remoting.exchange import calls, loop_watch
    from simulation.loop import SimExecutor
    from simulation.threads import SimThreading

    # Look at nothing but the time, many times a second: most of what would happen.
    loop_watch.LOOK_S = 5.0  # type: ignore[misc]
    calls.TIMEOUT_SCAN_S = 0.2  # type: ignore[misc]
    read.SWEEP_S = service.SWEEP_S = 0.25  # type: ignore[misc]
    file_watching.LOOK_INTERVAL_S = 2.0  # type: ignore[misc]
    edges.threading = SimThreading()
    for name, module in list(sys.modules.items()):
        if name.startswith("aerobee") and hasattr(module, "threading"):
            module.threading = edges.threading  # type: ignore[attr-defined]
    setattr(listening, "_listen", edges.listen)  # noqa: B010
    setattr(listening, "LOOK_S", 0.0)  # noqa: B010  # simulated time stands still for whoever looks instead of sleeping
    listening.ACCEPTED_MAX = 1  # type: ignore[misc]  # a simulated socket has no descriptor of which there may be more
    setattr(client, "_local_ip", edges.local_ip)  # noqa: B010
    setattr(assembly, "started_executor", lambda count, name: SimExecutor())  # noqa: B010
