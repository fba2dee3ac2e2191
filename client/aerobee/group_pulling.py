"""Pulls of a group member: one task a queue, into that queue, never more than it has room for.

Touches  brokers through `Peers`.

Failures  Everything is tried again with a growing pause: an operator may be about to grant the permission that is
          missing. Only a filter that the broker cannot read ends a queue: nothing but a new program cures that.
Moved     A broker that says "offset moved" has deleted messages, or an operator has reset the group's offset: what
          was pulled is forgotten, the new offset is committed, and reading goes on there.
"""

import asyncio
from collections.abc import Callable, Mapping

from aerobee.config import ClientConfig, ConsumerConfig
from aerobee.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    DamagedRecord,
    NoBroker,
    RequestTimeout,
)
from aerobee.owned_queue import OwnedQueue
from aerobee.peers import Peers
from aerobee.route_table import RouteTable
from aerobee.routes import MASTER_ID, pull_addr
from aerobee.subscriptions import Subscription
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.errors import RecordError
from aerobee_proto.frames import Command
from aerobee_proto.inner_batch import unwrapped, unwrapped_from
from aerobee_proto.records import StoredRecord, decode_record, decode_records
from aerobee_remoting.event_log import event_logger

__all__ = ["GroupPulls"]

log = event_logger("aerobee.consumer")

PULL_FLAGS = str(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)
NOTHING_NEW = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


class GroupPulls:
    """Pulls queues of one group."""

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        client_config: ClientConfig,
        *,
        peers: Peers,
        routes: RouteTable,
        clock_ms: Callable[[], int],
        on_records: Callable[[OwnedQueue], None],
        on_moved: Callable[[OwnedQueue, int], None],
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        self._config = config
        self._check_records = client_config.check_records
        self._peers = peers
        self._routes = routes
        self._clock_ms = clock_ms
        self._on_records = on_records
        self._on_moved = on_moved

    async def run(self, owned: OwnedQueue) -> None:
        """Pull one queue until it is dropped (the task is cancelled) or broken."""
        pause = self._config.retry_s
        while not owned.dropped and owned.broken is None:
            await owned.room()
            try:
                await self._pull(owned)
            except (RequestTimeout, BrokerUnreachable, NoBroker, BrokerRefused) as failed:
                if (
                    isinstance(failed, BrokerRefused)
                    and failed.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                ):
                    self._break(owned, failed)
                    return
                log.warning("client.pull_failed", queue=str(owned.queue), reason=str(failed), pause_s=pause)
                owned.suggested_id = MASTER_ID
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._config.retry_max_s)
                await self._routes.refresh(owned.queue.topic)
            else:
                pause = self._config.retry_s

    async def _pull(self, owned: OwnedQueue) -> None:
        queue = owned.queue
        route = self._routes.cached(queue.topic)
        addrs = route.brokers.get(queue.broker_name, {}) if route else {}
        addr = pull_addr(addrs, owned.suggested_id)
        if addr is None:
            raise NoBroker(
                queue.topic, f"broker {queue.broker_name} to pull from", list(route.brokers) if route else []
            )
        generation, offset = owned.generation, owned.tracker.end
        owned.last_pull_ms = self._clock_ms()
        answer = await self._peers.request(
            f"pull {queue}",
            addr,
            RequestCode.PULL_MESSAGE,
            self._header(owned, offset),
            timeout_s=self._config.hold_s + self._config.answer_margin_s,
        )
        if not owned.dropped and owned.generation == generation:
            self._on_answer(owned, addr, offset, answer)

    def _header(self, owned: OwnedQueue, offset: int) -> dict[str, str]:
        queue = owned.queue
        subscription = self._subscriptions[queue.topic]
        wanted = subscription.filter
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(self._config.pull_count),
            "sysFlag": PULL_FLAGS,
            "commitOffset": "0",
            "suspendTimeoutMillis": str(round(self._config.hold_s * 1000)),
            "subscription": wanted.text,
            "subVersion": str(subscription.version_ms),
            "expressionType": wanted.expression_type,
            "bname": queue.broker_name,
        }

    def _on_answer(self, owned: OwnedQueue, addr: str, offset: int, answer: Command) -> None:
        code, ext = answer.code, answer.ext
        next_offset = int(ext.get("nextBeginOffset", offset))
        if code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "client.offset_moved",
                queue=str(owned.queue),
                asked_offset=offset,
                next_offset=next_offset,
                min_offset=int(ext.get("minOffset", 0)),
                max_offset=int(ext.get("maxOffset", 0)),
            )
            self._on_moved(owned, next_offset)
            return
        if code != ResponseCode.SUCCESS and code not in NOTHING_NEW:
            raise BrokerRefused(f"pull {owned.queue}", addr, code, answer.remark)
        owned.suggested_id = int(ext.get("suggestWhichBrokerId", MASTER_ID))
        owned.max_offset = int(ext.get("maxOffset", owned.max_offset))
        records = self._decode(owned, bytes(answer.body)) if code == ResponseCode.SUCCESS else []
        if owned.broken is not None:
            next_offset = records[-1].queue_offset + 1 if records else offset
        passes = self._subscriptions[owned.queue.topic].filter.passes
        owned.offer(
            [record for record in records if record.queue_offset >= offset and passes(record)], next_offset
        )
        if records or owned.broken is not None:
            self._on_records(owned)

    def _decode(self, owned: OwnedQueue, body: bytes) -> list[StoredRecord]:
        """The records of an answer; of a damaged one those before the damage, and the queue is broken."""
        try:
            return unwrapped_from(decode_records(body, check_crc=self._check_records), 0)
        except RecordError:
            pass
        records: list[StoredRecord] = []
        position = 0
        while True:
            try:
                record = decode_record(body, position, check_crc=self._check_records)
                records += unwrapped(record)
            except RecordError as damage:
                offset = records[-1].queue_offset + 1 if records else owned.tracker.end
                queue = owned.queue
                owned.broken = DamagedRecord(
                    queue.topic, queue.broker_name, queue.queue_id, offset, str(damage)
                )
                return records
            position += record.size

    def _break(self, owned: OwnedQueue, failed: ClientError) -> None:
        owned.broken = failed
        self._on_records(owned)
