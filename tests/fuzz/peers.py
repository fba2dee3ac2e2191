"""Targets for peers that are not what they should be: servers that answer a client, visitors of the metrics port."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar, cast
from unittest.mock import patch

from aerobee.consuming.pulls import Patience, Pulls, PullTerms, decoded
from aerobee.errors import ClientError
from aerobee.messages.delays import parse_recall_handle
from aerobee.messages.message import Message
from aerobee.net.offsets import Offsets
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.producing.replies import correlation_id_of, reply_record
from aerobee.session.trace import parse_trace
from aerobee.terms import routes as routes_module
from aerobee.terms.filters import TagFilter
from aerobee.terms.routes import MessageQueue, Route, plan_route, plan_template_route, pull_addr
from aerobee_access.port_guard import OperatorsGuard
from aerobee_broker.pop.checkpoints import CheckPoint, CheckPointTable
from aerobee_broker.pop.revive_log import ACK, BATCH_ACK, CHECK_POINT, Acks, parse_record
from aerobee_proto.bodies import TopicRouteData
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError
from aerobee_proto.frames import Command, FrameDecoder, decode_command, encode_command
from aerobee_proto.properties import TAGS
from aerobee_proto.records import StoredRecord
from aerobee_service.operators.http_responder import HEAD_SIZE_MAX, HttpResponder, Page
from fuzz.store_files import records_of_image
from fuzz.target import Target

__all__ = ["TARGETS"]

QUEUE: Final = MessageQueue("T", "broker-a", 0)
ADDR: Final = "127.0.0.1:10911"
T = TypeVar("T")


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    finally:
        coroutine.close()
    raise AssertionError("it waits for something")


# --- a client ---------------------------------------------------------------------------------------------------------


class _OneAnswer:
    """In place of `Peers`: whatever is asked, this is the answer."""

    def __init__(self, answer: Command) -> None:
        self._answer = answer

    async def request(self, *_: object, **__: object) -> Command:
        return self._answer

    call = request


class _OneRoute:
    """In place of `RouteTable`."""

    def cached(self, topic: str) -> Route:
        return Route(topic, (QUEUE,), (QUEUE,), {QUEUE.broker_name: {0: ADDR}})

    def master_addr(self, topic: str, broker_name: str) -> str:
        return ADDR


def answers(data: bytes) -> None:
    """The header of an answer, as a client makes a pull, an offset or a time of it."""
    if len(data) < 2:
        return
    try:
        answer = decode_command((data[0] % 3, data[1:], b""))
    except FormatError:
        return
    answer.code = int(ResponseCode.SUCCESS)
    peers, routes = cast("Peers", _OneAnswer(answer)), cast("RouteTable", _OneRoute())
    pulls = Pulls(
        PullTerms("g", 32, None, None, 1.0),
        Patience(1, 1, 1),
        peers=peers,
        routes=routes,
        log=cast("Any", None),
    )
    offsets = Offsets(peers, routes)
    asked: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
        lambda: pulls.pull("pull", ADDR, QUEUE, 7, TagFilter()),
        lambda: offsets.max_offset(QUEUE),
        lambda: offsets.earliest_store_time(QUEUE),
        lambda: offsets.committed("g", QUEUE),
    )
    for ask in asked:
        with suppress(ClientError):
            _done(ask())
    with suppress(ValueError):
        correlation_id_of(answer.ext)
        reply_record(answer.ext, b"")


def pull_bodies(data: bytes) -> None:
    """The body of an answer to a pull, as a consumer gets its messages."""
    if not data:
        return
    records, damage = decoded(QUEUE, 0, data[1:], check_crc=bool(data[0] & 1))
    if damage is not None:
        str(damage)
    for record in records[:8]:
        message = Message(record, "broker-a", 1 << 16)
        with suppress(ClientError):
            assert len(message.body) <= max(1 << 16, len(data))
        repr(message)
        _ = message.topic, message.tags, message.keys, message.message_id, message.born_host


def routes(data: bytes) -> None:
    """Routes as a nameserver tells them: never more queues than a client has use for, which are fewer here."""
    with patch.object(routes_module, "ROUTE_QUEUES_MAX", 1000):
        _plan(data)


def _plan(data: bytes) -> None:
    try:
        read = TopicRouteData.from_bytes(data)
    except FormatError:
        return
    for plan in (plan_route, plan_template_route):
        with suppress(ClientError):
            route = plan("T", read)
            for addrs in route.brokers.values():
                pull_addr(addrs, 1)
            assert max(len(route.publish), len(route.subscribe)) <= 1000


def client_texts(data: bytes) -> None:
    """Traces and handles that others wrote."""
    text = data.decode("utf-8", "replace")
    for record in parse_trace(text):
        assert record.kind in text
    with suppress(ClientError):
        parse_recall_handle(text)


# --- records that a broker writes for itself --------------------------------------------------------------------------


def revive_records(data: bytes) -> None:
    """Check-points and acknowledgements of pops, as a start reads them from their topic."""
    if not data:
        return
    table = CheckPointTable()
    tags = (CHECK_POINT, ACK, BATCH_ACK)
    for number, body in enumerate(data[1:].split(b"\n")[:4]):
        tag = tags[(data[0] >> 2 * number) % 3]
        record = _stored(f"{TAGS}\x01{tag}\x02TIMER_DELIVER_MS\x015000\x02", body)
        try:
            found = parse_record(record)
        except FormatError:
            continue
        if isinstance(found, CheckPoint):
            table.add(found)
        elif isinstance(found, Acks) and table.ack(found.key, found.offsets) is None:
            table.remember(
                found.key, found.offsets, revive_queue=0, revive_offset=number, expires_ms=found.deliver_ms
            )
    table.check()
    for point in table.due(1 << 62, 32):
        table.settle(point)
    table.expire(1 << 62)
    table.check()


def _stored(properties: str, body: bytes) -> StoredRecord:
    return StoredRecord(
        topic="rmq_sys_REVIVE_LOG_c",
        queue_id=0,
        flag=0,
        queue_offset=7,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=("127.0.0.1", 1),
        store_timestamp=0,
        store_host=("127.0.0.1", 1),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
        size=100,
        body_crc=0,
        version=1,
    )


# --- visitors ---------------------------------------------------------------------------------------------------------


async def _page() -> Page:
    return Page(b"the page")


class _Visitor:
    host, peer = "10.1.2.3", "10.1.2.3:4"
    is_silent = True


@cache
def _responder() -> tuple[asyncio.AbstractEventLoop, HttpResponder]:
    return asyncio.new_event_loop(), HttpResponder({"/metrics": _page, "/health": _page, "/livez": _page})


@cache
def _guard() -> OperatorsGuard:
    """Lets nobody in: whoever is told anything is told so by mistake."""
    return OperatorsGuard(
        None,
        has_access_control=True,
        takes_certificates=False,
        may_look=lambda *_: False,
        refused=lambda *_: 0.0,
    )


def http_requests(data: bytes) -> None:
    """Whatever is sent to the metrics port gets an answer, and a page where nobody is let in is for nobody."""
    if not data:
        return
    loop, responder = _responder()
    responder.guard = _guard() if data[0] & 1 else None

    async def visit() -> tuple[str, Page]:
        reader = asyncio.StreamReader(limit=HEAD_SIZE_MAX, loop=loop)
        reader.feed_data(data[1:])
        reader.feed_eof()
        return await responder._answer(cast("Any", _Visitor()), reader, asyncio.BaseTransport())

    method, page = loop.run_until_complete(visit())
    assert page.status in (200, 400, 401, 404, 405, 408, 431)
    assert page.status != 200 or not data[0] & 1 or page.body == b"ok\n"
    assert isinstance(method, str)


# --- what reaches far into them ---------------------------------------------------------------------------------------


def _answers() -> Iterator[bytes]:
    for ext in (
        {"nextBeginOffset": "7", "minOffset": "0", "maxOffset": "9", "suggestWhichBrokerId": "1"},
        {"offset": "12", "timestamp": "1700000000000"},
        {"nextBeginOffset": "x", "minOffset": "", "maxOffset": "9" * 200, "suggestWhichBrokerId": "-1"},
        {"queueId": "1", "properties": "CORRELATION_ID\x01c\x02", "bornHost": "/127.0.0.1:1", "sysFlag": "1"},
    ):
        for codec in range(3):
            (frame,) = FrameDecoder().feed(encode_command(Command(0, ext_fields=ext, codec=codec)))
            yield bytes([codec]) + frame[1]


def _pull_bodies() -> Iterator[bytes]:
    for record in records_of_image()[:12]:
        yield b"\x00" + record
        yield b"\x01" + record + record


def _routes() -> Iterator[bytes]:
    yield (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"a","cluster":"c"}],"queueDatas":[{"brokerName":'
        b'"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'
    )
    yield (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"x"},"brokerName":"a"}],"queueDatas":[{"brokerName":"a","perm":7,'
        b'"readQueueNums":2147483647,"writeQueueNums":2147483647}]}'
    )
    yield b'{"orderTopicConf":"a:8;b:4","brokerDatas":[],"queueDatas":[]}'
    yield b'{"orderTopicConf":"a:99999999999","brokerDatas":[],"queueDatas":[]}'
    yield b'{"orderTopicConf":"a:' + b"9" * 5000 + b'","brokerDatas":[],"queueDatas":[]}'


def _client_texts() -> Iterator[bytes]:
    for record in (
        ("Pub", "1700000000000", "r", "g", "T", "id", "t", "k", "h", "5", "3", "0", "oid", "true"),
        ("SubBefore", "1", "r", "g", "q", "id", "0", "k"),
        ("SubAfter", "q", "id", "5", "true", "k", "0", "1", "g"),
        ("EndTransaction", "1", "r", "g", "T", "id", "t", "k", "h", "1", "x", "COMMIT_MESSAGE", "true"),
        ("Pub", "9" * 5000),
    ):
        yield ("\x01".join(record) + "\x02").encode()
    yield b"djEgVCBiIDE3NjM3MDAwMDAwMDAgbQ"


def _revives() -> Iterator[bytes]:
    point = b'{"so":7,"pt":1000,"it":60,"n":3,"q":0,"t":"T","c":"g","bm":0,"d":[0,1,2]}'
    yield b"\x00" + point
    yield b"\x04" + point + b'\n{"so":7,"pt":1000,"t":"T","c":"g","q":0,"ao":8}'
    yield b"\x02" + b'{"so":7,"pt":1000,"t":"T","c":"g","q":0,"aol":[7,8]}\n' + point
    yield b"\x00" + b'{"so":7,"pt":1,"it":1,"n":' + b"9" * 5000 + b"}"


def _requests() -> Iterator[bytes]:
    for head in (b"\x00", b"\x01"):
        yield head + b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        yield head + b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n"
        yield head + b"GET /livez HTTP/1.1\r\nauthorization: Basic YTpi\r\n\r\n"
        yield head + b"HEAD /health?a=b HTTP/1.0\r\n\r\n"
        yield head + b"POST / HTTP/1.1\r\n\r\n"
        yield head + b"GET /" + b"a" * 9000
        yield head + b"\x16\x03\x01"


TARGETS: Final[dict[str, Target]] = {
    "answers": Target(answers, _answers, 100_000),
    "pull_bodies": Target(pull_bodies, _pull_bodies, 70_000),
    "routes": Target(routes, _routes, 50_000),
    "client_texts": Target(client_texts, _client_texts, 100_000),
    "revive_records": Target(revive_records, _revives, 60_000),
    "http_requests": Target(http_requests, _requests, 40_000),
}
