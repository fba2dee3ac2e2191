"""Replying: a consumer's reply goes to the producer that waits for it.

Touches  the store, when replies are kept there (storeReplyMessageEnable); the table of producers.

The producer is known by its client id, in the property REPLY_TO_CLIENT. The replier is told whether the producer took
the reply; it is stored in any case, for people who look for it.
"""

import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.members.clients import born_host
from aerobee_broker.members.producers import ProducerTable
from aerobee_broker.messages.intake import ToPublish
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.refusals import check_body, check_broker_writable, check_queue, check_sendable
from aerobee_broker.messages.stored_properties import stored_form
from aerobee_broker.messages.values import Caller
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.stats import BrokerStats
from aerobee_proto import names, properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import SysFlag
from aerobee_remoting.peers.peer import Peer
from aerobee_store.faults.errors import StoreError
from aerobee_store.terms.messages import Appended, NewMessage, PutStatus

__all__ = ["Push", "Replied", "Replying"]

log = structlog.get_logger()

SHOWN_CHARS_MAX: Final = 255

Push = Callable[[Peer, str, int], Awaitable[str | None]]
"""Hand a reply to its producer, with these properties, as stored at that time (ms since the epoch). Why the producer
did not take it, None when it did."""


class Replied(msgspec.Struct, frozen=True, gc=False):
    """What became of a reply."""

    queue_id: int
    place: Appended | None  # None when replies are not kept, or this one could not be
    not_taken: str | None  # why its producer did not take it; None when it did


class Replying:
    """Takes replies. All calls from the event loop."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        topics: TopicTable,
        groups: SubscriptionGroups,
        producers: ProducerTable,
        stats: BrokerStats,
        writer: MessageWriter,
    ) -> None:
        self._live = live
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._producers = producers
        self._stats = stats
        self._writer = writer

    async def reply(self, message: ToPublish, body: bytes, caller: Caller, push: Push) -> Replied:
        """Store a reply and push it; when what is stored is as durable as a send. RequestError: not even looked at."""
        # Checks.
        topic = self._topic(message)
        check_body("reply", message.topic, len(body), self._live.value.max_message_size)
        queue_id = message.queue_id
        if queue_id < 0:
            queue_id = random.randrange(topic.write_queue_nums)  # noqa: S311  # spread, not secrecy
        mapping = properties.decode_properties(message.properties)
        # Stored first: a producer that has the reply may look for it.
        place = self._store(message, body, caller, queue_id, mapping)
        not_taken = await self._push(mapping, push)
        if place is not None:
            with contextlib.suppress(StoreError):  # it was the push that was asked for
                await self._writer.durable(in_time=True)
        return Replied(queue_id, place, not_taken)

    def region(self) -> dict[str, str]:
        """Where this broker is, as messages and answers say it."""
        config = self._live.value
        return {
            properties.MSG_REGION: config.region_id,
            properties.TRACE_ON: "true" if config.trace_on else "false",
        }

    def _topic(self, message: ToPublish) -> TopicConfig:
        """The topic of a reply: usually the cluster's reply topic, which is there from the start."""
        check_broker_writable(self._live.value)
        check_sendable(message.topic)
        if names.is_retry_topic(message.topic):
            self._groups.require(message.topic.removeprefix(names.RETRY_PREFIX))
        topic = self._topics.for_send(
            message.topic, template=message.default_topic, queue_count=message.default_topic_queue_nums
        )
        limit = max(topic.read_queue_nums, topic.write_queue_nums)
        if message.queue_id >= 0:  # otherwise any
            check_queue(message.topic, message.queue_id, limit)
        return topic

    def _store(
        self, message: ToPublish, body: bytes, caller: Caller, queue_id: int, mapping: dict[str, str]
    ) -> Appended | None:
        """Where the reply lies; None when replies are not kept, or this one could not be."""
        if not self._live.value.store_reply_message_enable:
            return None
        new = NewMessage(
            message.topic,
            queue_id,
            message.flag,
            message.sys_flag & ~SysFlag.TRANSACTION_MASK,
            message.born_timestamp,
            born_host(caller.peer),
            self._writer.host,
            message.reconsume_times,
            0,
            body,
            *stored_form(mapping),
        )
        try:
            (done,) = self._writer.append([new])
        except StoreError as refused:
            log.debug("broker.reply_not_stored", topic=message.topic, reason=str(refused))
            return None
        if done.status is not PutStatus.PUT_OK:
            return None
        self._stats.put(message.topic, 1, done.size)
        return done

    async def _push(self, mapping: dict[str, str], push: Push) -> str | None:
        """Hand the reply to its producer; why it did not take it, None when it did."""
        client_id = mapping.get(properties.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null"
        shown = client_id[:SHOWN_CHARS_MAX]
        target = self._producers.by_client_id(client_id)
        if target is None or target.is_closed:
            return f"push reply message fail, channel of <{shown}> not found."
        if target.is_congested:
            return f"push reply message to <{shown}> fail: it does not read what it was sent before"
        now_ms = self._clock()
        own = {**mapping, properties.PUSH_REPLY_TIME: str(now_ms), **self.region()}
        failed = await push(
            target, "".join([f"{name}\x01{value}\x02" for name, value in own.items()]), now_ms
        )
        return None if failed is None else f"push reply message to <{shown}> fail: {failed}"
