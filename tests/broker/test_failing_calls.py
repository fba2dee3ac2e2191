"""Every system call about a file of the store has one outcome when it fails: the broker goes on, refuses, or ends."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker import main
from aerobee_proto.codes import ResponseCode
from aerobee_remoting.systemd import ServiceNotifier
from aerobee_store.outcomes import OUTCOMES, Failing, Outcome
from system.failing_calls import failing
from system.running import Talker, broker_config, talking, text_of

TIMER = {"timer_wheel_enable": True, "mapped_file_size_timer_log": 52 * 100}


class Ready(ServiceNotifier):
    """Says when the broker serves."""

    def __init__(self) -> None:
        super().__init__({}, os.getpid())
        self.is_ready = asyncio.Event()

    def ready(self, status: str) -> bool:
        self.is_ready.set()
        return super().ready(status)


class Serving:
    """A broker of this process as the program runs it."""

    def __init__(self, logs: list[Any], task: asyncio.Task[int]) -> None:
        self.logs = logs
        self.task = task

    def events(self, name: str) -> list[Any]:
        return [entry for entry in self.logs if entry["event"] == name]

    async def until(self, holds: Callable[[], bool], within_s: float = 30) -> None:
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110  # files and logs have no event
                await asyncio.sleep(0.02)

    async def stopped(self) -> int:
        """The exit code after an orderly stop, or of the failure."""
        if not self.task.done():
            os.kill(os.getpid(), 15)
        async with asyncio.timeout(30):
            return await self.task


@asynccontextmanager
async def serving(root: Path, **settings: Any) -> AsyncIterator[tuple[Serving, Talker]]:
    notifier = Ready()
    with capture_logs() as logs:
        task = asyncio.create_task(main.serve(broker_config(root, **TIMER, **settings), notifier))
        async with asyncio.timeout(30):
            await notifier.is_ready.wait()
        broker = Serving(logs, task)
        (ready,) = broker.events("broker.ready")
        async with talking(int(ready["address"].rpartition(":")[2])) as client:
            yield broker, client
        if not task.done():
            await broker.stopped()


def delayed(seconds: int = 3600) -> str:
    return text_of({"TIMER_DELIVER_MS": str(round(time.time() * 1000) + seconds * 1000)})


def checkpoint_written(root: Path) -> bool:
    path = root / "config" / "timercheck"
    return path.exists() and int.from_bytes(path.read_bytes()[8:16], "big") > 0


@pytest.mark.parametrize("call", ["rename", "fsync", "open"])
@pytest.mark.parametrize("first", [1, 2])
async def test_a_timer_checkpoint_that_cannot_be_written_is_tried_again(
    tmp_path: Path, call: str, first: int
) -> None:
    """EIO of the rename of config/timercheck ended the broker with exit code 1, so that it was started again."""
    async with serving(tmp_path) as (broker, client):
        with failing(
            call, errno.EIO, lambda path: "timercheck.tmp" in path, first=first, count=3
        ) as call_made:
            while call_made.failed < 3:
                seen = call_made.seen
                assert (await client.put("T", b"later", properties=delayed())).code == 0
                await broker.until(lambda seen=seen: call_made.seen > seen)  # type: ignore[misc]
        assert (await client.put("T", b"later", properties=delayed())).code == 0
        await broker.until(lambda: checkpoint_written(tmp_path))
        assert broker.events("broker.timer_checkpoint_waits")
        assert not [entry for entry in broker.logs if entry["log_level"] == "error"]
        assert await broker.stopped() == 0


@pytest.mark.parametrize("file", ["timerlog", "timerwheel"])
async def test_a_timer_file_that_cannot_be_synced_is_a_failed_disk(tmp_path: Path, file: str) -> None:
    async with serving(tmp_path) as (broker, client):
        with failing("fdatasync", errno.EIO, lambda path: file in path):
            assert (await client.put("T", b"later", properties=delayed())).code == 0
            async with asyncio.timeout(30):
                assert await broker.task == main.EXIT_DISK_FAILED
    (told,) = [entry for entry in broker.logs if entry["log_level"] == "error"]
    assert told["event"] == "store.disk_failed"
    assert file in told["path"]
    assert (tmp_path / "abort").exists()


async def test_a_timer_file_that_cannot_be_made_is_a_failed_disk(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        with failing("open", errno.EIO, lambda path: "timerlog" in path, count=None):
            assert (await client.put("T", b"later", properties=delayed())).code == 0
            async with asyncio.timeout(30):
                assert await broker.task == main.EXIT_DISK_FAILED
    assert [e["event"] for e in broker.logs if e["log_level"] == "error"] == ["store.disk_failed"]


# --- the table ----------------------------------------------------------------------------------------------------

CASES = [
    pytest.param(
        row,
        call,
        error,
        first,
        id=f"{row.name}-{call}-{errno.errorcode[error]}-{first}",
        marks=[pytest.mark.slow] if position else [],
    )
    for row in OUTCOMES
    for number, call in enumerate(row.calls)
    for position, error in enumerate(row.errors)
    for first in (1, 3)
    if row.outcome is not Outcome.NOT_STARTED
    # All calls with one error, one call with all errors; the third call once.
    if (number == 0 or position == 0) and (first == 1 or number == position == 0)
]


async def work(client: Talker, number: int) -> int:
    """Something of everything: a message of a new topic, so a queue and a table, and one for the timer; the code."""
    await client.put(f"New{number}", bytes(600), properties=delayed())
    return (await client.put(f"New{number}", bytes(40_000))).code


@pytest.mark.parametrize(("row", "call", "error", "first"), CASES)
async def test_every_failing_call_has_the_outcome_that_is_declared(
    tmp_path: Path, row: Failing, call: str, error: int, first: int
) -> None:
    """The n-th call fails, and every one after it."""
    sizes = {"mapped_file_size_commit_log": 1 << 17, "flush_interval_consume_queue": 100}
    is_refusal = row.outcome not in (Outcome.FINAL, Outcome.RETRIED)
    async with serving(tmp_path, **sizes) as (broker, client):
        assert await work(client, 0) == ResponseCode.SUCCESS
        codes: set[int] = set()
        with failing(
            call, error, lambda path: any(part in path for part in row.parts), first=first, count=None
        ) as made:
            async with asyncio.timeout(60):
                for number in count(1):
                    # A file that is made ahead is missed before a send is refused for it.
                    is_seen = codes - {ResponseCode.SUCCESS} if is_refusal else True
                    if broker.task.done() or (is_seen and made.failed >= 3 and broker.events(row.event)):
                        break
                    try:
                        codes.add(await work(client, number))
                    except (ConnectionError, EOFError):
                        break
                    await asyncio.sleep(0.05)
                if row.outcome is Outcome.FINAL:
                    assert await broker.task == main.EXIT_DISK_FAILED
        assert made.failed
        assert broker.events(row.event)
        if row.outcome is Outcome.FINAL:
            errors = [entry["event"] for entry in broker.logs if entry["log_level"] == "error"]
            assert errors == [row.event]
            assert (tmp_path / "abort").exists()
            return
        if row.outcome is Outcome.RETRIED:
            assert codes == {ResponseCode.SUCCESS}
        else:
            assert codes - {ResponseCode.SUCCESS} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        async with asyncio.timeout(60):
            while await work(client, 1_000_000) != ResponseCode.SUCCESS:  # noqa: ASYNC110  # room has no event
                await asyncio.sleep(0.05)
        assert await broker.stopped() == 0


STARTS = [
    pytest.param(row, call, error, first, id=f"{call}-{errno.errorcode[error]}-{first}")
    for row in OUTCOMES
    if row.outcome is Outcome.NOT_STARTED
    for call in row.calls
    for error in row.errors
    for first in ((1,) if call in ("flock", "lockf") else (1, 2))
]


@pytest.mark.parametrize(("row", "call", "error", "first"), STARTS)
async def test_a_start_that_cannot_read_the_store_is_refused_and_changes_nothing(
    tmp_path: Path, row: Failing, call: str, error: int, first: int
) -> None:
    async with serving(tmp_path) as (broker, client):
        assert await work(client, 0) == ResponseCode.SUCCESS
        assert await broker.stopped() == 0
    concerns = failing(
        call, error, lambda path: any(part in path for part in row.parts), first=first, count=None
    )
    with capture_logs() as logs, concerns as made:
        async with asyncio.timeout(30):
            code = await main.serve(broker_config(tmp_path, **TIMER), Ready())
    assert code == main.EXIT_DISK_FAILED
    assert made.failed
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [row.event]
    async with serving(tmp_path) as (broker, client):
        assert await work(client, 0) == ResponseCode.SUCCESS
        assert len(await client.records("New0")) >= 2
        assert await broker.stopped() == 0


def test_the_table_is_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for row in OUTCOMES:
        names = ", ".join(errno.errorcode[error] for error in row.errors)
        line = f"| {row.name} ({', '.join(row.calls)}) | {row.files} | {names} | {row.outcome.value} | `{row.event}` |"
        assert line in page, line
