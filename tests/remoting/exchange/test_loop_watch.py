"""The watch over the event loop: who is named, what is counted."""

import asyncio

import pytest
from structlog.testing import capture_logs

from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command
from aerobee_remoting.ends.server import ServerConfig
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable, Response
from aerobee_remoting.exchange.loop_watch import LAG_BOUNDS_S, LoopWatch, in_timed_steps
from aerobee_remoting.exchange.needs import Open
from aerobee_service.turns import turns as turns_of_servers
from remoting.pair import raw_peer, serving
from turns import reference

EVERY = ServerConfig(loop_held_s=0.0)  # every handler is told
PLAIN, ASYNC = 7, 8


async def test_each_kind_of_handler_that_holds_the_loop_is_named() -> None:
    handlers = table_of_two()
    with capture_logs() as logs:
        async with serving(handlers, EVERY) as (server, port), raw_peer(port) as peer:
            for code in (PLAIN, ASYNC):
                peer.send(Command(code, opaque=code))
                await peer.receive()
            held = dict(server.watch.held)
    assert held[PLAIN, "table_of_two.<locals>.plain"] == 1
    assert held[ASYNC, "table_of_two.<locals>.slow"] >= 2  # steps
    logged = [line for line in logs if line["event"] == "remoting.loop_held" and line["code"]]
    assert {line["code"] for line in logged} == {PLAIN, ASYNC}
    assert all(line["peer"].startswith("127.0.0.1:") and line["took_ms"] >= 0 for line in logged)


def table_of_two() -> HandlerTable:
    handlers = HandlerTable()

    def plain(_: AnyRequest) -> Response:
        reference()
        return Response()

    async def slow(_: AnyRequest) -> Response:
        await asyncio.sleep(0)
        raise RequestError(5, "no")

    handlers.register(PLAIN, plain, needs=Open("a test"))
    handlers.register(ASYNC, slow, needs=Open("a test"))
    return handlers


async def test_a_quick_handler_is_not_told() -> None:
    async with (
        serving(table_of_two(), ServerConfig(loop_held_s=1e6)) as (server, port),
        raw_peer(port) as peer,
    ):
        peer.send(Command(PLAIN, opaque=1))
        await peer.receive()
        assert not server.watch.held
        assert server.watch.held_count == 0


def test_a_late_loop_is_told_unless_a_handler_has_been_blamed_for_it() -> None:
    watch = LoopWatch(0.1)
    entry = table_of_two().by_code[PLAIN]
    watch.saw(0.004)
    watch.saw(0.3)
    watch.took(entry, 0.5, "1.2.3.4:5")
    watch.saw(0.5)
    assert dict(watch.held) == {(0, "none"): 1, (PLAIN, entry.name): 1}
    assert watch.longest_ms == 500
    assert sum(watch.lags) == 3
    assert watch.lags[0] == 1
    assert len(watch.lags) == len(LAG_BOUNDS_S) + 1
    watch.saw(99)
    assert watch.lags[-1] == 1


async def test_steps_are_timed_and_everything_else_is_as_without() -> None:
    steps: list[float] = []

    async def work() -> str:
        with pytest.raises(KeyError):
            await failing
        await asyncio.sleep(0)
        return "done"

    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(failing.set_exception, KeyError("x"))
    assert await in_timed_steps(work(), 0.0, steps.append) == "done"
    assert len(steps) == 3

    cancelled = asyncio.ensure_future(as_task(steps))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def as_task(steps: list[float]) -> None:
    await in_timed_steps(asyncio.Event().wait(), 0.0, steps.append)


async def test_requests_of_one_read_share_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of ten pipelined requests may take its time; others are answered between them."""
    monkeypatch.setattr(turns_of_servers, "SLICE_S", -1.0)
    monkeypatch.setattr(turns_of_servers, "FIRST_S", -1.0)
    monkeypatch.setattr(turns_of_servers, "ROW_S", -1.0)
    handlers, turn = HandlerTable(), [0]
    turns: list[int] = []
    handlers.register(PLAIN, lambda _: turns.append(turn[0]), needs=Open("a test"))

    def next_turn() -> None:
        turn[0] += 1
        if len(turns) < 10:
            asyncio.get_running_loop().call_soon(next_turn)

    async with serving(handlers) as (_, port), raw_peer(port) as peer:
        peer.send(*[Command(PLAIN, opaque=number) for number in range(10)])
        next_turn()
        async with asyncio.timeout(10):
            while len(turns) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert len(set(turns)) == 10


async def test_what_was_read_later_waits_for_work_that_runs_alone() -> None:
    handlers, gate = HandlerTable(), asyncio.Event()
    order: list[str] = []

    def first(request: AnyRequest) -> None:
        async def work() -> None:
            await gate.wait()
            order.append("first")
            request.respond(Response())

        request.connection.run_alone(work)

    def second(_: AnyRequest) -> Response:
        order.append("second")
        return Response()

    handlers.register(1, first, needs=Open("a test"))
    handlers.register(2, second, needs=Open("a test"))
    async with serving(handlers) as (_, port), raw_peer(port) as peer, raw_peer(port) as other:
        peer.send(Command(1, opaque=1), Command(2, opaque=2))
        other.send(Command(2, opaque=3))
        await other.receive()
        assert order == ["second"]  # the other's
        peer.send(Command(2, opaque=4))
        gate.set()
        assert [(await peer.receive()).opaque for _ in range(3)] == [1, 2, 4]
    assert order == ["second", "first", "second", "second"]
