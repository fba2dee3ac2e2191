"""A nameserver and a broker for a test: in a thread of their own, with a store that goes away.

Touches  one thread with an event loop (uvloop where it is installed), local ports, a temporary folder, and while it
runs where the servers' log events go (`quiet`).

    with Server({"maxMessageSize": 65536}) as server:
        topic = server.new_topic()
        with server.sync_client() as mq: ...
        assert [message.body for message in server.messages(topic)] == [b"17"]

Invariants
- When `start` returns, clients are served, and the nameserver knows the broker.
- When `stop` returns, threads, ports, connections and files are gone.
- The files are small: what is allocated is counted in MiB. Sends are answered before they are on the disk
  (ASYNC_FLUSH): what a test stores ends with the test.
"""

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from aerobee import Client, Message, SendResult
from aerobee.sync import Client as SyncClient
from aerobee_console.servers.local_cluster import LocalCluster, LocalPair
from aerobee_pytest.inside import Inside
from aerobee_pytest.quiet import quiet

__all__ = ["SMALL_STORE", "Pair", "Server"]

T = TypeVar("T")

# Enough for messages of 4 MiB, the largest that a broker takes by default.
SMALL_STORE: Final = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "flushDiskType": "ASYNC_FLUSH",
    "scrubBytesPerSecond": "0",
}
STOP_TIMEOUT_S: Final = 30.0
NAME_CHARS_MAX: Final = 80  # of what a test gives to a topic's name
NOT_FOR_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]+")


class Server:
    """A running nameserver and broker. All methods may be called from any thread."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        """`settings` of the broker under RocketMQ's names, texts or plain values; they win over SMALL_STORE."""
        self._settings = SMALL_STORE | {key: _text(value) for key, value in (settings or {}).items()}
        self._names = count(1)
        # Set by start().
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._reach: _Reach | None = None
        self._outcome: Future[tuple[str, str, str]] = Future()
        self.nameserver = ""  # host:port, what clients are given
        self.broker = ""  # host:port
        self.store = Path()
        self.start_took_ms = 0.0

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start and wait until clients are served. Raises what the servers raise: SettingsError above all."""
        assert self._thread is None, "a Server starts once"
        began = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="aerobee server", daemon=True)
        self._thread.start()
        try:
            self.nameserver, self.broker, store = self._outcome.result()
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            raise
        self.store = Path(store)
        self.start_took_ms = (time.perf_counter() - began) * 1000

    def stop(self) -> None:
        """Stop in order and delete the store. A second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stop is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise RuntimeError(f"the server did not stop within {STOP_TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        """The thread: serve until told to stop; how the start ended goes to `_outcome`."""
        try:
            with (
                quiet(),
                tempfile.TemporaryDirectory(prefix="aerobee-test-", ignore_cleanup_errors=True) as folder,
                asyncio.Runner(loop_factory=_loop_factory()) as runner,
            ):
                runner.run(self._serve(Path(folder)))
        except BaseException as failed:
            if self._outcome.done():
                raise
            self._outcome.set_exception(failed)

    async def _serve(self, folder: Path) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        cluster = self._make_cluster(folder)
        try:
            await cluster.start()
            async with Client(cluster.nameserver) as client:
                self._reach = _Reach(client, _inside(cluster))
                self._outcome.set_result((cluster.nameserver, cluster.broker, str(folder)))
                await self._stop.wait()
        finally:
            self._reach = None
            await cluster.close()

    def _make_cluster(self, folder: Path) -> LocalCluster:
        return LocalCluster(folder, self._settings)

    # --- use --------------------------------------------------------------------------------------------------

    def client(self, **settings: Any) -> Client:
        """A client for `async with`, in the event loop of whoever enters it. Settings as of `aerobee.Client`."""
        return Client(self.nameserver, **settings)

    def sync_client(self, **settings: Any) -> SyncClient:
        """A client for `with`."""
        return SyncClient(self.nameserver, **settings)

    def new_topic(self, prefix: str = "test", queues: int = 4) -> str:
        """Create a topic with a name of its own that begins with `prefix`, and return the name."""
        clean = NOT_FOR_NAMES.sub("_", prefix)[:NAME_CHARS_MAX].strip("_") or "test"
        topic = f"{clean}-{next(self._names)}"
        self._call(lambda reach: reach.client.admin.create_topic(topic, queues=queues))
        return topic

    def put(
        self,
        topic: str,
        *bodies: bytes | str,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
    ) -> list[SendResult]:
        """Store messages without a producer: those that are there when the tested program starts.

        They differ in their bodies alone. Without a `queue` each goes to any. BrokerRefused is raised for the first one
        that was refused; the others are stored.
        """
        return self._call(
            lambda reach: reach.inside.put(
                topic, bodies, tags=tags, keys=keys, properties=properties, queue=queue
            )
        )

    def messages(self, topic: str, *, at_least: int = 0, timeout_s: float = 5.0) -> list[Message]:
        """What is in a topic, in the order in which it was stored, without a consumer: no group is there afterwards.

        While there are less than `at_least`, it waits, `timeout_s` seconds at most, and then gives what there is.
        BrokerRefused when the topic does not exist.
        """
        return self._call(lambda reach: reach.inside.messages(topic, at_least=at_least, timeout_s=timeout_s))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """How far a group has come: of each queue of a topic the offset that it reads on from, 0 without one.
        BrokerRefused when the topic does not exist."""
        return self._call(lambda reach: reach.inside.committed(group, topic))

    def _call(self, work: Callable[["_Reach"], Coroutine[Any, Any, T]]) -> T:
        """Run something in the server's event loop and wait."""
        if self._loop is None or self._reach is None:
            raise RuntimeError("the server does not run")
        return asyncio.run_coroutine_threadsafe(work(self._reach), self._loop).result()


class Pair(Server):
    """A nameserver, a master and its slave, which have what is acknowledged both. Methods look into the master."""

    _pair: LocalPair

    def _make_cluster(self, folder: Path) -> LocalCluster:
        self._pair = LocalPair(folder, self._settings)
        return self._pair

    def fail_over(self) -> None:
        """The master goes, with its connections, in the middle of what it does. When this returns the slave is the
        master, at another port: programs find it by the nameserver. Once; then the pair is a single broker."""
        self._call(self._fail_over)

    async def _fail_over(self, reach: "_Reach") -> None:
        await self._pair.fail_over()
        self.broker = self._pair.broker
        self._reach = _Reach(reach.client, _inside(self._pair))


class _Reach(NamedTuple):
    """How a running server is reached from its own event loop."""

    client: Client  # over a connection
    inside: Inside


def _inside(cluster: LocalCluster) -> Inside:
    return Inside(cluster.in_process("a test"), cluster.broker_name, cluster.broker)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
