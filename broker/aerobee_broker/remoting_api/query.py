"""Look-ups on the wire: 12 QUERY_MESSAGE and 33 VIEW_MESSAGE_BY_ID, found by `Lookup`."""

from aerobee_broker.messages.lookup import Lookup
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.headers import QueryMessageHeader, ViewMessageHeader
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, SUB, need_of_topic, on_topic
from aerobee_store.reading.query import QueryResult

__all__ = ["QueryHandlers"]


class QueryHandlers:
    """Handlers of the codes above."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(code.QUERY_MESSAGE, self.query, header=QueryMessageHeader, needs=(on_topic("topic", SUB, GET),))
        add(code.VIEW_MESSAGE_BY_ID, self.view, header=ViewMessageHeader, needs=(on_topic("topic", GET),))

    def query(self, request: Request[QueryMessageHeader]) -> Response | None:
        """Messages of a topic that carry a key, newest `maxNum` of them, as stored."""
        header = request.header
        found = self._lookup.by_key(
            header.topic,
            header.key,
            count=header.max_num,
            begin_ms=header.begin_timestamp,
            end_ms=header.end_timestamp,
            is_unique=header.unique_key_query,
            caller=request.connection,
        )
        if isinstance(found, QueryResult):
            return _answer(header.topic, found)

        async def answered() -> Response:
            return _answer(header.topic, await found())

        request.connection.answer_in_task(request, answered)
        return None

    def view(self, request: Request[ViewMessageHeader]) -> Response:
        """The record that starts at a position of the commit log."""
        record = self._lookup.at(request.header.offset)
        # The request may name no topic, or another one than the record that lies there has.
        request.admit(need_of_topic(decode_record(record).topic, GET))
        return Response(body=record)


def _answer(topic: str, found: QueryResult) -> Response:
    ext = {
        "indexLastUpdatePhyoffset": str(found.last_update_physical_offset),
        "indexLastUpdateTimestamp": str(found.last_update_timestamp),
    }
    if not found.body:
        return Response(
            ResponseCode.QUERY_NOT_FOUND,
            f"no message of topic {topic[:127]} with that key in that time",
            ext=ext,
        )
    return Response(ext=ext, body=b"".join(found.body))
