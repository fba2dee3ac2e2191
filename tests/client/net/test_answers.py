"""Numbers in answers: read, absent, or none; and every call that takes one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import aerobee
from aerobee import BadAnswer, Client, ClientError, MessageQueue
from aerobee.net.answers import number_of, number_or
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command
from aerobee_remoting.exchange.handlers import Response
from client.fakes import fake_cluster
from client.inside import session_of

WRONG = ["x", "", "-", "1.5", " 1", "\u0661", "9" * 19, "9" * 5000, "--1"]


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("-1", -1), (str(2**63 - 1), 2**63 - 1)])
def test_numbers_are_read(text: str, number: int) -> None:
    answer = Command(0, ext_fields={"offset": text})
    assert number_of(answer, "offset", "ask", "b:1") == number_or(answer, "offset", 5) == number


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_number_is_named_with_who_said_it(text: str) -> None:
    answer = Command(0, ext_fields={"offset": text})
    with pytest.raises(BadAnswer, match=r"ask q: the answer of b:1 .* field offset is .* no number"):
        number_of(answer, "offset", "ask q", "b:1", 5)
    assert number_or(answer, "offset", 5) == 5


def test_what_is_absent_has_a_default_or_is_missing() -> None:
    assert number_of(Command(0), "offset", "ask", "b:1", 5) == number_or(Command(0), "offset", 5) == 5
    with pytest.raises(BadAnswer, match="offset is missing"):
        number_of(Command(0), "offset", "ask", "b:1")


ASKED: dict[str, tuple[int, Callable[[Client, MessageQueue], Awaitable[object]]]] = {
    "min offset": (RequestCode.GET_MIN_OFFSET, lambda mq, q: session_of(mq).offsets.min_offset(q)),
    "max offset": (RequestCode.GET_MAX_OFFSET, lambda mq, q: session_of(mq).offsets.max_offset(q)),
    "by time": (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda mq, q: session_of(mq).offsets.by_time(q, 1)),
    "committed": (RequestCode.QUERY_CONSUMER_OFFSET, lambda mq, q: session_of(mq).offsets.committed("g", q)),
}


@pytest.mark.parametrize("name", ASKED)
async def test_a_broker_that_answers_no_number_is_told_as_an_error_of_the_client(name: str) -> None:
    code, ask = ASKED[name]
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.always(code, Response(ext={"offset": "x"}))
        with pytest.raises(BadAnswer, match="no number"):
            await ask(mq, MessageQueue("T", cluster.broker.name, 0))


READ: dict[str, tuple[int, Callable[[Client], Awaitable[object]]]] = {
    "cluster": (RequestCode.GET_BROKER_CLUSTER_INFO, lambda mq: mq.admin.cluster()),
    "topics": (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda mq: mq.admin.topics()),
    "route": (RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda mq: mq.admin.route("T")),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"a":' + b"[" * 3000], ids=["empty", "cut", "list", "deep"]
)
async def test_a_body_of_another_form_is_told_as_an_error_of_the_client(name: str, body: bytes) -> None:
    code, ask = READ[name]
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.always(code, Response(body=body))
        with pytest.raises(BadAnswer, match="cannot be used: "):
            await ask(mq)


def test_no_body_of_an_answer_is_read_in_another_way() -> None:
    """What is read by `from_bytes` itself is no error of the client when it is broken."""
    folder = Path(aerobee.__file__).parent
    found = [path.name for path in folder.rglob("*.py") if "from_bytes(answer.body" in path.read_text()]
    assert sorted(found) == ["answers.py"]


async def test_a_route_that_cannot_be_read_is_an_error_of_the_client() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.always(RequestCode.GET_ROUTEINFO_BY_TOPIC, Response(body=b"{"))
        with pytest.raises(ClientError, match=r"route of topic 'T'.*cannot be used"):
            async with asyncio.timeout(20):
                await session_of(mq).routes.for_subscribe("T")
