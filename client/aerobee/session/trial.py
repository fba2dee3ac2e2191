"""One message handled for a trial: an operator sends it to a member and wants to see what its handler makes of it."""

import traceback
from collections.abc import Mapping

from aerobee.consuming.group_consumer import AnyConsumer
from aerobee.messages.codecs import CodecError
from aerobee.messages.group_message import DEAD_LETTER_LEVEL, AnyMessage, DeadLetter, GroupMessage, RetryLater
from aerobee.messages.message import SendResult
from aerobee.messages.owned_queue import OwnedQueue
from aerobee.terms.routes import MessageQueue
from aerobee_proto.bodies import ConsumeMessageDirectlyResult
from aerobee_proto.records import StoredRecord

__all__ = ["try_message"]


class _Trial:
    """Takes the settling of a message that no queue waits for."""

    def __init__(self, consumer: AnyConsumer) -> None:
        self._consumer = consumer
        self.result = "CR_SUCCESS"

    def acked(self, message: AnyMessage) -> None:
        self.result = "CR_SUCCESS"

    async def later(self, message: AnyMessage, level: int) -> None:
        self.result = "CR_ROLLBACK" if level == DEAD_LETTER_LEVEL else "CR_LATER"

    async def reply(
        self, message: AnyMessage, body: bytes | str, properties: Mapping[str, str] | None
    ) -> SendResult:
        return await self._consumer.reply(message, body, properties)


async def try_message(
    consumer: AnyConsumer, record: StoredRecord, broker_name: str, body_size_max: int
) -> ConsumeMessageDirectlyResult:
    """Run the consumer's handler on the record; nothing is committed or sent back, whatever it does."""
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    owned = OwnedQueue(queue, record.queue_offset, consumer.config, serial=False, joined_ms=0)
    trial = _Trial(consumer)
    message = GroupMessage(record, owned, trial, body_size_max, consumer.codec)
    remark: str | None = None
    try:
        await consumer.consume_directly(message)
    except RetryLater:
        trial.result = "CR_LATER"
    except (DeadLetter, CodecError) as given_up:
        trial.result, remark = "CR_ROLLBACK", str(given_up)
    except Exception as failed:  # the handler's own, shown to the operator
        trial.result = "CR_THROW_EXCEPTION"
        remark = "".join(traceback.format_exception(failed))
    return ConsumeMessageDirectlyResult(consume_result=trial.result, order=consumer.orderly, remark=remark)
