"""Every system call about a file of the store has one outcome when it fails: the broker goes on, refuses, or ends."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker import main
from aerobee_remoting.systemd import ServiceNotifier
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
