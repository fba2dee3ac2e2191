"""Who is served when: slices, turns, who has used least, and control requests that overtake. The clock is a counter."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.codes import VERSION
from aerobee_proto.frames import (
    CODEC_ROCKETMQ,
    Command,
    Frame,
    FrameDecoder,
    decode_command,
    encode_command,
    encode_frame,
)
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.connection import (
    BATCH_FIRST,
    BATCH_HEADERS_SIZE,
    BATCH_S,
    OVERTAKING_MAX,
    READ_AHEAD,
    SLICE_FRAMES_MAX,
)
from aerobee_remoting.exchange.handlers import AnyRequest, Channel, FrontTaken, HandlerTable, Response
from aerobee_remoting.exchange.limits import Common, ConnectionLimits
from aerobee_remoting.exchange.needs import Open
from aerobee_service.turns import turns as turns_module
from aerobee_service.turns.turns import (
    AT_ONCE,
    CONTENDED_S,
    HOSTS_GONE_MAX,
    LARGE_READ_SIZE,
    LATER,
    NEW_S,
    READS_MAX,
    WHOLE_S,
    Account,
    Turns,
)
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

    def forget(self) -> None:
        """What was served until now."""
        self.served.clear()

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


def even_turns(clock: Callable[[], float], turn_s: float = TURN_S, slice_s: float = SLICE_S) -> Turns:
    """With slices of one length, whoever asks."""
    return Turns(clock, turn_s=turn_s, slice_s=slice_s, contended_part=1.0)


def peers(worked: Worked, count: int, turns: Turns | None = None) -> list[Peer]:
    handlers = table(worked)
    if turns is None:
        turns = even_turns(worked)
    made = []
    for number in range(count):
        peer = Peer(handlers, port=50_000 + number, common=Common(turns=turns))
        worked.names[peer.connection] = "abcdefghijklmnop"[number]
        made.append(peer)
    # They are there for long, each with a place of its own.
    worked.now += NEW_S
    for peer in made:
        peer.connection.data_received(frames(BEAT, 1))
    worked.forget()
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
    assert order.startswith(("aaaa" + "bbbb" + "cccc") * 3)  # the first read found nobody waiting
    assert (len(order), order.count("a"), order.count("b")) == (300, 100, 100)
    for name in "abc":  # each in the order in which it asked
        assert [opaque for one, opaque in worked.of(PULL) if one == name] == list(range(100))
    per_turn = [sum(turn == number for turn, *_ in worked.served) for number in range(worked.turn)]
    assert max(per_turn) <= 4 + 16  # what was read, and a turn of slices


async def test_slices_are_short_where_somebody_has_much_to_do_and_others_ask_too(worked: Worked) -> None:
    turns = Turns(worked, turn_s=TURN_S, slice_s=SLICE_S, contended_part=0.5)
    a, b = peers(worked, 2, turns)

    def is_contended() -> bool:
        return turns.is_contended

    assert not is_contended()
    worked.now += 2 * CONTENDED_S
    a.connection.data_received(frames(PULL, 120))  # alone
    worked.now += 2 * CONTENDED_S
    worked.forget()
    await worked.turns(2)
    assert not is_contended()
    assert len(worked.served) == 4 + 4  # a slice in each
    b.connection.data_received(frames(PULL, 1))
    assert worked.served[-1][1] == "b"
    await worked.turns(1)
    assert is_contended()
    worked.forget()
    await worked.turns(2)
    assert [name for name, _ in worked.of(PULL)] == ["a"] * (2 + 2)
    worked.now += 2 * CONTENDED_S
    assert not is_contended()


async def test_a_read_that_takes_a_whole_slice_counts_as_much_to_do(worked: Worked) -> None:
    """Peers that come with a slice each, one after the other, and leave nothing for the row, kept others waiting."""
    turns = Turns(worked, turn_s=TURN_S, slice_s=SLICE_S, contended_part=0.5)
    a, b = peers(worked, 2, turns)

    def is_contended() -> bool:
        return turns.is_contended

    worked.now += 2 * CONTENDED_S
    a.connection.data_received(frames(PULL, 4))
    await worked.turns(2)
    worked.now += 2 * CONTENDED_S
    a.connection.data_received(frames(PULL, 4))  # alone, for long
    await worked.turns(2)
    assert not is_contended()
    b.connection.data_received(frames(PULL, 3))  # less than a slice
    await worked.turns(2)
    worked.now += WHOLE_S
    a.connection.data_received(frames(PULL, 4))
    assert not is_contended()  # somebody else may have had the processor
    await worked.turns(2)
    b.connection.data_received(frames(PULL, 4))
    assert is_contended()
    await worked.turns(2)
    assert len(worked.of(PULL)) == 4 + 4 + 3 + 4 + 4


@pytest.mark.parametrize("part", [1.0, 0.5])
async def test_a_turn_is_short_where_it_is_contended(worked: Worked, part: float) -> None:
    turns = Turns(worked, turn_s=TURN_S, slice_s=SLICE_S, contended_part=part)
    heavy, light, *others = peers(worked, 14, turns)
    light.connection.data_received(frames(PULL, 1))
    for _ in range(2):
        heavy.connection.data_received(frames(PULL, 4))
        await worked.turns(3)
    assert turns.is_contended
    worked.forget()
    for peer in others:
        peer.connection.data_received(frames(PULL, 2))
    assert len(worked.of(PULL)) == 16 * part  # the turn's length, at once; the others stand in the row
    await worked.turns(10)
    assert len(worked.of(PULL)) == 2 * len(others)


async def test_steps_of_tasks_are_short_where_others_ask_too(worked: Worked) -> None:
    turns = Turns(worked, turn_s=TURN_S, slice_s=SLICE_S, contended_part=0.5)
    a, b = peers(worked, 2, turns)
    worked.now += 2 * CONTENDED_S
    a.connection.data_received(frames(BEAT, 1))
    worked.now += 2 * CONTENDED_S
    await turns.pause(a.connection.account)  # alone
    assert turns.step_s(SLICE_S) == SLICE_S
    b.connection.data_received(frames(BEAT, 1))
    assert turns.step_s(SLICE_S) == SLICE_S
    await turns.pause(a.connection.account)
    assert turns.step_s(SLICE_S) == SLICE_S / 2
    worked.now += 2 * CONTENDED_S
    assert turns.step_s(SLICE_S) == SLICE_S


async def test_what_a_thread_brings_is_done_before_the_next_slices_where_it_is_contended(
    worked: Worked,
) -> None:
    a, b = peers(worked, 2)
    turns = a.connection.common.turns
    assert turns is not None
    order: list[str] = []

    def brought() -> None:
        order.append(f"brought after {len(worked.served)}")

    for contended in (False, True):
        a.connection.data_received(frames(BEAT, 1))
        worked.now += 2 * CONTENDED_S
        a.connection.data_received(frames(PULL, 40))
        if contended:
            b.connection.data_received(frames(PULL, 1))
            await worked.turns(2)
        assert turns.is_contended is contended
        worked.forget()
        asyncio.get_running_loop().call_soon_threadsafe(brought)
        turns.hurry()
        await worked.turns(1)
        order.append(f"then {len(worked.served)}")
        while len(worked.of(PULL)) < 20:
            await worked.turns(1)
        await worked.turns(20)
    assert order == ["brought after 4", "then 4", "brought after 0", "then 0"]


async def test_what_is_read_waits_for_what_a_thread_has_brought_where_it_is_contended(worked: Worked) -> None:
    """The event loop had four reads of a millisecond before it looked at the result of a sync."""
    a, b, c = peers(worked, 3)
    turns = a.connection.common.turns
    assert turns is not None
    b.connection.data_received(frames(PULL, 1))
    turns.hurry()
    c.connection.data_received(frames(PULL, 1))
    assert worked.of(PULL) == [("b", 0), ("c", 0)]  # nobody has much to do
    for _ in range(2):
        a.connection.data_received(frames(PULL, 4))
        await worked.turns(3)
    assert turns.is_contended
    worked.forget()
    b.connection.data_received(frames(PULL, 1, first=1))
    turns.hurry()
    c.connection.data_received(frames(PULL, 1, first=1))
    assert worked.of(PULL) == [("b", 1)]
    asyncio.get_running_loop().call_soon_threadsafe(lambda: worked.served.append((0, "brought", PULL, 0)))
    await worked.turns(3)
    assert worked.of(PULL) == [("b", 1), ("brought", 0), ("c", 1)]


async def test_who_asks_for_one_thing_waits_for_a_slice_of_each_other_one_at_most(worked: Worked) -> None:
    *heavy, light = peers(worked, 9)
    for peer in heavy:
        peer.connection.data_received(frames(PULL, 200))
    light.connection.data_received(frames(PULL, 1))
    before = len(worked.served)
    while ("i", 0) not in worked.of(PULL):
        await worked.turns(1)
    order = [name for name, _ in worked.of(PULL)]
    assert order.index("i") - before <= 8 * 4
    # From now on it has used less than the others when it comes: it waits for no more than the slice that runs.
    for number in range(1, 6):
        await worked.turns(2)
        before = len(worked.served)
        light.connection.data_received(frames(PULL, 1, first=number))
        while ("i", number) not in worked.of(PULL):
            await worked.turns(1)
        assert (
            worked.served.index(next(one for one in worked.served if one[1:] == ("i", PULL, number)))
            == before
        )


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
    peer = Peer(handlers, common=Common(turns=even_turns(worked)))
    peer.connection.data_received(frames(PULL, 8))
    peer.connection.data_received(frames(COMMIT, 1, first=90))
    await worked.turns(5)
    peer.connection.data_received(frames(PULL, 1, first=50))
    assert logged == [(number, number >= 4) for number in range(8)] + [(50, False)]


@pytest.fixture
def many_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many reads of a turn there were stops nobody."""
    monkeypatch.setattr(turns_module, "READS_MAX", 100)


