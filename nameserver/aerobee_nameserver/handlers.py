"""What a nameserver answers: one method a request code, and the table that says who may ask what.

Touches  the route table, the KV config and, through them, one file each; no sockets of its own. A handler reads a
typed request and returns a response; whatever takes the disk runs in a worker thread, one change at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import structlog

from aerobee_nameserver.config import LIVE_FIELDS, NameserverConfig
from aerobee_nameserver.kv_config import ORDER_TOPIC_CONFIG, KvChange, KvConfig
from aerobee_nameserver.registration import (
    AT_ONCE_SIZE_MAX,
    checked_queues,
    checked_topic,
    read_registration,
    reading_registration,
)
from aerobee_nameserver.removals import ASKED, Removals
from aerobee_nameserver.route_table import MemberChange, Registered, Registration, RouteLimits, RouteTable
from aerobee_proto.bodies import (
    BrokerMemberGroup,
    BrokerMembers,
    DataVersion,
    KVTable,
    TopicList,
    TopicRouteData,
)
from aerobee_proto.codes import VERSION_STRICT_ROUTE_JSON, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import (
    BrokerIdentityHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicInNameserverHeader,
    KvConfigHeader,
    KvKeyHeader,
    KvNamespaceHeader,
    RegisterBrokerHeader,
    RequestHeader,
    TopicHeader,
)
from aerobee_proto.requests import NoFields
from aerobee_proto.steps import Call, CallSteps, finished_here
from aerobee_remoting.exchange.answers import Body, answer_at_once, answer_in_slices, written
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.gate import Gate
from aerobee_remoting.exchange.handlers import AnyRequest, Channel, HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, PUB, SUB, UPDATE, Open, on_cluster, on_topic, ours
from aerobee_service.giving_way import GivingWay
from aerobee_service.settings.settings import (
    SettingsError,
    apply_changes,
    canonical_keys,
    dump_settings,
    read_properties,
    used_values,
)
from aerobee_service.settings.settings_edit import store_changes
from aerobee_service.settings.settings_signal import SettingsSignal
from aerobee_service.turns.slices import Steps, in_slices, let_go

__all__ = ["Handlers"]

# Bytes of the bodies that are read; other requests have none.
REGISTRATION_SIZE_MAX: Final = 16 << 20
ROUTE_SIZE_MAX: Final = 64 << 10
VERSION_SIZE_MAX: Final = 1 << 10
SETTINGS_SIZE_MAX: Final = 64 << 10
DISABLED: Final = "disable"
ANSWERED_AT_ONCE_MAX: Final = 512  # topics, brokers or settings in an answer; with more it is made in slices

log = structlog.get_logger()

T = TypeVar("T")


class RouteQueryHeader(RequestHeader, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC; a missing topic is answered as an unknown one."""

    topic: str | None = None
    accept_standard_json_only: bool = False


