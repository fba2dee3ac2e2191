"""What senders are promised, and the wait until it is so.

Touches  nothing: it reads how far its sources are, and tells those who wait.

A promise is made for everything that is appended so far. It is kept when each of the sources has that: the disk, later
a replica, in any number. `kept_offset` is the smallest of their offsets. Without a source a promise is kept by the
append. Promises wait in order of their log position; one that waits for a source longer than that source's time is
refused with its code: stored, but not known to be safe. So is whatever waits when the broker stops. Who waits for
`settled` alone, and answers nobody, waits for as long as it takes.

A master by election may answer as long as nobody else can be one: `may_answer` is asked at the moment of each answer.

Invariants
- Nothing is kept beyond `kept_offset`.
- Nothing is kept once `may_answer` has said no.
- Nothing is kept after a failure: whatever waits is refused, and whatever comes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from aerobee_proto.codes import ResponseCode
from aerobee_store.faults.errors import NotMaster, StoreError, StorePoisoned

__all__ = ["AppendedLog", "NotYetSafe", "Promised", "Promises", "PutMeter", "Source"]

log = structlog.get_logger()

TICK_MAX_S: Final = 0.5  # a time-out that was made shorter is followed within it
TICK_MIN_S: Final = 0.001


class NotYetSafe(StoreError):
    """It is stored, but not as safe as promised, and is not waited for any longer; `code` says what it lacks."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        lacks = (
            "on disk" if self.code == ResponseCode.FLUSH_DISK_TIMEOUT else "at as many slaves as it has to be"
        )
        return f"it is stored, but it is not known to be {lacks}"


class AppendedLog(Protocol):
    """The part of the store that this module needs."""

    @property
    def end_offset(self) -> int:
        """Physical offset one past the last byte appended."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the store has failed, whichever thread met it; `fail` is called soon then."""
        ...


class Source(Protocol):
    """A place that appended bytes have to reach. Who moves its offset tells `Promises.advanced` of it."""

    @property
    def offset(self) -> int:
        """Physical offset below which it has everything; it never falls."""
        ...

    @property
    def late_code(self) -> int:
        """Response code of a send that this source has not had in time."""
        ...

    def log_late(self, peer: str, message_count: int) -> None:
        """Say that these sends of a peer have waited too long for it."""

    def timeout_ms(self) -> int:
        """Longest wait for this source; asked for at each use, as it may be changed in a running broker."""
        ...

    def request(self) -> None:
        """See that it soon has what is appended. Called very often."""
        ...


class Promised(Protocol):
    """Sends that have one promise together. Exactly one of its methods is called, once."""

    @property
    def peer(self) -> str:
        """Who sent them, for the log."""
        ...

    @property
    def count(self) -> int:
        """How many sends they are."""
        ...

    def keep(self) -> None:
        """They are as safe as promised."""

    def refuse(self, code: int) -> None:
        """They are not, or not in time; `code` says why."""


class PutMeter(Protocol):
    """Who wants to know how long sends wait."""

    def put_took(self, took_ms: float, count: int = 1) -> None:
        """`count` sends were answered, the first of them after `took_ms`."""


class _Waiting(NamedTuple):
    end_offset: int
    begun: float  # by the event loop's clock
    promised: Promised


class _Settling(NamedTuple):
    end_offset: int
    begun: float
    done: asyncio.Future[None]
    in_time: bool  # as long as a send waits


