"""Two brokers that differ in nothing but their engine for sends, and what differs after the same reads.

Touches  memory alone: stores, connections and clocks are made here, and no timer or thread of a broker runs.

Both are used again and again. After each step the answers are compared, after each run what it has added: every byte
that was written to a file of log, queues and index, and every counter. So a run costs what its reads cost.

Order    Answers of sends that wait for the disk come in the order of the sends, whichever engine has taken them. Sends
         that make their topic, or do not wait, may be answered before others of their read: there the answers are
         compared without their order.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from aerobee_broker.assembly import Parts
from aerobee_broker.messages import intake
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.frames import FrameDecoder, decode_command
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.gate import Judging
from aerobee_remoting.exchange.handlers import Channel, FrontTaken
from aerobee_store.disk.io import Buffer
from broker.support import Clock, held_back, make_test_parts
from quiet_transport import QuietTransport
from send_frames import BATCH, V1, V2
from store.memory_io import MemoryFile, MemoryIo

__all__ = [
    "TOPICS", "Difference", "End", "EnginePair", "Step", "engine_pair", "later", "synced", "topic_changed",
    "topic_deleted", "with_settings",
]  # fmt: skip

TURNS_MAX: Final = 10_000  # of the event loop, until a read is done with
LOG_SIZE_MAX: Final = 24 << 20  # bytes, then both brokers are made anew: their files are in memory
TOPICS_MAX: Final = 200
ANY: Final = SimpleNamespace(
    randrange=lambda count: Random(count).randrange(count)
)  # queue: the same for both
TOPICS: Final = (
    TopicConfig(topic_name="Topic-A", read_queue_nums=4, write_queue_nums=4),
    TopicConfig(topic_name="Topic-B", read_queue_nums=2, write_queue_nums=2),
    TopicConfig(topic_name="Multi", topic_filter_type="MULTI_TAG"),
    TopicConfig(topic_name="ReadOnly", perm=4),
    TopicConfig(topic_name="Batches", attributes={"queue.type": "BatchCQ"}),
)


class Difference(AssertionError):
    """One engine does something else than the other."""


class _WatchedIo(MemoryIo):
    """Remembers of each file from where to where it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[Path, tuple[int, int]] = {}

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> MemoryFile:
        super().open_file(path, size, create=create, writable=writable, room=room)
        if create:
            self.note(path, 0, 0)
        return _WatchedFile(self, path, self._files[path])

    def note(self, path: Path, begin: int, end: int) -> None:
        known = self.written.get(path)
        self.written[path] = (begin, end) if known is None else (min(known[0], begin), max(known[1], end))

    def piece(self, path: Path, begin: int, end: int) -> bytes | None:
        """Bytes of a file; None when it is not there."""
        content = self._files.get(path)
        return None if content is None else bytes(content.live[begin:end])


class _WatchedFile(MemoryFile):
    def __init__(self, disk: _WatchedIo, path: Path, content: Any) -> None:
        super().__init__(disk, path, content)
        self._watched = disk

    def write(self, position: int, data: Buffer) -> None:
        super().write(position, data)
        self._watched.note(self.path, position, position + len(data))


class _Disk:
    """A source of promises that has what it is said to have."""

    late_code = ResponseCode.FLUSH_DISK_TIMEOUT
    offset = 0

    def log_late(self, peer: str, message_count: int) -> None:
        return

    def timeout_ms(self) -> int:
        return 5000

    def request(self) -> None:
        return


class _Transport(QuietTransport):
    """Keeps what is written until it is asked for."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__(peer)
        self.written: list[bytes] = []
        self.lose: Callable[[None], None] = lambda _: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.lose(None)

    def abort(self) -> None:
        self.close()


class _Counting:
    """The front of a broker's handlers, and how many requests it takes."""

    def __init__(self, front: Any) -> None:
        self._front = front
        self.taken = 0

    def serves_all(self, data: bytes, at: int) -> bool:
        return bool(self._front.serves_all(data, at))

    def take(
        self, channel: Channel, data: bytes, at: int, count_max: int, judging: Judging | None
    ) -> FrontTaken | None:
        found: FrontTaken | None = self._front.take(channel, data, at, count_max, judging)
        if found is not None:
            self.taken += found.request_count
        return found


