"""The master's end of one replication link, without a socket: what its slave says in, pieces of the log out.

Touches  the log that it is given, to read from it.

    slave reports 0          begin at the last file of the log, as an empty slave of RocketMQ expects it; for one of
                             ours at the first byte that is kept
    slave reports its end    begin there
    a report later           the slave has everything below

A slave of ours is told, too, what readers of this master see: in front of the next bytes, or by itself, when there are
none for NEWS_PAUSE_S.

Invariants
- Nothing is sent before the first report, and nothing that the log does not give.
- A piece never crosses the end of a file of the log; a file's blank end is sent like everything else.
- `acked_offset` never falls, and is never beyond what was sent or what the slave began with.
- A slave that wants what is not there any more, or says that it has what never was, is not served: its log and this
  one would grow apart without a word.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from aerobee_broker.replication.faults import LinkFault
from aerobee_proto.ha import ReportDecoder, encode_confirmed, encode_transfer_head
from aerobee_store.faults.errors import NotInLog

__all__ = ["NEWS_PAUSE_S", "NOTHING", "GivenLog", "GivingBounds", "GivingLink", "Piece"]

NOT_BEGUN: Final = -1
# After the last bytes, before what readers see is said by itself. A slave that sends wait for is woken up by each: what
# they see moves with its own reports, and the next bytes come soon.
NEWS_PAUSE_S: Final = 0.002


class GivenLog(Protocol):
    """The part of the store that this module needs."""

    @property
    def end_offset(self) -> int:
        """Physical offset one past the last byte appended."""
        ...

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first byte that is kept."""
        ...

    @property
    def given_offset(self) -> int:
        """Physical offset below which replicas may have the log."""
        ...

    @property
    def confirmed_offset(self) -> int:
        """Physical offset below which readers see messages."""
        ...

    def read_raw(self, offset: int, size: int) -> memoryview:
        """At most `size` bytes of one file from there on. NotInLog when they are not to be had."""
        ...


class GivingBounds(NamedTuple):
    """What the settings say of a link; asked for at each use."""

    piece_size: int  # bytes of a piece at most
    heartbeat_s: float  # silence after which one says that there is nothing new
    silence_s: float  # after that much silence of the other side it counts as gone
    bytes_per_s: int | None  # None: as fast as it goes


class Piece(NamedTuple):
    """What is sent at once: what stands before bytes of the log, and these, which stay readable as long as they are
    held."""

    head: bytes
    data: memoryview


NOTHING: Final = memoryview(b"")


class GivingLink:
    """One slave. Times are of the event loop's clock, in seconds."""

    def __init__(self, log: GivenLog, file_size: int, bounds: Callable[[], GivingBounds], now: float) -> None:
        # Fixed for life.
        self._log = log
        self._file_size = file_size
        self._bounds = bounds
        self._decoder = ReportDecoder()
        # Moved by `received`.
        self.acked_offset = NOT_BEGUN
        self.last_read = now
        # Moved by `next_piece`; NOT_BEGUN before the first report.
        self.next_offset = NOT_BEGUN
        self.last_write = now
        self.sent_bytes = 0
        # An empty slave is given all there is.
        self.begins_at_first = False
        # It wants to know what readers see here, and what it was told of it.
        self.says_confirmed = False
        self._said = 0
        self._allowed_from = now  # when the next piece may leave, where there is a limit

    @property
    def has_begun(self) -> bool:
        """Whether the slave has said where it stands."""
        return self.next_offset != NOT_BEGUN

    @property
    def behind_bytes(self) -> int:
        """What the slave does not have of the log, as far as is known."""
        return self._log.end_offset - max(self.acked_offset, 0)

    def received(self, data: bytes, now: float) -> bool:
        """Take what the slave sent; whether it has said anything. LinkFault or FormatError: hang up."""
        self.last_read = now
        offset = self._decoder.feed(data)
        if offset is None:
            return False
        if not self.has_begun:
            self._begin(offset)
        elif offset > self.next_offset:
            raise LinkFault("lies", f"the slave says that it has {offset}, it was sent {self.next_offset}")
        elif offset < self.acked_offset:
            raise LinkFault("lies", f"the slave says that it has {offset}, it had {self.acked_offset} before")
        self.acked_offset = offset
        return True

    def _begin(self, offset: int) -> None:
        log = self._log
        begin, end = log.min_physical_offset, log.end_offset
        if offset == 0:
            last_file = log.given_offset - log.given_offset % self._file_size
            self.next_offset = begin if self.begins_at_first else max(begin, last_file)
            return
        if offset > end:
            raise LinkFault(
                "ahead",
                f"the slave's log ends at {offset}, this one at {end}: the slave has what this master has lost",
                "if this log is the right one, empty the slave's store folder and start it again",
            )
        if offset < begin:
            raise LinkFault(
                "too_old",
                f"the slave's log ends at {offset}, this one begins at {begin}: what lies between is deleted here",
                "empty the slave's store folder and start it again: it begins anew",
            )
        self.next_offset = offset

    def next_piece(self, now: float) -> Piece | None:
        """What is to be sent now; None when there is nothing, or not yet. LinkFault: hang up."""
        if not self.has_begun:
            return None
        bounds, given = self._bounds(), self._log.given_offset
        if self.next_offset < given and now >= self._allowed_from:
            return self._data(bounds, now)
        if now - self.last_write >= NEWS_PAUSE_S and (news := self._news()):
            return Piece(news, NOTHING)
        if now - self.last_write >= bounds.heartbeat_s:
            self.last_write = now
            return Piece(encode_transfer_head(self.next_offset, 0), NOTHING)
        return None

    @property
    def has_news(self) -> bool:
        """Whether readers see more here than the slave was told."""
        return self.says_confirmed and self._log.confirmed_offset > self._said

    def _news(self) -> bytes:
        """What readers see here, if the slave does not know it; nothing if it does."""
        if not self.has_news:
            return b""
        self._said = self._log.confirmed_offset
        return encode_confirmed(self._said)

    def _data(self, bounds: GivingBounds, now: float) -> Piece | None:
        try:
            data = self._log.read_raw(self.next_offset, bounds.piece_size)
        except NotInLog as gone:
            raise LinkFault(
                "too_slow", f"the slave is so slow that what it wants is deleted here: {gone}"
            ) from gone
        size = len(data)
        if not size:
            return None
        piece = Piece(self._news() + encode_transfer_head(self.next_offset, size), data)
        self.next_offset += size
        self.sent_bytes += size
        self.last_write = now
        if bounds.bytes_per_s is not None:
            self._allowed_from = max(now, self._allowed_from) + size / bounds.bytes_per_s
        return piece

    def check(self, now: float) -> None:
        """LinkFault when the slave has been silent for too long."""
        silent_s = now - self.last_read
        if silent_s > self._bounds().silence_s:
            raise LinkFault("silent", f"nothing was heard of the slave for {silent_s:.1f} s")

    def wake_in(self, now: float) -> float:
        """Seconds until time alone brings something: a heartbeat, an allowance, the end of patience."""
        bounds = self._bounds()
        times = [self.last_write + bounds.heartbeat_s, self.last_read + bounds.silence_s]
        if self.has_begun and self.next_offset < self._log.given_offset:
            times.append(self._allowed_from)
        return max(0.0, min(times) - now)
