"""Consumer and producer groups: making, changing, deleting, looking at them.

200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP   225 ..._LIST   207 DELETE_SUBSCRIPTIONGROUP
201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG   352 GET_SUBSCRIPTIONGROUP_CONFIG
353 UPDATE_AND_GET_GROUP_FORBIDDEN   203 GET_CONSUMER_CONNECTION_LIST
204 GET_PRODUCER_CONNECTION_LIST   328 GET_ALL_PRODUCER_INFO   208 GET_CONSUME_STATS
317 GET_BROKER_CONSUME_STATS   343 QUERY_TOPICS_BY_CONSUMER   345 QUERY_SUBSCRIPTION_BY_CONSUMER
314 CLONE_GROUP_OFFSET
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.members.clients import Member, connection_body
from aerobee_broker.members.consumers import ConsumerGroup, ConsumerTable
from aerobee_broker.members.producers import ProducerTable
from aerobee_broker.reading.cold_reads import ColdReads, Owner
from aerobee_broker.remoting_api.request_bodies import RUN_MAX, answer, in_runs
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_broker.stats import BrokerStats
from aerobee_proto.bodies import (
    BrokerConsumeStats,
    ConsumerConnection,
    ConsumeStats,
    GroupConfigList,
    GroupForbidden,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import (
    BrokerConsumeStatsHeader,
    CloneGroupOffsetHeader,
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
)
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.answers import answer_in_slices
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import (
    CREATE,
    DELETE,
    GET,
    UPDATE,
    on_cluster,
    on_group,
    on_groups_in,
    on_topic,
    on_topics,
    ours,
)
from aerobee_service.turns.slices import Steps, in_slices
from aerobee_store.store import MessageStore

__all__ = ["GroupHandlers"]

LIST_BODY_SIZE_MAX: Final = 4 * 1024 * 1024


class GroupHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        store: MessageStore,
        catalog: Catalog,
        save: Callable[[], Awaitable[None]],
        consumers: ConsumerTable,
        producers: ProducerTable,
        stats: BrokerStats,
        cold: ColdReads,
    ) -> None:
        """`save` returns when groups and offsets are in their files, and at the slaves that sends wait for. OSError:
        they could not be written; RequestError: slaves do not have them yet."""
        self._cold = cold
        self._identity = identity
        self._store = store
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._offsets = catalog.offsets
        self._save = save
        self._consumers = consumers
        self._producers = producers
        self._stats = stats

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        of_group, of_cluster = (on_group("group", GET),), (on_cluster(GET),)
        add(
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            self.update,
            needs=(ours(on_groups_in(SubscriptionGroupConfig, lambda body: [body.group_name], CREATE)),),
            body_size_max=LIST_BODY_SIZE_MAX,
        )
        add(
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            self.update_list,
            needs=(
                ours(
                    on_groups_in(
                        GroupConfigList,
                        lambda body: [one.group_name for one in body.group_config_list],
                        CREATE,
                    )
                ),
            ),
            body_size_max=LIST_BODY_SIZE_MAX,
        )
        add(
            code.DELETE_SUBSCRIPTIONGROUP,
            self.delete,
            header=DeleteGroupHeader,
            needs=(on_group("group_name", DELETE),),
        )
        add(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_configs, needs=(ours(on_cluster(GET)),))
        add(code.GET_SUBSCRIPTIONGROUP_CONFIG, self.config, header=GroupHeader, needs=of_group)
        add(
            code.UPDATE_AND_GET_GROUP_FORBIDDEN,
            self.forbidden,
            header=GroupTopicHeader,
            needs=(on_group("group", UPDATE), on_topic("topic", UPDATE)),
        )
        add(
            code.CLONE_GROUP_OFFSET,
            self.clone_offsets,
            header=CloneGroupOffsetHeader,
            needs=(
                on_group("dest_group", UPDATE),
                on_topic("topic", UPDATE),
                ours(on_group("src_group", GET)),
            ),
        )
        add(
            code.GET_CONSUMER_CONNECTION_LIST,
            self.consumers,
            header=ConsumerGroupHeader,
            needs=(on_group("consumer_group", GET),),
        )
        add(code.GET_PRODUCER_CONNECTION_LIST, self.producers, header=ProducerGroupHeader, needs=of_cluster)
        add(code.GET_ALL_PRODUCER_INFO, self.all_producers, needs=of_cluster)
        add(
            code.GET_CONSUME_STATS,
            self.consume_stats,
            header=ConsumeStatsHeader,
            needs=(
                on_group("consumer_group", GET),
                on_topic("topic", GET),
                on_topics("topic_list", ";", GET),
            ),
        )
        add(
            code.GET_BROKER_CONSUME_STATS,
            self.broker_consume_stats,
            header=BrokerConsumeStatsHeader,
            needs=of_cluster,
        )
        add(code.QUERY_TOPICS_BY_CONSUMER, self.topics_of, header=GroupHeader, needs=of_group)
        add(
            code.QUERY_SUBSCRIPTION_BY_CONSUMER,
            self.subscription,
            header=GroupTopicHeader,
            needs=(*of_group, on_topic("topic", GET)),
        )

    # --- changing ---------------------------------------------------------------------------------------------

    async def update(self, request: Request[NoFields]) -> Response:
        """Create a group or change it."""
        return await self._update([request.read(SubscriptionGroupConfig)])

    async def update_list(self, request: Request[NoFields]) -> Response:
        """Create or change several groups: all, or none if one is refused."""
        return await self._update(request.read(GroupConfigList).group_config_list)

    async def _update(self, requested: Sequence[SubscriptionGroupConfig]) -> Response:
        groups = self._groups
        checked = [groups.check_update(config) async for some in in_runs(requested) for config in some]
        groups.check_room(checked)
        async for some in in_runs(checked):
            groups.update(some)
        return await self._persisted()

    async def delete(self, request: Request[DeleteGroupHeader]) -> Response:
        """Delete a group, on demand with its offsets; success too when it is unknown."""
        header: DeleteGroupHeader = request.header
        self._groups.delete(header.group_name)
        self._stats.group_deleted(header.group_name)
        if header.clean_offset or header.remove_offset:
            await in_slices(self._offsets.removal(group=header.group_name))
            self._offsets.remove_group(header.group_name)  # what members committed meanwhile
        return await self._persisted()

    async def forbidden(self, request: Request[GroupTopicHeader]) -> Response:
        """Forbid or allow a group to read a topic, or only tell (without `readable`)."""
        header: GroupTopicHeader = request.header
        groups = self._groups
        if header.readable is not None:
            groups.require(header.group)
            self._topics.require(header.topic)
            groups.set_forbidden(header.group, header.topic, forbidden=not header.readable)
            await self._persisted()
        readable = not groups.is_forbidden(header.group, header.topic)
        return answer(GroupForbidden(group=header.group, topic=header.topic, readable=readable))

    async def clone_offsets(self, request: Request[CloneGroupOffsetHeader]) -> Response:
        """Start a group where another one stands, in one topic or in all of them.

        Topics that do not exist are left out, and, unless `offline`, those that the source has given up.
        """
        header: CloneGroupOffsetHeader = request.header
        self._groups.require(header.dest_group)
        configs = await in_slices(self._cloned(header))
        async for some in in_runs(configs):
            for config in some:
                self._offsets.clone(header.src_group, header.dest_group, config.topic_name)
        return await self._persisted()

    def _cloned(self, header: CloneGroupOffsetHeader) -> Steps[list[TopicConfig]]:
        group = header.src_group
        topics = [header.topic] if header.topic else (yield from self._offsets.topics_steps(group))
        return (yield from self._consumed(group, topics, given_up_too=header.offline))

    async def _persisted(self) -> Response:
        try:
            await self._save()
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the change is in effect but could not be written: {error}"
            ) from error
        return Response()

    # --- looking ----------------------------------------------------------------------------------------------

    def config(self, request: Request[GroupHeader]) -> Response:
        """Settings of a group."""
        return answer(self._groups.require(request.header.group))

    def all_configs(self, request: Request[NoFields]) -> None:
        """Settings of all groups, for replicas and exports."""
        answer_in_slices(request, self._groups.to_json())

    def consumers(self, request: Request[ConsumerGroupHeader]) -> None:
        """Who is online in a group, and what it subscribes to; CONSUMER_NOT_ONLINE when nobody is."""
        name = request.header.consumer_group
        group = self._consumers.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:255]}] not online"
            )
        answer_in_slices(request, _online(group))

    def producers(self, request: Request[ProducerGroupHeader]) -> None:
        """Who is online in a producer group; SYSTEM_ERROR when nobody is."""
        name = request.header.producer_group
        members = self._producers.members(name)
        if not members:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:255]}] not exist: nobody is online"
            )
        answer_in_slices(request, _producing(members))

    def all_producers(self, request: Request[NoFields]) -> None:
        """Every producer that is online, by group."""
        answer_in_slices(request, self._all_producers())

    def _all_producers(self) -> Steps[ProducerTableInfo]:
        body = ProducerTableInfo()
        for group in self._producers.groups():
            infos: list[ProducerInfo] = []
            for member in self._producers.members(group):
                infos.append(
                    ProducerInfo(
                        client_id=member.client_id,
                        language=member.language,
                        version=member.version,
                        last_update_timestamp=member.last_seen_ms,
                        remote_ip=member.connection.peer,
                    )
                )
                yield
            if infos:  # they may have left meanwhile
                body.data[group] = infos
        return body

    def topics_of(self, request: Request[GroupHeader]) -> None:
        """Topics in which a group has offsets."""
        answer_in_slices(request, self._topics_of(request.header.group))

    def _topics_of(self, group: str) -> Steps[TopicList]:
        return TopicList(topic_list=(yield from self._offsets.topics_steps(group)))

    def subscription(self, request: Request[GroupTopicHeader]) -> Response:
        """What a group that is online wants of a topic."""
        header: GroupTopicHeader = request.header
        found = self._consumers.subscription(header.group, header.topic)
        data = found.data if found else None
        return answer(SubscriptionBody(group=header.group, topic=header.topic, subscription_data=data))

    # --- how far they are -------------------------------------------------------------------------------------

    def consume_stats(self, request: Request[ConsumeStatsHeader]) -> None:
        """How far a group is in the topics asked for; without any, in all where it has offsets."""
        answer_in_slices(request, self._consume_stats(request.header, request.connection))

    def _consume_stats(self, header: ConsumeStatsHeader, caller: Owner) -> Steps[ConsumeStats]:
        group = header.consumer_group
        if header.topic_list:
            topics = [topic for topic in header.topic_list.split(";") if topic]
        elif header.topic:
            topics = [header.topic]
        else:
            topics = yield from self._offsets.topics_steps(group)
        result = ConsumeStats()
        for config in (yield from self._consumed(group, topics)):
            yield from self._add_offsets(
                result, group, config, config.read_queue_nums, caller, with_pulls=True
            )
        return result

    def broker_consume_stats(self, request: Request[BrokerConsumeStatsHeader]) -> None:
        """How far every group of this broker is; with isOrder only in ordered topics."""
        steps = self._broker_consume_stats(request.connection, only_ordered=request.header.is_order)
        answer_in_slices(request, steps)

    def _broker_consume_stats(self, caller: Owner, *, only_ordered: bool) -> Steps[BrokerConsumeStats]:
        body = BrokerConsumeStats(broker_addr=self._identity.broker_addr)
        for group in self._groups.all():
            tables = []
            topics = yield from self._offsets.topics_steps(group)
            for config in (yield from self._consumed(group, topics)):
                if config.order or not only_ordered:
                    stats = ConsumeStats()
                    yield from self._add_offsets(
                        stats, group, config, config.write_queue_nums, caller, with_pulls=False
                    )
                    tables.append(stats)
                    for number, entry in enumerate(stats.offset_table.values(), 1):
                        body.total_diff += entry.broker_offset - entry.consumer_offset
                        body.total_inflight_diff += max(0, entry.pull_offset - entry.consumer_offset)
                        if number % RUN_MAX == 0:
                            yield
            body.consume_stats_list.append({group: tables})
            yield
        return body

    def _consumed(
        self, group: str, topics: Sequence[str], *, given_up_too: bool = False
    ) -> Steps[list[TopicConfig]]:
        """Those of the topics that exist and that the group, while it is online, still subscribes to."""
        online = None if given_up_too else self._consumers.get(group)
        subscribed = online.subscriptions if online is not None and online.subscriptions else None
        consumed = []
        for number, topic in enumerate(topics, 1):
            config = self._topics.get(topic)
            if config is not None and (subscribed is None or topic in subscribed):
                consumed.append(config)
            if number % RUN_MAX == 0:
                yield
        return consumed

    def _add_offsets(
        self,
        stats: ConsumeStats,
        group: str,
        config: TopicConfig,
        queue_count: int,
        caller: Owner,
        *,
        with_pulls: bool,
    ) -> Steps[None]:
        topic, store_time = config.topic_name, self._store.asking.store_time
        for queue_id in range(queue_count):
            consumed = self._offsets.get(group, topic, queue_id) or 0
            pulled = self._offsets.pulled(group, topic, queue_id) or 0
            last_ms = 0
            if consumed:
                last_ms = yield from self._cold.in_steps(
                    partial(store_time, topic, queue_id, consumed - 1), caller
                )
            queue = MessageQueue(topic, self._identity.broker_name, queue_id)
            stats.offset_table[queue] = OffsetWrapper(
                broker_offset=max(0, self._store.reading.max_offset(topic, queue_id)),
                consumer_offset=consumed,
                last_timestamp=max(0, last_ms),
                pull_offset=max(consumed, pulled) if with_pulls else 0,
            )
            yield
        stats.consume_tps += self._stats.consume_rate(group, topic)


def _online(group: ConsumerGroup) -> Steps[ConsumerConnection]:
    members = yield from connection_body(group.members.values())
    return ConsumerConnection(
        connection_set=members,
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_table={topic: held.data for topic, held in group.subscriptions.items()},
    )


def _producing(members: Sequence[Member]) -> Steps[ProducerConnection]:
    return ProducerConnection(connection_set=(yield from connection_body(members)))
