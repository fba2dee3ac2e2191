"""Bringing log, queues and index back to one truth after any kind of stop.

Touches  everything in the store folder but config/; runs once, inside the store's lock, before any reader.

The log is the truth. It is walked from a place below which log, queues and index are known to be on disk
(the watermark of the checkpoint; without one, as in a folder that an official broker wrote, the whole log
when it is small, else a file chosen by the checkpoint's times) and every record on the way is proven.

- A bad place with proven records behind it is damage: it is copied to quarantine/, named in the report and
  stepped over; what follows stays. A bad place with nothing proven behind it is the torn end: it is cut and
  zeroed, durable, so that it cannot come back behind later writes.
- An end of the log below what was known to be on disk is loss: recovery refuses, unless the operator accepts
  it by name.
- Each queue is compared, entry by entry, with the records on the way. From the first entry that does not
  agree on, the queue is cut and dispatched again; a queue that misses records from before the walk makes the
  walk start one file earlier.
- A queue that was there when the store was closed in good order, and of which files are missing, is built again from
  the log, and gives out no number twice, also where the log has none of its messages any more.
- A record that names another queue or number than the entry that leads to it is damaged, if no entry there confirms
  it: RocketMQ has no checksum over its name.
- The index keeps what its own recovery proves, and is given all records behind that.
- In a copy, and in a log that was one (holds_back), what readers had not seen stays unseen: records behind all that
  queues lead to, or were known to lead to, are in the log alone, until somebody says that they are confirmed. Where
  something is damaged, so that nobody knows what readers had seen, they see everything.

Stages, each durable or repeatable when a crash interrupts it
1. Where to begin: `_begin()`; the queues as they were when the store was closed (queue_ends).
2. The walk: the log proven from there, the queues brought to it (queue_repair, claims). It may have to begin earlier.
3. Damage is put aside (quarantine), the torn end of the log is cut, queues let go of what leads elsewhere.
4. The index (index_repair).
5. All that was found in the page cache is brought to the disk.
"""

from aerobee_store.faults import failpoints
from aerobee_store.log.checkpoint import Watermark
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.recovery.index_repair import IndexRepair
from aerobee_store.recovery.queue_ends import QueueEnds
from aerobee_store.recovery.queue_repair import QueueRepair
from aerobee_store.recovery.report import STEPS, HeldBack, Parts, RecoveryReport, StartEarlier, lose
from aerobee_store.walking.log_reader import DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import MapSource
from aerobee_store.walking.quarantine import QUARANTINE, keep_out, quarantined
from aerobee_store.walking.record_columns import Stretch

__all__ = ["QUARANTINE", "REBUILD_MARKER", "STEPS", "Parts", "RecoveryReport", "recover"]

# Below the store's root while a rebuild is under way; whoever completes a recovery removes it.
REBUILD_MARKER = "rebuild"


def recover(parts: Parts, *, aborted: bool) -> RecoveryReport:
    """Make log, queues and index agree; everything that is left is durable on return.

    Raises CorruptStore, with nothing changed but queue and index files that the log can rebuild, when
    records are missing that were known to be on disk and the config does not accept the loss.
    """
    if parts.config.rebuild:
        _start_over(parts)
    return _Recovery(parts, aborted).run()


def _start_over(parts: Parts) -> None:
    """Forget what is known of queues and index, unless an earlier run did and was interrupted behind that."""
    marker = parts.config.root / REBUILD_MARKER
    if parts.io.read_bytes(marker) is not None:
        return
    checkpoint = parts.checkpoint
    known = checkpoint.mark or Watermark(0, 0, 0)
    checkpoint.write(checkpoint.stamps, known._replace(queue_end=0, index_end=0, index_last=-1))
    parts.index.destroy()
    parts.io.replace_bytes(marker, b"aerobee store repair\n", keep_previous=False)


