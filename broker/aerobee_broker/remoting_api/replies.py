"""Request-reply: replies decoded, pushed to the producer that waits, and answered.

324 SEND_REPLY_MESSAGE, 325 the same with short names; to the producer: 326 PUSH_REPLY_MESSAGE_TO_CLIENT

Touches  the producer's connection.
"""

from typing import Final

import structlog

from aerobee_broker.messages.replying import Replied, Replying
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.headers import PushReplyHeader, SendHeader, SendMessageHeader, SendMessageV2Header
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.records import decode_host
from aerobee_remoting.exchange.handlers import MESSAGE_BODY_SIZE_MAX, HandlerTable, Request, Response
from aerobee_remoting.exchange.limits import format_addr
from aerobee_remoting.exchange.needs import PUB, on_topic, ours
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.peer import Peer

__all__ = ["Replies"]

log = structlog.get_logger()

PUSH_TIMEOUT_S: Final = 10.0


class Replies:
    """Handlers of the codes above."""

    def __init__(self, replying: Replying, store_host: bytes) -> None:
        """`store_host` is this broker's address as messages carry it."""
        self._replying = replying
        self._store_host = decode_host(store_host)

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        headers: dict[int, type[SendHeader]] = {
            RequestCode.SEND_REPLY_MESSAGE: SendMessageHeader,
            RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2Header,
        }
        for code, header in headers.items():
            table.register(
                code,
                self.reply,
                header=header,
                needs=(ours(on_topic("topic", PUB)),),
                body_size_max=MESSAGE_BODY_SIZE_MAX,
            )

    async def reply(self, request: Request[SendHeader]) -> Response:
        """The answer says how the push went: 0 taken, 1 with the reason."""

        async def push(producer: Peer, properties: str, stored_ms: int) -> str | None:
            header = self._push_header(request, properties, stored_ms)
            try:
                taken = await producer.request(
                    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, request.body, PUSH_TIMEOUT_S
                )
            except RemotingError as failed:
                return str(failed)
            if taken.code != ResponseCode.SUCCESS:
                return f"code {taken.code}, {(taken.remark or '')[:200]}"
            return None

        replied = await self._replying.reply(request.header, request.body, request.connection, push)
        ext = self._answer_fields(replied)
        if replied.not_taken is not None:
            log.debug("broker.reply_not_pushed", peer=request.connection.peer, reason=replied.not_taken)
            return Response(ResponseCode.SYSTEM_ERROR, replied.not_taken, ext=ext)
        return Response(ext=ext)

    def _push_header(self, request: Request[SendHeader], properties: str, stored_ms: int) -> PushReplyHeader:
        header = request.header
        return PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=properties,
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=request.connection.peer,
            store_host=format_addr(self._store_host),
            store_timestamp=stored_ms,
        )

    def _answer_fields(self, replied: Replied) -> dict[str, str]:
        """The fields that clients read of every answer to a send."""
        place = replied.place
        message_id = (
            "0" if place is None else encode_offset_message_id(*self._store_host, place.physical_offset)
        )
        return {
            "msgId": message_id,
            "queueId": str(replied.queue_id),
            "queueOffset": str(0 if place is None else place.queue_offset),
            **self._replying.region(),
        }
