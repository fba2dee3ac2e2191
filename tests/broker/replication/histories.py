"""Logs in memory that were one once, and the two ends of a handshake over them, without sockets and without waiting."""

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Any

from msgspec.structs import replace

from aerobee_broker.replication.common_part import Borders
from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.hello import (
    Digest,
    Hear,
    Member,
    Outcome,
    Say,
    Span,
    Visitor,
    greet_master,
    greet_slave,
)
from aerobee_proto.ha_hello import Challenge, Hello, HelloDecoder, Message, encode_message
from aerobee_store.replicas.epochs import Epoch

__all__ = ["HistoryLog", "Talk", "member", "shaken"]


class HistoryLog:
    """Bytes with borders: what messages are, as far as a handshake looks."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self.data = bytearray()
        self.borders = [begin]
        self.epochs: list[Epoch] = []
        self.damaged: list[tuple[int, int]] = []
        self.is_counted_on = self.is_elected = False
        self.store = ""  # that it was written in, all of it

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def grow(self, random: Random, count: int, size: int = 200) -> None:
        for _ in range(count):
            self.data += random.randbytes(random.randrange(20, size))
            self.borders.append(self.end)

    def turn(self, epoch: int) -> None:
        """A mastership begins here; one that wrote nothing leaves no trace."""
        self.epochs = [one for one in self.epochs if one.start_offset != self.end] + [Epoch(epoch, self.end)]

    def copy(self, count: int | None = None) -> "HistoryLog":
        """A copy that has the first `count` messages."""
        twin = HistoryLog(self.begin)
        twin.borders = self.borders[: None if count is None else count + 1]
        twin.data = self.data[: twin.borders[-1] - self.begin]
        twin.epochs = list(self.epochs)
        return twin

    def cut(self, offset: int) -> None:
        assert offset in self.borders
        del self.data[offset - self.begin :]
        self.borders = [at for at in self.borders if at <= offset]
        self.epochs = [one for one in self.epochs if one.start_offset < offset]
        self.damaged = [one for one in self.damaged if one[1] <= offset]

    def clean(self, offset: int) -> None:
        """Nothing below `offset` is kept any more."""
        del self.data[: offset - self.begin]
        self.borders = [at for at in self.borders if at >= offset]
        self.begin = offset

    def common_end(self, other: "HistoryLog") -> int:
        """The last border up to which both have the same, in the part that both have."""
        begin = max(self.begin, other.begin)
        at = begin
        for border in self.borders:
            if begin <= border <= other.end and self.part(begin, border) == other.part(begin, border):
                at = border
        return at

    def part(self, begin: int, end: int) -> bytes:
        return bytes(self.data[begin - self.begin : end - self.begin])

    def digests(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [
            blake2b(self.part(begin, end), digest_size=16).digest()
            if self.begin <= begin <= end <= self.end
            else b""
            for begin, end in ranges
        ]

    def borders_in(self, begin: int, end: int) -> list[int]:
        inside = [at for at in self.borders if begin <= at <= end]
        if inside[:1] != [begin]:
            inside.insert(0, max(at for at in self.borders if at <= begin))
        return inside

    def span(self) -> Span:
        is_empty = not self.data and not self.begin
        return Span(
            self.begin,
            self.end,
            tuple(self.epochs),
            is_empty,
            tuple(self.damaged),
            self.is_counted_on,
            self.store,
            self.is_elected,
        )

    def damage(self, number: int) -> None:
        """The message with this number is none any more, and that is known."""
        begin, end = self.borders[number : number + 2]
        self.data[begin - self.begin : end - self.begin] = bytes(end - begin)
        self.damaged.append((begin, end))


def member(number: int = 0, **changes: Any) -> Member:
    return Member("Cluster", "orders", number, f"store-{number}", 0, 1 << 20, None)._replace(**changes)


class _End:
    """One end: a flow, and the log that it asks about."""

    def __init__(self, flow: Any, log: HistoryLog) -> None:
        self.flow, self.log = flow, log
        self.heard = HelloDecoder()
        self.result: Any = None
        self.is_done = self.hears = False
        self._answer: Any = None

    def run(self) -> bytes:
        """Until it waits for the other end, or is done; what it says meanwhile."""
        said = b""
        while not self.is_done:
            if self.hears:
                self._answer = self.heard.next()
                if self._answer is None:
                    break
                self.hears = False
            try:
                step = self.flow.send(self._answer)
            except StopIteration as done:
                self.is_done, self.result = True, done.value
            except LinkFault as fault:
                self.is_done, self.result = True, fault
            else:
                said += self._do(step)
        return said

    def _do(self, step: Any) -> bytes:
        self._answer = None
        match step:
            case Say(message):
                return encode_message(message)
            case Hear():
                self.hears = True
            case Digest(ranges):
                self._answer = self.log.digests(ranges)
            case Borders(begin, end):
                self._answer = self.log.borders_in(begin, end)
        return b""


class Talk:
    """A handshake; `said` is all that was said, in order, with who did."""

    def __init__(
        self,
        slave: HistoryLog,
        master: HistoryLog,
        *,
        of_slave: Member | None = None,
        of_master: Member | None = None,
        cuts: Random | None = None,
        of_version_1: str | None = None,
    ) -> None:
        """`of_version_1` is the end, slave or master, that knows no newer version of the handshake."""
        self.cuts = cuts
        self._old = of_version_1
        self.slave = _End(greet_master(of_slave or member(1), slave.span(), b"s" * 32), slave)
        self.master = _End(greet_slave(of_master or member(0), master.span, b"m" * 32), master)
        self.said: list[tuple[str, Message]] = []
        self.bytes_said = {"slave": b"", "master": b""}

    def run(self) -> "Outcome | LinkFault":
        """What comes out of it for the slave; for the master see `visitor`."""
        while True:
            said = False
            for name, one, other in (("slave", self.slave, self.master), ("master", self.master, self.slave)):
                data = self._as_old(one.run()) if name == self._old else one.run()
                self.bytes_said[name] += data
                self._note(name, data)
                for piece in self._pieces(data):
                    other.heard.feed(piece)
                    said = True
            if not said:
                break
        found: Outcome | LinkFault = self.slave.result
        return found

    @staticmethod
    def _as_old(data: bytes) -> bytes:
        """What an end says that knows version 1 alone."""
        decoder = HelloDecoder()
        decoder.feed(data)
        said = b""
        while (message := decoder.next()) is not None:
            if isinstance(message, Hello | Challenge):
                message = replace(message, version=1)
            said += encode_message(message)
        return said

    def _note(self, name: str, data: bytes) -> None:
        decoder = HelloDecoder()
        decoder.feed(data)
        while (message := decoder.next()) is not None:
            self.said.append((name, message))

    def _pieces(self, data: bytes) -> list[bytes]:
        if self.cuts is None:
            return [data] if data else []
        pieces = []
        while data:
            size = self.cuts.randrange(1, 100)
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    @property
    def visitor(self) -> "Visitor | LinkFault | None":
        found: Visitor | LinkFault | None = self.master.result
        return found


def shaken(slave: HistoryLog, master: HistoryLog, **how: Any) -> "Outcome | LinkFault":
    """What a handshake says to the slave."""
    return Talk(slave, master, **how).run()
