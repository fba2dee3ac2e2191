"""Assignment on the wire, decided by `Assignment`.

    400 QUERY_ASSIGNMENT   401 SET_MESSAGE_REQUEST_MODE   402 GET_ALL_MESSAGE_REQUEST_MODE

Touches  connections to answer on.
"""

from typing import Final

from aerobee_broker.pop.assignment import Assigned, Assignment, AssignmentQuery
from aerobee_broker.pop.request_modes import RequestMode, RequestModes
from aerobee_broker.remoting_api.request_bodies import answer
from aerobee_proto.bodies import JsonBody, MessageQueue
from aerobee_proto.codes import RequestCode
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.answers import answer_in_slices, written
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, SUB, UPDATE, on_cluster, on_groups_in, on_topics_in, ours
from aerobee_service.turns.slices import Steps, in_slices

__all__ = ["AssignmentHandlers"]

BODY_SIZE_MAX: Final = 64 * 1024  # bytes of a question, or a mode
QUEUES_A_STEP: Final = 256  # that are put into an answer in one step
BROADCASTING: Final = "BROADCASTING"


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


class AssignmentHandlers:
    """Handlers of the codes above."""

    def __init__(self, assignment: Assignment, request_modes: RequestModes) -> None:
        self._assignment = assignment
        self._request_modes = request_modes

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(
            code.QUERY_ASSIGNMENT,
            self.query,
            needs=(
                ours(on_groups_in(_Query, lambda body: [body.consumer_group], SUB)),
                ours(on_topics_in(_Query, lambda body: [body.topic], SUB)),
            ),
            body_size_max=BODY_SIZE_MAX,
        )
        add(
            code.SET_MESSAGE_REQUEST_MODE,
            self.set_mode,
            needs=(ours(on_cluster(UPDATE)),),
            body_size_max=BODY_SIZE_MAX,
        )
        add(code.GET_ALL_MESSAGE_REQUEST_MODE, self.all_modes, needs=(ours(on_cluster(GET)),))

    async def query(self, request: Request[NoFields]) -> Response:
        """The queues that a consumer reads; no list at all when it should keep what it has."""
        query = request.read(_Query)
        assigned = await self._assignment.assigned(
            AssignmentQuery(
                query.consumer_group,
                query.topic,
                query.client_id,
                query.strategy_name,
                is_broadcasting=query.message_model == BROADCASTING,
            )
        )
        if assigned is None:
            return answer(_Assignments())
        return Response(body=await in_slices(written(_listed(assigned))))

    async def set_mode(self, request: Request[NoFields]) -> Response:
        """Let a group pop, or pull, a topic."""
        await self._assignment.set_mode(request.read(RequestMode))
        return Response()

    def all_modes(self, request: Request[NoFields]) -> None:
        """Everything that was set."""
        answer_in_slices(request, self._request_modes.to_json())


def _listed(assigned: Assigned) -> Steps[JsonBody]:
    queues = []
    for topic, broker, queue_id in assigned.queues:
        queue = MessageQueue(broker_name=broker, queue_id=queue_id, topic=topic)
        queues.append(_Assignment(message_queue=queue, mode=assigned.mode))
        if len(queues) % QUEUES_A_STEP == 0:
            yield
    return _Assignments(message_queue_assignments=queues)