class Handlers:
    """The answers of one nameserver. `announce` is told when the smallest id of a broker name has changed.

    It has 26 public methods, as a nameserver serves so many codes: each is one row of `table` and a few lines long.
    """

    def __init__(
        self,
        config: NameserverConfig,
        *,
        routes: RouteTable,
        kv: KvConfig,
        now_ms: Callable[[], int],
        announce: Callable[[MemberChange], None],
        removals: Removals,
    ) -> None:
        # Fixed for life.
        self._routes = routes
        self._kv = kv
        self._now_ms = now_ms
        self._announce = announce
        self._removals = removals
        self._started_ms = now_ms()
        self._disk = asyncio.Lock()  # one change of a file at a time
        # One large registration from its bytes to the table: what it is read into is a hundred times those.
        self._large = asyncio.Lock()
        # Large registrations are read here, so that nobody else waits for it.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="registrations")
        self._of_peers = _Orders()  # registrations through one connection, and its goodbye
        self.of_names = _Orders()  # registrations of one broker name
        # Connections in the order in which they came.
        self._numbers: WeakKeyDictionary[Channel, int] = WeakKeyDictionary()
        self._next_number = count()
        # The table of ordered topics, and as an answer.
        self._ordered: tuple[Mapping[str, str], bytes] = ({}, b"")
        # Replaced by an admin request.
        self.config = config
        self.settings_changed = SettingsSignal()
        self._follow(config)

    def connected(self, connection: Channel) -> None:
        """Somebody has come."""
        self._numbers[connection] = next(self._next_number)

    def _is_outlived(self, connection: Channel, cluster: str, broker_addr: str, broker_name: str) -> bool:
        """Whether what comes through this connection is of an earlier life of a broker: it has registered again since,
        through a connection that came later. The earlier life's last words may be read behind the later one's first,
        and took its master out of the routes, until it registered once more."""
        holder = self._routes.holder(cluster, broker_addr)
        if holder is None or holder[0] != broker_name or not isinstance(holder[1], Connection):
            return False
        number, later = self._numbers.get(connection), self._numbers.get(holder[1])
        return number is not None and later is not None and later > number

    def _refuse_outlived(self, connection: Channel, new: Registration) -> None:
        if self._is_outlived(connection, new.cluster, new.broker_addr, new.broker_name):
            reason = f"broker {new.broker_addr} has registered since, through a later connection"
            raise RequestError(ResponseCode.SYSTEM_ERROR, reason)

    def table(self, gate: Gate | None) -> HandlerTable:
        """Every request code that a nameserver serves; without a gate everybody may ask."""
        table = HandlerTable(gate)
        serve, code = table.register, RequestCode
        looks, changes = (on_cluster(GET),), (on_cluster(UPDATE),)
        our_looks, our_changes = (ours(on_cluster(GET)),), (ours(on_cluster(UPDATE)),)
        of_a_broker = (on_cluster(UPDATE, "cluster_name"),)
        serve(
            code.REGISTER_BROKER,
            self.register,
            header=RegisterBrokerHeader,
            needs=of_a_broker,
            body_size_max=REGISTRATION_SIZE_MAX,
            overtakes=True,
        )
        serve(
            code.UNREGISTER_BROKER,
            self.unregister,
            header=BrokerIdentityHeader,
            needs=of_a_broker,
            overtakes=True,
        )
        serve(
            code.BROKER_HEARTBEAT,
            self.heartbeat,
            header=BrokerIdentityHeader,
            needs=of_a_broker,
            overtakes=True,
        )
        serve(
            code.QUERY_DATA_VERSION,
            self.query_data_version,
            header=BrokerIdentityHeader,
            needs=(on_cluster(GET, "cluster_name"),),
            body_size_max=VERSION_SIZE_MAX,
            overtakes=True,
        )
        serve(
            code.GET_BROKER_MEMBER_GROUP,
            self.member_group,
            header=BrokerIdentityHeader,
            needs=(on_cluster(GET, "cluster_name"),),
        )
        serve(
            code.GET_ROUTEINFO_BY_TOPIC,
            self.route,
            header=RouteQueryHeader,
            needs=(on_topic("topic", PUB, SUB, GET),),
            overtakes=True,
        )
        serve(code.GET_BROKER_CLUSTER_INFO, self.cluster_info, needs=Open("every client looks for brokers"))
        serve(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.all_topics, needs=our_looks)
        serve(
            code.GET_TOPICS_BY_CLUSTER,
            self.topics_by_cluster,
            header=ClusterHeader,
            needs=(ours(on_cluster(GET, "cluster")),),
        )
        serve(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics, needs=our_looks)
        serve(code.GET_UNIT_TOPIC_LIST, self.unit_topics, needs=our_looks)
        serve(code.GET_HAS_UNIT_SUB_TOPIC_LIST, self.unit_sub_topics, needs=our_looks)
        serve(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.unit_sub_ununit_topics, needs=our_looks)
        serve(code.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_perm, header=BrokerNameHeader, needs=changes)
        serve(code.ADD_WRITE_PERM_OF_BROKER, self.add_write_perm, header=BrokerNameHeader, needs=changes)
        serve(
            code.DELETE_TOPIC_IN_NAMESRV,
            self.delete_topic,
            header=DeleteTopicInNameserverHeader,
            needs=of_a_broker,
        )
        serve(
            code.REGISTER_TOPIC_IN_NAMESRV,
            self.register_topic,
            header=TopicHeader,
            needs=changes,
            body_size_max=ROUTE_SIZE_MAX,
        )
        serve(code.PUT_KV_CONFIG, self.put_kv, header=KvConfigHeader, needs=changes)
        serve(code.GET_KV_CONFIG, self.get_kv, header=KvKeyHeader, needs=looks)
        serve(code.DELETE_KV_CONFIG, self.delete_kv, header=KvKeyHeader, needs=changes)
        serve(code.GET_KVLIST_BY_NAMESPACE, self.list_kv, header=KvNamespaceHeader, needs=looks)
        serve(
            code.UPDATE_NAMESRV_CONFIG,
            self.update_config,
            needs=our_changes,
            body_size_max=SETTINGS_SIZE_MAX,
        )
        serve(code.GET_NAMESRV_CONFIG, self.get_config, needs=our_looks)
        return table

    def close(self) -> None:
        """Give up the thread; nothing is asked any more."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    # --- brokers ----------------------------------------------------------------------------------------------

    def register(self, request: Request[RegisterBrokerHeader]) -> None:
        """One registration of a connection after the other, and of a broker name, in the order in which they came.

        Behind one that is still at work a large one waits, and with it whatever comes behind it through the connection:
        who sends them without end is read no faster than they are taken in.
        """
        connection = request.connection
        waits = len(request.body) > AT_ONCE_SIZE_MAX and self._of_peers.is_taken(connection)
        answer = connection.answer_alone if waits else connection.answer_in_task
        answer(request, lambda: self._registered(request))

    async def _registered(self, request: Request[RegisterBrokerHeader]) -> Response:
        async with self._of_peers.turn(request.connection), self.of_names.turn(request.header.broker_name):
            if not _is_large(request):
                return await self._register(request)
            async with self._large:
                return await self._register(request)

    async def _register(self, request: Request[RegisterBrokerHeader]) -> Response:
        header: RegisterBrokerHeader = request.header
        arguments = header, request.body, request.version
        new: Registration | None = None
        try:
            if header.compressed:
                loop = asyncio.get_running_loop()
                new = await loop.run_in_executor(self._reader, _read_compressed, *arguments)
            elif _is_large(request):
                new = await in_slices(self._elsewhere(reading_registration(*arguments, let_go)))
            else:
                new = read_registration(*arguments)
            self._refuse_outlived(request.connection, new)
            done = await in_slices(
                self._routes.registering(new, now_ms=self._now_ms(), connection=request.connection)
            )
        except RequestError as refused:
            log.warning(
                "nameserver.registration_refused",
                peer=request.connection.peer,
                broker_name=header.broker_name,
                broker_addr=header.broker_addr,
                reason=refused.remark,
            )
            if new is not None:  # the frames of the error would let go of all its topics in one call
                await in_slices(new.gone())
            raise
        _log_registration(new, done, request.connection.peer)
        for change in (done.change, done.left.change if done.left is not None else None):
            if change is not None:
                self._announce(change)
        ext = {}
        if done.master_addr is not None:
            ext = {"haServerAddr": done.master_ha_addr or "", "masterAddr": done.master_addr}
        await in_slices(new.gone())
        return Response(ext=ext, body=await self._order_topics())

    def _elsewhere(self, steps: CallSteps[T]) -> Steps[T]:
        """These, but for the calls that they give: a thread makes those."""
        made: Call | None = None
        while True:
            try:
                call = steps.send(made)
            except StopIteration as end:
                result: T = end.value
                return result
            if call is None:
                made = None
                yield
            else:
                making = asyncio.get_running_loop().run_in_executor(self._reader, call)
                yield making
                made = making.result

    async def _order_topics(self) -> bytes:
        """The KV table of ordered topics, which brokers mark as such; empty when there never was one."""
        table = self._kv.namespace(ORDER_TOPIC_CONFIG)
        if table is None or not self.config.return_order_topic_config_to_broker:
            return b""
        if self._ordered[0] is not table:  # a change makes another one
            self._ordered = table, await in_slices(written(KVTable(table=dict(table))))
        return self._ordered[1]

    async def unregister(self, request: Request[BrokerIdentityHeader]) -> Response:
        """Behind the registrations that came before it through this connection."""
        cluster, broker_addr = _identity(request.header)
        async with self._of_peers.turn(request.connection):
            if self._is_outlived(request.connection, cluster, broker_addr, request.header.broker_name):
                return Response()  # it has left, and has come again
            removal = self._routes.unregister(cluster, broker_addr)
        if removal is not None:
            self._removals.follow(iter([removal]), ASKED)
        return Response()

    def heartbeat(self, request: Request[BrokerIdentityHeader]) -> Response:
        cluster, broker_addr = _identity(request.header)
        self._routes.heartbeat(cluster, broker_addr, self._now_ms())
        return Response()

    def query_data_version(self, request: Request[BrokerIdentityHeader]) -> Response:
        cluster, broker_addr = _identity(request.header)
        version = _decoded(DataVersion.from_stranger, request, "DataVersion")
        changed, stored = self._routes.query_data_version(cluster, broker_addr, version, self._now_ms())
        return Response(
            ext={"changed": "true" if changed else "false"}, body=stored.to_bytes() if stored else b""
        )

    def member_group(self, request: Request[BrokerIdentityHeader]) -> Response | None:
        header: BrokerIdentityHeader = request.header
        members = BrokerMembers(
            broker_addrs=self._routes.member_group(header.broker_name),
            broker_name=header.broker_name,
            cluster=header.cluster_name or "",
        )
        body = BrokerMemberGroup(broker_member_group=members)
        return _answered(request, len(members.broker_addrs), body)

    @property
    def is_waiting(self) -> bool:
        """Whether no routes are answered yet, for brokers have had no time to register."""
        waited_ms = self._now_ms() - self._started_ms
        return self.config.need_wait_for_service and waited_ms < self.config.wait_seconds_for_service * 1000

    # --- routes and lists -------------------------------------------------------------------------------------

    def route(self, request: Request[RouteQueryHeader]) -> Response | None:
        header: RouteQueryHeader = request.header
        if self.is_waiting:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "name server not ready")
        topic = header.topic or ""
        strict = header.accept_standard_json_only or request.version >= VERSION_STRICT_ROUTE_JSON
        if self._routes.breadth(topic) > ANSWERED_AT_ONCE_MAX:
            answer_in_slices(request, self._routing(topic), standard=strict)
            return None
        route = self._whole(topic, self._routes.route(topic))
        return Response(body=route.to_standard() if strict else route.to_bytes())

    def _routing(self, topic: str) -> Steps[TopicRouteData]:
        return self._whole(topic, (yield from self._routes.routing(topic)))

    def _whole(self, topic: str, route: TopicRouteData | None) -> TopicRouteData:
        if route is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic or 'null'}",
            )
        if self.config.order_message_enable:
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_CONFIG, topic)
        return route

    def cluster_info(self, request: Request[NoFields]) -> Response | None:
        return _answered(request, self._routes.statistics().brokers, self._routes.describing())

    def all_topics(self, request: Request[NoFields]) -> Response | None:
        _refuse_unless(self.config.enable_all_topic_list)
        return self._listed(request, self._routes.listing())

    def topics_by_cluster(self, request: Request[ClusterHeader]) -> Response | None:
        _refuse_unless(self.config.enable_topic_list)
        return self._listed(request, self._routes.listing(cluster=request.header.cluster))

    def system_topics(self, request: Request[NoFields]) -> Response | None:
        names, broker_addr = self._routes.system_topics()
        body = TopicList(topic_list=names, broker_addr=broker_addr)
        return _answered(request, len(names), body)

    def unit_topics(self, request: Request[NoFields]) -> Response | None:
        _refuse_unless(self.config.enable_topic_list)
        return self._listed(request, self._routes.listing(unit=True))

    def unit_sub_topics(self, request: Request[NoFields]) -> Response | None:
        _refuse_unless(self.config.enable_topic_list)
        return self._listed(request, self._routes.listing(unit_subscription=True))

    def unit_sub_ununit_topics(self, request: Request[NoFields]) -> Response | None:
        _refuse_unless(self.config.enable_topic_list)
        return self._listed(request, self._routes.listing(unit=False, unit_subscription=True))

    def _listed(self, request: AnyRequest, listing: Steps[list[str]]) -> Response | None:
        def steps() -> Steps[TopicList]:
            return TopicList(topic_list=(yield from listing))

        return _answered(request, self._routes.statistics().topics, steps())

    # --- changes that admins make -----------------------------------------------------------------------------

    async def wipe_write_perm(self, request: Request[BrokerNameHeader]) -> Response:
        return Response(ext={"wipeTopicCount": str(await self._set_writable(request, writable=False))})

    async def add_write_perm(self, request: Request[BrokerNameHeader]) -> Response:
        return Response(ext={"addTopicCount": str(await self._set_writable(request, writable=True))})

    async def _set_writable(self, request: Request[BrokerNameHeader], *, writable: bool) -> int:
        name = request.header.broker_name
        async with self.of_names.turn(name):
            count = await in_slices(self._routes.setting_writable(name, writable))
        event = "nameserver.write_perm_added" if writable else "nameserver.write_perm_wiped"
        log.info(event, broker_name=name, topics=count, peer=request.connection.peer)
        return count

    def delete_topic(self, request: Request[DeleteTopicInNameserverHeader]) -> None:
        """Nothing of the peer is read meanwhile: what it asked behind is answered without the topic, and that it has
        left ends nothing half-way."""
        header: DeleteTopicInNameserverHeader = request.header
        peer = request.connection.peer

        async def deleted() -> Response:
            brokers = await in_slices(self._routes.deleting_topic(header.topic, header.cluster_name))
            log.info("nameserver.topic_deleted", topic=header.topic, brokers=brokers, peer=peer)
            return Response()

        request.connection.answer_alone(request, deleted)

    def register_topic(self, request: Request[TopicHeader]) -> Response:
        topic = checked_topic(request.header.topic)
        if not request.body:
            return Response()
        route = _decoded(TopicRouteData.from_stranger, request, "TopicRouteData")
        queues = {data.broker_name: checked_queues(topic, data) for data in route.queue_datas}
        if self._routes.register_topic(topic, queues):
            log.info("nameserver.topic_registered", topic=topic, brokers=sorted(queues))
        elif queues:
            log.warning("nameserver.topic_refused", topic=topic, brokers=sorted(queues))
        return Response()

    async def put_kv(self, request: Request[KvConfigHeader]) -> Response:
        header: KvConfigHeader = request.header
        async with self._disk:
            await self._store_kv(self._kv.planned_put(header.namespace, header.key, header.value))
        log.info(
            "nameserver.kv_put", namespace=header.namespace, key=header.key, peer=request.connection.peer
        )
        return Response()

    async def delete_kv(self, request: Request[KvKeyHeader]) -> Response:
        header: KvKeyHeader = request.header
        async with self._disk:
            change = self._kv.planned_delete(header.namespace, header.key)
            if change is None:
                return Response()
            await self._store_kv(change)
        log.info(
            "nameserver.kv_deleted", namespace=header.namespace, key=header.key, peer=request.connection.peer
        )
        return Response()

    async def _store_kv(self, change: KvChange) -> None:
        try:
            await asyncio.to_thread(self._kv.write, change)
        except OSError as failed:
            log.exception("nameserver.kv_write_failed")
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"KV config cannot be stored: {failed}") from failed
        self._kv.adopt(change)

    def get_kv(self, request: Request[KvKeyHeader]) -> Response:
        header: KvKeyHeader = request.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Response(ext={"value": value})

    def list_kv(self, request: Request[KvNamespaceHeader]) -> Response | None:
        namespace = request.header.namespace
        table = self._kv.namespace(namespace)
        if table is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return _answered(request, len(table), KVTable(table=dict(table)))

    def get_config(self, _: Request[NoFields]) -> Response:
        lines = [f"{key}={value}\n" for key, value in dump_settings(self.config).items()]
        return Response(body="".join(lines).encode())

    async def update_config(self, request: Request[NoFields]) -> Response:
        changes = canonical_keys(NameserverConfig, _read_changes(request.body))
        forbidden = sorted(self.config.forbidden_keys & changes.keys())
        if forbidden:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(forbidden)}"
            )
        async with self._disk:
            try:
                config = apply_changes(self.config, changes, origin="admin request")
                if config.config_store_path is not None:
                    used = used_values(config, changes.keys() - NameserverConfig.UNSUPPORTED.keys())
                    await asyncio.to_thread(store_changes, config.config_store_path, used)
            except SettingsError as wrong:
                raise RequestError(ResponseCode.INVALID_PARAMETER, str(wrong)) from wrong
            except OSError as failed:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"settings cannot be stored: {failed}"
                ) from failed
            self._follow(config)
        ignored = {key: reason for key, reason in NameserverConfig.UNSUPPORTED.items() if key in changes}
        waiting = _keys_for_next_start(changes.keys() - ignored.keys())
        log.info(
            "nameserver.config_changed",
            keys=sorted(changes.keys() - ignored.keys()),
            at_next_start=waiting,
            stored_in=str(config.config_store_path) if config.config_store_path else None,
            peer=request.connection.peer,
        )
        remarks = [f"used from the next start on: {', '.join(waiting)}"] if waiting else []
        remarks += [f"ignored: {key}: {reason}" for key, reason in ignored.items()]
        return Response(remark="; ".join(remarks) or None)

    def _follow(self, config: NameserverConfig) -> None:
        self.config = config
        self._routes.limits = RouteLimits(topics_max=config.max_topics, brokers_max=config.max_brokers)
        self._routes.support_acting_master = config.support_acting_master
        self._routes.drop_unlisted_topics = config.delete_topic_with_broker_registration
        self.settings_changed.notify()


class _Orders:
    """Who may change the same thing: one after the other, in the order in which they ask."""

    def __init__(self) -> None:
        # With one entry for each who has it or waits.
        self.locks: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    def is_taken(self, what: Hashable) -> bool:
        """Whether it is somebody's turn now."""
        return what in self.locks

    @asynccontextmanager
    async def turn(self, what: Hashable) -> AsyncIterator[None]:
        """It is my turn inside."""
        lock, users = self.locks.setdefault(what, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self.locks[what]


def _answered(request: AnyRequest, count: int, body: Body) -> Response | None:
    """A body that is made of so many: at once, or in slices before anything else of this peer is handled."""
    if count <= ANSWERED_AT_ONCE_MAX:
        return answer_at_once(body)
    answer_in_slices(request, body)
    return None


def _log_registration(new: Registration, done: Registered, peer: str) -> None:
    facts = {
        "cluster": new.cluster,
        "broker_name": new.broker_name,
        "broker_id": new.broker_id,
        "broker_addr": new.broker_addr,
        "peer": peer,
    }
    if not done.accepted:
        log.warning("nameserver.registration_outdated", **facts)
        return
    if done.left is not None:
        log.warning("nameserver.broker_replaced", replaced_name=done.left.broker_name, **facts)
    if done.replaced_addr is not None:
        log.warning("nameserver.broker_replaced", replaced_addr=done.replaced_addr, **facts)
    if done.first:
        log.info("nameserver.broker_registered", topics=len(new.topics), **facts)
    elif done.topics_changed:
        log.info("nameserver.topics_changed", topics=done.topics_changed, **facts)


def _identity(header: BrokerIdentityHeader) -> tuple[str, str]:
    """Cluster and address of a broker that speaks of itself. RequestError when one is missing."""
    if not header.cluster_name or not header.broker_addr:
        missing = "brokerAddr" if header.cluster_name else "clusterName"
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"header field {missing} is required")
    return header.cluster_name, header.broker_addr


