"""Faults put into the product on purpose, to prove that simulations find such ones.

Each is a part of the product that is replaced while a simulation runs, and a mistake that somebody could make, or has
made: some of them were faults of brokers that are in use.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from aerobee_broker.cluster.registration import NameserverRegistrar
from aerobee_broker.messages.promises import Promises
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.schedule.delay_offsets import DelayOffsets
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_broker.transactions.transactions import Transactions
from aerobee_store.index.index import IndexService
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.recovery import recovery
from aerobee_store.store import MessageStore
from aerobee_store.walking.log_reader import Proof
from aerobee_store.writing.appender import Appender
from simulation.planted_sets import OF_SETS, SETS_FOUND_BY

__all__ = ["FOUND_BY", "PLANTED", "planted"]

RECOVERY: Final = getattr(recovery, "_Recovery")  # noqa: B009

# What is replaced: its owner, the name there, and what takes its place.
Change = tuple[Any, str, Any]


def _acknowledged_before_the_sync() -> list[Change]:
    kept = property(lambda self: self._store.end_offset)
    return [(Promises, "kept_offset", kept)]


def _a_failed_sync_counts() -> list[Change]:
    """As the official broker up to 5.3.3."""
    flush = CommitLog.flush

    def careless(self: CommitLog) -> int:
        end = self.end_offset
        try:
            return flush(self)
        except OSError:
            self.flushed_offset = end
            return 1

    return [(CommitLog, "flush", careless)]


def _the_end_after_the_sync() -> list[Change]:
    """What was appended while the disk synced counts as synced."""
    flush = CommitLog.flush

    def late(self: CommitLog) -> int:
        count = flush(self)
        self.flushed_offset = self.end_offset
        return count

    return [(CommitLog, "flush", late)]


def _torn_records_accepted() -> list[Change]:
    return [(recovery, "Proof", partial(Proof, proven=True))]


def _cut_at_the_checkpoint() -> list[Change]:
    """Recovery trusts nothing behind the last checkpoint."""
    let_go = getattr(RECOVERY, "_let_go")  # noqa: B009

    def too_far(self: Any, end: int) -> None:
        mark = self._watermark
        let_go(self, end if mark is None or not self._report.aborted else min(end, mark.log_end))

    return [(RECOVERY, "_let_go", too_far)]


def _shown_before_the_sync() -> list[Change]:
    def appended(self: Any) -> None:
        self._show(self._store.end_offset)

    return [(Visibility, "appended", appended)]


def _a_number_given_twice() -> list[Change]:
    """After a start the newest message of a queue is not counted."""
    queue_of = Appender.queue_of

    def forgetful(self: Any, topic: str, queue_id: int) -> Any:
        queue = queue_of(self, topic, queue_id)
        if (
            queue is not None
            and queue.next_offset > 3
            and not queue.fresh
            and not topic.startswith(("rmq", "%", "SCH"))
        ):
            queue.next_offset -= 1
        return queue

    return [(Appender, "queue_of", forgetful)]


def _offsets_never_written() -> list[Change]:
    async def idle(self: Any) -> None:
        while True:
            await self._pause()

    return [(ConfigFiles, "_run_periodic", idle)]


def _registered_once() -> list[Change]:
    """The broker does not notice that a nameserver has forgotten it."""
    run = getattr(NameserverRegistrar, "_run")  # noqa: B009

    async def once(self: Any, state: Any) -> None:
        self._period_s = lambda: 1e6
        await run(self, state)

    return [
        (NameserverRegistrar, "_run", once),
        (NameserverRegistrar, "connection_lost", lambda self, addr, connection: None),
    ]


def _delay_offsets_ahead() -> list[Change]:
    """The file says that messages are delivered before they are on the disk."""
    settle = DelayOffsets.settle
    return [(DelayOffsets, "settle", lambda self, flushed_offset: settle(self, 1 << 62))]


def _success_after_a_failure() -> list[Change]:
    fail = Promises.fail

    def kind(self: Any, failed: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().promised.keep()
        fail(self, failed)

    return [(Promises, "fail", kind)]


def _transactions_forgotten() -> list[Change]:
    return [(Transactions, "load", lambda self: None)]


def _rubbish_left_behind_the_end() -> list[Change]:
    def careless(self: Any, begin: int, end: int) -> None:
        self.torn_size = 0
        self.end_offset = self.flushed_offset = end
        self._last = self.mapped.find(end)

    return [(CommitLog, "recover_to", careless)]


def _queues_trusted_without_a_sync() -> list[Change]:
    return [(QueueTable, "flush", lambda self: 0), (IndexService, "flush", lambda self: 0)]


def _recovered_and_not_synced() -> list[Change]:
    return [(RECOVERY, "_make_durable", lambda self: None)]


def _stored_twice_now_and_then() -> list[Change]:
    append = MessageStore.append
    calls = [0]

    def twice(self: Any, messages: Any) -> Any:
        calls[0] += 1
        if calls[0] % 100:
            return append(self, messages)
        return append(self, [*messages, messages[-1]])[:-1]

    return [(MessageStore, "append", twice)]


PLANTED: Final[dict[str, Callable[[], list[Change]]]] = {
    "acknowledged before the sync": _acknowledged_before_the_sync,
    "a failed sync counts": _a_failed_sync_counts,
    "the end after the sync": _the_end_after_the_sync,
    "torn records accepted": _torn_records_accepted,
    "cut at the checkpoint": _cut_at_the_checkpoint,
    "shown before the sync": _shown_before_the_sync,
    "a number given twice": _a_number_given_twice,
    "offsets never written": _offsets_never_written,
    "registered once": _registered_once,
    "delay offsets ahead": _delay_offsets_ahead,
    "success after a failure": _success_after_a_failure,
    "transactions forgotten": _transactions_forgotten,
    "rubbish left behind the end": _rubbish_left_behind_the_end,
    "queues trusted without a sync": _queues_trusted_without_a_sync,
    "recovered and not synced": _recovered_and_not_synced,
    "stored twice now and then": _stored_twice_now_and_then,
    **OF_SETS,
}

# The scenario in which each of them shows, and a seed that finds it.
FOUND_BY: Final[dict[str, tuple[str, int]]] = {
    **{name: ("broker", 1) for name in PLANTED if name not in OF_SETS},
    **SETS_FOUND_BY,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The product with this fault in it; None: as it is."""
    with ExitStack() as changes:
        for owner, attribute, replacement in PLANTED[name]() if name is not None else ():
            changes.enter_context(patch.object(owner, attribute, replacement))
        yield
