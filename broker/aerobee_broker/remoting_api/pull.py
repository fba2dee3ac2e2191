"""Pulls on the wire: 11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE, read and answered for by `Reading`.

Touches  connections to answer on.

The answer to a found pull is written out by hand around the stored bytes, which leave as they lie in the log.
"""

from typing import Final

from aerobee_broker.messages.read import Reading
from aerobee_broker.messages.refusals import Forbidden
from aerobee_broker.messages.values import Moved, Outcome, Query, Read, Skipped
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.frames import CODEC_JSON, FLAG_ONEWAY, FLAG_RESPONSE, Command, encode_command, encode_frame
from aerobee_proto.headers import PullMessageHeader
from aerobee_proto.requests import Incoming
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import SUB, on_group, on_topic, ours
from aerobee_store.reading.get_message import GetStatus

__all__ = ["PullHandlers", "query_of"]

Pull = Request[PullMessageHeader]

LITE: Final = int(RequestCode.LITE_PULL_MESSAGE)
# By GetStatus: to ask an enum's member for its name takes 0.2 us.
STATUS_NAMES: Final = tuple([status.name for status in GetStatus])
# By ReadKind.
CODES: Final = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    int(ResponseCode.PULL_NOT_FOUND),
    int(ResponseCode.PULL_OFFSET_MOVED),
)


class PullHandlers:
    """Handlers of the codes above."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        needs = (on_topic("topic", SUB, of_retry=()), on_group("consumer_group", SUB))
        table.register(RequestCode.PULL_MESSAGE, self.pull, header=PullMessageHeader, needs=needs)
        table.register(
            RequestCode.LITE_PULL_MESSAGE,
            self.pull,
            header=PullMessageHeader,
            needs=tuple([ours(rule) for rule in needs]),
        )

    def pull(self, request: Pull) -> Response | None:
        """Read a queue; without messages the answer may come later."""
        incoming = request.incoming
        query = query_of(incoming.envelope.code, incoming.header)
        try:
            outcome = self._reading.read(query, request.connection, _answer, request)
        except Forbidden as refused:
            return Response(refused.code, refused.remark, ext={"forbiddenType": str(int(refused.by))})
        if outcome is None:
            _shed(request)
        else:
            _answer(request, outcome)
        return None


def query_of(code: int, header: PullMessageHeader) -> Query:
    """What a pull asks."""
    flags = header.sys_flag
    return Query(
        group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        offset=header.queue_offset,
        count=header.max_msg_nums,
        wait_ms=header.suspend_timeout_millis if flags & PullFlag.SUSPEND else None,
        commit_offset=header.commit_offset if flags & PullFlag.COMMIT_OFFSET else None,
        is_lite=code == LITE,
        has_filter=flags & PullFlag.SUBSCRIPTION != 0,
        expression=header.subscription,
        expression_type=header.expression_type,
        subscription_version=header.sub_version,
    )


def _shed(request: Pull) -> None:
    """Keep of a pull that waits what its answer needs."""
    request.shed()
    header = request.header
    header.subscription = header.expression_type = header.proxy_froward_client_id = header.bname = None


# --- answers ------------------------------------------------------------------------------------------------------


def _answer(request: Pull, outcome: Outcome) -> None:
    if isinstance(outcome, Read):
        incoming = request.incoming
        if not incoming.envelope.flag & FLAG_ONEWAY:
            request.connection.write_now(_encode(incoming, outcome))
    elif isinstance(outcome, Moved):
        request.respond(_no_messages(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", outcome))
    elif isinstance(outcome, Skipped):
        ends = Moved(outcome.offset, 0, outcome.offset)
        request.respond(_no_messages(ResponseCode.PULL_RETRY_IMMEDIATELY, "too much waits to be read", ends))
    else:
        request.fail(outcome.error)


def _no_messages(code: int, remark: str, go_on: Moved) -> Response:
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(go_on.offset),
        "minOffset": str(go_on.min_offset),
        "maxOffset": str(go_on.max_offset),
    }
    return Response(code, remark, ext=ext)


def _encode(pull: Incoming[PullMessageHeader], read: Read) -> bytes:
    """The frame of an answer, with the messages as they are stored."""
    result, code, suggested = read.result, CODES[read.kind], read.suggested_broker
    codec, opaque, status = pull.frame[0], pull.envelope.opaque, STATUS_NAMES[result.status]
    if codec == CODEC_JSON:
        text = (
            f'{{"code":{code},"extFields":{{"suggestWhichBrokerId":"{suggested}","groupSysFlag":"0",'
            f'"nextBeginOffset":"{result.next_offset}","maxOffset":"{result.max_offset}",'
            f'"minOffset":"{result.min_offset}","topicSysFlag":"0"}},"flag":1,"language":"PYTHON",'
            f'"opaque":{opaque},"remark":"{status}",'
            f'"serializeTypeCurrentRPC":"JSON","version":479}}'
        )
        return encode_frame(CODEC_JSON, text.encode(), *result.body)
    ext = {
        "suggestWhichBrokerId": str(suggested),
        "groupSysFlag": "0",
        "nextBeginOffset": str(result.next_offset),
        "maxOffset": str(result.max_offset),
        "minOffset": str(result.min_offset),
        "topicSysFlag": "0",
    }
    return encode_command(
        Command(
            code,
            opaque=opaque,
            flag=FLAG_RESPONSE,
            remark=status,
            ext_fields=ext,
            body=b"".join(result.body),
            codec=codec,
        )
    )