class End:
    """One of the two."""

    def __init__(self, engine: str, settings: dict[str, Any]) -> None:
        """To be made where an event loop runs."""
        self.io = _WatchedIo()
        self.clock = Clock()
        self.disk = _Disk()
        self.parts: Parts = make_test_parts(
            Path("/store"),
            self.clock,
            io=self.io,
            **{"mapper_file_size_batch_consume_queue": 4600, **settings, "send_engine": engine},
        )
        parts = self.parts
        assert parts.observed.engine() == engine, engine
        self.config = parts.live.value  # as it was made
        parts.visibility.close()  # the keys are indexed at the end of a run, not by the clock
        parts.store.topics.prepare_batch(["Batches"])
        parts.store.topics.make_batch("Batches")
        parts.topics.update(TOPICS)
        table = parts.server.handlers
        for code in set(table.by_code) - {V1, V2, BATCH}:
            del table.by_code[code]
        for keys in table.by_key:
            for key in [key for key, entry in keys.items() if entry.code not in table.by_code]:
                del keys[key]
        self.front = _Counting(table.front)
        if table.front is not None:
            table.front = self.front
        self._peer, self._waits = ("", 0), False
        self._transport = _Transport(self._peer)
        self._connection: Connection = None  # type: ignore[assignment]  # set by `connect`

    def connect(self, peer: tuple[str, int], *, waits: bool) -> None:
        """A new connection. `waits`: sends are answered when `disk` has them, otherwise at once."""
        self.parts.promises.sources = (self.disk,) if waits else ()
        self.disk.offset = self.parts.store.end_offset
        self._peer, self._waits = peer, waits
        self._transport = _Transport(peer)
        connection = self._connection = Connection(self.parts.server.handlers)
        self._transport.lose = connection.connection_lost
        connection.connection_made(self._transport)

    def read(self, data: bytes) -> None:
        """The peer has sent this."""
        self._connection.data_received(data)

    @property
    def is_closed(self) -> bool:
        """Whether the broker has closed the connection: what it could not read ends it."""
        return self._connection.is_closed

    def reconnect(self) -> None:
        """Come again, after a connection that was closed."""
        if self.is_closed:
            synced(self)  # nobody waits any more for answers to what came before
            self.connect(self._peer, waits=self._waits)

    @property
    def is_idle(self) -> bool:
        """Whether what was read is done with, but for the disk."""
        connection = self._connection
        if connection.is_closed:
            return True
        return not held_back(connection) and connection.in_flight == self.parts.promises.waiting_count

    @property
    def is_answered(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._connection.in_flight

    def take_written(self) -> bytes:
        """What was answered since it was asked for last."""
        self._connection.flush()
        written, self._transport.written = self._transport.written, []
        return b"".join(written)

    def finish(self) -> None:
        """The disk has everything, the peer hangs up, all keys are indexed."""
        synced(self)
        self._transport.close()
        keys = self.parts.store.keys
        while keys.backlog:
            keys.build(4096)

    def counters(self) -> dict[str, object]:
        """All that is counted about sends."""
        stats, store = self.parts.stats, self.parts.store
        return {
            "of topics": {name: (one.count, one.size, one.in_batches) for name, one in stats.topics.items()},
            "stored": (stats.put_count.value, stats.put_count.times),
            "bytes": (stats.put_bytes.value, stats.put_bytes.times),
            "refused": stats.put_failed,
            "requests": {
                code: (entry.requests, entry.refused)
                for code, entry in self.parts.server.handlers.by_code.items()
            },
            "waited": sum(stats.put_took_ms),
            "version of the client": self._connection.version,
            "end of the log": store.end_offset,
            "waiting": self.parts.promises.waiting_count,
        }


# --- steps --------------------------------------------------------------------------------------------------------

Step = bytes | Callable[[End], None]
"""A read, or something else that happens to both."""


def synced(end: End) -> None:
    """The disk has everything."""
    end.disk.offset = end.parts.store.end_offset
    end.parts.visibility.advanced()


def later(ms: int) -> Step:
    """Time goes by."""

    def step(end: End) -> None:
        end.clock.now_ms += ms

    return step


def topic_changed(config: TopicConfig) -> Step:
    """An operator changes a topic, or makes one."""
    return lambda end: _done(end.parts.topics.update([config]))


def topic_deleted(topic: str, *, is_saved: bool) -> Step:
    """An operator deletes a topic with its queues; whether that is on the disk already."""

    def step(end: End) -> None:
        parts = end.parts
        parts.topics.delete(topic)
        parts.store.topics.delete(topic)
        parts.stats.topic_deleted(topic)
        if is_saved:
            parts.store.topics.save_deletions()

    return step


def with_settings(**changes: str) -> Step:
    """An operator changes settings, by the names that they have on the wire."""
    return lambda end: _done(end.parts.live.replace(changes, origin="a test", now_ms=end.clock()))


def _done(_: object) -> None:
    return


# --- both ---------------------------------------------------------------------------------------------------------


class EnginePair:
    """A broker with the Python engine and one with the native one."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._ends: tuple[End, ...] = ()
        self._is_fresh = True
        self._make()

    @property
    def ends(self) -> tuple[End, End]:
        """The one with the Python engine, and the one with the native one."""
        python, native = self._ends
        return python, native

    def run(
        self, steps: Sequence[Step], *, waits: bool = False, peer: tuple[str, int] = ("10.1.2.3", 4567)
    ) -> int:
        """Do the same to both; how many requests the native engine has taken. Difference: it is not the same.

        A difference that is there only after what other runs have left says so."""
        python, native = self._ends
        if python.parts.store.end_offset > LOG_SIZE_MAX or len(python.parts.topics) > TOPICS_MAX:
            self.renew()
            python, native = self._ends
        before = native.front.taken
        try:
            self._do(steps, waits, peer)
        except Difference as found:
            was_fresh = self._is_fresh
            self.renew()
            if was_fresh:
                raise
            try:
                self._do(steps, waits, peer)
            except Difference:
                self.renew()
                raise
            raise Difference(f"after other runs, not with new brokers: {found}") from found
        self._is_fresh = False
        return native.front.taken - before

    def renew(self) -> None:
        """Begin with empty stores."""
        self._end()
        self._make()

    def close(self) -> None:
        self._end()
        self._loop.close()

    def _make(self) -> None:
        async def made() -> tuple[End, ...]:
            return End("python", self._settings), End("native", self._settings)

        # What a broker draws once: a part of the keys that it gives to messages that have none.
        with patch("aerobee_broker.assembly.secrets", SimpleNamespace(randbits=lambda bits: 7)):
            self._ends = self._loop.run_until_complete(made())
        self._is_fresh = True

    def _end(self) -> None:
        async def ended() -> None:
            for end in self._ends:
                await end.parts.files.close()
                end.parts.store.close()

        self._loop.run_until_complete(ended())
        self._ends = ()

    def _do(self, steps: Sequence[Step], waits: bool, peer: tuple[str, int]) -> None:
        drawn = getattr(intake, "random")  # noqa: B009  # the module has it for itself
        setattr(intake, "random", ANY)  # noqa: B010  # `patch` takes longer than the run
        try:
            self._loop.run_until_complete(self._run(steps, waits, peer))
        finally:
            setattr(intake, "random", drawn)  # noqa: B010

    async def _run(self, steps: Sequence[Step], waits: bool, peer: tuple[str, int]) -> None:
        for end in self._ends:
            end.connect(peer, waits=waits)
        # Whether a topic was made and somebody waits for an answer since: the send that made it is answered when the
        # topic is registered, behind others that may have been taken by then or not.
        made = False
        for step in (*steps, End.finish):
            changes = [end.parts.topics.changes for end in self._ends]
            for end in self._ends:
                if isinstance(step, bytes):
                    end.read(step)
                    await _until_idle(end)
                else:
                    step(end)
            is_closed, also = [end.is_closed for end in self._ends]
            _must_be_equal(is_closed, also, "closed")
            made = made or changes != [end.parts.topics.changes for end in self._ends]
            written = [end.take_written() for end in self._ends]
            _compare_answers(*written, in_order=waits and not made)
            made = made and not all(end.is_answered for end in self._ends)
        _must_be_equal([end.parts.observed.engine() for end in self._ends], ["python", "native"], "engines")
        _compare_files(*self._ends)
        counted, native = [end.counters() for end in self._ends]
        for name, value in counted.items():
            _must_be_equal(value, native[name], name)


@contextmanager
def engine_pair(**settings: Any) -> Iterator[EnginePair]:
    """Both, closed afterwards."""
    pair = EnginePair(**settings)
    try:
        yield pair
    finally:
        pair.close()


async def _until_idle(end: End) -> None:
    for _ in range(TURNS_MAX):
        if end.is_idle:
            return
        await asyncio.sleep(0)
    raise Difference("a read is never done with")


def _must_be_equal(python: object, native: object, what: str) -> None:
    if python == native:
        return
    if isinstance(python, list) and isinstance(native, list):
        both = zip_longest(python, native)
        python, native = next((one, other) for one, other in both if one != other)
    raise Difference(f"{what}: {python!r} in Python, {native!r} natively")


def _compare_answers(python: bytes, native: bytes, *, in_order: bool) -> None:
    if python == native:
        return
    answers = [[(frame, _code(frame)) for frame in FrameDecoder().feed(one)] for one in (python, native)]
    python_all, native_all = [sorted(frame for frame, _ in one) for one in answers]
    _must_be_equal(python_all, native_all, "answers")
    if in_order:
        taken, other = [[frame for frame, code in one if code == ResponseCode.SUCCESS] for one in answers]
        _must_be_equal(taken, other, "order of the answers")


def _code(frame: tuple[int, bytes, bytes]) -> int:
    return decode_command(frame).code


def _compare_files(python: End, native: End) -> None:
    written, other = python.io.written, native.io.written
    _must_be_equal(sorted(map(str, written)), sorted(map(str, other)), "files that were written")
    for path, (begin, end) in written.items():
        begin, end = min(begin, other[path][0]), max(end, other[path][1])
        pieces = [one.io.piece(path, begin, end) for one in (python, native)]
        if pieces[0] != pieces[1]:
            raise Difference(_first_difference(path, begin, *pieces))
    written.clear()
    other.clear()


def _first_difference(path: Path, begin: int, python: bytes | None, native: bytes | None) -> str:
    if python is None or native is None:
        return f"{path} is there with one engine alone"
    at = next(at for at, (one, other) in enumerate(zip(python, native, strict=True)) if one != other)
    around = slice(max(at - 16, 0), at + 16)
    return f"{path}, byte {begin + at}: {python[around]!r} in Python, {native[around]!r} natively"
