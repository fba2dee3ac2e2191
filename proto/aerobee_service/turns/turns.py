"""Turns: who is served when more is asked for than one turn of the event loop should handle.

Touches  the event loop's `call_soon`, a clock.

A read can hold a thousand requests, and every connection can have one ready in the same turn of the loop. Whoever
asks for little then waits for all that the others want. So one connection works for `SLICE_S` at a time, and all
of them together for `TURN_S` in a turn; what is left stands in a row.

    read, and nobody waits, or only such as have used more    handled at once, for a slice
    read otherwise                                            the connection joins the row
    next turn of the loop                                     slices from the row for `ROW_S`, then new reads

Where it is contended, as somebody has more to do than a slice, or comes with a whole one again and again, and others
ask too, slices, turns and `ROW_S` are shorter, and what a thread brings to the loop (`hurry`) is done before them, and
before what has been read since: who asks for little waits for up to three turns, until it is read, until its message is
on its way to the disk, until that is known. Where all ask for little at a time, or one alone for much, long slices cost
less.

The row is one of hosts, and each host has one of its connections. Who has used least of the event loop comes first, of
the hosts and then of that host's connections, and is charged for what its slice took. What a host has used is what all
its connections have, those too that are gone: more connections bring it nothing. A proxy, or the machine itself, may be
the host of everybody; so within a host, too, who comes, asks and goes again and again has the share of one that stays:

    connections that were not served yet            share one place, in order, each for `FIRST_S`: enough for a few
    those that have come within the last `NEW_S`    share another one; who has used least comes first
    all others                                      have a place of their own

"Used" is counted as virtual time: who has asked for nothing for long is brought up to `CREDIT_S` behind the one who is
served at present when it joins, so nobody saves up. That is why a peer that asks for little is served before those who
continue, and why it cannot keep them waiting when it asks for much.

Small control requests (`Entry.overtakes`) of connections with a place of their own need not stand in the row while
`spares` says so, `CONTROL_S` in a turn for all of them; behind that, and for others, they are the first that their own
connection handles when it has its slice. A task that works for a peer in steps waits for `pause` between two of them.

Invariants
- A connection stands in the row at most once, and so does a host.
- Nobody is served while another host waits that has used less by more than a slice and what it overran.
- A turn ends with the slice during which its time ran out.
- Whoever waits is served: what it has used stays, and what is served before it grows.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from aerobee_service.turns.wakefulness import Wakefulness

__all__ = [
    "AT_ONCE",
    "CONTENDED_S",
    "CONTROL_S",
    "CREDIT_S",
    "FIRST_S",
    "LARGE_READ_SIZE",
    "LATER",
    "NEW_S",
    "READS_MAX",
    "ROW_S",
    "SLICE_S",
    "TURN_S",
    "WHOLE_S",
    "Account",
    "Turns",
    "Waiting",
]

TURN_S: Final = 0.004
# Of a turn, for those who stand in the row: who is ahead of them may just have sent something.
ROW_S: Final = 0.001
SLICE_S: Final = 0.001
CONTROL_S: Final = 0.001  # of a turn, for requests that do not wait in the row
CREDIT_S: Final = 0.001  # that somebody who comes back to the row may have used less than those who stayed
FIRST_S: Final = 0.0005  # instead of a slice, for a connection that was not served yet
READS_MAX: Final = 2  # of one connection in a turn; each has up to 256 KiB
# Bytes of a read that is the only one of its connection in a turn: to take them from the system and to keep them takes
# 0.2 to 0.5 ms, most of it before this module is asked.
LARGE_READ_SIZE: Final = 128 * 1024
CONTENDED_S: Final = 0.1  # from one time that it is contended until it no longer is
CONTENDED_PART: Final = 0.5
WHOLE_S: Final = 0.02  # within which a second read takes a whole slice where somebody has much to do
NEW_S: Final = 1.0  # for which a connection shares its place with others of its host
HOSTS_GONE_MAX: Final = (
    1024  # hosts without connections that are remembered because they have used more than others
)
AT_ONCE: Final = float("inf")  # a deadline that never comes
LATER: Final = 0.0  # instead of a deadline: the turn is over, or others wait


class _Using:
    """Who stands in a row: a host, or a place among its connections."""

    __slots__ = ("stands", "used")

    def __init__(self, used: float) -> None:
        self.used = used  # virtual seconds of the event loop
        self.stands = False  # in its row, or is being served


U = TypeVar("U", bound=_Using)


class _Row(Generic[U]):
    """Who has used least comes first; of those who have used the same, who joined first."""

    __slots__ = ("_heap", "_numbers", "credit_s", "present")

    def __init__(self, credit_s: float) -> None:
        self.credit_s = credit_s
        # What the one who was served last, or most, had used: virtual time. It only grows.
        self.present = 0.0
        # As it was when it joined; what it is charged since then is looked at when it is to be the first.
        self._heap: list[tuple[float, int, U]] = []
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def join(self, one: U) -> None:
        one.used = max(one.used, self.present - self.credit_s)
        heappush(self._heap, (one.used, next(self._numbers), one))

    def first(self) -> U:
        """Who is served next; there must be somebody."""
        heap = self._heap
        while True:
            used, _, one = heap[0]
            if one.used <= used:
                return one
            heapreplace(heap, (one.used, next(self._numbers), one))

    def take(self) -> U:
        """The first, who no longer stands here."""
        one = self.first()
        heappop(self._heap)
        self.present = max(self.present, one.used)
        return one


class _Place(_Using):
    """Of one connection, or of several that follow each other."""

    __slots__ = ("_waiting",)

    def __init__(self, used: float) -> None:
        super().__init__(used)
        self._waiting: deque[Waiting] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, one: "Waiting") -> None:
        self._waiting.append(one)

    def take(self) -> "Waiting":
        return self._waiting.popleft()


class _SharedPlace(_Place):
    """Of several connections; who has used least comes first."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self, used: float) -> None:
        super().__init__(used)
        self._heap: list[tuple[float, int, Waiting]] = []
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, one: "Waiting") -> None:
        heappush(self._heap, (one.account.used, next(self._numbers), one))

    def take(self) -> "Waiting":
        return heappop(self._heap)[2]


