"""Every system call about a file of the store has one outcome when it fails: the broker goes on, refuses, or ends.

Each call of each row fails in every run, with the first error of its row; with the other errors by `./dev test --long`.
"""

import ast
import asyncio
import errno
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from aerobee_broker import main
from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_service.program.systemd import ServiceNotifier
from aerobee_store.faults.outcomes import OUTCOMES, PASSED_OVER, Failing, Outcome, Phase
from engines import engine_of
from system.failing_calls import failing, recorded_calls
from system.running import Talker, broker_config, talking, text_of

TIMER = {"timer_wheel_enable": True, "mapped_file_size_timer_log": 52 * 100}
# A log file takes three messages, an index file two: there is always one to be made.
SIZES = {
    "mapped_file_size_commit_log": 1 << 17,
    "max_index_num": 4,
    "flush_interval_consume_queue": 100,
    "clean_resource_interval": 100,
}
PAUSES = {  # of what is done or looked at again, in the unit of each
    "aerobee_broker.settings.config_files.RETRY_S": 0.1,
    "aerobee_broker.schedule.timer_delivery.CHECKPOINT_S": 0.1,
    "aerobee_broker.messages.visibility.DISPATCH_RETRY_S": 0.1,
    "aerobee_broker.messages.visibility.RESOURCES_RETRY_S": 0.1,
    "aerobee_broker.upkeep.file_watching.LOOK_INTERVAL_S": 0.05,
    "aerobee_store.store._FULL_RETRY_MS": 100,
    # After that the process ends at once, and it is this one here: who waits for the stop says so before.
    "aerobee_broker.main.STOP_AFTER_FAILURE_S": 60,
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is so at once: these tests are about the outcome, and waited for seconds at each row."""
    for name, pause in PAUSES.items():
        monkeypatch.setattr(name, pause)
    for name in ("fsync", "fdatasync"):  # no power is cut here, and a busy disk takes its time
        monkeypatch.setattr(os, name, lambda _: None)


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
async def serving(
    root: Path, *, ahead_ms: int = 0, settings_file: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[Serving, Talker]]:
    """The program, whose clock is that much ahead."""
    notifier = Ready()
    made = partial(Broker, clock=lambda: round(time.time() * 1000) + ahead_ms)
    with capture_logs() as logs, patch.object(main, "Broker", made):
        config = broker_config(root, **SIZES, **TIMER, **settings)
        task = asyncio.create_task(main.serve(config, notifier, settings_file))
        ready = asyncio.ensure_future(notifier.is_ready.wait())
        async with asyncio.timeout(30):
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        broker = Serving(logs, task)
        assert notifier.is_ready.is_set(), [entry for entry in logs if entry["log_level"] == "error"]
        (served,) = broker.events("broker.ready")
        try:
            async with talking(int(served["address"].rpartition(":")[2])) as client:
                yield broker, client
        finally:
            if not task.done():
                await broker.stopped()


def delayed(seconds: int = 3600) -> str:
    return text_of({"TIMER_DELIVER_MS": str(round(time.time() * 1000) + seconds * 1000)})


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of everything, closed in order."""
    root = tmp_path_factory.mktemp("stored") / "store"

    async def fill() -> None:
        async with serving(root) as (broker, client):
            for _ in range(3):  # more than one file of the queue
                assert (await client.put_batch("New0", [BatchEntry(0, b"many", "")] * 500)).code == 0
            for number in range(12):
                assert await work(client, number % 2) == ResponseCode.SUCCESS
            await broker.until(lambda: checkpoint_written(root))
            assert await broker.stopped() == 0

    asyncio.run(fill())
    return root


@pytest.fixture
def root(stored: Path, tmp_path: Path) -> Path:
    """A store of its own for each test."""
    return Path(shutil.copytree(stored, tmp_path / "store"))


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
    (logged,) = [entry for entry in broker.logs if entry["log_level"] == "error"]
    assert logged["event"] == "store.disk_failed"
    assert file in logged["path"]
    assert (tmp_path / "abort").exists()


async def test_a_timer_file_that_cannot_be_made_is_a_failed_disk(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        with failing("open", errno.EIO, lambda path: "timerlog" in path, count=None):
            assert (await client.put("T", b"later", properties=delayed())).code == 0
            async with asyncio.timeout(30):
                assert await broker.task == main.EXIT_DISK_FAILED
    assert [e["event"] for e in broker.logs if e["log_level"] == "error"] == ["store.disk_failed"]


# --- the table ----------------------------------------------------------------------------------------------------

# Of a pull of what may be deleted.
NO_FAILURE = {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
Drive = Callable[[Talker, int], Awaitable[set[int]]]
HOUR_MS = 3_600_000


def cases(phases: set[Phase], firsts: tuple[int, ...]) -> Iterator[Any]:
    for row in OUTCOMES:
        for number, call in enumerate(row.calls):
            for position, error in enumerate(row.errors):
                # All calls with one error, one call with all errors; a later call once.
                if row.phase not in phases or (number and position):
                    continue
                for first in firsts if number == position == 0 else firsts[:1]:
                    name = f"{row.name}-{call}-{errno.errorcode[error]}-{first}"
                    marks = [pytest.mark.long] if position else []
                    yield pytest.param(row, call, error, first, id=name, marks=marks)


def concerns(row: Failing, root: Path, parts: tuple[str, ...] | None = None) -> Callable[[str], bool]:
    """Whether a path is one of the row's, or of some of its parts."""

    def holds(path: str) -> bool:
        if path != str(root) and not path.startswith(f"{root.parent}/"):
            return False
        below = path.removeprefix(str(root)) or "/"
        return any(re.search(part, below) for part in parts or row.parts)

    return holds


async def work(client: Talker, number: int) -> int:
    """Something of everything: a message of a new topic, so a queue and a table, and one for the timer; the code."""
    await client.put(f"New{number}", bytes(600), properties=delayed())
    # With a key of its own, as clients give it: so the native engine takes it.
    return (await client.put(f"New{number}", bytes(40_000), properties=text_of({"UNIQ_KEY": "0A" * 16}))).code


async def serve_some(client: Talker, number: int) -> set[int]:
    # The file of a queue is mapped when it is written to for the second time.
    return {await work(client, number), await work(client, number)}


async def read_some(client: Talker, number: int) -> set[int]:
    codes = {await work(client, number)}
    # What one reads is kept for the next; who looks for a tag reads further than that each time.
    for tags in ("*", "missing"):
        codes |= {(await client.pull("New0", subscription=tags)).code} - NO_FAILURE
    return codes


async def clean_some(client: Talker, number: int) -> set[int]:
    assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
    return {await work(client, number)}


async def delete_some(client: Talker, number: int) -> set[int]:
    await client.put(f"New{number}")
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": f"New{number}"})
    return {await work(client, number + 1_000)}


async def set_some(client: Talker, number: int) -> set[int]:
    body = f"fileReservedTime={number}\n".encode()
    return {(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code, await work(client, number)}


DRIVES: dict[Phase, Drive] = {
    Phase.SERVING: serve_some,
    Phase.READING: read_some,
    Phase.CLEANING: clean_some,
    Phase.DELETING: delete_some,
    Phase.CONFIGURING: set_some,
}


@pytest.mark.parametrize(("row", "call", "error", "first"), list(cases(set(DRIVES), (1, 3))))
async def test_every_failing_call_has_the_outcome_that_is_declared(
    root: Path, row: Failing, call: str, error: int, first: int
) -> None:
    """The n-th call fails, and every one after it: the first with the Python engine for sends, a later one with the
    native one."""
    refused = {
        Outcome.REFUSED: ResponseCode.SERVICE_NOT_AVAILABLE,
        Outcome.REQUEST_REFUSED: ResponseCode.SYSTEM_ERROR,
    }.get(row.outcome)
    file = root.parent / "broker.conf"
    file.write_text("brokerName=test-a\n")
    ahead_ms = 100 * HOUR_MS if row.phase is Phase.CLEANING else 0  # else what is delayed is due at once
    engine = engine_of(first // 2)
    async with serving(root, ahead_ms=ahead_ms, settings_file=file, send_engine=engine) as (broker, client):
        assert await work(client, 0) == ResponseCode.SUCCESS
        codes: set[int] = set()
        with failing(call, error, concerns(row, root), first=first, count=None) as made:
            async with asyncio.timeout(60):
                for number in count(2):
                    # A file that is made ahead is missed before a send is refused for it.
                    is_seen = refused in codes if refused else True
                    is_told = not row.event or broker.events(row.event)
                    if broker.task.done() or (is_seen and is_told and made.failed >= 3):
                        break
                    try:
                        codes |= await DRIVES[row.phase](client, number)
                    except (ConnectionError, EOFError):
                        break
                    await asyncio.sleep(0.02)
                if row.outcome is Outcome.FINAL:
                    assert await broker.task == main.EXIT_DISK_FAILED
        assert made.failed
        assert broker.events(row.event) or not row.event
        if row.outcome is Outcome.FINAL:
            errors = [entry["event"] for entry in broker.logs if entry["log_level"] == "error"]
            assert errors == [row.event]
            assert (root / "abort").exists()
            return
        assert codes - {ResponseCode.SUCCESS} == ({refused} if refused else set())
        if row.event == "store.disk_use_unknown":
            assert len(broker.events(row.event)) == 1
        if row.outcome is Outcome.OTHERWISE:
            assert not [entry for entry in broker.logs if entry["log_level"] == "error"]
        async with asyncio.timeout(60):
            while await work(client, 1_000_000) != ResponseCode.SUCCESS:  # noqa: ASYNC110  # room has no event
                await asyncio.sleep(0.05)
        assert await broker.stopped() == 0


def starts(*outcomes: Outcome) -> Iterator[Any]:
    for row in OUTCOMES:
        if row.phase in (Phase.STARTING, Phase.STARTING_ANEW) and row.outcome in outcomes:
            for call in row.calls:
                for part in row.parts:
                    for error in row.errors:
                        name = f"{row.name}-{call}-{part}-{errno.errorcode[error]}"
                        marks = [pytest.mark.long] if error != row.errors[0] else []
                        yield pytest.param(row, call, part, error, id=name, marks=marks)


def test_each_outcome_of_a_start_is_made_happen() -> None:
    of_starts = {row.outcome for row in OUTCOMES if row.phase in (Phase.STARTING, Phase.STARTING_ANEW)}
    assert of_starts == {Outcome.NOT_STARTED, Outcome.RETRIED}


@pytest.mark.parametrize(("row", "call", "part", "error"), list(starts(Outcome.RETRIED)))
async def test_a_start_goes_on_without_what_it_can_do_without_and_says_so(
    root: Path, row: Failing, call: str, part: str, error: int
) -> None:
    with failing(call, error, concerns(row, root, (part,)), count=None) as made:
        async with serving(root) as (broker, client):
            assert await work(client, 0) == ResponseCode.SUCCESS
            assert made.failed
            (logged,) = broker.events(row.event)
            assert logged["log_level"] == "warning"
            assert await broker.stopped() == 0
    async with serving(root) as (broker, client):
        assert len(await client.records("New0")) >= 1500
        assert not broker.events(row.event)
        assert await broker.stopped() == 0


@pytest.mark.parametrize(("row", "call", "part", "error"), list(starts(Outcome.NOT_STARTED)))
async def test_a_start_that_cannot_read_the_store_is_refused_and_changes_nothing(
    root: Path, row: Failing, call: str, part: str, error: int
) -> None:
    if row.phase is Phase.STARTING_ANEW:
        (root / "abort").write_text("1")
    concerned = concerns(row, root, (part,))
    with capture_logs() as logs, failing(call, error, concerned, count=None) as made:
        async with asyncio.timeout(30):
            code = await main.serve(broker_config(root, **SIZES, **TIMER), Ready())
    assert code == main.EXIT_DISK_FAILED
    assert made.failed
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [row.event]
    async with serving(root) as (broker, client):
        assert await work(client, 0) == ResponseCode.SUCCESS
        assert len(await client.records("New0")) >= 1500
        assert await broker.stopped() == 0


@pytest.mark.parametrize(("row", "call", "error", "first"), list(cases({Phase.STOPPING}, (1,))))
async def test_a_call_that_fails_at_a_stop_has_the_outcome_that_is_declared(
    root: Path, row: Failing, call: str, error: int, first: int
) -> None:
    async with serving(root) as (broker, client):
        assert await work(client, 0) == ResponseCode.SUCCESS
        with failing(call, error, concerns(row, root), first=first, count=None) as made:
            code = await broker.stopped()
        assert made.failed
        (logged,) = broker.events(row.event)
        if row.outcome is Outcome.FINAL:
            assert code == main.EXIT_DISK_FAILED
            assert [entry for entry in broker.logs if entry["log_level"] == "error"] == [logged]
        else:
            assert code == 0
    async with serving(root) as (broker, client):
        assert len(await client.records("New0")) >= 1500
        assert await broker.stopped() == 0


# --- nothing is left out ------------------------------------------------------------------------------------------

# What pathlib asks of the system.
OF_PATHS = {
    "exists": "stat",
    "is_dir": "stat",
    "is_file": "stat",
    "iterdir": "scandir",
    "glob": "scandir",
    "open": "open",
    "read_bytes": "open",
    "read_text": "open",
    "write_bytes": "open",
    "write_text": "open",
    **{name: name for name in ("stat", "lstat", "unlink", "rename", "rmdir", "mkdir", "chmod", "touch")},
}
# Of `os` and `mmap`, not about files that anything rests on.
NOT_OF_FILES = {
    "getpid",
    "kill",
    "strerror",
    "sysconf",
    "major",
    "minor",
    "_exit",
    "geteuid",
    "fdopen",
    "dup",
    "set_inheritable",
}
SOURCES = Path(__file__).parents[2]
# Those that make calls about files of the store or the settings; all others go through them.
DOORS = {
    "io.py",
    "extents.py",
    "disk_space.py",
    "file_maps.py",
    "file_system.py",
    "page_cache.py",
    "queue_files.py",
    "whole_files.py",
}


def calls_of(source: Path) -> Iterator[tuple[str, int]]:
    """Every system call in a module, by the name it has in `os`, and its line."""
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, ast.unparse(node.func.value)
        if owner in ("os", "mmap", "fcntl", "shutil"):
            yield name, node.lineno
        elif name in OF_PATHS and source.name in DOORS and owner not in ("self", "self._files", "self._io"):
            yield OF_PATHS[name], node.lineno


def test_there_is_no_call_without_a_row() -> None:
    """By reading the source: whoever adds a call says what becomes of the broker when it fails."""
    known = {call for row in OUTCOMES for call in row.calls} | PASSED_OVER.keys() | NOT_OF_FILES
    of_settings = [
        SOURCES / "proto/aerobee_service/settings" / name for name in ("settings_edit.py", "whole_files.py")
    ]
    # What looks into a folder without a running broker has no broker to stop.
    running = [source for source in (SOURCES / "broker").rglob("*.py") if source.parent.name != "offline"]
    modules = [*running, *of_settings]
    found = [(source, name, line) for source in modules for name, line in calls_of(source)]
    assert len(found) > 40
    unknown = [f"{source}:{line}: {name}" for source, name, line in found if name not in known]
    assert not unknown
    elsewhere = {source.name for source, name, _ in found if name not in NOT_OF_FILES} - DOORS
    assert not elsewhere


async def test_every_call_that_a_broker_makes_about_its_files_is_in_a_row(root: Path) -> None:
    """By looking: a start, messages, deletions, a changed setting, a stop, and a start after a crash."""
    names = {call for row in OUTCOMES for call in row.calls} | PASSED_OVER.keys()
    with recorded_calls(tuple(sorted(names - {"close"})), root) as made:
        async with serving(root, ahead_ms=100 * HOUR_MS) as (broker, client):
            for number, drive in enumerate([read_some, clean_some, delete_some, read_some]):
                assert await drive(client, number) == {ResponseCode.SUCCESS}
            await broker.until(lambda: bool(broker.events("store.files_deleted")))
            assert await broker.stopped() == 0
        (root / "abort").write_text("1")
        async with serving(root) as (broker, client):
            assert await work(client, 0) == ResponseCode.SUCCESS
            assert await broker.stopped() == 0
    assert len(made) > 50
    without = {
        f"{call} {re.sub(r'[0-9]+', 'N', path)}"
        for call, path in made
        if call not in PASSED_OVER
        and not any(call in row.calls and any(re.search(p, path) for p in row.parts) for row in OUTCOMES)
    }
    assert not without, "\n".join(sorted(without))


def test_the_table_is_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for row in OUTCOMES:
        assert table_line(row) in page, table_line(row)
    for call, why in PASSED_OVER.items():
        assert f"| {call} | {why} |" in page


def table_line(row: Failing) -> str:
    names = ", ".join(errno.errorcode[error] for error in row.errors)
    event = f"`{row.event}`" if row.event else ""
    when = row.phase.value
    return f"| {row.name} ({', '.join(row.calls)}) | {when} | {row.files} | {names} | {row.outcome.value} | {event} |"
