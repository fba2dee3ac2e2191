"""Who looks on while messages are sent and handled: traces and telemetry. Nothing of it runs unless switched on."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aerobee.group_message import GroupMessage
    from aerobee.outgoing import Outgoing

__all__ = ["Watch", "Watches", "joined"]


class Watch(Protocol):
    """Told of each message of one producer or consumer."""

    def properties(self, topic: str, keys: str | None) -> dict[str, str]:
        """What to add to the properties of a message that is about to be sent."""
        ...

    def accepted(self, topic: str, item: "Outgoing", kind: int) -> None:
        """A message was taken for sending; its future ends when it is sent. `kind` is a `trace.MessageKind`."""
        ...

    def delivered(self, message: "GroupMessage[Any]") -> None:
        """A message is handed out."""
        ...

    def handling(self, message: "GroupMessage[Any]") -> AbstractContextManager[None]:
        """Around the handler's work on a message."""
        ...

    def settled(self, message: "GroupMessage[Any]") -> None:
        """A message that was handed out is settled, or rests before it is handed out again."""
        ...


class Watches:
    """Several watches as one."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def properties(self, topic: str, keys: str | None) -> dict[str, str]:
        found: dict[str, str] = {}
        for watch in self._watches:
            found |= watch.properties(topic, keys)
        return found

    def accepted(self, topic: str, item: "Outgoing", kind: int) -> None:
        for watch in self._watches:
            watch.accepted(topic, item, kind)

    def delivered(self, message: "GroupMessage[Any]") -> None:
        for watch in self._watches:
            watch.delivered(message)

    def handling(self, message: "GroupMessage[Any]") -> AbstractContextManager[None]:
        return self._handling(message)

    @contextmanager
    def _handling(self, message: "GroupMessage[Any]") -> Iterator[None]:
        with ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.handling(message))
            yield

    def settled(self, message: "GroupMessage[Any]") -> None:
        for watch in self._watches:
            watch.settled(message)


def joined(watches: Iterable[Watch | None]) -> Watch | None:
    """One watch for those that are switched on; None when none is."""
    found = [watch for watch in watches if watch is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else Watches(found)
