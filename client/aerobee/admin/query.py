"""Looking messages up: by key, by the sender's unique id, by the id that names a place in a broker's log."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from aerobee.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    DamagedRecord,
    InvalidMessage,
    RequestTimeout,
)
from aerobee.messages.message import Message
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.routes import MASTER_ID
from aerobee.terms.start_at import AtTime, QueueEnd, Where, parse_where
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RecordError
from aerobee_proto.message_ids import OffsetMessageId, decode_offset_message_id
from aerobee_proto.records import decode_records
from aerobee_service.logs.event_log import event_logger

__all__ = ["Queries"]

log = event_logger("aerobee.reader")

TIME_MAX_MS: Final = 2**63 - 1
UNIQUE_KEY_MAX_NUM: Final = 32


class Queries:
    """Asks every broker of a topic and merges the answers."""

    def __init__(
        self, peers: Peers, routes: RouteTable, clock_ms: Callable[[], int], body_size_max: int
    ) -> None:
        self._peers = peers
        self._routes = routes
        self._clock_ms = clock_ms
        self._body_size_max = body_size_max

    async def by_key(
        self, topic: str, key: str, begin: Where | None, end: Where | None, max_messages: int
    ) -> list[Message]:
        """Messages with that key or that unique id, oldest first."""
        found = await self._ask_all(
            topic, key, self._time(begin, 0), self._time(end, TIME_MAX_MS), max_messages, unique=False
        )
        return [message for message in found if key in message.keys or key == message.record.unique_key][
            -max_messages:
        ]

    async def by_id(self, message_id: str, topic: str | None) -> Message | None:
        """The message with that id; None when there is none.

        An id that names a place is asked from the broker it names; else, and when nothing is there, the topic's
        index is asked for the unique id.
        """
        place = _place(message_id)
        if place is not None and (message := await self._at(place, message_id)) is not None:
            return message
        if topic is None:
            if place is not None:
                return None
            raise InvalidMessage(
                f"{message_id!r} is not an id that names a broker; give the topic to search its index for it"
            )
        found = await self._ask_all(topic, message_id, 0, TIME_MAX_MS, UNIQUE_KEY_MAX_NUM, unique=True)
        return next((message for message in found if message.record.unique_key == message_id), None)

    async def _at(self, place: OffsetMessageId, message_id: str) -> Message | None:
        host = f"[{place.host}]" if ":" in place.host else place.host
        addr = f"{host}:{place.port}"
        what = f"view message {message_id}"
        try:
            answer = await self._peers.request(
                what, addr, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place.physical_offset)}
            )
        except (RequestTimeout, BrokerUnreachable) as failed:
            # A unique id may look like a place; then there is no such broker, and the index is asked.
            log.debug("client.view_failed", addr=addr, reason=str(failed))
            return None
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        messages = self._decode(bytes(answer.body), self._broker_name(addr), "")
        if not messages or message_id.upper() != messages[0].offset_message_id:
            return None
        if self._routes.broker_name_of(addr) is not None:
            return messages[0]
        with contextlib.suppress(ClientError):  # without a route the address stands for the name
            await self._routes.for_subscribe(messages[0].topic)
            return self._decode(bytes(answer.body), self._broker_name(addr), "")[0]
        return messages[0]

    async def _ask_all(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, *, unique: bool
    ) -> list[Message]:
        route = await self._routes.for_subscribe(topic)
        header = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_messages),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": "true" if unique else "false",
        }
        what = f"query key {key!r} of topic {topic!r}"
        masters = {name: addrs[MASTER_ID] for name, addrs in route.brokers.items() if MASTER_ID in addrs}
        results = await asyncio.gather(
            *(self._ask(what, topic, name, addr, header) for name, addr in masters.items()),
            return_exceptions=True,
        )
        messages: list[Message] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            messages += [message for message in result if message.record.topic == topic]
        messages.sort(key=lambda message: (message.store_timestamp_ms, message.record.physical_offset))
        return messages

    async def _ask(
        self, what: str, topic: str, broker_name: str, addr: str, header: dict[str, str]
    ) -> list[Message]:
        answer = await self._peers.request(what, addr, RequestCode.QUERY_MESSAGE, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(what, addr, answer.code, answer.remark)
        return self._decode(bytes(answer.body), broker_name, topic)

    def _decode(self, body: bytes, broker_name: str, topic: str) -> list[Message]:
        try:
            records = decode_records(body)
        except RecordError as broken:
            raise DamagedRecord(topic, broker_name, -1, -1, str(broken)) from broken
        return [Message(record, broker_name, self._body_size_max) for record in records]

    def _broker_name(self, addr: str) -> str:
        return self._routes.broker_name_of(addr) or addr

    def _time(self, where: Where | None, default_ms: int) -> int:
        if where is None:
            return default_ms
        match parse_where(where, self._clock_ms()):
            case AtTime(timestamp_ms):
                return timestamp_ms
            case QueueEnd.EARLIEST:
                return 0
            case QueueEnd.LATEST:
                return self._clock_ms()
        raise InvalidMessage(f"{where!r} is an offset; a query takes times")


def _place(message_id: str) -> OffsetMessageId | None:
    """The place that an id names; None when it cannot be one (a port is at most 65535)."""
    try:
        place = decode_offset_message_id(message_id)
    except FormatError:
        return None
    return place if 0 < place.port < 65536 and place.physical_offset >= 0 else None
