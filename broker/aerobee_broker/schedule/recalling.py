"""Recalls: a producer takes a timer message out before it is delivered.

It gives back the handle that it got for the message (`recall_handles`). A recall is a timer message itself, for the
time that the handle says, with TIMER_DEL_UNIQKEY.

Touches  the store through the writer.
"""

from collections.abc import Callable
from typing import Final

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.placement import PlacementRules
from aerobee_broker.messages.recall_handles import read_recall_handle
from aerobee_broker.messages.refusals import (
    check_broker_writable,
    check_sendable,
    own_put_refusal,
    store_refusal,
)
from aerobee_broker.schedule.timer_delivery import recall_key
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto import properties
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_store.faults.errors import StoreError
from aerobee_store.terms.messages import NewMessage, PutStatus

__all__ = ["Recalling"]

TAG: Final = "_RECALL_TAG_"
FAILED: Final = "recall failed: "


class Recalling:
    """Takes timer messages out. All calls from the event loop."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        topics: TopicTable,
        placement: PlacementRules,
        writer: MessageWriter,
    ) -> None:
        self._live = live
        self._clock = clock
        self._topics = topics
        self._placement = placement
        self._writer = writer

    async def recall(self, topic: str, handle_text: str, producer_group: str | None) -> str:
        """Take a timer message out before it is delivered; its unique key, when that is durable. RequestError: refused.

        `handle_text` is what its producer got for it; `producer_group`, where it is said, is kept with the recall.
        """
        self._check_allowed()
        check_sendable(topic)
        self._topics.require(topic)
        handle = read_recall_handle(handle_text)
        if handle is None:
            raise _illegal("recall handle is invalid")
        if handle.topic != topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != self._live.value.broker_name:
            raise _illegal("recall failed, the message is not of this broker")
        if not 0 < handle.at_ms - self._clock() < self._live.value.timer_max_delay_sec * 1000:
            raise _illegal("recall failed, timestamp invalid: the message is delivered already")
        mapping = {
            properties.TAGS: TAG,
            properties.TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
            properties.UNIQ_KEY: handle.unique_key,
            properties.TIMER_DELIVER_MS: str(handle.at_ms),
            properties.BORN_TIMESTAMP: str(self._clock()),
        }
        if producer_group and producer_group.isprintable():
            mapping[properties.PRODUCER_GROUP] = producer_group
        message = self._writer.new(handle.topic, 0, b"0", mapping)
        await self._put(self._placement.place(message, mapping))
        return handle.unique_key

    def _check_allowed(self) -> None:
        config = self._live.value
        if not config.recall_message_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden (recallMessageEnable)"
            )
        check_broker_writable(config, code=ResponseCode.SERVICE_NOT_AVAILABLE)

    async def _put(self, message: NewMessage) -> None:
        try:
            (done,) = await self._writer.put([message])
        except StoreError as refused:
            raise store_refusal(refused, code=ResponseCode.SYSTEM_ERROR, what=FAILED) from refused
        if done.status is not PutStatus.PUT_OK:
            raise own_put_refusal(done, FAILED)


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, remark)
