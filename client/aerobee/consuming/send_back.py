"""Sending messages back: for later, or to the dead letters.

Touches  brokers through `Peers`.

The broker that holds the message copies it into the group's retry topic with a delay, or into its dead-letter topic.
When it cannot, the message is published to the retry topic from here, as the official clients do.
"""

from collections.abc import Callable

from aerobee.errors import BrokerRefused, ClientError
from aerobee.messages.group_message import DEAD_LETTER_LEVEL, AnyMessage
from aerobee.messages.heartbeat import RESERVED_GROUP
from aerobee.messages.message import SendStatus
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee_proto.codes import RequestCode, SysFlag
from aerobee_proto.names import TEMPLATE_TOPIC, dlq_topic, retry_topic
from aerobee_proto.properties import (
    CLUSTER,
    DELAY,
    MAX_OFFSET,
    MIN_OFFSET,
    MSG_REGION,
    ORIGIN_MESSAGE_ID,
    RECORD_CHECKSUM,
    RETRY_TOPIC,
    TRACE_ON,
    encode_properties,
)
from aerobee_service.logs.event_log import event_logger

__all__ = ["MAX_RECONSUME_TIMES", "SendBack"]

log = event_logger("aerobee.consumer")

MAX_RECONSUME_TIMES = 16  # RocketMQ's usual number, and that of new groups
STORED_CODES = frozenset(status.value for status in SendStatus)
FIRST_LEVEL = 3  # delay level of a first redelivery
# What brokers add to a message that they schedule; a copy of it starts without.
NOT_COPIED = frozenset({DELAY, TRACE_ON, MSG_REGION, CLUSTER, MIN_OFFSET, MAX_OFFSET, RECORD_CHECKSUM})


class SendBack:
    """Sends messages of one group back."""

    def __init__(
        self,
        group: str,
        max_reconsume_times: int | None,
        *,
        peers: Peers,
        routes: RouteTable,
        clock_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._max = MAX_RECONSUME_TIMES if max_reconsume_times is None else max_reconsume_times
        self._has_own_max = max_reconsume_times is not None
        self._peers = peers
        self._routes = routes
        self._clock_ms = clock_ms

    async def send(self, message: AnyMessage, level: int) -> None:
        """Have the message delivered again after `level` (0: the broker's choice, -1: never, a dead letter).

        Raises ClientError when neither way worked; then nothing is stored that would deliver it again.
        """
        if message.record.sys_flag & SysFlag.INNER_BATCH:
            # The broker knows the whole batch alone.
            await self.publish(message, level)
            return
        try:
            await self._ask(message, level)
        except ClientError as failed:
            log.warning(
                "client.send_back_failed",
                group=self._group,
                message_id=message.message_id,
                reason=str(failed),
            )
            await self.publish(message, level)

    async def _ask(self, message: AnyMessage, level: int) -> None:
        record = message.record
        header = {
            "offset": str(record.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.origin_message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "bname": message.broker_name,
        }
        if self._has_own_max:
            header["maxReconsumeTimes"] = str(self._max)
        addr = self._routes.master_addr(message.queue.topic, message.broker_name)
        await self._peers.call(
            f"send message {message.message_id} back", addr, RequestCode.CONSUMER_SEND_MSG_BACK, header
        )

    async def publish(self, message: AnyMessage, level: int) -> None:
        """Publish a copy to the retry topic; the broker turns it into a dead letter when its count is over."""
        record = message.record
        dead = level == DEAD_LETTER_LEVEL
        topic = dlq_topic(self._group) if dead else retry_topic(self._group)
        count = message.reconsume_times + 1
        properties = {name: value for name, value in message.properties.items() if name not in NOT_COPIED}
        properties[RETRY_TOPIC] = message.topic
        properties[ORIGIN_MESSAGE_ID] = message.origin_message_id
        if not dead:
            properties[DELAY] = str(level or FIRST_LEVEL + message.reconsume_times)
        route = await self._routes.for_publish(topic)
        queues = route.publish
        if route.from_template:
            # No nameserver knows the topic yet. Its broker makes it with queues of its own count, not the template's.
            queues = tuple(queue for queue in queues if queue.queue_id == 0) or queues
        queue = queues[count % len(queues)]
        header = {
            "a": RESERVED_GROUP,
            "b": topic,
            "c": TEMPLATE_TOPIC,
            "d": "1",
            "e": str(queue.queue_id),
            "f": str(record.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)),
            "g": str(record.born_timestamp),
            "h": str(record.flag),
            "i": encode_properties(properties),
            "j": str(count),
            "k": "false",
            "l": str(self._max),
            "m": "false",
            "n": queue.broker_name,
        }
        what = f"send message {message.message_id} to {topic}"
        addr = self._routes.master_addr(topic, queue.broker_name)
        answer = await self._peers.request(what, addr, RequestCode.SEND_MESSAGE_V2, header, record.body)
        if answer.code not in STORED_CODES:
            raise BrokerRefused(what, addr, answer.code, answer.remark)
