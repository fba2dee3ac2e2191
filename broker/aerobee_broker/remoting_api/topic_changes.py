"""Changes of topics: making, changing, deleting.

    17 UPDATE_AND_CREATE_TOPIC   18 ..._LIST   215 DELETE_TOPIC_IN_BROKER

A change is answered when it is in `topics.json` on disk, the slaves that sends wait for have it, and the nameservers
that are up have heard of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import structlog

from aerobee_broker.catalog.attributes import parse_alterations
from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.catalog.topics import has_batch_queues
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.remoting_api.deletions import delete_queues, save_deletions
from aerobee_broker.remoting_api.request_bodies import in_runs
from aerobee_broker.schedule.timer_counts import TimerCounts
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_broker.stats import BrokerStats
from aerobee_proto import names
from aerobee_proto.bodies import (
    TopicConfig,
    TopicConfigList,
)
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import (
    CreateTopicHeader,
    TopicHeader,
)
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import CREATE, DELETE, on_topic, on_topics_in, ours
from aerobee_service.turns.slices import Steps, in_slices
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore

__all__ = ["TopicChanges"]

log = structlog.get_logger()

SETTLE_TIMEOUT_S: Final = 3.0  # what clients wait for an answer, less a little; the rest follows by itself
LIST_BODY_SIZE_MAX: Final = 4 * 1024 * 1024


class TopicChanges:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        store: MessageStore,
        catalog: Catalog,
        files: ConfigFiles,
        consumers: ConsumerTable,
        spread: Callable[[float], Awaitable[bool]],
        stats: BrokerStats,
        timer_counts: TimerCounts,
    ) -> None:
        """`spread` waits for so many seconds until nameservers know of every change, False: they do not yet; and until
        the slaves that sends wait for have it, RequestError: they do not yet."""
        self._live = live
        self._store = store
        self._topics = catalog.topics
        self._offsets = catalog.offsets
        self._files = files
        self._consumers = consumers
        self._spread = spread
        self._stats = stats
        self._timer_counts = timer_counts

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(
            code.UPDATE_AND_CREATE_TOPIC,
            self.update,
            header=CreateTopicHeader,
            needs=(on_topic("topic", CREATE),),
        )
        add(
            code.UPDATE_AND_CREATE_TOPIC_LIST,
            self.update_list,
            needs=(
                ours(
                    on_topics_in(
                        TopicConfigList,
                        lambda body: [one.topic_name for one in body.topic_config_list],
                        CREATE,
                    )
                ),
            ),
            body_size_max=LIST_BODY_SIZE_MAX,
        )
        add(code.DELETE_TOPIC_IN_BROKER, self.delete, header=TopicHeader, needs=(on_topic("topic", DELETE),))

    async def update(self, request: Request[CreateTopicHeader]) -> Response:
        """Create a topic or change it; success too when nothing differs."""
        header: CreateTopicHeader = request.header
        requested = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
            order=header.order,
        )
        return await self._update([(requested, parse_alterations(header.attributes))])

    async def update_list(self, request: Request[NoFields]) -> Response:
        """Create or change several topics: all, or none if one is refused."""
        requested = request.read(TopicConfigList).topic_config_list
        twice = {topic.topic_name for topic in requested}
        if len(twice) != len(requested):
            raise RequestError(ResponseCode.INVALID_PARAMETER, "a topic is listed twice")
        return await self._update([(topic, topic.attributes) for topic in requested])

    async def _update(self, requested: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> Response:
        checked = [
            self._topics.check_update(topic, alterations)
            async for some in in_runs(requested)
            for topic, alterations in some
        ]
        self._topics.check_room(checked)
        prepared = await self._prepare_batch_topics(checked)
        try:
            async for some in in_runs(requested):
                self._put(some)
        finally:
            self._store.topics.forget_prepared(prepared)
        await self._persist_and_register()
        return Response()

    async def _prepare_batch_topics(self, checked: Sequence[TopicConfig]) -> list[str]:
        """Make the folders of those that are going to have queues of batches; their names."""
        store = self._store
        new = [
            topic.topic_name
            for topic in checked
            if has_batch_queues(topic) and not store.topics.is_batch(topic.topic_name)
        ]
        if new:
            try:
                await asyncio.get_running_loop().run_in_executor(None, store.topics.prepare_batch, new)
            except (StoreError, OSError) as failed:
                store.topics.forget_prepared(new)
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(failed)) from failed
        return new

    def _put(self, requested: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> None:
        """Put some topics into the table, in one turn with what the store must know of them before their first message
        comes. They are checked once more: a send or another request may have made them since."""
        topics, store = self._topics, self._store
        checked = [topics.check_update(topic, alterations) for topic, alterations in requested]
        topics.check_room(checked)
        before = {config.topic_name: topics.get(config.topic_name) for config in checked}
        made: list[TopicConfig] = []
        try:
            for config in checked:
                if has_batch_queues(config):
                    store.topics.make_batch(config.topic_name)
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
        store = self._store
        counts = {
            queue_id: store.reading.max_offset(topic, queue_id) - store.reading.min_offset(topic, queue_id)
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

    async def delete(self, request: Request[TopicHeader]) -> Response:
        """Delete a topic with its queues and offsets; success too when it is unknown."""
        topic: str = request.header.topic
        self._topics.check_delete(topic)
        to_delete = [topic]
        if self._live.value.clear_retry_topic_when_delete_topic:
            to_delete += await in_slices(self._pop_retry_topics(topic))
        for name in to_delete:
            await in_slices(self._offsets.removal(topic=name))
            self._offsets.remove_topic(name)  # what was committed meanwhile
            self._stats.topic_deleted(name)
            self._timer_counts.forget(name)
            if self._topics.delete(name):
                await delete_queues(self._store, name)
        await save_deletions(self._store)
        await self._persist_and_register()
        return Response()

    def _pop_retry_topics(self, topic: str) -> Steps[list[str]]:
        """The POP retry topics of this topic, both spellings, as far as they exist."""
        found = []
        with_offsets = yield from self._offsets.groups_steps(topic)
        online = yield from self._consumers.groups_steps(topic)
        for group in (yield from sorted_steps({*with_offsets, *online})):
            candidates = [names.RETRY_PREFIX + group + sign + topic for sign in "_+"]
            found += [name for name in candidates if name in self._topics]
            yield
        return found

    async def _persist_and_register(self) -> None:
        try:
            await self._files.save(self._topics)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the change is in effect but could not be written to topics.json: {error}",
            ) from error
        if not await self._spread(SETTLE_TIMEOUT_S):
            log.warning("broker.registration_slow", waited_s=SETTLE_TIMEOUT_S)
