"""One member's part in the election of its set, without a register: views in, transactions and a role out.

Touches  nothing. Times are seconds of a clock of this machine that goes on while it sleeps.

    no set yet          when all of totalReplicas are there, the one with the longest log writes the set, alone in sync
    no master           a member that is in sync, with this very store, takes the seat: epoch + 1; of those in sync the
                        ones that run stay so, and others while there would be fewer than minInSyncReplicas
                        a member that the last master has named goes first, for SUCCESSOR_S
    master gone         where it gave its log nobody listens any more, while its lease goes on: as if there were none
    master              changes who is in sync, nobody else does
    lease over          the seat is lost for this epoch, whatever the register says later
    register went back  it says an older epoch than this member, or any that runs, knows of; another master of the same
                        epoch; or who was in sync before: nobody takes the seat, and a master leaves it

Why it is safe
- A send is answered when every member of `waited_for` has it. Whoever is in sync in the register is one of them: who
  is to be added from before the register hears of it, who is to leave until the register has confirmed that.
- Only a member in sync takes the seat, in the transaction that ends the epoch before; so each master has all that was
  ever answered with success. That holds for a master that was wrongly taken for gone, too: it waits for whoever took
  its seat, who acknowledges nothing to it from the first moment as master on.
- What a master writes into the register holds only while its own key is there, which goes with its lease.
- A transaction without an answer may still be done. Each that writes the set asks for the set as it was: when that has
  changed, it was done or never will be.
- Each member that runs says in the register which epoch it knows of, its disk's at least, and all know what one of them
  knows. So an older state of the register that comes back (a backup, members of etcd that have lost their disks) shows,
  and no epoch is given twice while one is there who knows of it. Of two masters of one epoch neither counts: who knows
  of both speaks of the next epoch, which nobody has. So does who has seen in this epoch that others were in sync, when
  its master is gone: somebody else who is in sync by the older state may have been away meanwhile.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aerobee_broker.election.records import (
    Keys,
    MasterRecord,
    MemberRecord,
    SetRecord,
    SetView,
    encode_record,
)
from aerobee_broker.election.register import ABSENT, NO_LEASE, Put

__all__ = ["LogFacts", "Part", "Problem", "Proposal", "Seat", "Tenure"]

NEVER: Final = float("-inf")
SUCCESSOR_S: Final = 1.0


class LogFacts(NamedTuple):
    """The own log, and where it is served."""

    addr: str
    ha_addr: str
    end_offset: int  # physical
    last_epoch: int
    store: str


class Part(NamedTuple):
    """The part that this member should play."""

    is_master: bool
    epoch: int
    master: int  # member number; 0: nobody is known


class Problem(NamedTuple):
    """Why this member, or its set, is not as it should be."""

    kind: str  # a word for logs and metrics
    reason: str


class Proposal(NamedTuple):
    """A transaction; what `Register.swap` takes."""

    kind: str  # announce, create, take, in_sync, leave, resign, force
    conditions: Mapping[str, int]
    puts: Mapping[str, Put]
    deletes: tuple[str, ...] = ()
    set_revision: int = ABSENT  # of kinds that write the set: what it must be
    in_sync: frozenset[int] = frozenset()  # ... and who is in sync by it


class Tenure:
    """One mastership, from the moment that the register said so. Over is over."""

    __slots__ = ("epoch", "is_over", "until")

    def __init__(self, epoch: int, until: float) -> None:
        # Fixed for life.
        self.epoch = epoch
        # Moved by renewals.
        self.until = until  # the lease may lapse from then on
        self.is_over = False

    def holds(self, now: float) -> bool:
        """Whether it goes on at this moment."""
        if now >= self.until:
            self.is_over = True
        return not self.is_over


class Seat:
    """What one member knows and wants. All calls from one thread."""

    def __init__(self, keys: Keys, member: int, total_replicas: int, copies_min: int = 1) -> None:
        """With fewer than `copies_min` members in sync nothing is acknowledged."""
        # Fixed for life.
        self._keys = keys
        self._me = member
        self._total = total_replicas
        self._copies_min = copies_min
        # Of the lease.
        self._lease = NO_LEASE
        self.until = NEVER  # it does not lapse before
        # Of the register.
        self.view: SetView | None = None
        self.tenure: Tenure | None = None
        self._over = 0  # the newest epoch whose tenure is over
        self._vacant_since: float | None = None  # when it first found that there is no master
        self._open: list[Proposal] = []  # for the set as it is in `view`; may have been done, or be done yet
        # Of this member.
        self._facts: LogFacts | None = None
        self._epoch = 0  # the newest that was heard of; no mastership of an older one counts
        self._known = (0, 0)  # the newest epoch that the register has shown, and its master
        self._went_back_to = (
            0,
            ABSENT,
        )  # epoch and revision of a set that is older than one that was seen before
        self._gone = 0  # the epoch whose master is not there any more; 0: none

    # --- what it hears ----------------------------------------------------------------------------------------

    def leased(self, lease: int, until: float) -> None:
        """It has this lease, which does not lapse before `until`."""
        if lease != self._lease:
            self.lease_gone()
            self._lease = lease
        self.until = max(until, self.until)
        if self.tenure is not None:
            self.tenure.until = max(until, self.tenure.until)

    def lease_gone(self) -> None:
        """Its lease has ended, or may have."""
        self._lease, self.until = NO_LEASE, NEVER
        self._end_tenure()

    def serves(self, facts: LogFacts | None) -> None:
        """A life has opened the log, or it has grown; None: no life has it open."""
        self._facts = facts
        if facts is not None:
            self._epoch = max(self._epoch, facts.last_epoch)

    def missed(self, epoch: int, *, is_gone: bool) -> None:
        """Nobody listens any more where the master of this epoch gave this member its log; or somebody does again."""
        self._gone = epoch if is_gone else 0

    def saw(self, view: SetView) -> None:
        """The register, as read after everything that was done before."""
        before = self.view
        if before is None or view.set_revision != before.set_revision:
            self._open.clear()
        self.view = view
        if view.master is not None:
            self._vacant_since = None
        self._learn(view, before)
        if (
            not self._is_mine(view)
            or view.set is None
            or view.set.epoch <= self._over
            or self._went_back(view)
        ):
            self._end_tenure()
        elif self.tenure is None:
            self.tenure = Tenure(view.set.epoch, self.until)

    def _learn(self, view: SetView, before: SetView | None) -> None:
        """Which epochs there are, and whether this view is older than the one before."""
        self._epoch = max(self._epoch, *(one.epoch for one in view.members.values()), 0)
        if view.set is None:
            return
        epoch, master = view.set.epoch, view.set.master
        self._epoch = max(self._epoch, epoch)
        if epoch == self._known[0] and master != self._known[1]:
            self._epoch = max(self._epoch, epoch + 1)
        self._known = max(self._known, (epoch, master), key=lambda one: one[0])
        is_same = before is not None and before.set is not None and before.set.epoch == epoch
        if is_same and before is not None and view.set_revision < before.set_revision:
            self._went_back_to = epoch, view.set_revision
        if view.master is None and self._forgot(view):
            # Nobody of this epoch will say anew who is in sync. Whoever has not seen it hears of it by the next epoch.
            self._epoch = max(self._epoch, epoch + 1)

    def _is_mine(self, view: SetView) -> bool:
        """Whether this very process is master by the register."""
        return (
            view.set is not None
            and view.master == MasterRecord(self._me, view.set.epoch)
            and view.set.master == self._me
            and view.master_lease == self._lease != NO_LEASE
        )

    def leave(self) -> None:
        """This member is not master any more, of its own will."""
        self._end_tenure()

    def _end_tenure(self) -> None:
        if self.tenure is not None:
            self.tenure.is_over = True
            self._over = max(self._over, self.tenure.epoch)
            self.tenure = None

    def holds(self, now: float) -> bool:
        """Whether it is master, and its lease cannot have lapsed."""
        if self.tenure is not None and not self.tenure.holds(now):
            self._end_tenure()
        return self.tenure is not None

    # --- what it wants ----------------------------------------------------------------------------------------

    def part(self, now: float) -> Part | None:
        """Its part; None while there is no master, or none that it may follow."""
        if self.holds(now) and self.tenure is not None:
            return Part(True, self.tenure.epoch, self._me)
        view = self.view
        if view is None or view.set is None or view.master is None or self._went_back(view):
            return None
        master = view.master
        if master.member == self._me or master.epoch != view.set.epoch:
            return None
        return Part(False, master.epoch, master.member)

    @property
    def waited_for(self) -> frozenset[int]:
        """Members other than this one that must have a send before its sender is told so. Of a master."""
        view = self.view
        confirmed = frozenset(view.set.in_sync) if view is not None and view.set is not None else frozenset()
        return confirmed.union(*(one.in_sync for one in self._open)) - {self._me}

    @property
    def in_sync(self) -> dict[int, str]:
        """Who is in sync by the register, with the identity of its store."""
        view = self.view
        return dict(view.set.in_sync) if view is not None and view.set is not None else {}

    def problem(self, now: float) -> Problem | None:
        """What an operator should know."""
        view = self.view
        if view is None:
            return Problem("unread", "the register has not been read yet")
        if self._went_back(view):
            return Problem(
                "went_back",
                f"the register says epoch {view.set.epoch if view.set else 0}, members know of {self._epoch}: "
                "the register has lost what it knew; it is not trusted",
            )
        if view.master is None and self._forgot(view):
            return Problem(
                "went_back",
                "the register says who was in sync some time ago: it has lost what it knew; it is not trusted",
            )
        if self._taken_by_other(view):
            return Problem(
                "number_taken", f"another broker runs as member {self._me}: each needs a brokerId of its own"
            )
        if view.master is not None:
            return None
        if view.set is None:
            there = len(view.members)
            return Problem("incomplete", f"the set is new, and {there} of {self._total} members are there")
        store = view.set.in_sync.get(self._me)
        if store is None or (self._facts is not None and store != self._facts.store):
            return Problem(
                "not_in_sync", f"no master, and only members {sorted(view.set.in_sync)} may become it"
            )
        return None

    def _went_back(self, view: SetView) -> bool:
        return view.set is not None and view.set.epoch < self._epoch

    def _forgot(self, view: SetView) -> bool:
        """Whether it says who was in sync some time ago. What the master of this epoch writes later counts again."""
        return view.set is not None and self._went_back_to == (view.set.epoch, view.set_revision)

    def _taken_by_other(self, view: SetView) -> bool:
        record, facts = view.members.get(self._me), self._facts
        other = record is not None and facts is not None and record.store != facts.store
        return other and view.member_leases[self._me] != self._lease

    # --- what it does -----------------------------------------------------------------------------------------

    def proposal(self, now: float, in_sync: Mapping[int, str] | None = None) -> Proposal | None:
        """What to ask of the register now; None: nothing. `in_sync` is who should be, while it is master.

        From this call on those of it are in `waited_for`.
        """
        view, facts = self.view, self._facts
        if view is None or self._lease == NO_LEASE or now >= self.until:
            return None
        made = None
        if self.holds(now):
            made = self._change(view, in_sync)
        elif view.master is not None and view.master_lease == self._lease:
            # The seat was lost by the clock alone: let go of it, for whoever may take it.
            made = Proposal("leave", {self._keys.master: view.master_revision}, {}, (self._keys.master,))
        elif facts is not None and not self._went_back(view) and not self._taken_by_other(view):
            made = self._take(view, facts, now) or self._announce(view, facts) or self._create(view, facts)
        if made is None and facts is not None and not self._taken_by_other(view):
            made = self._announce(view, facts)
        if made is not None and made.kind == "in_sync":
            self._open.append(made)
        return made

    def resign(self, now: float, successor: int) -> Proposal | None:
        """Leave the seat to another member that is in sync; nothing is answered from this call on. None: it is not
        this member's to give, or not that member's to take."""
        view = self.view
        if not self.holds(now) or view is None or view.set is None or successor == self._me:
            return None
        if successor not in view.set.in_sync or successor not in view.members:
            return None
        self._end_tenure()
        keys, left = self._keys, view.set
        record = SetRecord(left.epoch, left.master, left.in_sync, successor)
        return Proposal(
            "resign",
            {keys.set: view.set_revision, keys.master: view.master_revision},
            {keys.set: Put(encode_record(record))},
            (keys.master,),
            view.set_revision,
            frozenset(left.in_sync),
        )

    def obstacle(self, now: float) -> str:
        """Why this member cannot become master without being in sync; "": it can, as nobody else will."""
        view = self.view
        if view is None or self._facts is None or self._lease == NO_LEASE or now >= self.until:
            return "the register is not reached"
        if view.set is None:
            return "the set is new: it begins when all members are there"
        if view.master is not None:
            return f"member {view.master.member} is the master"
        if self._taken_by_other(view):
            return f"another broker runs as member {self._me}"
        there = [
            one
            for one, store in view.set.in_sync.items()
            if one in view.members and view.members[one].store == store
        ]
        if there and not self._went_back(view) and not self._forgot(view):
            return f"members {there} are in sync and run: one of them becomes the master by itself"
        return ""

    def forced(self, now: float) -> Proposal | None:
        """Become master all the same, with nobody else in sync. None: there is an obstacle."""
        view, facts = self.view, self._facts
        if self.obstacle(now) or view is None or view.set is None or facts is None:
            return None
        epoch = 1 + max(self._epoch, view.set.epoch, *(one.epoch for one in view.members.values()))
        return self._seated("force", view, epoch, {self._me: facts.store}, {})

    def answered(self, proposal: Proposal, revision: int | None) -> None:
        """The register has answered. Without an answer nothing is to be said here."""
        if revision is None and proposal in self._open:
            self._open.remove(proposal)

    def _announce(self, view: SetView, facts: LogFacts) -> Proposal | None:
        """Say that this member is there. How long the log is matters, and stands still, while there is no set."""
        known = view.members.get(self._me)
        end_offset = facts.end_offset
        if known is not None and view.set is not None and known.end_offset <= end_offset:
            end_offset = known.end_offset
        record = MemberRecord(
            facts.addr, facts.ha_addr, end_offset, facts.last_epoch, self._epoch, facts.store
        )
        if known == record and view.member_leases[self._me] == self._lease:
            return None
        key = self._keys.member(self._me)
        condition = {key: view.member_revisions.get(self._me, ABSENT)}
        return Proposal("announce", condition, {key: Put(encode_record(record), self._lease)})

    def _create(self, view: SetView, facts: LogFacts) -> Proposal | None:
        """Write the set, if all members are there and none has a longer log. Their records are part of the condition:
        none of them has another log by then."""
        if view.set is not None or view.master is not None or len(view.members) < self._total:
            return None
        longest = max(
            view.members, key=lambda one: (view.members[one].last_epoch, view.members[one].end_offset, -one)
        )
        if longest != self._me or any(one.epoch != self._epoch for one in view.members.values()):
            return None  # who has not heard of the newest epoch may have said what its log was long ago
        epoch = 1 + max(self._epoch, *(one.epoch for one in view.members.values()))
        others = {self._keys.member(one): revision for one, revision in view.member_revisions.items()}
        return self._seated("create", view, epoch, {self._me: facts.store}, others)

    def _take(self, view: SetView, facts: LogFacts, now: float) -> Proposal | None:
        """Become master, if this member is in sync. Those of the set that do not run are not waited for any more."""
        if view.set is None or view.set.in_sync.get(self._me) != facts.store or self._forgot(view):
            return None
        gone = 0
        if view.master is not None:
            if view.master.member == self._me or not view.master.epoch == view.set.epoch == self._gone:
                return None
            gone = view.master.member
        elif self._comes_later(view, view.set.successor, now):
            return None
        staying = {
            one: store
            for one, store in view.set.in_sync.items()
            if one == self._me or (one != gone and one in view.members and view.members[one].store == store)
        }
        others = [
            one
            for one, store in view.set.in_sync.items()
            if one not in staying and (one not in view.members or view.members[one].store == store)
        ]
        others.sort(key=lambda one: one == gone)
        for one in others[: max(0, self._copies_min - len(staying))]:
            # Nothing is acknowledged until there are more: it goes on to have everything that was.
            staying[one] = view.set.in_sync[one]
        return self._seated("take", view, view.set.epoch + 1, staying, {})

    def _comes_later(self, view: SetView, successor: int, now: float) -> bool:
        """Whether a member that was named goes first, still."""
        if self._vacant_since is None:
            self._vacant_since = now
        is_named = successor not in (0, self._me) and successor in view.members
        return is_named and now - self._vacant_since < SUCCESSOR_S

    def _seated(
        self, kind: str, view: SetView, epoch: int, in_sync: dict[int, str], others: Mapping[str, int]
    ) -> Proposal:
        keys = self._keys
        return Proposal(
            kind,
            {**others, keys.set: view.set_revision, keys.master: view.master_revision},
            {
                keys.set: Put(encode_record(SetRecord(epoch, self._me, in_sync))),
                keys.master: Put(encode_record(MasterRecord(self._me, epoch)), self._lease),
            },
            (),
            view.set_revision,
            frozenset(in_sync),
        )

    def _change(self, view: SetView, in_sync: Mapping[int, str] | None) -> Proposal | None:
        assert view.set is not None
        if in_sync is None or in_sync == view.set.in_sync:
            return None
        assert self._me in in_sync, "a master is in sync with itself"
        keys = self._keys
        return Proposal(
            "in_sync",
            {keys.set: view.set_revision, keys.master: view.master_revision},
            {keys.set: Put(encode_record(SetRecord(view.set.epoch, self._me, dict(in_sync))))},
            (),
            view.set_revision,
            frozenset(in_sync),
        )
