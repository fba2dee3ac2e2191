"""Who is served when: slices, turns, round robin, and small control requests that overtake. The clock is a counter."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from aerobee_proto.frames import Command, encode_command
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.connection import OVERTAKING_MAX, READ_AHEAD
from aerobee_remoting.exchange.handlers import AnyRequest, Channel, HandlerTable, Response
from aerobee_remoting.exchange.limits import Common
from aerobee_remoting.exchange.needs import Open
from aerobee_service.turns.turns import AT_ONCE, LATER, Turns
from broker.support import Peer

PULL, SEND, BEAT, COMMIT = 11, 310, 34, 15
PULL_S = 1 / 1024  # powers of two: their sums are exact
SLICE_S, TURN_S = 4 * PULL_S, 16 * PULL_S


@dataclass
class Worked:
    """A clock that moves when a handler works, and what was served in which turn of the loop."""

    now: float = 0.0
    turn: int = 0
    names: dict[object, str] = field(default_factory=dict)  # of connections
    served: list[tuple[int, str, int, int]] = field(default_factory=list)  # turn, connection, code, opaque

    def __call__(self) -> float:
        return self.now

    def of(self, code: int) -> list[tuple[str, int]]:
        return [(name, opaque) for _, name, served, opaque in self.served if served == code]

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.turn += 1


def table(worked: Worked) -> HandlerTable:
    handlers = HandlerTable()

    def serve(cost: float) -> Any:
        def handler(request: AnyRequest) -> Response:
            worked.now += cost
            name = worked.names[request.connection]
            worked.served.append((worked.turn, name, request.code, request.opaque))
            return Response()

        return handler

    def batch(connection: Channel, items: Any) -> None:
        worked.now += PULL_S / 128 * len(items)
        for item in items:
            code, opaque = item.envelope.code, item.envelope.opaque
            worked.served.append((worked.turn, worked.names[connection], code, opaque))
            connection.respond(item.codec, opaque, Response())

    handlers.register(PULL, serve(PULL_S), needs=Open("a test"))
    handlers.register_batch(SEND, batch, needs=Open("a test"), header=NoFields)
    handlers.register(BEAT, serve(PULL_S / 32), needs=Open("a test"), overtakes=True)
    handlers.register(COMMIT, serve(PULL_S / 32), needs=Open("a test"), overtakes=True)
    return handlers


@pytest.fixture
async def worked() -> Worked:
    return Worked()


def peers(worked: Worked, count: int) -> list[Peer]:
    handlers, turns = table(worked), Turns(worked, turn_s=TURN_S, slice_s=SLICE_S)
    made = []
    for number in range(count):
        peer = Peer(handlers, port=50_000 + number, common=Common(turns=turns))
        worked.names[peer.connection] = "abcdefghijklmnop"[number]
        made.append(peer)
    return made


def frames(code: int, count: int, first: int = 0) -> bytes:
    return b"".join(encode_command(Command(code, opaque=first + number)) for number in range(count))


async def test_one_connection_works_for_a_slice_and_then_it_is_the_next_ones_turn(worked: Worked) -> None:
    """A thousand pulls that were read at once were handled in one go, and everybody else waited for the last."""
    a, b, c = peers(worked, 3)
    for peer in (a, b, c):
        peer.connection.data_received(frames(PULL, 100))
    await worked.turns(200)
    order = "".join(name for name, _ in worked.of(PULL))
    assert order.startswith("aaaa" + ("aaaa" + "bbbb" + "cccc") * 3)  # the first read found nobody waiting
    assert (len(order), order.count("a"), order.count("b")) == (300, 100, 100)
    for name in "abc":  # each in the order in which it asked
        assert [opaque for one, opaque in worked.of(PULL) if one == name] == list(range(100))
    per_turn = [sum(turn == number for turn, *_ in worked.served) for number in range(worked.turn)]
    assert max(per_turn) <= 4 + 16  # what was read, and a turn of slices


async def test_who_asks_for_one_thing_waits_for_a_slice_of_each_other_one_at_most(worked: Worked) -> None:
    *heavy, light = peers(worked, 9)
    for peer in heavy:
        peer.connection.data_received(frames(PULL, 200))
    light.connection.data_received(frames(PULL, 1))
    before = len(worked.served)
    while ("i", 0) not in worked.of(PULL):
        await worked.turns(1)
    order = [name for name, _ in worked.of(PULL)]
    assert order.index("i") - before == 8 * 4


async def test_a_heartbeat_is_answered_in_the_turn_in_which_it_is_read(worked: Worked) -> None:
    """With eight connections that send and pull as fast as they can, official clients' time-outs of 3 s expired."""
    *heavy, light = peers(worked, 9)
    for peer in heavy:
        peer.connection.data_received(frames(PULL, 200) + frames(SEND, 200))
    await worked.turns(2)
    light.connection.data_received(frames(BEAT, 1, first=7))
    assert worked.served[-1][1:] == ("i", BEAT, 7)
    # And so it is behind the sends and pulls of its own connection.
    heavy[0].connection.data_received(frames(SEND, 50, first=1000) + frames(COMMIT, 1, first=8))
    assert worked.served[-1][1:] == ("a", COMMIT, 8)
    heavy[0].connection.data_received(frames(PULL, 1, first=2000) + frames(BEAT, 1, first=9))
    assert worked.served[-1][1:] == ("a", BEAT, 9)
    await worked.turns(2000)
    assert len(worked.of(PULL)) == 1601
    assert len(worked.of(SEND)) == 1650


