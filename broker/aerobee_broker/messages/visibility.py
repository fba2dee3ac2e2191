"""What readers see: everything up to the offset to which promises are kept, and nothing beyond it. Replicas, which may
have more or less, are told of every step.

Touches  the store, which makes queue entries of what is kept, and those who wait for messages.

What is kept is shown at once, after its senders were answered. Two kinds are shown together with what comes soon after
them, as each has a few entries for each queue, which are written queue by queue: what comes to a slave, where it is
shown within UNASKED_S; and at a master reads of usual sends, within TOGETHER_S while nobody waits for messages. Whoever
is about to look at a master calls `show_waiting` first, so nobody finds less than there is.

Of queues that begin, a few are shown in a turn of the event loop, as files are made for them, and what comes behind
these in the log in the next turns; by its place in the log a message is found at once, as its sender is told that and
may end a transaction by it. The keys of it are indexed a little later, many at a time, as a round of that costs 0.2 ms
whatever it finds; who asks for a key has those that wait indexed first (see `KeyLookup`). Where the index is not in
memory, as after a start, or has no file for them, a thread sees to that first. Queue entries that find no room on the
disk are tried again until there is some; the store takes no messages meanwhile.

Invariants
- Nothing is shown beyond `Promises.kept_offset`: a reader never sees what a crash or a failover may take back.
- A slave shows nothing that its master has not confirmed, which `limit` says.
- Whatever a reader is told of, it can read.
"""

import asyncio
import time
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Executor
from typing import Final, Protocol

import structlog

from aerobee_broker.messages.promises import Promises
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import OutOfResources, StoreFull
from aerobee_store.terms.messages import Arrival
from aerobee_store.writing.dispatcher import Showing

__all__ = ["Readers", "ShownLog", "Visibility", "WaitingKeys"]

log = structlog.get_logger()

# That messages of a master wait at most until a slave shows them, with those that came meanwhile: where a reader waits,
# and where none does.
SOON_S: Final = 0.002
UNASKED_S: Final = 0.01
TOGETHER_S: Final = 0.002  # that a master shows reads of sends together
RESOURCES_RETRY_S: Final = 1.0  # until work that found no descriptor or memory is done again
DISPATCH_RETRY_S: Final = 1.0  # while the disk is full
INDEX_RETRY_S: Final = 1.0  # while the disk is full
INDEX_PAUSE_S: Final = 0.01  # between two rounds at least
INDEX_AGAIN_S: Final = 0.004  # ... where the one before has left something
INDEX_WAIT_S: Final = 0.1  # that a message waits at most
INDEX_WORTH: Final = 256  # messages that are worth a round: it takes 0.3 ms of the loop
INDEX_ROUND: Final = 1024  # messages indexed in one go at most: about 0.3 ms of the loop
INDEX_PARTS: Final = 8  # of such a round at most, where it takes too long
# What a round should take at most. Pages of the index that are written to for the first time, while the file system
# writes its journal, made 5 to 12 ms of one.
INDEX_ROUND_S: Final = 0.001
# Queues that begin in a turn: so many as take BEGIN_S, by what the last ones took, within these bounds. What begins
# together as a rule (a message that comes again, the note about it) is to be shown together.
BEGUN_AT_LEAST: Final = 2
BEGUN_AT_MOST: Final = 4
BEGIN_S: Final = 0.001
INDEX_BEHIND: Final = 16  # rounds in which what waits is to be indexed all the same


class WaitingKeys(Protocol):
    """Keys that are to be indexed; `KeyLookup` says what its methods do."""

    @property
    def backlog(self) -> int: ...

    @property
    def lacks_file(self) -> bool: ...

    def make_file(self) -> None: ...

    def missing(self) -> NotInMemory | None: ...

    def build(self, limit: int) -> int: ...


class ShownLog(Protocol):
    """The part of the store that this module needs; `MessageStore` says what its methods do."""

    @property
    def full_until(self) -> int: ...

    @property
    def showing(self) -> Showing: ...

    @property
    def keys(self) -> WaitingKeys: ...

    def confirm(self, offset: int, *, notify: bool = True, begun_max: int = 0) -> list[Arrival]: ...


