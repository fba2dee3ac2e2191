"""When answers leave: after their sync, together, never after a failure; with a log whose disk obeys the test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from aerobee_broker.durability import Durability
from aerobee_broker.stats import BrokerStats
from aerobee_remoting.connection import Connection

LATE, FAILED = 10, 14


class Disk:
    """A log that syncs when the test says so."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.flushed_offset = 0
        self.has_failed = False
        self.syncs = 0
        self.error: Exception | None = None
        self.begun = asyncio.Queue[int]()  # end offsets that syncs were begun with
        self._loop = asyncio.get_running_loop()
        self._go_on = threading.Semaphore(0)

    def append(self, size: int = 100) -> None:
        self.end_offset += size

    def flush_disk(self) -> int:
        end = self.end_offset
        self._loop.call_soon_threadsafe(self.begun.put_nowait, end)
        assert self._go_on.acquire(timeout=10), "the test forgot to let the disk go on"
        if self.error is not None:
            raise self.error
        self.syncs += 1
        self.flushed_offset = end
        return end

    def let_go(self, times: int = 1) -> None:
        self._go_on.release(times)


class Client:
    """The end of a connection that keeps what it is sent."""

    def __init__(self, name: str = "client") -> None:
        self.peer = name
        self.got: list[bytes] = []
        self.held = 0
        self._came = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.got.append(data)
        self._came.set()

    write_now = write

    def hold(self, count: int) -> None:
        self.held += count

    async def received(self, count: int) -> list[bytes]:
        async with asyncio.timeout(10):
            while len(self.got) < count:
                self._came.clear()
                await self._came.wait()
        return self.got

    @property
    def connection(self) -> Connection:
        return cast(Connection, self)


class Scene:
    """Durability over a `Disk`, and what it reports."""

    def __init__(self, **settings: Any) -> None:
        self.disk = Disk()
        self.flushed: list[int] = []
        self.failures: list[Exception] = []
        self.failed = asyncio.Event()
        self.stats = BrokerStats("c", 0)
        self.confirm_error: Exception | None = None
        options: dict[str, Any] = {"sync": True, "flush_interval_ms": lambda: 60_000}
        options["sync_flush_timeout_ms"] = lambda: 60_000
        self.durability = Durability(
            self.disk,
            late_code=LATE,
            failed_code=FAILED,
            on_flushed=self._flushed,
            on_failure=self._fail,
            meter=self.stats,
            **(options | settings),
        )

    def _flushed(self, offset: int) -> None:
        self.flushed.append(offset)
        if self.confirm_error is not None:
            raise self.confirm_error

    def _fail(self, failure: Exception) -> None:
        self.failures.append(failure)
        self.failed.set()

    def answer(self, client: Client, text: str = "ok", count: int = 1) -> None:
        """Append something and ask for its answer."""
        self.disk.append()
        late: Callable[[int], bytes] = lambda code: f"{text} {code}".encode()  # noqa: E731
        self.durability.answer(client.connection, text.encode(), late, count)


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    made = Scene(**settings)
    made.durability.start()
    try:
        yield made
    finally:
        made.disk.let_go(100)
        await made.durability.close()


@pytest.fixture
async def sync() -> AsyncIterator[Scene]:
    async with scene() as made:
        yield made


async def test_no_answer_leaves_before_its_sync(sync: Scene) -> None:
    client = Client()
    sync.answer(client)
    await sync.disk.begun.get()
    assert client.got == []
    assert sync.flushed == []
    sync.disk.let_go()
    assert await client.received(1) == [b"ok"]
    assert sync.flushed == [100]


async def test_answers_of_one_turn_of_the_loop_share_a_sync(sync: Scene) -> None:
    clients = [Client(str(i)) for i in range(5)]
    for client in clients:
        sync.answer(client)
    assert await sync.disk.begun.get() == 500
    sync.disk.let_go()
    for client in clients:
        assert await client.received(1) == [b"ok"]
    assert sync.disk.syncs == 1


