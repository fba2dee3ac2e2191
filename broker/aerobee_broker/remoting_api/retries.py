"""Messages that consumers give back: 36 CONSUMER_SEND_MSG_BACK, decoded and answered.

Touches  nothing.
"""

from aerobee_broker.messages.giving_back import GivenBack, GivingBack
from aerobee_broker.remoting_api.client_versions import reconsume_limit_asked
from aerobee_proto.codes import RequestCode
from aerobee_proto.headers import ConsumerSendMsgBackHeader
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import SUB, need_of_topic, on_group

__all__ = ["Retries"]


class Retries:
    """The handler of 36."""

    def __init__(self, giving_back: GivingBack) -> None:
        self._giving_back = giving_back

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        table.register(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            self.send_back,
            header=ConsumerSendMsgBackHeader,
            needs=(on_group("group", SUB),),
        )

    async def send_back(self, request: Request[ConsumerSendMsgBackHeader]) -> Response:
        """Answered when the message is as durable as a send."""
        header = request.header
        await self._giving_back.give_back(
            GivenBack(
                group=header.group,
                physical_offset=header.offset,
                delay_level=header.delay_level,
                limit=reconsume_limit_asked(header.max_reconsume_times, request.version),
                is_unit=header.unit_mode,
            ),
            admit=lambda topic: request.admit(need_of_topic(topic, SUB)),
        )
        return Response()
