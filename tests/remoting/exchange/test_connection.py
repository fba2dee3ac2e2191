"""aerobee_remoting.exchange.connection: when what is answered leaves. How a connection stands its peers is tried over
sockets, in `remoting.ends`."""

import asyncio

from aerobee_proto.frames import Command, encode_command
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable, Response
from aerobee_remoting.exchange.limits import Common
from aerobee_remoting.exchange.needs import Open
from aerobee_service.turns.turns import Account, Turns
from quiet_transport import QuietTransport

CODE = 9001


class Counting(QuietTransport):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 50_000))
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)


async def test_an_answer_leaves_before_it_is_settled_whose_turn_was_how_long() -> None:
    """Who has one request under way waits for it: the account of turns took a twentieth of a round trip."""
    transport = Counting()
    left: list[int] = []

    class Watched(Turns):
        def left(self, account: Account, size: int, *, is_served: bool) -> bool:
            left.append(transport.written)
            return super().left(account, size, is_served=is_served)

    table = HandlerTable()
    table.register(CODE, _answered, needs=Open("a test"))
    connection = Connection(table, common=Common(turns=Watched()))
    connection.connection_made(transport)
    for number in range(1, 4):
        connection.data_received(encode_command(Command(code=CODE, opaque=number)))
        assert left[-1] == transport.written > 0
        for _ in range(3):
            await asyncio.sleep(0)  # the next turn
    assert len(left) == 3
    connection.connection_lost(None)


async def test_the_last_answer_of_a_read_leaves_at_once_behind_those_before_it() -> None:
    transport = Counting()
    left: list[tuple[int, int]] = []
    table = HandlerTable()

    def last(request: AnyRequest) -> None:
        before = transport.written
        request.connection.write_last(b"last")
        left.append((before, transport.written))

    table.register(CODE, _answered, needs=Open("a test"))
    table.register(CODE + 1, last, needs=Open("a test"))
    connection = Connection(table)
    connection.connection_made(transport)
    connection.data_received(
        encode_command(Command(code=CODE, opaque=1)) + encode_command(Command(code=CODE + 1, opaque=2))
    )
    [(before, after)] = left
    assert before == 0
    assert after == transport.written > len(b"last")
    connection.connection_lost(None)


def _answered(_: AnyRequest) -> Response:
    return Response()
