"""What a store must hold after a crash, said in the plainest way, and the look whether it does.

    Promise        everything that the store has promised at one moment: the messages that were ever written, how far
                   they were acknowledged, what was deleted, which settings were saved
    check_store    a recovered store against a promise

What is looked at: every acknowledged message is there with its bytes at its place, and in its queue under its number;
consumers get exactly the messages that are left, each once, in the order in which they were stored; nobody gets
anything else; a number that was acknowledged is not given out again; keys lead to every message that is left and to
nothing else; settings are a version that was saved, whole.
"""

import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from aerobee_proto.javahash import index_key_hash
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.json_files import JsonFile
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.index.index import key_texts
from aerobee_store.queues.batch_queue import inner_count
from aerobee_store.queues.consume_queue import ENTRY_SIZE
from aerobee_store.recovery.recovery import RecoveryReport
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage
from store.inside import index_of, tombstones_of

__all__ = ["SETTINGS", "Message", "Promise", "check_store", "settings_file"]

_INDEX_ENTRY = struct.Struct(">iqii")
SETTINGS = "config/topics.json"


class Message:
    """One message as it was stored."""

    def __init__(self, new: NewMessage, physical_offset: int, queue_offset: int, record: bytes) -> None:
        self.topic = new.topic
        self.key = (new.topic, new.queue_id)
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.record = record
        self.end = physical_offset + len(record)
        # How many numbers it takes: a batch that is one record takes several.
        self.count = inner_count(new.properties) or 1
        self._new = new

    @property
    def texts(self) -> list[str]:
        """The keys under which it can be found."""
        unique_key = [self._new.unique_key] if self._new.unique_key else []
        return [*unique_key, *(self._new.keys or "").split()]

    @cached_property
    def key_hashes(self) -> list[int]:
        """As the index has them, sorted."""
        return sorted(map(index_key_hash, key_texts(self.topic, self._new.keys, self._new.unique_key)))


@dataclass(slots=True, frozen=True)
class Promise:
    """What holds from one moment on. `known` is shared and grows; the rest is as it was at that moment."""

    # Every message that may be there, by physical offset.
    known: dict[int, Message] = field(default_factory=dict)
    # Messages that end at or below are acknowledged.
    durable_end: int = 0
    # Stretches of the log that earlier crashes have left without a message, with messages behind them.
    damaged: tuple[tuple[int, int], ...] = ()
    # The log begins at one of the file borders from `log_min` to `log_min_after`.
    log_min: int = 0
    log_min_after: int = 0
    # Topic to the end of messages that are deleted for sure; and that may be.
    dead: dict[str, int] = field(default_factory=dict)
    dying: dict[str, int] = field(default_factory=dict)
    # Queue to the number behind its newest acknowledged message.
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    # Contents of the settings file that may be found; None: no file.
    settings: tuple[bytes | None, ...] = (None,)

    def acknowledged(self, end: int) -> "Promise":
        """Everything that ends at or below `end` is acknowledged from now on."""
        numbers = dict(self.numbers)
        for message in self.known.values():
            if self.durable_end < message.end <= end and self.is_alive(message):
                numbers[message.key] = max(message.queue_offset + message.count, numbers.get(message.key, 0))
        return replace(self, durable_end=max(end, self.durable_end), numbers=numbers)

    def deleting(self, topic: str, end: int) -> "Promise":
        """The topic is being deleted; its messages below `end` may come back or not."""
        numbers = {key: number for key, number in self.numbers.items() if key[0] != topic}
        return replace(self, dying={**self.dying, topic: end}, numbers=numbers)

    def deleted(self) -> "Promise":
        """What was being deleted is gone for good."""
        return replace(self, dead={**self.dead, **self.dying})

    def is_alive(self, message: Message) -> bool:
        """Whether the message's topic was not deleted since."""
        return message.physical_offset >= self.dying.get(message.topic, 0)

    def is_dead(self, message: Message) -> bool:
        """Whether the message's topic was deleted, for good."""
        return message.physical_offset < self.dead.get(message.topic, 0)


def settings_file(root: Path, io: StoreIo) -> JsonFile[bytes]:
    """The settings that the workload saves."""
    return JsonFile(root / SETTINGS, io, _parse)


