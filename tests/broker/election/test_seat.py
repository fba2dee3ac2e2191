"""Seats on one register, with logs that are modelled: whatever is lost, late or stopped, what was answered stays."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aerobee_broker.election.records import MemberRecord, SetRecord, decode_view, encode_record
from aerobee_broker.election.register import NO_LEASE, Entry, View
from aerobee_broker.election.seat import LogFacts, Part, Proposal, Seat
from aerobee_proto.errors import FormatError
from broker.election.model_register import KEYS, TTL_S, ModelRegister

DRIFT = 0.05  # clocks run that much faster or slower
MARGIN = 0.15  # of the lease, for two clocks that drift apart
MEMBERS = (1, 2, 3)


@dataclass
class Life:
    """What a broker is at the moment."""

    part: Part | None = None
    acked: dict[int, int] = field(default_factory=dict)  # of a master: how many records its slaves have
    confirmed: int = 0  # of a master: how many it has acknowledged
    began: int = 0  # how many records there were
    is_linked: bool = False  # of a slave


class Member:
    def __init__(self, number: int, rate: float, copies_min: int = 1) -> None:
        self.number = number
        self.copies_min = copies_min
        self.rate = rate
        self.store = f"store-{number}"
        self.log: list[tuple[int, int]] = []
        self.restart()

    def restart(self) -> None:
        self.seat = Seat(KEYS, self.number, len(MEMBERS), self.copies_min)
        self.lease = NO_LEASE
        self.life = Life()

    def clock(self, now: float) -> float:
        return 1000 + now * self.rate

    def serve(self) -> None:
        last_epoch = self.log[-1][0] if self.log else 0
        self.seat.serves(LogFacts("a", "h", len(self.log), last_epoch, self.store))


members = st.sampled_from(MEMBERS)
FATES = st.sampled_from(["answered", "answered", "answered", "unanswered", "late", "lost"])


class Seats(RuleBasedStateMachine):
    copies_min = 1

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.register = ModelRegister()
        self.members: dict[int, Member] = {}
        self.late: list[Proposal] = []
        self.acknowledged: list[tuple[int, int]] = []
        self.records = 0
        self.epochs: dict[int, int] = {}  # epoch: who was its master

    @initialize(rates=st.tuples(*[st.sampled_from([1 - DRIFT, 1.0, 1 + DRIFT])] * len(MEMBERS)))
    def begin(self, rates: tuple[float, ...]) -> None:
        for number, rate in zip(MEMBERS, rates, strict=True):
            self.members[number] = Member(number, rate, self.copies_min)
        for number in MEMBERS:
            self.renew(number, "answered")
            self.step(number, "answered", 0)
        for number in MEMBERS:  # the set is written, and its master knows
            self.step(number, "answered", 0)
            self.step(number, "answered", 0)

    # --- time and crashes -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def leases_lapse(self) -> None:
        self.register.lapse(self.now)

    @rule(number=members)
    def process_is_killed(self, number: int) -> None:
        self.members[number].restart()

    @precondition(lambda self: len(self.register.view().set.in_sync if self.register.view().set else ()) > 1)
    @rule(number=members)
    def disk_is_lost(self, number: int) -> None:
        """Of one machine of several that are in sync."""
        member = self.members[number]
        if any(not one.log for one in self.members.values() if one is not member):
            return
        member.restart()
        member.log, member.store = [], f"{member.store}+"

    @rule()
    def request_arrives_late(self) -> None:
        if self.late:
            self.register.swap(self.late.pop(0))

    # --- all is well ------------------------------------------------------------------------------------------

    @rule(running=st.sets(members), seconds=st.sampled_from([0.0, 0.5]), choice=st.integers(0, 7))
    def some_go_on(self, running: set[int], seconds: float, choice: int) -> None:
        """Those that are not stopped do what they have to."""
        self.now += seconds
        for work in (self.renew, self.step, self.step):
            for number in running:
                work(number, "answered", *((choice,) if work == self.step else ()))
        for work in (self.live, self.link, self.append, self.replicate, self.answer):
            for number in running:
                work(number)

    @rule(running=st.sets(members, min_size=2))
    def the_master_is_replaced(self, running: set[int]) -> None:
        """Some go on for as long as it takes."""
        for _ in range(3):
            self.now += TTL_S / 2
            for number in running:
                self.renew(number, "answered")
            self.register.lapse(self.now)
        self.some_go_on(running, 0.0, 7)
        self.some_go_on(running, 0.0, 7)

    # --- the driver's part --------------------------------------------------------------------------------------

    @rule(number=members, fate=FATES)
    def renew(self, number: int, fate: str) -> None:
        member = self.members[number]
        sent = member.clock(self.now)
        until = sent + TTL_S * (1 - MARGIN)
        if member.lease not in self.register.leases:
            if member.lease:
                member.seat.lease_gone()
                member.lease = NO_LEASE
            if fate == "answered":
                member.lease = self.register.grant(self.now)
                member.seat.leased(member.lease, until)
            return
        if fate != "lost":
            self.register.leases[member.lease] = self.now + TTL_S
        if fate == "answered":
            member.seat.leased(member.lease, until)

    @rule(number=members, fate=FATES, choice=st.integers(0, 7))
    def step(self, number: int, fate: str, choice: int) -> None:
        """Read, and propose what there is to propose."""
        member = self.members[number]
        seat, now = member.seat, member.clock(self.now)
        seat.saw(self.register.view())
        member.serve()
        proposal = seat.proposal(now, self.chosen_in_sync(member, choice))
        if proposal is None or fate == "lost":
            return
        if fate == "late":
            self.late.append(proposal)
            return
        done = self.register.swap(proposal)
        if fate == "answered":
            seat.answered(proposal, done)
            seat.saw(self.register.view())

    @rule(number=members)
    def the_master_seems_gone(self, number: int) -> None:
        """Whether it is or not: its host refuses a slave that has followed it."""
        slave = self.members[number]
        master = self.master_of(slave)
        if master is not None and slave.life.part is not None and slave.life.is_linked:
            slave.life.is_linked = False
            slave.seat.missed(slave.life.part.epoch, is_gone=True)

    @rule(number=members)
    def read(self, number: int) -> None:
        self.members[number].seat.saw(self.register.view())

    def chosen_in_sync(self, master: Member, choice: int) -> dict[int, str] | None:
        """Any others, but new ones only if they have what was acknowledged."""
        if master.life.part is None or not master.life.part.is_master:
            return None
        present = master.seat.in_sync
        chosen = {master.number: master.store}
        for bit, number in enumerate(MEMBERS):
            other = self.members[number]
            if number == master.number or not choice >> bit & 1:
                continue
            needed = max(master.life.confirmed, master.life.began)
            has = self.follows(other, master) and master.life.acked.get(number, 0) >= needed
            if number in present or has:
                chosen[number] = present.get(number, other.store)
                if has:
                    chosen[number] = other.store
        return chosen

    @rule(number=members)
    def live(self, number: int) -> None:
        """Begin another life, if another part is part."""
        member = self.members[number]
        life, part = member.life, member.seat.part(member.clock(self.now))
        was_master = life.part is not None and life.part.is_master
        if part == life.part or (part is None and not was_master):
            return
        member.life = Life(part, began=len(member.log))

    # --- logs ---------------------------------------------------------------------------------------------------

    def follows(self, slave: Member, master: Member) -> bool:
        mine, its = slave.life.part, master.life.part
        return (
            slave.life.is_linked
            and mine is not None
            and its is not None
            and its.is_master
            and mine == Part(False, its.epoch, master.number)
        )

    def master_of(self, slave: Member) -> Member | None:
        part = slave.life.part
        if part is None or part.is_master:
            return None
        return self.members[part.master]

    @rule(number=members)
    def link(self, number: int) -> None:
        """A slave finds its master, and gives up what that does not have."""
        slave = self.members[number]
        master = self.master_of(slave)
        if master is None:
            return
        slave.life.is_linked = True
        if not self.follows(slave, master):
            slave.life.is_linked = False
            return
        common = 0
        while common < min(len(slave.log), len(master.log)) and slave.log[common] == master.log[common]:
            common += 1
        del slave.log[common:]
        master.life.acked[number] = common

    @rule(number=members)
    def append(self, number: int) -> None:
        member = self.members[number]
        if member.life.part is None or not member.life.part.is_master:
            return
        self.records += 1
        member.log.append((member.life.part.epoch, self.records))

    @rule(number=members, count=st.integers(1, 3))
    def replicate(self, number: int, count: int = 3) -> None:
        slave = self.members[number]
        master = self.master_of(slave)
        if master is None or not self.follows(slave, master):
            return
        slave.log += master.log[len(slave.log) : len(slave.log) + count]
        master.life.acked[number] = len(slave.log)

    @rule(number=members)
    def answer(self, number: int) -> None:
        """What every member in sync has is acknowledged."""
        member = self.members[number]
        life = member.life
        if life.part is None or not life.part.is_master:
            return
        tenure = member.seat.tenure
        if tenure is None or tenure.epoch != life.part.epoch or not tenure.holds(member.clock(self.now)):
            return
        has = [len(member.log), *(life.acked.get(one, 0) for one in member.seat.waited_for)]
        reached = min(has)
        if reached <= life.confirmed or len(member.seat.in_sync) < self.copies_min:
            return
        epoch, others = life.part.epoch, [one.life.part for one in self.members.values()]
        newer = [part for part in others if part is not None and part.is_master and part.epoch > epoch]
        assert not newer, "it answers, and a newer master is there"
        life.confirmed = reached
        if reached > len(self.acknowledged):
            self.acknowledged = member.log[:reached]

    # --- what holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_master_has_what_was_acknowledged(self) -> None:
        the_set = self.register.view().set
        if the_set is None:
            return
        assert self.epochs.setdefault(the_set.epoch, the_set.master) == the_set.master
        assert the_set.epoch == max(self.epochs)
        master = self.members[the_set.master]
        if the_set.in_sync.get(master.number) == master.store:
            assert master.log[: len(self.acknowledged)] == self.acknowledged

    @invariant()
    def whoever_is_in_sync_has_what_was_acknowledged(self) -> None:
        the_set = self.register.view().set
        for number, store in the_set.in_sync.items() if the_set else ():
            member = self.members[number]
            if member.store == store:
                assert member.log[: len(self.acknowledged)] == self.acknowledged


class SeatsOfTwoCopies(Seats):
    """With fewer than two in sync nothing is acknowledged."""

    copies_min = 2


TestSeats = pytest.mark.slow(Seats.TestCase)
TestSeats.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestSeatsOfTwoCopies = pytest.mark.slow(SeatsOfTwoCopies.TestCase)
TestSeatsOfTwoCopies.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)


# --- one thing at a time --------------------------------------------------------------------------------------------


class Scene:
    """Three members; the first is master, and alone in sync."""

    def __init__(self, copies_min: int = 1) -> None:
        self.register = ModelRegister()
        self.members = {number: Member(number, 1.0, copies_min) for number in MEMBERS}
        for member in self.members.values():
            member.lease = self.register.grant(0.0)
            member.seat.leased(member.lease, member.clock(TTL_S))
        for _ in range(2):
            for number in MEMBERS:
                self.step(number)
        assert self.seat(1).part(self.clock) == Part(True, 1, 1)

    clock = 1000.0

    def seat(self, number: int) -> Seat:
        return self.members[number].seat

    def propose(self, number: int, in_sync: dict[int, str] | None = None) -> Proposal | None:
        member = self.members[number]
        member.seat.saw(self.register.view())
        member.serve()
        return member.seat.proposal(self.clock, in_sync)

    def step(self, number: int, in_sync: dict[int, str] | None = None) -> Proposal | None:
        proposal = self.propose(number, in_sync)
        if proposal is not None:
            self.seat(number).answered(proposal, self.register.swap(proposal))
            self.seat(number).saw(self.register.view())
        return proposal

    def grow(self, *numbers: int) -> None:
        self.step(1, {number: f"store-{number}" for number in (1, *numbers)})

    def end_master(self) -> None:
        self.register.end(self.members[1].lease)


def test_whoever_is_to_be_added_is_waited_for_before_the_register_hears_of_it() -> None:
    scene = Scene()
    assert scene.seat(1).waited_for == set()
    proposal = scene.propose(1, {1: "store-1", 2: "store-2"})
    assert proposal is not None
    assert scene.seat(1).waited_for == {2}
    scene.seat(1).saw(scene.register.view())  # not done yet, and may be
    assert scene.seat(1).waited_for == {2}
    scene.seat(1).answered(proposal, None)  # it never will be
    assert scene.seat(1).waited_for == set()


def test_a_proposal_without_an_answer_counts_until_the_set_is_another_one() -> None:
    scene = Scene()
    lost = scene.propose(1, {1: "store-1", 2: "store-2"})
    assert lost is not None
    scene.step(2)
    scene.seat(1).saw(scene.register.view())
    assert scene.seat(1).waited_for == {2}
    scene.grow(3)
    assert scene.seat(1).waited_for == {3}
    assert scene.register.swap(lost) is None


def test_whoever_is_to_leave_is_waited_for_until_the_register_has_confirmed_it() -> None:
    scene = Scene()
    scene.grow(2, 3)
    proposal = scene.propose(1, {1: "store-1", 3: "store-3"})
    assert proposal is not None
    assert scene.seat(1).waited_for == {2, 3}
    scene.seat(1).answered(proposal, scene.register.swap(proposal))
    assert scene.seat(1).waited_for == {2, 3}
    scene.seat(1).saw(scene.register.view())
    assert scene.seat(1).waited_for == {3}


def test_a_master_whose_key_is_gone_changes_nothing_any_more() -> None:
    scene = Scene()
    proposal = scene.propose(1, {1: "store-1", 2: "store-2"})
    assert proposal is not None
    scene.end_master()
    assert scene.register.swap(proposal) is None


@pytest.mark.parametrize("number", [2, 3])
def test_only_who_is_in_sync_takes_the_seat(number: int) -> None:
    scene = Scene()
    scene.grow(2)
    scene.end_master()
    scene.step(number)
    expected = Part(True, 2, 2) if number == 2 else None
    assert scene.seat(number).part(scene.clock) == expected
    if number == 3:
        problem = scene.seat(3).problem(scene.clock)
        assert problem is not None
        assert problem.kind == "not_in_sync"


def test_a_member_with_another_disk_is_not_in_sync() -> None:
    scene = Scene()
    scene.grow(2)
    scene.end_master()
    scene.members[2].store = "new"
    scene.step(2)
    scene.step(2)
    assert scene.seat(2).part(scene.clock) is None


def test_those_that_do_not_run_are_not_waited_for_by_the_next_master() -> None:
    scene = Scene()
    scene.grow(2, 3)
    scene.end_master()
    scene.step(2)
    assert scene.seat(2).in_sync == {2: "store-2", 3: "store-3"}
    assert scene.seat(2).waited_for == {3}


def test_the_seat_is_lost_by_the_clock_and_not_taken_back() -> None:
    scene = Scene()
    seat, member = scene.seat(1), scene.members[1]
    tenure = seat.tenure
    assert tenure is not None
    late = member.clock(TTL_S)
    assert not tenure.holds(late)
    assert seat.part(late) is None
    seat.leased(member.lease, late + TTL_S)  # the answer was on its way
    assert not tenure.holds(late)
    assert seat.part(late) is None
    seat.saw(scene.register.view())
    assert seat.part(late) is None
    leaving = seat.proposal(late)
    assert leaving is not None
    assert leaving.kind == "leave"
    scene.register.swap(leaving)
    scene.clock = late
    scene.step(1)
    assert seat.part(late) == Part(True, 2, 1)


def test_a_master_that_is_gone_is_replaced_while_its_lease_goes_on() -> None:
    scene = Scene()
    scene.grow(2, 3)
    for number in MEMBERS:
        scene.step(number)
    scene.seat(3).missed(1, is_gone=True)
    assert scene.propose(2) is None
    taking = scene.step(3)
    assert taking is not None
    assert taking.kind == "take"
    assert taking.in_sync == {2, 3}, "who is gone is not waited for"
    assert scene.seat(3).part(scene.clock) == Part(True, 2, 3)
    scene.seat(1).saw(scene.register.view())
    assert not scene.seat(1).holds(scene.clock)
    assert scene.seat(1).part(scene.clock) == Part(False, 2, 3)


@pytest.mark.parametrize("case", ["not in sync", "an older epoch", "there again", "of the master itself"])
def test_a_master_that_is_there_is_not_replaced(case: str) -> None:
    scene = Scene()
    if case != "not in sync":
        scene.grow(2, 3)
    for number in MEMBERS:
        scene.step(number)
    member = 1 if case == "of the master itself" else 3
    scene.seat(member).missed(0 if case == "an older epoch" else 1, is_gone=True)
    if case == "there again":
        scene.seat(member).missed(1, is_gone=False)
    if case == "of the master itself":
        scene.seat(1).lease_gone()
        scene.seat(1).leased(scene.register.grant(0.0), scene.clock + TTL_S)
    proposal = scene.propose(member)
    assert proposal is None or proposal.kind != "take"


def test_who_is_away_stays_in_sync_while_there_would_be_too_few() -> None:
    """Alone in sync, a master that was lost, too, left a set of which nobody could become master."""
    scene = Scene(copies_min=2)
    scene.grow(2)
    for number in MEMBERS:
        scene.step(number)
    scene.end_master()
    taking = scene.step(2)
    assert taking is not None
    assert taking.in_sync == {1, 2}


def test_a_set_begins_with_the_longest_log_when_all_are_there() -> None:
    register = ModelRegister()
    members = {number: Member(number, 1.0) for number in MEMBERS}
    members[2].log, members[3].log = [(1, 1), (1, 2)], [(1, 1)]
    for present in ((3,), (3, 2), (3, 2, 1)):
        for _ in range(2):
            for number in present:
                member = members[number]
                if not member.lease:
                    member.lease = register.grant(0.0)
                    member.seat.leased(member.lease, 2000.0)
                member.seat.saw(register.view())
                member.serve()
                proposal = member.seat.proposal(1000.0)
                if proposal is not None:
                    member.seat.answered(proposal, register.swap(proposal))
        the_set = register.view().set
        assert (the_set is None) == (len(present) < 3)
        if the_set is None:
            problem = members[3].seat.problem(1000.0)
            assert problem is not None
            assert problem.kind == "incomplete"
    assert the_set == SetRecord(2, 2, {2: "store-2"})


def test_a_register_that_has_lost_its_memory_is_not_trusted() -> None:
    scene = Scene()
    scene.grow(2)
    scene.end_master()
    scene.step(2)
    old = scene.register.entries[KEYS.set]
    scene.register.end(scene.members[2].lease)
    record = SetRecord(1, 1, {1: "store-1", 2: "store-2"})
    scene.register.entries[KEYS.set] = old._replace(value=encode_record(record))
    scene.step(2)
    problem = scene.seat(2).problem(scene.clock)
    assert problem is not None
    assert problem.kind == "went_back"
    assert scene.seat(2).part(scene.clock) is None


class OlderRegister(Scene):
    """Member 2 was master of epoch 2, and a backup of epoch 1 comes back. Member 1, in sync there, has just started:
    it was away all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.grow(2)
        for number in MEMBERS:
            self.step(number)
        backup = self.register.state()
        self.end_master()
        self.step(2)
        assert self.seat(2).part(self.clock) == Part(True, 2, 2)
        self.register.restore(backup)
        self.end_master()
        self.members[1].restart()
        self.members[1].lease = self.register.grant(0.0)
        self.seat(1).leased(self.members[1].lease, 2000.0)

    def kind_of(self, number: int) -> str:
        problem = self.seat(number).problem(self.clock)
        return problem.kind if problem is not None else ""


