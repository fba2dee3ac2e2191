"""The slave's end of a replication link, without a socket: pieces of the master's log in, reports out.

Touches  the log that it is given, to append to it.

The first report is the end of the log, which the master takes for where to begin; 0 of an empty log, which begins
wherever the master does. Later ones say what the slave has: what is on its disk, or what is in its log, as its settings
want. Nothing of a record is reported before the whole record is there and proven.

Invariants
- What the master sends lies exactly where this log ends, or the link ends.
- A report never says more than is as safe as this slave promises, and none says less than the one before.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from aerobee_broker.replication.faults import LinkFault
from aerobee_proto.ha import Confirmed, Transfer, TransferDecoder, encode_report
from aerobee_store.faults.errors import CorruptStore, NotInLog

__all__ = ["TakenLog", "TakingBounds", "TakingLink"]


class TakenLog(Protocol):
    """The part of the store that this module needs."""

    @property
    def end_offset(self) -> int:
        """Physical offset one past the last whole record."""
        ...

    @property
    def next_raw_offset(self) -> int:
        """Physical offset from which on bytes are wanted."""
        ...

    def append_raw(self, offset: int, *pieces: bytes | memoryview) -> int:
        """Take bytes of the master's log, in pieces that follow each other; the new end. NotInLog, CorruptStore: they
        are not taken."""
        ...


class TakingBounds(NamedTuple):
    """What the settings say of a link; asked for at each use."""

    heartbeat_s: float  # silence after which the last report is said again
    silence_s: float  # after that much silence of the other side it counts as gone


class TakingLink:
    """The link to the master. Times are of the event loop's clock, in seconds."""

    def __init__(
        self,
        log: TakenLog,
        file_size: int,
        safe_offset: Callable[[], int],
        bounds: Callable[[], TakingBounds],
        now: float,
        *,
        says_confirmed: bool = False,
    ) -> None:
        """`file_size` is that of the log's files; `safe_offset` is how far it is as safe as this slave promises.
        `says_confirmed`: the master has agreed to say what its readers see."""
        # Fixed for life.
        self._log = log
        self._file_size = file_size
        self._safe_offset = safe_offset
        self._bounds = bounds
        self._decoder = TransferDecoder(says_confirmed=says_confirmed)
        # Moved by `received`.
        self.last_read = now
        self.received_bytes = 0
        self.has_heard = False  # anything of the master, on this link
        self.master_offset = 0  # what the master has, as far as it has said
        self.confirmed_offset = 0  # what readers of the master see, as far as it has said
        # Moved by whoever returns reports.
        self.last_write = now
        self._reported = 0

    def opened(self, now: float) -> bytes:
        """The first report. What is in the log is safe by now."""
        return self._report(self._log.end_offset, now)

    def room(self) -> memoryview:
        """Where what the master sends next is to be put, for `came`."""
        return self._decoder.room()

    def came(self, count: int, now: float) -> bytes:
        """Take so many bytes, which the master sent and which were put into `room`; reports to be sent, or nothing.

        LinkFault or FormatError: hang up. StoreError: so, too, and this disk is the reason.
        """
        return self._take(self._decoder.came(count), now)

    def received(self, data: bytes, now: float) -> bytes:
        """As `came`, of bytes that lie elsewhere."""
        return self._take(self._decoder.feed(data), now)

    def _take(self, found: Sequence[Transfer | Confirmed], now: float) -> bytes:
        self.last_read = now
        reports = b""
        transfers: list[Transfer] = []
        for said in found:
            if isinstance(said, Confirmed):
                self.confirmed_offset = max(self.confirmed_offset, said.offset)
            else:
                transfers.append(said)
        for offset, pieces in _joined(transfers, self._file_size):
            size = sum(map(len, pieces))
            self.has_heard = True
            self.master_offset = offset + size
            if not size:
                self._check_place(offset)
                continue
            self._append(offset, pieces)
            self.received_bytes += size
            reports += self.report(now)
        return reports

    def _append(self, offset: int, pieces: Sequence[bytes | memoryview]) -> None:
        log = self._log
        try:
            log.append_raw(offset, *pieces)
        except NotInLog as elsewhere:
            raise LinkFault(
                "gap", f"the master sends what lies at {offset}, this log wants {log.next_raw_offset}"
            ) from elsewhere
        except CorruptStore as wrong:
            raise LinkFault(
                "rubbish",
                f"what the master sends is no log: {wrong.reason} at {wrong.physical_offset}",
                "check that no other cluster has this address, and the master's store (aerobee store verify): where "
                "its log is damaged, the slave begins with a copy of the stopped master's store folder, without its "
                "storeIdentity",
            ) from wrong

    def _check_place(self, offset: int) -> None:
        """A master that has nothing says where it goes on: elsewhere, its log is not the one that this is a copy of."""
        expected = self._log.next_raw_offset
        if offset != expected and expected:
            raise LinkFault("gap", f"the master goes on at {offset}, this log wants {expected}")

    def report(self, now: float) -> bytes:
        """A report of what became safe since the last one; nothing when nothing did."""
        safe = self._safe_offset()
        return self._report(safe, now) if safe > self._reported else b""

    def tick(self, now: float) -> bytes:
        """What time brings: the last report again, so that the master knows of a live slave.

        LinkFault when the master has been silent for too long.
        """
        bounds = self._bounds()
        silent_s = now - self.last_read
        if silent_s > bounds.silence_s:
            raise LinkFault("silent", f"nothing was heard of the master for {silent_s:.1f} s")
        return self._report(self._reported, now) if now - self.last_write >= bounds.heartbeat_s else b""

    def wake_in(self, now: float) -> float:
        """Seconds until `tick` has something to do."""
        bounds = self._bounds()
        return max(0.0, min(self.last_write + bounds.heartbeat_s, self.last_read + bounds.silence_s) - now)

    def _report(self, offset: int, now: float) -> bytes:
        self._reported = offset
        self.last_write = now
        return encode_report(offset)


def _joined(transfers: Sequence[Transfer], file_size: int) -> Iterator[tuple[int, list[bytes | memoryview]]]:
    """Those that follow each other in a file together: to append takes its time for each call, whatever its size."""
    first, pieces = 0, list[bytes | memoryview]()
    end = -1
    for offset, data in transfers:
        if pieces and (not data or offset != end or offset % file_size == 0):
            yield first, pieces
            pieces = []
        if not data:
            yield offset, []
            continue
        if not pieces:
            first = offset
        pieces.append(data)
        end = offset + len(data)
    if pieces:
        yield first, pieces
