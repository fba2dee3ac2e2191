"""Going through a commit log from record to record, over damage, to its end, wherever its bytes come from.

Touches  the byte source that it is given, reading.

Two ways lead through a log and say the same. The fast one takes stretches of sound records as columns
(record_columns); wherever it stops, the careful one (record_scan) looks at what stands there: a record that is odd
and right, the end of a file, damage, or the end of the log. Only the careful one ever says that something is wrong.

Rules, for everyone who reads a log (recovery, check, scrub, verify, dump, Spark)
- Bytes that are no record, with a proven record behind them, are damage: it is reported, file by file, and the
  reader goes on behind it.
- Bytes that are no record with nothing proven behind them are where the log ends, unless the caller knows that it
  goes further: then they are damage up to there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aerobee_proto.records import RECORD_SIZE_MIN, SIZE_AND_MAGIC
from aerobee_store.records.record_scan import (
    Blank,
    RecordFault,
    ScannedRecord,
    record_places,
    scan_record,
)
from aerobee_store.walking.record_columns import STRETCH_SIZE, Stretch, sound_records

__all__ = [
    "FILE_MISSING",
    "ByteSource",
    "Damage",
    "DamageList",
    "FastSteps",
    "FileSpan",
    "LogReader",
    "Proof",
    "Reporter",
]

FILE_MISSING: Final = "the file is missing"
_SEARCH_STEP: Final = 4 << 20
# The next proven record is looked for by its magic, which lies in bytes [4, 8) of it.
_MAGIC_END: Final = 8
# A stretch shorter than this was not worth its fixed cost, which is that of about fifty careful steps.
_WORTHWHILE_COUNT: Final = 32
_CAREFUL_STEPS_MAX: Final = 1024


@dataclass(slots=True, frozen=True)
class Damage:
    """A stretch [begin, end) of one file of the log without a proven record; `path` as the source names the file."""

    begin: int
    end: int
    path: str
    reason: str


class Reporter(Protocol):
    """Hears what is wrong, in the order of the log."""

    def damage(self, found: Damage) -> None:
        """A damaged stretch; one that spans files comes once for each of them, and for each that is missing."""


class DamageList:
    """Keeps what is wrong."""

    __slots__ = ("found",)

    def __init__(self, found: list[Damage] | None = None) -> None:
        """`found`: where to put it; a list of its own without one."""
        self.found: list[Damage] = [] if found is None else found

    def damage(self, found: Damage) -> None:
        """As Reporter."""
        self.found.append(found)


class FileSpan(Protocol):
    """One file of a log: the physical offsets [offset, end) are in it."""

    @property
    def offset(self) -> int: ...
    @property
    def end(self) -> int: ...


class ByteSource(Protocol):
    """The files of a log and their bytes, all by physical offset."""

    @property
    def piece_size(self) -> int:
        """How many bytes are asked for at a time; where reading costs nothing before it is looked at, more than any
        file has."""

    def files(self) -> Sequence[FileSpan]:
        """The files that are there now, oldest first."""

    def read(self, begin: int, end: int) -> memoryview:
        """The bytes [begin, end), which lie in one file; fewer when it is shorter."""

    def extents(self, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """The stretches of [begin, end), in one file, that may hold something; the rest reads as zero."""

    def path(self, offset: int) -> str:
        """How the file is named that holds `offset`, or that would begin there."""


@dataclass(slots=True, frozen=True)
class Proof:
    """What makes bytes a record, beyond the lengths and places that always have to be right.

    `property_crc`: RocketMQ's own whole-record checksum must be there and match. `sealed_from`: from this physical
    offset on ours must. `proven`: another reader looked at the checksums just before. `once`: see sound_records().
    `record_size_max`: no record is larger, whatever it says.
    """

    property_crc: bool = False
    sealed_from: int | None = None
    proven: bool = False
    once: bool = False
    record_size_max: int = 1 << 31


class FastSteps:
    """When to try the fast way: not for a while where it was of no use, longer each time it was not."""

    __slots__ = ("_careful_left", "_careful_next")

    def __init__(self) -> None:
        self._careful_left = 0
        self._careful_next = 1

    def try_now(self) -> bool:
        """Whether to try; to be asked once for every step."""
        if self._careful_left:
            self._careful_left -= 1
            return False
        return True

    def tried(self, count: int) -> None:
        """How many records the attempt brought."""
        if count >= _WORTHWHILE_COUNT:
            self._careful_next = 1
        else:
            self._careful_left = self._careful_next
            self._careful_next = min(2 * self._careful_next, _CAREFUL_STEPS_MAX)


class LogReader:
    """One way through the log of a source. What is wrong goes to the reporter."""

    def __init__(
        self,
        source: ByteSource,
        reporter: Reporter,
        proof: Proof = Proof(),
        *,
        stretch_size: int = STRETCH_SIZE,
        columns_only: bool = False,
    ) -> None:
        """`stretch_size`: bytes of records that are taken together. `columns_only`: the fast way is tried at each
        record, as the caller wants columns whatever they cost."""
        # Fixed for life.
        self._source = source
        self._reporter = reporter
        self._proof = proof
        self._stretch_size = stretch_size
        self._fast_steps = None if columns_only else FastSteps()
        # Moved from file to file, and inside of it from piece to piece.
        self._file: FileSpan | None = None
        self._view = memoryview(b"")
        self._base = 0  # physical offset of its first byte
        # One past the last proven record, or where the file behind it begins.
        self.end = 0
        # What stands at the end of the log where the last walk came to it.
        self.rest: RecordFault | Blank | None = None

    # --- ways through the log --------------------------------------------------------------------------

    def walk(self, start: int) -> Iterator[ScannedRecord]:
        """Every proven record from `start`, which must be where a record begins. The careful way alone."""
        for found in self._steps(start, None, fast=False):
            assert isinstance(found, ScannedRecord)
            yield found

    def stretches(self, start: int, stop: int | None = None) -> Iterator[Stretch | ScannedRecord]:
        """As walk(), many records at a time wherever that is possible. Nothing is looked at from the physical
        offset `stop` on, where a record or the log must be known to end."""
        return self._steps(start, stop, fast=not self._proof.property_crc)

    def step(self, at: int, stop: int) -> tuple[Stretch | ScannedRecord | None, int]:
        """What begins at `at`, read anew, and where to go on; None where damage or the end of a file was passed."""
        self._forget()
        found, following = self._step(at, stop, fast=not self._proof.property_crc)
        return found, stop if following is None else following

    def _steps(self, start: int, stop: int | None, *, fast: bool) -> Iterator[Stretch | ScannedRecord]:
        self._forget()
        self.end, self.rest = start, None
        at = start
        while stop is None or at < stop:
            found, following = self._step(at, stop, fast=fast)
            if following is None:
                break
            self.end, self.rest = following, None
            at = following
            if found is not None:
                yield found

    def _step(
        self, at: int, stop: int | None, *, fast: bool
    ) -> tuple[Stretch | ScannedRecord | None, int | None]:
        """What begins at `at`, and where to go on; None: nothing proven follows."""
        file = self._file_of(at)
        if file is None:
            behind = any(other.offset > at for other in self._source.files())
            return None, self._step_over(at, stop, FILE_MISSING) if behind else None
        limit = file.end if stop is None else min(stop, file.end)
        self._have(file, at, limit)
        stretch = self._fast_step(at, stop) if fast else None
        if stretch is not None:
            return stretch, stretch.end_offset
        found = self._scan(self._view, at - self._base, at, file.end)
        if isinstance(found, ScannedRecord):
            return found, at + found.size
        if isinstance(found, RecordFault):
            self.rest = found
            return None, self._step_over(at, stop, found.reason)
        if stop is not None and stop <= file.end:
            return None, file.end
        following = next((other for other in self._source.files() if other.offset > file.offset), None)
        if following is None:
            self.rest = found
            return None, None
        if following.offset != file.end:
            return None, self._step_over(file.end, stop, FILE_MISSING)
        return None, following.offset

    def _fast_step(self, at: int, stop: int | None) -> Stretch | None:
        steps = self._fast_steps
        if steps is not None and not steps.try_now():
            return None
        furthest = at + self._stretch_size if stop is None else min(at + self._stretch_size, stop)
        found = sound_records(
            self._view,
            at - self._base,
            self._base,
            stop=furthest - self._base,
            sealed_from=self._proof.sealed_from,
            proven=self._proof.proven,
            once=self._proof.once,
        )
        if steps is not None:
            steps.tried(found.count if found is not None else 0)
        return found

    def _scan(
        self, view: memoryview, position: int, at: int, file_end: int
    ) -> ScannedRecord | RecordFault | Blank:
        proof = self._proof
        sealed = proof.sealed_from is not None and at >= proof.sealed_from
        return scan_record(
            view,
            position,
            at,
            property_crc=proof.property_crc,
            sealed=sealed,
            proven=proof.proven,
            room=file_end - at,
        )

    # --- bytes -----------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """What was read is read again; it may have changed."""
        self._file, self._view, self._base = None, memoryview(b""), 0

    def _file_of(self, at: int) -> FileSpan | None:
        file = self._file
        if file is None or not file.offset <= at < file.end:
            files = self._source.files()
            number = bisect_right(files, at, key=_offset_of) - 1
            file = files[number] if number >= 0 and at < files[number].end else None
            self._forget()
            self._file = file
        return file

    def _have(self, file: FileSpan, at: int, limit: int) -> None:
        """See to it that the record that begins at `at` is in the view, as far as it lies below `limit`."""
        have = self._base + len(self._view)
        if self._base <= at < have and (have >= limit or self._has_whole(at, have)):
            return
        size = self._source.piece_size
        if size >= file.end - file.offset:
            self._view, self._base = self._source.read(file.offset, limit), file.offset
            return
        self._view, self._base = self._source.read(at, min(at + size, limit)), at
        have = at + len(self._view)
        if have < limit and not self._has_whole(at, have):
            claimed = self._claimed_size(self._view, 0)
            if size < claimed <= self._proof.record_size_max:
                self._view = self._source.read(at, min(at + claimed, limit))

    def _has_whole(self, at: int, have: int) -> bool:
        claimed = self._claimed_size(self._view, at - self._base)
        return 0 < claimed <= have - at

    def _claimed_size(self, view: memoryview, position: int) -> int:
        """The size of what begins there, by its own word; 0 when it does not say."""
        if len(view) - position < SIZE_AND_MAGIC.size:
            return 0
        size: int = SIZE_AND_MAGIC.unpack_from(view, position)[0]
        return max(size, 0)

    # --- damage ----------------------------------------------------------------------------------------

    def _step_over(self, begin: int, stop: int | None, reason: str) -> int | None:
        """Report what begins at a bad place; where the next proven record begins. Without one the log ends at the bad
        place, if it is not known to go on to `stop`."""
        for file in self._source.files():
            if file.end <= begin or (stop is not None and file.offset >= stop):
                continue
            limit = file.end if stop is None else min(stop, file.end)
            found = self._first_record(file, max(begin + 1, file.offset), limit)
            if found is not None:
                self._report(begin, found, reason)
                return found
        if stop is not None:
            self._report(begin, stop, reason)
        return stop

    def _first_record(self, file: FileSpan, first: int, limit: int) -> int | None:
        """Where the first proven record at or behind `first` begins."""
        step = min(_SEARCH_STEP, self._source.piece_size)
        for begin, end in self._source.extents(first, limit):
            for at in range(begin, end, step):
                # A magic may begin in the step before, and ends 8 bytes into its record.
                low = max(at - _MAGIC_END + 1, first)
                view = self._source.read(low, min(at + step, end))
                for position in record_places(view, 0, len(view)):
                    if self._is_record(file, low + position):
                        return low + position
        return None

    def _is_record(self, file: FileSpan, at: int) -> bool:
        size = self._claimed_size(self._source.read(at, at + SIZE_AND_MAGIC.size), 0)
        if not RECORD_SIZE_MIN <= size <= min(self._proof.record_size_max, file.end - at):
            return False
        view = self._source.read(at, at + size)
        return isinstance(self._scan(view, 0, at, file.end), ScannedRecord)

    def _report(self, begin: int, end: int, reason: str) -> None:
        """One entry for each file that the bad stretch touches, so that each can be named and copied."""
        at = begin
        for file in self._source.files():
            if file.end <= at or file.offset > end:
                continue
            if file.offset > at:
                self._reporter.damage(Damage(at, file.offset, self._source.path(at), FILE_MISSING))
                at = file.offset
            stop = min(file.end, end)
            if stop > at:
                self._reporter.damage(Damage(at, stop, self._source.path(at), reason))
                at = stop


def _offset_of(file: FileSpan) -> int:
    return file.offset
