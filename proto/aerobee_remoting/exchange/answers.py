"""Answers that grow with what a server holds: their JSON is made and written in slices, and bounded by name.

    answer_in_slices(request, self._listing())      the handler returns None; what the peer sent behind it waits
    return answer_at_once(self._listing())          the same answer, where it is known to be small

Touches  the event loop's queue of slices (`slices`), and through the request its connection.

An answer that no frame could carry is refused, and the refusal names the bound: sent all the same, it would cost the
client its connection and tell it nothing.
"""

from collections.abc import Generator, Mapping
from typing import Final

from aerobee_proto import javajson
from aerobee_proto.bodies import JsonBody
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.frames import FRAME_SIZE_MAX
from aerobee_remoting.exchange.handlers import AnyRequest, Response
from aerobee_service.turns.slices import Steps, at_once, in_slices

__all__ = ["ANSWER_SIZE_MAX", "Body", "answer_at_once", "answer_in_slices", "written"]

ANSWER_SIZE_MAX: Final = FRAME_SIZE_MAX - 65_536  # bytes of a body; the rest is room for its header

Body = JsonBody | Mapping[str, object] | Steps[JsonBody]
"""What an answer's body is made of, or steps that make it. It must not change until it is written."""


def answer_in_slices(request: AnyRequest, body: Body, *, standard: bool = False) -> None:
    """A successful answer, made and written in slices; what the peer has sent behind the request is handled after."""

    async def answered() -> Response:
        return Response(body=await in_slices(written(body, standard=standard)))

    request.connection.answer_alone(request, answered)


def answer_at_once(body: Body) -> Response:
    """The same answer, in this turn."""
    return Response(body=at_once(written(body)))


def written(body: Body, *, standard: bool = False) -> Steps[bytes]:
    """The body's bytes, as fastjson writes them or as strictly valid JSON. RequestError when no frame carries them."""
    made = (yield from body) if isinstance(body, Generator) else body
    try:
        return (yield from javajson.dumps_steps(made, standard=standard, size_max=ANSWER_SIZE_MAX))
    except FormatError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the answer cannot be sent: {error}") from error
