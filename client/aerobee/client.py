"""The client: one object that knows the nameservers, the routes and the connections.

Touches  sockets through remoting, the clock, the environment (only in `from_env`).

Tasks    client.routes asks for known routes every `route_poll_s`; client.heartbeat tells brokers every
         `heartbeat_s` who is here, and at once when a group joins. Both are started by `__aenter__` and ended
         by close(), which first flushes and closes every producer and consumer.
"""

import asyncio
import os
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import structlog

from aerobee.admin import Admin
from aerobee.config import ClientConfig, FetchConfig, ProducerConfig, parse_addrs
from aerobee.errors import ClientClosed, ClientError, InvalidMessage
from aerobee.fetching import Fetcher, parse_tags
from aerobee.heartbeat import heartbeat_body
from aerobee.message import Message
from aerobee.offsets import Offsets
from aerobee.peers import Nameservers, Peers
from aerobee.producer import Producer
from aerobee.pull_consumer import PullConsumer
from aerobee.query import Queries
from aerobee.reader import Reader
from aerobee.route_table import RouteTable
from aerobee.routes import MessageQueue, Route
from aerobee.start_at import AtOffset, Position, Where, parse_where
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import RequestError
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_proto.names import check_group, check_topic
from aerobee_remoting.client import RemotingClient, RemotingClientConfig

__all__ = ["Client"]

log = structlog.get_logger()

# RocketMQ's own group for tools: known to every broker, so reading needs no group of its own.
READER_GROUP: Final = "TOOLS_CONSUMER"
DEFAULT_PRODUCER_GROUP: Final = "AEROBEE_PRODUCER"
QueueSelection = Sequence[int | MessageQueue] | None


