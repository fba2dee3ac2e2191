"""Administration: topics, groups, brokers, offsets. What command line and console are made of.

Touches  nameservers and brokers through `Peers`. Nothing is cached: every call asks.

Calls that change something go to every master of the cluster (or the brokers named) and raise the first
refusal; those that already agreed stay changed. Every call is repeatable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from aerobee.admin.group_admin import GroupAdmin, TopicLag
from aerobee.admin.set_admin import BrokerNode, SetAdmin, nodes_of
from aerobee.admin.topic_admin import PERMISSIONS, PermissionText, QueueOffsets, TopicAdmin
from aerobee.errors import (
    UNKNOWN_TOPIC,
    InvalidMessage,
    NameserverAnswer,
    NoQueue,
    NoRoute,
    NotFound,
)
from aerobee.net.answers import body_of
from aerobee.net.offsets import Offsets
from aerobee.net.peers import Nameservers, Peers
from aerobee.terms.arguments import all_checked
from aerobee.terms.routes import MASTER_ID, MessageQueue, near_names
from aerobee.terms.start_at import Where, parse_where
from aerobee_proto.bodies import (
    ClusterInfo,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    KVTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    TopicRouteData,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RecordError, RequestError
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.names import check_group, check_topic, is_internal_topic, is_system_topic, reply_topic
from aerobee_proto.records import decode_records

__all__ = ["Admin", "BrokerNode", "GroupProgress", "QueueOffsets", "QueueProgress", "TopicDescription"]
BROKERS_NAMED_MAX: Final = 20
PROPERTY_ESCAPES: Final = str.maketrans(
    {char: f"\\{char}" for char in "\\=:#! "} | {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
)


@dataclass(slots=True, frozen=True)
class TopicDescription:
    """Everything about a topic: per broker its configuration, per queue its ends."""

    topic: str
    route: TopicRouteData
    configs: Mapping[str, TopicConfig]
    queues: Sequence[QueueOffsets]
    groups: Sequence[str] = field(default_factory=tuple)

    @property
    def message_count(self) -> int:
        return sum(queue.message_count for queue in self.queues)


@dataclass(slots=True, frozen=True)
class QueueProgress:
    """How far a group is in one queue; `last_timestamp_ms` is the store time of the last message consumed."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int | None

    @property
    def lag(self) -> int:
        """Messages not yet consumed."""
        return self.broker_offset - self.consumer_offset


@dataclass(slots=True, frozen=True)
class GroupProgress:
    """How far a group is."""

    group: str
    queues: Sequence[QueueProgress]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


