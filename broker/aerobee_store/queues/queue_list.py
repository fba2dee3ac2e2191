"""Which queues there were, and how far they went, when the store was closed in good order.

The checkpoint says that the entries of all queues are on disk, not which queues these are. A queue whose files somebody
deletes or moves away while no broker runs would be a new one for the next start, which begins at 0: numbers that
messages have would be given out again. So a close leaves a list, and the start looks whether all of it is there.

Touches  <root>/config/queueEnds.json, a name that RocketMQ does not use.

    {"format": 1, "checkpoint": 17, "log_end": 4096, "topics": {"Orders": {"0": [0, 40]}}, "checksum": "8A9136AA"}

Of each queue the number where its first file begins, and the number that its next message gets; `checkpoint` is the
generation of the checkpoint that the close wrote. The checksum is the CRC-32C of the three
as a list, compact.

Invariants
- The list says something only beside the checkpoint that it names: whoever writes the next one, as every start does,
  makes it void. One that cannot be read, or is not there, says nothing.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from crc32c import crc32c

from aerobee_store.disk.io import StoreIo
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.queue_table import QueueTable

__all__ = ["FILE_NAME", "ListedQueue", "QueueList", "listed"]

log = structlog.get_logger()

FILE_NAME: Final = "queueEnds.json"
_FORMAT: Final = 1


class ListedQueue(NamedTuple):
    """A queue as it was."""

    topic: str
    queue_id: int
    first: int  # queue offset where its first file begins
    end: int  # one past its newest entry

    def wrong(self, queue: ConsumeQueue | None) -> str | None:
        """What is missing of it now, of a queue that is loaded and not recovered; None when nothing is."""
        spans = queue.file_spans if queue is not None else []
        if not spans:
            return "it had entries when the store was closed, and its files are not there"
        if queue is not None and queue.gaps:
            return f"its file from {queue.gaps[0][0]} on is not there"
        if spans[0].start > self.first:
            return f"its first file began at {self.first} when the store was closed, and begins at {spans[0].start}"
        if spans[-1].stop < self.end:
            return f"it had entries up to {self.end} when the store was closed, and its files end at {spans[-1].stop}"
        return None


class QueueList:
    """The list of one store folder."""

    def __init__(self, root: Path, io: StoreIo) -> None:
        self._path = root / "config" / FILE_NAME
        self._io = io

    def load(self, generation: int, log_end: int) -> list[ListedQueue]:
        """The queues there were; none that can be known when the list belongs to another checkpoint."""
        raw = self._io.read_bytes(self._path)
        if raw is None:
            return []
        try:
            return _parse(raw, generation, log_end)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as wrong:
            log.warning("store.queue_list_unreadable", path=str(self._path), reason=str(wrong))
            return []

    def save(self, queues: Iterable[ListedQueue], generation: int, log_end: int) -> None:
        """Make it durable, beside the checkpoint of that generation. OSError or StoreFull: there is no list."""
        topics: dict[str, dict[str, tuple[int, int]]] = {}
        for queue in queues:
            topics.setdefault(queue.topic, {})[str(queue.queue_id)] = (queue.first, queue.end)
        content = {
            "format": _FORMAT,
            "checkpoint": generation,
            "log_end": log_end,
            "topics": topics,
            "checksum": _checksum(generation, log_end, topics),
        }
        self._io.replace_bytes(self._path, json.dumps(content).encode() + b"\n", keep_previous=False)


def listed(queues: QueueTable) -> list[ListedQueue]:
    """Every queue that has files, as it is now."""
    return [
        ListedQueue(queue.topic, queue.queue_id, spans[0].start, queue.max_offset)
        for queue in queues
        if (spans := queue.file_spans)
    ]


def _parse(raw: bytes, generation: int, log_end: int) -> list[ListedQueue]:
    content = json.loads(raw)
    if content["format"] != _FORMAT:
        raise ValueError(f"not a list of queues of format {_FORMAT}")
    if content["checksum"] != _checksum(content["checkpoint"], content["log_end"], content["topics"]):
        raise ValueError("the list does not match its checksum")
    if (content["checkpoint"], content["log_end"]) != (generation, log_end):
        return []
    return [
        ListedQueue(topic, int(queue_id), int(first), int(end))
        for topic, queues in content["topics"].items()
        for queue_id, (first, end) in queues.items()
    ]


def _checksum(*content: object) -> str:
    return f"{crc32c(json.dumps(content, separators=(',', ':')).encode()):08X}"