async def test_what_comes_during_a_sync_waits_for_the_next_one_together(sync: Scene) -> None:
    first, client = Client(), Client()
    sync.answer(first)
    await sync.disk.begun.get()
    for i in range(100):
        sync.answer(client, str(i))
    sync.disk.let_go()
    await first.received(1)
    assert client.got == []
    assert await sync.disk.begun.get() == 101 * 100
    assert client.got == []
    sync.disk.let_go()
    assert await client.received(100) == [str(i).encode() for i in range(100)]
    assert sync.disk.syncs == 2
    assert sync.flushed == [100, 101 * 100]


async def test_waiting_answers_count_against_their_connection(sync: Scene) -> None:
    client = Client()
    sync.answer(client, count=64)
    sync.answer(client, count=3)
    assert client.held == sync.durability.waiting_count == 67
    sync.disk.let_go()
    await client.received(2)
    assert client.held == sync.durability.waiting_count == 0


async def test_a_slow_sync_is_told_and_not_told_twice() -> None:
    async with scene(sync_flush_timeout_ms=lambda: 1, flush_interval_ms=lambda: 1) as slow:
        client = Client()
        slow.answer(client)
        await slow.disk.begun.get()
        assert await client.received(1) == [b"ok 10"]
        assert client.held == 0
        slow.disk.let_go()
        later = Client()
        slow.answer(later, "later")
        slow.disk.let_go(100)
        await later.received(1)
        assert client.got == [b"ok 10"]


async def test_a_failed_sync_refuses_what_waits(sync: Scene) -> None:
    clients = [Client(str(i)) for i in range(3)]
    for client in clients:
        sync.answer(client)
    await sync.disk.begun.get()
    during = Client()
    sync.answer(during)
    sync.disk.error = OSError(5, "Input/output error")
    sync.disk.let_go()
    for client in (*clients, during):
        assert await client.received(1) == [b"ok 14"]
        assert client.held == 0
    await sync.failed.wait()
    assert sync.failures == [sync.disk.error]
    assert sync.flushed == []


async def test_a_fault_behind_a_sync_ends_it_and_leaves_nobody_waiting(sync: Scene) -> None:
    """The first send is durable and answered; what waits for the next sync is refused, not left without an answer."""
    first, during = Client(), Client()
    sync.answer(first)
    await sync.disk.begun.get()
    sync.answer(during)
    sync.confirm_error = error = ValueError("a fault of ours")
    sync.disk.let_go()
    assert await first.received(1) == [b"ok"]
    assert await during.received(1) == [b"ok 14"]
    assert sync.failures == [error]
    later = Client()
    sync.answer(later)
    assert await later.received(1) == [b"ok 14"]


async def test_a_failed_sync_is_final(sync: Scene) -> None:
    client = Client()
    sync.answer(client)
    sync.disk.error = OSError(5, "Input/output error")
    sync.disk.let_go()
    await client.received(1)
    sync.disk.error = None
    sync.disk.let_go(10)
    for _ in range(3):
        sync.answer(client, "after")
        sync.durability.request_flush()
    async with asyncio.timeout(10):
        await sync.durability.drain()
    assert client.got == [b"ok 14"] + [b"after 14"] * 3
    assert sync.disk.syncs == 0
    assert len(sync.failures) == 1


async def test_nothing_is_promised_once_another_thread_has_met_a_failure(sync: Scene) -> None:
    """The refusal of a later send overtook the success of an earlier one: an answer after the failure."""
    client = Client()
    sync.answer(client)
    assert await sync.disk.begun.get() == 100
    sync.disk.has_failed = True
    sync.disk.let_go()
    async with asyncio.timeout(10):
        while sync.disk.syncs == 0:
            await asyncio.to_thread(lambda: None)
    error = OSError(5, "Input/output error")
    sync.durability.fail(error)
    sync.durability.fail(OSError(5, "another one"))
    assert client.got == [b"ok 14"]
    assert client.held == 0
    assert sync.durability.failed is error


async def test_any_error_of_the_disk_thread_is_final(sync: Scene) -> None:
    """Not only OSError: a fault of ours in the thread must not leave senders waiting."""
    client = Client()
    sync.answer(client)
    sync.disk.error = ZeroDivisionError("a fault of ours")
    sync.disk.let_go()
    assert await client.received(1) == [b"ok 14"]
    assert sync.failures == [sync.disk.error]


