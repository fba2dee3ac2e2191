"""Administration: topics, groups, brokers, offsets. What command line and console are made of.

Touches  nameservers and brokers through `Peers`. Nothing is cached: every call asks.

Calls that change something go to every master of the cluster (or the brokers named) and raise the first
refusal; those that already agreed stay changed. Every call is repeatable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from aerobee.errors import UNKNOWN_TOPIC, BrokerRefused, InvalidMessage, NameserverAnswer, NoBroker, NoRoute
from aerobee.group_admin import GroupAdmin, TopicLag
from aerobee.offsets import Offsets
from aerobee.peers import Header, Nameservers, Peers
from aerobee.routes import MASTER_ID, TEMPLATE_TOPIC, MessageQueue, near_names
from aerobee.start_at import Where, parse_where
from aerobee_proto.bodies import (
    AllGroups,
    ClusterInfo,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    KVTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.names import check_group, check_topic, is_internal_topic, is_system_topic

__all__ = ["Admin", "BrokerNode", "GroupProgress", "QueueOffsets", "QueueProgress", "TopicDescription"]

PERMISSIONS: Final = {"r": Perm.READ, "w": Perm.WRITE, "rw": Perm.READ_WRITE}
PermissionText = Literal["r", "w", "rw"]


@dataclass(slots=True, frozen=True)
class BrokerNode:
    """One broker process. `broker_id` 0 is the master."""

    cluster_name: str
    broker_name: str
    broker_id: int
    addr: str


@dataclass(slots=True, frozen=True)
class QueueOffsets:
    """Ends of one queue; `last_update_ms` is the store time of its last message, None when it is empty."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int | None

    @property
    def message_count(self) -> int:
        return self.max_offset - self.min_offset


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