def test_nobody_takes_the_seat_in_an_epoch_that_somebody_who_runs_knows_to_be_over() -> None:
    scene = OlderRegister()
    scene.step(2)
    assert not scene.seat(2).holds(scene.clock)
    for _ in range(3):
        for number in MEMBERS:
            proposal = scene.step(number)
            assert proposal is None or proposal.kind == "announce"
    assert [scene.kind_of(number) for number in MEMBERS] == ["went_back"] * 3
    forced = scene.seat(2).forced(scene.clock)
    assert forced is not None
    scene.register.swap(forced)
    for number in MEMBERS:
        scene.seat(number).saw(scene.register.view())
    assert scene.seat(2).part(scene.clock) == Part(True, 3, 2)
    assert scene.seat(1).part(scene.clock) == Part(False, 3, 2)


def test_of_two_masters_of_one_epoch_neither_counts() -> None:
    scene = OlderRegister()
    for _ in range(2):
        scene.step(1)
    assert scene.seat(1).part(scene.clock) == Part(True, 2, 1)
    scene.step(2)
    assert scene.seat(2).part(scene.clock) is None
    assert scene.kind_of(2) == "went_back"
    leaving = scene.propose(1)
    assert not scene.seat(1).holds(scene.clock)
    assert scene.seat(1).part(scene.clock) is None
    assert leaving is not None
    assert leaving.kind == "leave"
    scene.register.swap(leaving)
    for number in (1, 2):
        proposal = scene.step(number)
        assert proposal is None or proposal.kind == "announce"
    forced = scene.seat(2).forced(scene.clock)
    assert forced is not None
    scene.register.swap(forced)
    scene.seat(2).saw(scene.register.view())
    assert scene.seat(2).part(scene.clock) == Part(True, 4, 2)


