"""Messages that are not in memory: what others notice of their readers, and how fast these catch up.

    .venv/bin/python bench/cold.py [--only asking|sends|catchup] [--mib 256] [--seconds 8] [--rounds 3] [--official]

asking   how long the system takes to say whether pages are in memory: `mincore`, and a read with RWF_NOWAIT
sends    one sender, one message at a time: latency while nobody reads, and while four consumers read what is not in
         memory from a slow disk; ours with threads for cold reads, ours without (coldReadThreads=0), and the official
         broker's with --official. The broker has a core of its own, sender and readers share another (see `cores`), on
         which the sender comes first, where that is allowed: it waits for the broker, not for what readers do with
         their messages
catchup  one consumer that reads everything, from a disk that is not slowed, after the pages were dropped: a queue whose
         records lie one behind the other, and one of four whose records alternate, for which four times as much is read

The disk is slowed by a cgroup of this program's own (blkio.throttle of version 1, needs root): 20 MB/s and 100 reads a
second, 10 ms each. Where that is not allowed, `sends` says so and leaves it as it is. Stores go below the folder for
temporary files (TMPDIR), which has to be on a disk.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.cores import first_two  # noqa: E402

import official  # noqa: E402  # found by the path above
import ours  # noqa: E402
from aerobee_store.disk.page_cache import address_of, is_resident  # noqa: E402
from programs import Server  # noqa: E402

MIB: Final = 1 << 20
READERS: Final = 4
BODY: Final = b"x" * 4096
COUNT: Final = 32  # messages of one pull
BYTES_PER_S: Final = 20_000_000
READS_PER_S: Final = 100
BLKIO: Final = Path("/sys/fs/cgroup/blkio")
WORDS: Final = struct.Struct(">II")
SETTINGS: Final = {
    "flushDiskType": "ASYNC_FLUSH",
    "maxTransferCountOnMessageInDisk": COUNT,
    "maxTransferBytesOnMessageInDisk": 256 << 10,
}


# --- a client that waits ------------------------------------------------------------------------------------------


class Peer:
    """One connection, one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._opaque = 0

    def ask(self, code: int, ext: str, body: bytes = b"") -> tuple[str, int]:
        """The header of the answer as text, and how long its body is."""
        self._opaque += 1
        header = (
            f'{{"code":{code},"extFields":{{{ext}}},"flag":0,"language":"JAVA","opaque":{self._opaque},'
            '"serializeTypeCurrentRPC":"JSON","version":475}'
        ).encode()
        self._socket.sendall(WORDS.pack(4 + len(header) + len(body), len(header)) + header + body)
        size, head = WORDS.unpack(self._exactly(8))
        rest = self._exactly(size - 4)
        length = head & 0xFFFFFF
        return rest[:length].decode(), size - 4 - length

    def _exactly(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) != size:
            raise ConnectionError("closed by the broker")
        return found

    def send(self, topic: str, queue: int) -> str:
        """Store one message."""
        return self.ask(
            310,
            f'"a":"bench","b":"{topic}","c":"TBW102","d":"{READERS}","e":"{queue}","f":"0","g":"1763700000000","h":"0",'
            '"i":"TAGS\\u0001a","j":"0","k":"false","m":"false"',
            BODY,
        )[0]

    def pull(self, topic: str, queue: int, offset: int) -> tuple[int, int]:
        """Where to go on, and how many bytes came."""
        header, size = self.ask(
            11,
            f'"consumerGroup":"cold","topic":"{topic}","queueId":"{queue}","queueOffset":"{offset}",'
            f'"maxMsgNums":"{COUNT}","sysFlag":"4","commitOffset":"0","suspendTimeoutMillis":"0",'
            '"subscription":"*","subVersion":"0","expressionType":"TAG"',
        )
        at = header.index('"nextBeginOffset":"') + len('"nextBeginOffset":"')
        return int(header[at : header.index('"', at)]), size


