"""What readers of a copy had not seen stays unseen after a start, until somebody says that it is confirmed."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aerobee_store.store import MessageStore
from store.inside import log_of
from store.memory_io import MemoryIo, Survivors
from store.workload import ROOT, Clock, Workload, message, open_store

FILE_SIZE = 16384
TOPIC = "Held"

End = Callable[[MessageStore, MemoryIo], MemoryIo]


def closed(store: MessageStore, io: MemoryIo) -> MemoryIo:
    store.close()
    assert io.read_bytes(ROOT / "abort") is None
    return io


# How a run of a copy may end without losing what its readers saw.
ENDS: dict[str, End] = {"closed": closed, "killed": lambda store, io: io.kill()}


class Copy:
    """A copy of a log of 300 messages of one topic, of which readers may see what lies below `limit`."""

    def __init__(self, seed: int = 1, *, words_max: int = 30) -> None:
        self.random = Random(seed)
        work = Workload(self.random, MemoryIo(), Clock())
        work.store.open()
        self.master = work.store
        for number in range(300):
            body = b"%d " % number * self.random.randrange(1, words_max)
            self.master.append([message(TOPIC, number % 3, body=body, keys=f"key{number}")])
        self.master.flush_disk()
        self.master.confirm(self.master.end_offset)
        self.io = MemoryIo()
        self.limit = 0
        self.store = self.opened()

    def opened(self, **changes: Any) -> MessageStore:
        self.store = open_store(self.io, **{"is_copy": True, **changes})
        self.store.readers_limit = lambda: self.limit
        return self.store

    def take(self, until: int) -> None:
        """The master's bytes up to there, record by record; what may be seen is shown."""
        store = self.store
        while store.next_raw_offset < until:
            at = store.next_raw_offset
            store.append_raw(at, bytes(self.master.read_raw(at, self.random.choice((50, 300, 2000)))))
            self.show()
        store.flush_disk()

    def show(self) -> None:
        self.store.confirm(min(self.store.end_offset, self.limit))

    def ends(self) -> list[int]:
        return [self.store.reading.max_offset(TOPIC, queue_id) for queue_id in range(3)]

    def seen(self) -> list[int]:
        """Where the messages lie that readers see."""
        found = []
        for queue_id in range(3):
            for entry in self.store.reading.queue_entries(TOPIC, queue_id, 0, 1000):
                assert self.store.reading.message_at(entry.physical_offset) is not None
                found.append(entry.physical_offset)
        return sorted(found)

    def is_found(self, number: int) -> bool:
        return bool(self.store.keys.query(TOPIC, f"key{number}", 1, 0, 1 << 60).body)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("seed", range(6))
def test_a_start_shows_what_was_shown_and_no_more(how: str, seed: int) -> None:
    copy = Copy(seed)
    end = copy.master.end_offset
    for _ in range(3):
        copy.limit = copy.random.randrange(copy.limit, end)
        copy.take(min(end, copy.limit + copy.random.randrange(1, FILE_SIZE)))
        if seed % 2:
            copy.store.keys.build(1 << 30)
            copy.store.flush_queues()
            copy.store.write_checkpoint()
        seen = copy.seen()
        assert all(place < copy.limit for place in seen)
        copy.io = ENDS[how](copy.store, copy.io)
        copy.opened()
        assert copy.seen() == seen
        assert copy.store.confirmed_offset <= copy.limit
        copy.store.check()
    copy.limit = end
    copy.take(end)
    copy.show()
    assert copy.ends() == [100, 100, 100]
    assert all(copy.is_found(number) for number in range(300))
    copy.store.check()
    copy.store.close()
    copy.opened()
    assert copy.ends() == [100, 100, 100]
    copy.store.check()


def test_what_is_held_back_is_in_no_index_and_cannot_be_looked_at() -> None:
    copy = Copy()
    copy.limit = copy.master.end_offset // 2
    copy.take(copy.master.end_offset)
    copy.io = closed(copy.store, copy.io)
    copy.opened()
    assert copy.store.end_offset == copy.master.end_offset
    assert copy.store.confirmed_offset <= copy.limit
    assert copy.is_found(0)
    assert not copy.is_found(299)
    last = copy.master.reading.queue_entry(TOPIC, 299 % 3, 99)
    assert last is not None
    assert copy.store.reading.message_at(last.physical_offset) is None
    copy.limit = copy.master.end_offset
    copy.show()
    assert copy.is_found(299)
    assert copy.store.reading.message_at(last.physical_offset) is not None


