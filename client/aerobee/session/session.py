"""The session: what an open client is made of, and the work it does by itself.

Touches  sockets through remoting, the clock.

Tasks    client.routes asks for known routes every `route_poll_s`; client.heartbeat tells brokers every
         `heartbeat_s` who is here, and at once when a group joins or a new broker comes up; client.find looks for a
         broker whose connection was lost. All are ended by close(), which first
         flushes and closes every producer and consumer.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from aerobee.admin.query import Queries
from aerobee.consuming.fetching import Fetcher
from aerobee.consuming.pull_consumer import PullConsumer
from aerobee.errors import ClientError, InvalidMessage, NoQueue
from aerobee.messages.heartbeat import heartbeat_body, pull_group
from aerobee.messages.watching import Watch, joined
from aerobee.net.backoff import pauses
from aerobee.net.offsets import Offsets
from aerobee.net.peers import Nameservers, Peers
from aerobee.net.route_table import RouteTable
from aerobee.net.signing import signer_of
from aerobee.producing.producer import Producer
from aerobee.producing.replies import PendingReplies, Replier
from aerobee.session.server_requests import ServerRequests
from aerobee.terms.config import ClientConfig, FetchConfig
from aerobee.terms.filters import Filter, SqlFilter
from aerobee.terms.routes import MessageQueue, Route, master_addrs
from aerobee.terms.start_at import AtOffset, Position
from aerobee.terms.statistics import ClientStatistics
from aerobee_proto.bodies import CheckClientConfigBody
from aerobee_proto.codes import RequestCode
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.exchange.connection import Connection
from aerobee_service.clock import epoch_ms
from aerobee_service.logs.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.admin.admin import Admin
    from aerobee.consuming.group_consumer import AnyConsumer
    from aerobee.messages.meters import Meters
    from aerobee.session.trace import TraceWriter

__all__ = ["QueueSelection", "Session"]

log = event_logger("aerobee.client")

LOST_MAX = 4096  # addresses

QueueSelection = Sequence[int | MessageQueue] | None


class Session:
    """What a client is made of while it is open."""

    def __init__(self, config: ClientConfig, ip: str, salt: int, client_id: str) -> None:
        # Fixed for life.
        self._config = config
        self._client_id = self.client_id = client_id
        tls = ssl.create_default_context() if config.tls is True else config.tls or None
        self.replies = PendingReplies()
        self.requests = ServerRequests(self.replies, config.nameservers, config.decompressed_size_max)
        self.remoting = RemotingClient(
            self.requests.table(),
            RemotingClientConfig(tls=tls),
            on_connect=self._on_connect,
            on_disconnect=self._on_disconnect,
            signer=signer_of(config.credentials),
        )
        self.peers = Peers(self.remoting, config.request_timeout_s)
        self.nameservers = Nameservers(self.peers, config.nameservers, start=salt)
        self.routes = RouteTable(self.nameservers)
        self.offsets = Offsets(self.peers, self.routes)
        self.queries = Queries(self.peers, self.routes, epoch_ms, config.decompressed_size_max)
        self.keys = UniqueKeyFactory(ip, os.getpid(), salt, epoch_ms)
        self.replier = Replier(peers=self.peers, routes=self.routes, keys=self.keys, clock_ms=epoch_ms)
        self.requests.broker_name_of = self.routes.broker_name_of
        self.traces: TraceWriter | None = None  # set by the client when traces are switched on
        # Moved by the calls below.
        # Those that still pull are kept alive by their tasks; the others go when nobody reads any more.
        self.fetchers: WeakKeyDictionary[Fetcher, None] = WeakKeyDictionary()
        # Both in the order in which they came.
        self._producers: dict[Producer, None] = {}
        self._consumers: dict[PullConsumer, None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # Fetchers that also take queues that their topic gets later.
        self.followers: WeakKeyDictionary[Fetcher, str] = WeakKeyDictionary()
        self._beat_now = asyncio.Event()
        self._greeted: set[str] = set()
        self._greeting: set[str] = set()
        self._started = False
        self._finding: dict[str, asyncio.Task[None]] = {}  # brokers whose connection was lost
        self._routed: set[str] = set()  # addresses that routes have led to
        self._lost: set[str] = set()  # addresses that were connected, and are not
        self.reconnect_count = 0
        self.meters = self._make_meters() if config.metrics else None

    @cached_property
    def admin(self) -> "Admin":
        from aerobee.admin.admin import Admin

        return Admin(self.peers, self.nameservers, self.offsets, epoch_ms)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.routes.listeners.append(self._on_route)
        self._started = True
        self._tasks = [
            loop.create_task(self._poll_routes(), name="client.routes"),
            loop.create_task(self._beat(), name="client.heartbeat"),
        ]

    def statistics(self) -> ClientStatistics:
        """See `Client.statistics`. May be called from any thread."""
        return ClientStatistics(
            client_id=self._client_id,
            connection_count=self.remoting.connection_count,
            reconnect_count=self.reconnect_count,
            producers=tuple([producer.statistics() for producer in list(self._producers)]),
            consumers=tuple([member.statistics() for member in list(self.requests.consumers.values())]),
            readers=tuple([fetcher.statistics() for fetcher in self._open_fetchers()]),
        )

    def _open_fetchers(self) -> list[Fetcher]:
        # References, as going through those that they lead to is not safe beside another thread.
        found = [reference() for reference in self.fetchers.keyrefs()]
        return [fetcher for fetcher in found if fetcher is not None and not fetcher.closed]

    async def close(self) -> None:
        self._started = False
        if self.meters is not None:
            self.meters.close(self)
        try:
            await asyncio.gather(*(member.close() for member in list(self.requests.consumers.values())))
            await asyncio.gather(*(producer.close() for producer in list(self._producers)))
            await asyncio.gather(*(consumer.close() for consumer in list(self._consumers)))
            await asyncio.gather(*(fetcher.close() for fetcher in list(self.fetchers)))
            if self.traces is not None:
                await self.traces.close()
        finally:
            tasks = [*self._tasks, *self._finding.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.routes.close()
            await self.remoting.close()

    # --- members ----------------------------------------------------------------------------------------------

    def add_producer(self, producer: Producer) -> None:
        self._producers[producer] = None
        if producer.parts.checker is not None:
            self.requests.checks[producer.group] = producer.parts.checker
        self._beat_now.set()

    def remove_producer(self, producer: Producer) -> None:
        self._producers.pop(producer, None)
        checker = producer.parts.checker
        if checker is not None and self.requests.checks.get(producer.group) is checker:
            del self.requests.checks[producer.group]
        if all(other.group != producer.group for other in self._producers):
            self._say_goodbye({"producerGroup": producer.group})

    async def add_consumer(self, consumer: PullConsumer) -> None:
        """Brokers must know a group before it commits: the first heartbeat is waited for."""
        await self.routes.for_subscribe(consumer.topic)
        self._consumers[consumer] = None
        await self.beat()

    def remove_consumer(self, consumer: PullConsumer) -> None:
        self._consumers.pop(consumer, None)
        if all(other.group != consumer.group for other in self._consumers):
            self._say_goodbye({"consumerGroup": consumer.group})

    async def add_member(self, member: "AnyConsumer") -> None:
        """Brokers must know a member before it asks who else there is: the first heartbeat is waited for."""
        self.requests.consumers[member.group] = member
        await self.beat()

    def check_free(self, group: str) -> None:
        """InvalidMessage when this client is a member of the group already: brokers tell members apart by client."""
        if group in self.requests.consumers or any(one.group == group for one in self._consumers):
            raise InvalidMessage(
                f"this client has a consumer of group {group!r} already; a second member needs a Client of its own"
            )

    def remove_member(self, member: "AnyConsumer") -> None:
        if self.requests.consumers.get(member.group) is member:
            del self.requests.consumers[member.group]
            self._say_goodbye({"consumerGroup": member.group})

    async def greet(self, topic: str) -> None:
        """Have every broker of a topic know this client, before it sends what they may have to come back for."""
        route = await self.routes.for_publish(topic)
        if not self._greeted.issuperset(master_addrs([route])):
            await self.beat()

    def _make_meters(self) -> "Meters":
        from aerobee.messages.meters import Meters

        return Meters(self)

    def watch(self, group: str) -> Watch | None:
        """Who looks on at the messages of a group; None when nothing of the kind is switched on."""
        watches: list[Watch] = []
        if self.traces is not None:
            from aerobee.session.trace import TraceWatch

            watches.append(TraceWatch(group, self.traces))
        if self._config.telemetry:
            from aerobee.session.telemetry import TelemetryWatch

            watches.append(TelemetryWatch(group, self._client_id))
        return joined(watches)

    def _say_goodbye(self, group: dict[str, str]) -> None:
        """Tell brokers that a group has left here. Those that are gone find out by themselves."""
        header = {"clientID": self._client_id} | group
        # Also those whose answer to the greeting is still on its way.
        for addr in self._greeted | self.routes.masters():
            self.peers.oneway_if_connected(addr, RequestCode.UNREGISTER_CLIENT, header)

    # --- reading ----------------------------------------------------------------------------------------------

    def fetcher(self, group: str, topic: str, message_filter: Filter, config: FetchConfig) -> Fetcher:
        fetcher = Fetcher(
            group,
            topic,
            message_filter,
            config,
            client_config=self._config,
            peers=self.peers,
            routes=self.routes,
            meters=self.meters,
        )
        self.fetchers[fetcher] = None
        return fetcher

    async def open_queues(
        self,
        fetcher: Fetcher,
        topic: str,
        selection: QueueSelection,
        start_of: Callable[[MessageQueue], Awaitable[int]],
        end: Position | None,
        floor: int = 0,
    ) -> None:
        """Give the fetcher its queues; one that reads everything without end also gets queues added later.

        `floor` as for `Fetcher.add`, where a queue does not start before it.
        """
        route = await self.routes.for_subscribe(topic)
        chosen = _select_queues(route, selection)
        if isinstance(fetcher.filter, SqlFilter):
            names = sorted({queue.broker_name for queue in chosen})
            await asyncio.gather(*(self._check_filter(fetcher, topic, name) for name in names))
        ends: Sequence[int | None] = [None] * len(chosen)
        if end is not None:
            ends = await asyncio.gather(*(self._end_of(queue, end) for queue in chosen))
        starts = await asyncio.gather(*(start_of(queue) for queue in chosen))
        for queue, offset, stop in zip(chosen, starts, ends, strict=True):
            fetcher.add(queue, offset, stop, floor=min(offset, floor))
        if selection is None and end is None:
            self.followers[fetcher] = topic

    async def _check_filter(self, fetcher: Fetcher, topic: str, broker_name: str) -> None:
        """Ask a broker whether it serves the filter: its refusal of a pull could pass for a passing one."""
        message_filter = fetcher.filter
        body = CheckClientConfigBody(
            client_id=self._client_id,
            group=fetcher.group,
            subscription_data=message_filter.subscription(topic, epoch_ms()),
        )
        await self.peers.call(
            f"check the filter {message_filter.text!r} of topic {topic!r}",
            self.routes.master_addr(topic, broker_name),
            RequestCode.CHECK_CLIENT_CONFIG,
            {},
            body.to_bytes(),
        )

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
        """A route may name brokers that have not heard of us, and queues that nobody here reads yet."""
        for fetcher, topic in list(self.followers.items()):
            if topic == route.topic and not fetcher.closed:
                _add_new_queues(fetcher, route)
        routed = self.routes.all_addrs(of_templates=False)
        for addr in self._routed - routed:
            # Of a master that was replaced: what it was asked is asked elsewhere, not when its time is over. It was so,
            # too, of a broker whose answer to the first message of a topic was under way when another one had told
            # nameservers of that topic: the message was there twice.
            if (connection := self.remoting.connected(addr)) is not None:
                connection.abort("no route leads there any more")
        self._routed = routed
        if self._somebody_is_here():
            self._beat_now.set()

    def _on_connect(self, addr: str, _: Connection) -> None:
        """Brokers know members by their connections: a new one must be told who is behind it."""
        if addr in self._lost:
            self._lost.discard(addr)
            self.reconnect_count += 1
            log.info("client.reconnected", addr=addr)
        if addr not in self._greeting and addr not in self._config.nameservers and self._somebody_is_here():
            self._beat_now.set()

    def _on_disconnect(self, addr: str, _: Connection) -> None:
        """A broker that has lost its connection to us would not know where a reply or a check-back is to go."""
        if len(self._lost) < LOST_MAX:
            self._lost.add(addr)
        log.debug("client.disconnected", addr=addr)
        if addr not in self._greeted or addr in self._finding or not self._started:
            return
        self._greeted.discard(addr)
        task = asyncio.get_running_loop().create_task(self._find_again(addr), name=f"client.find {addr}")
        self._finding[addr] = task
        task.add_done_callback(lambda _: self._finding.pop(addr, None))

    async def _find_again(self, addr: str) -> None:
        """Greet a broker as soon as it is back; after `heartbeat_s` the heartbeats alone go on with it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.heartbeat_s
        waits = pauses()
        while self._somebody_is_here() and addr not in self._greeted and loop.time() < deadline:
            await asyncio.sleep(next(waits))
            if addr in self.routes.all_addrs():
                await self._beat_one(addr, self._beat_body())

    def _somebody_is_here(self) -> bool:
        return bool(self._producers or self._consumers or self.requests.consumers)

    async def beat(self) -> None:
        """One heartbeat to every broker that should get one."""
        if not self._somebody_is_here():
            return
        to_slaves = bool(self._consumers or self.requests.consumers)
        addrs = self.routes.all_addrs() if to_slaves else self.routes.masters()
        body = self._beat_body()
        await asyncio.gather(*(self._beat_one(addr, body) for addr in addrs))

    def _beat_body(self) -> bytes:
        topics: dict[str, dict[str, Filter]] = {}
        for consumer in self._consumers:
            topics.setdefault(consumer.group, {})[consumer.topic] = consumer.filter
        consumers = [
            pull_group(group, message_filter, epoch_ms()) for group, message_filter in topics.items()
        ]
        consumers += [one.member.settings.heartbeat for one in self.requests.consumers.values()]
        return heartbeat_body(self._client_id, (producer.group for producer in self._producers), consumers)

    async def _beat_one(self, addr: str, body: bytes) -> None:
        self._greeting.add(addr)
        try:
            await self.peers.call("heartbeat", addr, RequestCode.HEART_BEAT, {}, body)
            self._greeted.add(addr)
        except ClientError as failed:
            log.debug("client.heartbeat_failed", addr=addr, reason=str(failed))
        finally:
            self._greeting.discard(addr)


def _select_queues(route: Route, selection: QueueSelection) -> list[MessageQueue]:
    if selection is None:
        return list(route.subscribe)
    chosen = [queue for queue in route.subscribe if queue in selection or queue.queue_id in selection]
    known = {*route.subscribe, *(queue.queue_id for queue in route.subscribe)}
    missing = [str(one) for one in selection if one not in known]
    if missing or not chosen:
        raise NoQueue(
            f"topic {route.topic!r} has no queue {', '.join(missing) or 'of an empty list'};"
            f" it has {', '.join(str(queue) for queue in route.subscribe)}"
        )
    return chosen


def _add_new_queues(fetcher: Fetcher, route: Route) -> None:
    """A queue that appears while a topic is read is read from its beginning: nothing in it was seen."""
    for queue in route.subscribe:
        if queue not in fetcher.queues:
            fetcher.add(queue, 0)
