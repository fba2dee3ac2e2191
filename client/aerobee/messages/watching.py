"""Who looks on while messages are sent and handled: traces and telemetry. Nothing of it runs unless switched on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aerobee.messages.group_message import AnyMessage
    from aerobee.messages.message import SendResult
    from aerobee.messages.outgoing import Outgoing

__all__ = ["MessageKind", "Watch", "Watches", "joined"]


class MessageKind(Enum):
    """What kind of message is sent; the values are those of RocketMQ's trace records."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class Watch(Protocol):
    """Told of each message of one producer or consumer."""

    def sending(self, topic: str, properties: Mapping[str, str]) -> tuple[object, str]:
        """A message is about to be made: a token for `accepted`, and properties to add, in property form."""
        ...

    def accepted(
        self,
        token: object,
        topic: str,
        item: "Outgoing",
        tags: str | None,
        keys: str | None,
        kind: MessageKind,
    ) -> None:
        """The message was made; its future ends when it is sent."""
        ...

    def transaction_ended(
        self, topic: str, result: "SendResult", tags: str | None, keys: str | None, committed: bool
    ) -> None:
        """The broker was told how a transaction ended."""
        ...

    def delivered(self, message: "AnyMessage") -> None:
        """A message is handed out."""
        ...

    def handling(self, message: "AnyMessage") -> AbstractContextManager[None]:
        """Around the handler's work on a message."""
        ...

    def settled(self, message: "AnyMessage") -> None:
        """A message that was handed out is settled, or rests before it is handed out again."""
        ...


class Watches:
    """Several watches as one."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def sending(self, topic: str, properties: Mapping[str, str]) -> tuple[object, str]:
        found = [watch.sending(topic, properties) for watch in self._watches]
        return [token for token, _ in found], "".join([added for _, added in found])

    def accepted(
        self,
        token: object,
        topic: str,
        item: "Outgoing",
        tags: str | None,
        keys: str | None,
        kind: MessageKind,
    ) -> None:
        assert isinstance(token, list)
        for watch, own in zip(self._watches, token, strict=True):
            watch.accepted(own, topic, item, tags, keys, kind)

    def transaction_ended(
        self, topic: str, result: "SendResult", tags: str | None, keys: str | None, committed: bool
    ) -> None:
        for watch in self._watches:
            watch.transaction_ended(topic, result, tags, keys, committed)

    def delivered(self, message: "AnyMessage") -> None:
        for watch in self._watches:
            watch.delivered(message)

    def handling(self, message: "AnyMessage") -> AbstractContextManager[None]:
        return self._handling(message)

    @contextmanager
    def _handling(self, message: "AnyMessage") -> Iterator[None]:
        with ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.handling(message))
            yield

    def settled(self, message: "AnyMessage") -> None:
        for watch in self._watches:
            watch.settled(message)


def joined(watches: Sequence[Watch]) -> Watch | None:
    """One watch for several; None for none."""
    if not watches:
        return None
    return watches[0] if len(watches) == 1 else Watches(watches)
