"""POP as a whole: its parts joined, and what happens by time.

Touches  nothing but through its parts.

Every SWEEP_S: pops whose time is over are answered, queues that were blocked are opened, what other writers put
into the revive topic is taken in, what is due comes back, positions are written down.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.pop.acknowledging import Acknowledging
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.popping import Popping
from aerobee_broker.pop.revive import Reviver
from aerobee_proto.errors import RequestError
from aerobee_proto.names import GroupQueue
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.store import MessageStore

__all__ = ["PopService", "PopStatistics"]

log = structlog.get_logger()

SWEEP_S: Final = 0.1
PAUSE_S: Final = 0.005  # between two steps of a long revival
TIDY_SWEEPS: Final = 3000  # once in five minutes


@dataclass(slots=True, frozen=True)
class PopStatistics:
    """What is out and what has become of it, named as in the `broker.stats` line."""

    held_pops: int  # pops and wishes for notices that wait
    pop_check_points: int
    pop_unacknowledged: int  # messages that are invisible
    # Messages since the start.
    pop_acknowledged: int
    pop_revived: int
    pop_dead_letters: int


class PopService:
    """POP of one broker: `load` before it serves, `run` while it does, `close` after it."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        store: MessageStore,
        catalog: Catalog,
        ledger: Ledger,
        orders: OrderTable,
        pops: Popping,
        acks: Acknowledging,
        reviver: Reviver,
    ) -> None:
        self._clock = clock
        self._store = store
        self._catalog = catalog
        self.ledger = ledger
        self.orders = orders
        self.pops = pops
        self.acks = acks
        self.reviver = reviver
        self._sweeps = 0
        # Under way while what comes back next is not in memory.
        self._bringing: asyncio.Future[None] | None = None

    def load(self, *, crashed: bool) -> None:
        """Read what is outstanding; `crashed`: the broker did not stop in order before."""
        count = self.ledger.load(crashed=crashed)
        if count:
            log.info(
                "broker.pop_loaded",
                records=count,
                check_points=len(self.ledger.table),
                unacknowledged=self.ledger.table.unacknowledged,
            )

    def was_reset(self, group: str, topic: str, queue_id: int) -> None:
        """A group was sent to another offset of a queue."""
        offset = self._catalog.offsets.get(group, topic, queue_id)
        if offset is not None:
            queue = GroupQueue(group, topic, queue_id)
            self.ledger.was_reset(queue, offset)
            self.pops.was_reset(queue)

    def statistics(self) -> PopStatistics:
        """How much is out now, and what happened since the start."""
        return PopStatistics(
            held_pops=len(self.pops.held),
            pop_check_points=len(self.ledger.table),
            pop_unacknowledged=self.ledger.table.unacknowledged,
            pop_acknowledged=self.acks.acknowledged,
            pop_revived=self.reviver.revived,
            pop_dead_letters=self.reviver.dead,
        )

    async def run(self) -> None:
        """Do what is due, until cancelled. StoreError when the disk has failed."""
        while True:
            await asyncio.sleep(PAUSE_S if self.sweep() else SWEEP_S)
            await self.ledger.settle()

    def sweep(self) -> bool:
        """Everything that time brings, once; whether there is more to do at once."""
        now_ms = self._clock()
        self.ledger.follow()
        self.ledger.table.expire(now_ms)
        more = self._revive()
        more |= self.pops.expire(now_ms)
        for queue in self.orders.released(now_ms):
            self.pops.released(queue)
        self.pops.look_again()
        try:
            self.ledger.tidy()
        except RequestError as refused:
            log.debug("broker.pop_tidy_delayed", reason=refused.remark)
        self._sweeps += 1
        if self._sweeps % TIDY_SWEEPS == 0:
            self.orders.tidy(self._is_queue)
        return more

    def _revive(self) -> bool:
        """Bring back some of what is due, when it is in memory; whether there is more to do at once."""
        if self._bringing is not None:
            if not self._bringing.done():
                return False
            self._bringing.result()  # what cannot be read ends the broker, as all of its own work
            self._bringing = None
        try:
            return self.reviver.step()
        except NotInMemory as missing:
            self._bringing = asyncio.ensure_future(self.pops.cold.brought(missing))
            return False

    def _is_queue(self, queue: GroupQueue) -> bool:
        topic, groups = self._catalog.topics.get(queue.topic), self._catalog.groups
        return topic is not None and queue.queue_id < topic.read_queue_nums and queue.group in groups

    async def close(self) -> None:
        """Write down what is on disk; nothing is handed out or acknowledged any more."""
        await self.acks.close()
        if not self._store.has_failed:
            self.ledger.follow()
            self.ledger.take_stock()
            self.ledger.settle_flushed()
