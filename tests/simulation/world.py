"""One queue of everything that will happen, in virtual time, and the processes to which it happens.

Whatever a simulated process does is a call at a moment. The world takes the earliest one, sets the time to it and makes
it; calls of the same moment come in the order in which they were asked for. So a run is the same whenever its seed is.

A process can be killed (its calls are never made), stopped for a while (they wait), slow (each of them takes time), and
its clocks can be wrong.
"""

import hashlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

__all__ = ["EPOCH_MS", "Call", "Process", "ProcessDead", "Stuck", "World"]

EPOCH_MS: Final = 1_700_000_000_000  # when every simulation begins
TURNS_MAX: Final = 2_000_000  # calls of one simulation: more is a loop that never waits


class ProcessDead(BaseException):
    """Raised inside of a process that was killed, wherever it stands: nothing may handle this."""


class Stuck(Exception):
    """Nothing is left to happen, or it happens without end."""


class Call:
    """One call that will be made; `cancel` takes it back."""

    __slots__ = ("arguments", "call", "process", "when")

    def __init__(
        self,
        when: float,
        process: "Process | None",
        call: Callable[..., object] | None,
        arguments: tuple[object, ...],
    ) -> None:
        self.when = when
        self.process = process
        self.call = call
        self.arguments = arguments

    def cancel(self) -> None:
        self.call = None


class Process:
    """What runs on one simulated machine from a start to an end."""

    def __init__(self, world: "World", name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_stopped = False
        self.busy_until = 0.0
        # Seconds that each call takes, drawn from an exponential distribution; 0: none.
        self.slowness_s = 0.0
        # Wall clock, beside the true one, in ms; it may be changed at any time.
        self.clock_ahead_ms = 0
        # Seconds of this process's clocks in a true one.
        self.clock_rate = 1.0
        self._held: list[Call] = []
        # Called when the process is killed, in order.
        self.at_end: list[Callable[[], None]] = []

    def epoch_ms(self) -> int:
        """The wall clock as this process reads it."""
        return EPOCH_MS + self.clock_ahead_ms + int(self.world.now * self.clock_rate * 1000)

    def monotonic(self) -> float:
        """Its clock that nobody sets."""
        return self.world.now * self.clock_rate

    def after(self, delay_s: float, call: Callable[..., object], *arguments: object) -> Call:
        """Make this call in that many true seconds."""
        return self.world.at(self.world.now + delay_s, self, call, *arguments)

    def stop(self) -> None:
        """As SIGSTOP: nothing happens in it until `go_on`."""
        self.is_stopped = True

    def go_on(self) -> None:
        self.is_stopped = False
        held, self._held = self._held, []
        for call in held:
            if call.call is not None:
                self.world.again(call, self.world.now)

    def hold(self, call: Call) -> None:
        self._held.append(call)

    def kill(self) -> None:
        """As SIGKILL: it has done what it has done, and does nothing any more."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._held.clear()
        ends, self.at_end = self.at_end, []
        for end in ends:
            end()


class World:
    """The queue, the time, and where chance comes from."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.turns = 0
        self.current: Process | None = None
        self._blocked: tuple[Process, ...] = ()  # each waits inside of a call of its only thread
        self._queue: list[tuple[float, int, Call]] = []
        self._sequence = 0
        self._digest = hashlib.blake2b(digest_size=8)
        # What happened, for people: (seconds, who, what).
        self.history: list[tuple[float, str, str]] = []
        # A promise that was broken, wherever somebody found that: nothing more happens then.
        self.failure: Exception | None = None

    def chance(self, purpose: str) -> Random:
        """A source of chance for one purpose: what one of them draws does not change what another does."""
        return Random(f"{self.seed} {purpose}")

    def note(self, who: str, what: str) -> None:
        """One line of the history; it counts in the digest."""
        self.history.append((self.now, who, what))
        self._digest.update(f"{self.now:.9f} {who} {what}\n".encode())

    @property
    def digest(self) -> str:
        """Equal for runs in which the same happened at the same times."""
        return f"{self._digest.hexdigest()}-{self.turns}"

    def at(
        self, when: float, process: Process | None, call: Callable[..., object], *arguments: object
    ) -> Call:
        """Make this call at that time, in that process; in none: whatever becomes of processes."""
        self._sequence += 1
        made = Call(when, process, call, arguments)
        heappush(self._queue, (when, self._sequence, made))
        return made

    def again(self, call: Call, when: float) -> None:
        """Ask for a call later than it was asked for."""
        self._sequence += 1
        call.when = when
        heappush(self._queue, (when, self._sequence, call))

    def run(self, until: Callable[[], bool], blocked: Process | None = None) -> None:
        """Let things happen until that holds. The calls of a process that is `blocked` (its one thread waits inside of
        a call) come afterwards, but for those that are made by none of its loops; so do those of others that wait
        already, inside of whose calls this one is made."""
        before = self._blocked
        if blocked is not None:
            self._blocked = (*before, blocked)
        try:
            while not until():
                self.turn()
        finally:
            self._blocked = before

    def run_on(self, until: Callable[[], bool], step_s: float) -> None:
        """Let things happen until that holds; it is asked once in so many seconds."""
        queue = self._queue
        while not until():
            next_look = self.now + step_s
            while self.now < next_look:
                if not queue:
                    raise Stuck(f"nothing happens any more after {self.now:.3f} s")
                call = heappop(queue)[2]
                made, process = call.call, call.process
                if made is None:
                    continue
                if process is not None:
                    if not process.is_alive:
                        continue
                    if process.is_stopped:
                        process.hold(call)
                        continue
                    if process.busy_until > call.when:
                        self.again(call, process.busy_until)
                        continue
                self._make(call, made, process)

    def turn(self) -> None:
        """Make the next call."""
        waiting: list[tuple[float, int, Call]] = []
        blocked = self._blocked
        while True:
            if not self._queue:
                raise Stuck(f"nothing happens any more after {self.now:.3f} s")
            entry = heappop(self._queue)
            call = entry[2]
            made, process = call.call, call.process
            if made is None:
                continue
            if process is not None:
                if not process.is_alive:
                    continue
                if process.is_stopped:
                    process.hold(call)
                    continue
                if process in blocked and not getattr(made, "of_a_thread", False):
                    waiting.append(entry)
                    continue
                if process.busy_until > call.when:
                    self.again(call, process.busy_until)
                    continue
            break
        for left in waiting:
            heappush(self._queue, left)
        self._make(call, made, process)

    def _make(self, call: Call, made: Callable[..., object], process: Process | None) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Stuck(f"{TURNS_MAX} calls, and no end")
        if call.when > self.now:
            self.now = call.when
        before, self.current = self.current, process
        try:
            made(*call.arguments)
        finally:
            self.current = before
        if self.failure is not None:
            raise self.failure
