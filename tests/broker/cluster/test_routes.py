"""Where a broker believes that the queues of topics are."""

from pathlib import Path
from typing import Any

from aerobee_proto.bodies import BrokerData, QueueData, TopicConfig, TopicRouteData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import Open
from broker.support import Clock, make_test_parts
from remoting.pair import serving


async def test_queues_of_other_brokers_come_from_the_nameservers(tmp_path: Path) -> None:
    asked: list[str] = []

    def route(request: Request[Any]) -> Response:
        asked.append(request.ext["topic"])
        if request.ext["topic"] != "T":
            return Response(ResponseCode.TOPIC_NOT_EXIST)
        queues = [
            QueueData(broker_name="other", read_queue_nums=2, write_queue_nums=2, perm=6),
            QueueData(broker_name="golden-a", read_queue_nums=9, write_queue_nums=9, perm=6),
            QueueData(broker_name="closed", read_queue_nums=2, write_queue_nums=2, perm=2),
        ]
        brokers = [
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: "127.0.0.1:1"})
            for name in ("other", "golden-a", "closed")
        ]
        return Response(body=TopicRouteData(queue_datas=queues, broker_datas=brokers).to_standard())

    table, clock = HandlerTable(), Clock()
    table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, needs=Open("a test"))
    async with serving(table) as (_, port):
        parts = make_test_parts(tmp_path / "store", clock, namesrv_addr=f"127.0.0.1:1;127.0.0.1:{port}")
        parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
        routes = parts.routes
        try:
            expected = [("T", "golden-a", 0), ("T", "other", 0), ("T", "other", 1)]
            assert await routes.queues("T") == expected
            assert await routes.queues("T") == expected
            assert await routes.queues("U") == []
            assert asked == ["T", "U"]
            clock.now_ms += 30_000
            assert await routes.queues("T") == expected
            assert asked == ["T", "U", "T"]
        finally:
            await routes.close()
            parts.store.close()
            await parts.files.close()
