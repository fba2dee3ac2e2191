"""Requests that read messages, of whatever age: asked again when what they read is in memory.

Touches  the handler table, when it is whole.

A handler of one of these codes reads by `store.asking` before it changes anything; NotInMemory comes out of it then,
and the request waits in `ColdReads`. What it asked for is done when it can be, or is refused, in the order of the disk.
"""

from functools import wraps
from typing import Final

import msgspec

from aerobee_broker.reading.cold_reads import WAITING_SIZE, ColdReads
from aerobee_proto.codes import RequestCode
from aerobee_remoting.exchange.handlers import (
    AnyRequest,
    AsyncHandler,
    HandlerTable,
    PlainHandler,
    Response,
)
from aerobee_store.disk.page_cache import NotInMemory

__all__ = ["COLD_REQUESTS", "wait_for_disk"]

# Pulls are not here: they are the hot path, and wait by themselves.
COLD_REQUESTS: Final = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.END_TRANSACTION,
    }
)


def wait_for_disk(handlers: HandlerTable, cold: ColdReads) -> None:
    """Let the handlers of COLD_REQUESTS be called again. They are registered."""
    for code in COLD_REQUESTS:
        entry = handlers.by_code[code]
        if entry.in_task is not None:
            entry.in_task = _again_in_task(entry.in_task, cold)
        else:
            entry.plain = _again(entry.plain, cold)


def _again(handler: PlainHandler[msgspec.Struct], cold: ColdReads) -> PlainHandler[msgspec.Struct]:
    def asked(request: AnyRequest) -> Response | None:
        try:
            return handler(request)
        except NotInMemory as missing:
            cold.wait(
                missing,
                request.connection,
                lambda: _answer(request, handler(request)),
                request.fail,
                size=WAITING_SIZE + request.size,
            )
            return None

    return wraps(handler)(asked)


def _answer(request: AnyRequest, response: Response | None) -> None:
    if response is not None:
        request.respond(response)


def _again_in_task(handler: AsyncHandler[msgspec.Struct], cold: ColdReads) -> AsyncHandler[msgspec.Struct]:
    @wraps(handler)
    async def asked(request: AnyRequest) -> Response | None:
        while True:
            try:
                return await handler(request)
            except NotInMemory as missing:
                await cold.brought(missing, request.connection, size=WAITING_SIZE + request.size)

    return asked
