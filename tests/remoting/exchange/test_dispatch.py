"""Refusals that wait."""

import asyncio
import time
from collections.abc import Sequence

from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import FLAG_ONEWAY, Command, encode_command
from aerobee_proto.requests import AnyIncoming, NoFields
from aerobee_remoting.exchange.gate import Gate, RefusedSlowly, Row
from aerobee_remoting.exchange.handlers import Channel, HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import Need, Open
from aerobee_remoting.peers.peer import Peer
from remoting.pair import raw_peer, serving

FREE = Open("for this test")
DELAY_S = 0.1


class Slow(Gate):
    """Refuses what has the body `no`, and lets it wait."""

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        if request.body == b"no":
            raise RefusedSlowly(16, "not you", DELAY_S)

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        raise AssertionError


def answer_batch(channel: Channel, requests: Sequence[AnyIncoming]) -> None:
    for request in requests:
        channel.respond(request.codec, request.envelope.opaque, Response())


async def answer_in_task(_: Request[NoFields]) -> Response:
    return Response()


def handlers() -> HandlerTable:
    table = HandlerTable(Slow())
    table.register(RequestCode.GET_BROKER_RUNTIME_INFO, lambda _: Response(), needs=FREE, body_size_max=9)
    table.register(RequestCode.GET_BROKER_CONFIG, answer_in_task, needs=FREE, body_size_max=9)
    table.register_batch(RequestCode.SEND_MESSAGE, answer_batch, header=NoFields, needs=FREE, body_size_max=9)
    return table


async def test_who_is_refused_waits_and_what_it_sent_later_waits_too() -> None:
    """Plain, in a task, in a batch, and a code that nobody serves; others are not held up."""
    async with serving(handlers()) as (_, port), raw_peer(port) as guesser, raw_peer(port) as other:
        for code in (28, 26, 10, 77):
            began = time.monotonic()
            bodies = [b"no", b"", b"no"] if code == 10 else [b"no"]
            frames = [Command(code, opaque=at, body=body) for at, body in enumerate(bodies)]
            later = Command(28, opaque=9)
            guesser.writer.write(b"".join(map(encode_command, [*frames, later])))
            other.writer.write(encode_command(later))
            assert (await other.receive()).code == 0
            answers = {}
            for _ in range(len(frames) + 1):
                answer = await guesser.receive()
                answers[answer.opaque] = answer.code
            assert list(answers)[-1] == 9
            assert [answers[at] for at, body in enumerate(bodies) if body == b"no"] == [16] * bodies.count(
                b"no"
            )
            assert time.monotonic() - began >= DELAY_S * 0.8  # the loop's clock counts whole milliseconds


async def test_a_oneway_request_that_is_refused_gets_no_answer_and_waits_all_the_same() -> None:
    async with serving(handlers()) as (_, port), raw_peer(port) as guesser:
        began = time.monotonic()
        oneway = Command(28, opaque=1, body=b"no", flag=FLAG_ONEWAY)
        guesser.writer.write(encode_command(oneway) + encode_command(Command(28, opaque=2)))
        async with asyncio.timeout(10):
            assert (await guesser.receive()).opaque == 2
        assert time.monotonic() - began >= DELAY_S * 0.8
