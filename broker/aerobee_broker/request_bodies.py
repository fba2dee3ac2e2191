"""Reading JSON bodies of requests: what is broken becomes an answer, not a lost connection."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from aerobee_proto.bodies import JsonBody
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_remoting.handlers import Request, Response

__all__ = ["IN_TURN_MAX", "answer", "in_slices", "in_turns", "read_body"]

IN_TURN_MAX: Final = 256  # entries of a list that are worked on in one turn of the event loop

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


async def in_slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Runs of at most IN_TURN_MAX of them, with a turn of the event loop for others between two runs.

    None after the last: who changed a table goes on to write it before others can meet the change.
    """
    for start in range(0, len(items), IN_TURN_MAX):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + IN_TURN_MAX]


async def in_turns(items: Sequence[T]) -> AsyncIterator[T]:
    """Each of them, with a turn of the event loop for others between two runs of IN_TURN_MAX."""
    async for run in in_slices(items):
        for item in run:
            yield item


def answer(body: JsonBody) -> Response:
    """A successful answer with a JSON body."""
    return Response(body=body.to_bytes())
