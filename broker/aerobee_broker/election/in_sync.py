"""Which members of a set are in sync, as its master judges them.

Touches  nothing. Times are seconds of one clock.

    stays    connected with everything that is acknowledged, less than haMaxGapNotInSync behind, and at the end of the
             log within haMaxTimeSlaveNotCatchup; or away for less than half a lease, as is one that stays where it is
             while there is more to take: a machine that is gone does not hang up
    joins    a member that runs, is connected, and has everything up to where the log ended at the last look: sends wait
             for it from then on, so that it has everything that was acknowledged as soon as it has come that far
    comes    one that joins, and has; and has the tables as they were when it began to join (changes wait for it from
             then on, too), or could not have them for TABLES_S
    is kept  one that should leave, while there would be fewer than minInSyncReplicas without it: nothing is
             acknowledged then, so it goes on to have everything that was, and may be elected when others are gone

Invariants
- Who comes has everything that was acknowledged up to this moment, and is waited for already.
- The master is in sync with itself.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aerobee_broker.lives.seating import SyncRules

__all__ = ["TABLES_S", "Chosen", "InSync", "Linked"]

# One that cannot read the tables (it is refused, maybe) comes all the same: changes do not wait longer for it either.
TABLES_S: Final = 3.0


class Linked(NamedTuple):
    """A member that follows this master."""

    store: str  # the identity of its store; "": it has not said
    acked_offset: int
    # Numbers of changes of the tables: the last that it has, and that there was.
    tables: tuple[int, int] = (0, 0)


class _Mark(NamedTuple):
    """What one that joins has to have to come."""

    offset: int
    tables: int
    since: float


class Chosen(NamedTuple):
    """Who should be in sync, with the identities of the stores; who is waited for without that; and who of those in
    sync is kept alone because there are too few others: copies of theirs do not count."""

    in_sync: dict[int, str]
    joining: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()


class InSync:
    """What a master remembers of its members; one for each mastership."""

    def __init__(self, me: int, store: str) -> None:
        # Fixed for life.
        self._me = me
        self._store = store
        # Moved by `chosen`.
        self._seen_at: dict[int, float] = {}  # when a member was last connected, or first missed
        self._level_at: dict[int, float] = {}  # when it had everything that there was a look before
        self._acked: dict[int, int] = {}
        self._moved_at: dict[int, float] = {}  # when that grew, or all was there
        self._joining: dict[int, _Mark] = {}  # who joins
        self._end_before = 0

    def chosen(
        self,
        now: float,
        present: Mapping[int, str],
        stores: Mapping[int, str],
        linked: Mapping[int, Linked],
        log: tuple[int, int],
        rules: SyncRules,
    ) -> Chosen:
        """Who should be in sync from now on. `present` are those that are, `stores` those that run by the register,
        both with the identities of their stores; `log` says how far all is acknowledged, and where the log ends."""
        kept, end = log
        for member, link in linked.items():
            self._seen_at[member] = now
            if link.acked_offset >= self._end_before:
                self._level_at[member] = now
            if link.acked_offset in (end, self._end_before) or link.acked_offset != self._acked.get(member):
                self._acked[member], self._moved_at[member] = link.acked_offset, now
        chosen = {self._me: self._store}
        chosen |= {
            member: store
            for member, store in present.items()
            if member != self._me and self._stays(now, member, store, linked.get(member), log, rules)
        }
        joining = {
            member: self._joining.get(member) or _Mark(end, link.tables[1], now)
            for member, link in linked.items()
            if member not in present and self._joins(link, stores.get(member), end, rules)
        }
        for member, mark in joining.items():
            link = linked[member]
            has_tables = link.tables[0] >= mark.tables or now - mark.since >= TABLES_S
            if link.acked_offset >= max(mark.offset, kept) and has_tables:
                chosen[member] = stores[member]
        self._joining, self._end_before = joining, end
        there = {**stores, **{member: link.store for member, link in linked.items() if link.store}}
        missing = max(0, rules.copies_min - len(chosen))
        leaving = [
            one for one in present if one not in chosen and there.get(one, present[one]) == present[one]
        ]
        leaving.sort(key=lambda one: self._moved_at.get(one, 0.0), reverse=True)
        kept_ones = {one: present[one] for one in leaving[:missing]}
        return Chosen(chosen | kept_ones, frozenset(joining), frozenset(kept_ones))

    def _joins(self, link: Linked, store: str | None, end: int, rules: SyncRules) -> bool:
        is_level = link.acked_offset >= self._end_before and end - link.acked_offset < rules.gap_max
        return is_level and store is not None and link.store in ("", store)

    def _stays(
        self,
        now: float,
        member: int,
        store: str,
        link: Linked | None,
        log: tuple[int, int],
        rules: SyncRules,
    ) -> bool:
        kept, end = log
        if link is None:
            return now - self._seen_at.setdefault(member, now) < rules.away_s
        if (link.store and link.store != store) or link.acked_offset < kept:
            return False
        level_s = now - self._level_at.setdefault(member, now)
        still_s = now - self._moved_at.setdefault(member, now)
        is_close = end - link.acked_offset < rules.gap_max
        return is_close and level_s < rules.catch_up_s and still_s < rules.away_s