@pytest.mark.usefixtures("many_reads")
async def test_reading_goes_on_while_little_is_held_back_and_stops_at_the_bound(worked: Worked) -> None:
    (a,) = peers(worked, 1)

    def is_read() -> bool:
        return not a.connection.reading_paused

    a.connection.data_received(frames(PULL, 3))
    assert is_read()
    a.connection.data_received(frames(PULL, 100))
    assert not is_read()  # it has had its slice of this turn
    await worked.turns(2)
    assert is_read()  # what overtakes must be read first
    large = encode_command(Command(BEAT + 1000, opaque=1, body=b"x" * READ_AHEAD))
    a.connection.data_received(large)
    assert not is_read()
    await worked.turns(50)
    assert is_read()
    assert a.connection.buffered_size == 0


@pytest.mark.usefixtures("many_reads")
async def test_reads_that_take_long_by_themselves_stop_for_the_turn(worked: Worked) -> None:
    """The event loop reads up to 32 times from one socket before it looks at another one: pieces of a frame of
    16 MiB, or requests that are handled at once. Each of them found the turn young enough."""
    a, b = peers(worked, 2)

    def is_read() -> bool:
        return not a.connection.reading_paused

    await worked.turns(2)
    for number in range(3):
        a.connection.data_received(frames(PULL, 1, first=number))
        assert is_read()
    a.connection.data_received(frames(PULL, 1, first=3))
    assert not is_read()  # four make a slice
    b.connection.data_received(frames(PULL, 1))
    assert worked.served[-1][1:] == ("b", PULL, 0)
    await worked.turns(2)
    assert is_read()
    assert len(worked.of(PULL)) == 5


