"""Ends of transactions without connections, headers or frames: which half message is meant, and what becomes of it."""

import asyncio
from typing import Any

import pytest

from aerobee_broker.transactions.ending import EndOfTransaction
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from broker.scene import Message, Scene

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def begun(scene: Scene, *, more: str = "", **changes: Any) -> EndOfTransaction:
    """The end of a transaction that is begun now."""
    properties = f"UNIQ_KEY\x01u1\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02{more}"
    place = scene.publish(Message(properties=properties, born_timestamp=scene.clock())).places[0]
    fields: dict[str, Any] = {
        "producer_group": "P",
        "physical_offset": place.physical_offset,
        "half_offset": place.queue_offset,
        "answers_check": False,
    }
    return EndOfTransaction(**(fields | changes))


async def commit(scene: Scene, end: EndOfTransaction) -> None:
    done: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()
    scene.parts.ending.commit(end, done.set_result, admit=lambda _: None)
    assert await done is None


async def test_a_commit_shows_the_message_once(scene: Scene) -> None:
    end = begun(scene)
    assert scene.records() == []
    await commit(scene, end)
    await commit(scene, end)  # told again
    (record,) = scene.records()
    assert (record.body, record.prepared_transaction_offset) == (b"body", end.physical_offset)
    with pytest.raises(RequestError, match="committed already"):
        scene.parts.ending.roll_back(end, admit=lambda _: None)


async def test_what_is_rolled_back_never_shows(scene: Scene) -> None:
    end = begun(scene)
    scene.parts.ending.roll_back(end, admit=lambda _: None)
    scene.parts.ending.roll_back(end, admit=lambda _: None)
    with pytest.raises(RequestError, match="rolled back already"):
        await commit(scene, end)
    assert scene.records() == []


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producer_group": "Q"}, "producer group wrong"),
        ({"half_offset": 1}, "state table offset wrong"),
        ({"physical_offset": 17}, "Find prepared transaction message failed"),
        ({"physical_offset": -1}, "Find prepared transaction message failed"),
    ],
)
async def test_an_end_that_means_no_open_transaction_is_refused(
    scene: Scene, changes: dict[str, Any], remark: str
) -> None:
    end = begun(scene, **changes)
    with pytest.raises(RequestError, match=remark) as refused:
        scene.parts.ending.roll_back(end, admit=lambda _: None)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(RequestError, match=remark):
        await commit(scene, end)
    assert scene.records() == []


@pytest.mark.parametrize("answers_check", [False, True])
async def test_after_the_time_of_its_own_only_answers_to_checks_count(
    scene: Scene, answers_check: bool
) -> None:
    end = begun(scene, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02", answers_check=answers_check)
    scene.clock.now_ms += 10_001
    if answers_check:
        await commit(scene, end)
        assert len(scene.records()) == 1
        return
    with pytest.raises(RequestError) as refused:
        await commit(scene, end)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
    assert scene.records() == []


async def test_only_what_was_given_up_is_asked_about_again(scene: Scene) -> None:
    begun(scene)
    (half,) = scene.records(HALF)
    with pytest.raises(RequestError, match="is no message of TRANS_CHECK_MAX_TIME_TOPIC"):
        await scene.parts.ending.resume(half.offset_message_id, admit=lambda _: None)
    with pytest.raises(RequestError, match="msgId"):
        await scene.parts.ending.resume("rubbish", admit=lambda _: None)
    own = half.property_map | {"TRANSACTION_CHECK_TIMES": "15"}
    scene.parts.topics.for_group("TRANS_CHECK_MAX_TIME_TOPIC", queue_count=1)
    await scene.parts.writer.put([scene.parts.writer.copy(half, "TRANS_CHECK_MAX_TIME_TOPIC", 0, own)])
    (given_up,) = scene.records("TRANS_CHECK_MAX_TIME_TOPIC")
    resumed = await scene.parts.ending.resume(given_up.offset_message_id, admit=lambda _: None)
    assert resumed.topic == "T"
    _, again = scene.records(HALF)
    assert (again.physical_offset, again.property_map["TRANSACTION_CHECK_TIMES"]) == (
        resumed.physical_offset,
        "0",
    )


async def test_whoever_may_not_send_to_the_topic_that_is_found_ends_nothing(scene: Scene) -> None:
    end = begun(scene)

    def admit(topic: str) -> None:
        raise RequestError(ResponseCode.NO_PERMISSION, f"not {topic}")

    with pytest.raises(RequestError, match="not T"):
        scene.parts.ending.commit(end, lambda _: None, admit=admit)
    with pytest.raises(RequestError, match="not T"):
        scene.parts.ending.roll_back(end, admit=admit)
    await commit(scene, end)  # it is open still
    assert len(scene.records()) == 1
