"""Deleted topics, so that recovery does not bring their queues back from what is left of them in the log.

Touches  <root>/config/deletedTopics.json, a name that RocketMQ does not use.

    {"format": 1, "topics": {"Orders": 73014444032}, "checksum": "8A9136AA"}

The number is the log's end when the topic was deleted; the checksum is the CRC-32C of the table (compact, keys sorted).

Messages of the topic below that physical offset belong to no queue any more; those from there on are of a topic of
the same name that was made later.

Invariants
- An entry stays until the log begins above it.
- Nothing is written to a topic that was deleted before that is on disk: else its new messages would, after a crash,
  meet the old ones under the same numbers.
- Garbage in the file is an error by name, never "nothing was deleted": queues that come back would be read again.
  For the same reason the backup is no older than the file: both hold the same.

Threads: every method but load() may be called by any thread.
"""

import json
import threading
from pathlib import Path
from typing import Final

from crc32c import crc32c

from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.json_files import JsonFile

__all__ = ["FILE_NAME", "Tombstones"]

FILE_NAME: Final = "deletedTopics.json"
_FORMAT: Final = 1


class Tombstones:
    """The topics that were deleted, each with the physical offset below which its messages are dead."""

    def __init__(self, root: Path, io: StoreIo) -> None:
        """`root` is the store folder. Nothing is read before load()."""
        self._file = JsonFile(root / "config" / FILE_NAME, io, _parse)
        # Replaced, never changed in place.
        self._ends: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._saving = threading.Lock()
        self._changing = threading.Lock()

    def load(self) -> None:
        """Read the file. CorruptStore when neither it nor its backup can be read."""
        self._ends = self._saved = self._file.load() or {}

    def add(self, topic: str, log_end: int) -> None:
        """The topic is deleted now, with the log's end at `log_end`. Durable after save()."""
        with self._changing:
            self._ends = {**self._ends, topic: log_end}

    def end_of(self, topic: str) -> int:
        """Messages of the topic below this physical offset are dead; 0: it was not deleted."""
        return self._ends.get(topic, 0)

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Whether a message that lies at `physical_offset` died with its topic."""
        return bool(self._ends) and physical_offset < self._ends.get(topic, 0)

    def prune(self, log_min: int) -> None:
        """Forget entries of which the log has no message any more; it begins at `log_min`."""
        with self._changing:
            if any(end <= log_min for end in self._ends.values()):
                self._ends = {topic: end for topic, end in self._ends.items() if end > log_min}

    def clamp(self, log_end: int) -> None:
        """The log ends at `log_end` after a crash: what is written from there on is not dead."""
        with self._changing:
            if any(end > log_end for end in self._ends.values()):
                self._ends = {topic: min(end, log_end) for topic, end in self._ends.items()}

    @property
    def is_dirty(self) -> bool:
        """Whether something is known here that is not on disk."""
        return self._ends is not self._saved

    @property
    def topics(self) -> dict[str, int]:
        """A copy: topic to the end of its dead messages."""
        return dict(self._ends)

    def save(self) -> None:
        """Make everything that was added before this call durable. OSError or StoreFull: it is not."""
        with self._saving:
            ends = self._ends
            if ends is self._saved:
                return
            content = {"format": _FORMAT, "topics": dict(sorted(ends.items())), "checksum": _checksum(ends)}
            raw = json.dumps(content, indent=2).encode() + b"\n"
            self._file.save(raw)
            self._file.save(raw)
            self._saved = ends


def _parse(raw: bytes) -> dict[str, int]:
    content = json.loads(raw)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"not a list of deleted topics of format {_FORMAT}")
    topics = content.get("topics")
    if not isinstance(topics, dict) or not all(type(end) is int and end >= 0 for end in topics.values()):
        raise ValueError("topics is not a table of names and offsets")
    if content.keys() - {"format", "topics", "checksum"}:
        raise ValueError("there is a key that was never written")
    if content.get("checksum") not in (None, _checksum(topics)):
        raise ValueError("the table does not match its checksum")
    return topics


def _checksum(ends: dict[str, int]) -> str:
    table = json.dumps(ends, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(table.encode()):08X}"