@pytest.mark.parametrize("has_written", [False, True])
def test_who_was_in_sync_some_time_ago_takes_no_seat(has_written: bool) -> None:
    """Until the master of this very epoch has written again who is."""
    scene = Scene()
    scene.grow(2)
    for number in MEMBERS:
        scene.step(number)
    backup = scene.register.state()
    scene.grow()
    scene.seat(2).saw(scene.register.view())
    assert scene.seat(2).in_sync == {1: "store-1"}
    scene.register.restore(backup)
    scene.seat(2).saw(scene.register.view())
    assert scene.seat(2).part(scene.clock) == Part(False, 1, 1)
    if has_written:
        scene.grow()
        scene.grow(2)
    scene.end_master()
    taking = scene.step(2)
    problem = scene.seat(2).problem(scene.clock)
    if has_written:
        assert scene.seat(2).part(scene.clock) == Part(True, 2, 2)
        return
    assert taking is None or taking.kind == "announce"
    assert problem is not None
    assert problem.kind == "went_back"
    assert scene.seat(2).obstacle(scene.clock) == ""


def test_one_who_has_seen_that_others_were_in_sync_keeps_those_from_the_seat_who_have_not() -> None:
    """Member 3 was in sync by the older state, and starts when member 2 has read that."""
    scene = Scene()
    scene.grow(2, 3)
    for number in MEMBERS:
        scene.step(number)
    backup = scene.register.state()
    scene.grow(2)
    scene.seat(2).saw(scene.register.view())
    scene.register.restore(backup)
    scene.end_master()
    scene.members[3].restart()
    scene.members[3].lease = scene.register.grant(0.0)
    scene.seat(3).leased(scene.members[3].lease, 2000.0)
    for _ in range(2):
        for number in (2, 3):
            proposal = scene.step(number)
            assert proposal is None or proposal.kind == "announce"
    problems = [scene.seat(number).problem(scene.clock) for number in (2, 3)]
    assert [problem.kind if problem is not None else "" for problem in problems] == ["went_back"] * 2
    forced = scene.seat(2).forced(scene.clock)
    assert forced is not None
    scene.register.swap(forced)
    for number in (2, 3):
        scene.seat(number).saw(scene.register.view())
    assert scene.seat(2).part(scene.clock) == Part(True, 3, 2)
    assert scene.seat(3).part(scene.clock) == Part(False, 3, 2)


