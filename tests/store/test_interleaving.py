"""What a store says of its disk is true wherever two of its threads meet.

Each is stopped before each of its lines while another one does its work; then a store is started on what a kill or a
power failure leaves.
"""

from collections.abc import Callable
from hashlib import sha256
from itertools import permutations
from pathlib import Path

import pytest

from aerobee_store.log.checkpoint import Checkpoint
from aerobee_store.store import MessageStore
from store.interleaving import interrupted_at
from store.memory_io import MemoryIo, Survivors
from store.workload import ROOT, Clock, config, message

PIECE = 3  # messages that are sent at a time: a file of the log, and two of the index
LINES_MIN = 20  # that the shortest of these works has


class Everything(Survivors):
    """A power failure after which all is there that was written."""

    def page(self, path: Path, page: int, before: bytes, after: bytes) -> bytes:
        return after


def opened(io: MemoryIo) -> MessageStore:
    small = config(commit_log_file_size=1024, consume_queue_file_size=80, index_slots=3, index_entries=4)
    store = MessageStore(small, io=io, clock=Clock())
    store.open()
    return store


class Meeting:
    """A store that several threads work for, and what may be left of it."""

    def __init__(self) -> None:
        self.disk = MemoryIo()
        self.store = opened(self.disk)
        self.places: list[tuple[int, int]] = []  # where each message begins and ends
        self.flushed = 0
        self.left: dict[bytes, tuple[MemoryIo, int]] = {}

    def append(self) -> None:
        first = len(self.places)
        sent = [
            message(queue_id=number % 2, body=bytes(150), keys=f"k{number}", unique_key=f"U{number}")
            for number in range(first, first + PIECE)
        ]
        answers = self.store.append(sent)
        self.places += [(answer.physical_offset, answer.physical_offset + answer.size) for answer in answers]

    def send(self) -> None:
        """The thread of the event loop: messages come, others are shown, and keys that wait are indexed."""
        self.append()
        self.show()

    def show(self) -> None:
        self.store.confirm(self.store.flushed_offset)
        self.store.keys.build(self.store.keys.backlog)

    def flush_log(self) -> None:
        """The thread of the log, which promises what it says."""
        self.flushed = self.store.flush_disk()
        self.note()

    def flush_queues(self) -> None:
        """The thread of the queues. Cleaning is one more of this kind."""
        self.store.flush_queues()
        self.store.write_checkpoint()
        self.note()

    def upkeep(self) -> None:
        """What is done ahead, and what looks whether all is well."""
        self.store.preallocate()
        self.store.keys.make_file()
        self.store.scrubbing.step()
        self.store.watch.look()

    def all_in_turn(self) -> None:
        self.send()
        self.flush_log()
        self.show()
        self.upkeep()
        self.flush_queues()

    def note(self) -> None:
        """From now on this may be what a start finds."""
        promised = sum(end <= self.flushed for _, end in self.places)
        for left in (self.disk.kill(), self.disk.crash(), self.disk.crash(Everything())):
            content = b"".join(left.read_bytes(path) or b"" for path in left.paths())
            self.left.setdefault(sha256(content + bytes([promised])).digest(), (left, promised))


WORKS: dict[str, Callable[[Meeting], None]] = {
    "send": Meeting.send,
    "flush log": Meeting.flush_log,
    "flush queues": Meeting.flush_queues,
    "upkeep": Meeting.upkeep,
}
# Whose turn it was, and who then has it. Two may flush queues, and one of them may be stopped for long.
PAIRS = [*permutations(WORKS, 2), ("flush queues", "all in turn")]


def met_at(number: int, first: Callable[[Meeting], None], other: Callable[[Meeting], None]) -> Meeting | None:
    """What becomes of a store where the one thread is stopped before that line; None: it has not so many."""
    meeting = Meeting()
    meeting.all_in_turn()
    meeting.append()
    meeting.flush_log()
    meeting.append()
    if not interrupted_at(number, lambda: first(meeting), lambda: other(meeting)):
        return None
    meeting.note()
    meeting.all_in_turn()
    return meeting


def lacking(disk: MemoryIo, count: int) -> list[str]:
    """What a start does not find of the first messages."""
    store = opened(disk)
    keys = [key for number in range(count) for key in (f"k{number}", f"U{number}")]
    lost = [key for key in keys if len(store.keys.query("Orders", key, 10, 0, 1 << 62).body) != 1]
    lost += [
        f"queue {queue_id}"
        for queue_id in range(2)
        if store.reading.max_offset("Orders", queue_id) < len(range(queue_id, count, 2))
    ]
    store.check()
    return lost


def untrue(disk: MemoryIo, places: list[tuple[int, int]]) -> str:
    """What the checkpoint says of the index that cannot be; empty: nothing. Every message has keys."""
    checkpoint = Checkpoint(ROOT / "checkpoint", disk)
    checkpoint.load()
    mark = checkpoint.mark
    newest = max((begin for begin, _ in places if mark is not None and begin < mark.index_end), default=-1)
    return "" if mark is None or newest <= mark.index_last else f"{mark}: a record begins at {newest}"


@pytest.mark.parametrize(("stopped", "goes_on"), PAIRS)
def test_what_is_said_to_be_on_disk_is_found_wherever_two_threads_meet(stopped: str, goes_on: str) -> None:
    works = {**WORKS, "all in turn": Meeting.all_in_turn}
    number = 0
    judged: set[bytes] = set()
    while (meeting := met_at(number, works[stopped], works[goes_on])) is not None:
        for digest, (disk, count) in meeting.left.items():
            if digest not in judged:
                judged.add(digest)
                assert not untrue(disk, meeting.places), number
                assert not lacking(disk, count), number
        number += 1
    assert number > LINES_MIN
