"""Giving back without connections, headers or frames: a message comes back later, or is a dead letter."""

from collections.abc import Callable

import pytest

from aerobee_broker.messages.giving_back import GivenBack
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.records import StoredRecord
from aerobee_store.faults.errors import StorePoisoned
from aerobee_store.terms.messages import NewMessage
from broker.scene import Message, Scene

G = "G"
Admit = Callable[[str], None]


def everyone(_: str) -> None:
    return


def stored(scene: Scene, **fields: int) -> int:
    """Physical offset of a message of topic T."""
    scene.parts.groups.update([SubscriptionGroupConfig(group_name=G, retry_max_times=3)])
    published = scene.publish(Message(properties="UNIQ_KEY\x01u1", **fields))  # type: ignore[arg-type]
    return published.places[0].physical_offset


async def give_back(
    scene: Scene,
    offset: int,
    *,
    group: str = G,
    level: int = 0,
    limit: int | None = None,
    admit: Admit = everyone,
) -> None:
    await scene.parts.giving_back.give_back(
        GivenBack(group=group, physical_offset=offset, delay_level=level, limit=limit), admit=admit
    )


def scheduled(scene: Scene, level: int) -> list[StoredRecord]:
    return scene.records("SCHEDULE_TOPIC_XXXX", level - 1)


async def test_it_comes_back_later_the_more_often_it_came(scene: Scene) -> None:
    await give_back(scene, stored(scene))
    (again,) = scheduled(scene, 3)
    assert (again.body, again.reconsume_times, again.unique_key) == (b"body", 1, "u1")
    assert (again.property_map["REAL_TOPIC"], again.property_map["RETRY_TOPIC"]) == ("%RETRY%G", "T")
    await give_back(scene, again.physical_offset)
    (once_more,) = scheduled(scene, 4)
    assert once_more.reconsume_times == 2
    origin = scene.records()[0].offset_message_id
    assert once_more.property_map["ORIGIN_MESSAGE_ID"] == origin
    assert scene.parts.stats.groups[G, "T"].send_back_count.value == 2


async def test_the_consumer_may_name_the_level(scene: Scene) -> None:
    await give_back(scene, stored(scene), level=5)
    assert len(scheduled(scene, 5)) == 1


@pytest.mark.parametrize(
    ("times", "level", "limit", "dead"),
    [(2, 0, None, False), (3, 0, None, True), (3, 0, 4, False), (1, 0, 1, True), (0, -1, None, True)],
)
async def test_too_often_or_at_once_it_is_a_dead_letter(
    scene: Scene, times: int, level: int, limit: int | None, dead: bool
) -> None:
    await give_back(scene, stored(scene, reconsume_times=times), level=level, limit=limit)
    assert [len(scene.records("%DLQ%G")), len(scheduled(scene, 3 + times))] == [dead, not dead]


@pytest.mark.parametrize("offset", [-1, 17, 10**9])
async def test_what_is_not_there_cannot_come_back(scene: Scene, offset: int) -> None:
    stored(scene)
    with pytest.raises(RequestError, match="no message at") as refused:
        await give_back(scene, offset)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


async def test_nothing_comes_back_where_nothing_may(scene: Scene) -> None:
    offset = stored(scene)
    with pytest.raises(RequestError) as refused:
        await give_back(scene, offset, group="no group!")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    scene.parts.topics.update([TopicConfig(topic_name="%RETRY%G", perm=4)])
    with pytest.raises(RequestError) as refused:
        await give_back(scene, offset)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    scene.parts.groups.update([SubscriptionGroupConfig(group_name=G, retry_queue_nums=0)])
    await give_back(scene, offset)  # such a group gets nothing back, and that is no fault
    assert [scheduled(scene, 3), scene.records("%DLQ%G")] == [[], []]


async def test_a_store_that_takes_nothing_refuses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = stored(scene)

    def fails(_: object, messages: list[NewMessage]) -> None:
        raise StorePoisoned("the disk has failed")

    monkeypatch.setattr(type(scene.store), "append", fails)
    with pytest.raises(RequestError, match="the disk has failed") as refused:
        await give_back(scene, offset)
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (G, "T") not in scene.parts.stats.groups


async def test_whoever_may_not_have_the_topic_that_is_found_gets_nothing_back(scene: Scene) -> None:
    offset = stored(scene)

    def admit(topic: str) -> None:
        raise RequestError(ResponseCode.NO_PERMISSION, f"not {topic}")

    with pytest.raises(RequestError, match="not T"):
        await give_back(scene, offset, admit=admit)
    assert scheduled(scene, 3) == []
