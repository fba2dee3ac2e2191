"""aerobee_remoting.exchange.answers: what a frame can carry arrives, what it cannot is refused by name."""

from collections.abc import AsyncIterator, Callable

import pytest

from aerobee_proto.bodies import TopicList
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import FRAME_SIZE_MAX
from aerobee_remoting.ends.client import RemotingClient
from aerobee_remoting.exchange.answers import ANSWER_SIZE_MAX, Body, answer_at_once, answer_in_slices
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable, Response
from aerobee_remoting.exchange.needs import Open
from aerobee_service.turns.slices import Steps
from remoting.pair import serving

AT_ONCE, IN_SLICES, STANDARD, BEHIND = 9001, 9002, 9003, 9004
EMPTY = len(TopicList(topic_list=[""]).to_bytes())


def of_size(size: int) -> TopicList:
    return TopicList(topic_list=["x" * (size - EMPTY)])


class Answering:
    """A server that answers with `body`, and a client of it."""

    def __init__(self) -> None:
        self.body: Callable[[], Body] = TopicList
        self.client = RemotingClient()
        self.handlers = HandlerTable()
        self.address = ""

        def at_once(_: AnyRequest) -> Response:
            return answer_at_once(self.body())

        def in_slices(request: AnyRequest) -> None:
            answer_in_slices(request, self.body())

        def standard(request: AnyRequest) -> None:
            answer_in_slices(request, self.body(), standard=True)

        served = {AT_ONCE: at_once, IN_SLICES: in_slices, STANDARD: standard, BEHIND: lambda _: Response()}
        for code, handler in served.items():
            self.handlers.register(code, handler, needs=Open("a test"))

    async def ask(self, code: int) -> tuple[int, str, bytes]:
        answer = await self.client.request(self.address, code)
        return answer.code, answer.remark or "", answer.body


@pytest.fixture
async def answering() -> AsyncIterator[Answering]:
    one = Answering()
    async with serving(one.handlers) as (_, port):
        one.address = f"127.0.0.1:{port}"
        yield one
        await one.client.close()


@pytest.mark.parametrize("code", [AT_ONCE, IN_SLICES, STANDARD])
async def test_the_largest_answer_arrives_and_a_larger_one_is_refused_by_name(
    answering: Answering, code: int
) -> None:
    answering.body = lambda: of_size(ANSWER_SIZE_MAX)
    assert await answering.ask(code) == (ResponseCode.SUCCESS, "", of_size(ANSWER_SIZE_MAX).to_bytes())
    for size in (ANSWER_SIZE_MAX + 1, FRAME_SIZE_MAX):
        answering.body = lambda size=size: of_size(size)  # type: ignore[misc]
        refused, remark, body = await answering.ask(code)
        assert (refused, body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert remark == f"the answer cannot be sent: the value takes more than {ANSWER_SIZE_MAX} bytes"
    assert (await answering.ask(BEHIND))[0] == ResponseCode.SUCCESS


@pytest.mark.parametrize("code", [AT_ONCE, IN_SLICES])
async def test_a_body_may_be_made_in_steps_and_be_any_map(answering: Answering, code: int) -> None:
    def made() -> Steps[TopicList]:
        yield
        return TopicList(topic_list=["A"])

    answering.body = made
    assert (await answering.ask(code))[2] == TopicList(topic_list=["A"]).to_bytes()
    answering.body = lambda: {"one": {1: 2}}
    assert (await answering.ask(code))[2] == b'{"one":{1:2}}'


async def test_standard_json_is_asked_for_by_name(answering: Answering) -> None:
    answering.body = lambda: {"one": {1: "ü"}}
    assert (await answering.ask(IN_SLICES))[2] == '{"one":{1:"ü"}}'.encode()
    assert (await answering.ask(STANDARD))[2] == b'{"one":{"1":"\\u00fc"}}'


@pytest.mark.parametrize("code", [AT_ONCE, IN_SLICES])
async def test_steps_that_refuse_give_the_answer(answering: Answering, code: int) -> None:
    def made() -> Steps[TopicList]:
        yield
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    answering.body = made
    assert await answering.ask(code) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic", b"")
