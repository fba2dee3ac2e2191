"""The broker as a whole: present state, statistics, cleaning.

28 GET_BROKER_RUNTIME_INFO   315 VIEW_BROKER_STATS_DATA
306 CLEAN_EXPIRED_CONSUMEQUEUE   316 CLEAN_UNUSED_TOPIC   329 DELETE_EXPIRED_COMMITLOG
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.metrics.observed import Observed
from aerobee_broker.metrics.runtime_info import runtime_table
from aerobee_broker.remoting_api.deletions import delete_queues, save_deletions
from aerobee_broker.remoting_api.request_bodies import answer
from aerobee_broker.stats import BrokerStats, Rate
from aerobee_proto.bodies import BrokerStatsData, BrokerStatsItem, KVTable
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import ViewBrokerStatsHeader
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, UPDATE, on_cluster, ours
from aerobee_service.turns.slices import in_slices
from aerobee_store.store import MessageStore

__all__ = ["BrokerHandlers"]

log = structlog.get_logger()

LIGHT_PREFIX: Final = "%LMQ%"  # queues that a record's properties name; they have no settings


class BrokerHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        observed: Observed,
        clean: Callable[[], None],
    ) -> None:
        """`clean` lets the expired files be deleted soon."""
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._observed = observed
        self._clean = clean

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        looks = (on_cluster(GET),)
        our_looks, our_changes = (ours(on_cluster(GET)),), (ours(on_cluster(UPDATE)),)
        add(code.GET_BROKER_RUNTIME_INFO, self.runtime_info, needs=our_looks, overtakes=True)
        add(code.VIEW_BROKER_STATS_DATA, self.statistic, header=ViewBrokerStatsHeader, needs=looks)
        add(code.CLEAN_UNUSED_TOPIC, self.clean_unused_topics, needs=our_changes)
        add(code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired, needs=our_changes)
        add(code.DELETE_EXPIRED_COMMITLOG, self.clean_expired, needs=our_changes)

    # --- state ------------------------------------------------------------------------------------------------

    def runtime_info(self, request: Request[NoFields]) -> Response | None:
        """The broker's present state, all values as text: in the turn in which it is asked for, but for the first."""
        disk = self._observed.disk.known()
        if disk is None:
            request.connection.answer_alone(request, self._runtime_info_later)
            return None
        return self._runtime_info(disk)

    async def _runtime_info_later(self) -> Response:
        return self._runtime_info(await self._observed.disk.now())

    def _runtime_info(self, disk: tuple[int, int]) -> Response:
        return answer(KVTable(table=runtime_table(self._observed, disk)))

    def statistic(self, request: Request[ViewBrokerStatsHeader]) -> Response:
        """One statistic over the last minute, hour and day; SYSTEM_ERROR when there is none."""
        header: ViewBrokerStatsHeader = request.header
        counter = self._stats.find(header.stats_name, header.stats_key)
        if counter is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name[:64]}> <{header.stats_key[:512]}> not exist",
            )
        return answer(
            BrokerStatsData(
                stats_minute=_item(counter.last_minute()),
                stats_hour=_item(counter.last_hour()),
                stats_day=_item(counter.last_day()),
            )
        )

    # --- cleaning ---------------------------------------------------------------------------------------------

    async def clean_unused_topics(self, _: Request[NoFields]) -> Response:
        """Delete the queues of topics that this broker does not have; system and light queues stay."""
        for topic in self._store.topics.names():
            await asyncio.sleep(0)  # deleting takes its time: others have their turn
            if topic in self._topics or self._topics.is_system(topic) or topic.startswith(LIGHT_PREFIX):
                continue
            await in_slices(self._offsets.removal(topic=topic))
            self._stats.topic_deleted(topic)
            count = await delete_queues(self._store, topic)
            log.info("broker.unused_topic_cleaned", topic=topic, queue_count=count)
        await save_deletions(self._store)
        return Response()

    def clean_expired(self, _: Request[NoFields]) -> Response:
        """Let expired log files go now, and with them the queue and index files that lead into them.

        Answered at once: deleting takes its time. A queue keeps its numbers also when all its messages are gone.
        """
        self._clean()
        return Response()


def _item(rate: Rate) -> BrokerStatsItem:
    return BrokerStatsItem(sum=rate.total, tps=rate.per_second, avgpt=rate.per_time)
