"""POP as a whole: its parts joined, and what happens by time.

Touches  nothing but through its parts.

Every SWEEP_S: pops whose time is over are answered, queues that were blocked are opened, what other writers put
into the revive topic is taken in, what is due comes back, positions are written down.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.pop.acks import AckHandlers
from aerobee_broker.pop.assignment import AssignmentHandlers, Routes
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.pop import PopHandlers
from aerobee_broker.pop.revive import Reviver
from aerobee_broker.services import Services
from aerobee_proto.errors import RequestError
from aerobee_remoting.handlers import HandlerTable

__all__ = ["PopService"]

log = structlog.get_logger()

SWEEP_S: Final = 0.1
PAUSE_S: Final = 0.005  # between two steps of a long revival
TIDY_SWEEPS: Final = 3000  # once in five minutes


class PopService:
    """POP of one broker: `load` before it serves, `run` while it does, `close` after it."""

    def __init__(self, services: Services, *, dice: Callable[[int], int] = random.randrange) -> None:
        self._services = services
        self.ledger = Ledger(services)
        self.orders = services.orders
        self.pops = PopHandlers(services, self.ledger, self.orders, dice=dice)
        self.acks = AckHandlers(services, self.ledger, self.orders)
        self.acks.on_release = self.pops.released
        self.reviver = Reviver(services, self.ledger)
        services.popped = self.ledger.table.in_flight
        services.offsets.on_reset.append(self.was_reset)
        self._routes = Routes(services)
        self._sweeps = 0

    def register(self, table: HandlerTable) -> None:
        """Add all handlers to a table."""
        self.pops.register(table)
        self.acks.register(table)
        AssignmentHandlers(self._services, self._routes).register(table)

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
        offset = self._services.offsets.get(group, topic, queue_id)
        if offset is not None:
            queue = (topic, group, queue_id)
            self.ledger.was_reset(queue, offset)
            self.pops.was_reset(queue)

    def facts(self) -> dict[str, object]:
        """State for the `broker.stats` line and for metrics."""
        return {
            "held_pops": len(self.pops.held),
            "pop_check_points": len(self.ledger.table),
            "pop_unacknowledged": self.ledger.table.unacknowledged,
            "pop_acknowledged": self.acks.acknowledged,
            "pop_revived": self.reviver.revived,
            "pop_dead_letters": self.reviver.dead,
        }

    async def run(self) -> None:
        """Do what is due, until cancelled. StoreError when the disk has failed."""
        while True:
            await asyncio.sleep(PAUSE_S if self.sweep() else SWEEP_S)
            await self.ledger.settle()

    def sweep(self) -> bool:
        """Everything that time brings, once; whether there is more to do at once."""
        now_ms = self._services.clock()
        self.ledger.follow()
        self.ledger.table.expire(now_ms)
        more = self.reviver.step()
        self.pops.expire(now_ms)
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

    def _is_queue(self, topic: str, group: str, queue_id: int) -> bool:
        found = self._services.topics.get(topic)
        return found is not None and queue_id < found.read_queue_nums and group in self._services.groups

    async def close(self) -> None:
        """Write down what is on disk; nothing is handed out or acknowledged any more."""
        await self.acks.close()
        await self._routes.close()
        if not self._services.store.has_failed:
            self.ledger.follow()
            self.ledger.take_stock()
            self.ledger.settle_flushed()
