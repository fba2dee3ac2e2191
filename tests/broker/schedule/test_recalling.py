"""Recalls without connections, headers or frames: a handle in, a unique key out."""

from collections.abc import AsyncIterator

import pytest

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from broker.scene import Message, Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene(recall_message_enable=True)
    yield made
    made.close()


def handle_of(scene: Scene, due_in_ms: int = 60_000) -> str:
    """Of a timer message that is stored now."""
    due_ms = scene.clock() + due_in_ms
    published = scene.publish(Message(properties=f"UNIQ_KEY\x01u1\x02TIMER_DELIVER_MS\x01{due_ms}"))
    return published.recall_handles[0]


async def test_a_recall_is_a_timer_message_for_the_same_time(scene: Scene) -> None:
    assert await scene.parts.recalling.recall("T", handle_of(scene), "producers") == "u1"
    sent, recall = scene.records("rmq_sys_wheel_timer")
    assert recall.property_map["TIMER_DEL_UNIQKEY"] == "T+u1"
    assert recall.property_map["TIMER_OUT_MS"] == sent.property_map["TIMER_OUT_MS"]
    assert recall.property_map["PGROUP"] == "producers"
    assert scene.records() == []


async def test_a_recall_that_comes_too_late_is_refused(scene: Scene) -> None:
    handle = handle_of(scene)
    scene.clock.now_ms += 60_000
    await _refused(scene, "T", handle, ResponseCode.ILLEGAL_OPERATION, "delivered already")


async def test_a_handle_is_for_its_own_topic(scene: Scene) -> None:
    handle = handle_of(scene)
    await _refused(scene, "no topic", handle, ResponseCode.INVALID_PARAMETER, "no topic")
    await _refused(scene, "U", handle, ResponseCode.TOPIC_NOT_EXIST, "topic")
    await _refused(scene, "TBW102", handle, ResponseCode.ILLEGAL_OPERATION, "topic not match")
    await _refused(scene, "T", "rubbish", ResponseCode.ILLEGAL_OPERATION, "handle is invalid")


async def test_recalls_have_to_be_allowed() -> None:
    scene = Scene(recall_message_enable=False)
    await _refused(scene, "T", handle_of(scene), ResponseCode.NO_PERMISSION, "recallMessageEnable")
    scene.close()


async def _refused(scene: Scene, topic: str, handle: str, code: int, remark: str) -> None:
    stored = len(scene.records("rmq_sys_wheel_timer"))
    with pytest.raises(RequestError, match=remark) as refused:
        await scene.parts.recalling.recall(topic, handle, None)
    assert refused.value.code == code
    assert len(scene.records("rmq_sys_wheel_timer")) == stored
