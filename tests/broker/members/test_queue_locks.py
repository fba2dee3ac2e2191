"""Queue locks as tables: who gets what, and when a lock runs out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.members import queue_locks
from aerobee_broker.members.queue_locks import LOCK_EXPIRY_MS, QueueLocks
from aerobee_proto.bodies import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_lock_is_held_by_one_client_until_it_is_given_back() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "a", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q1], 1) == []
    assert locks.unlock("g", "b", [Q0]) == 0
    assert locks.unlock("g", "a", [Q0]) == 1
    assert locks.lock("g", "b", [Q0, Q1], 2) == [Q0]
    assert locks.holder("g", Q1, 2) == "a"


def test_groups_do_not_see_each_other() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("h", "b", [Q0], 0) == [Q0]


def test_a_lock_runs_out_after_a_minute_without_renewal() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", [Q0], 0)
    locks.lock("g", "a", [Q0], 1_000)
    assert locks.lock("g", "b", [Q0], 1_000 + LOCK_EXPIRY_MS) == []
    assert locks.is_locked("g", 1_000 + LOCK_EXPIRY_MS)
    assert not locks.is_locked("g", 1_001 + LOCK_EXPIRY_MS)
    assert locks.holder("g", Q0, 1_001 + LOCK_EXPIRY_MS) is None
    assert locks.lock("g", "b", [Q0], 1_001 + LOCK_EXPIRY_MS) == [Q0]


def test_there_is_a_bound_for_a_group_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """9,000 queues a request could be locked, for every group there is."""
    monkeypatch.setattr(queue_locks, "LOCKS_PER_GROUP_MAX", 3)
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 4)
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", at) for at in range(5)]
    assert locks.lock("g", "a", queues, 0) == queues[:3]
    assert locks.lock("g", "a", queues, 1) == queues[:3]  # renewed all the same
    assert locks.lock("h", "a", queues, 1) == queues[:1]
    assert locks.lock("i", "a", queues, 1) == []
    assert len(locks) == 4
    assert locks.unlock("g", "a", queues) == 3
    assert locks.lock("i", "a", queues, 1) == queues[:3]
    assert locks.forget_expired(2 + LOCK_EXPIRY_MS) == len(queues) - 1
    assert len(locks) == 0


def test_expired_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", [Q0], 0)
    locks.lock("h", "a", [Q1], 100_000)
    assert locks.forget_expired(100_000) == 1
    assert len(locks) == 1
    assert locks.unlock("g", "a", [Q0]) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 40_000)), max_size=40))
def test_no_two_clients_hold_a_queue_within_the_expiry(steps: list[tuple[str, bool, int]]) -> None:
    locks, now, holder, taken = QueueLocks(), 0, "", -LOCK_EXPIRY_MS - 1
    for client, is_lock, pause in steps:
        now += pause
        free = holder in ("", client) or now - taken > LOCK_EXPIRY_MS
        if is_lock:
            assert (locks.lock("g", client, [Q0], now) == [Q0]) is free
            if free:
                holder, taken = client, now
        elif locks.unlock("g", client, [Q0]):
            assert holder == client
            holder = ""
