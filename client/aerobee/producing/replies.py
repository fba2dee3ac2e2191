"""Requests and their replies over topics: who waits for which answer, and how an answer is sent.

Touches  brokers through `Peers`.

A request is an ordinary message that says who asked (REPLY_TO_CLIENT) under which id (CORRELATION_ID) and for how long
the asker waits (TTL, milliseconds). The answer goes to the broker that had the request; it hands it to the asker's
connection (PUSH_REPLY_MESSAGE_TO_CLIENT).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from aerobee.errors import BrokerRefused, BrokerUnreachable, InvalidMessage, NoBroker, RequestTimeout
from aerobee.messages.heartbeat import RESERVED_GROUP
from aerobee.messages.message import Message, SendResult
from aerobee.messages.outgoing import body_bytes, user_properties
from aerobee.net.answers import number_or
from aerobee.net.backoff import pauses
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.routes import MessageQueue
from aerobee_proto.codes import RequestCode, SysFlag
from aerobee_proto.frames import Command
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_proto.names import TEMPLATE_TOPIC, reply_topic
from aerobee_proto.properties import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from aerobee_proto.records import StoredRecord

if TYPE_CHECKING:
    from aerobee.messages.group_message import AnyMessage

__all__ = ["PendingReplies", "Replier", "reply_record"]

REPLY: Final = "reply"
REPLY_TIMEOUT_S: Final = 30.0  # so long at most a reply is tried, however long the asker says that it waits


class PendingReplies:
    """Requests of one client that wait for their replies."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    def expect(self, correlation_id: str) -> asyncio.Future[Message]:
        """The future of a reply; it is forgotten when it ends, for any reason."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        return future

    def arrived(self, correlation_id: str, reply: Message) -> bool:
        """Hand a reply over; False when nobody waits for it any more."""
        future = self._waiting.get(correlation_id)
        if future is None or future.done():
            return False
        future.set_result(reply)
        return True

    def __len__(self) -> int:
        return len(self._waiting)


class Replier:
    """Sends replies."""

    def __init__(
        self, *, peers: Peers, routes: RouteTable, keys: UniqueKeyFactory, clock_ms: Callable[[], int]
    ) -> None:
        self._peers = peers
        self._routes = routes
        self._keys = keys
        self._clock_ms = clock_ms

    async def reply(
        self, request: "AnyMessage", body: bytes | str, properties: Mapping[str, str] | None
    ) -> SendResult:
        """Answer `request`. BrokerRefused when the asker is not there any more."""
        data = body_bytes(body)
        asked = request.properties
        cluster, correlation_id, asker = (
            asked.get(name) for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT)
        )
        if not correlation_id or not asker or not cluster:
            raise InvalidMessage(
                f"message {request.message_id} is no request: nobody waits for a reply to it"
            )
        message_id = self._keys.next_key()
        reply_properties = {
            UNIQ_KEY: message_id,
            MSG_TYPE: REPLY,
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: asker,
            TTL: asked.get(TTL, ""),
        }
        topic = reply_topic(cluster)
        queue = MessageQueue(topic, request.broker_name, 0)
        header = {
            "a": RESERVED_GROUP,
            "b": topic,
            "c": TEMPLATE_TOPIC,
            "d": "1",
            "e": "0",
            "f": "0",
            "g": str(self._clock_ms()),
            "h": "0",
            "i": user_properties(properties)
            + encode_properties({k: v for k, v in reply_properties.items() if v}),
            "j": "0",
            "k": "false",
            "m": "false",
            "n": request.broker_name,
        }
        what = f"reply to message {request.message_id}"
        answer = await self._send(what, request, header, data, asked.get(TTL, ""))
        return SendResult(message_id, queue, number_or(answer, "queueOffset", 0), answer.ext.get("msgId", ""))

    async def _send(
        self, what: str, request: "AnyMessage", header: dict[str, str], data: bytes, ttl_ms: str
    ) -> Command:
        """Tried while the asker may still wait and the broker is away; then the asker has to find it again too."""
        topic = request.owned.queue.topic
        now = asyncio.get_running_loop().time
        deadline = now() + min(float(ttl_ms) / 1000 if ttl_ms.isdecimal() else 0.0, REPLY_TIMEOUT_S)
        waits = pauses()
        was_away = False
        while True:
            try:
                addr = self._routes.master_addr(topic, request.broker_name)
                return await self._peers.call(what, addr, RequestCode.SEND_REPLY_MESSAGE_V2, header, data)
            except (RequestTimeout, BrokerUnreachable, NoBroker, BrokerRefused) as failed:
                was_away = was_away or not isinstance(failed, BrokerRefused)
                pause_s = next(waits)
                if not was_away or now() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
                self._routes.refresh_soon(topic)


def reply_record(ext: Mapping[str, str], body: bytes) -> StoredRecord:
    """The record that a PUSH_REPLY_MESSAGE_TO_CLIENT carries. ValueError for header fields that are none."""
    properties = ext.get("properties", "")
    return StoredRecord(
        topic=ext.get("topic", ""),
        queue_id=int(ext.get("queueId", "0")),
        flag=int(ext.get("flag", "0")),
        queue_offset=0,
        physical_offset=0,
        sys_flag=int(ext.get("sysFlag", "0")) & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK),
        born_timestamp=int(ext.get("bornTimestamp", "0")),
        born_host=_host(ext.get("bornHost", "")),
        store_timestamp=int(ext.get("storeTimestamp", "0")),
        store_host=_host(ext.get("storeHost", "")),
        reconsume_times=int(ext.get("reconsumeTimes", "0")),
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
        size=len(body) + len(properties),
        body_crc=0,
        version=1,
    )


def correlation_id_of(ext: Mapping[str, str]) -> str | None:
    """The id of the request that a pushed reply answers."""
    return decode_properties(ext.get("properties", "")).get(CORRELATION_ID)


def _host(text: str) -> tuple[str, int]:
    """Java writes a socket address as `/127.0.0.1:1234` or `name/127.0.0.1:1234`."""
    host, _, port = text.rpartition("/")[2].rpartition(":")
    return (host.strip("[]") or "0.0.0.0", int(port) if port.isdecimal() else 0)  # noqa: S104  # "unknown", not bound
