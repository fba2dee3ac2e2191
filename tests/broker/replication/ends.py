"""Both ends of a link over logs in memory, without sockets and with a clock to turn."""

from random import Random

from aerobee_broker.replication.giving import GivingBounds, GivingLink
from aerobee_broker.replication.taking import TakingBounds, TakingLink
from aerobee_store.store import MessageStore
from store.memory_io import MemoryIo
from store.workload import Clock, Workload, open_store

__all__ = ["FILE_SIZE", "Ends", "filled"]

FILE_SIZE = 16_384


def filled(seed: int = 1, size: int = 3 * FILE_SIZE) -> Workload:
    """An open store with this much in its log, all of it on disk."""
    work = Workload(Random(seed), MemoryIo(), Clock())
    work.store.open()
    while work.store.end_offset < size:
        work.append()
    work.store.flush_disk()
    work.store.confirm(work.store.end_offset)
    return work


class Ends:
    """A master's end and a slave's, and what is on its way between them."""

    def __init__(self, master: MessageStore, slave: MessageStore | None = None) -> None:
        self.now = 0.0
        self.piece_size, self.bytes_per_s = 4096, None
        self.master, self.slave = master, slave or open_store(MemoryIo())
        self.begin()

    def begin(self) -> None:
        """A new connection."""
        bounds = GivingBounds(self.piece_size, 5.0, 20.0, self.bytes_per_s)
        self.giving = GivingLink(self.master, FILE_SIZE, lambda: bounds, self.now)
        self.taking = TakingLink(
            self.slave,
            FILE_SIZE,
            lambda: self.slave.flushed_offset,
            lambda: TakingBounds(5.0, 20.0),
            self.now,
        )
        self.to_master = self.taking.opened(self.now)
        self.pieces: list[tuple[int, int]] = []

    def exchange(self) -> None:
        """Until nobody has anything to say."""
        while True:
            if self.to_master:
                said, self.to_master = self.to_master, b""
                self.giving.received(said, self.now)
            piece = self.giving.next_piece(self.now)
            if piece is None:
                return
            self.pieces.append((self.giving.next_offset - len(piece.data), len(piece.data)))
            self.to_master += self.taking.received(piece.head + bytes(piece.data), self.now)
            self.slave.flush_disk()
            self.to_master += self.taking.report(self.now)