def test_no_set_is_made_by_what_members_said_before_the_newest_mastership() -> None:
    scene = Scene()
    for number in MEMBERS:
        scene.step(number)
    old = scene.register.state()
    scene.members[3].log = [(1, 1), (1, 2)]
    record = MemberRecord("a", "h", 0, 0, 0, "store-3")
    stale = Entry(encode_record(record), old[0], scene.members[3].lease)
    scene.register.restore((old[0], {KEYS.member(3): stale}, old[2]))
    for _ in range(3):
        for number in (1, 2):
            scene.step(number)
    assert scene.register.view().set is None
    for _ in range(3):
        for number in MEMBERS:
            scene.step(number)
    the_set = scene.register.view().set
    assert the_set is not None
    assert (the_set.epoch, the_set.master) == (2, 3)


def test_two_brokers_with_one_number_do_not_both_run() -> None:
    scene = Scene()
    twin = Member(2, 1.0)
    twin.store = "another"
    twin.lease = scene.register.grant(0.0)
    twin.seat.leased(twin.lease, 2000.0)
    twin.seat.saw(scene.register.view())
    twin.serve()
    assert twin.seat.proposal(1000.0) is None
    problem = twin.seat.problem(1000.0)
    assert problem is not None
    assert problem.kind == "number_taken"


