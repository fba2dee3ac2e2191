"""Held pulls: who wakes, who stays, who goes; a table of plain rules and a model that knows no shortcuts."""

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aerobee_broker.messages.held_pulls import HeldPull, HeldPulls
from aerobee_proto.names import QueueKey

TAG_A, TAG_B = 1, 2


def pull(
    offset: int = 5,
    tags: frozenset[int] | None = None,
    *,
    queue: tuple[str, int] = ("T", 0),
    deadline_ms: int = 100,
    owner: object = "me",
    work: str = "",
) -> HeldPull[object, str]:
    return HeldPull(QueueKey(*queue), offset, tags, deadline_ms, owner, work)


@pytest.mark.parametrize(
    ("offset", "tags", "max_offset", "arrived", "wakes"),
    [
        pytest.param(5, None, 6, [TAG_A], True, id="a new message"),
        pytest.param(5, None, 6, [0], True, id="a new message without a tag"),
        pytest.param(5, None, 5, [TAG_A], False, id="the queue still ends where the pull wants to read"),
        pytest.param(5, None, 4, [TAG_A], False, id="the queue ends before"),
        pytest.param(5, frozenset({TAG_A}), 6, [TAG_A], True, id="the tag asked for"),
        pytest.param(5, frozenset({TAG_A}), 6, [TAG_B], False, id="another tag"),
        pytest.param(5, frozenset({TAG_A}), 6, [0], False, id="no tag, one is asked for"),
        pytest.param(5, frozenset({TAG_A, TAG_B}), 9, [7, 8, TAG_B], True, id="one of several, of several"),
        pytest.param(0, None, 1, [], True, id="messages whose tags are not told"),
        pytest.param(0, frozenset({TAG_A}), 1, [], False, id="no new tags at all"),
    ],
)
def test_a_message_wakes_whom_it_is_for(
    offset: int, tags: frozenset[int] | None, max_offset: int, arrived: list[int], wakes: bool
) -> None:
    pulls = HeldPulls[object, str](10)
    held = pull(offset, tags)
    assert pulls.hold(held)
    assert pulls.ready("T", 0, max_offset, arrived) == ([held] if wakes else [])
    assert len(pulls) == (0 if wakes else 1)


def test_a_probe_decides_and_looks_at_nothing_twice() -> None:
    asked: list[int] = []
    answers = iter([7, 9, None])

    def probe(offset: int) -> int | None:
        asked.append(offset)
        return next(answers)

    pulls = HeldPulls[object, str](10)
    held: HeldPull[object, str] = HeldPull(QueueKey("T", 0), 5, None, 100, "me", "", probe)
    pulls.hold(held)
    assert pulls.ready("T", 0, 7, [TAG_A, TAG_B]) == []
    assert pulls.to_probe("T", 0) == [held]
    assert not pulls.probe(held, 5)  # nothing has come yet
    assert not pulls.probe(held, 7)
    assert not pulls.probe(held, 9)
    assert len(pulls) == 1
    assert pulls.probe(held, 10)
    assert len(pulls) == 0
    assert not pulls.probe(held, 11)
    assert asked == [5, 7, 9]
    assert held.offset == 9


def test_a_probe_that_did_not_reach_the_end_wakes() -> None:
    """More came at once than one look takes in: what matches may lie behind it."""
    pulls = HeldPulls[object, str](10)
    held: HeldPull[object, str] = HeldPull(
        QueueKey("T", 0), 5, None, 100, "me", "", lambda offset: offset + 100
    )
    pulls.hold(held)
    assert pulls.probe(held, 500)
    assert held.offset == 105


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 1), ("U", 0)])
def test_other_queues_do_not_wake(topic: str, queue_id: int) -> None:
    pulls = HeldPulls[object, str](10)
    pulls.hold(pull())
    assert pulls.ready(topic, queue_id, 100, [TAG_A]) == []
    assert len(pulls) == 1


def test_all_waiting_pulls_of_a_queue_wake_in_the_order_in_which_they_came() -> None:
    pulls = HeldPulls[object, str](10)
    held = [pull(owner=i) for i in range(4)]
    held.insert(2, pull(99))
    for one in held:
        pulls.hold(one)
    assert pulls.ready("T", 0, 6, [TAG_A]) == [held[0], held[1], held[3], held[4]]
    assert len(pulls) == 1


def test_a_woken_pull_is_gone() -> None:
    pulls = HeldPulls[object, str](10)
    pulls.hold(pull())
    assert len(pulls.ready("T", 0, 6, [TAG_A])) == 1
    assert pulls.ready("T", 0, 7, [TAG_A]) == []
    assert pulls.expired(10_000) == []


def test_time_is_over_at_the_deadline_and_not_before() -> None:
    pulls = HeldPulls[object, str](10)
    late, soon = pull(deadline_ms=101), pull(deadline_ms=100)
    pulls.hold(late)
    pulls.hold(soon)
    assert pulls.expired(99) == []
    assert pulls.expired(100) == [soon]
    assert pulls.expired(100) == []
    assert pulls.ready("T", 0, 6, [TAG_A]) == [late]
    assert pulls.expired(1000) == []
    assert len(pulls) == 0


def test_no_more_are_held_than_allowed() -> None:
    pulls = HeldPulls[object, str](2)
    full = []
    for _ in range(2):
        assert pulls.hold(pull())
        full.append(pulls.is_full)
    assert full == [False, True]
    refused = pull()
    assert not pulls.hold(refused)
    assert refused not in pulls.ready("T", 0, 6, [TAG_A])
    assert pulls.hold(refused)


