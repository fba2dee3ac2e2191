"""Check-points in memory, against a model that knows no shortcuts."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.pop.checkpoints import CheckPoint, CheckPointTable, Key
from aerobee_proto.names import GroupQueue

QUEUE = GroupQueue("g", "T", 0)


def point(
    start: int,
    offsets: Sequence[int],
    *,
    pop_time: int = 1000,
    invisible_ms: int = 100,
    revive_queue: int = 0,
    revive_offset: int = 0,
    bits: int = 0,
) -> CheckPoint:
    return CheckPoint(
        Key(*QUEUE, start, pop_time),
        offsets,
        invisible_ms=invisible_ms,
        revive_queue=revive_queue,
        revive_offset=revive_offset,
        bits=bits,
    )


def test_acknowledgements_count_once_and_settle() -> None:
    table = CheckPointTable()
    table.add(point(5, [5, 7, 9]))
    key = Key(*QUEUE, 5, 1000)
    assert table.ack(key, [7, 7, 6]) == [7]
    assert table.ack(key, [7]) == []
    assert (table.unacknowledged, table.in_flight(QUEUE)) == (2, 2)
    assert table.ack(key, [5, 9]) == [5, 9]
    assert table.ack(key, [5]) is None
    assert (len(table), table.unacknowledged, table.in_flight(QUEUE)) == (0, 0, 0)


def test_a_check_point_that_came_acknowledged_is_none() -> None:
    table = CheckPointTable()
    table.add(point(0, [0, 1], bits=0b11))
    assert len(table) == 0


def test_a_check_point_that_is_written_again_keeps_what_is_known() -> None:
    table = CheckPointTable()
    table.add(point(0, [0, 1, 2]))
    table.ack(Key(*QUEUE, 0, 1000), [0])
    table.add(point(0, [0, 1, 2], revive_offset=9, bits=0b010))
    found = table.get(Key(*QUEUE, 0, 1000))
    assert found is not None
    assert (found.missing(), table.unacknowledged) == ([2], 1)
    assert table.first_needed(0, 100) == 9
    assert len(table.due(5000, 10)) == 1


def test_acknowledgements_wait_for_their_check_point_and_are_forgotten() -> None:
    table = CheckPointTable(early_max=1)
    key, other = Key(*QUEUE, 0, 1000), Key(*QUEUE, 50, 1000)
    assert table.may_remember(key)
    table.remember(key, [0, 2], revive_queue=3, revive_offset=4, expires_ms=2000)
    assert not table.may_remember(other)
    table.remember(other, [50], revive_queue=3, revive_offset=5, expires_ms=2000)
    assert table.first_needed(3, 100) == 4
    table.add(point(0, [0, 1, 2]))
    found = table.get(key)
    assert found is not None
    assert found.missing() == [1]
    assert table.first_needed(3, 100) == 100
    table.remember(other, [50], revive_queue=3, revive_offset=5, expires_ms=2000)
    table.expire(2000)
    table.add(point(50, [50]))
    assert other in table


def test_places_follow_what_is_written_again() -> None:
    table = CheckPointTable()
    first, second = point(0, [0], revive_offset=1), point(1, [1], revive_offset=2)
    table.add(first)
    table.add(second)
    assert table.first(0) is first
    table.move(first, 7)
    assert (table.first(0), table.first_needed(0, 9)) == (second, 2)
    table.settle(second)
    assert (table.first(0), table.first_needed(0, 9)) == (first, 7)
    table.settle(first)
    assert (table.first(0), table.first_needed(0, 9)) == (None, 9)


@pytest.mark.parametrize("count", [1, 31, 32])
def test_all_bits_of_a_check_point_can_be_used(count: int) -> None:
    table = CheckPointTable()
    table.add(point(0, range(count)))
    assert table.ack(Key(*QUEUE, 0, 1000), range(count)) == list(range(count))
    assert len(table) == 0


class TableModel(RuleBasedStateMachine):
    """Sets of (key, offset), found by looking at everything."""

    def __init__(self) -> None:
        super().__init__()
        self.table = CheckPointTable()
        self.now_ms = 1000
        self.next_offset = 0
        self.next_place = [0, 0]
        self.open: dict[Key, set[int]] = {}
        self.places: dict[Key, tuple[int, int]] = {}
        self.due_ms: dict[Key, int] = {}

    @rule(count=st.integers(1, 32), invisible_ms=st.integers(0, 50), revive_queue=st.integers(0, 1))
    def pop(self, count: int, invisible_ms: int, revive_queue: int) -> None:
        offsets = range(self.next_offset, self.next_offset + count)
        self.next_offset += count
        key = Key(*QUEUE, offsets[0], self.now_ms)
        place = self.next_place[revive_queue]
        self.next_place[revive_queue] += 1
        self.table.add(
            CheckPoint(
                key, offsets, invisible_ms=invisible_ms, revive_queue=revive_queue, revive_offset=place
            )
        )
        self.open[key], self.places[key] = set(offsets), (revive_queue, place)
        self.due_ms[key] = self.now_ms + invisible_ms

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        offsets = data.draw(st.lists(st.sampled_from(sorted(self.open[key])), min_size=1, unique=True))
        assert self.table.ack(key, offsets) == offsets
        self.open[key] -= set(offsets)
        if not self.open[key]:
            del self.open[key]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def write_again(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        found = self.table.get(key)
        assert found is not None
        queue = self.places[key][0]
        self.table.move(found, self.next_place[queue])
        self.places[key] = (queue, self.next_place[queue])
        self.next_place[queue] += 1

    @rule(passed_ms=st.integers(0, 60), count_max=st.integers(1, 5), later=st.booleans())
    def time_passes(self, passed_ms: int, count_max: int, later: bool) -> None:
        self.now_ms += passed_ms
        due = self.table.due(self.now_ms, count_max)
        expected = sorted(self.due_ms[key] for key in self.open if self.due_ms[key] <= self.now_ms)
        assert [point.due_ms for point in due] == expected[:count_max]
        for one in due:
            if later:
                self.table.postpone(one, self.now_ms + 7)
                self.due_ms[one.key] = self.now_ms + 7
            else:
                assert set(one.missing()) == self.open.pop(one.key)
                self.table.settle(one)

    @invariant()
    def agrees(self) -> None:
        self.table.check()
        assert {one.key for one in self.table.all()} == set(self.open)
        assert self.table.unacknowledged == sum(map(len, self.open.values()))
        for queue in (0, 1):
            places = [place for key, (at, place) in self.places.items() if at == queue and key in self.open]
            assert self.table.first_needed(queue, 10_000) == min(places, default=10_000)


TestTable = TableModel.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
