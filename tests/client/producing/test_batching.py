from hypothesis import given
from hypothesis import strategies as st

from aerobee.producing.batching import Batch, Lane


def lane(
    *, linger_s: float = 0.0, batch_bytes: int = 100, batch_count: int = 10, in_flight_max: int = 2
) -> Lane[str]:
    return Lane(
        linger_s=linger_s, batch_bytes=batch_bytes, batch_count=batch_count, in_flight_max=in_flight_max
    )


def items(batch: Batch[str] | None) -> list[str] | None:
    return None if batch is None else batch.items


def test_without_linger_what_is_there_leaves_together() -> None:
    one = lane()
    assert one.add("a", 10, 0.0, 3.0)
    assert one.add("b", 10, 0.0, 3.0)
    assert items(one.take(0.0)) == ["a", "b"]
    assert one.take(0.0) is None


def test_with_linger_an_open_batch_waits_for_its_time() -> None:
    one = lane(linger_s=0.5)
    assert not one.add("a", 10, 1.0, 3.0)
    assert one.take(1.4) is None
    assert one.next_due() == 1.5
    assert not one.add("b", 10, 1.4, 3.0)
    assert one.next_due() == 1.5, "the first message sets the time"
    assert items(one.take(1.5)) == ["a", "b"]
    assert one.next_due() is None


def test_a_full_batch_does_not_linger() -> None:
    by_bytes = lane(linger_s=9.0)
    assert not by_bytes.add("a", 60, 0.0, 3.0)
    assert by_bytes.add("b", 60, 0.0, 3.0), "b does not fit, so a may leave"
    assert items(by_bytes.take(0.0)) == ["a"]
    assert by_bytes.take(0.0) is None
    by_count = lane(linger_s=9.0, batch_count=2)
    assert not by_count.add("a", 1, 0.0, 3.0)
    assert by_count.add("b", 1, 0.0, 3.0)
    assert items(by_count.take(0.0)) == ["a", "b"]


def test_flush_takes_the_open_batch_early() -> None:
    one = lane(linger_s=9.0)
    one.add("a", 10, 0.0, 3.0)
    assert items(one.take(0.0, flush=True)) == ["a"]


def test_no_more_batches_leave_than_may_be_in_flight() -> None:
    one = lane(batch_count=1, in_flight_max=1)
    one.add("a", 10, 0.0, 3.0)
    first = one.take(0.0)
    assert first is not None
    assert not one.add("b", 10, 0.0, 3.0)
    assert one.take(9.0, flush=True) is None
    assert one.next_due() is None
    one.done(first)
    assert items(one.take(9.0)) == ["b"]


def test_messages_gather_while_the_lane_is_full() -> None:
    one = lane(in_flight_max=1)
    one.add("a", 10, 0.0, 3.0)
    first = one.take(0.0)
    assert first is not None
    for name in "bcd":
        one.add(name, 10, 0.1, 3.0)
    one.done(first)
    assert items(one.take(0.2)) == ["b", "c", "d"]


def test_a_message_alone_keeps_its_place_in_the_order() -> None:
    one = lane(in_flight_max=9)
    one.add("a", 10, 0.0, 3.0)
    one.add("big", 10, 0.0, 3.0, alone=True)
    one.add("b", 10, 0.0, 3.0)
    batches = [one.take(0.0) for _ in range(3)]
    assert [items(batch) for batch in batches] == [["a"], ["big"], ["b"]]
    assert [batch.alone for batch in batches if batch] == [False, True, False]


def test_messages_that_travel_alone_weigh_less_than_a_batch() -> None:
    one = Lane[str](linger_s=0.0, batch_bytes=100, batch_count=10, in_flight_max=2, alone_share=3)
    for name in "abc":
        one.add(name, 10, 0.0, 3.0, alone=True)
    one.add("d", 10, 0.0, 3.0)
    alone = [one.take(0.0) for _ in range(3)]
    assert [items(batch) for batch in alone] == [["a"], ["b"], ["c"]]
    assert items(one.take(0.0)) == ["d"], "three alone and one batch fill the lane"
    one.add("e", 10, 0.0, 3.0)
    assert one.next_due() is None
    assert alone[0] is not None
    one.done(alone[0])
    assert one.take(0.0) is None, "there is room for a message alone, not for a batch"
    one.add("f", 10, 0.0, 3.0, alone=True)
    assert one.take(0.0) is None, "nothing overtakes"


