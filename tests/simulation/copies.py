"""The logs of a set's members, compared with each other and with what was promised, on their disks.

- What a slave has is the master's, byte for byte, from where the slave begins to where it ends; at every look.
- An acknowledged message lies in as many logs as the settings say; with SYNC_FLUSH, safe from a failure of the power.
"""

from socket import inet_aton
from typing import Final

from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.records import BLANK_MAGIC, SIZE_AND_MAGIC
from aerobee_store.records.record_scan import RecordFault, scan_record
from simulation.cluster import BrokerHost, BrokerSet
from simulation.disk import SimDisk
from simulation.ledger import Broken, Sent
from simulation.world import World

__all__ = ["Copies"]

LOOK_S: Final = 0.25
BODY_AT_MOST: Final = 256  # bytes between the beginning of a record and its body


class Copies:
    """Of one set."""

    def __init__(self, world: World, brokers: BrokerSet, file_size: int) -> None:
        self._world = world
        self._set = brokers
        self._file_size = file_size
        # Copies that an acknowledgement speaks of, the master's included.
        self.promised = 1
        # When a disk was emptied last: what was acknowledged before may lie in one copy less.
        self.emptied_at = -1.0
        # How far a slave's log was compared, and with whose; by host and the number of its disk.
        self._compared: dict[tuple[str, int], tuple[BrokerHost, int]] = {}

    # --- acknowledged messages --------------------------------------------------------------------------------

    def witness(self, sent: Sent, stored_as: str) -> None:
        """A message was acknowledged."""
        if sent.began <= self.emptied_at:
            return
        at = decode_offset_message_id(stored_as).physical_offset
        holders = [host.name for host in self._set.members if self.has(host, at, sent.body)]
        if len(holders) < self.promised:
            raise Broken(
                f"{sent.body!r} at {at} of the log is acknowledged for {self.promised} copies; "
                f"safe at {', '.join(holders) or 'no host'}"
            )

    def has(self, host: BrokerHost, at: int, body: bytes, stored_at: str = "") -> bool:
        """Whether this message lies there, as safe as the host's settings promise; one that came to this broker first:
        another try of a sender may lie at the same offset of another log."""
        path, begin = self._file_of(at)
        inode = host.disk.names.get(path)
        if inode is None:
            return False
        size = int.from_bytes(inode.live[begin : begin + 4], "big")
        record = bytes(inode.live[begin : begin + size])
        if record.find(body, 0, BODY_AT_MOST + len(body)) < 0:
            return False
        if stored_at and record.find(inet_aton(stored_at), 0, BODY_AT_MOST) < 0:
            return False
        if host.settings.get("flush_disk_type") == "ASYNC_FLUSH":
            return True
        return host.disk.is_safe(path, begin, record)

    def is_damaged(self, host: BrokerHost, at: int) -> bool:
        """Whether what lies there, within a file of the log, is no message."""
        path, begin = self._file_of(at)
        inode = host.disk.names.get(path) if at >= 0 else None
        if inode is None:
            return False
        return isinstance(scan_record(memoryview(bytes(inode.live)), begin, at), RecordFault)

    def _file_of(self, at: int) -> tuple[str, int]:
        begin = at % self._file_size
        return f"/store/commitlog/{at - begin:020}", begin

    # --- the same bytes ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare what has come since the last look, and look again."""
        for slave in self._set.slaves:
            self.compare(slave)
        self._world.at(self._world.now + LOOK_S, None, self.look)

    def compare(self, slave: BrokerHost, *, whole: bool = False) -> None:
        """Broken when the slave has other bytes than the master, unless it knows of damage there, before the `whole` is
        compared: it copies that again as soon as they have met."""
        master = self._set.master
        if not slave.is_serving or slave.serving is None:
            return
        store = slave.serving.parts.store
        key = (slave.name, slave.disk_number)
        with_whom, begin = self._compared.get(key, (master, 0))
        if with_whom is not master or whole:
            begin = 0
        begin, end = max(begin, store.min_physical_offset), store.end_offset
        if begin > end:  # its log was cut
            begin = max(store.min_physical_offset, 0)
        differs = self.first_difference(master, slave, begin, end)
        if differs is not None:
            if not whole and any(first <= differs < behind for first, behind in store.comparison.damaged):
                return
            raise Broken(f"the logs of {master.name} and {slave.name} differ at {differs}, below {end}")
        self._compared[key] = (master, end)

    def first_difference(self, one: BrokerHost, other: BrokerHost, begin: int, end: int) -> int | None:
        """Where their logs differ first, in this range; None: nowhere."""
        return _first_difference(one.disk, other.disk, begin, end, self._file_size)

    def first_lacking(self, one: BrokerHost, other: BrokerHost, begin: int, end: int) -> int | None:
        """As `first_difference`, where the one has messages: its power may fail when the end of a file is blank, and
        nothing of the next one is on the disk."""
        differs = self.first_difference(one, other, begin, end)
        while differs is not None and self._is_blank(one, differs):
            begin = differs - differs % self._file_size + self._file_size
            differs = self.first_difference(one, other, begin, end)
        return differs

    def _is_blank(self, host: BrokerHost, at: int) -> bool:
        """Whether there is the blank end of a file, which has no more of itself than its size and magic."""
        path, place = self._file_of(at)
        content = host.disk.names[path].live
        for begin in range(max(place - SIZE_AND_MAGIC.size + 1, 0), place + 1):
            head = bytes(content[begin : begin + SIZE_AND_MAGIC.size])
            if head == SIZE_AND_MAGIC.pack(self._file_size - begin, BLANK_MAGIC):
                return True
        return False


def _first_difference(one: SimDisk, other: SimDisk, begin: int, end: int, file_size: int) -> int | None:
    at = begin
    while at < end:
        start = at - at % file_size
        stop = min(end, start + file_size)
        path = f"/store/commitlog/{start:020}"
        here = slice(at - start, stop - start)
        pieces = [disk.names[path].live[here] if path in disk.names else b"" for disk in (one, other)]
        if pieces[0] != pieces[1]:
            pairs = zip(*pieces, strict=False)
            return at + next((number for number, (left, right) in enumerate(pairs) if left != right), 0)
        at = stop
    return None