async def test_draining_syncs_and_answers_everything(sync: Scene) -> None:
    client = Client()
    sync.answer(client)
    await sync.disk.begun.get()
    sync.answer(client)
    draining = asyncio.create_task(sync.durability.drain())
    sync.disk.let_go(2)
    async with asyncio.timeout(10):
        await draining
    assert client.got == [b"ok", b"ok"]
    assert sync.disk.flushed_offset == sync.disk.end_offset == 200


async def test_draining_syncs_what_nobody_waits_for(sync: Scene) -> None:
    sync.disk.append()
    sync.disk.let_go()
    async with asyncio.timeout(10):
        await sync.durability.drain()
    assert sync.disk.flushed_offset == 100
    assert sync.flushed == [100]


async def test_draining_does_nothing_when_nothing_waits(sync: Scene) -> None:
    await sync.durability.drain()
    assert sync.disk.begun.empty()


async def test_closing_twice_and_without_a_start_ends() -> None:
    made = Scene()
    await made.durability.close()
    async with scene() as other:
        await other.durability.close()


async def test_a_flush_that_nobody_waits_for_is_reported_too(sync: Scene) -> None:
    """Oneway sends: readers may see them after their sync."""
    sync.disk.append()
    sync.durability.request_flush()
    sync.durability.request_flush()
    sync.disk.let_go()
    assert await sync.disk.begun.get() == 100
    async with asyncio.timeout(10):
        await sync.durability.drain()
    assert sync.flushed == [100]
    assert sync.durability.flushes == 1


async def test_async_mode_answers_at_once_and_syncs_by_the_clock() -> None:
    async with scene(sync=False, flush_interval_ms=lambda: 1) as later:
        client = Client()
        later.answer(client)
        assert client.got == [b"ok"]
        assert client.held == 0
        assert await later.disk.begun.get() == 100
        later.disk.let_go()
        async with asyncio.timeout(10):
            await later.durability.drain()
        assert later.flushed == [100]


async def test_async_mode_refuses_after_a_failed_sync() -> None:
    async with scene(sync=False, flush_interval_ms=lambda: 1) as later:
        client = Client()
        later.answer(client)
        later.disk.error = OSError(5, "Input/output error")
        later.disk.let_go()
        await later.failed.wait()
        later.answer(client, "after")
        assert client.got == [b"ok", b"after 14"]


async def test_what_waits_and_each_sync_are_measured(sync: Scene) -> None:
    """They were not, and brokerStatus said that no send ever took any time."""
    client = Client()
    sync.answer(client, count=3)
    await sync.disk.begun.get()
    sync.answer(client, count=2)  # of the next sync
    sync.disk.let_go()
    await client.received(1)
    assert (sum(sync.stats.put_took_ms), sync.stats.flush_count) == (3, 1)
    await sync.disk.begun.get()
    sync.disk.let_go()
    await client.received(2)
    assert (sum(sync.stats.put_took_ms), sync.stats.flush_count) == (5, 2)


async def test_a_shorter_time_out_counts_for_the_sends_that_wait_already() -> None:
    """It was read once, when the broker started; whoever changed it was told that it had been."""
    timeout_ms = 3_600_000
    async with scene(sync_flush_timeout_ms=lambda: timeout_ms, flush_interval_ms=lambda: 1) as slow:
        client = Client()
        slow.answer(client)
        await slow.disk.begun.get()
        for _ in range(3):
            slow.durability._tick()
        assert client.got == []
        timeout_ms = 0
        slow.durability._tick()
        assert client.got == [b"ok 10"]


async def test_a_shorter_pause_between_flushes_is_followed_within_the_pause_that_is_under_way() -> None:
    """It was read once, when the broker started."""
    pause_ms = 3_600_000
    async with scene(sync=False, flush_interval_ms=lambda: pause_ms) as later:
        later.disk.append()
        later.durability._tick()
        assert later.disk.begun.empty()
        pause_ms = 1
        assert await later.disk.begun.get() == 100
        later.disk.let_go()