class Promises:
    """All promises that are not kept yet. All calls from the event loop."""

    def __init__(
        self,
        sources: Sequence[Source],
        store: AppendedLog,
        *,
        meter: PutMeter,
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        """`may_answer` says whether this broker is the master at this moment; without one it always is."""
        # Fixed for life.
        self._store = store
        self._may_answer = may_answer
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        # A source leaves, or one more comes, only when somebody decides so, who calls `advanced` then.
        self.sources = tuple(sources)
        self.failed: Exception | None = None
        self._waiting: deque[_Waiting] = deque()  # in order of their end offsets and of their age
        self._settling: deque[_Settling] = deque()  # in the same order
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Refuse from now on what waits too long."""
        self._timer = self._loop.call_later(self._tick_s(), self._tick)

    def close(self) -> None:
        """Refuse nothing any more for its age."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def kept_offset(self) -> int:
        """Physical offset below which everything is as safe as promised."""
        sources = self.sources
        if len(sources) == 1:  # not worth a list: this is asked for twice a read of sends
            return sources[0].offset
        return min([source.offset for source in sources]) if sources else self._store.end_offset

    @property
    def waiting_count(self) -> int:
        """Sends that wait for their promise."""
        return sum(waiting.promised.count for waiting in self._waiting)

    # --- making -----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing may be answered with success any more."""
        if self.failed is None and self._may_answer is not None and not self._may_answer():
            self.fail(NotMaster())
        return self.failed is not None

    def _check(self) -> None:
        if self.is_over:
            raise self._over()

    def _over(self) -> StoreError:
        if isinstance(self.failed, NotMaster):
            return NotMaster()
        return StorePoisoned(f"the store has failed: {self.failed}")

    def are_kept(self) -> bool:
        """Whether everything appended so far is as safe as promised. StorePoisoned, NotMaster: it never will be."""
        if self.failed is not None or self._may_answer is not None:
            self._check()
        return not self.sources or self.kept_offset >= self._store.end_offset

    def promise(self, promised: Promised) -> None:
        """`promised` is told when everything appended so far is as safe as promised, or when it will not be; never
        within this call. To be asked for only when `are_kept` has said no."""
        self._waiting.append(_Waiting(self._store.end_offset, self._loop.time(), promised))
        self.hurry()

    async def settled(self, *, in_time: bool = False) -> None:
        """Return when everything appended so far is as safe as promised. StorePoisoned, NotMaster: it never will be;
        NotYetSafe: the broker stops, or with `in_time` a send would not be waited for any longer."""
        self._check()
        end_offset = self._store.end_offset
        if self.kept_offset >= end_offset:
            return
        done = self._loop.create_future()
        self._settling.append(_Settling(end_offset, self._loop.time(), done, in_time))
        self.hurry()
        await done

    def hurry(self) -> None:
        """See that what is appended is soon as safe as it is promised to be; nobody need wait for it."""
        for source in self.sources:
            source.request()

    # --- keeping ----------------------------------------------------------------------------------------------

    def advanced(self) -> None:
        """A source has moved, or the sources have changed: keep what can be kept now."""
        if self.is_over or self._store.has_failed:
            return
        kept_offset = self.kept_offset
        waiting = self._waiting
        begun, count = (waiting[0].begun if waiting else 0.0), 0
        while waiting and waiting[0].end_offset <= kept_offset:
            promised = waiting.popleft().promised
            count += promised.count
            promised.keep()
        if count:
            # Once a call, with the time of the send that waited longest: nothing is measured for each message.
            self._meter.put_took((self._loop.time() - begun) * 1000, count)
        while self._settling and self._settling[0].end_offset <= kept_offset:
            done = self._settling.popleft().done
            if not done.done():
                done.set_result(None)

    def fail(self, failed: Exception) -> None:
        """Nothing is promised any more: refuse what waits and whatever comes. Only the first call counts."""
        if self.failed is not None:
            return
        self.failed = failed
        if self._waiting:
            log.warning("broker.sends_abandoned", reason=str(failed), waiting_count=self.waiting_count)
        while self._waiting:
            self._waiting.popleft().promised.refuse(ResponseCode.SERVICE_NOT_AVAILABLE)
        while self._settling:
            done = self._settling.popleft().done
            if not done.done():
                done.set_exception(self._over())

    def give_up(self) -> None:
        """The broker stops, and nothing that waits becomes any safer: refuse all of it, with what it lacks."""
        if (self._waiting or self._settling) and self.is_over:
            return
        if self._waiting:
            log.warning("broker.sends_abandoned", reason="the broker stops", waiting_count=self.waiting_count)
        while self._waiting:
            waiting = self._waiting.popleft()
            waiting.promised.refuse(self._lacking(waiting.end_offset))
        while self._settling:
            self._refuse_settling(self._settling.popleft())

    def _lacking(self, end_offset: int) -> int:
        """Why something that ends there is not safe."""
        late = next((source for source in self.sources if source.offset < end_offset), None)
        return ResponseCode.SERVICE_NOT_AVAILABLE if late is None else late.late_code

    def _refuse_settling(self, settling: _Settling) -> None:
        if not settling.done.done():
            settling.done.set_exception(NotYetSafe(self._lacking(settling.end_offset)))

    def _tick(self) -> None:
        """Refuse what has waited too long; it is at the head, since promises are made in order."""
        now = self._loop.time()
        if (self._waiting or self._settling) and self.is_over:
            return
        while self._waiting and (source := self._late_source(self._waiting[0], now)) is not None:
            late = self._waiting.popleft()
            source.log_late(late.promised.peer, late.promised.count)
            # One that has it all by now: the store has failed just now.
            has_it = source.offset >= late.end_offset
            late.promised.refuse(ResponseCode.SERVICE_NOT_AVAILABLE if has_it else source.late_code)
        self._settling = deque(one for one in self._settling if not self._is_late(one, now))
        self._timer = self._loop.call_later(self._tick_s(), self._tick)

    def _is_late(self, settling: _Settling, now: float) -> bool:
        """Whether it was refused for its age, or nobody waits any more."""
        if settling.in_time and self._late_source(settling, now) is not None:
            self._refuse_settling(settling)
        return settling.done.done()

    def _late_source(self, waiting: _Waiting | _Settling, now: float) -> Source | None:
        """The first source that was waited for too long: one that does not have it, unless all have."""
        sources = [source for source in self.sources if source.offset < waiting.end_offset] or self.sources
        return next((one for one in sources if waiting.begun <= now - one.timeout_ms() / 1000), None)

    def _tick_s(self) -> float:
        shortest_s = min((source.timeout_ms() for source in self.sources), default=TICK_MAX_S * 1000) / 1000
        return min(max(shortest_s, TICK_MIN_S), TICK_MAX_S)
