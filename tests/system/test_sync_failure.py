"""A disk that fails under the real broker, by strace in the n-th system call of each kind of file.

A failed sync, or a file that cannot be made, is final: nothing is acknowledged after it, the process is gone within a
second with exit code 74 and one error line that names what and where, and nothing acknowledged is lost. A full disk is
waited out.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_broker.main import EXIT_DISK_FAILED
from aerobee_proto.codes import ResponseCode
from engines import engine_of, need_engine
from plain_remoting import wait_until
from programs import ProgramError
from system.kills import (
    BATCH_TOPIC,
    CONNECTION_LOST,
    BrokerProcess,
    Ledger,
    Settings,
    batches,
    check_closed_store,
    make_load_topics,
    send_one,
    singles,
    start,
    verify,
)
from system.running import Talker, talking, text_of

pytestmark = [pytest.mark.slow, pytest.mark.spread]

ACKS_MAX: Final = 20_000
# Files that the load does not fill, where a test has to know their names.
LARGE: Final = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 2_000_000,
    "maxIndexNum": 100_000,
}
GONE_WITHIN_S: Final = 3.0  # one second, and more for a busy machine and its tracer
EIO_TEXT: Final = "Input/output error"


@pytest.fixture(scope="module", autouse=True)
def _strace() -> None:
    """Have strace, and be allowed to use it, or skip; in CI it must be there."""
    reason = _no_strace()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def _no_strace() -> str | None:
    if shutil.which("strace") is None:
        return "`strace` is not on PATH: it makes system calls of the broker fail"
    tried = subprocess.run(
        [*tracer("fdatasync", "EIO", "1"), "true"], capture_output=True, text=True, check=False
    )
    return f"strace cannot trace here: {tried.stderr.strip()}" if tried.returncode else None


def tracer(call: str, error: str, when: str, *paths: Path) -> list[str]:
    """Words that run a program whose `call` fails with `error`, each thread counting its own calls; only those on
    `paths`, if any are given."""
    words = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={call}"]
    words += [word for path in paths for word in ("-P", str(path))]
    return [*words, "-e", f"inject={call}:error={error}:when={when}", "--"]


async def prepare(store: Path, settings: Settings) -> Ledger:
    """A store with some messages in every kind of file, stopped in order."""
    ledger = Ledger.of(0)
    broker = await start(store, settings)
    try:
        async with talking(broker.port) as one, talking(broker.port) as other:
            await make_load_topics(one)
            load = asyncio.gather(singles(one, ledger), batches(other, ledger))
            await ledger.acknowledgements(300)
            await ledger.silence()
            broker.program.process.terminate()
            assert await broker.ended() == 0
            await load
    finally:
        broker.program.kill()
    return ledger


async def fail(store: Path, ledger: Ledger, settings: Settings, words: Sequence[str]) -> dict[str, Any]:
    """Let the disk fail under load and prove how the broker ends; what it said, and `gone_after_s` when it served."""
    try:
        broker = await start(store, settings, prefix=words)
    except ProgramError as failed:
        code, lines = failed.args[1], _events(failed.args[0])
        (logged,) = [line for line in lines if line["level"] == "error"]
    else:
        code, lines = await _load_until_gone(broker, ledger)
        (logged,) = [line for line in lines if line["level"] == "error"]
        logged["gone_after_s"] = time.time() - datetime.fromisoformat(logged["timestamp"]).timestamp()
        assert logged["event"] == "store.disk_failed"
        assert logged["what"] in {"commit log", "consume queue", "index", "checkpoint", "store folder"}
        assert str(store) in logged["path"]
        assert lines[-1]["event"] == "broker.stopped"
        _none_beyond(ledger, logged["flushed_offset"])
    assert code == EXIT_DISK_FAILED
    assert (store / "abort").exists()
    return dict(logged)


async def _load_until_gone(broker: BrokerProcess, ledger: Ledger) -> tuple[int, list[dict[str, Any]]]:
    ledger.begin_cycle()
    try:
        gone = asyncio.create_task(broker.ended())
        async with asyncio.timeout(60):
            with suppress(*CONNECTION_LOST):
                async with talking(broker.port) as one, talking(broker.port) as other:
                    load = asyncio.gather(singles(one, ledger), batches(other, ledger))
                    enough = asyncio.create_task(ledger.acknowledgements(ACKS_MAX))
                    await asyncio.wait({gone, enough}, return_when=asyncio.FIRST_COMPLETED)
                    assert not enough.done(), "the disk should have failed by now"
                    enough.cancel()
                    await load
            code = await gone
    finally:
        end_group(broker)
    assert {answer.code for answer in ledger.refused} <= {ResponseCode.SERVICE_NOT_AVAILABLE}
    return code, broker.events()


def end_group(broker: BrokerProcess) -> None:
    """The tracer and what it traces."""
    with suppress(ProcessLookupError):
        os.killpg(broker.program.pid, signal.SIGKILL)
    broker.program.kill()


def traced(broker: BrokerProcess) -> int:
    """Process id of the broker under its tracer, which blocks signals to itself."""
    pid = broker.program.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _none_beyond(ledger: Ledger, flushed_offset: int) -> None:
    """No message was acknowledged that the log's last good sync did not cover."""
    beyond = [place for place in ledger.owed.values() if place.physical_offset >= flushed_offset]
    assert beyond == []


