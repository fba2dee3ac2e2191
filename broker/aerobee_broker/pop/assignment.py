"""Which queues a consumer reads when the broker decides, and whether it pulls or pops them.

    400 QUERY_ASSIGNMENT   401 SET_MESSAGE_REQUEST_MODE   402 GET_ALL_MESSAGE_REQUEST_MODE

Consumers with clientRebalance=false ask one broker of a topic; so each broker has to give the same answer, for the
queues of all brokers. The others' come from the nameservers (30 s old at most), this broker's from its own table.

Touches  the nameservers, through a client of its own that connects when it is first needed.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from aerobee_broker.config import nameserver_addresses
from aerobee_broker.pop.request_modes import POP, PULL, RequestMode
from aerobee_broker.request_bodies import answer, read_body
from aerobee_broker.services import Services
from aerobee_proto.bodies import JsonBody, MessageQueue, TopicRouteData
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import RouteHeader
from aerobee_proto.names import is_retry_topic
from aerobee_remoting.answers import answer_in_slices
from aerobee_remoting.client import RemotingClient
from aerobee_remoting.errors import RemotingError
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response

__all__ = ["AssignmentHandlers", "Routes", "averagely", "by_circle", "for_pop"]

log = structlog.get_logger()

BODY_SIZE_MAX: Final = 64 * 1024  # bytes of a question, or a mode
ROUTE_AGE_MS_MAX: Final = 30_000
ROUTES_MAX: Final = 10_000
ROUTE_TIMEOUT_S: Final = 2.0
BROADCASTING: Final = "BROADCASTING"
ALL_QUEUES: Final = -1

Queue = tuple[str, str, int]
"""(topic, broker name, queue id): sorted as official clients sort queues."""


class _Query(JsonBody, kw_only=True):
    client_id: str = ""
    consumer_group: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"
    topic: str


class _Assignment(JsonBody, kw_only=True):
    message_queue: MessageQueue
    mode: str


class _Assignments(JsonBody, omit_defaults=True):
    message_queue_assignments: list[_Assignment] | None = None


# --- who gets what ------------------------------------------------------------------------------------------------


def averagely(queues: Sequence[Queue], members: Sequence[str], me: str) -> list[Queue]:
    """Neighbouring queues, as many for each as possible, one more for the first members."""
    if me not in members:
        return []
    index, (size, more) = members.index(me), divmod(len(queues), len(members))
    begin = index * size + min(index, more)
    return list(queues[begin : begin + size + (index < more)])


def by_circle(queues: Sequence[Queue], members: Sequence[str], me: str) -> list[Queue]:
    """The members' queues in turn."""
    return list(queues[members.index(me) :: len(members)]) if me in members else []


Strategy = Callable[[Sequence[Queue], Sequence[str], str], list[Queue]]
STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def for_pop(
    strategy: Strategy, queues: Sequence[Queue], members: Sequence[str], me: str, share: int
) -> list[Queue]:
    """What a member pops: all queues of each broker at once, or its own and those of `share` members behind it."""
    if share <= 0 or share >= len(members) - 1:
        return list(dict.fromkeys((topic, broker, ALL_QUEUES) for topic, broker, _ in queues))
    if me not in members:
        return []
    index = members.index(me)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    found: list[Queue] = []
    for i in range(share + 1):
        found += strategy(queues, members, members[(index + i) % len(members)])
    return list(dict.fromkeys(found))


# --- where the topic is -------------------------------------------------------------------------------------------


class Routes:
    """The readable queues of topics on all brokers."""

    def __init__(self, services: Services, client: RemotingClient | None = None) -> None:
        self._services = services
        self._client = client or RemotingClient()
        self._known: dict[str, tuple[int, list[Queue]]] = {}  # topic -> (read at ms, queues of other brokers)

    async def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic, sorted; none when nobody knows it."""
        services = self._services
        found = list(await self._elsewhere(topic))
        own = services.topics.get(topic)
        if own is not None and own.perm & Perm.READ:
            name = services.identity.broker_name
            found += [(topic, name, queue_id) for queue_id in range(own.read_queue_nums)]
        return sorted(found)

    async def _elsewhere(self, topic: str) -> list[Queue]:
        now_ms = self._services.clock()
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

    async def _ask(self, topic: str) -> list[Queue] | None:
        """From the first nameserver that answers; None when none does."""
        name = self._services.identity.broker_name
        header = RouteHeader(topic=topic, accept_standard_json_only=True)
        for addr in nameserver_addresses(self._services.config.namesrv_addr):
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
                (topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & Perm.READ and data.broker_name != name and data.broker_name in masters
                for queue_id in range(data.read_queue_nums)
            ]
        return None

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()


# --- handlers -----------------------------------------------------------------------------------------------------


class AssignmentHandlers:
    """Handlers of the codes above."""

    def __init__(self, services: Services, routes: Routes) -> None:
        self._services = services
        self._routes = routes

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        size = BODY_SIZE_MAX
        add(code.QUERY_ASSIGNMENT, self.query, permission=Permission.SUBSCRIBE, body_size_max=size)
        add(code.SET_MESSAGE_REQUEST_MODE, self.set_mode, permission=Permission.ADMIN, body_size_max=size)
        add(code.GET_ALL_MESSAGE_REQUEST_MODE, self.all_modes, permission=Permission.CLUSTER)

    async def query(self, request: Request) -> Response:
        """The queues that a consumer reads; no list at all when it should keep what it has."""
        query = read_body(request, _Query)
        mode = self._mode(query.topic, query.consumer_group)
        queues = await self._routes.queues(query.topic)
        found = self._assigned(query, mode, queues) if queues else None
        if found is None:
            return answer(_Assignments())
        return answer(
            _Assignments(
                message_queue_assignments=[
                    _Assignment(
                        message_queue=MessageQueue(broker_name=broker, queue_id=queue_id, topic=topic),
                        mode=mode.mode,
                    )
                    for topic, broker, queue_id in found
                ]
            )
        )

    def _mode(self, topic: str, group: str) -> RequestMode:
        known = self._services.request_modes.get(topic, group)
        if known is not None:
            return known
        config = self._services.config
        mode = PULL if is_retry_topic(topic) else config.default_message_request_mode
        return RequestMode(
            consumer_group=group,
            topic=topic,
            mode=mode,
            pop_share_queue_num=config.default_pop_share_queue_num if mode == POP else 0,
        )

    def _assigned(self, query: _Query, mode: RequestMode, queues: list[Queue]) -> list[Queue] | None:
        if query.message_model == BROADCASTING or not self._services.config.server_load_balancer_enable:
            return queues
        strategy = STRATEGIES.get(query.strategy_name)
        members = sorted(self._services.consumers.client_ids(query.consumer_group))
        if strategy is None or not members:
            return None
        if mode.mode == POP:
            return for_pop(strategy, queues, members, query.client_id, mode.pop_share_queue_num)
        return strategy(queues, members, query.client_id)

    async def set_mode(self, request: Request) -> Response:
        """Let a group pop, or pull, a topic."""
        mode = read_body(request, RequestMode)
        services = self._services
        if is_retry_topic(mode.topic):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topics are always pulled")
        services.topics.require(mode.topic)
        services.groups.require(mode.consumer_group)
        services.request_modes.set(mode)
        try:
            await services.files.save(services.request_modes)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the mode is in effect but could not be written to {services.request_modes.file_name}: {error}",
            ) from error
        return Response()

    def all_modes(self, request: Request) -> None:
        """Everything that was set."""
        answer_in_slices(request, self._services.request_modes.to_json())
