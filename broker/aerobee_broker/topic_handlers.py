"""Topics: making, changing, deleting, looking at them.

    17 UPDATE_AND_CREATE_TOPIC   18 ..._LIST   215 DELETE_TOPIC_IN_BROKER
    351 GET_TOPIC_CONFIG   21 GET_ALL_TOPIC_CONFIG   202 GET_TOPIC_STATS_INFO
    305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER   300 QUERY_TOPIC_CONSUME_BY_WHO
    303 QUERY_CONSUME_TIME_SPAN   321 QUERY_CONSUME_QUEUE

A change is answered when it is in `topics.json` on disk and the nameservers that are up have heard of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from aerobee_broker.attributes import parse_alterations
from aerobee_broker.request_bodies import answer, in_runs, read_body
from aerobee_broker.services import Services, delete_queues, save_deletions
from aerobee_broker.topics import has_batch_queues
from aerobee_proto import names
from aerobee_proto.bodies import (
    ConsumeQueueData,
    ConsumeTimeSpan,
    ConsumeTimeSpanBody,
    GroupList,
    MessageQueue,
    QueryConsumeQueueBody,
    TopicConfig,
    TopicConfigList,
    TopicConfigWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import (
    CreateTopicHeader,
    GroupTopicHeader,
    QueryConsumeQueueHeader,
    TopicHeader,
)
from aerobee_remoting.answers import answer_in_slices
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_remoting.slices import Steps, in_slices
from aerobee_store.errors import StoreError

__all__ = ["TopicHandlers"]

log = structlog.get_logger()

SETTLE_TIMEOUT_S: Final = 3.0  # what clients wait for an answer, less a little; the rest follows by itself
ENTRIES_PER_QUERY_MAX: Final = 1_000
LIST_BODY_SIZE_MAX: Final = 4 * 1024 * 1024


class TopicHandlers:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        admin, inspect = Permission.ADMIN, Permission.INSPECT
        add(code.UPDATE_AND_CREATE_TOPIC, self.update, permission=admin, header=CreateTopicHeader)
        add(
            code.UPDATE_AND_CREATE_TOPIC_LIST,
            self.update_list,
            permission=admin,
            body_size_max=LIST_BODY_SIZE_MAX,
        )
        add(code.DELETE_TOPIC_IN_BROKER, self.delete, permission=admin, header=TopicHeader)
        add(code.GET_TOPIC_CONFIG, self.config, permission=inspect, header=TopicHeader)
        add(code.GET_ALL_TOPIC_CONFIG, self.all_configs, permission=Permission.CLUSTER)
        add(code.GET_TOPIC_STATS_INFO, self.stats, permission=inspect, header=TopicHeader)
        add(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, permission=inspect)
        add(code.QUERY_TOPIC_CONSUME_BY_WHO, self.consumed_by, permission=inspect, header=TopicHeader)
        add(code.QUERY_CONSUME_TIME_SPAN, self.time_span, permission=inspect, header=GroupTopicHeader)
        add(code.QUERY_CONSUME_QUEUE, self.queue_entries, permission=inspect, header=QueryConsumeQueueHeader)

    # --- changing ---------------------------------------------------------------------------------------------

    async def update(self, request: Request) -> Response:
        """Create a topic or change it; success too when nothing differs."""
        header: CreateTopicHeader = request.header
        wanted = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
            order=header.order,
        )
        return await self._update([(wanted, parse_alterations(header.attributes))])

    async def update_list(self, request: Request) -> Response:
        """Create or change several topics: all, or none if one is refused."""
        wanted = read_body(request, TopicConfigList).topic_config_list
        twice = {topic.topic_name for topic in wanted}
        if len(twice) != len(wanted):
            raise RequestError(ResponseCode.INVALID_PARAMETER, "a topic is listed twice")
        return await self._update([(topic, topic.attributes) for topic in wanted])

    async def _update(self, wanted: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> Response:
        services = self._services
        checked = [
            services.topics.check_update(topic, alterations)
            async for some in in_runs(wanted)
            for topic, alterations in some
        ]
        services.topics.check_room(checked)
        prepared = await self._prepare_batch_topics(checked)
        try:
            async for some in in_runs(wanted):
                self._put(some)
        finally:
            services.store.forget_prepared(prepared)
        await self._persist_and_register()
        return Response()

    async def _prepare_batch_topics(self, checked: Sequence[TopicConfig]) -> list[str]:
        """Make the folders of those that are going to have queues of batches; their names."""
        store = self._services.store
        new = [
            topic.topic_name
            for topic in checked
            if has_batch_queues(topic) and not store.is_batch_topic(topic.topic_name)
        ]
        if new:
            try:
                await asyncio.get_running_loop().run_in_executor(None, store.prepare_batch_topics, new)
            except (StoreError, OSError) as failed:
                store.forget_prepared(new)
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(failed)) from failed
        return new

    def _put(self, wanted: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> None:
        """Put some topics into the table, in one turn with what the store must know of them before their first message
        comes. They are checked once more: a send or another request may have made them since."""
        topics, store = self._services.topics, self._services.store
        checked = [topics.check_update(topic, alterations) for topic, alterations in wanted]
        topics.check_room(checked)
        before = {config.topic_name: topics.get(config.topic_name) for config in checked}
        made: list[TopicConfig] = []
        try:
            for config in checked:
                if has_batch_queues(config):
                    store.make_batch_topic(config.topic_name)
                made.append(config)
        except StoreError as failed:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(failed)) from failed
        finally:  # table and store say the same of each, whatever the disk did
            for config in topics.update(made):
                self._warn_of_unread(before[config.topic_name], config)

    def _warn_of_unread(self, before: TopicConfig | None, config: TopicConfig) -> None:
        """Say which queues nobody reads any more. The change is done all the same: its tools expect that."""
        topic, readable = config.topic_name, config.read_queue_nums if config.perm & Perm.READ else 0
        if config.perm & Perm.WRITE and config.write_queue_nums > readable:
            log.warning(
                "broker.queues_not_read",
                topic=topic,
                read_queue_count=readable,
                write_queue_count=config.write_queue_nums,
            )
        if before is None or not before.perm & Perm.READ:
            return
        store = self._services.store
        counts = {
            queue_id: store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
            for queue_id in range(readable, before.read_queue_nums)
        }
        hidden = {queue_id: count for queue_id, count in counts.items() if count > 0}
        if hidden:
            log.warning(
                "broker.messages_hidden",
                topic=topic,
                message_count=sum(hidden.values()),
                queue_count=len(hidden),
                read_queue_count=readable,
            )

    async def delete(self, request: Request) -> Response:
        """Delete a topic with its queues and offsets; success too when it is unknown."""
        services = self._services
        topic: str = request.header.topic
        services.topics.check_delete(topic)
        doomed = [topic]
        if services.config.clear_retry_topic_when_delete_topic:
            doomed += await in_slices(self._pop_retry_topics(topic))
        for name in doomed:
            await in_slices(services.offsets.removal(topic=name))
            services.offsets.remove_topic(name)  # what was committed meanwhile
            services.stats.topic_deleted(name)
            services.timer_counts.forget(name)
            if services.topics.delete(name):
                await delete_queues(services, name)
        await save_deletions(services)
        await self._persist_and_register()
        return Response()

    def _pop_retry_topics(self, topic: str) -> Steps[list[str]]:
        """The POP retry topics of this topic, both spellings, as far as they exist."""
        services, found = self._services, []
        groups = {*services.offsets.groups_of(topic), *services.consumers.groups_of(topic)}
        for group in sorted(groups):
            candidates = [names.RETRY_PREFIX + group + sign + topic for sign in "_+"]
            found += [name for name in candidates if name in services.topics]
            yield
        return found

    async def _persist_and_register(self) -> None:
        services = self._services
        try:
            await services.files.save(services.topics)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the change is in effect but could not be written to topics.json: {error}",
            ) from error
        if not await services.registrar.settled(SETTLE_TIMEOUT_S):
            log.warning("broker.registration_slow", waited_s=SETTLE_TIMEOUT_S)

    # --- looking ----------------------------------------------------------------------------------------------

    def config(self, request: Request) -> Response:
        """Settings of a topic."""
        return answer(self._services.topics.require(request.header.topic))

    def all_configs(self, request: Request) -> None:
        """Settings of all topics, for replicas and exports."""
        topics = self._services.topics
        wrapper = TopicConfigWrapper(data_version=topics.version, topic_config_table=topics.all())
        answer_in_slices(request, wrapper)

    def stats(self, request: Request) -> None:
        """Ends and newest store time of each queue of a topic."""
        answer_in_slices(request, self._stats(self._services.topics.require(request.header.topic)))

    def _stats(self, config: TopicConfig) -> Steps[TopicStatsTable]:
        topic, table = config.topic_name, TopicStatsTable()
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            table.offset_table[self._queue(topic, queue_id)] = self._queue_state(topic, queue_id)
            yield
        table.topic_put_tps = self._services.stats.put_rate(topic)
        return table

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._services.identity.broker_name, queue_id)

    def _queue_state(self, topic: str, queue_id: int) -> TopicOffset:
        store = self._services.store
        max_offset = max(0, store.max_offset(topic, queue_id))
        newest = store.store_time(topic, queue_id, max_offset - 1) if max_offset else 0
        return TopicOffset(
            min_offset=max(0, store.min_offset(topic, queue_id)),
            max_offset=max_offset,
            last_update_timestamp=max(0, newest),
        )

    def system_topics(self, request: Request) -> None:
        """Topics that belong to the broker itself."""
        answer_in_slices(request, self._system_topics())

    def _system_topics(self) -> Steps[TopicList]:
        topics, found = self._services.topics, []
        for topic in topics.all():
            if topics.is_system(topic):
                found.append(topic)
            yield
        return TopicList(topic_list=sorted(found))

    def consumed_by(self, request: Request) -> None:
        """Groups that consume a topic: online, or with offsets in it."""
        services = self._services
        topic = request.header.topic
        groups = {*services.consumers.groups_of(topic), *services.offsets.groups_of(topic)}
        answer_in_slices(request, GroupList(group_list=sorted(groups)))

    def time_span(self, request: Request) -> None:
        """Store times at the ends of each queue and where a group stands."""
        header: GroupTopicHeader = request.header
        config = self._services.topics.require(header.topic)
        answer_in_slices(request, self._time_spans(header.group, config))

    def _time_spans(self, group: str, config: TopicConfig) -> Steps[ConsumeTimeSpanBody]:
        body = ConsumeTimeSpanBody()
        for queue_id in range(config.write_queue_nums):
            body.consume_time_span_set.append(self._span(group, config.topic_name, queue_id))
            yield
        return body

    def _span(self, group: str, topic: str, queue_id: int) -> ConsumeTimeSpan:
        store, now_ms = self._services.store, self._services.clock()
        first_ms = store.earliest_time(topic, queue_id)
        max_offset = store.max_offset(topic, queue_id)
        consumed = self._services.offsets.get(group, topic, queue_id) or 0
        next_ms = store.store_time(topic, queue_id, consumed) if consumed < max_offset else -1
        return ConsumeTimeSpan(
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=store.store_time(topic, queue_id, max_offset - 1) if max_offset else -1,
            consume_time_stamp=store.store_time(topic, queue_id, consumed - 1) if consumed else first_ms,
            delay_time=now_ms - next_ms if next_ms > 0 else 0,
        )

    def queue_entries(self, request: Request) -> Response:
        """Entries of a consume queue, as they lie on disk."""
        header: QueryConsumeQueueHeader = request.header
        services = self._services
        if header.queue_id not in services.store.queue_ids(header.topic):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queue {header.queue_id} of topic {header.topic[:255]} does not exist in the store",
            )
        count = min(max(0, header.count), ENTRIES_PER_QUERY_MAX)
        entries = services.store.queue_entries(header.topic, header.queue_id, max(0, header.index), count)
        body = QueryConsumeQueueBody(
            min_queue_index=services.store.min_offset(header.topic, header.queue_id),
            max_queue_index=services.store.max_offset(header.topic, header.queue_id),
            queue_data=[
                ConsumeQueueData(
                    physic_offset=entry.physical_offset, physic_size=entry.size, tags_code=entry.tag_hash
                )
                for entry in entries
            ],
        )
        if header.consumer_group:
            subscription = services.consumers.subscription(header.consumer_group, header.topic)
            body.subscription_data = subscription.data if subscription else None
        return answer(body)
