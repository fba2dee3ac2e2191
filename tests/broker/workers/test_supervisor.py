"""Workers that come and go, as small programs that say what workers say."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.workers import restarts, supervisor
from aerobee_broker.workers.layout import WorkerPlan, plan_workers
from aerobee_broker.workers.supervisor import Supervisor, Worker
from aerobee_service.program.systemd import ServiceNotifier

# A worker: ready, then until the supervisor's end is gone or SIGTERM comes. Words say what it does differently.
PROGRAM = """
import os, signal, sys, time
end = int(os.environ["AEROBEE_WORKER"].split()[0])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
what = sys.argv[1]
if what.startswith("code"):
    os._exit(int(what[4:]))
if what != "unready":
    os.write(end, b"READY=1\\nSTATUS=serving")
if what == "once" and not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if what == "topic":
    os.write(end, b'TOPIC={"topicName":"Orders"}')
if what == "hanging":
    time.sleep(600)
os.set_blocking(end, True)
while (message := os.read(end, 65536)):
    if what == "hears":
        open(sys.argv[2], "wb").write(message)
        os.write(end, b"STATUS=heard")
    os.write(end, b"WATCHDOG=1")
"""


class Notices(ServiceNotifier):
    """What systemd would hear."""

    def __init__(self) -> None:
        super().__init__({}, os.getpid())
        self.said: list[str] = []

    def ready(self, status: str) -> bool:
        self.said.append(f"ready: {status}")
        return True

    def status(self, text: str) -> bool:
        self.said.append(text)
        return True


class Service:
    """A supervisor at work."""

    def __init__(self, supervisor_of: Supervisor, notices: Notices, logs: list[Any]) -> None:
        self.workers = supervisor_of.workers
        self.notices = notices
        self.logs = logs
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(supervisor_of.run(self.stop))

    def events(self, name: str) -> list[Any]:
        return [entry for entry in self.logs if entry["event"] == name]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that happens in this event loop."""
        async with asyncio.timeout(90):
            while not condition():  # noqa: ASYNC110  # processes come and go, with no event for each
                await asyncio.sleep(0.005)

    async def end(self) -> int:
        self.stop.set()
        return await self.task


@asynccontextmanager
async def service(
    tmp_path: Path, *whats: str, silent_s: float = 60.0, python: str = sys.executable
) -> AsyncIterator[Service]:
    """One worker for each word; all of them are gone afterwards."""
    config = BrokerConfig(store_path_root_dir=tmp_path, workers=len(whats))

    def command(plan: WorkerPlan) -> list[str]:
        return [python, "-I", "-S", "-c", PROGRAM, whats[plan.number - 1], str(tmp_path / "note")]

    notices = Notices()
    with capture_logs() as logs:
        made = Supervisor(
            plan_workers(config), command, service="broker-a", notifier=notices, silent_s=silent_s
        )
        running = Service(made, notices, logs)
        try:
            yield running
        finally:
            if not running.task.done():
                await running.end()
    assert all(worker.process is None for worker in made.workers)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "PAUSES_S", (0.01, 0.02, 0.05, 0.2, 60.0))
    monkeypatch.setattr(supervisor, "SIGNAL_S", 0.01)


def all_ready(workers: list[Worker]) -> bool:
    return all(worker.is_ready for worker in workers)


async def test_the_service_is_ready_with_its_workers_and_ends_with_them(tmp_path: Path) -> None:
    async with service(tmp_path, "sound", "sound") as found:
        await found.until(lambda: found.events("workers.ready"))
        assert all_ready(found.workers)
        assert "ready: 2 of 2 workers serve" in found.notices.said
        assert await found.end() == 0
        assert [one.exit_code for one in found.workers] == [0, 0]
        assert not found.events("worker.ended")
        assert not found.events("worker.left_down")


async def test_one_that_is_killed_comes_back_and_the_others_stay(tmp_path: Path) -> None:
    async with service(tmp_path, "sound", "sound") as found:
        await found.until(lambda: all_ready(found.workers))
        pids = [one.process.pid for one in found.workers if one.process is not None]
        os.kill(pids[1], signal.SIGKILL)
        await found.until(lambda: found.workers[1].starts == 2 and all_ready(found.workers))
        assert found.workers[0].process is not None
        assert (found.workers[0].starts, found.workers[0].process.pid) == (1, pids[0])
        (ended,) = found.events("worker.ended")
        assert (ended["worker"], ended["exit_code"]) == ("broker-a-2", -9)
        assert "1 of 2 workers serve; broker-a-2: ended with -9" in found.notices.said
        assert await found.end() == 0


