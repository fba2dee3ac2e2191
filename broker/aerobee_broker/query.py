"""Look-ups of single messages: by key, by unique key, by position.

Touches  the store through `Services`.
"""

import asyncio
from collections.abc import Generator
from typing import Any, Final

from aerobee_broker.services import Services
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import QueryMessageHeader, ViewMessageHeader
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.query import QueryResult

__all__ = ["QueryProcessor"]

KEY_SIZE_MAX: Final = 16_384


class QueryProcessor:
    """Handlers of QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._one_at_a_time = asyncio.Lock()

    def register(self, table: HandlerTable) -> None:
        table.register(
            RequestCode.QUERY_MESSAGE,
            self.on_query,
            permission=Permission.SUBSCRIBE,
            header=QueryMessageHeader,
        )
        table.register(
            RequestCode.VIEW_MESSAGE_BY_ID,
            self.on_view,
            permission=Permission.SUBSCRIBE,
            header=ViewMessageHeader,
        )

    async def on_query(self, request: Request) -> Response:
        """Messages of a topic that carry a key, newest `maxNum` of them, as stored. One query after the other, and
        a turn of the event loop between the steps of each: a key that a million messages share takes long.
        """
        header: Any = request.header
        if len(header.key) > KEY_SIZE_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"key of {len(header.key)} characters, at most {KEY_SIZE_MAX} are allowed",
            )
        config = self._services.config
        # A unique key names one message; the official broker then looks at a fixed number of entries.
        count = config.default_query_max_num if header.unique_key_query else header.max_num
        if count < 1:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"maxNum {count} is not positive")
        async with self._one_at_a_time:
            found = await _in_turns(
                self._services.store.query_steps(
                    header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
                )
            )
        ext = {
            "indexLastUpdatePhyoffset": str(found.last_update_physical_offset),
            "indexLastUpdateTimestamp": str(found.last_update_timestamp),
        }
        if not found.body:
            return Response(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message of topic {header.topic[:127]} with that key in that time",
                ext=ext,
            )
        return Response(ext=ext, body=b"".join(found.body))

    def on_view(self, request: Request) -> Response:
        """The record that starts at a position of the commit log."""
        offset = request.header.offset
        record = self._services.store.message_at(offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return Response(body=record)


async def _in_turns(steps: Generator[None, None, QueryResult]) -> QueryResult:
    """What the steps come to, each in a turn of its own."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: QueryResult = end.value
            return found
        await asyncio.sleep(0)
