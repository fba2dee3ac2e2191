"""Starts the workers of a service, watches them, starts those again that ended, and ends them together.

Touches  processes: their start, signals, exit codes; the link to each. Standard output and standard error are one for
         all: a worker writes its own lines, each of which names it (`worker`).

Invariants
- A worker takes nobody with it: what one ends with moves neither the others nor the service, as long as one is left.
- Nobody outlives the service: a worker whose link has ended stops by itself, also where this process was killed.
- A worker that gives no sign of life is ended as systemd would end a service, and started again.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from aerobee_broker.workers.layout import WorkerPlan
from aerobee_broker.workers.link import NOTIFY_VARIABLE, TOPIC, VARIABLE, Mailbox, facts_of, link_pair
from aerobee_broker.workers.restarts import FINAL, Restarts, worst
from aerobee_service.program.interrupts import INTERRUPTED
from aerobee_service.program.systemd import ServiceNotifier

__all__ = ["Supervisor", "Worker"]

log = structlog.get_logger()

SILENT_S: Final = 60.0  # as WatchdogSec of deploy/systemd
LOOKS: Final = 6  # for silent workers, in that time
STOP_S: Final = 110.0  # for an orderly stop; deploy/systemd allows two minutes
START_SILENT_S: Final = 900.0  # the same of a start, which says so when it has much to recover
SIGNAL_S: Final = 0.25  # from a Ctrl-C that a worker has heard, until it is heard here
ABORT_S: Final = 5.0  # for a silent one to say where it stands, when it is ended
# What a worker ends with that is asked to stop before it has begun.
UNBORN: Final = frozenset({-signal.SIGTERM, -signal.SIGINT, INTERRUPTED})
MICROSECONDS: Final = 1_000_000


@dataclass(slots=True)
class Worker:
    """One worker of the service, as it is now."""

    # Fixed for life.
    plan: WorkerPlan
    restarts: Restarts = field(default_factory=Restarts)
    # Moved by each start and end.
    process: asyncio.subprocess.Process | None = None
    mailbox: Mailbox | None = None
    starts: int = 0
    ready_at: float | None = None  # since when it serves
    heard_at: float = 0.0
    exit_code: int | None = None  # of the last end, while it does not run; -9 for SIGKILL
    has_ended: bool = False
    has_served: bool = False
    status: str = "not started"

    @property
    def name(self) -> str:
        """Its broker name."""
        return self.plan.name

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.ready_at is not None


class Supervisor:
    """The workers of one service. `run` once."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        command: Callable[[WorkerPlan], Sequence[str]],
        *,
        service: str,
        notifier: ServiceNotifier,
        silent_s: float = SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command` says what starts a worker; `service` is the name that its workers share."""
        self.workers = [Worker(plan) for plan in plans]
        self._command = command
        self._service = service
        self._notifier = notifier
        self._silent_s = silent_s
        self._clock = clock
        self._stop = asyncio.Event()
        # One serves at least, and each of the others has become ready too or has ended once.
        self._settled = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Keep the workers until `stop` is set, or none is left that could serve. Returns the exit code."""
        self._stop = stop
        log.info("workers.started", count=len(self.workers), names=[one.name for one in self.workers])
        keeping = [
            asyncio.create_task(self._keep(worker), name=f"worker {worker.name}") for worker in self.workers
        ]
        watching = asyncio.create_task(self._watch(), name="silent workers")
        serving = asyncio.create_task(self._serve(), name="service of workers")
        try:
            await asyncio.wait(keeping, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            stop.set()
            await _cancel([watching, serving, *(task for task in keeping if not task.done())])
        for task in keeping:
            if not task.cancelled():
                task.result()  # a fault of ours; the workers stop, as their links have ended
        code = worst([one.exit_code for one in self.workers if one.exit_code is not None])
        log.info("workers.stopped", exit_code=code)
        return code

    # --- one worker -------------------------------------------------------------------------------------------

    async def _keep(self, worker: Worker) -> None:
        """Start it, and again when it has ended, until it must not be or the service stops."""
        while not self._stop.is_set():
            served_s = await self._run_once(worker)
            self._changed()
            if worker.exit_code == 0:
                await _set_within(self._stop, SIGNAL_S)
            if self._stop.is_set():
                return
            pause = self._pause(worker, served_s)
            if pause is None:
                return
            await _set_within(self._stop, pause)

    def _pause(self, worker: Worker, served_s: float) -> float | None:
        """How long until the next start; None: there is none. Logs it."""
        code = worker.exit_code
        assert code is not None
        if all(one.has_ended and not one.has_served and one.process is None for one in self.workers):
            # As one broker that cannot start ends, so does the service.
            log.error("workers.none_started", reason="no worker has ever served; their own lines say why")
            self._stop.set()
            return None
        pause = worker.restarts.pause_after(code, served_s)
        if pause is None:
            reason, way_out = FINAL[code]
            facts = {"worker": worker.name, "exit_code": code, "reason": reason, "way_out": way_out}
            if code:
                log.error("worker.left_down", **facts)
            else:
                log.warning("worker.left_down", **facts)
        else:
            log.warning(
                "worker.ended",
                worker=worker.name,
                exit_code=code,
                served_s=round(served_s),
                restart_in_s=pause,
            )
        return pause

    async def _run_once(self, worker: Worker) -> float:
        """From its start to its end; how long it served, in s."""
        mine, theirs = link_pair()
        try:
            process = await self._started(worker, theirs)
        except OSError as failed:
            mine.close()
            worker.exit_code, worker.has_ended, worker.status = 1, True, f"cannot be started: {failed}"
            log.error("worker.start_failed", worker=worker.name, reason=str(failed))  # noqa: TRY400  # it says all
            return 0.0
        finally:
            theirs.close()
        worker.process, worker.exit_code, worker.status = process, None, "starting"
        worker.heard_at = self._clock()
        worker.mailbox = Mailbox(
            mine, on_message=lambda message: self._heard(worker, message), on_end=lambda: None
        )
        log.info("worker.started", worker=worker.name, pid=process.pid)
        asked = asyncio.create_task(self._ask_to_stop(process), name=f"stop of {worker.name}")
        try:
            code = await process.wait()
        finally:
            await _cancel([asked])
            worker.mailbox.close()
        if self._stop.is_set() and code in UNBORN:
            code = 0
        served_s = self._clock() - worker.ready_at if worker.ready_at is not None else 0.0
        worker.process, worker.ready_at, worker.exit_code, worker.has_ended = None, None, code, True
        worker.status = f"ended with {code}"
        return served_s

    async def _started(self, worker: Worker, end: socket.socket) -> asyncio.subprocess.Process:
        worker.starts += 1
        plan, descriptor = worker.plan, end.fileno()
        environment = {
            **os.environ,
            VARIABLE: f"{descriptor} {plan.number} {plan.count} {self._service}",
            NOTIFY_VARIABLE: f"fd:{descriptor}",
            "WATCHDOG_USEC": str(round(self._silent_s * MICROSECONDS)),
        }
        environment.pop("WATCHDOG_PID", None)
        return await asyncio.create_subprocess_exec(
            *self._command(plan),
            stdin=asyncio.subprocess.DEVNULL,
            env=environment,
            pass_fds=(descriptor,),
        )

    async def _ask_to_stop(self, process: asyncio.subprocess.Process) -> None:
        """When the service is asked to: in order, and not for ever."""
        await self._stop.wait()
        _send_signal(process, signal.SIGTERM)
        await asyncio.sleep(STOP_S)
        log.error("worker.stop_cut_short", pid=process.pid, after_s=STOP_S)
        _send_signal(process, signal.SIGKILL)

    # --- what workers say -------------------------------------------------------------------------------------

    def _heard(self, worker: Worker, message: bytes) -> None:
        facts = facts_of(message)
        worker.heard_at = self._clock()
        worker.status = facts.get("STATUS", worker.status)
        if "READY" in facts:
            worker.ready_at, worker.has_served = self._clock(), True
            self._changed()
        more_us = facts.get("EXTEND_TIMEOUT_USEC", "")
        if more_us.isdecimal():
            self._notifier.extend_start(int(more_us) // MICROSECONDS)
        if TOPIC in facts:
            self._pass_on(worker, message)

    def _pass_on(self, sender: Worker, message: bytes) -> None:
        for worker in self.workers:
            if worker is not sender and worker.process is not None and worker.mailbox is not None:
                worker.mailbox.send(message)

    # --- all of them ------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """One has become ready, or has ended."""
        ready = [one for one in self.workers if one.is_ready]
        if ready and all(one.is_ready or one.has_ended for one in self.workers):
            self._settled.set()
        if self._settled.is_set():
            self._notifier.status(self._text())

    def _text(self) -> str:
        ready = sum(one.is_ready for one in self.workers)
        others = [f"; {one.name}: {one.status}" for one in self.workers if not one.is_ready]
        return f"{ready} of {len(self.workers)} workers serve{''.join(others)}"

    async def _serve(self) -> None:
        """Tell systemd how the service is, as one."""
        await self._settled.wait()
        ready = [one.name for one in self.workers if one.is_ready]
        log.info("workers.ready", ready=len(ready), count=len(self.workers), names=ready)
        await self._notifier.serving(self._text(), self._stop)

    async def _watch(self) -> None:
        """End workers that serve and give no sign of life."""
        looked_at = self._clock()
        while True:
            await asyncio.sleep(self._silent_s / LOOKS)
            now, before = self._clock(), looked_at
            looked_at = now
            for worker in self.workers:
                if now - before > self._silent_s / 2:
                    worker.heard_at = now  # this process stood still, and they may have too
                limit_s = self._silent_s if worker.is_ready else START_SILENT_S
                if now - worker.heard_at > limit_s:
                    await self._end_silent(worker, now - worker.heard_at)

    async def _end_silent(self, worker: Worker, silent_s: float) -> None:
        process = worker.process
        if process is None:
            return
        log.error("worker.silent", worker=worker.name, pid=process.pid, silent_s=round(silent_s))
        _send_signal(process, signal.SIGABRT)  # its last words are where every thread stands
        _send_signal(process, signal.SIGCONT)
        await asyncio.sleep(ABORT_S)
        _send_signal(process, signal.SIGKILL)


def _send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Nothing happens to one that has ended.

    Not by the process's own method: outside uvloop that asks for the exit code too, and whoever waits for it gets none.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _cancel(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """They are over when it returns, however they end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until it is set, so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
