"""Streams of topics as Spark plans and reads them, without Spark; and topics to stream."""

from collections.abc import Iterable
from typing import Any

from aerobee.sync import Client
from pyspark_aerobee.schema import message_schema
from pyspark_aerobee.topic_stream import TopicStreamReader, from_json

__all__ = ["Offset", "Stream", "counted", "fill"]

Offset = dict[str, Any]


def fill(
    nameserver: str, topic: str, numbers: Iterable[int], *, queue: int | None = None, size: int = 1
) -> None:
    with Client(nameserver) as mq, mq.producer() as producer:
        sent = [
            producer.send_nowait(
                topic, (b"%d " % number).ljust(size), queue=number % 4 if queue is None else queue
            )
            for number in numbers
        ]
        for future in sent:
            future.result()


class Stream:
    """A stream's planning without Spark: the calls that Spark makes."""

    def __init__(self, nameserver: str, topic: str, **options: Any) -> None:
        given = {"nameServer": nameserver, "subscribe": topic, "startingOffsets": "earliest"}
        given |= {name: str(value) for name, value in options.items()}
        self.reader = TopicStreamReader(given, message_schema(), 0)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def start(self) -> Offset:
        return self.reader.initialOffset()

    def next(self, start: Offset) -> Offset:
        self.reader.ends_at = 0.0  # ask the brokers, however young the last answer is
        self.reader.queues_at = 0.0
        return self.reader.latestOffset(start, self.reader.getDefaultReadLimit())

    def bodies(self, start: Offset, end: Offset) -> list[int]:
        found = []
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                found += [int(body) for body in batch.column("body").to_pylist()]
        return sorted(found)


def counted(offset: Offset) -> int:
    return sum(from_json(offset).values())
