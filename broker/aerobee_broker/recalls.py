"""What clients and other brokers ask about timer messages.

60 GET_TIMER_CHECK_POINT   61 GET_TIMER_METRICS   370 RECALL_MESSAGE

A handle is what a producer gets for a timer message and gives back to recall it: the base64url of
`v1 <topic> <broker name> <ms since the epoch> <unique key>`. Its time lies in the message's slot of the timer. A recall
is a timer message itself, for that time, with TIMER_DEL_UNIQKEY.

Touches  the store through the writer.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from aerobee_broker.delay_rules import whole_number
from aerobee_broker.refusals import check_sendable
from aerobee_broker.services import Services
from aerobee_broker.timer_delivery import TimerDelivery, recall_key
from aerobee_proto import properties
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import RecallMessageHeader
from aerobee_proto.properties import decode_properties
from aerobee_remoting.answers import answer_in_slices
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.errors import StoreError
from aerobee_store.messages import NewMessage, PutStatus

__all__ = ["Recalls", "recall_handle"]

VERSION: Final = "v1"
TAG: Final = "_RECALL_TAG_"
HANDLE_CHARS_MAX: Final = 4096


@dataclass(slots=True, frozen=True)
class _Handle:
    topic: str
    broker_name: str
    at_ms: int
    unique_key: str


def recall_handle(broker_name: str, topic: str, parked: NewMessage) -> str:
    """The handle of a parked timer message of `topic`."""
    mapping = decode_properties(parked.properties.decode("utf-8", "replace"))
    at_ms = int(mapping[properties.TIMER_OUT_MS]) + 1
    if not {properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS} & mapping.keys():
        at_ms = int(mapping[properties.TIMER_DELIVER_MS])  # exact: it may be recalled until then
    words = (VERSION, topic, broker_name, str(at_ms), parked.unique_key or "")
    return urlsafe_b64encode(" ".join(words).encode()).decode()


def _read(text: str) -> _Handle | None:
    if not 0 < len(text) <= HANDLE_CHARS_MAX:
        return None
    try:
        words = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode().split(" ")
    except (binascii.Error, ValueError):
        return None
    if len(words) < 5 or words[0] != VERSION or not "".join(words).isprintable():
        return None
    at_ms = whole_number(words[3])
    return _Handle(words[1], words[2], -1 if at_ms is None else at_ms, words[4])


class Recalls:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(code.GET_TIMER_CHECK_POINT, self.checkpoint, permission=Permission.CLUSTER)
        add(code.GET_TIMER_METRICS, self.metrics, permission=Permission.INSPECT)
        add(code.RECALL_MESSAGE, self.recall, permission=Permission.PUBLISH, header=RecallMessageHeader)

    def _timers(self) -> TimerDelivery:
        timers = self._services.timers
        if timers is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "timer messages are turned off here (timerWheelEnable)"
            )
        return timers

    async def checkpoint(self, _: Request) -> Response:
        """How far the timer is."""
        return Response(body=self._timers().files.checkpoint())

    def metrics(self, request: Request) -> None:
        """How many messages of each topic wait."""
        self._timers()
        answer_in_slices(request, self._services.timer_counts.to_json())

    async def recall(self, request: Request) -> Response:
        """Take a timer message out before it is delivered; answered when that is durable.

        Every answer names the region: official producers trace only the recalls whose answer does.
        """
        region = {properties.MSG_REGION: self._services.config.region_id}
        try:
            unique_key = await self._recall(request.header)
        except RequestError as refused:
            return Response(refused.code, refused.remark, ext=region)
        return Response(ext={"msgId": unique_key, **region})

    async def _recall(self, header: RecallMessageHeader) -> str:
        """The unique key of the message that will not come. RequestError: refused."""
        services = self._services
        self._check_allowed()
        check_sendable(header.topic)
        services.topics.require(header.topic)
        handle = _read(header.recall_handle)
        if handle is None:
            raise _illegal("recall handle is invalid")
        if handle.topic != header.topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != services.config.broker_name:
            raise _illegal("recall failed, the message is not of this broker")
        if not 0 < handle.at_ms - services.clock() < services.config.timer_max_delay_sec * 1000:
            raise _illegal("recall failed, timestamp invalid: the message is delivered already")
        mapping = {
            properties.TAGS: TAG,
            properties.TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
            properties.UNIQ_KEY: handle.unique_key,
            properties.TIMER_DELIVER_MS: str(handle.at_ms),
            properties.BORN_TIMESTAMP: str(services.clock()),
        }
        if header.producer_group and header.producer_group.isprintable():
            mapping[properties.PRODUCER_GROUP] = header.producer_group
        message = services.writer.new(handle.topic, 0, b"0", mapping)
        await self._put(services.parking.place(message, mapping))
        return handle.unique_key

    def _check_allowed(self) -> None:
        config = self._services.config
        if not config.recall_message_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden (recallMessageEnable)"
            )
        if not config.broker_permission & Perm.WRITE:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"recall failed, the broker takes no messages: brokerPermission is {config.broker_permission}",
            )

    async def _put(self, message: NewMessage) -> None:
        try:
            (done,) = await self._services.writer.put([message])
        except StoreError as refused:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"recall failed: {refused}") from refused
        if done.status is not PutStatus.PUT_OK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"recall failed: {done.status.name}")


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, remark)
