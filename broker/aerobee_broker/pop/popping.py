"""Popping as a use case: check, read, hand out what there is, or wait for it.

Touches  nothing but through its parts; the account of what is kept for callers.

Invariants
- Each query is answered once: by what the call returns, by its RequestError, or later by `done`, when there is
  something or when its time is over. Who is gone by then is not answered, and is handed nothing.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from typing import Final

from aerobee_broker.members.filters import EVERYTHING, Filter, Filters, check_type
from aerobee_broker.messages.values import Caller, Failed
from aerobee_broker.pop.checks import check_attempt, check_count, check_invisible, check_retry_name
from aerobee_broker.pop.handing_out import HandingOut
from aerobee_broker.pop.held_pops import HeldPop, HeldPops
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.queue_reader import QueueReader
from aerobee_broker.pop.values import (
    ALL_QUEUES,
    Done,
    Found,
    Nothing,
    Notice,
    NoticeQuery,
    Outcome,
    Peeked,
    PopQuery,
)
from aerobee_broker.reading.cold_reads import ColdReads
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_proto.names import GroupQueue
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.turns.each_turn import EachTurn
from aerobee_service.turns.slices import Steps, begin_slices
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import StoreError
from aerobee_store.queues.consume_queue import tags_of
from aerobee_store.terms.messages import Arrival

__all__ = ["Popping"]

# A query that is so much older than its time is not worth messages.
LATE_MS: Final = 500
HOLD_MS_MAX: Final = 120_000
SERVED_MAX: Final = 64  # groups that are served in one turn of the event loop; a pop takes 150 us
AT_ONCE_MAX: Final = 1024  # that leave in one turn; one takes 6 us
GROUPS_AT_ONCE_MAX: Final = 1024  # that wait for a message and are looked at in its turn; one takes 2 us
GROUPS_A_STEP: Final = 256
MISSES_MAX: Final = 4  # of a group that were woken for nothing, then nobody else of it is
NO_MESSAGE: Final = "NO_MESSAGE_IN_QUEUE"


class Popping:
    """Pops for groups, and keeps the queries that wait. All calls from the event loop."""

    def __init__(
        self,
        reader: QueueReader,
        handing_out: HandingOut,
        orders: OrderTable,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        filters: Filters,
        memory: PeerMemory,
        cold: ColdReads,
    ) -> None:
        self._reader = reader
        self._handing_out = handing_out
        self._orders = orders
        self._live = live
        self._clock = clock
        self._filters = filters
        self.cold = cold
        self._again: dict[HeldPop, None] = {}  # they found more to look at than one pop may
        # Tags that have come, for each group that waits for them.
        self._to_serve: dict[GroupQueue, set[int]] = {}
        # Where very many groups wait: the tags that have come, and where they are being gone through.
        self._arrived: dict[tuple[str, int], set[int]] = {}
        self._waking: set[tuple[str, int]] = set()
        # How many are served, and how many are told that their time is over, in one turn.
        self.serving = EachTurn(self._serve_group, SERVED_MAX)
        self.ending = EachTurn(self._end, SERVED_MAX)
        self.held = HeldPops(
            count_max=lambda: live.value.max_pop_polling_size,
            place_max=lambda: live.value.pop_polling_size,
            memory=memory,
        )

    # --- queries ----------------------------------------------------------------------------------------------

    def pop(self, query: PopQuery, caller: Caller, done: Done) -> Found | Nothing | None:
        """Hand out messages; None when the query waits: the outcome comes by `done` then.

        RequestError: the group may not pop this, or the query is broken. NotInMemory: what there is has to be brought
        into memory; nothing was handed out, and the same can be asked again.
        """
        # Who is not there any more is handed nothing: the messages would be invisible for nobody's sake.
        now_ms = self._clock()
        born_ms = query.born_ms or now_ms
        if now_ms > born_ms + query.wait_ms + LATE_MS:
            return self._nothing("the request came too late")

        self._check(query)
        message_filter = self._filter(query)
        if self._handing_out.is_full:
            count = self._handing_out.outstanding
            return self._nothing(
                f"{count} check-points are outstanding (popCkMaxBufferSize)",
                is_full=True,
            )
        popped = self._reader.pop(query, message_filter)
        if popped.count:
            return self._handing_out.hand_out(query, popped)

        # It waits from when it was sent on, by its own clock; not longer, when that clock is ahead of ours.
        deadline_ms = min(born_ms, now_ms) + min(query.wait_ms, HOLD_MS_MAX)
        if deadline_ms <= now_ms:
            return self._nothing(NO_MESSAGE, popped.rest)
        query.expression = query.expression_type = None  # compiled by now, and long perhaps
        held = HeldPop(query, caller, deadline_ms, message_filter, done)
        try:
            is_held = self.held.hold(held)
        except LimitReached as full:
            return self._nothing("too many pops are held", popped.rest, is_full=True, limit=full)
        if not is_held:
            return self._nothing("too many pops are held", popped.rest, is_full=True)
        if popped.rest and not query.in_order:
            self._again[held] = None
        return None

    def peek(self, place: GroupQueue, count: int) -> Peeked:
        """Show the group's next messages without handing them out. Errors as of `pop`."""
        check_count(count)
        popped = self._reader.peek(place, count)
        self._handing_out.count(place.group, popped.parts)
        records: list[bytes | memoryview] = [piece for part in popped.parts for piece in part.result.body]
        return Peeked(records, popped.count, popped.rest)

    def notice(self, query: NoticeQuery, caller: Caller, done: Done) -> Notice | None:
        """Whether there are messages for the group; None when the query waits for some: it comes by `done` then.

        RequestError as for `pop`.
        """
        check_attempt(query.attempt_id)
        self._reader.check(query.place)
        if self._has_messages(query):
            return Notice(has_messages=True)
        now_ms = self._clock()
        deadline_ms = min(query.born_ms or now_ms, now_ms) + min(query.wait_ms, HOLD_MS_MAX)
        if deadline_ms <= now_ms:
            return Notice(has_messages=False)
        try:
            is_held = self.held.hold(HeldPop(query, caller, deadline_ms, EVERYTHING, done))
        except LimitReached as full:
            return Notice(has_messages=False, is_full=True, limit=full)
        return None if is_held else Notice(has_messages=False, is_full=True)

    def waiting_at(self, place: GroupQueue) -> int:
        """How many pops wait at a place. RequestError as for `pop`."""
        self._reader.check(place)
        return self.held.count_at(place)

    def _check(self, query: PopQuery) -> None:
        check_count(query.count)
        check_attempt(query.attempt_id)
        check_invisible(query.invisible_ms)
        self._reader.check(query.place)
        check_retry_name(query.place.group, query.place.topic)

    def _filter(self, query: PopQuery) -> Filter:
        filters = self._filters
        if check_type(query.expression_type, sql_enabled=self._live.value.enable_property_filter):
            return filters.tags(query.expression)
        return filters.sql(query.expression)

    def _has_messages(self, query: NoticeQuery) -> bool:
        return self._reader.has_messages(query.place, in_order=query.in_order, attempt_id=query.attempt_id)

    def _nothing(
        self, reason: str, rest: int = 0, *, is_full: bool = False, limit: LimitReached | None = None
    ) -> Nothing:
        return Nothing(reason, self._clock(), rest, is_full, limit)

    # --- waiting ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> Sized:
        """Empty when no query waits."""
        return self.held.waiting

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """These messages can be read now: serve the queries that wait for them."""
        for topic, queue_id, _, entries in arrivals:
            self.wake(topic, queue_id, entries)

    def wake(self, topic: str, queue_id: int, entries: bytes) -> None:
        """New messages of a queue: wake those that wait for them, one after the other while there are any."""
        name, groups = self.held.groups_of(topic)
        if not groups:
            return
        tag_hashes = tags_of(entries)
        place = name, queue_id if name == topic else ALL_QUEUES
        if len(groups) <= GROUPS_AT_ONCE_MAX:
            self._wake_groups(list(groups), place, tag_hashes)
            return
        # So many that to go through them takes its time: what comes meanwhile is told to all of them, too.
        self._arrived.setdefault(place, set()).update(tag_hashes)
        if place not in self._waking:
            self._waking.add(place)
            begin_slices(self._wake_all(place))

    def _wake_all(self, place: tuple[str, int]) -> Steps[None]:
        try:
            while (tag_hashes := self._arrived.pop(place, None)) is not None:
                groups = list(self.held.groups_of(place[0])[1])
                for start in range(0, len(groups), GROUPS_A_STEP):
                    self._wake_groups(groups[start : start + GROUPS_A_STEP], place, tag_hashes)
                    yield
        finally:
            self._waking.discard(place)

    def _wake_groups(
        self, groups: Sequence[str], waited_for: tuple[str, int], tag_hashes: Collection[int]
    ) -> None:
        name, queue_id = waited_for
        is_noting = self._handing_out.is_noting
        # One entry for each group, whatever else comes before its turn: the tags of all of it are put together.
        new = []
        for group in groups:
            place = GroupQueue(group, name, queue_id)
            held = self.held.of_group(*place)
            if not held:
                continue
            if is_noting:
                # A pop within a pop would be handed the same messages: the one that is going on has not moved its
                # group yet.
                self._again.update(dict.fromkeys(held))
                continue
            if place not in self._to_serve:
                self._to_serve[place] = set()
                new.append(place)
            self._to_serve[place].update(tag_hashes)
        self.serving.add(new)

    def _serve_group(self, place: GroupQueue) -> None:
        """Serve a group that a message has come for."""
        tag_hashes = self._to_serve.pop(place)
        self._serve(self.held.of_group(*place), tag_hashes)

    def released(self, queue: GroupQueue) -> None:
        """A queue may be popped again: the messages that a group had in order are done with, or given up."""
        self._serve(self.held.of_group(*queue), [])

    def was_reset(self, queue: GroupQueue) -> None:
        """A group was sent to another offset."""
        self._orders.clear(queue)
        self._serve(self.held.of_group(*queue), [])

    def look_again(self) -> None:
        """Run those once more that had to stop before they had seen everything."""
        again, self._again = self._again, {}
        for held in again:
            if held.waiting:
                self._serve([held], [])

    def expire(self, now_ms: int) -> bool:
        """Answer those whose time is over, as many as one turn may; whether there are more."""
        self.ending.add(self.held.expired(now_ms, AT_ONCE_MAX))
        return self.held.has_due(now_ms)

    def drop_owner(self, caller: Caller) -> None:
        """Forget what a caller that is gone waits for."""
        if self.held.count_of(caller) <= AT_ONCE_MAX:
            self.held.drop_owner(caller)
        else:
            begin_slices(self.held.dropping(caller))

    def _end(self, held: HeldPop) -> None:
        """Answer one whose time is over, with messages where there are some after all."""
        if held.caller.is_closed or self._try(held):
            return
        if isinstance(held.query, NoticeQuery):
            held.done(Notice(has_messages=False))
        else:
            held.done(self._nothing(NO_MESSAGE))

    def _serve(self, waiting: Iterable[HeldPop], tag_hashes: Collection[int]) -> None:
        misses = 0
        for held in waiting:
            if misses >= MISSES_MAX:
                break
            if held.waiting and held.accepts(tag_hashes) and not self._try(held):
                misses += 1

    def _try(self, held: HeldPop) -> bool:
        """Answer one that waits, if there is anything to say by now."""
        try:
            outcome = self._look(held)
        except NotInMemory as missing:
            self._have_brought(missing, held)
            return False
        except (
            RequestError,
            OSError,
            StoreError,
        ) as failed:  # of these queues alone: nobody else is to suffer
            self._answer(held, Failed(failed))
            return True
        if outcome is None:
            return False
        self._answer(held, outcome)
        return True

    def _have_brought(self, missing: NotInMemory, held: HeldPop) -> None:
        """One that waits would be handed what is not in memory: it looks again when it is."""

        def again() -> None:
            if held.waiting and not held.caller.is_closed:
                outcome = self._look(held)
                if outcome is not None:
                    self._answer(held, outcome)

        def failed(error: Exception) -> None:
            if held.waiting:
                self._answer(held, Failed(error))

        # Too many wait for the disk already: it waits on, and looks again when a message comes or its time is over.
        with contextlib.suppress(LimitReached):
            self.cold.wait(missing, held.caller, again, failed)

    def _look(self, held: HeldPop) -> Outcome | None:
        """What one that waits would be answered now; None: it has to wait on. RequestError: it is refused by now."""
        query = held.query
        if isinstance(query, NoticeQuery):
            return Notice(has_messages=True) if self._has_messages(query) else None
        self._check(query)
        if self._handing_out.is_full:
            return None
        popped = self._reader.pop(query, held.filter)
        if popped.count:
            return self._handing_out.hand_out(query, popped)
        if popped.rest and held.waiting and not query.in_order:
            self._again[held] = None
        return None

    def _answer(self, held: HeldPop, outcome: Outcome) -> None:
        self.held.leave(held)
        held.done(outcome)
