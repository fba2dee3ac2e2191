"""JSON bodies of requests, where what is broken becomes an answer, no lost connection; and of small answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from aerobee_proto.bodies import JsonBody
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_remoting.handlers import Request, Response

__all__ = ["RUN_MAX", "answer", "in_runs", "read_body"]

RUN_MAX: Final = 256  # entries of a list that are worked on in one turn of the event loop

T = TypeVar("T")
B = TypeVar("B", bound=JsonBody)


def read_body(request: Request, form: type[B]) -> B:
    """The request's body. RequestError SYSTEM_ERROR when it is missing or broken, as RocketMQ answers."""
    if not request.body:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {request.code} needs a {form.__name__} body")
    try:
        return form.from_stranger(request.body)
    except FormatError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"body of request {request.code}: {error}") from error


async def in_runs(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Runs of at most RUN_MAX of them, with a turn of the event loop for others between two runs.

    None before the first or after the last, however busy the loop is, which `Steps` do not promise: what is in one run
    is checked and changed before others can ask for a change too, and who changed a table goes on to write it before
    others can meet the change.
    """
    for start in range(0, len(items), RUN_MAX):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + RUN_MAX]


def answer(body: JsonBody) -> Response:
    """A successful answer with a JSON body."""
    return Response(body=body.to_bytes())
