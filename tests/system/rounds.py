"""Rounds of faults in a set of three under load: one after the other is killed, stopped or cut off, and comes back; at
the end everything that was ever answered with success is looked for.

Touches  what `elected` does; the generator bench/rload, and an official Java producer.

A round begins and ends with a master and two slaves in sync. What it costs is the longest time without an answer, of
each load for itself: clients differ in how they look for another master.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from bench import loadgen

import official
from aerobee import Client, Message
from plain_remoting import make_topic
from programs import Program
from system.elected import NAME, SENDERS, TOPIC, Pulse, Senders, Trio, go_on, stop_process, stored
from system.networks import Network

__all__ = [
    "FAULTS",
    "LOADS",
    "Load",
    "Round",
    "Verdict",
    "faults",
    "loads",
    "run_round",
    "table",
    "why_no_load",
]

QUEUES: Final = 4
ETCD_PAUSE_S: Final = 1.5  # half a lease
GONE_S: Final = 4.0  # more than a lease
MORE: Final = 30  # sends that a load that is ours has to have answered before a round goes on
CONNECTIONS, WINDOW, RATE = 2, 16, 600
PACE_S: Final = 0.002  # between two sends of one of ours
MORE_S: Final = 60.0
JAVA_ROUTE_MS: Final = 1000  # the Java producer asks for the route each second, not each 30 s
Place = tuple[int, int]  # queue, queue offset


# --- loads ----------------------------------------------------------------------------------------------------------


class Load(Protocol):
    """Somebody who sends, and knows what was answered."""

    name: str
    topic: str
    pulse: Pulse

    def end(self) -> tuple[dict[Place, bytes], int]:
        """Stop sending. What was answered, by place, and how many places were given out twice."""
        ...

    def of(self, message: Message) -> bytes:
        """What of a message is in the ledger."""
        ...


class OurLoad:
    """Our client."""

    name, topic = "ours", TOPIC

    def __init__(self, senders: Senders, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._senders, self._tasks = senders, tasks
        self.pulse = senders.pulse

    def end(self) -> tuple[dict[Place, bytes], int]:
        for task in self._tasks:
            task.cancel()
        return self._senders.ledger, len(self._senders.twice)

    def of(self, message: Message) -> bytes:
        return message.body


class RustLoad:
    """bench/rload: the master of the nameserver's route, by plain frames."""

    name, topic = "rust", "R"

    def __init__(self, trio: Trio) -> None:
        # Moved by the reader thread.
        self.pulse = Pulse()
        self._ledger: dict[Place, bytes] = {}
        self._twice = 0
        words = {"namesrv": trio.nameserver, "topic": self.topic, "broker": NAME, "queues": QUEUES}
        words |= {"conns": CONNECTIONS, "window": WINDOW, "rate": RATE}
        options = [word for key, value in words.items() for word in (f"--{key}", str(value))]
        self.program = Program("rload", [str(loadgen.BINARY), "ledger", *options], on_line=self._answered)

    def _answered(self, line: str) -> None:
        try:
            connection, number, queue, offset = map(int, line.split())
        except ValueError:
            return  # cut short by its end
        place = queue, offset
        self._twice += place in self._ledger
        self._ledger[place] = b"%d-%d" % (connection, number)
        self.pulse.beat()

    def end(self) -> tuple[dict[Place, bytes], int]:
        self.program.kill()
        return self._ledger, self._twice

    def of(self, message: Message) -> bytes:
        return message.body


class JavaLoad:
    """DefaultMQProducer of rocketmq-client 5.3.3, with its retries; its pulse is that of each 25 answers."""

    name, topic = "java", "J"

    def __init__(self, trio: Trio, folder: Path) -> None:
        self.pulse = Pulse()
        self._journal, self._until = folder / "java-journal", folder / "java-until"
        self._program = official.start_judge(
            "endure",
            namesrv=trio.nameserver,
            topic=self.topic,
            run="r",
            journal=self._journal,
            until=self._until,
            poll=JAVA_ROUTE_MS,
            on_line=lambda _: self.pulse.beat(),
        )

    def kill(self) -> None:
        """It need not report any more."""
        if self._program.running:
            self._program.kill()

    def end(self) -> tuple[dict[Place, bytes], int]:
        self._until.touch()
        official.result_of(self._program)
        lines = [line.split() for line in self._journal.read_text().splitlines()]
        ledger = {(int(queue), int(offset)): key.encode() for key, queue, offset, _ in lines}
        return ledger, len(lines) - len(ledger)

    def of(self, message: Message) -> bytes:
        return " ".join(message.keys).encode()