@all_checked
class Admin:
    """Administration calls. Reached as `client.admin`.

    Its many public methods are what users call, one for each thing that there is to do; topics and groups have a class
    of their own behind it.
    """

    def __init__(
        self, peers: Peers, nameservers: Nameservers, offsets: Offsets, clock_ms: Callable[[], int]
    ) -> None:
        """`clock_ms` gives epoch milliseconds, for times like "-1h"."""
        self._peers = peers
        self._nameservers = nameservers
        self._offsets = offsets
        self._clock_ms = clock_ms
        self._topics = TopicAdmin(peers, nameservers, self._addrs)
        self._groups = GroupAdmin(peers, offsets, self._masters_of)

    # --- the cluster ------------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Clusters, broker names and addresses, as the nameserver knows them."""
        answer = await self._nameservers.call("list brokers", RequestCode.GET_BROKER_CLUSTER_INFO)
        return body_of(ClusterInfo, answer)

    async def brokers(self) -> list[BrokerNode]:
        """Every broker process, ordered by cluster, name and id."""
        return nodes_of(await self.cluster())

    async def broker_runtime_info(self, broker: str) -> dict[str, str]:
        """Figures of a running broker; `broker` is its address or its name (then the master is asked)."""
        addr = await self._addr_of(broker)
        answer = await self._peers.call(
            f"ask broker {broker} for its figures", addr, RequestCode.GET_BROKER_RUNTIME_INFO
        )
        return dict(body_of(KVTable, answer).table)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Settings of a running broker."""
        return (await self._broker_config(broker))[0]

    async def hot_settings(self, broker: str) -> frozenset[str]:
        """Names of the settings that can be changed while the broker runs; empty where it does not say (RocketMQ)."""
        return (await self._broker_config(broker))[1]

    async def _broker_config(self, broker: str) -> tuple[dict[str, str], frozenset[str]]:
        addr = await self._addr_of(broker)
        answer = await self._peers.call(
            f"ask broker {broker} for its settings", addr, RequestCode.GET_BROKER_CONFIG
        )
        hot = frozenset(filter(None, answer.ext.get("hotKeys", "").split(";")))
        return _parse_settings(bytes(answer.body).decode("utf-8", "replace")), hot

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
        await self._peers.call(
            f"change settings of broker {broker}",
            await self._addr_of(broker),
            RequestCode.UPDATE_BROKER_CONFIG,
            body=text.encode(),
        )

    @property
    def sets(self) -> SetAdmin:
        """Members of sets: masters and their slaves, their state and their roles."""
        return SetAdmin(self._peers, self._nameservers)

    # --- topics -----------------------------------------------------------------------------------------------

    async def topics(self, *, system: bool = False, internal: bool = False) -> list[str]:
        """Names of all topics. `system` adds RocketMQ's own, `internal` retry and dead-letter topics."""
        answer = await self._nameservers.call("list topics", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = sorted(set(body_of(TopicList, answer).topic_list))
        if not system:
            own = await self._system_names()
            names = [name for name in names if name not in own and not is_system_topic(name)]
        return names if internal else [name for name in names if not is_internal_topic(name)]

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        permission: PermissionText = "rw",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> list[str]:
        """Create a topic; returns the names of the brokers that have it now.

        queues        queues on each broker; `write_queues` if fewer of them may be written
        attributes    settings of the topic, for example {"message.type": "FIFO"}
        cluster, brokers  where; without them every master of every cluster
        exist_ok      where the topic exists it stays as it is, whatever its settings

        Success too where it exists with these settings; AlreadyExists, and nothing is changed, where it exists with
        others: `update_topic` changes it.
        """
        _check(check_topic, topic)
        requested = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=PERMISSIONS[permission],
            order=order,
            attributes=dict(attributes or {}),
        )
        return await self._topics.create(requested, cluster=cluster, brokers=brokers, exist_ok=exist_ok)

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        write_queues: int | None = None,
        permission: PermissionText | None = None,
        hide_messages: bool = False,
    ) -> list[str]:
        """Change a topic on the brokers that have it; what is None stays. Returns their names.

        Taking queues from the readers (fewer `queues`, or the permission to read) is HidesMessages, and nothing is
        changed, while messages are stored in them; `hide_messages` does it all the same.
        """
        return await self._topics.update(
            topic,
            _masters(await self.route(topic)),
            queues=queues,
            write_queues=write_queues,
            permission=permission,
            hide_messages=hide_messages,
        )

    async def delete_topic(
        self, topic: str, *, cluster: str | None = None, missing_ok: bool = False
    ) -> list[str]:
        """Delete a topic with all its messages and offsets; returns the names of the brokers that had it.

        NoRoute (in the cluster asked for: NotFound) when nobody has it, unless `missing_ok`.
        """
        _check(check_topic, topic)
        try:
            known: TopicRouteData | NoRoute = await self.route(topic)
        except NoRoute as unknown:
            known = unknown
        return await self._topics.delete(topic, known, cluster=cluster, missing_ok=missing_ok)

    async def broker_topics(self, broker: str) -> dict[str, TopicConfig]:
        """Settings of every topic of a broker, RocketMQ's own too; `broker` is its address or its name."""
        addr = await self._addr_of(broker)
        answer = await self._peers.call(
            f"list topics of broker {broker}", addr, RequestCode.GET_ALL_TOPIC_CONFIG
        )
        return body_of(TopicConfigWrapper, answer).topic_config_table

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Settings of a topic by name of the broker, of those that have it; empty when none has."""
        return await self._topics.configs(topic, await self._addrs(None, ()))

    async def route(self, topic: str) -> TopicRouteData:
        """Where a topic lives; NoRoute when nobody knows it."""
        answer, answers = await self._nameservers.ask_until(
            f"look up the route of topic {topic!r}",
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
        )
        if answer is None:
            raise NoRoute(topic, answers, await self._near(topic, answers))
        return body_of(TopicRouteData, answer)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Route, configuration and ends of every queue, and the groups that read it."""
        route = await self.route(topic)
        masters = _masters(route)
        configs = await self._topics.require(topic, masters)
        queues: list[QueueOffsets] = []
        groups: set[str] = set()
        for broker_name in configs:
            addr = masters[broker_name]
            queues += await self._topics.ends(topic, addr)
            groups |= set(await self._groups_of(topic, addr))
        queues.sort(key=lambda one: one.queue)
        return TopicDescription(topic, route, configs, queues, tuple(sorted(groups)))

    # --- groups -----------------------------------------------------------------------------------------------

    async def groups(self) -> list[SubscriptionGroupConfig]:
        """Consumer groups of all masters, each once, by name."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for table in (await self._groups.configs(await self._addrs(None, ()))).values():
            found = table | found
        return [found[name] for name in sorted(found)]

    async def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> list[str]:
        """Create a consumer group; returns the names of the brokers that have it now.

        Success too where it exists with these settings; AlreadyExists, and nothing is changed, where it exists with
        others (`update_group` changes it), unless `exist_ok`, which leaves it as it is.
        """
        _check(check_group, group)
        masters = await self._addrs(cluster, brokers)
        return await self._groups.create(group, retry_max_times, masters, exist_ok=exist_ok)

    async def update_group(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        consume: bool | None = None,
        broadcast: bool | None = None,
    ) -> list[str]:
        """Change a group on every master that has it; what is None stays. Returns the names of the brokers.

        `consume` False makes its members wait: their pulls are refused until it is True again. NotFound when no
        broker knows the group.
        """
        requested = {
            "retry_max_times": retry_max_times,
            "consume_enable": consume,
            "consume_broadcast_enable": broadcast,
        }
        changes = {name: value for name, value in requested.items() if value is not None}
        return await self._groups.update(group, changes)

    async def delete_group(
        self, group: str, *, offsets: bool = True, cluster: str | None = None, missing_ok: bool = False
    ) -> list[str]:
        """Delete a consumer group, with its offsets unless told otherwise.

        Returns the names of the brokers that had it. NotFound when no broker knows it, unless `missing_ok`.
        """
        masters = await self._addrs(cluster, ())
        return await self._groups.delete(group, masters, offsets=offsets, missing_ok=missing_ok)

    async def find_group(self, group: str) -> list[str]:
        """Names of the brokers that know a group: by settings, offsets or members. NotFound when none does."""
        return list(await self._groups.places(group, await self._addrs(None, ())))

    async def group_progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far a group is in every topic it has offsets in, or in one.

        NotFound when no broker knows the group, NoRoute when nobody knows the topic.
        """
        header = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        queues: list[QueueProgress] = []
        for node in await self._masters(None, ()):
            answer = await self._peers.call(
                f"ask the progress of group {group!r}", node.addr, RequestCode.GET_CONSUME_STATS, header
            )
            queues += _queue_progress(body_of(ConsumeStats, answer))
        if topic is not None or not queues:  # brokers answer alike for what they never heard of
            await self.find_group(group)
            if topic is not None:
                await self.route(topic)
        return GroupProgress(group, sorted(queues, key=lambda one: one.queue))

    async def group_connections(self, group: str) -> ConsumerConnection | None:
        """Who is online in a group; None when nobody is. Every member talks to every broker: one is asked."""
        for node in await self._masters(None, ()):
            found = await self._groups.members(group, node.addr)
            if found is not None:
                return found
        return None

    async def group_lags(self) -> list[TopicLag]:
        """How far every group is behind in every topic, by group and topic. Without the delays."""
        return await self._groups.lags()

    async def group_lag(self, group: str) -> list[TopicLag]:
        """How far a group is behind in each of its topics, and by how much time. NotFound for an unknown group."""
        return await self._groups.lag(group)

    async def reset_group(
        self, group: str, topic: str, to: Where, *, queue: MessageQueue | None = None
    ) -> dict[MessageQueue, int]:
        """Make a group go on elsewhere, whether it is online or not; returns the new offset of each queue.

        to        "earliest", "latest", a time, "-1h"; an offset only together with `queue`
        queue     only this queue; without it all queues of the topic

        NotFound when no broker knows the group: `create_group` makes one that nobody consumes in yet. NoQueue when the
        topic has no such queue.
        """
        if queue is not None:
            await self._check_queue(topic, queue)
        return await self._groups.reset(group, topic, parse_where(to, self._clock_ms()), queue)

    async def _check_queue(self, topic: str, queue: MessageQueue) -> None:
        """NoQueue when the broker has the topic, and fewer queues."""
        for data in (await self.route(topic)).queue_datas:
            count = max(data.read_queue_nums, data.write_queue_nums)
            if data.broker_name == queue.broker_name and not 0 <= queue.queue_id < count:
                there = f"topic {topic!r} has queues 0 to {count - 1} on {data.broker_name}"
                raise NoQueue(f"{there}; {queue.queue_id} is none of them")

    async def clone_group(
        self, source: str, target: str, topic: str | None = None, *, offline: bool = False
    ) -> list[str]:
        """Give a group the offsets of another one, in one topic or in all; returns the names of the brokers.

        `offline` copies topics too that the source had once consumed and does not subscribe to any more. NotFound
        when the source has no offsets there.
        """
        return await self._groups.clone(source, target, topic, offline=offline)

    async def member_running_info(
        self, group: str, client_id: str, *, threads: bool = False
    ) -> ConsumerRunningInfo:
        """What a member of a group tells of itself; `threads` adds what its threads do.

        Raises MemberNotFound, or BrokerRefused (CONSUME_MSG_TIMEOUT) when it does not answer.
        """
        return await self._groups.running_info(group, client_id, threads=threads)

    async def consume_directly(
        self, group: str, client_id: str, topic: str, message_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Hand one stored message to a member, outside of its queues; how it took it. For finding out why it fails.

        `message_id` is an offset id: it says which broker has the message.
        """
        try:
            place = decode_offset_message_id(message_id)
        except FormatError as error:
            raise InvalidMessage(f"{message_id!r} does not say where the message is: {error}") from error
        addr = f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"
        await self.route(topic)
        await self._check_message(message_id, topic, addr, place.physical_offset)
        return await self._groups.consume_directly(group, client_id, topic, message_id, addr)

    async def _check_message(self, message_id: str, topic: str, addr: str, physical_offset: int) -> None:
        """NotFound when the broker has no message there, or one of another topic."""
        answer = await self._peers.request(
            f"look up message {message_id}",
            addr,
            RequestCode.VIEW_MESSAGE_BY_ID,
            {"offset": str(physical_offset)},
        )
        try:
            records = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        except RecordError:
            records = []
        if not records:
            raise NotFound(
                "message", message_id, where=f"at {addr}", advice="aerobee query shows the ids there are"
            )
        if records[0].topic != topic:
            raise NotFound(
                "message", message_id, where=f"in topic {topic!r}", advice=f"it is in {records[0].topic}"
            )

    # --- offsets ----------------------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """First readable queue offset of a queue."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last readable queue offset of a queue."""
        return await self._offsets.max_offset(queue)

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """First offset stored at or after a time; "upper": the last one at or before it."""
        return await self._offsets.by_time(queue, timestamp_ms, boundary)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Store time of the first readable message, epoch milliseconds; None for an empty queue."""
        return await self._offsets.earliest_store_time(queue)

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset a group will read next; None when it has committed none."""
        return await self._offsets.committed(group, queue)

    async def set_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset a group will read next. Members that are online may overwrite it."""
        await self._offsets.commit(group, queue, offset)

    # --- helpers ----------------------------------------------------------------------------------------------

    async def _masters(self, cluster: str | None, brokers: Sequence[str]) -> list[BrokerNode]:
        """Masters of the cluster or with the names; NotFound names what is there instead."""
        nodes = await self.brokers()
        masters = [
            node
            for node in nodes
            if node.broker_id == MASTER_ID
            and (cluster is None or node.cluster_name == cluster)
            and (not brokers or node.broker_name in brokers)
        ]
        missing = sorted(set(brokers) - {node.broker_name for node in masters})
        if masters and not missing:
            return masters
        where = f"in cluster {cluster}" if cluster is not None and brokers else ""
        if cluster is not None and not any(node.cluster_name == cluster for node in nodes):
            clusters = sorted({node.cluster_name for node in nodes})
            raise NotFound("cluster", cluster, known=clusters, near_names=near_names(cluster, clusters))
        known = sorted(
            {node.broker_name for node in nodes if cluster is None or node.cluster_name == cluster}
        )
        if missing and missing[0] not in known:
            near = near_names(missing[0], known)
            raise NotFound(
                "broker", missing[0], where=where, known=known[:BROKERS_NAMED_MAX], near_names=near
            )
        if not nodes:
            advice = "one registers when it starts: aerobee broker --set namesrvAddr=..."
            raise NotFound("broker", "", where="is registered", advice=advice)
        down = missing[0] if missing else ", ".join(known)
        raise NotFound("master of broker", down, where=where, advice="its replicas alone are registered")

    async def _addrs(self, cluster: str | None, brokers: Sequence[str]) -> dict[str, str]:
        return {node.broker_name: node.addr for node in await self._masters(cluster, brokers)}

    async def _masters_of(self, topic: str | None) -> dict[str, str]:
        """Broker name to address: of the masters that have the topic, or of all."""
        if topic is not None:
            return _masters(await self.route(topic))
        return await self._addrs(None, ())

    async def _addr_of(self, broker: str) -> str:
        if ":" in broker:
            return broker
        return (await self._masters(None, [broker]))[0].addr

    async def _system_names(self) -> set[str]:
        """Names that are topics of the system because a cluster or broker has them."""
        info = await self.cluster()
        clusters = set(info.cluster_addr_table)
        return clusters | set(info.broker_addr_table) | {reply_topic(name) for name in clusters}

    async def _near(self, topic: str, answers: Sequence[NameserverAnswer]) -> list[str]:
        if not any(answer.outcome == UNKNOWN_TOPIC for answer in answers):
            return []
        return near_names(topic, await self.topics(internal=True))

    async def _groups_of(self, topic: str, addr: str) -> list[str]:
        answer = await self._peers.call(
            f"list groups of topic {topic!r}", addr, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}
        )
        return list(body_of(GroupList, answer).group_list)


def _masters(route: TopicRouteData) -> dict[str, str]:
    return {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name)
        if MASTER_ID in broker.broker_addrs
    }


def _queue_progress(stats: ConsumeStats) -> list[QueueProgress]:
    return [
        QueueProgress(
            MessageQueue(queue.topic, queue.broker_name, queue.queue_id),
            one.broker_offset,
            one.consumer_offset,
            one.last_timestamp or None,
        )
        for queue, one in stats.offset_table.items()
    ]


def _escaped(text: str) -> str:
    """A name or a value in the form of Java's properties, so that what is read is what was given."""
    return text.translate(PROPERTY_ESCAPES)


def _parse_settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _check(check: Callable[[str], None], name: str) -> None:
    try:
        check(name)
    except RequestError as refused:
        raise InvalidMessage(refused.remark) from refused
