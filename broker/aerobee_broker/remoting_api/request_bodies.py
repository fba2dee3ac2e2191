"""Lists of requests worked on in runs, and small answers with a JSON body."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from aerobee_proto.bodies import JsonBody
from aerobee_remoting.exchange.handlers import Response

__all__ = ["RUN_MAX", "answer", "in_runs"]

RUN_MAX: Final = 256  # entries of a list that are worked on in one turn of the event loop

T = TypeVar("T")


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
