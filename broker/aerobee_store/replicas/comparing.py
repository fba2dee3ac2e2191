"""What two copies of a log say about themselves to find out whether they are the same.

Touches  the commit log, reading. Any thread may call it; what is cleaned away meanwhile stays readable for it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from aerobee_store.log.commit_log import CommitLog
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.walking.log_reader import DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import MapSource

__all__ = ["DIGEST_SIZE", "NOT_THERE", "LogComparison"]

DIGEST_SIZE: Final = 16
NOT_THERE: Final = b""
_PIECE_SIZE: Final = 1 << 20


class LogComparison:
    """The log of one store, compared with another's."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    @property
    def is_empty(self) -> bool:
        """Whether it may begin with any file of another log."""
        return not self._log.mapped.files

    @property
    def damaged(self) -> Sequence[tuple[int, int]]:
        """Ranges of physical offsets that are known to be no messages any more."""
        return self._log.damaged

    def digests(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Of the bytes in each range of physical offsets [begin, end); NOT_THERE where not all of them are kept."""
        return [self._digest(begin, end) for begin, end in ranges]

    def _digest(self, begin: int, end: int) -> bytes:
        log = self._log
        if not log.min_offset <= begin <= end <= log.end_offset:
            return NOT_THERE
        found = blake2b(digest_size=DIGEST_SIZE)
        at = begin
        while at < end:
            file = log.mapped.find(at)
            if file is None:
                return NOT_THERE
            stop = min(end, file.end, at + _PIECE_SIZE)
            found.update(file.view[at - file.offset : stop - file.offset])
            at = stop
        return found.digest()

    def bring(self, offset: int, size: int) -> None:
        """Return when these bytes are in memory, as far as they are kept. OSError when the disk refuses."""
        self._log.bring(offset, size)

    def borders(self, begin: int, end: int) -> list[int]:
        """The physical offsets in [begin, end] at which a message begins or ends, rising, and the last one before
        `begin` if none is there. `begin` is in the log, or its end."""
        log = self._log
        file = log.mapped.find(begin) if begin < log.end_offset else log.mapped.find(begin - 1)
        if file is None:
            return [begin]
        found = {file.offset}
        reader = LogReader(MapSource(log), DamageList(), Proof(proven=True))
        for step in reader.stretches(file.offset):
            if isinstance(step, ScannedRecord):
                found |= {step.physical_offset, step.physical_offset + step.size}
            else:
                found.update(step.physical_offsets.tolist())
                found.add(step.end_offset)
            if reader.end > end:
                break
        inside = sorted(at for at in found if begin <= at <= end)
        before = [] if inside[:1] == [begin] else [max((at for at in found if at < begin), default=begin)]
        return before + inside