LOADS: Final = ("ours", "rust", "java")


def why_no_load(name: str) -> str | None:
    """Why this load cannot be had here."""
    if name == "rust":
        return loadgen.missing()
    return official.get_ready() if name == "java" else None


@asynccontextmanager
async def loads(trio: Trio, folder: Path, names: Sequence[str]) -> AsyncIterator[list[Load]]:
    """Loads of these names, each of which was answered already."""
    async with AsyncExitStack() as stack:
        made: list[Load] = []
        master = trio.address(await asyncio.to_thread(trio.wait_master, slaves=2))
        for topic in (TOPIC, RustLoad.topic, JavaLoad.topic):
            await asyncio.to_thread(
                partial(make_topic, queues=QUEUES, broker_name=NAME), trio.nameserver, master, topic
            )
        if "rust" in names:
            await asyncio.to_thread(loadgen.build)
            rust = RustLoad(trio)
            stack.callback(lambda: rust.program.running and rust.program.kill())
            made.append(rust)
        if "java" in names:
            java = await asyncio.to_thread(JavaLoad, trio, folder)
            stack.callback(java.kill)
            made.append(java)
        if "ours" in names:
            mq = await stack.enter_async_context(Client(trio.nameserver))
            senders = Senders(await stack.enter_async_context(mq.producer("round-producers")), PACE_S)
            tasks = [asyncio.create_task(senders.run()) for _ in range(SENDERS)]
            made.append(OurLoad(senders, tasks))
        for load in made:
            await answered(load, 1)
        yield made


async def answered(load: Load, count: int) -> None:
    """Return when so many sends were answered since the pulse began."""
    async with asyncio.timeout(MORE_S):
        while load.pulse.count < count:  # noqa: ASYNC110  # threads move it
            await asyncio.sleep(0.01)


# --- faults ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a member, and what ends it. `replaces`: the set has another master by it."""

    name: str
    begin: Callable[[Trio, int], None]
    end: Callable[[Trio, int], None]
    replaces: bool = False
    of_slave: bool = False
    needs_network: bool = False


def _kill(trio: Trio, member: int) -> None:
    trio.members[member].kill()


def _stop(trio: Trio, member: int) -> None:
    stop_process(trio.members[member])


def _go_on(trio: Trio, member: int) -> None:
    go_on(trio.members[member])


def _network(trio: Trio) -> Network:
    assert trio.network is not None
    return trio.network


def _heal(trio: Trio, member: int) -> None:
    _network(trio).heal(member)


def _switch(trio: Trio, member: int) -> None:
    """The master leaves its seat to another one, as `aerobee cluster switch` asks for."""
    trio.members[member].stop()


def _restart_etcd(trio: Trio, member: int) -> None:
    trio.etcd.kill()
    trio.etcd.start()


def _pause_etcd(trio: Trio, member: int) -> None:
    stop_process(trio.etcd.server)
    time.sleep(ETCD_PAUSE_S)
    go_on(trio.etcd.server)


def _end_etcd(trio: Trio, member: int) -> None:
    trio.etcd.kill()
    time.sleep(GONE_S)


def _nothing(trio: Trio, member: int) -> None:
    pass


FAULTS: Final = (
    Fault("kill -9 of the master", _kill, Trio.start, replaces=True),
    Fault("SIGSTOP of the master", _stop, _go_on, replaces=True),
    Fault("the master is cut off", lambda t, m: _network(t).cut(m), _heal, replaces=True, needs_network=True),
    Fault(
        "nobody hears the master",
        lambda t, m: _network(t).cut_what_it_says(m),
        _heal,
        replaces=True,
        needs_network=True,
    ),
    Fault(
        "the master hears nobody",
        lambda t, m: _network(t).cut_what_it_hears(m),
        _heal,
        replaces=True,
        needs_network=True,
    ),
    Fault(
        "the master is cut off from etcd",
        lambda t, m: _network(t).cut_from_etcd(m),
        _heal,
        replaces=True,
        needs_network=True,
    ),
    Fault("the master is stopped in order", _switch, Trio.start, replaces=True),
    Fault("kill -9 of a slave", _kill, Trio.start, of_slave=True),
    Fault("SIGSTOP of a slave", _stop, _go_on, of_slave=True),
    Fault("a slave is cut off", lambda t, m: _network(t).cut(m), _heal, of_slave=True, needs_network=True),
    Fault("etcd is killed and started", _restart_etcd, _nothing),
    Fault("etcd stands still for half a lease", _pause_etcd, _nothing),
    Fault("etcd is gone for more than a lease", _end_etcd, lambda t, m: t.etcd.start()),
)


