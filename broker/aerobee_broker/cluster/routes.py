"""Where topics are: the readable queues on all brokers. The other brokers' come from the nameservers, this one's from
its own table.

Touches  the nameservers, through a client of its own that connects when it is first needed.

Invariants
- What a nameserver said is ROUTE_AGE_MS_MAX old at most, unless none of them answers any more.
"""

from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.settings.config import LiveConfig, nameserver_addresses
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto.bodies import TopicRouteData
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError
from aerobee_proto.headers import RouteHeader
from aerobee_proto.names import BrokerQueue
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.tls import TlsContext

__all__ = ["Routes"]

log = structlog.get_logger()

ROUTE_AGE_MS_MAX: Final = 30_000
ROUTES_MAX: Final = 10_000
ROUTE_TIMEOUT_S: Final = 2.0


class Routes:
    """The readable queues of topics on all brokers."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        identity: BrokerIdentity,
        topics: TopicTable,
        client: RemotingClient | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self._live = live
        self._clock = clock
        self._identity = identity
        self._topics = topics
        self._client = client or RemotingClient(config=RemotingClientConfig(tls=tls))
        self._known: dict[
            str, tuple[int, list[BrokerQueue]]
        ] = {}  # topic -> (read at ms, queues of other brokers)

    async def queues(self, topic: str) -> list[BrokerQueue]:
        """All queues of a topic, sorted; none when nobody knows it."""
        found = list(await self._elsewhere(topic))
        own = self._topics.get(topic)
        if own is not None and own.perm & Perm.READ:
            name = self._identity.broker_name
            found += [BrokerQueue(topic, name, queue_id) for queue_id in range(own.read_queue_nums)]
        return sorted(found)

    async def _elsewhere(self, topic: str) -> list[BrokerQueue]:
        now_ms = self._clock()
        known = self._known.get(topic)
        if known is not None and 0 <= now_ms - known[0] < ROUTE_AGE_MS_MAX:
            return known[1]
        queues = await self._ask(topic)
        if queues is None:
            return known[1] if known is not None else []
        if len(self._known) >= ROUTES_MAX:
            self._known.clear()
        self._known[topic] = (now_ms, queues)
        return queues

    async def _ask(self, topic: str) -> list[BrokerQueue] | None:
        """From the first nameserver that answers; None when none does."""
        name = self._identity.broker_name
        header = RouteHeader(topic=topic, accept_standard_json_only=True)
        for addr in nameserver_addresses(self._live.value.namesrv_addr):
            try:
                reply = await self._client.request(
                    addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=ROUTE_TIMEOUT_S
                )
                if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                    return []
                if reply.code != ResponseCode.SUCCESS:
                    continue
                route = TopicRouteData.from_stranger(reply.body)
            except (RemotingError, FormatError, OSError) as error:
                log.debug("broker.route_not_read", nameserver=addr, topic=topic, reason=str(error))
                continue
            masters = {broker.broker_name for broker in route.broker_datas}
            return [
                BrokerQueue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & Perm.READ and data.broker_name != name and data.broker_name in masters
                for queue_id in range(data.read_queue_nums)
            ]
        return None

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()