class Readers(Protocol):
    """Requests of one kind that wait for messages."""

    @property
    def waiting(self) -> Sized:
        """A table that is empty when none of them waits; always the same one, asked for once."""
        ...

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """These messages can be read now."""


class Visibility:
    """Shows what is kept. All calls from the event loop."""

    def __init__(
        self,
        store: ShownLog,
        promises: Promises,
        *,
        bring: Callable[[NotInMemory, Callable[[], None]], None],
        worker: Executor,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        """`bring` calls what it is given when what is missing was read; `worker` makes files. `on_failure` is told
        which work of a timer broke, and why, where the exception is handled."""
        self._store = store
        self._promises = promises
        self._bring = bring
        self._worker = worker
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._readers: tuple[Readers, ...] = ()
        self._waiting: tuple[Sized, ...] = ()  # of each of the readers
        self._replicas: tuple[Callable[[], None], ...] = ()
        self._shown_offset = 0
        self._shown_at = 0.0  # by `soon`
        self._taken_at = 0.0  # when a read of sends was last shown at once, or with others
        # Some are taken and not shown: `show_waiting` has something to do.
        self.is_left = False
        # Some queues begin: what comes behind the first few of them is shown in the next turns of the loop.
        self._is_beginning = False
        self._began_s = 0.0  # spent on that, and not yet taken
        self._begun_max = BEGUN_AT_MOST
        # Physical offset beyond which nothing is shown, whatever is kept here; None: there is no such. Who moves it
        # calls `appended` or `soon`.
        self.limit: Callable[[], int] | None = None
        # When the last round of keys was, and after how long messages that come now are worth the next one.
        self._indexed_at = 0.0
        self._index_pause_s = INDEX_PAUSE_S
        self._index_parts = 1
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def start(self, readers: Sequence[Readers], replicas: Sequence[Callable[[], None]] = ()) -> None:
        """Tell these readers from now on what arrives, and call `replicas` whenever the log has grown, or is safer."""
        self._readers = tuple(readers)
        self._replicas = tuple(replicas)
        self._waiting = tuple([one.waiting for one in readers])

    def close(self) -> None:
        """Begin no more work by the clock; what is kept is still shown."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._is_beginning:
            self._is_beginning = False
            self._show(self._may_show())
        if self._timers.pop("show", None) is not None or self.is_left:
            self._show_left()

    def appended(self) -> None:
        """Messages are in the log: show those whose promise is kept by that."""
        offset = self._may_show()
        if offset > self._shown_offset:
            if self._is_beginning:
                self._store.showing.keeps(offset)
            else:
                self._show(offset)
        for notify in self._replicas:
            notify()

    def taken(self) -> None:
        """As `appended`, of a read of usual sends: with what comes within TOGETHER_S, while nobody waits for it."""
        now = self._loop.time()
        if now - self._taken_at >= TOGETHER_S or self._closed or any(self._waiting):
            self._show_left()
            return
        self.is_left = True
        if "taken" not in self._timers:
            self._later("taken", TOGETHER_S, self._show_in_time)
        for notify in self._replicas:
            notify()

    def _show_in_time(self) -> None:
        del self._timers["taken"]
        if self.is_left:
            self._show_left()

    def _show_left(self) -> None:
        self._taken_at = self._loop.time()
        self.appended()
        self.is_left = False

    def show_waiting(self) -> None:
        """Show what `taken` has left, for somebody who is about to look."""
        if not self.is_left:
            return
        try:
            self._show_left()
        except OutOfResources:
            pass  # as the timer does it, that says so
        except Exception as failed:
            self._on_failure("taken", failed)

    def soon(self) -> None:
        """As `appended`, a little later: no sender waits for it, and what comes until then is shown together."""
        if "show" in self._timers:
            return
        pause_s = SOON_S if any(self._waiting) else UNASKED_S
        if not self._closed and self._loop.time() - self._shown_at < pause_s:
            self._later("show", pause_s, self._show_together)
        else:
            self._show_together()

    def _show_together(self) -> None:
        self._timers.pop("show", None)
        self._shown_at = self._loop.time()
        self.appended()

    def advanced(self) -> None:
        """A source of the promises has moved: answer those whose promise is kept now, then show their messages."""
        self._promises.advanced()
        self.appended()

    def _may_show(self) -> int:
        kept_offset = self._promises.kept_offset
        return kept_offset if self.limit is None else min(kept_offset, self.limit())

    def _show(self, offset: int) -> None:
        store, timers = self._store, self._timers
        before, self._shown_offset = self._shown_offset, offset
        notify = any(self._waiting)
        begun, at = store.showing.begun_count, time.perf_counter()
        try:
            arrivals = store.confirm(offset, notify=notify, begun_max=0 if self._closed else self._begun_max)
        except OutOfResources:
            self._shown_offset = before  # it is tried again; behind a fault of ours nobody meets it again
            raise
        begins = store.showing.begun_count - begun
        if begins:
            took_s = time.perf_counter() - at
            self._began_s += took_s
            self._begun_max = max(
                BEGUN_AT_LEAST, min(int(BEGIN_S * begins / max(took_s, 1e-6)), BEGUN_AT_MOST)
            )
        if notify:
            for readers, waiting in zip(self._readers, self._waiting, strict=True):
                if waiting:
                    readers.arrived(arrivals)
        if "dispatch" not in timers:
            if store.full_until:
                self._later("dispatch", DISPATCH_RETRY_S, self._show_again)
            elif begins and not self._closed and store.showing.is_behind(offset):
                self._is_beginning = True
                self._later("dispatch", 0.0, self._show_again)
        if "index" not in timers and store.keys.backlog:
            self._later("index", self._index_pause_s, self._index)

    def take_began_s(self) -> float:
        """Seconds that were spent on showing the first messages of queues, since this was asked last."""
        took_s, self._began_s = self._began_s, 0.0
        return took_s

    def _show_again(self) -> None:
        """What was left: where it found no room no send does it, so no sync, while it waits."""
        del self._timers["dispatch"]
        self._is_beginning = False
        self._show(self._may_show())
        for notify in self._replicas:
            notify()

    def _index(self) -> None:
        """Index what waits, when the index is in memory and has a file; until then no other round is set."""
        keys = self._store.keys
        if keys.lacks_file:
            making = self._loop.run_in_executor(self._worker, keys.make_file)
            making.add_done_callback(self._index_made)
            return
        missing = keys.missing()
        if missing is None:
            self._index_now()
        else:
            self._bring(missing, lambda: self._call("index", self._index_now))

    def _index_made(self, making: "asyncio.Future[None]") -> None:
        """There is a file, or who puts the keys meets what was in the way."""
        if not making.cancelled():
            making.exception()
        if not self._closed:
            self._call("index", self._index_now)

    def _index_now(self) -> None:
        """Index what waits, and see from how many they are when the next round will be worth it: to look how many have
        come would wake a broker up that has little to do, and to ask with each message would cost each message."""
        del self._timers["index"]
        keys, now = self._store.keys, self._loop.time()
        worth_s = (now - self._indexed_at) * INDEX_WORTH / max(keys.backlog, 1)
        self._indexed_at = now
        self._index_pause_s = min(max(worth_s, INDEX_PAUSE_S), INDEX_WAIT_S)
        began = time.perf_counter()
        try:
            keys.build(min(max(INDEX_ROUND // self._index_parts, keys.backlog // INDEX_BEHIND), INDEX_ROUND))
        except StoreFull as full:
            log.warning("store.index_behind", reason=str(full), backlog=keys.backlog)
            self._later("index", INDEX_RETRY_S, self._index)
            return
        if time.perf_counter() - began > INDEX_ROUND_S:
            self._index_parts = min(self._index_parts * 2, INDEX_PARTS)
        else:
            self._index_parts = max(self._index_parts // 2, 1)
        if keys.backlog:
            self._later("index", INDEX_AGAIN_S, self._index)

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
