"""The gate: one place that every request passes before anybody acts on it.

Touches  nothing.

A gate is asked once for each request, those of a batch one by one, with the row of its code and the request as it came.
It returns, or raises RequestError: the request is answered so, and reaches no handler. What only a handler can find out
(the topic of a message that was asked for by its place) is asked in addition, before it is told.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, final

import msgspec

from aerobee_proto.errors import RequestError
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.needs import Need, Needs, check_needs, needs_of
from aerobee_remoting.peers.peer import Peer

__all__ = ["Asked", "Gate", "Judge", "Judging", "OpenGate", "RefusedSlowly", "Row"]

Refused = tuple[AnyIncoming, Exception]

Asked = tuple[int, bytes | None, bytes, bytes]
"""A send or a pull by what is decided of it: request code, AccessKey (None: it has none), topic, group."""

Judge = Callable[[Asked, bytes | None, bytes, bytes], bool]
"""Whether a request is let in for sure: what it asks, its signature (None: it has none), what that has to cover of the
header, and the body. It raises nothing."""


class Judging(NamedTuple):
    """Of the requests of one read."""

    judge: Judge
    # A moment, and back to it: what was let in since was not served, and comes again, the usual way.
    mark: Callable[[], object]
    go_back: Callable[[object], None]


class RefusedSlowly(RequestError):
    """Refused, and the peer is to wait for the answer: it has been refused often. Meanwhile nothing else of this
    connection is handled."""

    def __init__(self, code: int, remark: str, delay_s: float) -> None:
        super().__init__(code, remark)
        self.delay_s = delay_s


class Row:
    """What is declared of one request code: its number, its typed header, and what its caller needs."""

    __slots__ = ("code", "header", "name", "needs")

    def __init__(self, code: int, name: str, header: type[msgspec.Struct], needs: Needs) -> None:
        check_needs(needs, header)
        self.code = code
        self.name = name  # of the handler, for people
        self.header = header
        self.needs = needs

    def needed(self, request: AnyIncoming) -> Iterator[Need]:
        """What this request needs. RequestError when its body cannot be read."""
        return needs_of(self.needs, request)


class Gate(Protocol):
    """Who lets requests in. Called in the event loop, for every request: it must not wait."""

    @abstractmethod
    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        """Return, or raise RequestError: the request is refused with its code and remark."""

    @abstractmethod
    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        """The same of what a handler found that the request did not name."""

    def greeting(self, caller: Peer) -> Mapping[str, str]:
        """What this caller has to know before it asks for anything: fields of the answer to GET_CODECS."""
        return {}

    def lets_all(self, caller: Peer) -> bool:
        """Whether whatever this caller asks is let in now, so that `admit` need not be asked: a request may be served
        that nobody has read as one (`handlers.Front`)."""
        return False

    def judging(self, caller: Peer, rows: Mapping[int, Row]) -> Judging | None:
        """Who says of this caller's sends and pulls, in this turn of the event loop, what `admit` would say of them by
        what it knows already; None: nobody can. Whoever is not told yes has `admit` asked, which refuses, delays and
        notes. `rows` are those of the codes that are served."""
        return None

    def turned_away(self, caller: Peer, row: Row, run: Sequence[AnyIncoming]) -> Sequence[Refused]:
        """Those of the requests of one read that `admit` does not let in, each with what it raised."""
        refused: list[Refused] = []
        for request in run:
            try:
                self.admit(caller, row, request)
            except Exception as failed:
                refused.append((request, failed))
        return refused


@final  # what overrides `admit` has to be asked for each message of a read
class OpenGate(Gate):
    """Everybody may do everything: there is no access control."""

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        pass

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        pass

    def lets_all(self, caller: Peer) -> bool:
        return True

    def turned_away(self, caller: Peer, row: Row, run: Sequence[AnyIncoming]) -> Sequence[Refused]:
        return ()  # without a call for each message