def test_the_earliest_deadline_is_the_batch_deadline() -> None:
    one = lane()
    one.add("a", 10, 0.0, 3.0)
    one.add("b", 10, 0.0, 1.0)
    one.add("c", 10, 0.0, 2.0)
    batch = one.take(0.0)
    assert batch is not None
    assert batch.deadline == 1.0


def test_dropping_gives_back_what_was_not_taken() -> None:
    one = lane(batch_count=2, in_flight_max=1)
    for name in "abcde":
        one.add(name, 10, 0.0, 3.0)
    taken = one.take(0.0)
    assert taken is not None
    assert one.drop_all() == ["c", "d", "e"]
    assert (one.pending_count, one.pending_bytes) == (2, 20)
    one.done(taken)
    assert (one.pending_count, one.pending_bytes) == (0, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 150), st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("done"), st.just(0), st.just(False)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 3))
def test_any_sequence_keeps_order_limits_and_sums(steps: list[tuple[str, int, bool]], share: int) -> None:
    one = Lane[int](linger_s=1.0, batch_bytes=100, batch_count=4, in_flight_max=2, alone_share=share)
    added: list[int] = []
    taken: list[int] = []  # in the order they left
    flying: list[Batch[int]] = []
    sizes: dict[int, int] = {}
    now = 0.0
    for verb, number, flag in steps:
        if verb == "add":
            sizes[len(added)] = number
            one.add(len(added), number, now, now + 3, alone=flag)
            added.append(len(added))
        elif verb == "take":
            now += number
            batch = one.take(now, flush=flag)
            if batch is not None:
                assert batch.items
                assert len(batch.items) <= 4
                assert batch.size == sum(sizes[item] for item in batch.items)
                assert batch.size <= 100 or len(batch.items) == 1
                taken += batch.items
                flying.append(batch)
        elif flying:
            one.done(flying.pop(0))
        assert one.in_flight == len(flying)
        assert sum(1 if batch.alone else share for batch in flying) <= 2 * share
        gone = taken[: len(taken) - sum(len(batch.items) for batch in flying)]
        assert one.pending_count == len(added) - len(gone)
        assert one.pending_bytes == sum(sizes.values()) - sum(sizes[item] for item in gone)
    assert taken == added[: len(taken)]
    assert one.drop_all() == added[len(taken) :]


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.floats(0, 9)), max_size=12),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1, 2]),
)
def test_messages_that_come_together_lie_as_if_they_came_one_by_one(
    groups: list[tuple[list[int], float]], linger_s: float, in_flight_max: int
) -> None:
    one, other = (lane(linger_s=linger_s, batch_count=6, in_flight_max=in_flight_max) for _ in range(2))
    for sizes, deadline in groups:
        names = [str(size) for size in sizes]
        may_leave = False
        for name, size in zip(names, sizes, strict=True):
            may_leave |= other.add(name, size, 0.0, deadline)
        if one.has_room_for(len(sizes), sum(sizes)):
            assert one.add_together(names, sum(sizes), 0.0, deadline) == may_leave
        else:
            for name, size in zip(names, sizes, strict=True):
                one.add(name, size, 0.0, deadline)
        assert (one.pending_count, one.pending_bytes) == (other.pending_count, other.pending_bytes)
        taken, expected = one.take(0.0, flush=True), other.take(0.0, flush=True)
        assert (taken is None) == (expected is None)
        if taken is not None and expected is not None:
            assert (taken.items, taken.size, taken.deadline) == (
                expected.items,
                expected.size,
                expected.deadline,
            )
            one.done(taken)
            other.done(expected)
    assert one.drop_all() == other.drop_all()


@given(STEPS, st.integers(1, 3))
def test_when_a_batch_is_due_it_can_be_taken(steps: list[tuple[str, int, bool]], share: int) -> None:
    """Else a timer that is set for next_due() would fire without end."""
    one = Lane[int](linger_s=1.0, batch_bytes=100, batch_count=4, in_flight_max=2, alone_share=share)
    flying: list[Batch[int]] = []
    for verb, number, flag in steps:
        if verb == "add":
            one.add(0, number, 0.0, 3.0, alone=flag)
        elif verb == "done" and flying:
            one.done(flying.pop(0))
        else:
            due = one.next_due()
            batch = one.take(due if due is not None else 0.0, flush=flag)
            assert batch is not None or due is None
            if batch is not None:
                flying.append(batch)
