"""A handshake on a connection: what came is handed in, what the flow wants done is done.

Touches  the log that is compared, reading, in a thread; the transport of its connection, to write and to pace it.

Invariants
- A handshake ends within GREETING_S, or its link does.
- At most REST_SIZE_MAX bytes, and one read more, wait while the flow does something else: then nothing more is read
  from the other end until they were heard, or taken by whoever goes on after the handshake.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from aerobee_broker.replication.common_part import Borders
from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.hello import Answer, Digest, Flow, Hear, Member, Say, Span
from aerobee_proto.ha_hello import FRAME_SIZE_MAX, HelloDecoder, encode_message
from aerobee_store.replicas.epochs import Epoch

__all__ = ["ComparedLog", "Greeting", "OwnSide"]

GREETING_S: Final = 30.0
REST_SIZE_MAX: Final = 2 * FRAME_SIZE_MAX  # bytes; a whole message is among them

T = TypeVar("T")


class ComparedLog(Protocol):
    """The part of the store that is asked."""

    def digests(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Of the bytes of each range; b"" where they are not there. From any thread."""
        ...

    def borders(self, begin: int, end: int) -> list[int]:
        """Where messages begin or end. From any thread."""
        ...

    def bring(self, offset: int, size: int) -> None:
        """Return when these bytes are in memory. From any thread; OSError."""
        ...


class OwnSide(NamedTuple):
    """This end of all handshakes."""

    member: Callable[[], Member]
    span: Callable[[], Span]
    log: ComparedLog
    nonce: Callable[[], bytes]
    # Of a master: told of an epoch that is newer than its own.
    replaced: Callable[[int], None] = lambda epoch: None
    # Of a slave: the master's epochs are those of this log from now on; in a thread.
    follow_epochs: Callable[[Sequence[Epoch]], None] = lambda epochs: None
    # Of a slave: the log is the beginning of the one in that store of its master, "" when that is not known.
    copies: Callable[[str], None] = lambda store: None
    # Of a slave: called when the log has to be cut back to a physical offset before it can go on, or has to begin anew
    # (START_OVER): by another life of the broker, this one follows nobody any more. None: nobody does that here.
    on_cut: Callable[[int], None] | None = None


class Greeting(Generic[T]):
    """One end of one handshake. `run` once."""

    def __init__(self, flow: Flow[T], log: ComparedLog, transport: asyncio.Transport) -> None:
        self._flow = flow
        self._log = log
        self._transport = transport
        self._decoder = HelloDecoder()
        self._came = asyncio.Event()
        self._paused = False

    def received(self, data: bytes) -> None:
        """The other end has said something."""
        self._decoder.feed(data)
        self._came.set()
        if not self._paused and len(self._decoder.rest) > REST_SIZE_MAX:
            self._paused = True
            self._transport.pause_reading()

    def take_rest(self) -> bytes:
        """What came behind the handshake, which is over; from now on all is read again."""
        rest = bytes(self._decoder.rest)
        self._decoder.rest.clear()
        self._read_on()
        return rest

    def _read_on(self) -> None:
        if self._paused and len(self._decoder.rest) <= REST_SIZE_MAX:
            self._paused = False
            self._transport.resume_reading()

    async def run(self) -> T:
        """What comes out of it. LinkFault, FormatError."""
        answer: Answer = None
        try:
            async with asyncio.timeout(GREETING_S):
                while True:
                    try:
                        step = self._flow.send(answer)
                    except StopIteration as done:
                        result: T = done.value
                        return result
                    answer = await self._do(step)
        except TimeoutError:
            raise LinkFault("silent", f"the handshake was not over within {GREETING_S:.0f} s") from None

    async def _do(self, step: Any) -> Answer:
        match step:
            case Say(message):
                if not self._transport.is_closing():
                    self._transport.write(encode_message(message))
            case Hear():
                while (heard := self._decoder.next()) is None:
                    self._came.clear()
                    await self._came.wait()
                self._read_on()
                return heard
            case Digest(ranges):
                return await asyncio.to_thread(self._log.digests, ranges)
            case Borders(begin, end):
                return await asyncio.to_thread(self._log.borders, begin, end)
        return None
