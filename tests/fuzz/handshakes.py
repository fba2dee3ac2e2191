"""What replicas say in the handshake of a link, and what a master makes of it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.hello import Digest, Hear, Member, Say, Span, Visitor, greet_slave
from aerobee_proto.errors import FormatError
from aerobee_proto.ha_hello import (
    Challenge,
    Compare,
    Facts,
    Hello,
    HelloDecoder,
    Join,
    Message,
    Proof,
    Refusal,
    encode_message,
)
from aerobee_store.replicas.epochs import Epoch
from fuzz.target import Target

__all__ = ["TARGETS"]

NONCE: Final = b"n" * 32
DIGEST: Final = b"d" * 16
END: Final = 1_000
MASTER: Final = Member("c", "b", 0, "", 2, 65_536, None)
LOG: Final = Span(0, END, [Epoch(1, 0), Epoch(2, 500)])
HELLO: Final = Hello(1, "c", "b", 1, "s", 1, 65_536, NONCE)


def ha_hello(data: bytes) -> None:
    """Messages in a stream that is cut in two anywhere; and the whole handshake, as far as it gets."""
    if not data:
        return
    stream = data[1:]
    expected = _messages([stream])
    at = data[0] % (len(stream) + 1)
    assert _messages([stream[:at], stream[at:]]) == expected
    for message in expected:
        if message is not None:
            assert _messages([encode_message(message)]) == [message]
    _greet([message for message in expected if message is not None])


def _messages(pieces: list[bytes]) -> list[Message | None]:
    """Those that are whole; None at the end: what follows is none."""
    decoder, found = HelloDecoder(), list[Message | None]()
    for piece in pieces:
        decoder.feed(piece)
        try:
            while (message := decoder.next()) is not None:
                found.append(message)
        except FormatError:
            return [*found, None]
    return found


def _greet(said: list[Message]) -> None:
    """A master that hears these, and has DIGEST wherever its log is asked for."""
    flow, heard = greet_slave(MASTER, lambda: LOG, NONCE), iter(said)
    answer: Any = None
    with suppress(LinkFault, FormatError):
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as done:
                visitor: Visitor = done.value
                assert 0 <= visitor.offset <= END
                return
            answer = None
            if isinstance(step, Say):
                encode_message(step.message)
            elif isinstance(step, Digest):
                answer = [DIGEST if 0 <= begin < end <= END else b"" for begin, end in step.ranges]
            else:
                assert isinstance(step, Hear)
                answer = next(heard, None)
                if answer is None:
                    return


def _seeds() -> Iterator[bytes]:
    def stream(*messages: Message) -> bytes:
        return b"\x09" + b"".join(map(encode_message, messages))

    yield stream(HELLO, Proof(), Compare([(0, END), (500, 600)]), Join(0, END, DIGEST))
    yield stream(HELLO, Proof(), Join(END, END, b""))
    yield stream(HELLO, Proof(b"p" * 32), Join(600, 500, DIGEST))
    yield stream(HELLO, Refusal("fenced", "there was a newer one", "", 7))
    yield stream(Challenge(1, 0, 2, 65_536, NONCE), Facts(0, END, [(1, 0), (2, 500)]))
    yield stream(HELLO) + b"\x00" * 12


TARGETS: Final[dict[str, Target]] = {"ha_hello": Target(ha_hello, _seeds, 60_000)}