def _read_compressed(header: RegisterBrokerHeader, body: bytes, version: int) -> Registration:
    """In a thread, giving way: it is inflated in one call, and may become anything."""
    return finished_here(reading_registration(header, body, version), GivingWay())


def _is_large(request: Request[RegisterBrokerHeader]) -> bool:
    """Whether a registration is read in slices, or a thread; what is compressed may become anything."""
    return request.header.compressed or len(request.body) > AT_ONCE_SIZE_MAX


def _decoded(decode: Callable[[bytes], T], request: AnyRequest, what: str) -> T:
    try:
        return decode(request.body)
    except FormatError as broken:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body is not a {what}: {broken}") from broken


def _read_changes(body: bytes) -> Mapping[str, str]:
    try:
        changes = read_properties(body.decode())
    except ValueError as broken:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the body is not properties text: {broken}"
        ) from broken
    if not changes:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "the body names no setting; send key=value lines")
    return changes


def _keys_for_next_start(changes: Set[str]) -> list[str]:
    """Those of the changed keys that a running nameserver does not follow."""
    live = {info.alias for name, info in NameserverConfig.model_fields.items() if name in LIVE_FIELDS}
    return sorted(changes - live)


def _refuse_unless(enabled: bool) -> None:
    if not enabled:
        raise RequestError(ResponseCode.SYSTEM_ERROR, DISABLED)
