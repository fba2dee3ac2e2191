"""Replying without connections, headers or frames: a reply in, and what became of it."""

from dataclasses import dataclass, field

import pytest

from aerobee_broker.in_process.caller import LocalCaller
from aerobee_broker.members.clients import Member
from aerobee_broker.messages.replying import Replied
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.properties import decode_properties
from aerobee_remoting.peers.peer import Peer
from aerobee_store.faults.errors import StorePoisoned
from aerobee_store.terms.messages import NewMessage
from broker.scene import SENDER, Message, Scene


@dataclass
class Producers:
    """Take what is pushed, or say why not."""

    refusal: str | None = None
    pushed: list[tuple[Peer, str, int]] = field(default_factory=list)

    async def take(self, producer: Peer, properties: str, stored_ms: int) -> str | None:
        self.pushed.append((producer, properties, stored_ms))
        return self.refusal


@pytest.fixture
def waiting(scene: Scene) -> LocalCaller:
    """The producer `client`, which waits for a reply."""
    caller = LocalCaller("client")
    scene.parts.producers.register("P", Member("client", caller, "JAVA", 479, scene.clock()))
    return caller


async def reply(
    scene: Scene, producers: Producers, *, to: str | None = "client", queue_id: int = 0
) -> Replied:
    named = "" if to is None else f"REPLY_TO_CLIENT\x01{to}\x02"
    message = Message(queue_id=queue_id, properties=f"{named}CORRELATION_ID\x01c1")
    return await scene.parts.replying.reply(message, b"pong", SENDER, producers.take)


async def test_a_reply_is_stored_and_reaches_the_producer_that_waits(
    scene: Scene, waiting: LocalCaller
) -> None:
    producers = Producers()
    replied = await reply(scene, producers, queue_id=1)
    ((producer, properties, stored_ms),) = producers.pushed
    assert (producer, stored_ms) == (waiting, scene.clock())
    assert decode_properties(properties) == {
        "REPLY_TO_CLIENT": "client",
        "CORRELATION_ID": "c1",
        "PUSH_REPLY_TIME": str(stored_ms),
        **scene.parts.replying.region(),
    }
    (record,) = scene.records("T", 1)
    assert (record.body, record.born_host) == (b"pong", ("10.0.0.1", 5000))
    assert (replied.queue_id, replied.not_taken) == (1, None)
    assert replied.place is not None
    assert replied.place.physical_offset == record.physical_offset


async def test_the_replier_learns_why_a_reply_was_not_taken(scene: Scene, waiting: LocalCaller) -> None:
    refusing = Producers("code 1, no")
    assert (await reply(scene, refusing)).not_taken == "push reply message to <client> fail: code 1, no"
    nobody = Producers()
    unnamed = await reply(scene, nobody, to=None)
    assert unnamed.not_taken == "reply message properties[REPLY_TO_CLIENT] is null"
    unknown = await reply(scene, nobody, to="other")
    assert unknown.not_taken == "push reply message fail, channel of <other> not found."
    waiting.is_congested = True
    congested = await reply(scene, nobody)
    assert congested.not_taken is not None
    assert "does not read" in congested.not_taken
    waiting.close()
    assert (await reply(scene, nobody)).not_taken == "push reply message fail, channel of <client> not found."
    assert nobody.pushed == []
    assert len(scene.records()) == 5  # kept in any case, for people who look for them


async def test_a_reply_that_cannot_be_kept_is_pushed_all_the_same(
    scene: Scene, waiting: LocalCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object, messages: list[NewMessage]) -> None:
        raise StorePoisoned("the disk has failed")

    monkeypatch.setattr(type(scene.store), "append", fails)
    producers = Producers()
    replied = await reply(scene, producers)
    assert (replied.place, replied.not_taken) == (None, None)
    assert producers.pushed[0][0] is waiting


async def test_what_is_no_reply_for_here_is_refused_before_anything_happens(
    scene: Scene, waiting: LocalCaller
) -> None:
    producers = Producers()
    with pytest.raises(RequestError, match="queue 7 of topic T") as refused:
        await reply(scene, producers, queue_id=7)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
    with pytest.raises(RequestError, match="has no body"):
        await scene.parts.replying.reply(Message(), b"", SENDER, producers.take)
    scene.parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
    assert (await reply(scene, producers, queue_id=-1)).queue_id == 0
    assert [len(producers.pushed), len(scene.records())] == [1, 1]