def clock_ms() -> int:
    """Now, epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Client:
    """A connection to a cluster. Use it as `async with Client("127.0.0.1:9876") as mq:`.

    nameservers  one address, several in one text (`a:9876;b:9876`), or a list; None takes those of `config`
    config       everything else; see `ClientConfig`

    Nothing is dialled before the first call. One client serves any number of producers, readers and consumers
    of one event loop.
    """

    def __init__(
        self,
        nameservers: str | Iterable[str] | None = None,
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | bool | None = None,
    ) -> None:
        settings = config or ClientConfig()
        if nameservers is not None:
            settings = replace(settings, nameservers=parse_addrs(nameservers))
        if tls is not None:
            settings = replace(settings, tls=tls)
        self.config: Final = settings
        self._salt = random.SystemRandom().getrandbits(32)
        self._ip = _local_ip()
        name = settings.client_name or str(os.getpid())
        self.client_id: Final = f"{self._ip}@{name}#{time.time_ns()}"
        # Made by __aenter__, in the event loop.
        self._parts: _Parts | None = None
        self._closed = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Client":
        """A client with settings from environment variables; see `ClientConfig.from_env`."""
        return cls(config=ClientConfig.from_env(os.environ if environ is None else environ))

    async def __aenter__(self) -> Self:
        if self._closed or self._parts is not None:
            raise ClientClosed("client")
        self._parts = _Parts(self.config, self._ip, self._salt, self.client_id)
        self._parts.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Flush and close every producer, stop every reader and consumer, say goodbye to the brokers."""
        self._closed = True
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    @property
    def admin(self) -> Admin:
        """Administration calls: topics, groups, brokers, offsets."""
        return self._open().admin

    def producer(
        self, group: str = DEFAULT_PRODUCER_GROUP, *, config: ProducerConfig | None = None, **settings: Any
    ) -> Producer:
        """A producer, to be used as `async with`.

        group     name under which brokers know this producer and its like
        config    or single settings by name: `producer(linger_s=0.005, queue_choice="latency")`
        """
        parts = self._open()
        _check_group(group)
        return Producer(
            group,
            _with_settings(config or ProducerConfig(), settings),
            peers=parts.peers,
            routes=parts.routes,
            keys=parts.keys,
            clock_ms=clock_ms,
            body_size_max=self.config.body_size_max,
            rotation_start=random.SystemRandom().getrandbits(16),
            on_open=parts.add_producer,
            on_close=parts.remove_producer,
        )

    def reader(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where | None = None,
        queues: QueueSelection = None,
        tags: str | Iterable[str] | None = None,
        config: FetchConfig | None = None,
        **settings: Any,
    ) -> Reader:
        """Read a topic without a group.

        start   "earliest", "latest", a logical offset (of every queue), a time (datetime, timedelta, "-1h")
        end     where each queue ends, not included; "now" is what is there when reading starts; None goes on
        queues  some queues only: queue ids (on every broker) or `MessageQueue`s
        tags    "new || paid" or several texts; None reads every message
        """
        parts = self._open()
        _check_topic(topic)
        begin = parse_where(start, clock_ms())
        stop = None if end is None else parse_where(end, clock_ms())
        fetcher = parts.fetcher(READER_GROUP, topic, tags, _with_settings(config or FetchConfig(), settings))

        async def open_queues(opened: Fetcher) -> None:
            await parts.open_queues(
                opened, topic, queues, lambda queue: parts.offsets.resolve(queue, begin), stop
            )

        reader = Reader(fetcher, open_queues, parts.readers.discard)
        parts.readers.add(reader)
        return reader

    def pull_consumer(
        self,
        group: str,
        topic: str,
        *,
        tags: str | Iterable[str] | None = None,
        start: Where = "earliest",
        end: Where | None = None,
        queues: QueueSelection = None,
        config: FetchConfig | None = None,
        **settings: Any,
    ) -> PullConsumer:
        """Read a topic for a group, from where the group has committed; to be used as `async with`.

        `start` is for queues in which the group has committed nothing. All else is as for `reader`.
        """
        parts = self._open()
        _check_group(group)
        _check_topic(topic)
        begin = parse_where(start, clock_ms())
        stop = None if end is None else parse_where(end, clock_ms())
        filter_text, _ = parse_tags(tags)
        fetcher = parts.fetcher(group, topic, tags, _with_settings(config or FetchConfig(), settings))

        async def start_of(queue: MessageQueue) -> int:
            committed = await parts.offsets.committed(group, queue)
            return await parts.offsets.resolve(queue, begin) if committed is None else committed

        async def open_queues(opened: Fetcher) -> None:
            await parts.open_queues(opened, topic, queues, start_of, stop)

        return PullConsumer(
            group,
            topic,
            filter_text,
            fetcher,
            parts.offsets,
            open_queues=open_queues,
            clock_ms=clock_ms,
            on_open=parts.add_consumer,
            on_close=parts.remove_consumer,
        )

    async def query(
        self,
        topic: str,
        *,
        key: str,
        begin: Where | None = None,
        end: Where | None = None,
        max_messages: int = 64,
    ) -> list[Message]:
        """Messages of a topic that were sent with that key (or have that message_id), oldest first.

        `begin` and `end` bound the store time; of more than `max_messages` the newest are returned.
        """
        _check_topic(topic)
        return await self._open().queries.by_key(topic, key, begin, end, max_messages)

    async def query_by_id(self, message_id: str, topic: str | None = None) -> Message | None:
        """The message with that id, None when there is none.

        An offset id needs no topic. Finding a `SendResult.message_id` needs the topic: its index is searched.
        """
        return await self._open().queries.by_id(message_id, topic)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read, ordered by broker and queue id."""
        _check_topic(topic)
        return (await self._open().routes.for_subscribe(topic)).subscribe

    def _open(self) -> "_Parts":
        if self._parts is None:
            raise ClientClosed("client")
        return self._parts


class _Parts:
    """What a client is made of while it is open."""

    def __init__(self, config: ClientConfig, ip: str, salt: int, client_id: str) -> None:
        # Fixed for life.
        self._config = config
        self._client_id = client_id
        tls = ssl.create_default_context() if config.tls is True else config.tls or None
        self._remoting = RemotingClient(None, RemotingClientConfig(tls=tls))
        self.peers = Peers(self._remoting, config.request_timeout_s)
        self.nameservers = Nameservers(self.peers, config.nameservers, start=salt)
        self.routes = RouteTable(self.nameservers)
        self.offsets = Offsets(self.peers, self.routes)
        self.queries = Queries(self.peers, self.routes, clock_ms, config.decompressed_size_max)
        self.admin = Admin(self.peers, self.nameservers, self.offsets)
        self.keys = UniqueKeyFactory(ip, os.getpid(), salt, clock_ms)
        # Moved by the calls below.
        self.readers: set[Reader] = set()
        self._producers: set[Producer] = set()
        self._consumers: set[PullConsumer] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._beat_now = asyncio.Event()
        self._greeted: set[str] = set()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.routes.listeners.append(self._on_route)
        self._tasks = [
            loop.create_task(self._poll_routes(), name="client.routes"),
            loop.create_task(self._beat(), name="client.heartbeat"),
        ]

    async def close(self) -> None:
        try:
            await asyncio.gather(*(producer.close() for producer in list(self._producers)))
            await asyncio.gather(*(reader.close() for reader in list(self.readers)))
            await asyncio.gather(*(consumer.close() for consumer in list(self._consumers)))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.routes.close()
            await self._remoting.close()

    # --- members ----------------------------------------------------------------------------------------------

    def add_producer(self, producer: Producer) -> None:
        self._producers.add(producer)
        self._beat_now.set()

    def remove_producer(self, producer: Producer) -> None:
        self._producers.discard(producer)
        if all(other.group != producer.group for other in self._producers):
            self._say_goodbye({"producerGroup": producer.group})

    async def add_consumer(self, consumer: PullConsumer) -> None:
        """Brokers must know a group before it commits: the first heartbeat is waited for."""
        await self.routes.for_subscribe(consumer.topic)
        self._consumers.add(consumer)
        await self.beat()

    def remove_consumer(self, consumer: PullConsumer) -> None:
        self._consumers.discard(consumer)
        if all(other.group != consumer.group for other in self._consumers):
            self._say_goodbye({"consumerGroup": consumer.group})

    def _say_goodbye(self, group: dict[str, str]) -> None:
        """Tell brokers that a group has left here. Those that are gone find out by themselves."""
        header = {"clientID": self._client_id} | group
        for addr in self._greeted:
            connection = self._remoting.connected(addr)
            if connection is not None:
                connection.send_oneway(RequestCode.UNREGISTER_CLIENT, header)

    # --- reading ----------------------------------------------------------------------------------------------

    def fetcher(
        self, group: str, topic: str, tags: str | Iterable[str] | None, config: FetchConfig
    ) -> Fetcher:
        return Fetcher(
            group, topic, tags, config, client_config=self._config, peers=self.peers, routes=self.routes
        )

    async def open_queues(
        self,
        fetcher: Fetcher,
        topic: str,
        selection: QueueSelection,
        start_of: Callable[[MessageQueue], Awaitable[int]],
        end: Position | None,
    ) -> None:
        """Give the fetcher its queues; one that reads everything without end also gets queues added later."""
        route = await self.routes.for_subscribe(topic)
        chosen = _select_queues(route, selection)
        ends: Sequence[int | None] = [None] * len(chosen)
        if end is not None:
            ends = await asyncio.gather(*(self._end_of(queue, end) for queue in chosen))
        starts = await asyncio.gather(*(start_of(queue) for queue in chosen))
        for queue, offset, stop in zip(chosen, starts, ends, strict=True):
            fetcher.add(queue, offset, stop)
        if selection is None and end is None:
            self.routes.listeners.append(lambda changed: _add_new_queues(fetcher, topic, changed))

    async def _end_of(self, queue: MessageQueue, end: Position) -> int:
        """A time or an end of the queue cannot lie beyond what is there now; an offset can."""
        found = await self.offsets.resolve(queue, end)
        return found if isinstance(end, AtOffset) else min(found, await self.offsets.max_offset(queue))

    # --- tasks ------------------------------------------------------------------------------------------------

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(self._config.route_poll_s)
            await self.routes.refresh_all()

    async def _beat(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._config.heartbeat_s):
                    await self._beat_now.wait()
            except TimeoutError:
                self._greeted.clear()
            self._beat_now.clear()
            await self.beat()

    def _on_route(self, route: Route) -> None:
        """A route may name brokers that have not heard of us."""
        del route
        if self._producers or self._consumers:
            self._beat_now.set()

    async def beat(self) -> None:
        """One heartbeat to every broker that should get one."""
        if not self._producers and not self._consumers:
            return
        consumers: dict[str, dict[str, str]] = {}
        for consumer in self._consumers:
            consumers.setdefault(consumer.group, {})[consumer.topic] = consumer.tags
        body = heartbeat_body(
            self._client_id, (producer.group for producer in self._producers), consumers, clock_ms()
        )
        addrs = self.routes.all_addrs() if consumers else self.routes.masters()
        await asyncio.gather(*(self._beat_one(addr, body) for addr in addrs))

    async def _beat_one(self, addr: str, body: bytes) -> None:
        try:
            await self.peers.call("heartbeat", addr, RequestCode.HEART_BEAT, {}, body)
            self._greeted.add(addr)
        except ClientError as failed:
            log.debug("client.heartbeat_failed", addr=addr, reason=str(failed))


def _select_queues(route: Route, selection: QueueSelection) -> list[MessageQueue]:
    if selection is None:
        return list(route.subscribe)
    chosen = [queue for queue in route.subscribe if queue in selection or queue.queue_id in selection]
    known = {*route.subscribe, *(queue.queue_id for queue in route.subscribe)}
    missing = [str(one) for one in selection if one not in known]
    if missing or not chosen:
        raise InvalidMessage(
            f"topic {route.topic!r} has no queue {', '.join(missing) or 'of an empty list'};"
            f" it has {', '.join(str(queue) for queue in route.subscribe)}"
        )
    return chosen


def _add_new_queues(fetcher: Fetcher, topic: str, route: Route) -> None:
    """A queue that appears while a topic is read is read from its beginning: nothing in it was seen."""
    if route.topic == topic and not fetcher.closed:
        for queue in route.subscribe:
            if queue not in fetcher.queues:
                fetcher.add(queue, 0)


def _with_settings(config: Any, settings: Mapping[str, Any]) -> Any:
    try:
        return replace(config, **settings) if settings else config
    except TypeError:
        known = sorted(config.__dataclass_fields__)
        unknown = ", ".join(sorted(set(settings) - set(known)))
        raise InvalidMessage(f"unknown setting {unknown}; there are {', '.join(known)}") from None


def _check_topic(topic: str) -> None:
    try:
        check_topic(topic, internal=True)
    except RequestError as refused:
        raise InvalidMessage(refused.remark) from refused


def _check_group(group: str) -> None:
    try:
        check_group(group)
    except RequestError as refused:
        raise InvalidMessage(refused.remark) from refused


def _local_ip() -> str:
    """An address of this machine for ids: the one that traffic would leave by. Nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: no route is needed to exist
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