def faults(*, has_network: bool) -> list[Fault]:
    """Those that can be made here."""
    return [fault for fault in FAULTS if has_network or not fault.needs_network]


# --- rounds ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Round:
    """What one fault did. `silent_s`: of each load, the longest time without an answer; `whole_s`: until all three were
    in sync again."""

    fault: str
    silent_s: dict[str, float] = field(default_factory=dict)
    whole_s: float = 0.0


async def run_round(trio: Trio, fault: Fault, running: Sequence[Load], choice: int) -> Round:
    """One round; `choice` says which slave."""
    master = await asyncio.to_thread(trio.wait_master, slaves=2)
    slaves = [member for member in (1, 2, 3) if member != master]
    member = slaves[choice % 2] if fault.of_slave else master
    began = time.monotonic()
    for load in running:
        load.pulse.begin()
    await asyncio.to_thread(fault.begin, trio, member)
    if fault.replaces:
        await asyncio.to_thread(trio.wait_master, master, slaves=1)
        await more(running)
        silent_s = silences(running)
        await asyncio.to_thread(fault.end, trio, member)
    else:
        if fault.of_slave:
            await asyncio.to_thread(trio.wait_in_sync, master, 1)
        await asyncio.to_thread(fault.end, trio, member)
        await more(running)
        silent_s = silences(running)
    await asyncio.to_thread(trio.wait_master, slaves=2)
    return Round(fault.name, silent_s, time.monotonic() - began)


async def more(running: Sequence[Load]) -> None:
    """Until the loads that look for another master by themselves are answered."""
    for load in running:
        if load.name != JavaLoad.name or len(running) == 1:
            await answered(load, load.pulse.count + MORE)


def silences(running: Sequence[Load]) -> dict[str, float]:
    return {load.name: load.pulse.silent_s for load in running}


@dataclass(slots=True)
class Verdict:
    """What was found of a load in the end."""

    load: str
    acknowledged: int
    lost: int
    twice: int


async def verdicts(trio: Trio, running: Sequence[Load]) -> list[Verdict]:
    """End the loads, and look for everything that they were told."""
    made = []
    for load in running:
        ledger, twice = await asyncio.to_thread(load.end)
        found = await stored(trio, load.topic, load.of)
        lost = sum(found.get(place) != what for place, what in ledger.items())
        made.append(Verdict(load.name, len(ledger), lost, twice))
    return made


def table(rounds: Sequence[Round], found: Sequence[Verdict]) -> str:
    """Kinds of faults with their times, and what was found."""
    names = [verdict.load for verdict in found]
    lines = [
        f"{'fault':36}{'rounds':>7}" + "".join(f"{f'{name} s':>16}" for name in names) + f"{'whole s':>9}"
    ]
    for fault in FAULTS:
        of_kind = [one for one in rounds if one.fault == fault.name]
        if not of_kind:
            continue
        cells = []
        for name in names:
            times = sorted(one.silent_s[name] for one in of_kind)
            cells.append(f"{f'{statistics.median(times):.2f} - {times[-1]:.2f}':>16}")
        whole = statistics.median(one.whole_s for one in of_kind)
        lines.append(f"{fault.name:36}{len(of_kind):7}{''.join(cells)}{whole:9.1f}")
    lines.append("")
    lines.append(f"{'load':10}{'acknowledged':>14}{'lost':>8}{'twice':>8}")
    lines += [f"{one.load:10}{one.acknowledged:14,}{one.lost:8}{one.twice:8}" for one in found]
    return "\n".join(lines)
