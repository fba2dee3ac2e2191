"""Requests to nameservers and brokers, with this room's errors.

Touches  the remoting client. Everything above speaks through `Peers` and sees ClientError only.
"""

import asyncio
from typing import Final

from aerobee.errors import (
    UNKNOWN_TOPIC,
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    NameserverAnswer,
    NoNameserver,
    RequestTimeout,
)
from aerobee_proto.codes import NAMESERVER_DEFAULT_PORT, ResponseCode
from aerobee_proto.frames import Command
from aerobee_remoting.ends.client import Header, RemotingClient
from aerobee_remoting.peers.errors import ClosedHere, ConnectFailed, ConnectionLost, RemotingError
from aerobee_remoting.peers.errors import RequestTimeout as RemotingTimeout

__all__ = ["Header", "Nameservers", "Peers"]

SUCCESS: Final = int(ResponseCode.SUCCESS)
NO_NAMESERVER: Final = (
    f"answers, but is no nameserver; a broker? Its nameserver is usually at port {NAMESERVER_DEFAULT_PORT}"
)


class Peers:
    """Sends requests to any address.

    `what` says in words what the caller wants ("create topic 'a'"); it opens every error text.
    """

    def __init__(self, remoting: RemotingClient, timeout_s: float) -> None:
        self._remoting = remoting
        self.timeout_s = timeout_s

    async def request(
        self,
        what: str,
        addr: str,
        code: int,
        header: Header = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        """The answer, whatever its code. RequestTimeout or BrokerUnreachable when there is none."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            return await self._remoting.request(addr, code, header, body, limit)
        except RemotingTimeout as late:
            raise RequestTimeout(what, addr, limit) from late
        except RemotingError as failed:
            raise _as_client_error(failed, what, addr) from failed

    async def call(
        self,
        what: str,
        addr: str,
        code: int,
        header: Header = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        """The answer of a request that must succeed; BrokerRefused for any other code."""
        answer = await self.request(what, addr, code, header, body, timeout_s)
        if answer.code != SUCCESS:
            raise BrokerRefused(what, addr, answer.code, answer.remark)
        return answer

    async def oneway(
        self,
        what: str,
        addr: str,
        code: int,
        header: Header = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> None:
        """Send and expect no answer. BrokerUnreachable when it cannot even be sent, or not in time."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._remoting.oneway(addr, code, header, body)
        except TimeoutError:
            raise BrokerUnreachable(what, addr, f"no connection within {limit:.3g} s") from None
        except RemotingError as failed:
            raise _as_client_error(failed, what, addr) from failed

    def oneway_if_connected(self, addr: str, code: int, header: dict[str, str]) -> None:
        """Send and expect no answer, if there is a connection; it is not made for this."""
        self._remoting.oneway_if_connected(addr, code, header)


class Nameservers:
    """The nameservers of a client: one is used until it fails, then the next."""

    def __init__(self, peers: Peers, addrs: tuple[str, ...], start: int = 0) -> None:
        self._peers = peers
        self.addrs = addrs
        self._current = start % len(addrs)
        self.answered = False  # whether one ever has

    async def ask(self, what: str, code: int, header: Header = None, body: bytes = b"") -> Command:
        """The first answer that a nameserver gives, whatever its code. NoNameserver when none answers."""
        answers: list[NameserverAnswer] = []
        for addr in self._in_turn():
            try:
                answer = await self._peers.request(what, addr, code, header, body)
            except (RequestTimeout, BrokerUnreachable) as failed:
                answers.append(NameserverAnswer(addr, outcome_of(failed)))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                answers.append(NameserverAnswer(addr, NO_NAMESERVER))
                continue
            self.answered = True
            self._current = self.addrs.index(addr)
            return answer
        raise NoNameserver(what, answers)

    async def call(self, what: str, code: int, header: Header = None, body: bytes = b"") -> Command:
        """`ask`, where any code but success is BrokerRefused."""
        answer = await self.ask(what, code, header, body)
        if answer.code != SUCCESS:
            raise BrokerRefused(what, self.addrs[self._current], answer.code, answer.remark)
        return answer

    async def ask_until(
        self, what: str, code: int, header: Header
    ) -> tuple[Command | None, list[NameserverAnswer]]:
        """Ask one after the other until one answers with success; that answer, and what the others said.

        A nameserver that has just started may not know yet what its neighbour knows.
        """
        answers: list[NameserverAnswer] = []
        for addr in self._in_turn():
            try:
                answer = await self._peers.request(what, addr, code, header)
            except (RequestTimeout, BrokerUnreachable) as failed:
                answers.append(NameserverAnswer(addr, outcome_of(failed)))
                continue
            self.answered = self.answered or answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if answer.code == SUCCESS:
                self._current = self.addrs.index(addr)
                return answer, answers
            answers.append(NameserverAnswer(addr, _refusal(answer)))
        return None, answers

    def turn(self) -> None:
        """Let another one be asked first from now on."""
        self._current = (self._current + 1) % len(self.addrs)

    def _in_turn(self) -> list[str]:
        return [*self.addrs[self._current :], *self.addrs[: self._current]]


def outcome_of(failed: ClientError) -> str:
    """A failed request in a few words; they do not name the address, which is told beside them."""
    if isinstance(failed, RequestTimeout):
        return f"no answer within {failed.timeout_s:.3g} s"
    return failed.reason if isinstance(failed, BrokerUnreachable) else str(failed)


def _as_client_error(failed: RemotingError, what: str, addr: str) -> ClientError:
    """A request that could not be made, as an error of this room."""
    if isinstance(failed, ClosedHere):
        return ClientClosed("client")
    return BrokerUnreachable(what, addr, _reason(failed))


def _reason(failed: RemotingError) -> str:
    """Why a request could not be made, without the address."""
    if isinstance(failed, ConnectFailed):
        return f"cannot connect: {failed.reason}"
    if isinstance(failed, ConnectionLost):
        return f"the connection was lost: {failed.reason}"
    return str(failed)


def _refusal(answer: Command) -> str:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return UNKNOWN_TOPIC
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return NO_NAMESERVER
    return f"code {answer.code}: {answer.remark or 'no remark'}"
