"""What readers see: everything up to the offset to which promises are kept, and nothing beyond it.

Touches  the store, which makes queue entries of what is kept, and those who wait for messages.

What is kept is shown at once, after its senders were answered. The keys of it are indexed a little later, a bounded
number in one go. Queue entries that find no room on the disk are tried again until there is some; the store takes no
messages meanwhile.

Invariants
- Nothing is shown beyond `Promises.kept_offset`: a reader never sees what a crash or a failover may take back.
- Whatever a reader is told of, it can read.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from aerobee_broker.messages.promises import Promises
from aerobee_store.faults.errors import OutOfResources, StoreFull
from aerobee_store.terms.messages import Arrival

__all__ = ["Readers", "ShownLog", "Visibility", "WaitingKeys"]

log = structlog.get_logger()

RESOURCES_RETRY_S: Final = 1.0  # until work that found no descriptor or memory is done again
DISPATCH_RETRY_S: Final = 1.0  # while the disk is full
INDEX_RETRY_S: Final = 1.0  # while the disk is full
INDEX_PAUSE_S: Final = 0.01  # between two rounds of index work
INDEX_ROUND: Final = 2048  # messages indexed in one go: about 3 ms of the loop


class WaitingKeys(Protocol):
    """Keys that are to be indexed; `KeyLookup` says what its methods do."""

    @property
    def backlog(self) -> int: ...

    def build(self, limit: int) -> int: ...


class ShownLog(Protocol):
    """The part of the store that this module needs; `MessageStore` says what its methods do."""

    @property
    def not_writeable_reason(self) -> str | None: ...

    @property
    def keys(self) -> WaitingKeys: ...

    def confirm(self, offset: int, *, notify: bool = True) -> list[Arrival]: ...


class Readers(Protocol):
    """Requests of one kind that wait for messages."""

    @property
    def are_waiting(self) -> bool:
        """Whether any of them waits."""
        ...

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """These messages can be read now."""


class Visibility:
    """Shows what is kept. All calls from the event loop."""

    def __init__(
        self, store: ShownLog, promises: Promises, *, on_failure: Callable[[str, Exception], None]
    ) -> None:
        """`on_failure` is told which work of a timer broke, and why, where the exception is handled."""
        self._store = store
        self._promises = promises
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._readers: tuple[Readers, ...] = ()
        self._shown_offset = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def start(self, readers: Sequence[Readers]) -> None:
        """Tell these from now on what arrives."""
        self._readers = tuple(readers)

    def close(self) -> None:
        """Begin no more work by the clock; what is kept is still shown."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def appended(self) -> None:
        """Messages are in the log: show those whose promise is kept by that."""
        kept_offset = self._promises.kept_offset
        if kept_offset > self._shown_offset:
            self._show(kept_offset)

    def advanced(self) -> None:
        """A source of the promises has moved: answer those whose promise is kept now, then show their messages."""
        self._promises.advanced()
        self.appended()

    def _show(self, offset: int) -> None:
        store = self._store
        self._shown_offset = offset
        waiting = False
        for readers in self._readers:  # `any` would make a generator for each read of sends
            if readers.are_waiting:
                waiting = True
        arrivals = store.confirm(offset, notify=waiting)
        if waiting:
            for readers in self._readers:
                if readers.are_waiting:
                    readers.arrived(arrivals)
        if store.not_writeable_reason is not None and "dispatch" not in self._timers:
            self._later("dispatch", DISPATCH_RETRY_S, self._show_again)
        if "index" not in self._timers and store.keys.backlog:
            self._later("index", INDEX_PAUSE_S, self._build_index)

    def _show_again(self) -> None:
        """Queue entries that found no room are tried again: while they wait no send, so no sync, does it."""
        del self._timers["dispatch"]
        self._show(self._promises.kept_offset)

    def _build_index(self) -> None:
        del self._timers["index"]
        store = self._store
        try:
            store.keys.build(INDEX_ROUND)
        except StoreFull as full:
            log.warning("store.index_behind", reason=str(full), backlog=store.keys.backlog)
            self._later("index", INDEX_RETRY_S, self._build_index)
            return
        if store.keys.backlog:
            self._later("index", INDEX_PAUSE_S, self._build_index)

    # --- by the clock -----------------------------------------------------------------------------------------

    def _later(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        if not self._closed:
            self._timers[name] = self._loop.call_later(delay_s, self._call, name, call)

    def _call(self, name: str, call: Callable[[], None]) -> None:
        """Work of a timer, watched like a task: asyncio would log what breaks it, and nobody would do it again.

        Where descriptors or memory are missing it is done a little later.
        """
        try:
            call()
        except OutOfResources as scarce:
            log.warning("broker.task_delayed", task=name, reason=str(scarce))
            self._later(name, RESOURCES_RETRY_S, call)
        except Exception as failed:
            self._on_failure(name, failed)
