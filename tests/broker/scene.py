"""Use cases on a stage: a broker of which nothing runs and to which nobody is connected, over a store in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_broker.messages.publish import Published
from aerobee_broker.messages.publish_batches import BatchPlan
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_service.turns.slices import at_once
from broker.support import Clock, make_test_parts
from store.memory_io import MemoryIo

__all__ = ["SENDER", "Message", "Scene", "Someone"]


@dataclass(eq=False)
class Someone:
    """Who sends."""

    peer: str = "10.0.0.1:5000"
    is_closed: bool = False
    is_congested: bool = False
    was_overtaken: bool = False


SENDER = Someone()


@dataclass(frozen=True)
class Message:
    """What a sender says of its message."""

    topic: str = "T"
    queue_id: int = 0
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 1
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    default_topic: str = "TBW102"
    default_topic_queue_nums: int = 4
    unit_mode: bool = False


@dataclass(frozen=True)
class Submitted:
    header: Message
    body: bytes


class Scene:
    """A broker of which nothing runs, over a store in memory; what is appended is shown at once."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        settings = {"message_delay_level": "1s 5s 10s 30s 1m 2m"} | settings
        self.parts = parts = make_test_parts(Path("/store"), self.clock, io=MemoryIo(), **settings)
        self.store, self.publisher, self.batches = parts.store, parts.publisher, parts.batches
        parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])

    def publish(self, *messages: Message, body: bytes = b"body") -> Published:
        return self.publisher.publish([Submitted(message, body) for message in messages], SENDER)

    def plan(self, entries: list[BatchEntry], **common: str) -> BatchPlan:
        plan = at_once(self.batches.planning(Message(**common), encode_batch(entries)))  # type: ignore[arg-type]
        assert isinstance(plan, BatchPlan)
        return plan

    def records(self, topic: str = "T", queue_id: int = 0) -> list[StoredRecord]:
        found = self.store.reading.queue_entries(topic, queue_id, 0, 100_000)
        raws = [self.store.reading.message_at(entry.physical_offset) for entry in found]
        return [decode_record(raw) for raw in raws if raw is not None]

    def close(self) -> None:
        self.parts.visibility.close()
        self.store.close()