async def test_in_one_read_control_requests_come_before_what_is_left_of_it(worked: Worked) -> None:
    (a,) = peers(worked, 1)
    a.connection.data_received(frames(PULL, 50) + frames(BEAT, 1, 100) + frames(COMMIT, 1, 101))
    codes = [code for _, _, code, _ in worked.served]
    assert codes == [PULL] * 4 + [BEAT, COMMIT]
    await worked.turns(50)
    assert [opaque for _, opaque in worked.of(PULL)] == list(range(50))


async def test_control_requests_stay_in_order_among_each_other(worked: Worked) -> None:
    """Only so many overtake; the others do not overtake those that had to wait."""
    (a,) = peers(worked, 1)
    a.connection.data_received(frames(PULL, 20))
    count = OVERTAKING_MAX + 20
    for number in range(count):
        a.connection.data_received(frames(BEAT if number % 2 else COMMIT, 1, first=number))
    assert len(worked.served) == 4 + OVERTAKING_MAX
    await worked.turns(50)
    control = [opaque for _, _, code, opaque in worked.served if code != PULL]
    assert control == list(range(count))
    assert [code for _, _, code, _ in worked.served].index(PULL) == 0
    # When nothing waits any more, they may again.
    a.connection.data_received(frames(PULL, 20))
    a.connection.data_received(frames(BEAT, 1, first=500))
    assert worked.served[-1][2:] == (BEAT, 500)


async def test_a_request_that_was_overtaken_can_tell(worked: Worked) -> None:
    """The offset in a pull must not undo a commit that came behind it and was served before."""
    logged: list[tuple[int, bool]] = []
    handlers = HandlerTable()

    def pull(request: AnyRequest) -> Response:
        worked.now += PULL_S
        logged.append((request.opaque, request.connection.was_overtaken))
        return Response()

    handlers.register(PULL, pull, needs=Open("a test"))
    handlers.register(COMMIT, lambda _: Response(), needs=Open("a test"), overtakes=True)
    peer = Peer(handlers, common=Common(turns=Turns(worked, turn_s=TURN_S, slice_s=SLICE_S)))
    peer.connection.data_received(frames(PULL, 8))
    peer.connection.data_received(frames(COMMIT, 1, first=90))
    await worked.turns(5)
    peer.connection.data_received(frames(PULL, 1, first=50))
    assert logged == [(number, number >= 4) for number in range(8)] + [(50, False)]


async def test_reading_goes_on_while_little_is_held_back_and_stops_at_the_bound(worked: Worked) -> None:
    (a,) = peers(worked, 1)

    def is_read() -> bool:
        return not a.connection.reading_paused

    a.connection.data_received(frames(PULL, 20))
    assert is_read()  # what overtakes must be read first
    large = encode_command(Command(BEAT + 1000, opaque=1, body=b"x" * READ_AHEAD))
    a.connection.data_received(large)
    assert not is_read()
    await worked.turns(50)
    assert is_read()
    assert a.connection.buffered_size == 0


async def test_a_connection_that_is_lost_while_it_waits_is_passed_over(worked: Worked) -> None:
    a, b = peers(worked, 2)
    for peer in (a, b):
        peer.connection.data_received(frames(PULL, 30))
    a.connection.abort()
    await worked.turns(50)
    assert [name for name, _ in worked.of(PULL)].count("b") == 30
    assert [name for name, _ in worked.of(PULL)].count("a") == 4


async def test_turns_by_themselves() -> None:
    worked = Worked()
    turns = Turns(worked, turn_s=0.02, slice_s=0.005)
    assert turns.enter() == pytest.approx(0.005)
    worked.now = 0.019
    assert turns.enter() == pytest.approx(0.024)
    worked.now = 0.02
    assert turns.enter() == LATER  # the turn is over
    await asyncio.sleep(0)
    assert turns.enter() == pytest.approx(0.025)  # the next one

    log: list[str] = []

    class One:
        def __init__(self, name: str, slices: int) -> None:
            self.name, self.slices = name, slices

        def go_on(self, deadline: float) -> bool:
            assert worked.now < deadline < AT_ONCE
            worked.now += 0.008
            log.append(self.name)
            self.slices -= 1
            return self.slices > 0

    for name in "abcde":
        turns.join(One(name, 2))
    assert turns.enter() == LATER  # others wait
    await asyncio.sleep(0)
    assert "".join(log) == "abc"  # 24 ms
    assert turns.enter() == LATER
    for _ in range(6):
        await asyncio.sleep(0)
    assert "".join(log) == "abcdeabcde"
    assert len(turns) == 0
    assert turns.enter() > 0
