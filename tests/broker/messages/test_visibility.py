"""What readers see, and when: after the answers, once, with keys and entries that follow a little later."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EMFILE
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.messages import visibility as module
from aerobee_broker.messages.promises import Promises
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.stats import BrokerStats
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import OutOfResources, StoreFull
from aerobee_store.terms.messages import Arrival

ARRIVAL: Arrival = ("T", 0, 1, b"entries")


class Keys:
    """Keys that are to be indexed."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.waiting = 0
        self.build_errors: list[Exception] = []
        self.built = asyncio.Event()
        self.on_disk: NotInMemory | None = None
        self.lacks_file = False
        self.making, self.may_make = threading.Event(), threading.Event()

    def make_file(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.making.set()
        self.may_make.wait(10)
        self.calls.append("file")
        self.lacks_file = False

    @property
    def backlog(self) -> int:
        return self.waiting

    @backlog.setter
    def backlog(self, count: int) -> None:
        self.waiting = count

    def missing(self) -> NotInMemory | None:
        return self.on_disk

    def build(self, limit: int) -> int:
        if self.build_errors:
            raise self.build_errors.pop(0)
        self.calls.append("index")
        done = min(limit, self.waiting)
        self.waiting -= done
        if not self.waiting:
            self.built.set()
        return done


class Log:
    """A store that keeps a list of what it was asked for."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.end_offset = 0
        self.has_failed = False
        self.full_until = 0
        self.showing = self
        self.begun_count = 0
        self.begun_max: list[int] = []  # of each call that began some
        self.beginning: list[int] = []  # offsets with which a queue begins that were not shown
        self.keys = Keys(calls)
        self.confirm_errors: list[Exception] = []
        self.came = asyncio.Event()

    def confirm(self, offset: int, *, notify: bool = True, begun_max: int = 0) -> list[Arrival]:
        if self.confirm_errors:
            raise self.confirm_errors.pop(0)
        while self.is_behind(offset):
            shown = self.beginning.pop(0)
            self.begun_count += 1
            self.begun_max.append(begun_max)
            if begun_max and self.is_behind(offset):
                offset = shown
                break
        self.calls.append(f"confirm {offset}" + (" and tell" if notify else ""))
        self.came.set()
        return [ARRIVAL] if notify else []

    def keeps(self, offset: int) -> None:
        self.calls.append(f"keeps {offset}")

    def is_behind(self, offset: int) -> bool:
        return bool(self.beginning) and self.beginning[0] <= offset


class Disk:
    """A source that has what the test says."""

    late_code = 10

    def log_late(self, peer: str, message_count: int) -> None:
        pass

    def timeout_ms(self) -> int:
        return 60_000

    offset = 0

    def request(self) -> None:
        return


class Answer:
    peer, count = "client", 1

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def keep(self) -> None:
        self.calls.append("answer")

    def refuse(self, code: int) -> None:
        self.calls.append(f"refuse {code}")


class Waiters:
    """Requests that wait, or not."""

    def __init__(self, calls: list[str], name: str, *, are_waiting: bool = True) -> None:
        self.calls, self.name, self.waiting = calls, name, [self] * are_waiting

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        assert list(arrivals) == [ARRIVAL]
        self.calls.append(self.name)


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sync: bool) -> None:
        for name in (
            "DISPATCH_RETRY_S",
            "RESOURCES_RETRY_S",
            "INDEX_RETRY_S",
            "INDEX_PAUSE_S",
            "INDEX_WAIT_S",
        ):
            monkeypatch.setattr(module, name, 0.001)
        self.calls: list[str] = []
        self.log, self.disk = Log(self.calls), Disk()
        sources = (self.disk,) if sync else ()
        self.promises = Promises(sources, self.log, meter=BrokerStats("c", 0))
        self.failures: list[tuple[str, Exception]] = []
        self.failed = asyncio.Event()
        self.brought: list[tuple[NotInMemory, Callable[[], None]]] = []
        self.asked = asyncio.Event()
        self.worker = ThreadPoolExecutor(1)
        self.visibility = Visibility(
            self.log, self.promises, bring=self._bring, worker=self.worker, on_failure=self._failed
        )

    def _bring(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        self.brought.append((missing, then))
        self.asked.set()

    def _failed(self, name: str, failure: Exception) -> None:
        self.failures.append((name, failure))
        self.failed.set()

    def append(self) -> None:
        self.log.end_offset += 100
        self.visibility.appended()

    async def called(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.calls) < count:
                self.log.came.clear()
                await self.log.came.wait()


@pytest.fixture
async def sync(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    made = Scene(monkeypatch, sync=True)
    yield made
    made.visibility.close()


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    made = Scene(monkeypatch, sync=False)
    yield made
    made.visibility.close()


async def test_the_sender_is_answered_before_a_reader_is(sync: Scene) -> None:
    sync.visibility.start([Waiters(sync.calls, "pull"), Waiters(sync.calls, "pop")])
    sync.append()
    assert not sync.promises.are_kept()
    sync.promises.promise(Answer(sync.calls))
    assert sync.calls == []
    sync.disk.offset = 100
    sync.visibility.advanced()
    assert sync.calls == ["answer", "confirm 100 and tell", "pull", "pop"]


async def test_without_a_source_an_append_is_shown_at_once(later: Scene) -> None:
    later.append()
    assert later.promises.are_kept()
    later.append()
    later.visibility.advanced()
    assert later.calls == ["confirm 100", "confirm 200"]


async def test_what_comes_soon_after_is_shown_together(later: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a slave, which has a piece of the log a thousand times a second."""

    def came() -> None:
        later.log.end_offset += 100
        later.visibility.soon()

    later.visibility.start([Waiters(later.calls, "pull")])
    came()
    assert later.calls == ["confirm 100 and tell", "pull"]  # the first one at once
    came()
    came()
    assert len(later.calls) == 2
    await later.called(3)
    assert later.calls[2:] == ["confirm 300 and tell", "pull"]
    monkeypatch.setattr(module, "SOON_S", 600.0)
    monkeypatch.setattr(module, "UNASKED_S", 0.0)  # of whom nobody waits for
    came()
    later.visibility.close()
    assert later.calls[4:] == ["confirm 400 and tell", "pull"]  # the last one at the end
    came()
    assert later.calls[6:] == ["confirm 500 and tell", "pull"]


async def test_reads_of_sends_are_shown_together_while_nobody_waits(
    later: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters, told = Waiters(later.calls, "pull", are_waiting=False), list[str]()
    later.visibility.start([waiters], [lambda: told.append("replicas")])

    def took() -> None:
        later.log.end_offset += 100
        later.visibility.taken()

    took()
    took()
    took()
    assert later.calls == ["confirm 100"]  # the first one at once
    assert len(told) == 3  # replicas do not wait
    await later.called(2)
    assert later.calls[1:] == ["confirm 300"]
    monkeypatch.setattr(module, "TOGETHER_S", 600.0)
    took()
    assert later.calls[2:] == []
    later.visibility.show_waiting()  # somebody is about to look
    later.visibility.show_waiting()
    assert later.calls[2:] == ["confirm 400"]
    took()
    waiters.waiting.append(waiters)
    took()
    assert later.calls[3:] == ["confirm 600 and tell", "pull"]
    waiters.waiting.clear()
    took()
    later.append()  # what is sent in another way shows all
    assert later.calls[5:] == ["confirm 800"]
    took()
    later.visibility.close()
    assert later.calls[6:] == ["confirm 900"]
    took()
    assert later.calls[7:] == ["confirm 1000"]


async def test_what_could_not_be_shown_to_a_reader_is_shown_later(
    later: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader finds what it found before, and nothing breaks its connection."""
    later.visibility.taken()
    later.log.end_offset = 100
    later.visibility.taken()
    later.log.confirm_errors = [OutOfResources(Path("a queue"), EMFILE)]
    later.visibility.show_waiting()
    assert later.calls == []
    later.visibility.show_waiting()
    assert later.calls == ["confirm 100"]
    monkeypatch.setattr(module, "TOGETHER_S", 600.0)
    later.log.end_offset = 200
    later.visibility.taken()
    later.log.confirm_errors = [OSError("a fault")]
    later.visibility.show_waiting()
    assert [name for name, _ in later.failures] == ["taken"]


async def test_nothing_is_collected_for_nobody(sync: Scene) -> None:
    sync.visibility.start([Waiters(sync.calls, "pull", are_waiting=False), Waiters(sync.calls, "pop")])
    sync.append()
    sync.disk.offset = 100
    sync.visibility.advanced()
    assert sync.calls == ["confirm 100 and tell", "pop"]
    sync.visibility.start([Waiters(sync.calls, "pull", are_waiting=False)])
    sync.append()
    sync.disk.offset = 200
    sync.visibility.advanced()
    assert sync.calls[2:] == ["confirm 200"]


async def test_what_is_shown_is_not_shown_again(sync: Scene) -> None:
    sync.append()
    sync.disk.offset = 50
    for _ in range(3):
        sync.visibility.advanced()
        sync.visibility.appended()
    assert sync.calls == ["confirm 50"]


def begin_three_queues(sync: Scene) -> None:
    sync.log.beginning = [100, 200, 300]
    for _ in range(3):
        sync.append()
    sync.disk.offset = 300
    sync.visibility.advanced()


@pytest.mark.parametrize(("took_s", "expected"), [(0.0, 4), (0.0003, 3), (0.0005, 2), (0.01, 2)])
async def test_so_many_queues_begin_in_a_turn_as_take_a_millisecond(
    sync: Scene, monkeypatch: pytest.MonkeyPatch, took_s: float, expected: int
) -> None:
    """Each took 2 ms where the disk had much to do, four of them 8 ms of the event loop."""
    looks = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(looks) % 2 * took_s))
    begin_three_queues(sync)
    await sync.called(3)
    assert sync.log.begun_max == [4, expected, expected]


async def test_queues_begin_one_in_a_turn_of_the_loop(sync: Scene) -> None:
    begin_three_queues(sync)
    assert sync.calls == ["confirm 100"]
    sync.visibility.advanced()  # nothing is shown before the next turn, whoever asks
    assert sync.calls == ["confirm 100"]
    await sync.called(3)
    assert sync.calls == ["confirm 100", "confirm 200", "confirm 300"]
    assert sync.visibility.take_began_s() > 0
    assert sync.visibility.take_began_s() == 0
    sync.append()
    sync.disk.offset = 400
    sync.visibility.advanced()
    assert sync.calls[3:] == ["confirm 400"]
    assert sync.visibility.take_began_s() == 0  # no queue began


async def test_what_is_kept_while_queues_begin_is_found_by_its_place_at_once(sync: Scene) -> None:
    begin_three_queues(sync)
    sync.append()
    sync.disk.offset = 400
    sync.visibility.advanced()
    assert sync.calls == ["confirm 100", "keeps 400"]
    await sync.called(4)
    assert sync.calls[2:] == ["confirm 200", "confirm 400"]


async def test_closed_it_shows_the_queues_that_begin_at_once(sync: Scene) -> None:
    begin_three_queues(sync)
    sync.visibility.close()
    assert sync.calls == ["confirm 100", "confirm 300"]
    assert sync.log.beginning == []


async def test_entries_that_found_no_room_are_tried_again_until_they_do(sync: Scene) -> None:
    sync.log.full_until = 1
    sync.append()
    sync.disk.offset = 100
    sync.visibility.advanced()
    await sync.called(3)
    sync.log.full_until = 0
    tried = len(sync.calls) + 1
    await sync.called(tried)
    await asyncio.sleep(0.02)
    assert sync.calls == ["confirm 100"] * tried


async def test_who_waits_for_what_is_shown_hears_when_there_is_room_again(sync: Scene) -> None:
    """A new master that waits for the tail of the one before heard of the next append alone, which might not come."""
    heard: list[int] = []
    sync.visibility.start((), (lambda: heard.append(sync.log.full_until),))
    sync.log.full_until = 1
    sync.append()
    sync.disk.offset = 100
    sync.visibility.advanced()
    await sync.called(2)
    sync.log.full_until = 0
    await sync.called(len(sync.calls) + 1)
    assert heard[-1] == 0


async def test_keys_are_indexed_in_rounds(later: Scene) -> None:
    later.log.keys.backlog = 2 * module.INDEX_ROUND + 1
    later.append()
    assert later.calls == ["confirm 100"]
    async with asyncio.timeout(10):
        await later.log.keys.built.wait()
    assert later.calls == ["confirm 100", "index", "index", "index"]


async def test_keys_wait_until_the_index_is_in_memory(later: Scene) -> None:
    """A round after a start read each page of the index by itself, and everybody waited for the disk."""
    keys, missing = later.log.keys, NotInMemory([])
    keys.backlog, keys.on_disk = 3, missing
    later.append()
    async with asyncio.timeout(10):
        await later.asked.wait()
    later.append()
    await asyncio.sleep(0.02)
    assert later.calls == ["confirm 100", "confirm 200"]
    ((asked, then),) = later.brought
    assert asked is missing
    then()
    assert later.calls[2:] == ["index"], "whatever is still missing: the disk may have refused it"
    keys.on_disk, keys.backlog = None, 1
    keys.built.clear()
    later.append()
    async with asyncio.timeout(10):
        await keys.built.wait()
    assert len(later.brought) == 1


async def test_the_file_of_the_first_keys_is_made_in_a_thread(later: Scene) -> None:
    """Made in the event loop it held everybody for 20 to 50 ms."""
    keys = later.log.keys
    keys.backlog, keys.lacks_file = 2, True
    keys.may_make.set()
    later.append()
    async with asyncio.timeout(10):
        await keys.built.wait()
    assert later.calls == ["confirm 100", "file", "index"]
    later.worker.shutdown()


async def test_no_keys_are_put_after_the_end(later: Scene) -> None:
    keys = later.log.keys
    keys.backlog, keys.lacks_file = 2, True
    later.append()
    async with asyncio.timeout(10):
        await asyncio.to_thread(keys.making.wait)
    later.visibility.close()
    keys.may_make.set()
    await asyncio.to_thread(later.worker.shutdown)
    await asyncio.sleep(0)
    assert later.calls == ["confirm 100", "file"]


@pytest.mark.parametrize("error", [StoreFull(Path("a file"), 1), OutOfResources(Path("a file"), EMFILE)])
async def test_keys_that_find_no_room_wait(later: Scene, error: Exception) -> None:
    later.log.keys.build_errors = [error]
    later.log.keys.backlog = 1
    with capture_logs() as logs:
        later.append()
        async with asyncio.timeout(10):
            await later.log.keys.built.wait()
    assert [entry["event"] for entry in logs] == ["store.index_behind"]
    assert later.failures == []


async def test_work_that_finds_no_descriptor_is_done_a_little_later(later: Scene) -> None:
    later.log.full_until = 1
    later.append()
    later.log.confirm_errors = [OutOfResources(Path("a file"), EMFILE)]
    with capture_logs() as logs:
        await later.called(2)
    assert [(entry["event"], entry["task"]) for entry in logs] == [("broker.task_delayed", "dispatch")]
    assert later.failures == []


async def test_a_fault_in_work_of_a_timer_is_told(later: Scene) -> None:
    later.log.keys.build_errors = [fault := ValueError("a fault of ours")]
    later.log.keys.backlog = 1
    later.append()
    async with asyncio.timeout(10):
        await later.failed.wait()
    assert later.failures == [("index", fault)]


async def test_closed_it_shows_and_does_nothing_else(later: Scene) -> None:
    later.log.keys.backlog = 1
    later.append()
    later.visibility.close()
    later.append()
    await asyncio.sleep(0.02)
    assert later.calls == ["confirm 100", "confirm 200"]


async def test_a_round_of_keys_comes_when_it_will_be_worth_it(
    later: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round costs much however little it finds. To look ten times whether it is worth it by now woke a broker up."""
    keys, loop = later.log.keys, asyncio.get_running_loop()
    monkeypatch.setattr(module, "INDEX_WAIT_S", 0.05)
    monkeypatch.setattr(module, "INDEX_ROUND", 10**9)
    delays: list[float] = []
    call_later = loop.call_later

    def noted(delay_s: float, *rest: Any) -> asyncio.TimerHandle:
        delays.append(delay_s)
        return call_later(delay_s, *rest)

    monkeypatch.setattr(loop, "call_later", noted)
    async with asyncio.timeout(10):
        for came in (1, 10**9, 1, 1):
            keys.built.clear()
            keys.backlog = came
            later.append()
            await keys.built.wait()
    assert delays == [0.001, 0.05, 0.001, 0.05]
    assert later.calls == [word for at in (100, 200, 300, 400) for word in (f"confirm {at}", "index")]


async def test_few_keys_are_indexed_when_the_last_round_is_long_ago(
    later: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = later.log.keys
    monkeypatch.setattr(module, "INDEX_WAIT_S", 0.05)
    async with asyncio.timeout(10):
        for _ in range(2):
            keys.built.clear()
            keys.backlog = 1
            later.append()
            await keys.built.wait()
    assert later.calls == ["confirm 100", "index", "confirm 200", "index"]
