"""Reading JSON bodies of requests: what is broken becomes an answer, not a lost connection."""

from typing import TypeVar

from aerobee_proto.bodies import JsonBody
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_remoting.handlers import Request, Response

__all__ = ["answer", "read_body"]

B = TypeVar("B", bound=JsonBody)


def read_body(request: Request, form: type[B]) -> B:
    """The request's body. RequestError SYSTEM_ERROR when it is missing or broken, as RocketMQ answers."""
    if not request.body:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {request.code} needs a {form.__name__} body")
    try:
        return form.from_stranger(request.body)
    except FormatError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"body of request {request.code}: {error}") from error


def answer(body: JsonBody) -> Response:
    """A successful answer with a JSON body."""
    return Response(body=body.to_bytes())