def test_a_value_that_nobody_of_ours_has_written_is_named() -> None:
    for key in (KEYS.set, KEYS.master, KEYS.member(1)):
        with pytest.raises(FormatError, match=key):
            decode_view(View(1, {key: Entry(b"{", 1, NO_LEASE)}), KEYS)


def test_a_master_leaves_its_seat_to_a_member_in_sync_which_goes_first() -> None:
    scene = Scene()
    scene.grow(2, 3)
    for number in MEMBERS:
        scene.step(number)
    tenure = scene.seat(1).tenure
    assert tenure is not None
    assert scene.seat(1).resign(scene.clock, 1) is None
    leaving = scene.seat(1).resign(scene.clock, 3)
    assert leaving is not None
    assert not tenure.holds(scene.clock)
    assert scene.register.swap(leaving) is not None
    scene.step(2)
    scene.step(1)
    assert scene.register.view().master is None
    scene.step(3)
    assert scene.seat(3).part(scene.clock) == Part(True, 2, 3)
    assert scene.register.view().set == SetRecord(2, 3, {number: f"store-{number}" for number in MEMBERS})


def test_a_named_member_that_does_not_come_is_not_waited_for_long() -> None:
    scene = Scene()
    scene.grow(2, 3)
    for number in MEMBERS:
        scene.step(number)
    leaving = scene.seat(1).resign(scene.clock, 3)
    assert leaving is not None
    scene.register.swap(leaving)
    scene.step(2)
    scene.clock += 1.0
    scene.step(2)
    assert scene.seat(2).part(scene.clock) == Part(True, 2, 2)


def test_a_seat_is_not_left_to_a_member_that_is_not_in_sync_or_does_not_run() -> None:
    scene = Scene()
    scene.grow(2)
    scene.step(1)
    scene.register.end(scene.members[2].lease)
    scene.seat(1).saw(scene.register.view())
    for number in (2, 3):
        assert scene.seat(1).resign(scene.clock, number) is None
    assert scene.seat(1).holds(scene.clock)