async def test_a_batch_is_as_large_as_what_takes_a_part_of_a_slice(worked: Worked) -> None:
    """A batch handler was given up to 1,024 requests at once, however long one takes: delayed messages held the event
    loop for 35 ms."""
    taken: list[int] = []
    cost_s = PULL_S / 4

    def batch(connection: Channel, items: Any) -> None:
        taken.append(len(items))
        worked.now += cost_s * len(items)

    handlers = HandlerTable()
    handlers.register_batch(SEND, batch, needs=Open("a test"), header=NoFields)
    peer = Peer(handlers, common=Common(turns=even_turns(worked, 0.02, 0.005)))
    peer.connection.data_received(frames(SEND, 1000))
    await worked.turns(300)
    assert taken[0] == BATCH_FIRST
    assert set(taken[1:-1]) == {int(BATCH_S / cost_s)}  # what one takes is known by now
    assert sum(taken) == 1000
    cost_s = BATCH_S / 10_000
    taken.clear()
    for _ in range(20):
        peer.connection.data_received(frames(SEND, SLICE_FRAMES_MAX))
        await worked.turns(3)
    assert sum(taken) == 20 * SLICE_FRAMES_MAX
    assert taken[-1] == SLICE_FRAMES_MAX  # all of a read again


async def test_dear_requests_behind_very_many_cheap_ones_are_not_one_batch(worked: Worked) -> None:
    """What a batch takes was told by the number of its requests alone: filters of 16 KiB behind a thousand pulls
    without one held the event loop for 50 ms, and on a new connection, of which nothing is known, for 100 ms."""
    taken: list[int] = []
    handlers = HandlerTable()
    handlers.register_batch(
        SEND, lambda _, items: taken.append(len(items)), needs=Open("a test"), header=NoFields
    )
    peer = Peer(handlers, common=Common(turns=even_turns(worked, 0.02, 0.005)))
    for _ in range(20):
        peer.connection.data_received(frames(SEND, SLICE_FRAMES_MAX))
        await worked.turns(3)
    assert taken[-1] == SLICE_FRAMES_MAX
    taken.clear()
    dear = [
        encode_command(Command(SEND, opaque=number, ext_fields={"x": "y" * (BATCH_HEADERS_SIZE // 4)}))
        for number in range(30)
    ]
    peer.connection.data_received(b"".join(dear))
    await worked.turns(3)
    assert sum(taken) == 30
    assert max(taken) <= 4 + 1  # one more where it is the first of its batch


async def test_a_read_of_very_many_requests_is_cut_in_turns(
    worked: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To cut thousands of them and to keep them took 4 ms of one turn, whatever was handled in it."""
    (a,) = peers(worked, 1)
    count = 4 * SLICE_FRAMES_MAX + 7
    fed: list[int] = []

    feed = FrameDecoder.feed

    def watched(*given: Any, **more: Any) -> list[Frame]:
        found = feed(*given, **more)
        fed.append(len(found))
        return found

    monkeypatch.setattr(FrameDecoder, "feed", watched)
    data = frames(SEND, count) + frames(SEND, 1, count)
    a.connection.data_received(data[:-9])
    late = asyncio.get_running_loop().time() + ConnectionLimits().frame_s + 10
    assert a.connection.sweep(late) is None, "whole requests that wait for their turn are not late"
    for _ in range(1000):
        if not a.connection.reading_paused:
            break
        await worked.turns(1)
    assert worked.of(SEND) == [("a", number) for number in range(count)]
    assert max(fed) == SLICE_FRAMES_MAX
    assert sum(fed) == count
    assert "did not arrive whole" in (a.connection.sweep(late) or "")


@dataclass
class SendFront:
    """A front that serves sends."""

    worked: Worked
    cost_s: float = PULL_S / 32
    took: list[int] = field(default_factory=list)

    def serves_all(self, data: bytes, at: int) -> bool:
        return all(self.is_served(frame) for frame in FrameDecoder().feed(data[at:]))

    @staticmethod
    def is_served(frame: Frame) -> bool:
        return b'"code":%d,' % SEND in frame[1]

    def take(
        self, channel: Channel, data: bytes, at: int, count_max: int, judging: object
    ) -> FrontTaken | None:
        decoder, count, opaque = FrameDecoder(), 0, 0
        frames = decoder.feed(data[at:], count_max=count_max)
        size = 0
        for frame in frames:
            if not self.is_served(frame):
                break
            command = decode_command(frame)
            count, opaque = count + 1, command.opaque
            size += len(encode_command(command))
            self.worked.now += self.cost_s
            self.worked.served.append((self.worked.turn, self.worked.names[channel], SEND, opaque))
        self.took.append(count)
        return FrontTaken(size, count, SEND, VERSION) if count else None


def with_front(worked: Worked, made: list[Peer]) -> SendFront:
    front = SendFront(worked)
    for peer in made:
        peer.handlers.front = front
    return front


async def test_the_front_serves_what_had_to_wait_and_no_batch_handler_does(worked: Worked) -> None:
    """A read that came when the turn was over was cut for the usual way, which takes four times as long: with 64
    connections nearly all of them were."""
    made = peers(worked, 5)
    front = with_front(worked, made)
    for peer in made:
        for first in (0, 300):
            peer.connection.data_received(frames(SEND, 300, first))
    assert all(peer.connection.buffered_size for peer in made[2:])
    for _ in range(1000):
        if not any(peer.connection.buffered_size for peer in made):
            break
        await worked.turns(1)
    for name in "abcde":
        assert [opaque for one, opaque in worked.of(SEND) if one == name] == list(range(600))
    assert sum(front.took) == 3000
    per_turn = [sum(turn == number for turn, *_ in worked.served) for number in range(worked.turn)]
    assert max(per_turn) <= 2 * 512 + 128  # a turn of slices, and what was read


async def test_a_fault_in_a_slice_ends_the_connection_and_no_other(worked: Worked) -> None:
    """Its peer waited for answers until it gave up."""
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    a, b, c = peers(worked, 3)
    front: Any = with_front(worked, [a, b, c])
    take = front.take

    def break_for_b(channel: Channel, *rest: Any) -> FrontTaken | None:
        if channel is b.connection:
            raise ZeroDivisionError("a fault of ours")
        taken: FrontTaken | None = take(channel, *rest)
        return taken

    for peer in (a, a, b, c):
        peer.connection.data_received(frames(SEND, 200))
    front.take = break_for_b
    await worked.turns(100)
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert [peer.connection.is_closed for peer in (a, b, c)] == [False, True, False]
    served = [name for name, _ in worked.of(SEND)]
    assert (served.count("a"), served.count("c")) == (400, 200)


async def test_who_is_served_by_the_front_has_a_slice_at_a_time(worked: Worked) -> None:
    """It took all of a read, a thousand requests, before it was looked at the clock again."""
    a, b = peers(worked, 2)
    front = with_front(worked, [a, b])
    front.cost_s = BATCH_S / 300
    a.connection.data_received(frames(SEND, 4000))
    assert 0 < len(worked.served) * front.cost_s <= SLICE_S + SLICE_FRAMES_MAX * front.cost_s
    b.connection.data_received(frames(PULL, 1))
    await worked.turns(1)
    assert [name for name, _ in worked.of(PULL)] == ["b"]
    await worked.turns(10)
    assert [opaque for _, opaque in worked.of(SEND)] == list(range(4000))
    assert max(front.took) <= 2 * 300


async def test_what_overtakes_is_found_behind_what_is_left_to_the_front(worked: Worked) -> None:
    *heavy, light = peers(worked, 4)
    with_front(worked, [*heavy, light])
    for peer in heavy:
        for first in (0, 3000):
            peer.connection.data_received(frames(PULL, 300, first))
    light.connection.data_received(frames(PULL, 40))  # it waits from now on
    light.connection.data_received(frames(SEND, 50, 100))
    await worked.turns(2)
    assert len(worked.of(SEND)) == 0
    assert not light.connection.reading_paused, "what overtakes has to be read first"
    light.connection.data_received(frames(SEND, 10, 200) + frames(BEAT, 1, 7) + frames(SEND, 10, 300)[:-5])
    assert worked.served[-1][1:] == (worked.names[light.connection], BEAT, 7)
    await worked.turns(300)
    light.connection.data_received(frames(SEND, 10, 300)[-5:])
    await worked.turns(300)
    sent = [opaque for name, opaque in worked.of(SEND) if name == worked.names[light.connection]]
    assert sent == [*range(100, 150), *range(200, 210), *range(300, 310)]


@pytest.mark.parametrize(("code", "count"), [(PULL, 1), (PULL, 40), (SEND, 1000)])
@pytest.mark.parametrize(
    "broken", [bytes(8), encode_frame(CODEC_ROCKETMQ, b"no header", b"")], ids=["length", "header"]
)
@pytest.mark.parametrize("has_front", [False, True])
async def test_what_came_before_what_is_no_frame_is_answered(
    worked: Worked, code: int, count: int, broken: bytes, has_front: bool
) -> None:
    """The connection was closed at once, with what waited for its turn."""
    (a,) = peers(worked, 1)
    if has_front:
        with_front(worked, [a])
    before = a.connection.common.broken_off["frame"]
    a.connection.data_received(frames(code, count) + broken + frames(code, 1, count))
    for _ in range(1000):
        if a.connection.is_closed:
            break
        a.connection.data_received(frames(code, 1, count + 1))  # nothing counts any more
        await worked.turns(1)
    else:
        pytest.fail("it is open")
    assert worked.of(code) == [("a", number) for number in range(count)]
    assert a.connection.common.broken_off["frame"] == before + 1


async def test_requests_that_nobody_serves_take_no_more_than_a_slice(worked: Worked) -> None:
    """The clock was not looked at after what is answered without a handler."""
    (a,) = peers(worked, 1)
    clock_looks = 0

    def looked() -> float:
        nonlocal clock_looks
        clock_looks += 1
        worked.now += PULL_S / 4
        return worked.now

    peer = Peer(a.handlers, common=Common(turns=even_turns(looked)))
    peer.connection.data_received(frames(BEAT + 5000, 1000))
    assert peer.connection.buffered_size > 0
    await worked.turns(300)
    assert peer.connection.buffered_size == 0
    assert clock_looks > 1000


async def test_a_connection_that_is_lost_while_it_waits_is_passed_over(worked: Worked) -> None:
    a, b = peers(worked, 2)
    for peer in (a, b):
        peer.connection.data_received(frames(PULL, 30))
    a.connection.abort()
    await worked.turns(50)
    assert [name for name, _ in worked.of(PULL)].count("b") == 30
    assert [name for name, _ in worked.of(PULL)].count("a") == 4


# --- the row by itself ----------------------------------------------------------------------------------------------


class Worker:
    """Stands in the row, and takes `cost_s` of each slice: as often as it is let, or so many times."""

    def __init__(
        self,
        worked: Worked,
        turns: Turns,
        host: str,
        cost_s: float,
        times: float = math.inf,
        *,
        stays: bool = True,
    ) -> None:
        self.account = turns.open(host)
        self.host = host
        self.cost_s = cost_s
        self.left = times
        self.had_s = 0.0
        self.waited: list[float] = []  # for each slice, while others had theirs
        self._worked = worked
        self._turns = turns
        if stays:
            worked.now += NEW_S
            turns.enter(self.account)
            turns.left(self.account, 100, is_served=True)
        self._since = worked.now

    def ask(self, times: float = math.inf) -> None:
        self.left = times
        self._since = self._worked.now
        self._turns.join(self)

    def go_on(self, deadline: float) -> bool:
        assert self._worked.now < deadline < AT_ONCE
        self.waited.append(self._worked.now - self._since)
        self._worked.now += self.cost_s
        self.had_s += self.cost_s
        self.left -= 1
        self._since = self._worked.now
        if self.left <= 0:
            self._turns.close(self.account)
        return self.left > 0


def made_turns() -> tuple[Worked, Turns]:
    worked = Worked()
    return worked, even_turns(worked, 0.02, 0.005)


COSTS = st.sampled_from((0.001, 0.004, 0.005, 0.007, 0.02))
COST_MAX_S = 0.02


async def test_a_connection_is_read_a_few_times_in_a_turn_however_little_each_takes() -> None:
    """The event loop waits for the interpreter each time, and that is not counted."""
    _, turns = made_turns()
    one, other = turns.open("h"), turns.open("h")

    def read(account: Account, size: int = LARGE_READ_SIZE - 1) -> bool:
        turns.enter(account)
        return turns.left(account, size, is_served=True)

    assert [read(one) for _ in range(READS_MAX)] == [False] * (READS_MAX - 1) + [True]
    assert not read(other)
    await asyncio.sleep(0)
    assert not read(one)  # another turn
    assert read(other, LARGE_READ_SIZE)


async def test_turns_by_themselves() -> None:
    worked, turns = made_turns()
    one, other = turns.open("h"), turns.open("h")
    assert turns.enter(one) == pytest.approx(0.005)
    turns.left(one, 100, is_served=True)
    worked.now = 0.019
    assert turns.enter(one) == pytest.approx(0.024)
    worked.now = 0.02
    assert turns.enter(one) == LATER  # the turn is over
    await asyncio.sleep(0)
    assert turns.enter(one) == pytest.approx(0.025)  # the next one
    turns.left(one, 100, is_served=True)
    await asyncio.sleep(0)

    workers = [Worker(worked, turns, "h", 0.008, 2) for _ in range(5)]
    await asyncio.sleep(0)
    for worker in workers:
        worker.ask(2)
    await asyncio.sleep(0)
    assert [worker.had_s for worker in workers] == [
        0.008,
        0.008,
        0,
        0,
        0,
    ]  # 10 ms, and what the last one overran
    assert turns.enter(other) == LATER  # others wait, and the turn has not that long
    for _ in range(5):
        await asyncio.sleep(0)
    assert [worker.had_s for worker in workers] == [0.016] * 5
    assert len(turns) == 0
    assert turns.enter(other) > 0


@given(st.lists(st.lists(COSTS, min_size=1, max_size=6), min_size=2, max_size=5))
def test_a_host_with_many_connections_gets_no_more_than_one_with_one(hosts: list[list[float]]) -> None:
    async def run() -> None:
        worked, turns = made_turns()
        by_host = [[Worker(worked, turns, f"h{i}", cost) for cost in costs] for i, costs in enumerate(hosts)]
        for workers in by_host:
            for worker in workers:
                worker.ask()
        began = worked.now
        while worked.now < began + 1:  # noqa: ASYNC110  # each is a turn
            await asyncio.sleep(0)
        had = [sum(worker.had_s for worker in workers) for workers in by_host]
        assert max(had) - min(had) <= 2 * COST_MAX_S + SLICE_S
        for workers in by_host:  # and so it is among the connections of a host
            each = [worker.had_s for worker in workers]
            assert max(each) - min(each) <= 2 * COST_MAX_S + SLICE_S

    asyncio.run(run())


@given(st.integers(1, 30), COSTS, COSTS, st.booleans())
def test_connections_that_come_and_go_have_the_share_of_a_few(
    at_a_time: int, cost_s: float, their_cost_s: float, own_host: bool
) -> None:
    """They were served a slice each as soon as they came, and whoever stayed waited for all of them."""

    async def run() -> None:
        worked, turns = made_turns()
        stays = Worker(worked, turns, "h", cost_s)
        stays.ask()
        theirs: list[Worker] = []
        began = worked.now
        while worked.now < began + 1:
            theirs = [one for one in theirs if one.left > 0]
            for _ in range(at_a_time - len(theirs)):
                theirs.append(Worker(worked, turns, "g" if own_host else "h", their_cost_s, 3, stays=False))
                theirs[-1].ask(3)
            await asyncio.sleep(0)
        places = 2 if own_host else 3
        assert stays.had_s >= (worked.now - began) / places - 4 * COST_MAX_S

    asyncio.run(run())


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), COSTS, st.integers(1, 4), st.booleans()), min_size=1, max_size=40
    ),
    st.integers(0, 3),
)
def test_whoever_waits_is_served(asked: list[tuple[str, float, int, bool]], endless: int) -> None:
    async def run() -> None:
        worked, turns = made_turns()
        for number in range(endless):
            Worker(worked, turns, "abc"[number % 3], 0.005).ask()
        workers = []
        for host, cost_s, times, stays in asked:
            workers.append(Worker(worked, turns, host, cost_s, stays=stays))
            workers[-1].ask(times)
            await asyncio.sleep(0)
        for _ in range(4000):
            if all(worker.left <= 0 for worker in workers):
                break
            await asyncio.sleep(0)
        assert all(worker.left <= 0 for worker in workers)
        assert len(turns) == endless

    asyncio.run(run())


async def test_who_asks_for_little_now_and_then_is_the_next() -> None:
    """However many come and go on the same host, and however many stay and ask without end."""
    worked, turns = made_turns()
    light = Worker(worked, turns, "h", 0.0001)
    heavy = [Worker(worked, turns, "h", 0.005) for _ in range(20)]
    for one in heavy:
        one.ask()
    for number in range(200):
        for _ in range(5):
            Worker(worked, turns, "h", 0.005, stays=False).ask(2)
        await asyncio.sleep(0)
        if number % 10 == 9:
            light.ask(2)  # the second time behind a slice of another, at most
            await asyncio.sleep(0)
            assert light.left <= 1
            await asyncio.sleep(0)
    assert max(light.waited[2:]) <= 0.005


async def test_what_a_host_owes_is_remembered_when_all_its_connections_are_gone() -> None:
    worked, turns = made_turns()
    owes = turns.open("g")
    turns.enter(owes)
    other = Worker(worked, turns, "h", 0.005)
    other.ask()  # so that it does not work alone
    turns.charge(owes, 0.1)
    turns.close(owes)
    back = Worker(worked, turns, "g", 0.005, stays=False)
    back.ask()
    for _ in range(8):
        await asyncio.sleep(0)
    assert other.had_s >= 0.08
    assert back.had_s <= 0.005
    for number in range(HOSTS_GONE_MAX + 10):
        account = turns.open(f"x{number}")
        turns.charge(account, 5.0)
        turns.close(account)
    assert turns.host_count == HOSTS_GONE_MAX + 2


async def test_a_task_does_its_next_step_when_it_is_its_turn() -> None:
    """Tasks that worked in steps had one in each turn of the event loop, however many there were."""
    worked, turns = made_turns()
    heavy = [Worker(worked, turns, "h", 0.005) for _ in range(4)]
    for one in heavy:
        one.ask()
    tasks = [Worker(worked, turns, "g", 0.0) for _ in range(4)]
    steps: list[int] = []

    async def work(number: int) -> None:
        while True:
            await turns.pause(tasks[number].account)
            worked.now += 0.005
            turns.charge(tasks[number].account, 0.005)
            steps.append(number)

    running = [asyncio.create_task(work(number)) for number in range(4)]
    began = worked.now
    while len(steps) < 40:  # noqa: ASYNC110  # each is a turn
        await asyncio.sleep(0)
    assert {steps.count(number) for number in range(4)} == {10}
    assert sum(one.had_s for one in heavy) == pytest.approx((worked.now - began) / 2, abs=0.02)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(turns) == len(heavy)  # who has gone is passed over
