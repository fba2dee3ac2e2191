"""What clients and other brokers ask about timer messages.

60 GET_TIMER_CHECK_POINT   61 GET_TIMER_METRICS   370 RECALL_MESSAGE

Touches  nothing.
"""

from aerobee_broker.schedule.recalling import Recalling
from aerobee_broker.schedule.timer_counts import TimerCounts
from aerobee_broker.schedule.timer_delivery import TimerDelivery
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto import properties
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import RecallMessageHeader
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.answers import answer_in_slices
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, PUB, on_cluster, on_topic, ours

__all__ = ["Recalls"]


class Recalls:
    """Handlers of the codes above."""

    def __init__(
        self,
        recalling: Recalling,
        *,
        live: LiveConfig,
        timer_counts: TimerCounts,
        timers: TimerDelivery | None,
    ) -> None:
        """`timers` is None where timer messages are turned off."""
        self._recalling = recalling
        self._live = live
        self._timer_counts = timer_counts
        self._timers = timers

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(code.GET_TIMER_CHECK_POINT, self.checkpoint, needs=(ours(on_cluster(GET)),))
        add(code.GET_TIMER_METRICS, self.metrics, needs=(ours(on_cluster(GET)),))
        add(code.RECALL_MESSAGE, self.recall, header=RecallMessageHeader, needs=(on_topic("topic", PUB),))

    def _served(self) -> TimerDelivery:
        timers = self._timers
        if timers is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "timer messages are turned off here (timerWheelEnable)"
            )
        return timers

    async def checkpoint(self, _: Request[NoFields]) -> Response:
        """How far the timer is."""
        return Response(body=self._served().files.checkpoint())

    def metrics(self, request: Request[NoFields]) -> None:
        """How many messages of each topic wait."""
        self._served()
        answer_in_slices(request, self._timer_counts.to_json())

    async def recall(self, request: Request[RecallMessageHeader]) -> Response:
        """Take a timer message out before it is delivered; answered when that is durable.

        Every answer names the region: official producers trace only the recalls whose answer does.
        """
        header = request.header
        region = {properties.MSG_REGION: self._live.value.region_id}
        try:
            unique_key = await self._recalling.recall(
                header.topic, header.recall_handle, header.producer_group
            )
        except RequestError as refused:
            return Response(refused.code, refused.remark, ext=region)
        return Response(ext={"msgId": unique_key, **region})
