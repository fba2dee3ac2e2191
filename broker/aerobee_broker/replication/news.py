"""News of a master's tables for its slaves, and how far they have taken them. Ours alone: 31994 WATCH_TABLES

Touches  nothing: a request of each slave waits here until there is news.

    a slave asks     what it has taken, by the numbers of an earlier answer, and waits
    the master       answers with new numbers as soon as a table has changed; of the offsets of groups with the changes
                     themselves, gathered for GATHER_S, of the others that they are to be read anew
    it asks again    by which the master knows that it has them

Numbers count changes from the beginning of this life of the master; `life` names it.

Invariants
- What a slave has said to have taken it has: it asks with a number when the tables behind it are in its files.
- A slave that is in sync and has not asked in this life has nothing yet. It may be that it is refused: nobody waits for
  it longer than TAKEN_S.
- A member that is here with another store has nothing yet, whatever the one before it had.
- An answer speaks of nothing that lies behind its `end_offset` in the log.
- At most MEMBERS_MAX requests wait, one of each member: with its next one the one before is answered at once.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import WatchTablesHeader
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import UPDATE, on_cluster

__all__ = ["News", "TableNews", "Taken"]

GATHER_S: Final = 0.1
HOLD_MAX_S: Final = 30.0
CHANGES_MAX: Final = 2000  # keys of offsets in one answer; with more all are read
LOOK_S: Final = 0.1  # between two looks whether a slave is still waited for
TAKEN_S: Final = 3.0  # longest wait for slaves
MEMBERS_MAX: Final = 64  # whose numbers are kept


class Taken(NamedTuple):
    """What a slave has of the tables: numbers of an answer in this life of the master; -1: nothing."""

    life: str
    tables: int
    offsets: int


NOTHING: Final = Taken("", -1, -1)


class News(NamedTuple):
    """What there is: the slave has it as `taken` when it has read and taken it. `changes` None: all offsets are to be
    read."""

    taken: Taken
    end_offset: int
    done_below: int  # physical offset below which no timer message waits; 0: nothing is said of it
    changes: Mapping[str, Mapping[int, int]] | None


class TableNews:
    """Of one life of a master. All calls from the event loop."""

    def __init__(
        self,
        number: Callable[[], int],
        offsets: ConsumerOffsets,
        end_offset: Callable[[], int],
        *,
        moved: asyncio.Event,
        keepers: Callable[[], Collection[int] | None],
        may_answer: Callable[[], bool] | None,
        done_below: Callable[[], int] = lambda: 0,
        store_of: Callable[[int], str] = lambda member: "",
    ) -> None:
        """`number` grows with each change of topics, groups, request modes, users and policies, and `moved` is set
        then. `keepers` are the members that have to have a change before it is answered; None: that is not known yet.
        `may_answer` says whether this broker is the master at the moment; without one it always is. `done_below` says
        where timer messages begin to wait, `store_of` which store a member follows with; "": that is not known."""
        self._store_of = store_of
        self._done_below = done_below
        self._number = number
        self._offsets = offsets
        self._end_offset = end_offset
        self._keepers = keepers
        self._may_answer = may_answer
        self._life = secrets.token_hex(8)
        self._moved = moved
        self._heard = asyncio.Event()
        self._taken: dict[int, tuple[Taken, str]] = {}  # and with which store
        # member -> how long its newest request waits, while it does
        self._waiting: dict[int, asyncio.Timeout] = {}
        self._closed = False

    # --- what slaves ask --------------------------------------------------------------------------------------

    def register(self, table: HandlerTable) -> None:
        """Add the handler to a table."""
        table.register(
            RequestCode.WATCH_TABLES, self.give, header=WatchTablesHeader, needs=(on_cluster(UPDATE),)
        )

    async def give(self, request: Request[WatchTablesHeader]) -> Response:
        """What a slave does not have, when there is something; the body has changes of offsets, none: read all."""
        header = request.header
        taken = Taken(header.life, header.tables, header.offsets)
        news = await self.next(header.member, taken, header.millis / 1000)
        fields = {
            "life": news.taken.life,
            "tables": str(news.taken.tables),
            "offsets": str(news.taken.offsets),
            "endOffset": str(news.end_offset),
            "doneBelow": str(news.done_below),
        }
        body = b"" if news.changes is None else msgspec.json.encode({"offsetTable": news.changes})
        return Response(ext=fields, body=body)

    async def next(self, member: int, taken: Taken, hold_s: float) -> News:
        """What this member of the set does not have; waits for so long at most until there is something. RequestError:
        too many wait."""
        if member not in self._waiting and len(self._waiting) >= MEMBERS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{MEMBERS_MAX} members are waiting for news already: no set has so many",
            )
        self._offsets.keep_journal(self._moved.set)
        here = self._now()
        if taken.life != self._life or taken.tables > here.tables or taken.offsets > here.offsets:
            taken = NOTHING
        self._hear(member, taken)
        self._release(member)
        mine = self._waiting[member] = asyncio.timeout(min(max(hold_s, 0.0), HOLD_MAX_S))
        try:
            async with mine:
                while self._now() == taken and not self._closed:
                    self._moved.clear()
                    await self._moved.wait()
                if self._number() == taken.tables and not self._closed:
                    await self._gathered(taken.tables)
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(member) is mine:
                del self._waiting[member]
        now = self._now()
        changes = self._offsets.changed_since(taken.offsets, CHANGES_MAX)
        return News(now, self._end_offset(), self._done_below(), changes)

    def _release(self, member: int) -> None:
        """Whoever waits for this member's news waits no more."""
        before = self._waiting.pop(member, None)
        if before is not None and not before.expired():
            before.reschedule(0.0)

    def _hear(self, member: int, taken: Taken) -> None:
        if member not in self._taken and len(self._taken) >= MEMBERS_MAX:
            keepers = self._keepers() or ()
            for other in [one for one in self._taken if one not in keepers]:
                del self._taken[other]
        if member in self._taken or len(self._taken) < MEMBERS_MAX:
            self._taken[member] = taken, self._store_of(member)
            self._heard.set()

    async def _gathered(self, tables: int) -> None:
        """Wait for more offsets; other tables are told at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while self._number() == tables and not self._closed:
                    self._moved.clear()
                    await self._moved.wait()

    def _now(self) -> Taken:
        return Taken(self._life, self._number(), self._offsets.revision)

    def _taken_by(self, member: int) -> Taken:
        taken, store = self._taken.get(member, (NOTHING, ""))
        here = self._store_of(member)
        return NOTHING if store and here and store != here else taken

    def has_all(self, member: int) -> bool:
        """Whether it has said that it has everything as it is now."""
        return self._has(member, self._now(), offsets=True)

    def tables_of(self, member: int) -> tuple[int, int]:
        """Numbers of the last change of the tables, but offsets, that it has said to have, and that there was."""
        return self._taken_by(member).tables, self._number()

    # --- what is promised -------------------------------------------------------------------------------------

    async def taken(self, *, offsets: bool = False) -> None:
        """Return when the slaves that are waited for have all tables as they are now, with `offsets` those of groups,
        too. RequestError: not in time, or this broker is not the master any more; the change stands here."""
        standing = self._now()
        late = self._late(standing, offsets=offsets)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKEN_S):
                while late:
                    self._heard.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await self._heard.wait()
                    late = self._late(standing, offsets=offsets)
        if self._may_answer is not None and not self._may_answer():
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker is not the master any more: the change may be lost; look at the new one",
            )
        if late:
            raise RequestError(
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
                f"the change is in effect here, but within {TAKEN_S:.0f} s it was not at {late}: it is lost if one of "
                "them becomes the master now",
            )

    def _late(self, standing: Taken, *, offsets: bool) -> str:
        """Who does not have it; "": nobody."""
        keepers = self._keepers()
        if keepers is None:
            return "the members in sync, of whom nothing is known yet"
        late = sorted(one for one in keepers if not self._has(one, standing, offsets=offsets))
        return f"the members in sync {', '.join(map(str, late))}" if late else ""

    def _has(self, member: int, standing: Taken, *, offsets: bool) -> bool:
        taken = self._taken_by(member)
        return taken.tables >= standing.tables and (not offsets or taken.offsets >= standing.offsets)

    def close(self) -> None:
        """Answer those who wait, now and from now on."""
        self._closed = True
        self._moved.set()