# --- stores that nobody has in memory ---------------------------------------------------------------------------------


def start(maker: str, folder: Path, nameserver: Server, **settings: Any) -> Server:
    config = {**SETTINGS, **settings}
    if maker == "ours":
        return ours.start_broker(folder, nameserver.address, config=config, forked=False)
    return official.start_broker(folder, nameserver.address, config=config, patient=False)


def fill(address: str, mib: int, queues: int = READERS) -> int:
    """Messages of 4 KiB in so many queues in turn; how many there are in each."""
    count = mib * MIB // len(BODY) // queues
    peer = Peer(address)
    for number in range(count * queues):
        header = peer.send("Cold", number % queues)
        if '"code":0' not in header:
            raise RuntimeError(header)
    return count


def drop(folder: Path) -> None:
    """Take what is on the disk out of memory. Nobody may have it mapped."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > mmap.PAGESIZE:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@contextlib.contextmanager
def slow_disk(folder: Path) -> Iterator[Callable[[int], None] | None]:
    """Slows the disk of a folder for those processes that it is called with; None where that is not allowed."""
    group = BLKIO / f"aerobee-cold-{os.getpid()}"
    device = folder.stat().st_dev
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        name = f"{os.major(device)}:{os.minor(device)}"
        (group / "blkio.throttle.read_bps_device").write_text(f"{name} {BYTES_PER_S}")
        (group / "blkio.throttle.read_iops_device").write_text(f"{name} {READS_PER_S}")
        yield lambda pid: _write(group / "cgroup.procs", str(pid))
    finally:
        for _ in range(50):  # the last process of it may be ending
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


# --- what is measured ----------------------------------------------------------------------------------------------


def read_cold(address: str, queue: int, count: int, seconds: float, done: Any) -> None:
    """One consumer; tells how many bytes it got."""
    peer, offset, size = Peer(address), 0, 0
    end = time.monotonic() + seconds
    while offset < count and time.monotonic() < end:
        offset, found = peer.pull("Cold", queue, offset)
        size += found
    done.put(size)


def send_latencies(address: str, seconds: float) -> list[float]:
    """Milliseconds of each of the sends, two hundred a second."""
    peer, found = Peer(address), []
    end = time.monotonic() + seconds
    with precedence():
        while time.monotonic() < end:
            began = time.perf_counter()
            header = peer.send("Hot", 0)
            found.append((time.perf_counter() - began) * 1000)
            if '"code":0' not in header:
                raise RuntimeError(header)
            time.sleep(0.005)
    return found


@contextlib.contextmanager
def precedence() -> Iterator[None]:
    """This process runs before others on its core, where that is allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure_sends(name: str, maker: str, settings: dict[str, Any], args: Any) -> None:
    """Quiet and beside readers, several times; the medians."""
    context = multiprocessing.get_context("spawn")
    cores = first_two()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nameserver = stack.enter_context(
            ours.start_nameserver(forked=False) if maker == "ours" else official.start_nameserver(folder)
        )
        with start(maker, folder, nameserver, **settings) as broker:
            count = fill(broker.address, args.mib)
        throttle = stack.enter_context(slow_disk(folder))
        rows = []
        for _ in range(args.rounds):
            drop(folder)
            with contextlib.nullcontext() if cores is None else cores.starting():
                started = start(maker, folder, nameserver, **settings)
            with started as broker:
                if throttle is not None:
                    throttle(broker.pid)
                send_latencies(broker.address, 1)
                quiet = send_latencies(broker.address, args.seconds)
                done: Any = context.Queue()
                readers = [
                    context.Process(
                        target=read_cold, args=(broker.address, queue, count, args.seconds + 3, done)
                    )
                    for queue in range(READERS)
                ]
                for reader in readers:
                    reader.start()
                time.sleep(1.5)
                busy = send_latencies(broker.address, args.seconds)
                size = sum(done.get() for _ in readers)
                for reader in readers:
                    reader.join()
                rows.append(
                    (
                        percentile(quiet, 0.99),
                        percentile(busy, 0.99),
                        max(busy),
                        size / MIB / (args.seconds + 3),
                    )
                )
        quiet_p99, busy_p99, busy_max, rate = (statistics.median(row[at] for row in rows) for at in range(4))
        slow = "" if throttle is not None else "  (the disk is as fast as it is: no cgroup may be made)"
        print(
            f"{name:24} p99 quiet {quiet_p99:7.2f} ms, beside {READERS} cold readers {busy_p99:7.2f} ms"
            f" = {busy_p99 / quiet_p99:5.1f} x, longest {busy_max:7.1f} ms; they read {rate:5.1f} MiB/s{slow}"
        )