async def prove_nothing_lost(store: Path, ledger: Ledger, settings: Settings) -> None:
    """Start on a sound disk: everything owed is there, and the broker serves on."""
    broker = await start(store, settings)
    try:
        async with talking(broker.port) as one, talking(broker.port) as other:
            await verify(one, ledger)
            ledger.begin_cycle()
            load = asyncio.gather(singles(one, ledger), batches(other, ledger))
            await ledger.acknowledgements(100)
            await ledger.silence()
            broker.program.process.terminate()
            assert await broker.ended() == 0
            await load
    finally:
        broker.program.kill()
    assert not ledger.refused
    assert not (store / "abort").exists()
    check_closed_store(store, settings)


# --- syncs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 10, 16, 30, 60])
async def test_the_nth_sync_of_a_thread_fails(tmp_path: Path, number: int) -> None:
    """The first ones are those of recovery and of the first checkpoint."""
    store = tmp_path / "store"
    settings = {"sendEngine": engine_of(number)}
    ledger = await prepare(store, settings)
    logged = await fail(store, ledger, settings, tracer("fdatasync", "EIO", str(number)))
    assert EIO_TEXT in logged["reason"]
    assert str(store) in logged.get("path", logged["reason"])
    await prove_nothing_lost(store, ledger, settings)


FILES = {
    "commit log": ("commitlog/*", "3"),
    "commit log, later": ("commitlog/*", "20"),
    "consume queue": (f"consumequeue/{BATCH_TOPIC}/0/*", "3"),
    "index": ("index/*", "2"),
    "checkpoint": ("checkpoint", "7"),
    "checkpoint, its second half": ("checkpoint", "8"),
}


@pytest.mark.parametrize(("pattern", "when"), FILES.values(), ids=FILES)
async def test_a_sync_of_each_kind_of_file_fails(
    tmp_path: Path, pattern: str, when: str, request: pytest.FixtureRequest
) -> None:
    store = tmp_path / "store"
    settings = LARGE | {"sendEngine": engine_of(int(when))}
    ledger = await prepare(store, settings)
    known = sorted(store.glob(pattern))
    logged = await fail(store, ledger, settings, tracer("fdatasync", "EIO", when, *known))
    assert logged["what"] == request.node.callspec.id.split(",")[0]
    assert Path(logged["path"]) in known
    assert EIO_TEXT in logged["reason"]
    await prove_nothing_lost(store, ledger, settings)


# --- files that cannot be made ------------------------------------------------------------------------------------


MAKING = {
    "a read-only file system": ("fallocate", "EROFS", "2+", ()),
    "an error of the device": ("fallocate", "EIO", "3+", ()),
    "a lost permission": (
        "openat",
        "EACCES",
        "1+",
        [f"commitlog/{number * 65536:020d}" for number in range(40)],
    ),
    "a folder that cannot be synced": ("fsync", "EIO", "2+", ("commitlog",)),
}


@pytest.mark.parametrize(("call", "error", "when", "names"), MAKING.values(), ids=MAKING)
async def test_a_file_that_cannot_be_made_is_final_like_a_failed_sync(
    tmp_path: Path, call: str, error: str, when: str, names: Sequence[str]
) -> None:
    store = tmp_path / "store"
    settings = {"sendEngine": engine_of(len(call))}
    ledger = await prepare(store, settings)
    paths = [store / name for name in names if not (store / name).is_file()]
    logged = await fail(store, ledger, settings, tracer(call, error, when, *paths))
    assert logged["event"] == "store.disk_failed"
    await prove_nothing_lost(store, ledger, settings)


# One of each place that ends the broker: the thread that syncs the log, the one that syncs the rest, a file to be made.
ENDS = {
    "commit log": ("fdatasync", "20", "commitlog/*"),
    "consume queue": ("fdatasync", "3", f"consumequeue/{BATCH_TOPIC}/0/*"),
    "a file that cannot be made": ("fallocate", "3+", ""),
}


@pytest.mark.alone
@pytest.mark.parametrize(("call", "when", "pattern"), ENDS.values(), ids=ENDS)
async def test_the_process_is_gone_within_a_second(
    tmp_path: Path, call: str, when: str, pattern: str
) -> None:
    store = tmp_path / "store"
    settings = LARGE if pattern else {}
    ledger = await prepare(store, settings)
    known = sorted(store.glob(pattern)) if pattern else []
    logged = await fail(store, ledger, settings, tracer(call, "EIO", when, *known))
    assert logged["gone_after_s"] < GONE_WITHIN_S


