"""Entries of queues that rot while no broker runs: no message is hidden for good, no number is given out twice."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_store.queues.batch_queue import BATCH_ENTRY_SIZE
from aerobee_store.queues.consume_queue import ENTRY_SIZE
from aerobee_store.store import MessageStore
from store.memory_io import MemoryIo
from store.queues.test_batch_queues import batched, everything, put
from store.workload import ROOT, open_store

COUNT = 10
FILE = "0" * 20
SIZES = {"consumequeue": ENTRY_SIZE, "batchconsumequeue": BATCH_ENTRY_SIZE}
# First byte of an entry that is changed, and what is there then; None: zeros up to the end of the queue.
DAMAGE = {
    "zeroed": (0, bytes(ENTRY_SIZE)),
    "all ones": (0, b"\xff" * ENTRY_SIZE),
    "leads behind the log": (0, b"\x00\x00\x00\x00\x7f"),
    "leads to the beginning": (0, bytes(8)),
    "another size": (8, b"\x00\x00\x00\x09"),
    "the end is gone": (0, None),
}
BATCH_DAMAGE = {
    "another number": (28, b"\x00\x00\x00\x00\x00\x00\x40\x00"),
    "more messages": (36, b"\x01\x01"),
    "very many messages": (36, b"\x7f\xff"),
    "no messages": (36, b"\x00\x00"),
}


def opened(kind: str, io: MemoryIo) -> MessageStore:
    sizes: dict[str, Any] = {"commit_log_file_size": 1 << 12}  # several files
    if kind == "batchconsumequeue":
        return batched(io, batch_queue_file_size=BATCH_ENTRY_SIZE * 64, **sizes)
    return open_store(io, consume_queue_file_size=ENTRY_SIZE * 64, **sizes)


def filled(kind: str, io: MemoryIo) -> MessageStore:
    """Ten messages of one queue, and others in between, in several files of the log."""
    store = opened(kind, io)
    for _ in range(COUNT):
        put(store, 1)
        put(store, *[1] * 4, topic="Others")
    return store


def damage(kind: str, io: MemoryIo, at: int, first: int, changed: bytes | None) -> None:
    path, size = ROOT / kind / "B" / "0" / FILE, SIZES[kind]
    data = bytearray(io.read_bytes(path) or b"")
    end = COUNT * size if changed is None else at * size + first + len(changed)
    data[at * size + first : end] = changed or bytes(end - at * size - first)
    io.replace_bytes(path, bytes(data), keep_previous=False)


CASES = [
    pytest.param(kind, at, *what, id=f"{kind}-{name}-{at}")
    for kind in SIZES
    for name, what in (DAMAGE | (BATCH_DAMAGE if kind == "batchconsumequeue" else {})).items()
    for at in range(COUNT)
]


@pytest.mark.parametrize(("kind", "at", "first", "changed"), CASES)
def test_after_an_orderly_stop_every_number_stays_taken_and_at_most_one_message_waits_for_the_scrub(
    kind: str, at: int, first: int, changed: bytes | None
) -> None:
    """The queue ended at the damage: what was behind it was hidden, and its numbers were given out again."""
    io = MemoryIo()
    filled(kind, io).close()
    damage(kind, io, at, first, changed)
    with capture_logs() as logs:
        store = opened(kind, io)
    assert store.reading.next_offset("B", 0) == COUNT
    served = everything(store)
    assert served in (list(range(COUNT)), [number for number in range(COUNT) if number != at])
    logged = [entry for entry in logs if entry["event"] == "store.queue_rebuilt"]
    if len(served) < COUNT or changed is None:
        assert {entry["topic"] for entry in logged} <= {"B"}
    else:
        assert len(logged) <= 1
    assert [done.queue_offset for done in put(store, 1)] == [COUNT]
    store.close()
    again = opened(kind, io)
    assert again.reading.next_offset("B", 0) == COUNT + 1
    again.close()


@pytest.mark.parametrize(
    ("kind", "at", "first", "changed"), [case for case in CASES if case.values[3] is not None]
)
def test_after_a_crash_too_where_entries_behind_it_show_it(
    kind: str, at: int, first: int, changed: bytes
) -> None:
    io = MemoryIo()
    filled(kind, io).close()
    opened(kind, io)  # its checkpoint makes the list of the stop void
    crashed = io.kill()
    damage(kind, crashed, at, first, changed)
    store = opened(kind, crashed)
    if at < COUNT - 1:  # of the last one nothing says that it was there
        assert store.reading.next_offset("B", 0) == COUNT
        assert set(range(COUNT)) - set(everything(store)) <= {at}
    store.close()


def test_nothing_is_told_or_walked_of_a_queue_that_is_whole() -> None:
    for kind in SIZES:
        io = MemoryIo()
        filled(kind, io).close()
        with capture_logs() as logs:
            opened(kind, io).close()
        (recovered,) = [entry for entry in logs if entry["event"] == "store.recovered"]
        assert (recovered["walked_records"], recovered["cut_queues"]) == (0, 0)
