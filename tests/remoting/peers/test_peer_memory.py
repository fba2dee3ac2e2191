"""The account of what is kept for peers: bounds, shares, random histories against a plain model."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.errors import LimitReached
from aerobee_remoting.peers.peer_memory import NOBODY, PEER_LIMIT, TOTAL_LIMIT, PeerMemory, Shared


def test_a_peer_gets_no_more_than_its_share_and_others_are_not_disturbed() -> None:
    memory = PeerMemory(total_max=100, peer_max=30)
    memory.take("a", "x", 30)
    with pytest.raises(LimitReached) as refused:
        memory.take("a", "y", 1)
    assert (refused.value.limit, memory.of("a"), memory.total) == (PEER_LIMIT, 30, 30)
    memory.take("b", "y", 30)
    memory.give("a", "x", 10)
    memory.take("a", "y", 10)
    assert (memory.total, memory.kinds) == (60, {"x": 20, "y": 40})


def test_all_together_get_no_more_than_the_sum() -> None:
    memory = PeerMemory(total_max=100, peer_max=30)
    for peer in "abc":
        memory.take(peer, "x", 30)
    with pytest.raises(LimitReached) as refused:
        memory.take("d", "x", 11)
    assert (refused.value.limit, memory.of("d"), memory.peer_count) == (TOTAL_LIMIT, 0, 3)
    memory.take(NOBODY, "common", 10)  # what belongs to nobody has the sum alone for a bound
    assert memory.total == 100


def test_a_peer_that_gives_everything_back_is_forgotten() -> None:
    memory = PeerMemory()
    memory.take("a", "x", 30)
    memory.give("a", "x", 30)
    assert (memory.total, memory.peer_count) == (0, 0)


def test_what_is_shared_is_counted_once_for_all_and_for_each() -> None:
    memory = PeerMemory(total_max=1000, peer_max=100)
    shared = Shared[list[int]](memory, "lists")
    first = shared.hold("key", "a", 60, lambda: [1])
    assert shared.hold("key", "b", 60, lambda: [2]) is first
    shared.hold("key", "a", 60, lambda: [3])
    assert (memory.total, memory.of("a"), memory.of("b")) == (60, 60, 60)
    shared.drop("key", "a")
    assert (memory.total, memory.of("a")) == (60, 60)
    shared.drop("key", "a")
    assert (memory.total, memory.of("a"), memory.of("b")) == (60, 0, 60)
    memory.take("c", "x", 50)
    with pytest.raises(LimitReached):  # the share of a peer counts whole, though nothing new is kept
        shared.hold("key", "c", 60, list)
    shared.drop("key", "b")
    assert (memory.total, len(shared)) == (50, 0)


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 3)),
        max_size=60,
    )
)
def test_any_history_of_shares_ends_with_what_is_held(steps: list[tuple[bool, str, int]]) -> None:
    memory = PeerMemory(total_max=70, peer_max=50)
    shared = Shared[int](memory, "things")
    held: Counter[tuple[str, int]] = Counter()
    for hold, peer, key in steps:
        size = 10 * (key + 1)
        if hold:
            before = (memory.total, memory.of(peer))
            try:
                shared.hold(key, peer, size, lambda: 0)
            except LimitReached:
                assert (memory.total, memory.of(peer)) == before
                continue
            held[peer, key] += 1
        elif held[peer, key]:
            shared.drop(key, peer)
            held[peer, key] -= 1
        held = +held
        memory.check()
        assert memory.total == sum(10 * (key + 1) for key in {key for _, key in held}) <= 70
        for one in "abc":
            assert memory.of(one) == sum(10 * (key + 1) for peer, key in held if peer == one) <= 50
