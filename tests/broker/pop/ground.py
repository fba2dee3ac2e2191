"""POP without a broker: its parts over a store in memory, and somebody who asks."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aerobee_broker.members.filters import Filters
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.pop.acknowledging import Acknowledging
from aerobee_broker.pop.extra_info import PopInfo
from aerobee_broker.pop.handing_out import HandingOut
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.popping import Popping
from aerobee_broker.pop.queue_reader import QueueReader
from aerobee_broker.pop.revive import Reviver
from aerobee_broker.pop.service import PopService
from aerobee_broker.pop.values import Found, NoticeQuery, Outcome, PopQuery
from aerobee_broker.settings.identity import identity_of
from aerobee_broker.stats import BrokerStats
from aerobee_proto.names import GroupQueue
from aerobee_proto.records import StoredRecord, decode_records
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from broker.messages.ground import G, Ground, T
from broker.support import Clock

__all__ = ["MINUTE", "PLACE", "PopGround", "Someone", "bodies_of", "records_of"]

MINUTE = 60_000
PLACE = GroupQueue(G, T, 0)


@dataclass(eq=False)
class Someone:
    """Asks, and keeps what it is answered later."""

    peer: str = "somebody:1"
    is_closed: bool = False
    is_congested: bool = False
    was_overtaken: bool = False
    answers: list[Outcome] = field(default_factory=list)


class PopGround(Ground):
    """A broker's parts as far as POP needs them. What is appended can be read at once, and is durable when asked for
    unless `failure` says why not."""

    def __init__(self, store: MessageStore, clock: Clock, **settings: Any) -> None:
        super().__init__(store, clock, **({"pop_from_retry_probability": 0} | settings))
        self.failure: StoreError | None = None
        self.is_never_durable = False  # slaves that it waits for are gone
        self.random: list[int] = []  # the next numbers; 0 when there are none
        self.stats = BrokerStats("c", clock())
        self.orders = OrderTable(clock)
        self.writer = MessageWriter(
            store, host=("127.0.0.1", 1), clock=clock, appended=self._show, durable=self._durable
        )
        identity = identity_of(self.live.value, 1)
        self.ledger = Ledger(
            clock=clock, identity=identity, store=store, catalog=self.catalog, writer=self.writer
        )
        self.popping = Popping(
            QueueReader(
                self.ledger,
                self.orders,
                live=self.live,
                store=store,
                catalog=self.catalog,
                random_below=lambda _: self.random.pop(0) if self.random else 0,
            ),
            HandingOut(
                self.ledger,
                self.orders,
                live=self.live,
                clock=clock,
                offsets=self.offsets,
                meter=self.stats,
            ),
            self.orders,
            live=self.live,
            clock=clock,
            filters=Filters(),
            memory=PeerMemory(),
            cold=self.cold,
        )
        self.acks = Acknowledging(
            self.ledger,
            self.orders,
            clock=clock,
            store=store,
            topics=self.topics,
            offsets=self.offsets,
            writer=self.writer,
            on_release=self.popping.released,
        )
        self.service = PopService(
            clock=clock,
            store=store,
            catalog=self.catalog,
            ledger=self.ledger,
            orders=self.orders,
            pops=self.popping,
            acks=self.acks,
            reviver=Reviver(
                self.ledger,
                live=self.live,
                clock=clock,
                store=store,
                topics=self.topics,
                groups=self.groups,
                writer=self.writer,
            ),
        )

    def _show(self) -> None:
        self.popping.arrived(self.store.confirm(self.store.end_offset))

    async def _durable(self, *, in_time: bool = False) -> None:  # it waits, or fails
        if self.failure is not None:
            raise self.failure
        if self.is_never_durable:
            await asyncio.Event().wait()

    # --- what a test does -------------------------------------------------------------------------------------

    def put(self, *bodies: bytes, **fields: Any) -> None:
        """Store messages in queue 0, and tell those that wait."""
        self.popping.arrived(self.store_all(*bodies, **fields))

    def pop(self, who: Someone | None = None, **fields: Any) -> Outcome | None:
        """One pop of queue 0, of up to 32 messages for a minute; it does not wait unless told to."""
        who = who or Someone()
        usual: dict[str, Any] = {"place": PLACE, "count": 32, "invisible_ms": MINUTE}
        return self.popping.pop(PopQuery(**(usual | fields)), who, who.answers.append)

    def found(self, **fields: Any) -> Found:
        """A pop that finds something."""
        outcome = self.pop(**fields)
        assert isinstance(outcome, Found)
        return outcome

    def notice(self, who: Someone, **fields: Any) -> Outcome | None:
        """A wish to know of messages in queue 0."""
        return self.popping.notice(NoticeQuery(**({"place": PLACE} | fields)), who, who.answers.append)

    def pass_time(self, took_ms: int) -> None:
        """What the broker does ten times a second, once, so much later."""
        self.clock.now_ms += took_ms
        self.service.sweep()
        self.ledger.table.check()

    def named(self, found: Found) -> PopInfo:
        """What acknowledgements of the first queue's messages say."""
        return found.named(found.parts[0], self.live.value.broker_name)


def records_of(outcome: Outcome | None) -> list[StoredRecord]:
    """The messages of an outcome that has some."""
    assert isinstance(outcome, Found)
    return decode_records(b"".join(outcome.records))


def bodies_of(outcome: Outcome | None) -> list[bytes]:
    """Their bodies."""
    return [record.body for record in records_of(outcome)]