@pytest.mark.parametrize("engine", ["python", "native"])
async def test_a_failed_write_call_is_final_too(tmp_path: Path, engine: str) -> None:
    """Large records go to the log by a write call, as does the first in a page; others through its map."""
    store = tmp_path / "store"
    settings = LARGE | {"sendEngine": need_engine(engine)}
    ledger = await prepare(store, settings)
    known = sorted(store.glob("commitlog/*"))
    broker = await start(store, settings, prefix=tracer("pwrite64", "EIO", "2", *known))
    try:
        async with talking(broker.port) as client:
            # The first to a queue makes it ready: only those behind it are the native engine's.
            small = ledger.sent[ledger.new("Single-A", 0)]
            while len(small.body) > 100:  # too large for the map
                small = ledger.sent[ledger.new("Single-A", 0)]
            properties = text_of({"KEYS": small.key, "UNIQ_KEY": "0A" * 16})
            assert (
                await client.put("Single-A", small.body, properties=properties)
            ).code == ResponseCode.SUCCESS
            answer = await client.put("Single-A", bytes(200_000), properties=properties)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await broker.ended() == EXIT_DISK_FAILED
    finally:
        end_group(broker)
    (logged,) = [line for line in broker.events() if line["level"] == "error"]
    assert (logged["event"], logged["what"]) == ("store.disk_failed", "commit log")
    assert Path(logged["path"]) in known
    assert EIO_TEXT in logged["reason"]
    await prove_nothing_lost(store, ledger, settings)


async def test_a_settings_file_that_cannot_be_synced_is_told_and_written_again(tmp_path: Path) -> None:
    """Not final: each try writes a new file whole, so that nothing depends on pages that may have been dropped."""
    store = tmp_path / "store"
    ledger = await prepare(store, {})
    beside = store / "config" / "topics.json.tmp"
    broker = await start(store, {}, prefix=tracer("fsync", "EIO", "1", beside))
    try:
        async with talking(broker.port) as client:
            answer = await client.make_topic("Kept", 5)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert EIO_TEXT in (answer.remark or "")
            await asyncio.to_thread(
                wait_until,
                lambda: "Kept" in (store / "config" / "topics.json").read_text(),
                "topics.json has the topic",
            )
        os.kill(traced(broker), signal.SIGKILL)
        await broker.ended()
    finally:
        end_group(broker)
    logged = {line["event"] for line in broker.events() if line["level"] == "error"}
    assert logged <= {"broker.config_not_saved"}
    ledger.made_topics["Kept"] = 5
    await prove_nothing_lost(store, ledger, {})


@pytest.mark.parametrize("engine", ["python", "native"])
async def test_a_full_disk_is_waited_out(tmp_path: Path, engine: str) -> None:
    """Sends are refused with the protocol's code, reads go on, and the service resumes by itself."""
    store = tmp_path / "store"
    settings = {"sendEngine": need_engine(engine)}
    ledger = await prepare(store, settings)
    broker = await start(store, settings, prefix=tracer("fallocate", "ENOSPC", "2..4"))
    try:
        async with talking(broker.port) as one, talking(broker.port) as other, asyncio.timeout(60):
            ledger.begin_cycle()
            refused, resumed = await _until_refused_and_resumed(one, other, ledger)
            assert refused > 0
            assert resumed > 0
            await verify(other, ledger)
            ledger.begin_cycle()
            load = asyncio.gather(singles(one, ledger), batches(other, ledger))
            await ledger.acknowledgements(500)
            await ledger.silence()
            assert not ledger.refused
            os.kill(traced(broker), signal.SIGTERM)
            assert await broker.ended() == 0
            await load
    finally:
        end_group(broker)
    lines = broker.events()
    assert {line["event"] for line in lines if line["level"] == "warning"} >= {"store.disk_full_met"}
    assert [line for line in lines if line["level"] == "error"] == []
    assert not (store / "abort").exists()
    check_closed_store(store, settings)


RESUMED_COUNT = 1000  # messages: five files of a queue


async def _until_refused_and_resumed(one: Talker, other: Talker, ledger: Ledger) -> tuple[int, int]:
    """Send one by one until some sends were refused and then so many were not that the loop has made new files itself:
    those that threads make ahead count failures of their own. How many were refused, and how many not since."""
    # What is acknowledged while its queue has no room for the entry is shown when there is room again.
    before = dict(ledger.owed)
    refused = resumed = 0
    while resumed < RESUMED_COUNT:
        answer = await send_one(one, ledger)
        if answer.code == ResponseCode.SUCCESS:
            resumed += refused > 0
            continue
        resumed = 0
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no room for" in (answer.remark or "")
        if refused == 0:
            await verify(other, ledger, before)  # while nothing can be stored
            assert (await send_one(one, ledger)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        refused += 1
    return refused, resumed