def test_a_lost_connection_takes_its_pulls_along() -> None:
    pulls = HeldPulls[object, str](10)
    mine, yours = object(), object()
    pulls.hold(pull(owner=mine))
    pulls.hold(pull(owner=mine, queue=("U", 3)))
    kept = pull(owner=yours)
    pulls.hold(kept)
    assert pulls.drop_owner(mine) == 2
    assert pulls.drop_owner(mine) == 0
    assert pulls.drop_owner(object()) == 0
    assert len(pulls) == 1
    assert pulls.ready("T", 0, 6, [TAG_A]) == [kept]
    assert pulls.ready("U", 3, 6, [TAG_A]) == []
    assert pulls.expired(1000) == []


def test_pulls_of_a_closing_connection_are_not_run_again() -> None:
    gone = "gone"
    pulls = HeldPulls[object, str](10, is_gone=lambda owner: owner is gone)
    pulls.hold(pull(owner=gone))
    pulls.hold(pull(owner=gone, deadline_ms=1, queue=("U", 0)))
    assert pulls.ready("T", 0, 6, [TAG_A]) == []
    assert pulls.expired(1) == []
    assert len(pulls) == 0


@pytest.mark.alone
def test_forty_thousand_pulls_of_one_queue_come_and_go_quickly() -> None:
    """Each one that left copied the list of those that stayed: the sweep took minutes, and nothing else ran."""
    count = 40_000
    pulls = HeldPulls[object, str](count)
    owners = [object() for _ in range(100)]
    began = time.process_time()
    for i in range(count):
        pulls.hold(pull(owner=owners[i % 100]))
    assert len(pulls.expired(100)) == count
    for i in range(count):
        pulls.hold(pull(owner=owners[i % 100], queue=("T", i % 50)))
    for owner in owners:
        assert pulls.drop_owner(owner) == count // 100
    assert time.process_time() - began < 10
    assert len(pulls) == 0


def test_pulls_that_left_are_not_kept_until_their_time_is_over() -> None:
    """A busy queue wakes thousands of pulls a second; each stayed in memory, request and all, up to two minutes."""
    pulls = HeldPulls[object, str](10)
    for offset in range(10_000):
        pulls.hold(pull(offset, deadline_ms=120_000 + offset))
        assert len(pulls.ready("T", 0, offset + 1, [TAG_A])) == 1
    assert len(pulls.by_deadline) < 200


@dataclass
class Waiting:
    """What the model knows of a held pull."""

    held: HeldPull[object, str]
    offset: int
    tags: frozenset[int] | None
    deadline_ms: int
    owner: int
    queue: tuple[str, int] = field(default=("T", 0))


class HeldPullsMachine(RuleBasedStateMachine):
    """A list that is searched whole for everything behaves the same."""

    limit = 12

    def __init__(self) -> None:
        super().__init__()
        self.pulls = HeldPulls[object, str](self.limit, is_gone=lambda owner: owner == 0)
        self.model: list[Waiting] = []
        self.now_ms = 0
        self.serial = 0

    @rule(
        offset=st.integers(0, 5),
        tags=st.none() | st.frozensets(st.integers(0, 3), min_size=1),
        wait_ms=st.integers(1, 50),
        owner=st.integers(0, 3),
        queue=st.sampled_from([("T", 0), ("T", 1), ("U", 0)]),
    )
    def hold(
        self,
        offset: int,
        tags: frozenset[int] | None,
        wait_ms: int,
        owner: int,
        queue: tuple[str, int],
    ) -> None:
        self.serial += 1
        deadline = self.now_ms + wait_ms
        held = pull(offset, tags, queue=queue, deadline_ms=deadline, owner=owner, work=str(self.serial))
        assert self.pulls.hold(held) == (len(self.model) < self.limit)
        if len(self.model) < self.limit:
            self.model.append(Waiting(held, offset, tags, deadline, owner, queue))

    @rule(
        queue=st.sampled_from([("T", 0), ("T", 1), ("U", 0), ("V", 9)]),
        max_offset=st.integers(0, 7),
        arrived=st.lists(st.integers(0, 3), max_size=3),
    )
    def arrive(self, queue: tuple[str, int], max_offset: int, arrived: list[int]) -> None:
        woken = [
            one
            for one in self.model
            if one.queue == queue
            and max_offset > one.offset
            and (one.tags is None or any(tag in one.tags for tag in arrived))
        ]
        self.model = [one for one in self.model if one not in woken]
        found = self.pulls.ready(*queue, max_offset, arrived)
        assert found == [one.held for one in woken if one.owner != 0]

    @rule(passed_ms=st.integers(0, 40))
    def sweep(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        over = [one for one in self.model if one.deadline_ms <= self.now_ms]
        self.model = [one for one in self.model if one.deadline_ms > self.now_ms]
        expected = {one.held.work for one in over if one.owner != 0}
        found = [held.work for held in self.pulls.expired(self.now_ms)]
        assert sorted(found) == sorted(expected)

    @rule(owner=st.integers(0, 3))
    def lose(self, owner: int) -> None:
        gone = [one for one in self.model if one.owner == owner]
        self.model = [one for one in self.model if one.owner != owner]
        assert self.pulls.drop_owner(owner) == len(gone)

    @invariant()
    def the_count_is_right(self) -> None:
        assert len(self.pulls) == len(self.model)
        assert self.pulls.is_full == (len(self.model) >= self.limit)


TestHeldPullsModel = HeldPullsMachine.TestCase
TestHeldPullsModel.settings = settings(stateful_step_count=25)
