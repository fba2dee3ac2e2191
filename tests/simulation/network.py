"""A network between simulated hosts: connections whose bytes take their time, arrive in pieces, or not at all.

What one side writes arrives in order, after a delay that is drawn; a part of it may come later. A connection ends in
order, is cut (each side gets what had arrived until then), or dies in silence with its host. Between two hosts a
direction may be closed: bytes wait there, as TCP would send them again, and who dials gets no answer.
"""

import asyncio
import errno
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from simulation.loop import NodeLoop
from simulation.world import Process, World

__all__ = ["Listener", "Network"]

WRITE_HIGH = 65_536
RETRY_S = 0.2  # between two tries of TCP to bring bytes through


class Listener:
    """A taken address, as a bound socket is."""

    def __init__(self, network: "Network", process: Process, host: str, port: int) -> None:
        self._network = network
        self.process = process
        self.address = (host, port)
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]


class _Server(asyncio.AbstractServer):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        return


class _End(asyncio.Transport):
    """One end of a connection."""

    other: "_End"

    def __init__(
        self, network: "Network", loop: NodeLoop, here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.network = network
        self.loop = loop
        self.process = loop.process
        self.protocol: asyncio.Protocol | asyncio.BufferedProtocol = None  # type: ignore[assignment]
        self._incoming = bytearray()
        self._hung_up = False  # the other end has no more to say
        self._reset = False
        self._paused = False
        self._reading_scheduled = False
        self.is_gone = False  # this end
        self._closing = False
        # Of what this end writes: bytes on their way, when the last of them arrive.
        self._unsent = 0
        self._arrival = 0.0
        self._high, self._low = WRITE_HIGH, WRITE_HIGH // 4
        self._writing_paused = False

    # --- out ----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._send(bytes(data))

    def _send(self, data: bytes) -> None:
        for piece in self.network.pieces(data):
            self._unsent += len(piece)
            self._arrival = self.network.arrival(self, self._arrival)
            self.network.world.at(self._arrival, None, self._carry, piece)
        if self._unsent > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def _carry(self, piece: bytes | None) -> None:
        """A piece has come to the other host, or the end of all (None), unless the way is closed."""
        other = self.other
        if self.network.is_closed(self.process.host, other.process.host):
            if self.process.host not in self.network.dark:
                self._arrival = max(self._arrival, self.network.world.now + RETRY_S)
                self.network.world.at(self.network.world.now + RETRY_S, None, self._carry, piece)
            return
        if other.is_gone or other._reset:
            if not self.is_gone:
                self.network.answer_for_the_dead(self)
            return
        if piece is None:
            other._hung_up = True
        else:
            other._incoming += piece
            self._unsent -= len(piece)
            if self._writing_paused and self._unsent <= self._low and self.process.is_alive:
                self._writing_paused = False
                self.loop.call_soon(self._resume)
        other._schedule()

    def _resume(self) -> None:
        if not self.is_gone and not self._writing_paused:
            self.protocol.resume_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WRITE_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._finish()

    def _finish(self) -> None:
        self._arrival = self.network.arrival(self, self._arrival)
        self.network.world.at(self._arrival, None, self._carry, None)

    # --- in -----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._reading_scheduled and not self._paused and self.process.is_alive:
            self._reading_scheduled = True
            self.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._reading_scheduled = False
        if self.is_gone or self.protocol is None:
            return
        if self._reset:
            self._gone(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        if self._paused or self._closing:
            return
        if self._incoming:
            data = bytes(self._incoming)
            self._incoming.clear()
            _hand(self.protocol, data)
        if self._hung_up and not self._incoming and not self._closing and not self.protocol.eof_received():
            self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._incoming or self._hung_up:
            self._schedule()

    def is_reading(self) -> bool:
        return not self._paused

    # --- the end ------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._finish()
            self.loop.call_soon(self._gone, None)

    def abort(self) -> None:
        if not self.is_gone:
            self._closing = True
            self.loop.call_soon(self._gone, None)
            self.network.world.at(self.network.arrival(self, 0.0), None, self.other.reset)

    def abort_unused(self) -> None:
        """Who dialled does not want it any more."""
        self.is_gone = self._closing = True
        self.network.ends.pop(self, None)
        self.network.world.at(self.network.arrival(self, 0.0), None, self.other.reset)

    def reset(self) -> None:
        """The other side says that there is no such connection (any more)."""
        if not self.is_gone and not self._reset:
            self._reset = True
            self._closing = True
            if self.process.is_alive:
                self.loop.call_soon(self._deliver)

    def _gone(self, failure: Exception | None) -> None:
        if self.is_gone:
            return
        self.is_gone = self._closing = True
        self.network.ends.pop(self, None)
        self.protocol.connection_lost(failure)


class Network:
    """All hosts and the ways between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._chance: Random = world.chance("network")
        # Bytes take at least the first, and on average the second on top, in seconds.
        self.delay_s = (0.00005, 0.0003)
        # How likely a piece takes longer than that, by up to so many seconds; how likely what is written is cut in two.
        self.late, self.late_s = 0.0, 0.0
        self.calm()
        self.split = 0.05
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.ends: dict[_End, None] = {}  # in the order in which they were made
        self.dark: set[str] = set()  # hosts without power
        self._closed: set[tuple[str, str]] = set()
        self._ports = count(40_000)
        self._loops: dict[Process, NodeLoop] = {}

    # --- processes --------------------------------------------------------------------------------------------

    def join(self, loop: NodeLoop) -> None:
        """A process begins."""
        self._loops[loop.process] = loop
        loop.process.at_end.append(lambda: self._end_of(loop.process))

    def _end_of(self, process: Process) -> None:
        """Killed: the system of its host closes what it had open, unless the power failed."""
        del self._loops[process]
        for listener in [one for one in self.listeners.values() if one.process is process]:
            listener.close()
        for end in [one for one in self.ends if one.process is process]:
            end.is_gone = True
            del self.ends[end]
            if process.host not in self.dark:
                self.world.at(self.arrival(end, 0.0), None, end.other.reset)

    # --- faults -----------------------------------------------------------------------------------------------

    def close_way(self, source: str, target: str) -> None:
        """Nothing comes from one host to the other, until `open_ways`."""
        self._closed.add((source, target))

    def open_ways(self) -> None:
        self._closed.clear()

    def is_closed(self, source: str, target: str) -> bool:
        return source in self.dark or target in self.dark or (source, target) in self._closed

    def calm(self) -> None:
        """As late as on most days."""
        self.late, self.late_s = 0.01, 0.05

    def cut(self, chance: Random) -> bool:
        """Cut one connection, wherever its bytes are; False when there is none."""
        if not self.ends:
            return False
        end = chance.choice(list(self.ends))
        end.reset()
        end.other.reset()
        return True

    def cut_between(self, one: str, other: str) -> None:
        """Cut all connections between two hosts."""
        for end in list(self.ends):
            if end.process.host == one and end.other.process.host == other:
                end.reset()
                end.other.reset()

    # --- delays -----------------------------------------------------------------------------------------------

    def delay(self) -> float:
        chance, (least, mean) = self._chance, self.delay_s
        found = least + chance.expovariate(1 / mean)
        if chance.random() < self.late:
            found += chance.random() * self.late_s
        return found

    def arrival(self, end: _End, after: float) -> float:
        """When what is written now arrives; in order behind what arrives at `after`."""
        return max(self.world.now + self.delay(), after)

    def pieces(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._chance.random() >= self.split:
            return [data]
        at = self._chance.randrange(1, len(data))
        return [data[:at], data[at:]]

    def answer_for_the_dead(self, end: _End) -> None:
        self.world.at(self.world.now + self.delay(), None, end.reset)

    # --- connections ------------------------------------------------------------------------------------------

    def listen(self, process: Process, host: str, port: int) -> Listener:
        """Take an address."""
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        made = self.listeners[host, port] = Listener(self, process, host, port)
        return made

    def serve(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], sock: Listener
    ) -> asyncio.AbstractServer:
        sock.factory = factory
        return _Server(sock)  # type: ignore[abstract]  # what servers are asked here

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """As loop.create_connection; it waits for ever where nothing answers."""
        loop = self._loops[process]
        waiter: asyncio.Future[_End] = loop.create_future()
        here = (process.host, next(self._ports))
        self.world.at(self.world.now + self.delay(), None, self._dialled, loop, waiter, here, (host, port))
        try:
            near = await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().abort_unused()
            raise
        near.protocol = factory()  # type: ignore[assignment]
        near.protocol.connection_made(near)
        near._schedule()
        return near, near.protocol

    def _dialled(
        self, loop: NodeLoop, waiter: "asyncio.Future[_End]", here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        process, host = loop.process, there[0]
        if not process.is_alive or waiter.done():
            return
        if self.is_closed(process.host, host) or self.is_closed(host, process.host):
            self.world.at(self.world.now + RETRY_S, None, self._dialled, loop, waiter, here, there)
            return
        listener = self.listeners.get(there)
        if listener is None or listener.factory is None or not listener.process.is_alive:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            process.after(self.delay(), _settle, waiter, None, refused)
            return
        far_loop = self._loops[listener.process]
        near, far = _End(self, loop, here, there), _End(self, far_loop, there, here)
        near.other, far.other = far, near
        self.ends[near] = self.ends[far] = None
        far_loop.call_soon(_open, far, listener.factory)
        process.after(self.delay(), _settle, waiter, near, None)


def _hand(protocol: asyncio.Protocol | asyncio.BufferedProtocol, data: bytes) -> None:
    """Let a protocol have what has come for it."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    rest = memoryview(data)
    while rest:
        room = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(rest), len(room))
        room[:count] = rest[:count]
        protocol.buffer_updated(count)
        rest = rest[count:]


def _open(far: _End, factory: Callable[[], asyncio.BaseProtocol]) -> None:
    if far.is_gone:
        return
    far.protocol = factory()  # type: ignore[assignment]
    far.protocol.connection_made(far)


def _settle(waiter: "asyncio.Future[_End]", near: _End | None, failure: Exception | None) -> None:
    if waiter.done():
        if near is not None:
            near.abort_unused()
    elif failure is not None:
        waiter.set_exception(failure)
    else:
        assert near is not None
        waiter.set_result(near)