@pytest.mark.parametrize("seed", range(6))
def test_a_power_failure_shows_nothing_that_was_not_shown(seed: int) -> None:
    """It may take back what was shown and is not on the disk, until the master says it again."""
    copy = Copy(seed)
    copy.limit = copy.master.end_offset // 3
    copy.take(copy.master.end_offset // 2)
    copy.store.flush_queues()
    copy.store.write_checkpoint()
    synced = copy.ends()
    copy.limit = copy.master.end_offset // 2
    copy.take(copy.master.end_offset)
    seen = copy.ends()
    copy.io = copy.io.crash()
    copy.opened()
    for low, now, high in zip(synced, copy.ends(), seen, strict=True):
        assert low <= now <= high
    copy.store.check()


class _TornWhereItChanged(Survivors):
    """Each page is new up to some byte that has changed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def page(self, path: Path, page: int, before: bytes, after: bytes) -> bytes:
        changed = [at for at in range(len(after)) if before[at] != after[at]]
        end = self._random.choice(changed) + 1 if changed else 0
        return after[:end] + before[end:]


@pytest.mark.parametrize("seed", range(40))
def test_what_a_power_failure_leaves_of_queues_does_not_say_where_records_begin(seed: int) -> None:
    """Half an entry led into the middle of a record. What was held back began there, and so did the walk of the next
    start: it put the rest of that record aside as damage, and the queue went on without the message."""
    copy = Copy(seed, words_max=400)  # sizes of two bytes
    copy.limit = copy.master.end_offset // 3
    copy.take(copy.master.end_offset)
    copy.store.flush_queues()
    copy.store.write_checkpoint()
    copy.limit += copy.random.randrange(1, FILE_SIZE)
    copy.show()  # queue entries that are not on the disk
    copy.io = copy.io.crash(_TornWhereItChanged(copy.random))
    for _ in range(2):
        copy.opened()
        assert not log_of(copy.store).damaged
        copy.store.check()
        copy.store.close()
    copy.opened()
    copy.limit = copy.master.end_offset
    copy.show()
    assert copy.ends() == [100, 100, 100]
    assert all(copy.is_found(number) for number in range(300))
    copy.store.check()


@pytest.mark.parametrize("how", ENDS)
def test_the_next_master_goes_on_with_all_of_it(how: str) -> None:
    copy = Copy()
    copy.limit = copy.master.end_offset // 2
    copy.take(copy.master.end_offset)
    copy.io = ENDS[how](copy.store, copy.io)
    copy.limit = 0
    copy.opened(is_copy=False)
    assert copy.ends() == [100, 100, 100]
    assert copy.store.confirmed_offset == copy.master.end_offset
    assert copy.is_found(299)
    copy.store.check()


def test_a_folder_whose_queues_are_gone_is_shown_whole() -> None:
    """Nobody knows what readers had seen."""
    copy = Copy()
    copy.limit = copy.master.end_offset // 2
    copy.take(copy.master.end_offset)
    copy.io = closed(copy.store, copy.io)
    for path in [path for path in copy.io.paths() if "consumequeue" in path.parts]:
        copy.io.unlink(path)
    copy.opened()
    assert copy.ends() == [100, 100, 100]


def test_damage_behind_what_was_shown_shows_everything() -> None:
    copy = Copy()
    copy.limit = copy.master.end_offset // 2
    copy.take(copy.master.end_offset)
    damaged = copy.master.reading.queue_entry(TOPIC, 0, 90)
    assert damaged is not None
    copy.io = copy.io.kill()
    name = f"{damaged.physical_offset // FILE_SIZE * FILE_SIZE:020d}"
    copy.io.flip(ROOT / "commitlog" / name, damaged.physical_offset % FILE_SIZE + 100)
    copy.opened()
    assert copy.ends() == [100, 100, 100]
    assert copy.store.confirmed_offset == copy.master.end_offset
