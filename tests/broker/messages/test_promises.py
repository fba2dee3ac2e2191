"""When promises are kept: after the sync, together, never after a failure; with a log whose disk obeys the test, and a
replica that is as far as the test says."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from aerobee_broker.messages.flusher import Flusher
from aerobee_broker.messages.promises import NotYetSafe, Promises
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.stats import BrokerStats
from aerobee_store.faults.errors import NotMaster, StorePoisoned
from aerobee_store.terms.messages import Arrival

LATE, REPLICA_LATE, FAILED = 10, 12, 14


class NoKeys:
    """Nothing is to be indexed."""

    backlog = 0
    lacks_file = False

    def make_file(self) -> None: ...

    def missing(self) -> None:
        return None

    def build(self, limit: int) -> int:
        return 0


class Disk:
    """A log that syncs when the test says so."""

    full_until = 0
    begun_count = 0

    def __init__(self) -> None:
        self.showing = self
        self.keys = NoKeys()
        self.shown: list[int] = []  # offsets up to which it was shown to readers
        self.confirm_error: Exception | None = None
        self.end_offset = 0
        self.flushed_offset = 0
        self.has_failed = False
        self.syncs = 0
        self.error: Exception | None = None
        self.begun = asyncio.Queue[int]()  # end offsets that syncs were begun with
        self._loop = asyncio.get_running_loop()
        self._go_on = threading.Semaphore(0)
        self.entered, self.synced = threading.Semaphore(0), threading.Semaphore(0)

    def append(self, size: int = 100) -> None:
        self.end_offset += size

    def flush_disk(self) -> int:
        end = self.end_offset
        self.entered.release()
        self._loop.call_soon_threadsafe(self.begun.put_nowait, end)
        assert self._go_on.acquire(timeout=10), "the test forgot to let the disk go on"
        if self.error is not None:
            raise self.error
        self.syncs += 1
        self.flushed_offset = end
        self.synced.release()
        return end

    def let_go(self, times: int = 1) -> None:
        self._go_on.release(times)

    def confirm(self, offset: int, *, notify: bool = True, begun_max: int = 0) -> list[Arrival]:
        self.shown.append(offset)
        if self.confirm_error is not None:
            raise self.confirm_error
        return []

    def keeps(self, offset: int) -> None:
        raise AssertionError("no queue begins here")

    def is_behind(self, offset: int) -> bool:
        return False


class Served:
    """What else the event loop does."""

    is_contended = False

    def __init__(self) -> None:
        self.hurried = 0

    def hurry(self) -> None:
        self.hurried += 1


log = structlog.get_logger()


class Client:
    """Gets answers, and knows how many of its sends have none."""

    def __init__(self, name: str = "client") -> None:
        self.peer = name
        self.got: list[str] = []
        self.held = 0
        self._came = asyncio.Event()

    def write(self, text: str) -> None:
        self.got.append(text)
        self._came.set()

    async def received(self, count: int) -> list[str]:
        async with asyncio.timeout(10):
            while len(self.got) < count:
                self._came.clear()
                await self._came.wait()
        return self.got


class Answer:
    """Sends of one client that are answered together: with a text, or with the text and a code."""

    def __init__(self, client: Client, text: str, count: int) -> None:
        self.client, self.text, self.count = client, text, count
        self.peer = client.peer

    def keep(self) -> None:
        self.client.held -= self.count
        self.client.write(self.text)

    def refuse(self, code: int) -> None:
        self.client.held -= self.count
        self.client.write(f"{self.text} {int(code)}")


class Replica:
    """A second source, as far as the test says."""

    late_code = REPLICA_LATE

    def __init__(self, offset: int = 0, timeout_ms: int = 60_000) -> None:
        self.offset = offset
        self.requests = 0
        self.patience_ms = timeout_ms

    def log_late(self, peer: str, message_count: int) -> None:
        log.warning("replica.late", peer=peer)

    def timeout_ms(self) -> int:
        return self.patience_ms

    def request(self) -> None:
        self.requests += 1


class Scene:
    """Promises over a `Disk`, and over a replica if there is one; what they show, and what they report."""

    def __init__(
        self, *replicas: Replica, sync: bool = True, timeout_ms: int = 60_000, interval_ms: int = 60_000
    ) -> None:
        self.disk = Disk()
        self.timeout_ms, self.interval_ms = timeout_ms, interval_ms
        self.failures: list[Exception] = []
        self.failed = asyncio.Event()
        self.stats = BrokerStats("c", 0)
        self.served = Served()
        self.flusher = Flusher(
            self.disk,
            prompt=sync,
            interval_ms=lambda: self.interval_ms,
            timeout_ms=lambda: self.timeout_ms,
            meter=self.stats,
            served=self.served,
        )
        self.promises = Promises(((self.flusher,) if sync else ()) + replicas, self.disk, meter=self.stats)
        self.visibility = Visibility(
            self.disk,
            self.promises,
            bring=lambda _, then: then(),
            worker=ThreadPoolExecutor(1),
            on_failure=self._work_failed,
        )

    def start(self) -> None:
        self.promises.start()
        self.flusher.start(self.visibility.advanced, self.fail)

    def fail(self, failure: Exception) -> None:
        self.promises.fail(failure)
        self.failures.append(failure)
        self.failed.set()

    def _work_failed(self, name: str, failure: Exception) -> None:
        raise AssertionError(name) from failure

    @property
    def shown(self) -> list[int]:
        return self.disk.shown

    def answer(self, client: Client, text: str = "ok", count: int = 1) -> None:
        """Append something and ask for its answer, as a send does."""
        self.disk.append()
        self.visibility.appended()
        promised = Answer(client, text, count)
        try:
            if self.promises.are_kept():
                client.write(text)
            else:
                client.held += count
                self.promises.promise(promised)
        except StorePoisoned:
            client.write(f"{text} {FAILED}")

    async def drain(self) -> None:
        async with asyncio.timeout(10):
            await self.flusher.drain()

    async def close(self) -> None:
        self.disk.let_go(100)
        self.visibility.close()
        self.promises.close()
        await self.flusher.close()


@asynccontextmanager
async def scene(*replicas: Replica, **settings: Any) -> AsyncIterator[Scene]:
    made = Scene(*replicas, **settings)
    made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def sync() -> AsyncIterator[Scene]:
    async with scene() as made:
        yield made


async def test_no_answer_leaves_before_its_sync(sync: Scene) -> None:
    client = Client()
    sync.answer(client)
    await sync.disk.begun.get()
    assert client.got == []
    assert sync.shown == []
    sync.disk.let_go()
    assert await client.received(1) == ["ok"]
    assert sync.shown == [100]


async def test_answers_of_one_turn_of_the_loop_share_a_sync(sync: Scene) -> None:
    clients = [Client(str(i)) for i in range(5)]
    for client in clients:
        sync.answer(client)
    assert await sync.disk.begun.get() == 500
    sync.disk.let_go()
    for client in clients:
        assert await client.received(1) == ["ok"]
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
    assert await client.received(100) == [str(i) for i in range(100)]
    assert sync.disk.syncs == 2
    assert sync.shown == [100, 101 * 100]


async def test_where_the_loop_has_much_to_do_a_sync_begins_at_once(sync: Scene) -> None:
    sync.answer(Client())
    sync.answer(Client())
    assert await sync.disk.begun.get() == 200  # they share it
    sync.disk.let_go()
    await sync.drain()
    sync.served.is_contended = True
    assert sync.disk.entered.acquire(timeout=10)
    sync.answer(Client())
    assert sync.disk.entered.acquire(timeout=10)  # this loop stands still
    sync.answer(Client())
    assert await sync.disk.begun.get() == 300
    sync.disk.let_go(2)
    await sync.drain()


async def test_where_the_loop_has_much_to_do_the_thread_syncs_again_by_itself(sync: Scene) -> None:
    first, client = Client(), Client()
    sync.answer(first)
    await sync.disk.begun.get()
    sync.answer(client)
    sync.served.is_contended = True
    sync.disk.let_go(2)
    for _ in range(2):
        assert sync.disk.synced.acquire(timeout=10)  # this loop stands still, and hears of neither
    assert first.got == []
    assert sync.served.hurried >= 1
    assert (await first.received(1), await client.received(1)) == (["ok"], ["ok"])
    assert sync.shown == [100, 200]
    sync.answer(client)  # it sleeps again, and can be woken
    sync.disk.let_go()
    await client.received(2)
    await sync.drain()
    assert sync.disk.syncs == 3


async def test_waiting_answers_count_against_their_connection(sync: Scene) -> None:
    client = Client()
    sync.answer(client, count=64)
    sync.answer(client, count=3)
    assert client.held == sync.promises.waiting_count == 67
    sync.disk.let_go()
    await client.received(2)
    assert client.held == sync.promises.waiting_count == 0


async def test_a_slow_sync_is_told_and_not_told_twice() -> None:
    async with scene(timeout_ms=1) as slow:
        client = Client()
        slow.answer(client)
        await slow.disk.begun.get()
        assert await client.received(1) == ["ok 10"]
        assert client.held == 0
        slow.disk.let_go()
        later = Client()
        slow.answer(later, "later")
        slow.disk.let_go(100)
        await later.received(1)
        assert client.got == ["ok 10"]


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
        assert await client.received(1) == ["ok 14"]
        assert client.held == 0
    await sync.failed.wait()
    assert sync.failures == [sync.disk.error]
    assert sync.shown == []


async def test_a_fault_behind_a_sync_ends_it_and_leaves_nobody_waiting(sync: Scene) -> None:
    """The first send is durable and answered; what waits for the next sync is refused, not left without an answer."""
    first, during = Client(), Client()
    sync.answer(first)
    await sync.disk.begun.get()
    sync.answer(during)
    sync.disk.confirm_error = error = ValueError("a fault of ours")
    sync.disk.let_go()
    assert await first.received(1) == ["ok"]
    assert await during.received(1) == ["ok 14"]
    assert sync.failures == [error]
    later = Client()
    sync.answer(later)
    assert await later.received(1) == ["ok 14"]


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
        sync.promises.hurry()
    await sync.drain()
    assert client.got == ["ok 14"] + ["after 14"] * 3
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
    sync.fail(error)
    sync.fail(OSError(5, "another one"))
    assert client.got == ["ok 14"]
    assert client.held == 0
    assert sync.promises.failed is error


async def test_any_error_of_the_disk_thread_is_final(sync: Scene) -> None:
    """Not only OSError: a fault of ours in the thread must not leave senders waiting."""
    client = Client()
    sync.answer(client)
    sync.disk.error = ZeroDivisionError("a fault of ours")
    sync.disk.let_go()
    assert await client.received(1) == ["ok 14"]
    assert sync.failures == [sync.disk.error]


async def test_draining_syncs_and_answers_everything(sync: Scene) -> None:
    client = Client()
    sync.answer(client)
    await sync.disk.begun.get()
    sync.answer(client)
    draining = asyncio.create_task(sync.drain())
    sync.disk.let_go(2)
    async with asyncio.timeout(10):
        await draining
    assert client.got == ["ok", "ok"]
    assert sync.disk.flushed_offset == sync.disk.end_offset == 200


async def test_draining_syncs_what_nobody_waits_for(sync: Scene) -> None:
    sync.disk.append()
    sync.disk.let_go()
    await sync.drain()
    assert sync.disk.flushed_offset == 100
    assert sync.shown == [100]


async def test_draining_does_nothing_when_nothing_waits(sync: Scene) -> None:
    await sync.drain()
    assert sync.disk.begun.empty()


async def test_closing_twice_and_without_a_start_ends() -> None:
    made = Scene()
    await made.close()
    async with scene() as other:
        await other.close()


async def test_a_flush_that_nobody_waits_for_is_reported_too(sync: Scene) -> None:
    """Oneway sends: readers may see them after their sync."""
    sync.disk.append()
    sync.promises.hurry()
    sync.promises.hurry()
    sync.disk.let_go()
    assert await sync.disk.begun.get() == 100
    await sync.drain()
    assert sync.shown == [100]
    assert sync.flusher.flushes == 1


async def test_async_mode_answers_at_once_and_syncs_by_the_clock() -> None:
    async with scene(sync=False, interval_ms=1) as later:
        client = Client()
        later.answer(client)
        assert client.got == ["ok"]
        assert client.held == 0
        assert await later.disk.begun.get() == 100
        later.disk.let_go()
        await later.drain()
        assert later.disk.flushed_offset == 100
        assert later.shown == [100]


async def test_async_mode_refuses_after_a_failed_sync() -> None:
    async with scene(sync=False, interval_ms=1) as later:
        client = Client()
        later.answer(client)
        later.disk.error = OSError(5, "Input/output error")
        later.disk.let_go()
        await later.failed.wait()
        later.answer(client, "after")
        assert client.got == ["ok", "after 14"]


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
    async with scene(timeout_ms=3_600_000) as slow:
        client = Client()
        slow.answer(client)
        await slow.disk.begun.get()
        await asyncio.sleep(0)
        assert client.got == []
        slow.timeout_ms = 1
        assert await client.received(1) == ["ok 10"]


async def test_a_shorter_pause_between_flushes_is_followed_within_the_pause_that_is_under_way() -> None:
    """It was read once, when the broker started."""
    async with scene(sync=False, interval_ms=3_600_000) as later:
        later.disk.append()
        await asyncio.sleep(0)
        assert later.disk.begun.empty()
        later.interval_ms = 1
        assert await later.disk.begun.get() == 100
        later.disk.let_go()


# --- more than one source -----------------------------------------------------------------------------------------


async def test_nothing_is_answered_and_nothing_shown_beyond_a_replica_that_lags() -> None:
    replica = Replica()
    async with scene(replica) as made:
        first, second = Client(), Client()
        made.answer(first)
        made.answer(second)
        made.disk.let_go(10)
        await made.drain()
        assert made.flusher.offset == 200
        assert (made.promises.kept_offset, first.got, second.got, made.shown) == (0, [], [], [])
        assert replica.requests == 2
        for offset in (50, 100, 199):  # half a send is no send
            replica.offset = offset
            made.visibility.advanced()
        assert (made.promises.kept_offset, first.got, second.got) == (199, ["ok"], [])
        assert made.shown[-1] == 199
        assert made.promises.waiting_count == second.held == 1


async def test_a_replica_that_catches_up_keeps_what_waits_for_it() -> None:
    replica = Replica()
    async with scene(replica) as made:
        client = Client()
        for text in ("a", "b", "c"):
            made.answer(client, text)
        made.disk.let_go(10)
        await made.drain()
        settled = asyncio.create_task(made.promises.settled())
        await asyncio.sleep(0)
        replica.offset = 300
        made.visibility.advanced()
        assert client.got == ["a", "b", "c"]
        assert made.shown == [300]
        async with asyncio.timeout(10):
            await settled


async def test_the_disk_may_be_the_one_that_lags() -> None:
    replica = Replica(offset=1_000_000)
    async with scene(replica) as made:
        client = Client()
        made.answer(client)
        await made.disk.begun.get()
        made.visibility.advanced()
        assert (client.got, made.shown) == ([], [])
        made.disk.let_go()
        assert await client.received(1) == ["ok"]
        assert made.shown == [100]


@pytest.mark.parametrize(("disk_is_late", "code"), [(False, REPLICA_LATE), (True, LATE)])
async def test_a_late_source_has_its_own_code(disk_is_late: bool, code: int) -> None:
    replica = Replica()
    async with scene(replica) as made:
        client = Client()
        made.answer(client)
        await made.disk.begun.get()
        if not disk_is_late:
            made.disk.let_go(10)
            await made.drain()
        with capture_logs() as logs:
            made.timeout_ms = replica.patience_ms = 1
            assert await client.received(1) == [f"ok {code}"]
        event = "store.flush_slow" if disk_is_late else "replica.late"
        assert [(entry["event"], entry["peer"]) for entry in logs] == [(event, "client")]
        assert (client.held, made.shown) == (0, [])


async def test_each_source_is_waited_for_as_long_as_it_says() -> None:
    """The disk is late as well, and has more time."""
    async with scene(Replica(timeout_ms=1)) as made:
        client = Client()
        made.answer(client)
        await made.disk.begun.get()
        assert await client.received(1) == [f"ok {REPLICA_LATE}"]


async def test_a_replica_that_leaves_is_not_waited_for_any_more() -> None:
    """By decision of somebody: a replica that merely lags stays."""
    replica = Replica()
    async with scene(replica) as made:
        client = Client()
        made.answer(client)
        made.disk.let_go(10)
        await made.drain()
        assert client.got == []
        made.promises.sources = (made.flusher,)
        made.visibility.advanced()
        assert client.got == ["ok"]
        assert made.shown == [100]


async def test_a_replica_without_waiting_for_the_disk() -> None:
    """Synchronous replication with asynchronous flush is the one source alone."""
    replica = Replica()
    async with scene(replica, sync=False) as made:
        client = Client()
        made.answer(client)
        assert (client.got, made.shown) == ([], [])
        replica.offset = 100
        made.visibility.advanced()
        assert client.got == ["ok"]
        assert made.shown == [100]
        assert made.disk.begun.empty()


async def test_a_failure_of_the_disk_is_final_for_every_source() -> None:
    replica = Replica()
    async with scene(replica) as made:
        client = Client()
        made.answer(client)
        await made.disk.begun.get()
        made.disk.has_failed = True  # of another file, met by another thread
        made.disk.let_go()
        replica.offset = 100
        made.visibility.advanced()
        assert client.got == []
        made.fail(OSError(5, "Input/output error"))
        assert client.got == ["ok 14"]
        with pytest.raises(StorePoisoned):
            await made.promises.settled()


async def test_what_waits_when_the_broker_stops_is_told_what_it_lacks() -> None:
    """A send, and who waits to be able to answer."""
    replica = Replica()
    async with scene(replica) as made:
        client = Client()
        made.answer(client)
        made.disk.let_go(10)
        await made.drain()
        settled = asyncio.create_task(made.promises.settled())
        await asyncio.sleep(0)
        made.promises.close()
        made.promises.give_up()
        assert client.got == [f"ok {REPLICA_LATE}"]
        with pytest.raises(NotYetSafe) as refused:
            await settled
        assert refused.value.code == REPLICA_LATE
        assert (client.held, made.shown) == (0, [])


async def test_who_answers_waits_no_longer_than_a_send_and_others_do() -> None:
    replica = Replica(timeout_ms=1)
    async with scene(replica, sync=False) as made:
        made.disk.append()
        patient = asyncio.create_task(made.promises.settled())
        with pytest.raises(NotYetSafe):
            await made.promises.settled(in_time=True)
        assert not patient.done()
        replica.offset = made.disk.end_offset
        made.visibility.advanced()
        await patient


# --- masters by election ------------------------------------------------------------------------------------------


class Seat:
    """Whether this broker is the master."""

    is_master = True

    def __call__(self) -> bool:
        return self.is_master


def elected(disk: Disk, seat: Seat, *replicas: Replica) -> Promises:
    return Promises(replicas, disk, meter=BrokerStats("c", 0), may_answer=seat)


async def test_nothing_is_answered_with_success_once_another_may_be_master() -> None:
    disk, replica, seat, client = Disk(), Replica(), Seat(), Client()
    promises = elected(disk, seat, replica)
    disk.append()
    assert not promises.are_kept()
    promises.promise(Answer(client, "ok", 1))
    settled = asyncio.create_task(promises.settled())
    await asyncio.sleep(0)
    replica.offset = disk.end_offset
    seat.is_master = False
    promises.advanced()
    assert client.got == [f"ok {FAILED}"]
    with pytest.raises(NotMaster):
        await settled
    seat.is_master = True  # over is over
    assert promises.is_over
    with pytest.raises(NotMaster):
        promises.are_kept()
    with pytest.raises(NotMaster):
        await promises.settled()


@pytest.mark.parametrize("count", [0, 1])
async def test_what_would_be_answered_at_once_is_not_either(count: int) -> None:
    disk, seat = Disk(), Seat()
    promises = elected(disk, seat, *[Replica()] * count)
    assert promises.are_kept()
    seat.is_master = False
    with pytest.raises(NotMaster):
        promises.are_kept()


async def test_who_waits_to_answer_is_told_soon_that_there_is_another_master() -> None:
    """Also where no send waits beside it."""
    disk, seat = Disk(), Seat()
    promises = elected(disk, seat, Replica(timeout_ms=20))
    disk.append()
    promises.start()
    settled = asyncio.create_task(promises.settled())
    await asyncio.sleep(0)
    seat.is_master = False
    with pytest.raises(NotMaster):
        await settled
    promises.close()


async def test_who_waits_is_told_soon_that_there_is_another_master() -> None:
    """Without a word of a slave."""
    disk, seat, client = Disk(), Seat(), Client()
    promises = elected(disk, seat, Replica(timeout_ms=20))
    disk.append()
    promises.start()
    promises.promise(Answer(client, "ok", 1))
    seat.is_master = False
    assert await client.received(1) == [f"ok {FAILED}"]
    promises.close()