@pytest.mark.parametrize("code", [74, 66, 2, 0])
async def test_one_that_a_person_has_to_look_at_takes_only_itself(tmp_path: Path, code: int) -> None:
    async with service(tmp_path, "sound", f"code{code}", "sound") as found:
        await found.until(lambda: found.events("worker.left_down") and found.events("workers.ready"))
        (left,) = found.events("worker.left_down")
        assert (left["worker"], left["exit_code"]) == ("broker-a-2", code)
        assert [one.is_ready for one in found.workers] == [True, False, True]
        assert found.workers[1].starts == 1
        # Whoever supervises the service must not start it again by itself.
        assert await found.end() == code


async def test_a_service_without_a_worker_ends_as_one_broker_would(tmp_path: Path) -> None:
    async with service(tmp_path, "code74", "code74") as found:
        assert await found.task == 74
    async with service(tmp_path, "code1", "code1") as found:
        assert await found.task == 1
        assert len(found.events("workers.none_started")) == 1
        assert all(one.starts <= 4 for one in found.workers)
    async with service(tmp_path, "code74", "code1") as found:
        assert await found.task == 74


async def test_one_that_keeps_ending_says_little_and_holds_nobody_up(tmp_path: Path) -> None:
    async with service(tmp_path, "sound", "code1") as found:
        await found.until(lambda: found.workers[1].starts == 5)
        await found.until(lambda: len(found.events("worker.ended")) == 5)
        assert [entry["restart_in_s"] for entry in found.events("worker.ended")] == [
            0.01,
            0.02,
            0.05,
            0.2,
            60.0,
        ]
        assert found.workers[0].starts == 1
        assert len(found.logs) <= 3 + 2 * 5 + 1  # two lines for each start, then none for a minute
        assert await found.end() == 1


async def test_one_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    async with service(tmp_path, "sound", "sound", python=str(tmp_path / "absent")) as found:
        assert await found.task == 1
        assert len(found.events("worker.start_failed")) >= 2


async def test_a_topic_of_one_is_passed_on_to_the_others(tmp_path: Path) -> None:
    async with service(tmp_path, "hears", "topic") as found:
        await found.until(lambda: found.workers[0].status == "heard")
        assert (tmp_path / "note").read_bytes() == b'TOPIC={"topicName":"Orders"}'


async def test_one_without_a_sign_of_life_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ABORT_S", 0.01)
    async with service(tmp_path, "hanging", silent_s=0.6) as found:
        await found.until(lambda: found.workers[0].starts >= 2)
        assert found.events("worker.silent")[0]["worker"] == "broker-a-1"
        assert found.events("worker.ended")[0]["exit_code"] in (-signal.SIGABRT, -signal.SIGKILL)


async def test_a_start_that_says_nothing_for_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ABORT_S", 0.01)
    monkeypatch.setattr(supervisor, "START_SILENT_S", 0.3)
    async with service(tmp_path, "sound", "unready", silent_s=0.6) as found:
        await found.until(lambda: found.workers[1].starts >= 2)
        assert {entry["worker"] for entry in found.events("worker.silent")} >= {"broker-a-2"}


async def test_one_that_does_not_stop_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.05)
    async with service(tmp_path, "sound", "sound") as found:
        await found.until(lambda: all_ready(found.workers))
        process = found.workers[1].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        assert await found.end() == 1
        assert [entry["pid"] for entry in found.events("worker.stop_cut_short")] == [process.pid]
        assert [one.exit_code for one in found.workers] == [0, -9]


async def test_a_supervisor_that_breaks_leaves_no_worker_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(tmp_path, "sound", "sound") as found:
        await found.until(lambda: all_ready(found.workers))
        processes = [one.process for one in found.workers if one.process is not None]

        def broken(*_: object) -> float:
            raise RuntimeError("ours")

        monkeypatch.setattr(restarts.Restarts, "pause_after", broken)
        processes[1].kill()
        with pytest.raises(RuntimeError, match="ours"):
            await found.task
        assert await processes[0].wait() == 0  # its link has ended
        found.workers[0].process = None
