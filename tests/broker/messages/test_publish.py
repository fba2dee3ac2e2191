"""Publishing without connections, headers or frames: values in, columns out."""

import asyncio

import pytest

from aerobee_broker.messages.publish import Published
from aerobee_broker.messages.publish_batches import MESSAGES_A_STEP, TURN_COUNT_MAX, StoredBatch
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.bodies import SubscriptionGroupConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.javajson import MessageQueue
from aerobee_service.turns.slices import at_once
from aerobee_store.faults.errors import StorePoisoned
from aerobee_store.terms.messages import NewMessage, PutStatus
from broker.scene import SENDER, Message, Scene


def codes(published: Published) -> dict[int, int]:
    return {number: refused.code for number, refused in published.refused.items()}


async def test_columns_are_as_long_as_what_was_given(scene: Scene) -> None:
    published = scene.publish(Message(), Message(queue_id=1), Message(properties="UNIQ_KEY\x01mine"))
    assert published.queue_ids == [0, 1, 0]
    assert [place.status for place in published.places] == [PutStatus.PUT_OK] * 3
    assert [place.queue_offset for place in published.places] == [0, 0, 1]
    assert published.unique_keys[2] == "mine"
    assert len(set(published.unique_keys)) == 3
    assert (published.refused, published.without_wait, published.recall_handles) == ({}, set(), {})
    assert [record.queue_offset for record in scene.records()] == [0, 1]  # they can be read
    assert scene.records()[0].born_host == ("10.0.0.1", 5000)


async def test_what_is_refused_leaves_the_others_in_their_places(scene: Scene) -> None:
    published = scene.publish(
        Message(topic="no topic"),
        Message(queue_id=1),
        Message(queue_id=2),
        Message(properties="WAIT\x01false\x02UNIQ_KEY\x01hasty"),
    )
    assert codes(published) == {0: ResponseCode.INVALID_PARAMETER, 2: ResponseCode.INVALID_PARAMETER}
    assert (published.queue_ids[1], published.queue_ids[3]) == (1, 0)
    assert [place.status is PutStatus.PUT_OK for place in published.places] == [False, True, False, True]
    assert published.unique_keys[3] == "hasty"
    assert published.without_wait == {3}
    stats = scene.parts.stats
    assert (stats.put_failed, stats.put_count.value, stats.of_topic("T").count) == (2, 2, 2)


async def test_what_the_store_refuses_is_refused_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    published = scene.publish(Message(properties="K\x01" + "x" * 40_000), Message())
    assert codes(published) == {0: ResponseCode.MESSAGE_ILLEGAL}
    assert [len(scene.records()), scene.parts.stats.put_failed] == [1, 1]

    def fails(messages: list[NewMessage]) -> None:
        raise StorePoisoned("the disk has failed")

    monkeypatch.setattr(type(scene.store), "append", lambda _, messages: fails(messages))
    published = scene.publish(Message(topic="no topic"), Message(), Message())
    assert codes(published) == {
        0: ResponseCode.INVALID_PARAMETER,
        1: ResponseCode.SERVICE_NOT_AVAILABLE,
        2: ResponseCode.SERVICE_NOT_AVAILABLE,
    }


async def test_a_message_for_later_lies_elsewhere_and_is_answered_for_its_queue(scene: Scene) -> None:
    published = scene.publish(Message(queue_id=1, properties="DELAY\x012"))
    assert published.queue_ids == [1]
    assert scene.records("T", 1) == []
    assert len(scene.records("SCHEDULE_TOPIC_XXXX", 1)) == 1


@pytest.mark.parametrize(
    ("times", "limit", "dead"), [(3, 3, False), (4, 3, True), (4, None, False), (17, None, True)]
)
async def test_what_failed_too_often_goes_to_the_dead_letters(
    scene: Scene, times: int, limit: int | None, dead: bool
) -> None:
    """As often as its sender says, or as its group does."""
    scene.parts.groups.update([SubscriptionGroupConfig(group_name="G", retry_max_times=16)])
    scene.parts.topics.for_group("%RETRY%G", queue_count=1)
    message = Message(topic="%RETRY%G", reconsume_times=times, max_reconsume_times=limit)
    published = scene.publish(message)
    assert codes(published) == {}
    assert [len(scene.records("%DLQ%G")), len(scene.records("%RETRY%G"))] == [dead, not dead]
    assert message.properties == ""


async def test_what_failed_in_a_group_that_consumes_in_order_goes_to_the_dead_letters(scene: Scene) -> None:
    scene.parts.groups.update([SubscriptionGroupConfig(group_name="G", retry_max_times=16)])
    scene.parts.topics.for_group("%RETRY%G", queue_count=1)
    scene.parts.locks.lock("G", "client", [MessageQueue("T", "broker", 0)], scene.clock())
    scene.publish(Message(topic="%RETRY%G"))
    assert len(scene.records("%DLQ%G")) == 1


async def test_a_batch_is_stored_whole_or_not_at_all(scene: Scene) -> None:
    good = scene.plan([BatchEntry(0, b"a", ""), BatchEntry(0, b"b", "")])
    bad = scene.plan([BatchEntry(0, b"c", ""), BatchEntry(0, b"d", "DELAY\x011")])
    outcomes = scene.batches.publish([bad, good], SENDER)
    assert isinstance(outcomes[0], RequestError)
    assert isinstance(outcomes[1], StoredBatch)
    assert [place.queue_offset for place in outcomes[1].places] == [0, 1]
    assert [record.body for record in scene.records()] == [b"a", b"b"]
    assert outcomes[1].keys == ",".join(record.unique_key or "" for record in scene.records())
    assert scene.parts.stats.put_failed == 1


async def test_a_large_batch_goes_in_steps_and_is_shown_at_the_end(scene: Scene) -> None:
    plan = scene.plan([BatchEntry(0, b"x", "")] * (2 * TURN_COUNT_MAX + 1))
    assert scene.batches.is_long([plan])
    assert not scene.batches.is_long([scene.plan([BatchEntry(0, b"x", "")])])
    steps = scene.batches.steps(plan, SENDER)
    for _ in range(2 * TURN_COUNT_MAX // MESSAGES_A_STEP + 2):  # and one more for the check of the whole
        next(steps)
        assert scene.store.reading.max_offset("T", 0) == 0
        await asyncio.sleep(0)
    outcome = at_once(steps)
    assert isinstance(outcome, StoredBatch)
    assert len(outcome.places) == scene.store.reading.max_offset("T", 0) == len(plan.entries)


async def test_a_large_batch_that_is_refused_leaves_nothing(scene: Scene) -> None:
    entries = [BatchEntry(0, b"x", "")] * TURN_COUNT_MAX
    plan = scene.plan([*entries, BatchEntry(0, b"x", "DELAY\x011")])
    outcome = at_once(scene.batches.steps(plan, SENDER))
    assert isinstance(outcome, RequestError)
    assert outcome.code == ResponseCode.MESSAGE_ILLEGAL
    assert (scene.store.end_offset, scene.parts.stats.put_failed) == (0, 1)


async def test_what_is_no_batch_is_refused_before_anything_is_looked_at(scene: Scene) -> None:
    for body in (b"", b"\x00", encode_batch([])):
        refused = at_once(scene.batches.planning(Message(), body))
        assert isinstance(refused, RequestError)
    assert scene.parts.stats.put_failed == 3