class _Host(_Using):
    """The connections of one address."""

    __slots__ = ("connections", "fresh", "name", "new", "row")

    def __init__(self, name: str, used: float, credit_s: float) -> None:
        super().__init__(used)
        self.name = name
        self.connections = 0
        self.row: _Row[_Place] = _Row(credit_s)
        self.fresh = _Place(0.0)  # of those that were not served yet
        self.new = _SharedPlace(0.0)


class Account:
    """Whom the time of one connection is charged to. Made by `Turns.open`."""

    __slots__ = ("came", "host", "in_turn_s", "is_new", "place", "reads", "turn", "used")

    def __init__(self, host: _Host, came: float) -> None:
        self.host = host
        self.place: _Place = host.fresh
        self.is_new = True  # it has no place of its own
        self.came = came
        self.used = 0.0  # seconds of the event loop, since it came
        self.in_turn_s = 0.0  # for reads, in the turn with this number
        self.reads = 0  # in that turn
        self.turn = 0


class Waiting(Protocol):
    """Who stands in the row."""

    @property
    def account(self) -> Account:
        """Of the connection that it works for."""

    def go_on(self, deadline: float) -> bool:
        """Work until `deadline` of the clock; whether something is left."""


class _Pause:
    """A task that waits for its turn."""

    def __init__(self, account: Account, done: "asyncio.Future[None]") -> None:
        self.account = account
        self.done = done

    def go_on(self, deadline: float) -> bool:
        if not self.done.done():
            self.done.set_result(None)
        return False


