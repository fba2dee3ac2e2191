"""The way from Spark's processes to brokers: settings that travel with a plan, and a client for plain code.

Touches  sockets through the client library; an event loop that runs only while a call waits.

Options  (of every read and write of topics)
    nameServer, namesrvAddr    host:port, several with ; or , between
    accessKey, secretKey       sign every request
    tls                        true: with the system's certificates
    pullTimeoutMs              of one request
    pollTimeoutMs              a task fails when a broker could not be read for so long
    fetchOffset.numRetries, fetchOffset.retryIntervalMs    of look-ups on the driver
    pullBatchSize              messages asked for with one pull; brokers have limits of their own
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aerobee import Client, ClientConfig, Credentials
from aerobee.consuming.ranges import RangeConfig
from aerobee.errors import ClientError, InvalidMessage
from aerobee.terms.config import parse_addrs
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.option_names import CLUSTER_OPTIONS
from pyspark_aerobee.options import Options

__all__ = ["CLUSTER_OPTIONS", "Cluster", "ClusterSettings", "gather"]

T = TypeVar("T")

ASKED_AT_ONCE: Final = 64  # look-ups on their way together


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where a cluster is and how it is spoken to; small, and pickled with every task."""

    nameservers: tuple[str, ...]
    credentials: Credentials | None
    tls: bool
    planning: RangeConfig
    reading: RangeConfig

    @classmethod
    def of(cls, options: Options) -> "ClusterSettings":
        """From options; OptionError names the one that cannot be used."""
        name = options.only_one_of("nameServer", "namesrvAddr")
        if name is None:
            raise OptionError(
                "nameServer", "", 'say where the cluster is, as host:port: .option("nameServer", "mq1:9876")'
            )
        try:
            nameservers = parse_addrs(options.text(name) or "")
        except InvalidMessage as refused:
            raise OptionError(name, options.text(name) or "", str(refused)) from refused
        retries = options.count("fetchOffset.numRetries", 3, least=0) or 0
        pause_s = (options.duration_ms("fetchOffset.retryIntervalMs", 1000) or 0) / 1000
        timeout_s = (options.duration_ms("pullTimeoutMs", 10_000) or 1) / 1000
        return cls(
            nameservers=nameservers,
            credentials=_credentials(options),
            tls=options.flag("tls", False),
            planning=RangeConfig(timeout_s=timeout_s, retry_s=pause_s, give_up_s=retries * pause_s),
            reading=RangeConfig(
                timeout_s=timeout_s,
                give_up_s=(options.duration_ms("pollTimeoutMs", 30_000) or 0) / 1000,
                max_messages=options.count("pullBatchSize", 1024) or 1024,
            ),
        )

    def client(self) -> Client:
        """A client, not opened."""
        return Client(
            config=ClientConfig(
                nameservers=self.nameservers, credentials=self.credentials, tls=self.tls or None
            )
        )


def _credentials(options: Options) -> Credentials | None:
    access_key, secret_key = options.text("accessKey"), options.text("secretKey")
    if bool(access_key) != bool(secret_key):
        missing = "secretKey" if access_key else "accessKey"
        raise OptionError(missing, "", "accessKey and secretKey go together")
    return Credentials(access_key, secret_key) if access_key and secret_key else None


class Cluster:
    """An open client for code without an event loop; to be used as `with`, in one thread."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self._runner = asyncio.Runner(loop_factory=_loop_factory())
        self._stack = AsyncExitStack()
        self._client: Client | None = None

    def __enter__(self) -> Self:
        self._client = self.run(self._stack.enter_async_context(self.settings.client()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def client(self) -> Client:
        assert self._client is not None, "a Cluster is used as `with`"
        return self._client

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a call of the client. Nothing goes on in the client between two of them."""
        return self._runner.run(work)

    def close(self) -> None:
        """Say goodbye and free the loop."""
        try:
            if self._client is not None:
                self._client = None
                self.run(self._stack.aclose())
        finally:
            self._runner.close()


def _loop_factory() -> "Callable[[], asyncio.AbstractEventLoop]":
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def gather(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, few of them on their way at a time; the first error, the others awaited."""
    slots = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await work

    results = await asyncio.gather(*(one(work) for work in works), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        # What was refused for a reason tells more than what timed out meanwhile.
        raise min(failures, key=lambda failed: not isinstance(failed, ClientError))
    return [result for result in results if not isinstance(result, BaseException)]
