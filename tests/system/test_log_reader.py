"""Programs whose output nobody reads: they start, serve and stop all the same."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ours
from attacks import ping
from programs import free_port

pytestmark = pytest.mark.slow

PATIENCE_S = 90.0  # a busy machine takes ten times what a quiet one does


def nameserver(folder: Path, port: int) -> list[str]:
    listen = f"127.0.0.1:{port}"
    return [
        "nameserver",
        "--listen",
        listen,
        "--set",
        f"kvConfigPath={folder}/kv",
        *words(metricsPromExporterPort=0),
    ]


def broker(folder: Path, port: int) -> list[str]:
    return ["broker", *broker_words(folder, port)]


def supervisor(folder: Path, port: int) -> list[str]:
    return ["broker", "--workers", "2", *broker_words(folder, port)]


def broker_words(folder: Path, port: int) -> list[str]:
    return words(
        storePathRootDir=folder / "store",
        bindAddress="127.0.0.1",
        brokerIP1="127.0.0.1",
        listenPort=port,
        haListenPort=port + 1,
        metricsExporterType="DISABLE",
        mappedFileSizeCommitLog=1 << 20,
        mappedFileSizeConsumeQueue=20_000,
        maxHashSlotNum=500,
        maxIndexNum=2000,
    )


def words(**settings: object) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def filled_pipe() -> tuple[int, int]:
    """The ends of a pipe that takes nothing more."""
    inlet, outlet = os.pipe()
    again = os.open(f"/proc/self/fd/{outlet}", os.O_WRONLY | os.O_NONBLOCK)  # the other stays one that waits
    try:
        while True:
            os.write(again, b"x" * 4096)
    except BlockingIOError:
        return inlet, outlet
    finally:
        os.close(again)


@pytest.mark.skipif(
    sys.platform != "linux", reason="a pipe is opened again by /proc/self/fd, which Linux has alone"
)
@pytest.mark.parametrize(
    ("program", "is_read"), [(nameserver, False), (broker, False), (broker, True), (supervisor, False)]
)
async def test_a_program_whose_output_nobody_reads_serves_and_stops(
    tmp_path: Path, program: Callable[[Path, int], list[str]], is_read: bool
) -> None:
    """Each of them stood still for ever with its first line. What was said meanwhile is there for who reads later, up
    to the last line."""
    inlet, outlet = filled_pipe()
    port = free_port(1, 10, 11, 20, 21)
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(tmp_path / "notify"))
    notified.setblocking(False)
    process = await asyncio.create_subprocess_exec(
        *ours.command(),
        *program(tmp_path, port),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=outlet,
        stderr=outlet,
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
    )
    os.close(outlet)
    try:
        async with asyncio.timeout(PATIENCE_S):
            loop = asyncio.get_running_loop()
            while b"READY=1" not in await loop.sock_recv(notified, 4096):
                pass
            await is_answered(port)
            reading = asyncio.create_task(asyncio.to_thread(read_all, inlet)) if is_read else None
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            if reading is not None:
                said = await reading
                assert b'"broker.ready"' in said
                assert b'"broker.stopped"' in said.splitlines()[-1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        notified.close()
        os.close(inlet)


def read_all(inlet: int) -> bytes:
    pieces = []
    while piece := os.read(inlet, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


async def is_answered(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ping(7))
    size = int.from_bytes(await reader.readexactly(4), "big")
    assert b'"opaque":7' in await reader.readexactly(size)
    writer.close()
    await writer.wait_closed()
