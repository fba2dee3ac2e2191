"""Topics: looking at them.

351 GET_TOPIC_CONFIG   21 GET_ALL_TOPIC_CONFIG   202 GET_TOPIC_STATS_INFO
305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER   300 QUERY_TOPIC_CONSUME_BY_WHO
303 QUERY_CONSUME_TIME_SPAN   321 QUERY_CONSUME_QUEUE
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.reading.cold_reads import ColdReads, Owner
from aerobee_broker.remoting_api.request_bodies import answer
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_broker.stats import BrokerStats
from aerobee_proto.bodies import (
    AllTopics,
    ConsumeQueueData,
    ConsumeTimeSpan,
    ConsumeTimeSpanBody,
    GroupList,
    MessageQueue,
    QueryConsumeQueueBody,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import (
    GroupTopicHeader,
    QueryConsumeQueueHeader,
    TopicHeader,
)
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.answers import answer_in_slices
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, on_cluster, on_group, on_topic, ours
from aerobee_service.turns.slices import Steps
from aerobee_store.store import MessageStore

__all__ = ["TopicHandlers"]

ENTRIES_PER_QUERY_MAX: Final = 1_000


class TopicHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        identity: BrokerIdentity,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        stats: BrokerStats,
        cold: ColdReads,
    ) -> None:
        self._clock = clock
        self._cold = cold
        self._identity = identity
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._stats = stats

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        of_topic = (on_topic("topic", GET),)
        add(code.GET_TOPIC_CONFIG, self.config, header=TopicHeader, needs=of_topic)
        add(code.GET_ALL_TOPIC_CONFIG, self.all_configs, needs=(ours(on_cluster(GET)),))
        add(code.GET_TOPIC_STATS_INFO, self.stats, header=TopicHeader, needs=of_topic)
        add(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, needs=(ours(on_cluster(GET)),))
        add(code.QUERY_TOPIC_CONSUME_BY_WHO, self.consumed_by, header=TopicHeader, needs=of_topic)
        add(
            code.QUERY_CONSUME_TIME_SPAN,
            self.time_span,
            header=GroupTopicHeader,
            needs=(*of_topic, on_group("group", GET)),
        )
        add(
            code.QUERY_CONSUME_QUEUE,
            self.queue_entries,
            header=QueryConsumeQueueHeader,
            needs=(*of_topic, on_group("consumer_group", GET)),
        )

    def config(self, request: Request[TopicHeader]) -> Response:
        """Settings of a topic."""
        return answer(self._topics.require(request.header.topic))

    def all_configs(self, request: Request[NoFields]) -> None:
        """Settings of all topics, for replicas and exports."""
        topics = self._topics
        wrapper = AllTopics(
            data_version=topics.version,
            topic_config_table=topics.all(),
            deleted_topics=self._store.topics.deletions,
        )
        answer_in_slices(request, wrapper)

    def stats(self, request: Request[TopicHeader]) -> None:
        """Ends and newest store time of each queue of a topic."""
        config = self._topics.require(request.header.topic)
        answer_in_slices(request, self._stats_table(config, request.connection))

    def _stats_table(self, config: TopicConfig, caller: Owner) -> Steps[TopicStatsTable]:
        topic, table = config.topic_name, TopicStatsTable()
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            state = yield from self._cold.in_steps(partial(self._queue_state, topic, queue_id), caller)
            table.offset_table[self._queue(topic, queue_id)] = state
            yield
        table.topic_put_tps = self._stats.put_rate(topic)
        return table

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._identity.broker_name, queue_id)

    def _queue_state(self, topic: str, queue_id: int) -> TopicOffset:
        messages = self._store.asking
        max_offset = max(0, messages.max_offset(topic, queue_id))
        newest = messages.store_time(topic, queue_id, max_offset - 1) if max_offset else 0
        return TopicOffset(
            min_offset=max(0, messages.min_offset(topic, queue_id)),
            max_offset=max_offset,
            last_update_timestamp=max(0, newest),
        )

    def system_topics(self, request: Request[NoFields]) -> None:
        """Topics that belong to the broker itself."""
        answer_in_slices(request, self._system_topics())

    def _system_topics(self) -> Steps[TopicList]:
        topics, found = self._topics, []
        for topic in topics.all():
            if topics.is_system(topic):
                found.append(topic)
            yield
        return TopicList(topic_list=(yield from sorted_steps(found)))

    def consumed_by(self, request: Request[TopicHeader]) -> None:
        """Groups that consume a topic: online, or with offsets in it."""
        answer_in_slices(request, self._consumed_by(request.header.topic))

    def _consumed_by(self, topic: str) -> Steps[GroupList]:
        online = yield from self._consumers.groups_steps(topic)
        with_offsets = yield from self._offsets.groups_steps(topic)
        return GroupList(group_list=(yield from sorted_steps({*online, *with_offsets})))

    def time_span(self, request: Request[GroupTopicHeader]) -> None:
        """Store times at the ends of each queue and where a group stands."""
        header: GroupTopicHeader = request.header
        config = self._topics.require(header.topic)
        answer_in_slices(request, self._time_spans(header.group, config, request.connection))

    def _time_spans(self, group: str, config: TopicConfig, caller: Owner) -> Steps[ConsumeTimeSpanBody]:
        body = ConsumeTimeSpanBody()
        for queue_id in range(config.write_queue_nums):
            span = yield from self._cold.in_steps(
                partial(self._span, group, config.topic_name, queue_id), caller
            )
            body.consume_time_span_set.append(span)
            yield
        return body

    def _span(self, group: str, topic: str, queue_id: int) -> ConsumeTimeSpan:
        messages, now_ms = self._store.asking, self._clock()
        first_ms = messages.earliest_time(topic, queue_id)
        max_offset = messages.max_offset(topic, queue_id)
        consumed = self._offsets.get(group, topic, queue_id) or 0
        next_ms = messages.store_time(topic, queue_id, consumed) if consumed < max_offset else -1
        return ConsumeTimeSpan(
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=messages.store_time(topic, queue_id, max_offset - 1) if max_offset else -1,
            consume_time_stamp=messages.store_time(topic, queue_id, consumed - 1) if consumed else first_ms,
            delay_time=now_ms - next_ms if next_ms > 0 else 0,
        )

    def queue_entries(self, request: Request[QueryConsumeQueueHeader]) -> Response:
        """Entries of a consume queue, as they lie on disk."""
        header: QueryConsumeQueueHeader = request.header
        if header.queue_id not in self._store.topics.queue_ids(header.topic):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queue {header.queue_id} of topic {header.topic[:255]} does not exist in the store",
            )
        count = min(max(0, header.count), ENTRIES_PER_QUERY_MAX)
        entries = self._store.asking.queue_entries(header.topic, header.queue_id, max(0, header.index), count)
        body = QueryConsumeQueueBody(
            min_queue_index=self._store.reading.min_offset(header.topic, header.queue_id),
            max_queue_index=self._store.reading.max_offset(header.topic, header.queue_id),
            queue_data=[
                ConsumeQueueData(
                    physic_offset=entry.physical_offset, physic_size=entry.size, tags_code=entry.tag_hash
                )
                for entry in entries
            ],
        )
        if header.consumer_group:
            subscription = self._consumers.subscription(header.consumer_group, header.topic)
            body.subscription_data = subscription.data if subscription else None
        return answer(body)
