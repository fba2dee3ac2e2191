"""What brokers ask of a client: one handler table, one short handler a request.

39   CHECK_TRANSACTION_STATE        a transaction without an end: its producer group is asked
40   NOTIFY_CONSUMER_IDS_CHANGED    members came or went: share queues out anew
220  RESET_CONSUMER_CLIENT_OFFSET   an operator moved the group's offsets
221  GET_CONSUMER_STATUS_FROM_CLIENT  which offsets?
307  GET_CONSUMER_RUNNING_INFO      how is it going, and where do the threads stand?
309  CONSUME_MESSAGE_DIRECTLY       handle this one message now, for a trial
326  PUSH_REPLY_MESSAGE_TO_CLIENT   the reply to a request of ours
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aerobee.messages.message import Message
from aerobee.producing.replies import PendingReplies, correlation_id_of, reply_record
from aerobee.producing.transactions import Checker
from aerobee.terms.routes import MessageQueue
from aerobee_proto.bodies import ConsumerStatusBody, ResetOffsetBody
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.javajson import MessageQueue as QueueKey
from aerobee_proto.properties import PRODUCER_GROUP
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import MESSAGE_BODY_SIZE_MAX, AnyRequest, HandlerTable, Response
from aerobee_remoting.exchange.needs import Open
from aerobee_service.logs.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.consuming.group_consumer import AnyConsumer

__all__ = ["ServerRequests"]

log = event_logger("aerobee.client")

# What brokers send with a body: a message, or a table of offsets.
CODES_WITH_BODY: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)


OF_OUR_BROKERS: Final = Open("what the brokers say that this client has chosen to talk to")


class ServerRequests:
    """Answers brokers for one client."""

    def __init__(self, replies: PendingReplies, nameservers: tuple[str, ...], body_size_max: int) -> None:
        self._replies = replies
        self._nameservers = nameservers
        self._body_size_max = body_size_max
        # Kept up by the session: group -> its one consumer here; producer group -> who checks its transactions.
        self.consumers: dict[str, AnyConsumer] = {}
        self.checks: dict[str, Checker] = {}
        self.broker_name_of: Callable[[str], str | None] = lambda _: None

    def table(self) -> HandlerTable:
        """The handlers, for the connections of the client."""
        table = HandlerTable()
        for code, handler in (
            (RequestCode.CHECK_TRANSACTION_STATE, self._check),
            (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._rebalance),
            (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset),
            (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status),
            (RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info),
            (RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume),
            (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply),
        ):
            with_body = code in CODES_WITH_BODY
            size_max = MESSAGE_BODY_SIZE_MAX if with_body else 0
            table.register(code, handler, needs=OF_OUR_BROKERS, body_size_max=size_max)
        return table

    def _check(self, request: AnyRequest) -> None:
        record = decode_record(request.body)
        group = record.property_map.get(PRODUCER_GROUP, "")
        check = self.checks.get(group)
        if check is None:
            log.warning("client.check_unanswered", group=group, message_id=record.unique_key)
            return
        check.start(record, request.ext, request.connection.peer)

    def _rebalance(self, request: AnyRequest) -> None:
        consumer = self.consumers.get(request.ext.get("consumerGroup", ""))
        if consumer is not None:
            consumer.member.rebalance_soon()

    async def _reset(self, request: AnyRequest) -> None:
        consumer = self.consumers.get(request.ext.get("group", ""))
        if consumer is None:
            return
        table = ResetOffsetBody.from_bytes(request.body).offset_table
        offsets = {MessageQueue(key.topic, key.broker_name, key.queue_id): at for key, at in table.items()}
        log.info(
            "client.offsets_reset", group=consumer.group, offsets={str(q): at for q, at in offsets.items()}
        )
        await consumer.member.reset(offsets)

    def _status(self, request: AnyRequest) -> Response:
        consumer = self._consumer(request.ext.get("group", ""))
        offsets = consumer.member.committable(request.ext.get("topic"))
        table = {
            QueueKey(queue.topic, queue.broker_name, queue.queue_id): at for queue, at in offsets.items()
        }
        return Response(body=ConsumerStatusBody(message_queue_table=table).to_bytes())

    def _running_info(self, request: AnyRequest) -> Response:
        consumer = self._consumer(request.ext.get("consumerGroup", ""))
        from aerobee.session.running_info import running_info

        with_stacks = request.ext.get("jstackEnable") == "true"
        return Response(body=running_info(consumer, self._nameservers, with_stacks=with_stacks).to_bytes())

    async def _consume(self, request: AnyRequest) -> Response:
        consumer = self._consumer(request.ext.get("consumerGroup", ""))
        from aerobee.session.trial import try_message

        broker_name = request.ext.get("brokerName", "")
        started = time.monotonic()
        result = await try_message(consumer, decode_record(request.body), broker_name, self._body_size_max)
        result.spent_time_mills = round((time.monotonic() - started) * 1000)
        return Response(body=result.to_bytes())

    def _reply(self, request: AnyRequest) -> Response:
        ext = request.ext
        correlation_id = correlation_id_of(ext)
        broker = self.broker_name_of(request.connection.peer) or request.connection.peer
        reply = Message(reply_record(ext, bytes(request.body)), broker, self._body_size_max)
        if correlation_id is None or not self._replies.arrived(correlation_id, reply):
            log.debug("client.reply_unexpected", correlation_id=correlation_id)
        return Response()

    def _consumer(self, group: str) -> "AnyConsumer":
        consumer = self.consumers.get(group)
        if consumer is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"this client has no consumer of group {group!r}")
        return consumer
