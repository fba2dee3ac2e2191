"""Messages for tests, a plain model of what a store must hold, and random work on both."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from aerobee_proto.javahash import tag_hash
from aerobee_proto.properties import encode_properties
from aerobee_store.disk.io import StoreIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import NewMessage, PutStatus
from store.inside import log_of, settings_of

ROOT = Path("/store")
HOST = bytes((10, 1, 2, 3)) + (10911).to_bytes(4, "big")
HOST_V6 = bytes(range(16)) + (10911).to_bytes(4, "big")
START_MS = 1_700_000_000_000
TOPICS = ("Orders", "Bills", "%RETRY%group")
TAGS = (None, "TagA", "TagB")


def config(root: Path = ROOT, **changes: Any) -> StoreConfig:
    """Small files, so that everything rolls soon."""
    small = StoreConfig(
        root=root,
        commit_log_file_size=16384,
        consume_queue_file_size=320,
        index_slots=50,
        index_entries=120,
    )
    return replace(small, **changes)


class Clock:
    """A clock that moves when it is told to, and by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def message(
    topic: str = "Orders",
    queue_id: int = 0,
    body: bytes = b"body",
    *,
    tag: str | None = None,
    keys: str | None = None,
    unique_key: str | None = None,
    sys_flag: int = 0,
    host: bytes = HOST,
    extra: dict[str, str] | None = None,
) -> NewMessage:
    """A message as the broker hands it over."""
    found = {"UNIQ_KEY": unique_key, "KEYS": keys, "TAGS": tag, **(extra or {})}
    properties = encode_properties({name: value for name, value in found.items() if value})
    return NewMessage(
        topic,
        queue_id,
        0,
        sys_flag,
        START_MS,
        host,
        host,
        0,
        0,
        body,
        properties.encode(),
        tag_hash(tag),
        keys,
        unique_key,
    )


def open_store(
    io: StoreIo,
    clock: Clock | None = None,
    on_failure: Callable[[OSError], None] = lambda error: None,
    rest: Callable[[], None] = lambda: None,
    **changes: Any,
) -> MessageStore:
    """A store on `io`, open."""
    store = MessageStore(config(**changes), io=io, clock=clock or Clock(), on_failure=on_failure, rest=rest)
    store.open()
    return store


class Stored:
    """What the model knows of one message."""

    __slots__ = ("end", "key", "message", "physical_offset", "queue_offset", "record", "store_timestamp")

    def __init__(
        self, message: NewMessage, physical_offset: int, queue_offset: int, record: bytes, time: int
    ) -> None:
        self.message = message
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.record = record
        self.end = physical_offset + len(record)
        self.store_timestamp = time
        self.key = (message.topic, message.queue_id)


class Workload:
    """Random appends, flushes and checkpoints, and the list of what was stored.

    `stored` is in log order. `durable_end` is what the store has promised: everything below it must be
    there after any crash.
    """

    def __init__(self, random: Random, io: StoreIo, clock: Clock, **changes: Any) -> None:
        self.random = random
        self.clock = clock
        self.stored: list[Stored] = []
        self.durable_end = 0
        self.changes = changes
        self._number = 0
        self.failures: list[OSError] = []  # of which the store has told
        self.store = MessageStore(config(**changes), io=io, clock=clock, on_failure=self.failures.append)

    def restart(
        self, io: StoreIo, on_progress: Callable[[str, int], None] = lambda step, size: None
    ) -> MessageStore:
        """A new store object on what is left of the disk; not open yet."""
        self.store = MessageStore(config(**self.changes), io=io, clock=self.clock, on_progress=on_progress)
        return self.store

    def step(self) -> None:
        """Do one random thing."""
        kind = self.random.random()
        if kind < 0.55:
            self.append()
        elif kind < 0.75:
            self.flush()
        elif kind < 0.85:
            self.store.confirm(self.store.flushed_offset)
            self.store.keys.build(self.random.randrange(1, 50))
        elif kind < 0.93:
            self.store.flush_queues()
        elif kind < 0.97:
            self.store.write_checkpoint()
        else:
            self.store.preallocate()

    def append(self) -> None:
        """A batch of random messages; now and then as a group."""
        batch = [self._message() for _ in range(self.random.choice((1, 1, 2, 5, 20)))]
        write = self.store.append_group if self.random.random() < 0.2 else self.store.append
        for new, answer in zip(batch, write(batch), strict=True):
            if answer.status is not PutStatus.PUT_OK:
                continue
            raw = self.raw(answer.physical_offset, answer.size)
            self.stored.append(
                Stored(new, answer.physical_offset, answer.queue_offset, raw, answer.store_timestamp)
            )

    def raw(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log, whether readers may see them or not."""
        view = log_of(self.store).read(physical_offset, size)
        assert view is not None
        return bytes(view)

    def flush(self) -> None:
        """Make everything durable and visible."""
        self.durable_end = max(self.store.flush_disk(), self.durable_end)
        self.store.confirm(self.store.flushed_offset)

    def _message(self) -> NewMessage:
        self._number += 1
        random = self.random
        return message(
            random.choice(TOPICS),
            random.randrange(3),
            random.randbytes(random.choice((0, 10, 100, 100, 1500))),
            tag=random.choice(TAGS),
            keys=random.choice((None, f"k{random.randrange(20)}", "k1 k2")),
            unique_key=f"UNIQUE{self._number}",
            host=random.choice((HOST, HOST, HOST_V6)),
        )


def another_on(io: StoreIo, store: MessageStore) -> MessageStore:
    """A store with the settings of one before, on another disk; not opened."""
    return MessageStore(settings_of(store), io=io, clock=Clock())