def _parse(raw: bytes) -> bytes:
    if not raw.startswith(b'{"') or not raw.rstrip().endswith(b"}"):
        raise ValueError("not what was saved")
    return raw


def check_store(store: MessageStore, report: RecoveryReport, promise: Promise) -> list[Message]:
    """AssertionError or CorruptStore if the store is not what was promised; the messages that are left."""
    assert not report.lost
    for damage in report.damage:
        known = any(begin <= damage.begin < end for begin, end in promise.damaged)
        assert known or damage.begin >= promise.durable_end, f"acknowledged messages in {damage}"
    assert store.end_offset == report.end_offset >= promise.durable_end
    log_min = store.min_physical_offset
    assert promise.log_min <= log_min <= max(promise.log_min_after, promise.log_min)
    left = _messages_left(store, promise, log_min)
    _check_queues(store, promise, left)
    _check_keys(store, left, log_min)
    store.check()
    return left


def _messages_left(store: MessageStore, promise: Promise, log_min: int) -> list[Message]:
    left = []
    for place, message in promise.known.items():
        found = store.reading.message_at(place)
        if found is None:
            gone = place < log_min or message.end > promise.durable_end
            assert gone, f"the acknowledged message at {place} is gone"
            continue
        assert found == message.record, f"the message at {place} has other bytes"
        left.append(message)
    return left


def _check_queues(store: MessageStore, promise: Promise, left: list[Message]) -> None:
    expected: dict[tuple[str, int], list[Message]] = {}
    for message in left:
        if not tombstones_of(store).covers(message.topic, message.physical_offset):
            expected.setdefault(message.key, []).append(message)
            assert not promise.is_dead(message), f"{message.topic} came back"
        else:
            assert not promise.is_alive(message) or message.end > promise.durable_end, (
                f"{message.key} {message.queue_offset} at {message.physical_offset} was taken for deleted"
            )
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            served = _served(store, topic, queue_id)
            messages = _of_one_life(expected.pop((topic, queue_id), []), promise)
            assert served == [m.record for m in messages], f"{topic} {queue_id}: {len(served)} served"
            for message in messages:
                entry = store.reading.queue_entry(topic, queue_id, message.queue_offset)
                assert entry is not None
                assert entry.physical_offset == message.physical_offset, f"{topic} {queue_id} numbers moved"
    assert not expected, f"no queues for {sorted(expected)}"
    for (topic, queue_id), number in promise.numbers.items():
        assert store.reading.max_offset(topic, queue_id) >= number, (
            f"{topic} {queue_id} starts again below {number}"
        )


def _of_one_life(messages: list[Message], promise: Promise) -> list[Message]:
    """Without those of a topic made anew that its predecessor, come back to life, has no numbers for."""
    kept: list[Message] = []
    for message in messages:
        if kept and message.queue_offset < kept[-1].queue_offset + kept[-1].count:
            assert message.end > promise.durable_end, f"{message.physical_offset} is in no queue"
            continue
        kept.append(message)
    return kept


def _served(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Every record that a consumer gets who reads from the first number to the last."""
    records = []
    offset = store.reading.min_offset(topic, queue_id)
    end = store.reading.max_offset(topic, queue_id)
    while offset < end:
        found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 20, None)
        assert found.next_offset > offset
        offset = found.next_offset
        body = b"".join(found.body)
        while body:
            size = int.from_bytes(body[:4], "big")
            records.append(body[:size])
            body = body[size:]
    return records


def _check_keys(store: MessageStore, left: list[Message], log_min: int) -> None:
    expected = {m.physical_offset: m.key_hashes for m in left if m.key_hashes}
    found: dict[int, list[int]] = {}
    for file in index_of(store).files:
        entries_at = 40 + 4 * file.slot_count
        raw = file.view[entries_at + ENTRY_SIZE : entries_at + ENTRY_SIZE * file.next_entry]
        for key_hash, place, _, _ in _INDEX_ENTRY.iter_unpack(raw):
            if place >= log_min:
                found.setdefault(place, []).append(key_hash)
    for hashes in found.values():
        hashes.sort()
    if found != expected:
        places = {*found, *expected}
        wrong = sorted(place for place in places if found.get(place) != expected.get(place))
        raise CorruptStore(
            Path("index"), wrong[0], f"keys are {found.get(wrong[0])}, not {expected.get(wrong[0])}"
        )
