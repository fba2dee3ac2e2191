"""How far groups are, as a use case: over a store in memory, with nobody connected."""

import pytest

from aerobee_broker.catalog.consumer_offsets import OFFSET_MAX
from aerobee_broker.messages.progress import Progress
from aerobee_proto.bodies import SubscriptionGroupConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import GroupQueue
from aerobee_service.turns.slices import at_once
from aerobee_store.store import MessageStore
from broker.messages.ground import G, Ground, T
from broker.support import Clock

QUEUE = GroupQueue(G, T, 0)


@pytest.fixture
def ground(store: MessageStore, clock: Clock) -> Ground:
    return Ground(store, clock)


@pytest.fixture
def progress(ground: Ground) -> Progress:
    return Progress(store=ground.store, catalog=ground.catalog, messages=ground.store.reading)


def test_what_was_committed_is_told(progress: Progress) -> None:
    progress.commit(QUEUE, 7)
    assert progress.committed(QUEUE, zero_allowed=False) == 7
    progress.commit(QUEUE, 2)  # a group may go back
    assert progress.committed(QUEUE, zero_allowed=False) == 2


def test_a_new_group_begins_with_a_young_queue_at_its_first_message(
    ground: Ground, progress: Progress
) -> None:
    for zero_allowed in (False, True):  # nothing is stored yet
        with pytest.raises(RequestError) as refused:
            progress.committed(QUEUE, zero_allowed=zero_allowed)
        assert refused.value.code == ResponseCode.QUERY_NOT_FOUND
    ground.store_all(b"1")
    assert progress.committed(QUEUE, zero_allowed=True) == 0
    with pytest.raises(RequestError):
        progress.committed(QUEUE, zero_allowed=False)


def test_while_a_reset_is_pending_commits_are_passed_over(ground: Ground, progress: Progress) -> None:
    ground.offsets.assign_reset(*QUEUE, 3)
    progress.commit(QUEUE, 9)
    assert progress.committed(QUEUE, zero_allowed=False) == 3


@pytest.mark.parametrize(
    ("queue", "offset", "code"),
    [
        (GroupQueue("no", T, 0), 0, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (GroupQueue(G, "No", 0), 0, ResponseCode.TOPIC_NOT_EXIST),
        (GroupQueue(G, T, 99), 0, ResponseCode.INVALID_PARAMETER),
        (GroupQueue(G, T, 0), -1, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_what_is_not_there_cannot_be_committed(
    store: MessageStore, clock: Clock, queue: GroupQueue, offset: int, code: int
) -> None:
    ground = Ground(store, clock, auto_create_subscription_group=False)
    with pytest.raises(RequestError) as refused:
        Progress(store=store, catalog=ground.catalog, messages=store.reading).commit(queue, offset)
    assert refused.value.code == code
    assert ground.offsets.get(*queue) is None


def test_corrections_say_where_the_slowest_is_behind_the_compared_group(
    ground: Ground, progress: Progress
) -> None:
    ground.groups.update([SubscriptionGroupConfig(group_name=name) for name in ("slow", "quick", "out")])
    for group, queue_id, offset in (
        ("slow", 0, 1),
        ("quick", 0, 8),
        ("out", 0, 0),
        (G, 0, 5),
        ("quick", 1, 8),
        (G, 1, 5),
    ):
        progress.commit(GroupQueue(group, T, queue_id), offset)
    found = at_once(progress.corrections(T, compared_group=G, without={"out"}))
    assert found == {0: 1, 1: 5}
    alone = at_once(progress.corrections(T, compared_group="slow", without={"out", "slow"}))
    assert alone == {0: OFFSET_MAX, 1: 5}
