"""Going through the commit log from record to record, over damage, to its end.

Touches  the log it is given, reading.

Two ways lead through the log and say the same. The fast one takes stretches of sound records as columns
(record_columns); wherever it stops, the careful one (record_scan) looks at what stands there: a record that is odd
and right, the end of a file, damage, or the end of the log. Only the careful one ever says that something is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerobee_store.commit_log import CommitLog
from aerobee_store.mapped_files import MappedFile, file_name
from aerobee_store.record_columns import STRETCH_SIZE, Stretch, sound_records
from aerobee_store.record_scan import BLANK, Blank, RecordFault, ScannedRecord, record_places

__all__ = ["Damage", "FastSteps", "LogWalker"]

_SEARCH_STEP: Final = 4 << 20
_FILE_MISSING: Final = "the file is missing"
# A stretch shorter than this was not worth its fixed cost, which is that of about fifty careful steps.
_WORTHWHILE_COUNT: Final = 32
_CAREFUL_STEPS_MAX: Final = 1024


@dataclass(slots=True, frozen=True)
class Damage:
    """A stretch [begin, end) of the log without a proven record, with proven ones behind it."""

    begin: int
    end: int
    path: Path
    reason: str


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


class LogWalker:
    """One walk through a log. What it finds to be damaged goes to `damage`."""

    def __init__(
        self, log: CommitLog, damage: list[Damage], *, property_crc: bool = False, proven: bool = False
    ) -> None:
        """`property_crc`: as scan_record(). `proven`: another walk looked at the checksums just before."""
        self._log = log
        self._damage = damage
        self._property_crc = property_crc
        self._proven = proven
        self._fast_steps = FastSteps()
        # One past the last proven record, once the walk is through.
        self.end = 0

    def walk(self, start: int) -> Iterator[ScannedRecord]:
        """Every proven record from `start`, which must be where a record begins. The careful way alone."""
        for found in self._steps(start, None, fast=False):
            assert isinstance(found, ScannedRecord)
            yield found

    def stretches(self, start: int, stop: int | None = None) -> Iterator[Stretch | ScannedRecord]:
        """As walk(), many records at a time wherever that is possible. Nothing is looked at from the physical
        offset `stop` on, where a record or the log must be known to end."""
        return self._steps(start, stop, fast=not self._property_crc)

    def _steps(self, start: int, stop: int | None, *, fast: bool) -> Iterator[Stretch | ScannedRecord]:
        files = self._log.mapped
        file = files.find(start)
        position = start - file.offset if file is not None else 0
        self.end = start
        while file is not None and (stop is None or file.offset + position < stop):
            found = self._step(file, position, stop, fast=fast)
            if isinstance(found, Stretch):
                position = found.end
                self.end = file.offset + position
                yield found
                continue
            if isinstance(found, ScannedRecord):
                position += found.size
                self.end = file.offset + position
                yield found
                continue
            following = files.next_file(file)
            if found is BLANK and (following is None or following.offset == file.end):
                file, position = following, 0
                if file is not None:
                    self.end = file.offset
                continue
            if isinstance(found, RecordFault):
                file, position = self._step_over(file, position, found.reason)
            else:
                file, position = self._step_over(file, len(file.view), _FILE_MISSING)

    def _step(
        self, file: MappedFile, position: int, stop: int | None, *, fast: bool
    ) -> Stretch | ScannedRecord | RecordFault | Blank:
        found = self._fast_step(file, position, stop) if fast else None
        return found if found is not None else self._careful_step(file, position)

    def _fast_step(self, file: MappedFile, position: int, stop: int | None) -> Stretch | None:
        if not self._fast_steps.try_now():
            return None
        furthest = position + STRETCH_SIZE
        found = sound_records(
            file.view,
            position,
            file.offset,
            stop=furthest if stop is None else min(furthest, stop - file.offset),
            sealed_from=self._log.checksum_from,
            proven=self._proven,
        )
        self._fast_steps.tried(found.count if found is not None else 0)
        return found

    def _careful_step(self, file: MappedFile, position: int) -> ScannedRecord | RecordFault | Blank:
        return self._log.scan_file(file, position, property_crc=self._property_crc, proven=self._proven)

    def _step_over(self, file: MappedFile, position: int, reason: str) -> tuple[MappedFile | None, int]:
        """The next proven record behind a bad place; without one the log ends before it."""
        begin = file.offset + position
        for other in self._log.mapped.files:
            if other.end <= begin:
                continue
            first = position + 1 if other is file else 0
            found = self._first_record(other, first)
            if found is not None:
                self._note_damage(begin, other.offset + found, reason)
                return other, found
        return None, 0

    def _first_record(self, file: MappedFile, first: int) -> int | None:
        """Position of the first proven record at or behind `first`."""
        for begin, end in file.data.data_extents(first, len(file.view)):
            for at in range(begin, end, _SEARCH_STEP):
                # A magic may begin in the step before, and lies 4 bytes into its record.
                stop = min(at + _SEARCH_STEP, end)
                for position in record_places(file.view, max(at - 3, first), stop):
                    if position >= first and isinstance(self._careful_step(file, position), ScannedRecord):
                        return position
        return None

    def _note_damage(self, begin: int, end: int, reason: str) -> None:
        """One entry for each file that the bad stretch touches, so that each can be named and copied."""
        at = begin
        for file in self._log.mapped.files:
            if file.end <= at or file.offset > end:
                continue
            if file.offset > at:
                missing = self._log.folder / file_name(at)
                self._damage.append(Damage(at, file.offset, missing, _FILE_MISSING))
                at = file.offset
            stop = min(file.end, end)
            if stop > at:
                self._damage.append(Damage(at, stop, file.data.path, reason))
                at = stop