def _last_of(found: Stretch | ScannedRecord) -> ScannedRecord:
    return found if isinstance(found, ScannedRecord) else found.record(found.count - 1)


class _Recovery:
    def __init__(self, parts: Parts, aborted: bool) -> None:
        self._parts = parts
        self._log = parts.log
        self._config = parts.config
        self._report = RecoveryReport(aborted=aborted)
        # What was known to be on disk before; stays what it was when recovery writes another into the checkpoint.
        self._watermark = parts.checkpoint.mark
        if self._watermark is not None and self._watermark.checksum_from >= 0:
            self._log.checksum_from = self._watermark.checksum_from
        # What earlier starts have put aside already.
        self._log.damaged = quarantined(parts.io, parts.config.root)
        self._ends = QueueEnds(parts, self._report, self._watermark)
        # Whether what readers had not seen is to stay unseen.
        config = parts.config
        is_asked = (config.is_copy or config.holds_back) and not config.rebuild
        self._holds_back = is_asked and self._watermark is not None
        self._shown_end = 0
        self._stop: int | None = None  # where the last record begins, if it was never whole

    def run(self) -> RecoveryReport:
        report = self._report
        if not self._log.mapped.files:
            self._recover_empty()
            return report
        # 1. Where to begin.
        start = self._begin()
        # 2. The walk. What a queue misses may lie before it: then it begins again, at least one file earlier.
        start, end = self._walked(start)
        failpoints.hit("recovery.walked")
        # 3. Damage and the torn end. In this order: as long as bytes that cannot be read are not in quarantine, the
        # log must not be changed.
        keep_out(self._parts.io, self._config.root, self._log, report.damage)
        self._let_go(end)
        report.start_offset, report.end_offset = start, end
        shown_end = end if report.held_back is None else report.held_back.physical_offset
        report.min_offset = self._log.min_offset
        if report.aborted:
            self._write_again()
        if self._ends.are_short:
            # After the cut: numbers that stay taken lead to no record, and must lie below the end.
            self._ends.keep_numbers(end)
            self._parts.queues.correct_min_offsets(self._log.min_offset)
        # 4. The index. After the log, from which it is proven and completed.
        if self._config.index_enabled:
            IndexRepair(self._parts, report, self._watermark, self._make_durable).recover(
                start, end, shown_end
            )
        failpoints.hit("recovery.indexed")
        # 5. To the disk, before the store writes a checkpoint that says so.
        self._make_durable()
        failpoints.hit("recovery.durable")
        return report

    def _let_go(self, end: int) -> None:
        """The log is cut at `end`, durable; only then every other part lets go of what leads behind that, or below the
        log's beginning."""
        for part in self._parts.in_order:
            part.recover_to(self._log.min_offset, end)
            assert self._log.end_offset == self._log.flushed_offset == end
            failpoints.hit("recovery.cut")
        self._report.torn_bytes = self._log.torn_size

    # --- an empty log ----------------------------------------------------------------------------------

    def _recover_empty(self) -> None:
        """Without a log nothing in queues and index points anywhere: both start again.

        That is right for a folder that never had a message, and else the loss of all of them: most often
        a disk that is not mounted or a wrong path.
        """
        known = self._watermark.log_end if self._watermark is not None else 0
        filled = sum(1 for queue in self._parts.queues if queue.file_spans) + len(self._parts.queues.cut)
        if known > 0 or filled > 0:
            lose(
                self._parts,
                self._report,
                0,
                f"there is no log file, but {filled} queues have entries ({known} bytes were flushed)",
            )
        self._parts.queues.drop_cut()
        self._parts.queues.destroy()
        self._parts.index.destroy()
        self._let_go(0)

    # --- where to begin --------------------------------------------------------------------------------

    def _begin(self) -> int:
        """Where the walk begins, by what is known; where queues have lost something, at the beginning of the log."""
        queues, report = self._parts.queues, self._report
        emptied = [] if report.aborted else queues.emptied
        self._ends.load()
        if not (queues.cut or emptied or self._ends.are_short):
            start = self._start()
            assert self._log.min_offset <= start <= self._log.mapped.end_offset
            return start
        self._holds_back = False
        report.cut_queues += [
            (queue.topic, queue.queue_id, "", "its last file was empty") for queue in emptied
        ]
        self._give_up_cut_queues()
        self._ends.keep_list()
        return self._log.min_offset

    def _give_up_cut_queues(self) -> None:
        """What queues of which somebody cut a file had is asked of the log, from its beginning."""
        for queue, wrong in self._parts.queues.cut:
            self._report.cut_queues.append((queue.topic, queue.queue_id, str(wrong.path), wrong.reason))
        self._distrust(0)
        self._parts.queues.drop_cut()

    def _start(self) -> int:
        mapped = self._log.mapped
        mark = self._watermark
        if mark is not None and mark.log_end <= mapped.end_offset:
            return max(mark.all_end, mapped.min_offset)
        if mapped.end_offset - mapped.min_offset <= self._config.full_walk_size_max:
            return mapped.min_offset
        if not self._report.aborted:
            file = mapped.find(max(self._parts.queues.last_physical_end, 0))
            return file.offset if file is not None else mapped.min_offset
        return self._start_by_time()

    def _start_by_time(self) -> int:
        """The newest file that begins with a record that was on disk at the checkpoint, else the oldest."""
        limit = self._parts.checkpoint.stamps.start_timestamp
        for file in reversed(self._log.mapped.files):
            first = self._log.scan_file(file, 0)
            if isinstance(first, ScannedRecord) and first.store_timestamp <= limit:
                return file.offset
        return self._log.mapped.min_offset

    def _distrust(self, start: int) -> None:
        """The watermark was wrong about the queues; a crash from here on must not make it right again."""
        mark = self._watermark
        if mark is not None:
            checkpoint = self._parts.checkpoint
            checkpoint.write(checkpoint.stamps, mark._replace(queue_end=min(mark.queue_end, start)))

    def _earlier(self, start: int, offset: int) -> int:
        """Where a file begins, before `start` and not behind `offset` if the log reaches back so far."""
        earlier = [f.offset for f in self._log.mapped.files if f.offset < start]
        assert earlier, "asked for an earlier start at the beginning of the log"
        return max((at for at in earlier if at <= offset), default=earlier[0])

    # --- the walk --------------------------------------------------------------------------------------

    def _walked(self, start: int) -> tuple[int, int]:
        """Where the walk began that had all that the queues needed, and where the log ends."""
        while True:
            try:
                end = self._recover_from(start)
            except StartEarlier as earlier_start:
                start = self._earlier(start, earlier_start.offset)
                self._distrust(start)
                self._ends.keep_list()
            else:
                assert start <= end <= self._log.mapped.end_offset
                return start, end

    def _recover_from(self, start: int) -> int:
        """Prove the log from `start`, bring the queues to its state; where the log ends."""
        report = self._report
        report.damage, report.dropped, report.shifted_queues = [], [], []
        report.walked_records = report.dispatched_records = report.duplicate_records = 0
        report.renumbered_records = report.hole_entries = report.orphan_entries = 0
        report.held_back = None
        proof = Proof(property_crc=self._config.verify_property_crc, sealed_from=self._log.checksum_from)
        reader = LogReader(MapSource(self._log), DamageList(report.damage), proof)
        first = self._log.mapped.min_offset
        repair = QueueRepair(self._parts, report, start, self._ends, may_start_earlier=start > first)
        repair.prepare()
        failpoints.hit("recovery.prepared")
        held_back = self._held_back()
        last: Stretch | ScannedRecord | None = None
        for found in reader.stretches(start, self._stop):
            last = found
            if isinstance(found, ScannedRecord):
                report.walked_records += 1
                newest, size = found.store_timestamp, found.size
                end = found.physical_offset + size
            else:
                report.walked_records += found.count
                newest, end = int(found.store_timestamps.max()), found.end_offset
                size = end - int(found.physical_offsets[0])
            self._parts.advance(STEPS[0], size)
            report.last_store_timestamp = max(report.last_store_timestamp, newest)
            if held_back is not None and end > held_back.physical_offset:
                self._see_before(held_back, found, repair)
                continue
            report.shown_timestamp = max(report.shown_timestamp, newest)
            if isinstance(found, ScannedRecord):
                repair.see(found)
            else:
                repair.see_many(found)
        if self._stop is None and last is not None and self._is_half(last, reader.end):
            self._stop = reader.end - _last_of(last).size
            return self._recover_from(start)
        # Before entries go whose records may come back from a copy.
        self._check_loss(reader.end)
        if held_back is not None and held_back.found:
            held_back = held_back.at_border()
            if self._ends.are_short or any(one.end > held_back.physical_offset for one in report.damage):
                self._holds_back = False
                return self._recover_from(start)
            report.held_back = held_back
        repair.finish(reader.end)
        return reader.end

    def _is_half(self, last: Stretch | ScannedRecord, end: int) -> bool:
        """Whether the end of the log was killed while it was written, at whatever byte: what it would have written from
        there on is zero. Body and head may be whole, so that without the checksum of the whole record, which a replica
        cannot ask for, such a record seems sound. Properties are text, which never ends with a zero."""
        known = self._watermark.log_end if self._watermark is not None else 0
        if not self._report.aborted or self._log.checksum_from is not None or end <= known:
            return False
        record = _last_of(last)
        file = self._log.mapped.find(record.physical_offset)
        if file is None or not record.properties or record.physical_offset + record.size != end:
            return False
        return file.view[end - 1 - file.offset] == 0

    def _held_back(self) -> HeldBack | None:
        """Where begins what readers had not seen; the queues are as they were found. None: nothing is held back."""
        if not self._holds_back or self._watermark is None:
            return None
        self._shown_end = max(
            self._shown_end, self._watermark.queue_end, self._parts.queues.last_physical_end
        )
        return HeldBack(self._shown_end, [])

    def _see_before(self, held_back: HeldBack, found: Stretch | ScannedRecord, repair: QueueRepair) -> None:
        """Of these records those that readers had seen; the others are kept back."""
        records = [found] if isinstance(found, ScannedRecord) else map(found.record, range(found.count))
        if isinstance(found, Stretch) and int(found.physical_offsets[0]) >= held_back.physical_offset:
            held_back.found.append(found)
            return
        for record in records:
            if record.physical_offset + record.size > held_back.physical_offset:
                held_back.found.append(record)
            else:
                self._report.shown_timestamp = max(self._report.shown_timestamp, record.store_timestamp)
                repair.see(record)

    def _check_loss(self, end: int) -> None:
        mark = self._watermark
        if mark is not None and end < mark.log_end:
            lose(
                self._parts, self._report, end, f"the log ends here, but it was on disk up to {mark.log_end}"
            )

    def _write_again(self) -> None:
        """What the last run wrote last may be in memory alone, and count as clean: the kernel drops what a sync could
        not write. It is trusted from now on, so it is written once more."""
        known = self._watermark.log_end if self._watermark is not None else 0
        begin = max(known, self._report.start_offset)
        for damage in sorted(self._report.damage, key=lambda damage: damage.begin):
            self._log.write_again(begin, damage.begin)
            begin = max(begin, damage.end)
        self._log.write_again(begin, self._report.end_offset)

    def _make_durable(self) -> None:
        """What was found in the page cache may never have reached the disk."""
        start = self._report.start_offset
        for file in self._log.mapped.files:
            if file.end > start:
                file.data.sync()
        for part in self._parts.in_order:
            part.flush()