class Turns:
    """One row for all connections of a server. All calls from the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        turn_s: float | None = None,
        slice_s: float | None = None,
        contended_part: float = CONTENDED_PART,
        look_s: float = 0.0,
    ) -> None:
        """`contended_part`: how long slices are where it is contended, of those elsewhere; `look_s`: how long the loop
        may look for the next read before it sleeps (`Wakefulness`)."""
        # Fixed for life.
        self.clock = clock
        self._turn_s = TURN_S if turn_s is None else turn_s
        self._row_s = ROW_S if turn_s is None else turn_s / 2
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._contended_part = contended_part
        self._credit_s = CREDIT_S if slice_s is None else slice_s
        self._control_s = CONTROL_S if slice_s is None else slice_s
        self._first_s = FIRST_S if slice_s is None else slice_s
        self._loop = asyncio.get_running_loop()
        # Moved by open() and close().
        self._hosts: dict[str, _Host] = {}
        self._gone: OrderedDict[str, _Host] = OrderedDict()  # without connections, and not yet caught up with
        # Moved by enter(), join() and _run().
        self._row: _Row[_Host] = _Row(self._credit_s)
        self._count = 0  # that wait
        self._began = 0.0  # this turn; holds while `_next` is armed
        self._next = False
        self._number = 0  # of this turn
        self._last: Account | None = None  # who was served last
        self._changed = 0.0  # when that was another one than before
        self._contended_until = 0.0
        self._whole_at = -WHOLE_S  # when a read took a whole slice
        self._entered = 0.0  # when who is served at once began
        self._wakefulness = Wakefulness(look_s)
        # Set by hurry(), from whatever thread.
        self._is_hurried = False
        self._spared = 0.0  # seconds of this turn that control requests have had

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    @property
    def host_count(self) -> int:
        """Hosts with connections, and those that are remembered."""
        return len(self._hosts) + len(self._gone)

    # --- connections ------------------------------------------------------------------------------------------

    def open(self, host_name: str) -> Account:
        """A connection of this host has come."""
        host = self._hosts.get(host_name)
        if host is None:
            host = self._gone.pop(host_name, None) or _Host(host_name, self._row.present, self._credit_s)
            self._hosts[host_name] = host
        host.connections += 1
        return Account(host, self.clock())

    def close(self, account: Account) -> None:
        """It is gone; what still waits of it is served in its turn."""
        host = account.host
        host.connections -= 1
        if host.connections:
            return
        del self._hosts[host.name]
        if host.used > self._row.present or host.stands:
            # Else whoever goes and comes back would owe nothing.
            self._gone[host.name] = host
            if len(self._gone) > HOSTS_GONE_MAX:
                self._gone.popitem(last=False)

    def charge(self, account: Account, took_s: float) -> None:
        """It has caused this much work, outside its slices."""
        host, place = account.host, account.place
        host.used += took_s
        place.used += took_s
        account.used += took_s
        if not self._count:
            # What it has used while nobody waited is the present: those who come later have missed nothing.
            row, places = self._row, host.row
            if host.used > row.present:
                row.present = host.used
            if place.used > places.present:
                places.present = place.used

    # --- at once ----------------------------------------------------------------------------------------------

    def enter(self, account: Account) -> float:
        """A connection has read something: until when it may work on it, or LATER. `left` has to follow."""
        now = self._entered = self.clock()
        if account is not self._last:
            self._last, self._changed = account, now
        part = 1.0 if now >= self._contended_until else self._contended_part
        if not self._next:
            self._arm(now)
        elif (
            self._is_hurried
            or now - self._began >= self._turn_s * part
            or (self._count and not self._is_ahead(account))
        ):
            return LATER
        return now + self._slice_s * part

    def left(self, account: Account, size: int, *, is_served: bool) -> bool:
        """It has worked on the `size` bytes that it read, or has put them aside. Whether it has had its slice of this
        turn by now: it should read no more before it has another one. (The event loop reads up to 32 times from one
        socket, and waits for the interpreter each time, where a thread is at work.)"""
        now, entered = self.clock(), self._entered
        self._wakefulness.served(entered, now)
        took_s = now - entered
        self.charge(account, took_s)
        if is_served and account.is_new:
            self._settle(account, now)
        if account.turn != self._number:
            account.turn, account.in_turn_s, account.reads = self._number, 0.0, 0
        account.in_turn_s += took_s
        account.reads += 1
        if took_s >= self._length(self._slice_s, now):
            # Once is no sign: somebody else may have had the processor.
            if now - self._whole_at < WHOLE_S:
                self._wants_more(now)
            self._whole_at = now
        return account.in_turn_s >= self._slice_s or account.reads >= READS_MAX or size >= LARGE_READ_SIZE

    def spares(self, account: Account) -> bool:
        """Whether a control request may be handled without waiting. `spared` is told how long it took."""
        if not self._next:
            self._arm(self.clock())
        return self._spared < self._control_s and not account.is_new

    def spared(self, took_s: float) -> None:
        """A control request has taken this long, which `left` charges with the read that it came in."""
        self._spared += took_s

    def pause(self, account: Account) -> "asyncio.Future[None]":
        """Done when a task may do its next step for this connection. Who runs the task charges what the step takes."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._wants_more(self.clock())
        self.join(_Pause(account, done))
        return done

    # --- where some have much to do and others ask, too -------------------------------------------------------

    @property
    def is_contended(self) -> bool:
        """Whether somebody had a slice's work or more, again and again, and others were served too, within the last
        CONTENDED_S. Any thread may ask."""
        return self.clock() < self._contended_until

    def hurry(self) -> None:
        """Others may wait for what the event loop was just given: that is done before the next slices, and before what
        is read until then, where it is contended. Any thread may call this, behind its `call_soon_threadsafe`."""
        self._is_hurried = self.is_contended

    def step_s(self, usual_s: float) -> float:
        """How long a step of a task is to be that takes as long as this elsewhere."""
        return self._length(usual_s, self.clock())

    def _wants_more(self, now: float) -> None:
        """Somebody has more to do than it has just done."""
        if now - self._changed < CONTENDED_S:
            self._contended_until = now + CONTENDED_S

    def _length(self, usual_s: float, now: float) -> float:
        """Of a slice, a turn, or the row's part of one."""
        return usual_s if now >= self._contended_until else usual_s * self._contended_part

    def _is_ahead(self, account: Account) -> bool:
        """Whether it would be the first in the row."""
        host, place, row = account.host, account.place, self._row
        if max(host.used, row.present - self._credit_s) > row.first().used:
            return False
        if not host.row:
            return not host.stands
        return not place.stands and place.used < host.row.first().used

    # --- the row ----------------------------------------------------------------------------------------------

    def join(self, one: Waiting) -> None:
        """Stand in the row; who stands there already must not join again."""
        if not self._next:
            self._arm(self.clock())
        self._join(one)

    def _join(self, one: Waiting) -> None:
        account = one.account
        host, place = account.host, account.place
        self._count += 1
        place.add(one)
        if not place.stands:
            place.stands = True
            host.row.join(place)
        if not host.stands:
            host.stands = True
            self._row.join(host)

    @staticmethod
    def _settle(account: Account, now: float) -> None:
        """It was served: in time it gets a place of its own, where it has missed nothing."""
        host = account.host
        if now - account.came >= NEW_S:
            account.place = _Place(host.row.present)
            account.is_new = False
        else:
            account.place = host.new

    def _arm(self, now: float) -> None:
        self._next = True
        self._number += 1
        self._began = now
        self._spared = 0.0
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        """The next turn has begun."""
        clock = self.clock
        if self._is_hurried:
            self._is_hurried = False
            self._loop.call_soon(self._run)
            return
        now = clock()
        if not self._count and not self._wakefulness.looks(now):
            self._next = False
            return
        self._arm(now)
        for _ in range(self._count):
            is_pause = isinstance(self._serve(now), _Pause)
            now = clock()
            if is_pause or now - self._began >= self._length(self._row_s, now):
                return  # the step of a task comes behind this, and takes as long as it takes

    def _serve(self, now: float) -> Waiting:
        """A slice for the first of the row, and who that was."""
        host = self._row.take()
        place = host.row.take()
        one = place.take()
        self._count -= 1
        goes_on = False
        if one.account is not self._last:
            self._last, self._changed = one.account, now
        length_s = self._first_s if place is host.fresh else self._length(self._slice_s, now)
        try:
            goes_on = one.go_on(now + length_s)
        finally:
            now, began = self.clock(), now
            if goes_on:
                self._wants_more(now)
            host.used += now - began
            place.used += now - began
            account = one.account
            account.used += now - began
            if account.is_new:
                self._settle(account, now)
            if goes_on:
                self._join(one)
            if place:
                host.row.join(place)
            else:
                place.stands = False
            if host.row:
                self._row.join(host)
            else:
                host.stands = False
        return one