def measure_catchup(name: str, maker: str, settings: dict[str, Any], args: Any) -> None:
    """How fast one consumer reads a queue when nothing of it is in memory, and when all of it is."""
    for queues in (1, READERS):
        measure_catchup_of(name, maker, settings, args, queues)


def measure_catchup_of(name: str, maker: str, settings: dict[str, Any], args: Any, queues: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nameserver = stack.enter_context(
            ours.start_nameserver(forked=False) if maker == "ours" else official.start_nameserver(folder)
        )
        with start(maker, folder, nameserver, **settings) as broker:
            count = fill(broker.address, args.mib, queues)
        rates: dict[str, list[float]] = {"cold": [], "warm": []}
        for _ in range(args.rounds):
            drop(folder)
            with start(maker, folder, nameserver, **settings) as broker:
                for kind, found in rates.items():
                    peer, size, began = Peer(broker.address), 0, time.perf_counter()
                    for queue in range(queues):
                        offset = 0
                        while offset < count:
                            offset, got = peer.pull("Cold", queue, offset)
                            size += got
                        if kind == "cold" and queue == 0:
                            break  # the others lie on the same pages
                    found.append(size / 1e6 / (time.perf_counter() - began))
        cold, warm = (statistics.median(found) for found in rates.values())
        print(
            f"{name:24} one consumer, one pull at a time, queues: {queues}; {cold:6.0f} MB/s of messages cold,"
            f" {warm:6.0f} MB/s warm"
        )


def measure_asking() -> None:
    """Microseconds of a question about so many pages that are there."""
    size = 4 * MIB
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(size))
        file.flush()
        fd = file.fileno()
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as made:
            address = address_of(memoryview(made))
            for pages in (1, 8, 64, 256):
                length = pages * mmap.PAGESIZE
                buffer = bytearray(length)
                asked = _best_us(lambda length=length: is_resident(address, length))  # type: ignore[misc]
                line = f"{pages:4} pages: mincore {asked:6.2f} us"
                if hasattr(os, "RWF_NOWAIT"):
                    try:
                        read = _best_us(lambda buffer=buffer: os.preadv(fd, [buffer], 0, os.RWF_NOWAIT))  # type: ignore[misc]
                        line += f", preadv with RWF_NOWAIT {read:6.2f} us"
                    except OSError as refused:
                        line += f", preadv with RWF_NOWAIT: {refused.strerror}"
                print(line)


def _best_us(call: Callable[[], object], times: int = 5000) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["asking", "sends", "catchup"])
    parser.add_argument("--mib", type=int, default=256, help="messages in the store")
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--official", action="store_true", help="the official broker, too")
    args = parser.parse_args()
    sides: list[tuple[str, str, dict[str, Any]]] = [
        ("ours", "ours", {}),
        ("ours, coldReadThreads=0", "ours", {"coldReadThreads": 0}),
    ]
    if args.official:
        sides.append(("official", "official", {}))
    if args.only in (None, "asking"):
        measure_asking()
    for name, maker, settings in sides:
        if args.only in (None, "sends"):
            measure_sends(name, maker, settings, args)
        if args.only in (None, "catchup"):
            measure_catchup(name, maker, settings, args)


if __name__ == "__main__":
    main()
