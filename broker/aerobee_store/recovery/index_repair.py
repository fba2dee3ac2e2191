"""The key index brought to what the log says: what proves itself stays, and all records behind that are indexed again.

Touches  the index and the checkpoint; the log, reading.

The index is what may be lost first: a crash leaves it behind the log by whatever was not flushed, and nobody but it
knows where a key is. So its own recovery says how far it can be believed; the records from there on are offered once
more, and the index passes over what it has already.
"""

from collections.abc import Callable

import numpy as np

from aerobee_proto.javahash import index_key_hash
from aerobee_store.index.index import HashedKeys, IndexedRecord, hashed_keys, joined_keys, key_texts
from aerobee_store.log.checkpoint import Watermark
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.recovery.report import STEPS, Parts, RecoveryReport
from aerobee_store.walking.keys import keyed_record
from aerobee_store.walking.log_reader import DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import MapSource
from aerobee_store.walking.record_columns import Stretch

__all__ = ["IndexRepair"]

# Keys that are offered to the index at once.
_INDEX_BATCH = 1 << 17
# Bytes of the log whose keys may have to be indexed again when a recovery is interrupted.
_SAVE_STEP = 1 << 30


class IndexRepair:
    """One recovery of the index, after log and queues are recovered.

    1. The index says itself up to where its entries are sound, asked about those that were not known to be on disk.
    2. What it misses of what was on disk makes the checkpoint's word about it void, before anything is written.
    3. All records from there on are offered to it, in large batches; from time to time what is done is written down,
       so that a recovery that is interrupted goes on there.
    """

    def __init__(
        self, parts: Parts, report: RecoveryReport, mark: Watermark | None, make_durable: Callable[[], None]
    ) -> None:
        """`mark`: what was known to be on disk when recovery began. `make_durable`: bring all that was recovered to the
        disk."""
        self._log = parts.log
        self._index = parts.index
        self._checkpoint = parts.checkpoint
        self._config = parts.config
        self._advance = parts.advance
        self._report = report
        self._mark = mark
        self._make_durable = make_durable

    def recover(self, start: int, end: int, shown_end: int) -> None:
        """Bring the index to the log, which ends at `end` and is to be found up to `shown_end`; the queues were judged
        by a walk that began at `start`."""
        assert self._log.end_offset == end
        # 1. What of the index holds. A watermark beyond the end of the log speaks of records that are lost.
        mark = self._mark if self._mark is not None and self._mark.log_end <= end else None
        proven = mark.index_end if mark is not None else 0
        # Between the newest entry that was on disk and the watermark there is none, whatever a torn page says.
        known = min(mark.index_last + 1, proven) if mark is not None else 0
        found = self._index.recover(
            # Behind a watermark it is quicker to index again than to prove each entry by its record.
            known if mark is not None else end,
            log_min=self._log.min_offset,
            proven_offset=known,
            probe=_record_probe(self._log),
            settled=not self._report.aborted,
        )
        self._report.removed_index_files = found.removed_files
        # An index that has nothing of what is kept is built from the beginning of the log; of a large one that nobody
        # vouches for, only as far back as the queues needed it.
        begin = found.end_offset
        if begin < self._log.min_offset:
            small = shown_end - self._log.min_offset <= self._config.full_walk_size_max
            begin = self._log.min_offset if small else start
        # 2. Before anything is written: a crash from here on must not find the old word for it.
        if mark is not None and (found.cut_entries or found.end_offset < mark.index_last):
            self._distrust(found.end_offset)
        # 3. The records that it misses. One that is cut and lies below what was on disk cannot be there if the word for
        # that is true: then only what the index itself proves counts.
        holds = mark is not None and found.end_offset >= mark.index_last
        if holds and not 0 <= found.cut_offset < proven:
            # Nothing of what was on disk is missing, but maybe keys of the newest record, when an earlier recovery
            # was interrupted. Records from there up to what was on disk have no keys.
            newest = self._log.scan(begin)
            self._index_from(begin, begin + newest.size if newest is not None else begin)
            begin = max(begin, proven)
        self._index_from(begin, shown_end)

    def _distrust(self, end_offset: int) -> None:
        """Entries from `end_offset` on are written again: until that is done they are not known to be on disk."""
        mark = self._checkpoint.mark
        assert mark is not None
        known = min(mark.index_end, max(end_offset, 0))
        self._checkpoint.write(self._checkpoint.stamps, mark._replace(index_end=known, index_last=known - 1))

    def _index_from(self, begin: int, end: int) -> None:
        """Offer every record in [begin, end); what is indexed already is passed over."""
        batch: list[HashedKeys] = []
        count = 0
        at = saved_at = begin
        reader = LogReader(MapSource(self._log), DamageList(), Proof(proven=True))
        for found in reader.stretches(begin, end):
            keys = self._keys_of(found)
            count += len(keys.hashes)
            batch.append(keys)
            if count >= _INDEX_BATCH:
                self._put_keys(batch)
                batch, count = [], 0
                if reader.end - saved_at >= _SAVE_STEP:
                    saved_at = reader.end
                    self._save(saved_at, end)
            self._advance(STEPS[1], reader.end - at)
            at = reader.end
        if count:
            self._put_keys(batch)

    def _put_keys(self, batch: list[HashedKeys]) -> None:
        self._report.indexed_keys += self._index.put_hashed(joined_keys(batch))

    def _save(self, index_end: int, end: int) -> None:
        """A recovery that is interrupted from here on goes on here: everything but the rest of the index is done."""
        self._make_durable()
        sealed_from = -1 if self._log.checksum_from is None else self._log.checksum_from
        mark = Watermark(self._log.end_offset, end, index_end, self._index.end_offset, sealed_from)
        self._checkpoint.write(self._checkpoint.stamps, mark)

    def _keys_of(self, found: Stretch | ScannedRecord) -> HashedKeys:
        if isinstance(found, ScannedRecord):
            keyed = keyed_record(found)
            is_kept = keyed is not None and not self._log.is_damaged(found.physical_offset)
            return hashed_keys([keyed] if keyed is not None and is_kept else [])
        begin, end = int(found.physical_offsets[0]), found.end_offset
        near = [(low, high) for low, high in self._log.damaged if low < end and high > begin]
        if not near:
            return found.keys()
        kept = np.ones(found.count, np.bool_)
        for low, high in near:
            kept &= (found.physical_offsets < low) | (found.physical_offsets >= high)
        return found.keys(kept)


def _record_probe(log: CommitLog) -> Callable[[int], IndexedRecord | None]:
    """What the index asks to prove its entries."""

    def probe(physical_offset: int) -> IndexedRecord | None:
        record = log.scan(physical_offset)
        if record is None:
            return None
        keyed = keyed_record(record)
        texts = key_texts(keyed[0], keyed[1], keyed[2]) if keyed is not None else []
        return IndexedRecord(record.store_timestamp, frozenset(map(index_key_hash, texts)))

    return probe
