from hypothesis import given
from hypothesis import strategies as st

from aerobee.messages.offset_tracker import OffsetTracker


def test_the_smallest_open_offset_is_committed() -> None:
    tracker = OffsetTracker(5)
    for offset in (5, 6, 7):
        tracker.add(offset)
    assert tracker.committable == 5
    tracker.done(6)
    assert tracker.committable == 5
    tracker.done(5)
    assert tracker.committable == 7
    tracker.done(7)
    assert tracker.committable == 8


def test_filtered_messages_need_no_work() -> None:
    tracker = OffsetTracker(0)
    tracker.add(3)
    tracker.read_to(10)
    assert (tracker.committable, tracker.span) == (3, 7)
    tracker.done(3)
    assert (tracker.committable, tracker.span) == (10, 0)


def test_a_reset_forgets_what_was_open() -> None:
    tracker = OffsetTracker(0)
    tracker.add(0)
    tracker.reset(40)
    tracker.done(0)
    assert (tracker.committable, tracker.open_count) == (40, 0)


@given(st.lists(st.integers(0, 40), unique=True, max_size=30).map(sorted), st.data())
def test_nothing_open_lies_before_what_may_be_committed(offsets: list[int], data: st.DataObject) -> None:
    tracker = OffsetTracker(0)
    for offset in offsets:
        tracker.add(offset)
    tracker.read_to(41)
    left = set(offsets)
    before = tracker.committable
    for offset in data.draw(st.permutations(offsets)):
        tracker.done(offset)
        tracker.done(offset)  # a second time changes nothing
        left.discard(offset)
        assert tracker.committable == min(left, default=41) >= before
        before = tracker.committable
    assert tracker.open_count == 0
