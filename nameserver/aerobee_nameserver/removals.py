"""What follows when brokers leave the route table: others are told, the log says it, what is left over is tidied up.

Touches  the event loop.

A connection may take 10,000 brokers with it, and a broker 100,000 topics: whoever leaves is gone from the table in the
turn in which that is known, as far as one slice goes; the others, and the bookkeeping, come in slices of later turns.

Invariants
- A removal is logged once, when its topics have been counted, and announced at once.
- After `close()` no task is left.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import structlog

from aerobee_nameserver.route_table import MemberChange, Removal
from aerobee_service.turns.slices import Steps, in_slices

__all__ = ["ASKED", "LOST", "SILENT", "Removals"]

AT_ONCE: Final = 16  # brokers removed in the turn in which they are known to leave
ASKED, LOST, SILENT = "asked", "connection lost", "silent"  # reasons
STEP: Final = 4  # brokers between two yields: each may be a line in the log

log = structlog.get_logger()


class Removals:
    """`announce` is told when the smallest id of a broker name has changed; `tidy` is for the route table."""

    def __init__(self, announce: Callable[[MemberChange], None]) -> None:
        # Fixed for life.
        self._announce = announce
        # Moved by follow(), tidy() and _tidied().
        self._untold: list[tuple[Removal, str]] = []  # with the reason
        self._tidying = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End what is under way; what is left over stays."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(
        self,
        removals: Iterator[Removal],
        reason: str,
        then: Callable[[Removal], None] = lambda _: None,
    ) -> None:
        """Take these brokers out, many of them in slices, and call `then` for each."""

        def some(count: int) -> bool:
            found = list(islice(removals, count))
            for removal in found:
                self._one(removal, reason)
                then(removal)
            return len(found) == count

        def rest() -> Steps[None]:
            while some(STEP):
                yield

        if some(AT_ONCE):
            self._start(rest())

    def _one(self, removal: Removal, reason: str) -> None:
        if removal.change is not None:
            self._announce(removal.change)
        if removal.topics_removed is None:
            self._untold.append((removal, reason))
        else:
            _log_removal(removal, reason)

    def tidy(self, tidying: Callable[[], Steps[None]]) -> None:
        """Run this in slices of later turns, unless it is under way."""
        if not self._tidying:
            self._tidying = True
            self._start(self._tidied(tidying()))

    def _tidied(self, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        finally:
            self._tidying = False
        untold, self._untold = self._untold, []
        for one in untold:
            if one[0].topics_removed is None:  # of a change after the last step
                self._untold.append(one)
            else:
                _log_removal(*one)

    def _start(self, steps: Steps[None]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(steps), name="nameserver removals")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, steps: Steps[None]) -> None:
        try:
            await in_slices(steps)
        except Exception:
            log.exception("nameserver.tidying_failed")


def _log_removal(removal: Removal, reason: str) -> None:
    facts = {
        "cluster": removal.cluster,
        "broker_name": removal.broker_name,
        "broker_id": removal.broker_id,
        "broker_addr": removal.broker_addr,
        "topics_removed": removal.topics_removed,
        "reason": reason,
    }
    if reason == SILENT:
        log.warning("nameserver.broker_expired", **facts)
    elif reason == ASKED:
        log.info("nameserver.broker_unregistered", **facts)
    else:
        log.warning("nameserver.broker_unregistered", **facts)
