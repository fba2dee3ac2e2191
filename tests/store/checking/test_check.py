"""check() finds what it is there to find."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_store.faults.errors import CorruptStore
from aerobee_store.store import MessageStore
from store.inside import queues_of
from store.memory_io import MemoryIo
from store.workload import ROOT, message, open_store

LOG = ROOT / "commitlog" / f"{0:020d}"
QUEUE = ROOT / "consumequeue" / "Orders" / "0" / f"{0:020d}"


def sound(io: MemoryIo) -> MessageStore:
    store = open_store(io)
    store.append([message(body=b"%d" % n, unique_key=f"U{n}") for n in range(10)])
    store.confirm(store.end_offset)
    store.keys.build(100)
    store.check()
    return store


def test_every_bit_of_a_record_counts() -> None:
    io = MemoryIo()
    store = sound(io)
    for position in range(0, store.end_offset, 13):
        io.flip(LOG, position, position % 8)
        with pytest.raises(CorruptStore):
            store.check()
        io.flip(LOG, position, position % 8)
    store.check()


def test_every_bit_of_a_queue_counts() -> None:
    io = MemoryIo()
    store = sound(io)
    for position in range(320):
        io.flip(QUEUE, position, position % 8)
        with pytest.raises(CorruptStore):
            store.check()
        io.flip(QUEUE, position, position % 8)
    store.check()


def test_an_index_entry_that_leads_elsewhere_counts() -> None:
    io = MemoryIo()
    store = sound(io)
    (path,) = [p for p in io.paths() if p.parent == ROOT / "index"]
    io.flip(path, 40 + 50 * 4 + 20 + 3)
    with pytest.raises(CorruptStore) as broken:
        store.check()
    assert broken.value.path == path


def _forget_a_queue(store: MessageStore) -> None:
    queues_of(store).delete_topic("Orders")


def _shorten_a_queue(store: MessageStore) -> None:
    queue = queues_of(store).get("Orders", 0)
    assert queue is not None
    queue.cut_at(9)


def _add_an_entry(store: MessageStore) -> None:
    queue = queues_of(store).get("Orders", 0)
    assert queue is not None
    queue.put_entries(10, (1 << 40).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8))


@pytest.mark.parametrize("spoil", [_forget_a_queue, _shorten_a_queue, _add_an_entry])
def test_messages_and_entries_must_be_the_same(spoil: Callable[[MessageStore], None]) -> None:
    store = sound(MemoryIo())
    spoil(store)
    with pytest.raises(CorruptStore) as broken:
        store.check()
    assert broken.value.path == Path("/store/consumequeue/Orders/0")


def test_what_is_not_confirmed_yet_needs_no_entry() -> None:
    store = sound(MemoryIo())
    store.append([message()])
    store.check()
