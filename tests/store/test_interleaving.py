"""What a store says of its disk is true wherever two of its threads meet.

Each is stopped before each of its lines while another one does its work; then a store is started on what a kill or a
power failure leaves.
"""

from collections.abc import Callable
from hashlib import sha256
from itertools import chain, permutations, product
from typing import Any, NamedTuple

import pytest

from aerobee_store.cleaning.cleaning import CleaningPlan
from aerobee_store.log.checkpoint import Checkpoint
from store.interleaving import interrupted_at, note_locks
from store.memory_io import MemoryIo
from store.workload import ROOT, message, open_store

PIECE = 3  # messages that are sent at a time: a file of the log, and two of the index
FILES: dict[str, Any] = {
    "commit_log_file_size": 1024,
    "consume_queue_file_size": 80,
    "index_slots": 3,
    "index_entries": 4,
}
LINES_MIN = 20  # that the shortest of these works has


class Sent(NamedTuple):
    """A message, and its place in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    begin: int
    end: int


class Meeting:
    """A store that several threads work for, and what may be left of it."""

    def __init__(self) -> None:
        self.disk = MemoryIo()
        self.store = open_store(self.disk, **FILES)
        self.sent: list[Sent] = []
        self.flushed = 0
        self.kept_from = 0  # messages before that may be gone
        self.deleted = ""  # a topic that may be
        self.left: dict[bytes, tuple[MemoryIo, list[int]]] = {}

    # --- the thread of the event loop ---------------------------------------------------------------------------

    def append(self) -> None:
        """Two messages of a topic that was there, and one that begins another."""
        first = len(self.sent)
        places = [("Orders", 0), ("Orders", 1), (f"T{first + 2}", 0)]
        sent = [
            message(topic, queue_id, bytes(150), keys=f"k{number:02}", unique_key=f"U{number:02}")
            for number, (topic, queue_id) in enumerate(places, first)
        ]
        for (topic, queue_id), answer in zip(places, self.store.append(sent), strict=True):
            begin = answer.physical_offset
            self.sent.append(Sent(topic, queue_id, answer.queue_offset, begin, begin + answer.size))

    def show(self) -> None:
        self.store.confirm(self.store.flushed_offset)
        self.store.keys.build(self.store.keys.backlog)

    def send(self) -> None:
        """Messages come, others are shown, and keys that wait are indexed."""
        self.append()
        self.show()

    def delete_topic(self) -> None:
        self.deleted = "T2"
        self.store.topics.delete(self.deleted)

    def clean(self) -> None:
        """The oldest file of the log is taken out, and what leads only there."""
        cleaner = self.store.cleaner
        plan = CleaningPlan(tuple(cleaner.survey(self.store.settled_offset)[:1]), "asked")
        self.kept_from = max((file.end for file in plan.files), default=self.kept_from)
        cleaner.release_log_files(plan)
        for _ in cleaner.release_queue_files():
            pass
        cleaner.release_index_files()

    # --- other threads --------------------------------------------------------------------------------------------

    def flush_log(self) -> None:
        """It promises what it says."""
        self.flushed = self.store.flush_disk()
        self.note()

    def flush_queues(self) -> None:
        self.store.flush_queues()
        self.store.write_checkpoint()
        self.note()

    def upkeep(self) -> None:
        """What is done ahead, and what looks whether all is well."""
        self.store.preallocate()
        self.store.keys.make_file()
        self.store.scrubbing.step()
        self.store.watch.look()

    def delete_files(self) -> None:
        """What was taken out goes; what may be next is looked for."""
        self.store.flush_queues()
        self.store.cleaner.survey(self.store.settled_offset)
        self.store.cleaner.delete_released()
        self.store.topics.save_deletions()
        self.note()

    # --- all of them ----------------------------------------------------------------------------------------------

    def all_in_turn(self) -> None:
        self.send()
        self.flush_log()
        self.show()
        self.upkeep()
        self.flush_queues()

    def note(self) -> None:
        """From now on this may be what a start finds. Another thread may be at work: what was promised before the disk
        is looked at is there, unless it may go by then."""
        sent, flushed = len(self.sent), self.flushed
        disks = self.disk.kill(), self.disk.crash()
        promised = [
            number
            for number, one in enumerate(self.sent[:sent])
            if one.end <= flushed and one.begin >= self.kept_from and one.topic != self.deleted
        ]
        for left in disks:
            content = b"".join(left.read_bytes(path) or b"" for path in left.paths())
            self.left.setdefault(sha256(content + bytes(promised)).digest(), (left, promised))


OF_THE_LOOP: dict[str, Callable[[Meeting], None]] = {
    "send": Meeting.send,
    "delete topic": Meeting.delete_topic,
    "clean": Meeting.clean,
}
OF_OTHERS: dict[str, Callable[[Meeting], None]] = {
    "flush log": Meeting.flush_log,
    "flush queues": Meeting.flush_queues,
    "upkeep": Meeting.upkeep,
    "delete files": Meeting.delete_files,
}
WORKS = {**OF_THE_LOOP, **OF_OTHERS, "all in turn": Meeting.all_in_turn}
# Whose turn it was, and who then has it. The last: who flushes queues is stopped for long, while others do.
PAIRS = [
    *chain(product(OF_THE_LOOP, OF_OTHERS), product(OF_OTHERS, OF_THE_LOOP), permutations(OF_OTHERS, 2)),
    ("flush queues", "all in turn"),
]

# In every run; all of them take two minutes.
ALWAYS = {
    ("send", "flush log"),
    ("send", "flush queues"),
    ("flush queues", "send"),
    ("flush queues", "delete topic"),
    ("flush queues", "all in turn"),
    ("clean", "flush queues"),
}


def met_at(number: int, stopped: str, goes_on: str) -> Meeting | None:
    """What becomes of a store where the one thread is stopped before that line; None: it has not so many."""
    meeting = Meeting()
    meeting.all_in_turn()
    if "clean" in (stopped, goes_on):
        meeting.all_in_turn()
    elif "delete files" in (stopped, goes_on):
        meeting.all_in_turn()
        meeting.clean()
    meeting.append()
    meeting.flush_log()
    meeting.append()
    if not interrupted_at(number, lambda: WORKS[stopped](meeting), lambda: WORKS[goes_on](meeting)):
        return None
    meeting.note()
    meeting.all_in_turn()
    return meeting


def lacking(disk: MemoryIo, sent: list[Sent], promised: list[int]) -> list[str]:
    """What a start does not find of what was promised."""
    store = open_store(disk, **FILES)
    lost: list[str] = []
    for number in promised:
        topic, queue_id, queue_offset, begin, _ = sent[number]
        entry = store.reading.queue_entry(topic, queue_id, queue_offset)
        if entry is None or entry.physical_offset != begin:
            lost.append(f"{number} in its queue")
        lost += [
            f"{number} by {key}"
            for key in (f"k{number:02}", f"U{number:02}")
            if len(store.keys.query(topic, key, 10, 0, 1 << 62).body) != 1
        ]
    store.check()
    return lost


def untrue(disk: MemoryIo, sent: list[Sent]) -> str:
    """What the checkpoint says of the index that cannot be; empty: nothing. Every message has keys."""
    checkpoint = Checkpoint(ROOT / "checkpoint", disk)
    checkpoint.load()
    mark = checkpoint.mark
    newest = max((one.begin for one in sent if mark is not None and one.begin < mark.index_end), default=-1)
    return "" if mark is None or newest <= mark.index_last else f"{mark}: a record begins at {newest}"


@pytest.mark.parametrize(
    ("stopped", "goes_on"),
    [pytest.param(*pair, marks=[] if pair in ALWAYS else [pytest.mark.long]) for pair in PAIRS],
)
def test_what_is_said_to_be_on_disk_is_found_wherever_two_threads_meet(
    monkeypatch: pytest.MonkeyPatch, stopped: str, goes_on: str
) -> None:
    note_locks(monkeypatch)
    number = 0
    judged: set[bytes] = set()
    while (meeting := met_at(number, stopped, goes_on)) is not None:
        for digest, (disk, promised) in meeting.left.items():
            if digest not in judged:
                judged.add(digest)
                assert not untrue(disk, meeting.sent), number
                assert not lacking(disk, meeting.sent, promised), number
        number += 1
    assert number > LINES_MIN