class Admin:
    """Administration calls. Reached as `client.admin`."""

    def __init__(
        self, peers: Peers, nameservers: Nameservers, offsets: Offsets, clock_ms: Callable[[], int]
    ) -> None:
        """`clock_ms` gives epoch milliseconds, for times like "-1h"."""
        self._peers = peers
        self._nameservers = nameservers
        self._offsets = offsets
        self._clock_ms = clock_ms
        self._groups = GroupAdmin(peers, offsets, self._masters_of)

    # --- the cluster ------------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Clusters, broker names and addresses, as the nameserver knows them."""
        answer = await self._nameservers.call("list brokers", RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.from_bytes(answer.body)

    async def brokers(self) -> list[BrokerNode]:
        """Every broker process, ordered by cluster, name and id."""
        info = await self.cluster()
        nodes = [
            BrokerNode(broker.cluster or "", broker.broker_name, broker_id, addr)
            for broker in info.broker_addr_table.values()
            for broker_id, addr in broker.broker_addrs.items()
        ]
        return sorted(nodes, key=lambda node: (node.cluster_name, node.broker_name, node.broker_id))

    async def broker_runtime_info(self, broker: str) -> dict[str, str]:
        """Figures of a running broker; `broker` is its address or its name (then the master is asked)."""
        addr = await self._addr_of(broker)
        answer = await self._peers.call(
            f"ask broker {broker} for its figures", addr, RequestCode.GET_BROKER_RUNTIME_INFO
        )
        return dict(KVTable.from_bytes(answer.body).table)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Settings of a running broker."""
        addr = await self._addr_of(broker)
        answer = await self._peers.call(
            f"ask broker {broker} for its settings", addr, RequestCode.GET_BROKER_CONFIG
        )
        return _parse_settings(bytes(answer.body).decode("utf-8", "replace"))

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        await self._peers.call(
            f"change settings of broker {broker}",
            await self._addr_of(broker),
            RequestCode.UPDATE_BROKER_CONFIG,
            body=text.encode(),
        )

    # --- topics -----------------------------------------------------------------------------------------------

    async def topics(self, *, system: bool = False, internal: bool = False) -> list[str]:
        """Names of all topics. `system` adds RocketMQ's own, `internal` retry and dead-letter topics."""
        answer = await self._nameservers.call("list topics", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = sorted(set(TopicList.from_bytes(answer.body).topic_list))
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
    ) -> list[str]:
        """Create a topic, or change it when it exists; returns the names of the brokers that have it now.

        queues        queues on each broker; `write_queues` if fewer (or more) of them may be written
        attributes    settings of the topic, for example {"message.type": "FIFO"}
        cluster, brokers  where; without them every master of every cluster
        """
        _check(check_topic, topic)
        if queues < 1:
            raise InvalidMessage(f"topic {topic!r} needs at least one queue, not {queues}")
        header: dict[str, str] = {
            "topic": topic,
            "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues if write_queues is None else write_queues),
            "perm": str(PERMISSIONS[permission]),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if order else "false",
        }
        if attributes:
            header["attributes"] = ",".join(f"+{key}={value}" for key, value in attributes.items())
        return await self._on_masters(
            f"create topic {topic!r}", RequestCode.UPDATE_AND_CREATE_TOPIC, header, cluster, brokers
        )

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        write_queues: int | None = None,
        permission: PermissionText | None = None,
    ) -> list[str]:
        """Change a topic on the brokers that have it; what is None stays. Returns their names."""
        configs = await self._configs(topic, await self.route(topic))
        for broker_name, config in configs.items():
            header = {
                "topic": topic,
                "defaultTopic": TEMPLATE_TOPIC,
                "readQueueNums": str(config.read_queue_nums if queues is None else queues),
                "writeQueueNums": str(
                    write_queues if write_queues is not None else queues or config.write_queue_nums
                ),
                "perm": str(config.perm if permission is None else PERMISSIONS[permission]),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": str(config.topic_sys_flag),
                "order": "true" if config.order else "false",
            }
            await self._on_masters(
                f"change topic {topic!r}", RequestCode.UPDATE_AND_CREATE_TOPIC, header, None, [broker_name]
            )
        return list(configs)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic with all its messages and offsets; returns the names of the brokers asked.

        Unknown topics are no error.
        """
        _check(check_topic, topic)
        what = f"delete topic {topic!r}"
        done = await self._on_masters(what, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, cluster, ())
        header = {"topic": topic} | ({"clusterName": cluster} if cluster else {})
        for addr in self._nameservers.addrs:
            await self._peers.call(what, addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        return done

    async def route(self, topic: str) -> TopicRouteData:
        """Where a topic lives; NoRoute when nobody knows it."""
        answer, answers = await self._nameservers.ask_until(
            f"look up the route of topic {topic!r}",
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
        )
        if answer is None:
            raise NoRoute(topic, answers, await self._near(topic, answers))
        return TopicRouteData.from_bytes(answer.body)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Route, configuration and ends of every queue, and the groups that read it."""
        route = await self.route(topic)
        configs = await self._configs(topic, route)
        queues: list[QueueOffsets] = []
        groups: set[str] = set()
        for addr in _masters(route).values():
            answer = await self._peers.call(
                f"describe topic {topic!r}", addr, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
            )
            queues += _queue_offsets(TopicStatsTable.from_bytes(answer.body))
            groups |= set(await self._groups_of(topic, addr))
        queues.sort(key=lambda one: one.queue)
        return TopicDescription(topic, route, configs, queues, tuple(sorted(groups)))

    # --- groups -----------------------------------------------------------------------------------------------

    async def groups(self) -> list[SubscriptionGroupConfig]:
        """Consumer groups of all masters, each once, by name."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for node in await self._masters(None, ()):
            answer = await self._peers.call(
                "list groups", node.addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            )
            table = AllGroups.from_bytes(answer.body).subscription_group_table
            for name, config in table.items():
                found.setdefault(name, config)
        return [found[name] for name in sorted(found)]

    async def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
    ) -> list[str]:
        """Create a consumer group, or give it these settings; returns the names of the brokers that have it now."""
        _check(check_group, group)
        config = SubscriptionGroupConfig(group_name=group, retry_max_times=retry_max_times)
        return await self._on_masters(
            f"create group {group!r}",
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            None,
            cluster,
            brokers,
            config.to_bytes(),
        )

    async def update_group(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        consume: bool | None = None,
        broadcast: bool | None = None,
    ) -> list[str]:
        """Change a group on every master that has it; what is None stays. Returns the names of the brokers.

        `consume` False makes its members wait: their pulls are refused until it is True again.
        """
        wanted = {
            "retry_max_times": retry_max_times,
            "consume_enable": consume,
            "consume_broadcast_enable": broadcast,
        }
        changes = {name: value for name, value in wanted.items() if value is not None}
        what, changed = f"change group {group!r}", []
        for node in await self._masters(None, ()):
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._peers.call(what, node.addr, code, {"group": group})
            config = msgspec.structs.replace(SubscriptionGroupConfig.from_bytes(answer.body), **changes)
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._peers.call(what, node.addr, code, None, config.to_bytes())
            changed.append(node.broker_name)
        return changed

    async def delete_group(
        self, group: str, *, offsets: bool = True, cluster: str | None = None
    ) -> list[str]:
        """Delete a consumer group, with its offsets unless told otherwise. Unknown groups are no error."""
        flag = "true" if offsets else "false"
        header = {"groupName": group, "cleanOffset": flag, "removeOffset": flag}
        return await self._on_masters(
            f"delete group {group!r}", RequestCode.DELETE_SUBSCRIPTIONGROUP, header, cluster, ()
        )

    async def group_progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far a group is in every topic it has offsets in, or in one."""
        header = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        queues: list[QueueProgress] = []
        for node in await self._masters(None, ()):
            answer = await self._peers.call(
                f"ask the progress of group {group!r}", node.addr, RequestCode.GET_CONSUME_STATS, header
            )
            queues += _queue_progress(ConsumeStats.from_bytes(answer.body))
        return GroupProgress(group, sorted(queues, key=lambda one: one.queue))

    async def group_connections(self, group: str) -> ConsumerConnection | None:
        """Who is online in a group; None when nobody is. Every member talks to every broker: one is asked."""
        what = f"list members of group {group!r}"
        for node in await self._masters(None, ()):
            answer = await self._peers.request(
                what, node.addr, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
            )
            if answer.code == ResponseCode.SUCCESS:
                return ConsumerConnection.from_bytes(answer.body)
            if answer.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise BrokerRefused(what, node.addr, answer.code, answer.remark)
        return None

    async def group_lags(self) -> list[TopicLag]:
        """How far every group is behind in every topic, by group and topic. Without the delays."""
        return await self._groups.lags()

    async def group_lag(self, group: str) -> list[TopicLag]:
        """How far a group is behind in each of its topics, and by how much time."""
        return await self._groups.lag(group)

    async def reset_group(
        self, group: str, topic: str, to: Where, *, queue: MessageQueue | None = None
    ) -> dict[MessageQueue, int]:
        """Make a group go on elsewhere, whether it is online or not; returns the new offset of each queue.

        to        "earliest", "latest", a time, "-1h"; an offset only together with `queue`
        queue     only this queue; without it all queues of the topic
        """
        return await self._groups.reset(group, topic, parse_where(to, self._clock_ms()), queue)

    async def clone_group(
        self, source: str, target: str, topic: str | None = None, *, offline: bool = False
    ) -> list[str]:
        """Give a group the offsets of another one, in one topic or in all; returns the names of the brokers.

        `offline` copies topics too that the source had once consumed and does not subscribe to any more.
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
        return await self._groups.consume_directly(group, client_id, topic, message_id, addr)

    # --- offsets ----------------------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """First readable logical offset of a queue."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last readable logical offset of a queue."""
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
        """Masters of the cluster or with the names; NoBroker names what is there instead."""
        nodes = await self.brokers()
        masters = [
            node
            for node in nodes
            if node.broker_id == MASTER_ID
            and (cluster is None or node.cluster_name == cluster)
            and (not brokers or node.broker_name in brokers)
        ]
        if not masters or not set(brokers) <= {node.broker_name for node in masters}:
            wanted = ", ".join(brokers) or (f"cluster {cluster}" if cluster else "any cluster")
            known = [f"{node.cluster_name}/{node.broker_name}#{node.broker_id}" for node in nodes]
            raise NoBroker("*", f"master of {wanted}", known)
        return masters

    async def _masters_of(self, topic: str | None) -> dict[str, str]:
        """Broker name to address: of the masters that have the topic, or of all."""
        if topic is not None:
            return _masters(await self.route(topic))
        return {node.broker_name: node.addr for node in await self._masters(None, ())}

    async def _on_masters(
        self,
        what: str,
        code: RequestCode,
        header: Header,
        cluster: str | None,
        brokers: Sequence[str],
        body: bytes = b"",
    ) -> list[str]:
        masters = await self._masters(cluster, brokers)
        for node in masters:
            await self._peers.call(what, node.addr, code, header, body)
        return [node.broker_name for node in masters]

    async def _addr_of(self, broker: str) -> str:
        if ":" in broker:
            return broker
        return (await self._masters(None, [broker]))[0].addr

    async def _system_names(self) -> set[str]:
        """Names that are topics of the system because a cluster or broker has them."""
        info = await self.cluster()
        clusters = set(info.cluster_addr_table)
        return clusters | set(info.broker_addr_table) | {f"{name}_REPLY_TOPIC" for name in clusters}

    async def _near(self, topic: str, answers: Sequence[NameserverAnswer]) -> list[str]:
        if not any(answer.outcome == UNKNOWN_TOPIC for answer in answers):
            return []
        return near_names(topic, await self.topics(internal=True))

    async def _configs(self, topic: str, route: TopicRouteData) -> dict[str, TopicConfig]:
        configs: dict[str, TopicConfig] = {}
        for broker_name, addr in _masters(route).items():
            answer = await self._peers.call(
                f"ask broker {broker_name} for topic {topic!r}",
                addr,
                RequestCode.GET_TOPIC_CONFIG,
                {"topic": topic, "lo": "true"},
            )
            configs[broker_name] = TopicConfig.from_bytes(answer.body)
        return configs

    async def _groups_of(self, topic: str, addr: str) -> list[str]:
        answer = await self._peers.call(
            f"list groups of topic {topic!r}", addr, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}
        )
        return list(GroupList.from_bytes(answer.body).group_list)


def _masters(route: TopicRouteData) -> dict[str, str]:
    return {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name)
        if MASTER_ID in broker.broker_addrs
    }


def _queue_offsets(stats: TopicStatsTable) -> list[QueueOffsets]:
    return [
        QueueOffsets(
            MessageQueue(queue.topic, queue.broker_name, queue.queue_id),
            ends.min_offset,
            ends.max_offset,
            ends.last_update_timestamp or None,
        )
        for queue, ends in stats.offset_table.items()
    ]


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


def _parse_settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _check(check: Callable[[str], None], name: str) -> None:
    try:
        check(name)
    except RequestError as refused:
        raise InvalidMessage(refused.remark) from refused
