"""Request-reply: a consumer's reply is pushed to the producer that waits for it.

324 SEND_REPLY_MESSAGE, 325 the same with short names; to the producer: 326 PUSH_REPLY_MESSAGE_TO_CLIENT

Touches  the store, when replies are kept there (storeReplyMessageEnable); the producer's connection.

The producer is known by its client id, in the property REPLY_TO_CLIENT. The replier is told whether the producer took
the reply; it is stored in any case, for people who look for it.
"""

import contextlib
import random
from typing import Any, Final

import structlog

from aerobee_broker.clients import born_host
from aerobee_broker.refusals import check_sendable, check_takes_messages, no_such_queue
from aerobee_broker.services import Services
from aerobee_broker.stored_properties import stored_form
from aerobee_proto import names, properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode, SysFlag
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import PushReplyHeader, SendMessageHeader, SendMessageV2Header
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.records import decode_host
from aerobee_remoting.connection import format_addr
from aerobee_remoting.errors import RemotingError
from aerobee_remoting.handlers import MESSAGE_BODY_SIZE_MAX, HandlerTable, Permission, Request, Response
from aerobee_store.errors import StoreError
from aerobee_store.messages import Appended, NewMessage, PutStatus

__all__ = ["Replies"]

log = structlog.get_logger()

PUSH_TIMEOUT_S: Final = 10.0
SHOWN_CHARS_MAX: Final = 255


class Replies:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        for code, header in (
            (RequestCode.SEND_REPLY_MESSAGE, SendMessageHeader),
            (RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageV2Header),
        ):
            table.register(
                code,
                self.reply,
                permission=Permission.PUBLISH,
                header=header,
                body_size_max=MESSAGE_BODY_SIZE_MAX,
            )

    async def reply(self, request: Request) -> Response:
        """Store and push one reply. The answer says how the push went: 0 taken, 1 with the reason."""
        header: Any = request.header
        topic = self._topic(header)
        self._check_body(header, request.body)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(topic.write_queue_nums)  # noqa: S311  # spread, not secrecy
        mapping = properties.decode_properties(header.properties)
        stored = self._store(request, header, queue_id, mapping)
        refused = await self._push(request, header, mapping)
        if stored is not None:
            with contextlib.suppress(StoreError):  # it was the push that was asked for
                await self._services.writer.durable()
        ext = self._answer_fields(queue_id, stored)
        if refused is not None:
            log.debug("broker.reply_not_pushed", peer=request.connection.peer, reason=refused)
            return Response(ResponseCode.SYSTEM_ERROR, refused, ext=ext)
        return Response(ext=ext)

    # --- checks -----------------------------------------------------------------------------------------------

    def _topic(self, header: Any) -> TopicConfig:
        """The topic of a reply: usually the cluster's reply topic, which is there from the start."""
        check_takes_messages(self._services.config)
        check_sendable(header.topic)
        if names.is_retry_topic(header.topic):
            self._services.groups.require(header.topic.removeprefix(names.RETRY_PREFIX))
        topic = self._services.topics.for_send(
            header.topic, template=header.default_topic, queue_count=header.default_topic_queue_nums
        )
        limit = max(topic.read_queue_nums, topic.write_queue_nums)
        if header.queue_id >= limit:
            raise no_such_queue(header.topic, header.queue_id, limit)
        return topic

    def _check_body(self, header: Any, body: bytes) -> None:
        limit = self._services.config.max_message_size
        if not body:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"reply to topic {header.topic} has no body")
        if len(body) > limit:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"body of a reply has {len(body)} bytes, at most {limit} are allowed (maxMessageSize)",
            )

    # --- storing ----------------------------------------------------------------------------------------------

    def _store(
        self, request: Request, header: Any, queue_id: int, mapping: dict[str, str]
    ) -> Appended | None:
        """Where the reply lies; None when replies are not kept, or this one could not be."""
        services = self._services
        if not services.config.store_reply_message_enable:
            return None
        message = NewMessage(
            header.topic,
            queue_id,
            header.flag,
            header.sys_flag & ~SysFlag.TRANSACTION_MASK,
            header.born_timestamp,
            born_host(request.connection),
            services.writer.host,
            header.reconsume_times,
            0,
            request.body,
            *stored_form(mapping),
        )
        try:
            (done,) = services.writer.append([message])
        except StoreError as refused:
            log.debug("broker.reply_not_stored", topic=header.topic, reason=str(refused))
            return None
        if done.status is not PutStatus.PUT_OK:
            return None
        services.stats.put(header.topic, 1, done.size)
        return done

    # --- pushing ----------------------------------------------------------------------------------------------

    async def _push(self, request: Request, header: Any, mapping: dict[str, str]) -> str | None:
        """Hand the reply to its producer; why it did not take it, None when it did."""
        client_id = mapping.get(properties.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null"
        shown = client_id[:SHOWN_CHARS_MAX]
        target = self._services.producers.by_client_id(client_id)
        if target is None or target.is_closed:
            return f"push reply message fail, channel of <{shown}> not found."
        if target.is_congested:
            return f"push reply message to <{shown}> fail: it does not read what it was sent before"
        push = self._push_header(request, header, mapping)
        try:
            taken = await target.request(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, request.body, PUSH_TIMEOUT_S
            )
        except RemotingError as failed:
            return f"push reply message to <{shown}> fail: {failed}"
        if taken.code != ResponseCode.SUCCESS:
            return f"push reply message to <{shown}> fail: code {taken.code}, {(taken.remark or '')[:200]}"
        return None

    def _push_header(self, request: Request, header: Any, mapping: dict[str, str]) -> PushReplyHeader:
        now_ms = self._services.clock()
        own = {**mapping, properties.PUSH_REPLY_TIME: str(now_ms), **self._region()}
        return PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties="".join([f"{name}\x01{value}\x02" for name, value in own.items()]),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=request.connection.peer,
            store_host=format_addr(decode_host(self._services.writer.host)),
            store_timestamp=now_ms,
        )

    def _answer_fields(self, queue_id: int, stored: Appended | None) -> dict[str, str]:
        """The fields that clients read of every answer to a send."""
        message_id = "0"
        if stored is not None:
            message_id = encode_offset_message_id(
                *decode_host(self._services.writer.host), stored.physical_offset
            )
        return {
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(stored.queue_offset if stored is not None else 0),
            **self._region(),
        }

    def _region(self) -> dict[str, str]:
        config = self._services.config
        return {
            properties.MSG_REGION: config.region_id,
            properties.TRACE_ON: "true" if config.trace_on else "false",
        }
