"""Requests whose messages are not in memory: they wait here, not in the event loop, and are asked again.

Touches  threads of its own, which read files by StoreIo; the account of what is kept for peers.

Who reads asks `store.asking`, which raises NotInMemory before it would wait for the disk. What is missing is brought
into memory by one of a few threads, then the same is asked again; where one part says where the next one is, as in the
index, the thread goes on to that (`NotInMemory.further`). Nothing was done in between, so a request that waits means
what it meant when it came; it may find more, or find that its messages were deleted.

    wait       for callbacks: `again` is called when it is time
    present    for tasks: awaits until `work` comes through
    in_steps   the same for work in slices

Order     One after the other from each owner (a connection, a task) in turn, so that one with thousands of cold queues
          takes no more than its share; at most half of the threads read for one owner. One of those whose messages
          have come is served in a turn of the event loop: others are served between two of them.
          Reading ahead comes behind all that somebody waits for.
Failures  EIO: who waits is told, but for what could be read before it, which leaves first.
          A disk that never answers: the threads wait for it, with them at most `waiting_max` requests; all that is in
          memory is served as ever. `broker.cold_reads_stuck` says so. Nobody waits for these threads at the end.
          Memory so short that what is brought does not stay: after TRIES_MAX it is read as it is, in the event loop.

Invariants
- `again` or `failed` is called once for each that waits, in the event loop, unless its owner is gone or this is closed.
- Its memory is on its owner's account from `wait` until then.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol, TypeVar

import structlog

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.turns.slices import Steps
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.page_cache import NotInMemory, Stretch
from aerobee_store.store import MessageStore

__all__ = ["WAITING_SIZE", "ColdReads", "ColdReadsLimits", "Owner"]

log = structlog.get_logger()

WAITING_SIZE: Final = 4096  # bytes that one keeps: its request, and the names of what it waits for
KIND: Final = "cold reads"
TRIES_MAX: Final = 8
AHEAD_MAX: Final = 256  # stretches to be read ahead that wait for a thread; older ones are forgotten
BELIEVED_S: Final = 1.0  # how long an answer of the system is believed
STUCK_S: Final = 10.0
CLOSE_S: Final = 0.5  # for threads that are about to be done

T = TypeVar("T")


class Owner(Hashable, Protocol):
    """On whose behalf is read; told apart by identity."""

    @property
    def is_closed(self) -> bool:
        """Whether it is gone: nobody waits any more."""
        ...


class _Broker:
    """The owner that the tasks of the broker are."""

    is_closed = False


@dataclass(slots=True, frozen=True, kw_only=True)
class ColdReadsLimits:
    """How many threads read, and how many requests may wait for them, in all and of one owner."""

    threads: int  # 0: nothing is asked, the event loop reads for itself
    waiting_max: int
    owner_max: int


class _Waiting:
    """One that waits. `tries` counts how often it came here for the same bytes."""

    __slots__ = ("again", "began", "failed", "gone", "is_strict", "missing", "owner", "size", "tries")

    def __init__(
        self,
        missing: NotInMemory,
        owner: Owner,
        again: Callable[[], None],
        failed: Callable[[Exception], None],
        gone: Callable[[], object],
        size: int,
        is_strict: bool,
    ) -> None:
        self.missing = missing
        self.owner = owner
        self.again = again
        self.failed = failed
        self.gone = gone
        self.size = size
        self.is_strict = is_strict
        self.tries = 1
        self.began = 0.0  # when a thread took it


_Job = _Waiting | Stretch


class ColdReads:
    """See the module. All calls from the event loop."""

    _loop: asyncio.AbstractEventLoop  # there from start() on

    def __init__(
        self, store: MessageStore, io: StoreIo, limits: ColdReadsLimits, *, memory: PeerMemory
    ) -> None:
        # Fixed for life.
        self.messages = store.asking  # what may raise NotInMemory, for those who can wait here
        self._residency = store.residency
        self._io = io
        self._limits = limits
        self._per_owner = max(1, limits.threads // 2)
        self._memory = memory
        self._broker = _Broker()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # Those that wait for a thread, by owner; the owner whose turn it is comes first. No row is empty.
        self._rows: dict[Owner, deque[_Waiting]] = {}
        self._ahead: deque[Stretch] = deque(maxlen=AHEAD_MAX)
        # Those that a thread reads for, the oldest first, and how many they are of each owner.
        self._reading: dict[_Waiting, None] = {}
        self._busy: Counter[Owner] = Counter()
        # What threads have done, and whether somebody comes to see to the next of it in a later turn.
        self._results: deque[tuple[_Job, Exception | None]] = deque()
        self._is_serving = False
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that have nothing to do
        self._waiting_count = 0
        self._is_closed = False
        # Since the start: requests that waited, and those that were told that the disk refuses.
        self.count = 0
        self.failed_count = 0

    def __len__(self) -> int:
        """How many wait, those included that are being read for."""
        return self._waiting_count

    # --- asking -----------------------------------------------------------------------------------------------

    def wait(
        self,
        missing: NotInMemory,
        owner: Owner,
        again: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        gone: Callable[[], object] = lambda: None,
        size: int = WAITING_SIZE,
        is_strict: bool = False,
    ) -> None:
        """Have `again` called when what is missing is in memory; when it raises NotInMemory, it waits once more.

        `failed` is called with whatever else it raises, and when the disk refuses, `is_strict`: any of it. `gone` is
        called when neither of them will be.
        `size` is what is kept meanwhile, in bytes. LimitReached: too many wait already.
        """
        if owner is not self._broker:
            self._check_limits(owner)
            self._memory.take(owner, KIND, size)
        self._waiting_count += 1
        self.count += 1
        self._line_up(_Waiting(missing, owner, again, failed, gone, size, is_strict))

    def _check_limits(self, owner: Owner) -> None:
        limits = self._limits
        of_owner = len(self._rows.get(owner, ())) + self._busy[owner]
        is_full = self._waiting_count >= limits.waiting_max
        if is_full or of_owner >= limits.owner_max:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self._waiting_count} requests wait for the disk already, {of_owner} of them of this connection;"
                " try again later",
                "maxColdReads" if is_full else "maxColdReadsPerConnection",
            )

    async def present(self, work: Callable[[], T], owner: Owner | None = None) -> T:
        """What `work` gives, in a turn of the event loop in which it finds everything in memory.

        LimitReached as of `wait` when it is for an `owner`; the broker itself is never refused. CancelledError when the
        owner is gone.
        """
        try:
            return work()
        except NotInMemory as missing:
            done = self._promised(missing, work, owner)
        return await done

    def in_steps(self, work: Callable[[], T], owner: Owner | None = None) -> Steps[T]:
        """As `present`, for work that is done in slices: the slices of others go on meanwhile."""
        try:
            return work()
        except NotInMemory as missing:
            done = self._promised(missing, work, owner)
        yield done
        return done.result()

    def _promised(
        self, missing: NotInMemory, work: Callable[[], T], owner: Owner | None
    ) -> "asyncio.Future[T]":
        """What `work` will give when what it misses is in memory."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.wait(
            missing,
            self._broker if owner is None else owner,
            lambda: None if done.done() else done.set_result(work()),
            lambda failed: None if done.done() else done.set_exception(failed),
            gone=done.cancel,
        )
        return done

    def bring_first(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """For the broker itself: call `then` when what is missing was read, or cannot be. It raises nothing."""
        self.wait(missing, self._broker, then, lambda _: None)

    async def brought(
        self, missing: NotInMemory, owner: Owner | None = None, *, size: int = WAITING_SIZE
    ) -> None:
        """Return when what is missing was read; who waits asks once more then. OSError: the disk refuses; otherwise as
        `present`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait(
            missing,
            self._broker if owner is None else owner,
            lambda: None if done.done() else done.set_result(None),
            lambda failed: None if done.done() else done.set_exception(failed),
            gone=done.cancel,
            size=size,
            is_strict=True,
        )
        await done

    # --- whose turn it is -------------------------------------------------------------------------------------

    def _line_up(self, waiting: _Waiting) -> None:
        row = self._rows.get(waiting.owner)
        if row is None:
            self._rows[waiting.owner] = row = deque()
        row.append(waiting)
        self._hand_out()

    def _read_ahead(self, stretches: Sequence[Stretch]) -> None:
        if self._threads:
            self._ahead.extend(stretches)
            self._hand_out()

    def _hand_out(self) -> None:
        while self._idle and not self._is_closed:
            job = self._next()
            if job is None:
                return
            self._idle -= 1
            self._jobs.put(job)

    def _next(self) -> _Job | None:
        while True:
            owner = next((one for one in self._rows if self._busy[one] < self._per_owner), None)
            if owner is None:
                return self._ahead.popleft() if self._ahead else None
            row = self._rows.pop(owner)
            waiting = row.popleft()
            if row:
                self._rows[owner] = row  # behind the others
            if owner.is_closed:
                self._leave(waiting)
                waiting.gone()
                continue
            waiting.began = self._loop.time()
            self._busy[owner] += 1
            self._reading[waiting] = None
            return waiting

    def _leave(self, waiting: _Waiting) -> None:
        self._waiting_count -= 1
        if waiting.owner is not self._broker:
            self._memory.give(waiting.owner, KIND, waiting.size)

    # --- what came of it --------------------------------------------------------------------------------------

    def _done(self, job: _Job, refused: Exception | None) -> None:
        """A thread's result, in the event loop. A disk answers several at once: the next one has its turn when the loop
        has looked who else wants something."""
        self._results.append((job, refused))
        if not self._is_serving:
            self._serve()

    def _serve(self) -> None:
        self._is_serving = bool(self._results)
        if self._is_serving:
            self._loop.call_soon(self._serve)
            self._end(*self._results.popleft())

    def _end(self, job: _Job, refused: Exception | None) -> None:
        """Somebody who waits no longer for a thread goes on; the thread has its next job."""
        self._idle += 1
        if isinstance(job, _Waiting):
            del self._reading[job]
            self._busy[job.owner] -= 1
            if not self._busy[job.owner]:
                del self._busy[job.owner]
            if self._is_closed:
                return
            self._ahead.extend(job.missing.ahead)
            if job.owner.is_closed:
                self._leave(job)
                job.gone()
            else:
                self._go_on(job, refused)
        self._hand_out()

    def _go_on(self, waiting: _Waiting, refused: Exception | None) -> None:
        """Ask again. Where the disk refused, for what it gave before."""
        if refused is not None and waiting.is_strict:
            self.failed_count += 1
            self._leave(waiting)
            waiting.failed(refused)
            return
        try:
            self._residency.is_off = waiting.tries >= TRIES_MAX
            waiting.again()
        except NotInMemory as missing:
            no_further = missing.needed[:1] == waiting.missing.needed[:1]
            if refused is None or not no_further:
                waiting.tries = waiting.tries + 1 if no_further else 1
                waiting.missing = missing
                self._line_up(waiting)
                return
            self.failed_count += 1
            self._leave(waiting)
            waiting.failed(refused)
        except Exception as failed:
            self._leave(waiting)
            waiting.failed(failed)
        else:
            self._leave(waiting)
        finally:
            self._residency.is_off = False

    # --- the whole life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the threads now: when they are needed, the process may be able to make no more."""
        self._loop = asyncio.get_running_loop()
        for number in range(self._limits.threads):
            thread = threading.Thread(target=self._work, name=f"cold reads {number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        if self._threads:
            self._residency.begin(self._read_ahead)
        self._idle = len(self._threads)
        self._hand_out()

    async def run(self) -> None:
        """Look after it until cancelled: what the system said is not believed for long, and a disk that does not answer
        is named."""
        is_stuck = False
        while True:
            await asyncio.sleep(BELIEVED_S)
            self._residency.forget()
            oldest = next(iter(self._reading), None)
            waited_s = 0.0 if oldest is None else self._loop.time() - oldest.began
            if waited_s >= STUCK_S and oldest is not None and not is_stuck:
                path = str(oldest.missing.needed[0].path) if oldest.missing.needed else ""
                log.warning(
                    "broker.cold_reads_stuck",
                    path=path,
                    waited_ms=round(waited_s * 1000),
                    waiting=self._waiting_count,
                )
            is_stuck = waited_s >= STUCK_S

    def drop_owner(self, owner: Owner) -> None:
        """Nobody waits any more for what was asked on behalf of a closed owner."""
        for waiting in self._rows.pop(owner, ()):
            self._leave(waiting)
            waiting.gone()

    async def close(self) -> None:
        """Forget all that wait, and end the threads. Those that wait for a disk that does not answer are left to it."""
        self._is_closed = True
        self._residency.is_off = True
        self._residency.forget()
        rows, self._rows = self._rows, {}
        for waiting in [*self._reading, *(one for row in rows.values() for one in row)]:
            self._leave(waiting)
            waiting.gone()
        self._ahead.clear()
        for _ in self._threads:
            self._jobs.put(None)
        if self._threads:
            await self._loop.run_in_executor(None, _join, self._threads)

    # --- the threads ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            refused: Exception | None = None
            try:
                if isinstance(job, _Waiting):
                    self._bring(job.missing.needed)
                    for more in job.missing.further:
                        self._bring(more)
                else:
                    self._io.read_ahead(*job)
            except Exception as failed:
                refused = failed
            try:
                self._loop.call_soon_threadsafe(self._done, job, refused)
            except RuntimeError:  # the loop is closed: the process is ending
                return

    def _bring(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches[1:]:  # the disk is asked for all of them before one is waited for
            self._io.read_ahead(*stretch)
        for stretch in stretches:
            self._io.bring(*stretch)


def _join(threads: Sequence[threading.Thread]) -> None:
    end = time.monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
