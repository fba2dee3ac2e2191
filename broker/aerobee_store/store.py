"""The message store: the one class that the broker opens; it writes, and gives out its parts for all else.

reading    what can be asked about messages of a queue; asking: the same, but never waiting for the disk
keys       messages by their keys, and indexing them
packing    records that come ready made
topics     which topics there are; topics of batches, deletions
timers     the files of messages that wait for a moment
cleaner    old files
scrubbing  rot
watch      files that went away
health     whether the disk can still be written

Touches  one store folder, through StoreIo; the clock is passed in. No sockets, no asyncio.

A message's way: append() gives it its offsets and writes it to the log; flush_disk() makes it durable;
confirm() writes its queue entry, from when on readers see it; build_index() makes it findable by key.

Invariants
- flushed_offset <= end_offset and confirmed_offset <= end_offset. In sync mode the caller confirms nothing
  beyond flushed_offset, so that nobody reads what a power failure could take back.
- After a failed sync, or a file that could not be made for another reason than a full disk (read-only, no
  permission, an error of the device), nothing is written any more and `abort` stays: what is on disk is
  known again only after the next start has looked. The same holds when somebody else takes a file away.

Threads: everything is called by one thread, but flush_disk(), which a flusher thread may call beside it,
flush_queues(), write_checkpoint(), preallocate() and scrubbing.step(), which a third may, and watch.look(), for a
fourth.
What they share with the rest: the log's end (one tuple, replaced per append), what each has flushed (written by
that thread alone), and the rows of files (tuples, replaced). close() is called when none of the first three is
inside.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.properties import TIMER_OUT_MS, find_property
from aerobee_store.checking.check import check_agreement
from aerobee_store.checking.file_watch import FileWatch, OpenFiles
from aerobee_store.checking.scrub import ScrubParts
from aerobee_store.checking.scrubbing import Scrubbing
from aerobee_store.cleaning.cleaning import Cleaner
from aerobee_store.disk.file_maps import DESCRIPTORS_A_FILE
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.lock import StoreGuard
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import (
    CutRefused,
    OutOfResources,
    StoreError,
    StoreFull,
    StoreNotWriteable,
    StorePoisoned,
)
from aerobee_store.faults.health import StoreHealth
from aerobee_store.index.index import IndexDurable, IndexService
from aerobee_store.log.checkpoint import Checkpoint, Stamps, Watermark
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.damage_events import log_damage
from aerobee_store.queues.consume_queue import ENTRY_SIZE
from aerobee_store.queues.queue_list import QueueList, listed
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.reading.get_message import MessageReader
from aerobee_store.reading.key_lookup import KeyLookup
from aerobee_store.reading.residency import Residency
from aerobee_store.reading.stored_messages import StoredMessages
from aerobee_store.recovery.cutting import begin_cut, end_cut, forget_deliveries
from aerobee_store.recovery.recovery import QUARANTINE, REBUILD_MARKER, Parts, RecoveryReport, recover
from aerobee_store.replicas.comparing import LogComparison
from aerobee_store.replicas.epochs import EPOCH_FILE, EpochFile
from aerobee_store.replicas.raw_log import RawLog
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import Appended, Arrival, NewMessage, PutStatus
from aerobee_store.terms.parts import StorePart
from aerobee_store.terms.statistics import StoreStatistics
from aerobee_store.timer.timer_files import Verified
from aerobee_store.timer.timer_part import TimerPart, TimerShape
from aerobee_store.walking.agreement import header_at
from aerobee_store.writing.appender import Appender
from aerobee_store.writing.dispatcher import Dispatcher, Showing
from aerobee_store.writing.packing import Packing
from aerobee_store.writing.stored_topics import StoredTopics

__all__ = ["MessageStore"]

log = structlog.get_logger()

# While the disk is full, how often a send may try again whether there is room.
_FULL_RETRY_MS = 1000
# Queue files are synced one after the other so long, and what is left then by one call for all. That gives the disk
# everything at once, and a send that waits for the log waits behind it: with 388 queues up to 130 ms
# (bench/attack.py --flush sync --only "every queue"). Without a rest between two of them, what waits for the log
# meets such a sync each time.
SPARING_MS = 3000
_READ_COUNT_MAX = 1024  # messages that one read is asked for
_OTHER_FILES = 9  # checkpoint, lock, files of the timer, the next files of log and index
_MS_DIGITS_MAX = 18

_What = TypeVar("_What")
_Done = TypeVar("_Done")


class MessageStore:
    """One open store folder."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        io: StoreIo,
        clock: Callable[[], int],
        on_failure: Callable[[OSError], None] = lambda error: None,
        on_progress: Callable[[str, int], None] = lambda step, size: None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """`clock` gives the time in ms since the epoch. Nothing is touched before open().

        `on_failure` is called once, by the thread that met it, when the disk has failed for good, or a file is gone.
        open() tells `on_progress` how far it is: the step, and how many more bytes of the log are behind it. `rest` is
        called before each sync of a queue file while others wait for the same disk, by the thread that syncs.
        """
        self._config = config
        self._io = io
        self._clock = clock
        self.is_open: bool = False
        self._guard = StoreGuard(config.root, io)
        self._checkpoint = Checkpoint(config.root / "checkpoint", io)
        self._log = CommitLog(config.commit_log_path, config.commit_log_file_size, io)
        self._queues = QueueTable(
            config.consume_queue_path,
            config.consume_queue_file_size,
            io,
            batch_file_size=config.batch_queue_file_size,
        )
        self._queues.spares_others = self._spares_others
        self._rest = rest
        self._spares_until = 0  # by the clock; moved by each flush_queues()
        self._index = IndexService(
            config.index_path, io, clock, slot_count=config.index_slots, entry_limit=config.index_entries
        )
        self._appender = Appender(self._log, self._queues, config)
        self._dispatcher = Dispatcher(self._appender.pending, self._index if config.index_enabled else None)
        self.showing: Showing = self._dispatcher
        self._reader = MessageReader(self._log, self._queues, config, on_wrong_entry=_log_wrong_entry)
        # What of log and queues is in memory, and a reader that asks before it reads.
        self.residency = Residency(
            self._log,
            count_max=max(config.scan_size_max // ENTRY_SIZE + 1, _READ_COUNT_MAX),
            ahead_size=config.read_ahead_size,
        )
        self._asking_reader = MessageReader(
            self._log, self._queues, config, on_wrong_entry=_log_wrong_entry, residency=self.residency
        )
        self._tombstones = Tombstones(config.root, io)
        # Which mastership of its set wrote which part of the log.
        self.epochs = EpochFile(config.root / EPOCH_FILE, io)
        # Whether anything can be written any more.
        self.health = StoreHealth(
            config.root,
            flushed_offset=lambda: self._log.flushed_offset,
            forget=self._forget_what_is_gone,
            on_failure=on_failure,
        )
        # What can be asked about messages, by their queues and by their keys; `asking` raises NotInMemory where
        # `reading` would wait for the disk.
        self.reading, self.asking = (
            StoredMessages(
                self._log,
                self._queues,
                self._appender,
                reader,
                config,
                kept_offset=lambda: self._dispatcher.kept_offset,
                residency=residency,
            )
            for reader, residency in ((self._reader, None), (self._asking_reader, self.residency))
        )
        self.keys = KeyLookup(
            self._index,
            self.residency,
            self._queues,
            self._dispatcher,
            self.health,
            count_max=config.query_count_max,
        )
        # Records that somebody else has made.
        self.packing = Packing(self._log, self._appender, clock, is_ready=self._is_ready, write=self._write)
        # Records of another log. Whoever is quick at proving them says so there.
        self.raw = RawLog(self._log, self._appender, self._tombstones, config)
        # Which topics there are, and how they come and go.
        self.topics = StoredTopics(
            self._log,
            self._queues,
            self._appender,
            self._tombstones,
            self.health,
            plan_again=self.raw.plan_again,
            is_open=lambda: self.is_open,
        )
        shape = None
        if config.timer_precision_ms is not None:
            shape = TimerShape(config.timer_precision_ms, config.timer_log_file_size)
        self.timers = TimerPart(
            config.root,
            io,
            shape,
            verify=self._timer_message,
            is_message=self._is_timer_message,
            log_range=lambda: (self._log.min_offset, self._log.end_offset),
            queue_end=self._timer_queue_end,
        )
        # In the order in which they are opened and recovered; closed the other way round.
        index = (self._index,) if config.index_enabled else ()
        self._parts: tuple[StorePart, ...] = (
            self._log,
            self._queues,
            self._checkpoint,
            *index,
            self.timers,
        )
        # Of these what dispatch makes from the log, durable at intervals; the queues first.
        self._dispatched: tuple[StorePart, ...] = (self._queues, *index)
        # What the log says of itself to be compared with the one of which it is a copy.
        self.comparison = LogComparison(self._log)
        # Deletes old files; see there which thread may do what.
        self.cleaner = Cleaner(self._log, self._queues, self._index, self.timers, io)
        rows: list[OpenFiles] = [
            self._log.open_files,
            self._checkpoint.open_files,
            self._index.open_files,
            self.timers.open_files,
        ]
        # What looks after the files while the store is open: whether they are there, and whether they have rotted.
        self.watch = FileWatch(config, self._guard, rows, self._queues, self.health)
        self.scrubbing = Scrubbing(
            self.health,
            timer_faults=self.timers.faults,
            on_damage=self._read_with_care_below,
            on_wrong_entry=_log_wrong_entry,
        )
        self._checkpointing = threading.RLock()  # a failure may be met inside
        self._on_progress = on_progress
        # When room may be looked for again after the disk was full, ms since the epoch; 0: it is not full.
        self.full_until = 0
        # What was met then: a full disk, or a process that may not open more.
        self._full_by: StoreFull | None = None
        # The physical offset beyond which readers are to see nothing, whatever is on this disk: what other copies lack.
        # A close asks for it, and what confirm() is told is never beyond. None: there is no such.
        self.readers_limit: Callable[[], int] | None = None
        # Asked before messages are taken, if there is one: StoreError, they are not.
        self.condition: Callable[[], None] | None = None
        # Why sends are refused although there may be room; set by refuse_sends().
        self._refusal: str | None = None
        # (end_offset, newest store time) as one value, for the flusher.
        self._tail = (0, 0)
        # Store times of the newest message that is on disk. Written by flush_disk() only, after open().
        self._log_timestamp = 0
        # The rest is written by flush_queues() only, after open().
        self._queue_timestamp = 0
        self._index_timestamp = 0

    # --- start and end ---------------------------------------------------------------------------------

    def open(self, cut_to: int | None = None) -> RecoveryReport:
        """Take the lock, load and recover the store; what recovery found.

        With `cut_to` its log ends at that physical offset at most: all messages behind it go, for good, and whatever
        leads to them; with START_OVER all there is. CutRefused when no message begins or ends there; nothing has
        changed then.

        Raises StoreLocked when another process has it, CorruptStore when an operator must decide (the
        text names the file and the way out), StoreFull when there is no room to go on. Nothing stays
        locked or open then.
        """
        if self.is_open:
            raise StoreError("the store is open already")
        try:
            self._guard.enter()
            report = self._load_and_recover(cut_to)
        except BaseException:
            self._release()
            raise
        self.is_open = True
        self.watch.begin()
        self._log_recovery(report)
        return report

    def _load_and_recover(self, cut_to: int | None) -> RecoveryReport:
        aborted = self._guard.was_aborted
        if not aborted:
            self._guard.announce_changes(os.getpid())
            failpoints.hit("store.abort_written")
        try:
            if cut_to is not None:
                forget_deliveries(self._config.root, self._io)
            for part in self._parts:
                part.load()
            if self._guard.was_left_by_another:
                self._checkpoint.distrust()
            self._tombstones.load()
            self.epochs.load()
            self._share_descriptors()
        except (StoreError, OSError):
            if not aborted:
                self._guard.all_changes_durable()
            raise
        if aborted:
            # Before anything is done because of a name that is there, or of what is found under it.
            self._sync_names()
        parts = Parts(
            self._log,
            self._queues,
            self._index,
            self._checkpoint,
            self._config,
            self._io,
            self._parts,
            self._tombstones,
            self._on_progress,
        )
        try:
            cut = begin_cut(parts, cut_to, interrupted=aborted and not self._guard.was_left_by_another)
        except CutRefused:
            if not aborted:
                self._guard.all_changes_durable()
            raise
        report = recover(parts, aborted=aborted or cut is not None)
        report.cut = cut
        if cut is not None:
            self.epochs.cut(cut.physical_offset)
        if report.aborted:
            # What was cut and found zero may have been made so by a run that ended before its sync.
            self._queues.flush()
        # Messages that are written where deleted ones were lost are not theirs.
        self._tombstones.clamp(report.end_offset)
        self._tombstones.save()
        self._begin(report)
        return report

    def _share_descriptors(self) -> None:
        """Queues get what the other files leave; there are more of those with time."""
        others = len(self._log.mapped.files) + len(self._index.files) + _OTHER_FILES
        if self._config.descriptors_max is not None and self._config.maps_max is not None:
            left = self._config.descriptors_max - DESCRIPTORS_A_FILE * others
            self._queues.open_files.allow(left, self._config.maps_max - others)

    def _sync_names(self) -> None:
        """Names that a killed process had made may not be on disk: it was to sync their folders next."""
        root, queues = self._config.root, self._config.consume_queue_path
        folders = [root.parent, root, root / "config", root / QUARANTINE]
        folders += [self._config.commit_log_path, self._config.index_path, queues, root / "timerlog"]
        folders.append(self._config.batch_queue_path)
        folders += [self._queues.folder_of(topic) for topic in self._queues.topics]
        folders += [queue.folder for queue in self._queues]
        self._io.sync_all([], folders)

    def _begin(self, report: RecoveryReport) -> None:
        end, shown = report.end_offset, report.end_offset
        self._tail = (end, report.last_store_timestamp)
        self._log.proven_from = report.start_offset
        self._reader.written_from = self._asking_reader.written_from = end
        if report.held_back is not None:
            shown = report.held_back.physical_offset
            self.raw.hold_back(report.held_back.found)
        self._dispatcher.confirmed_offset = self._dispatcher.kept_offset = shown
        self._dispatcher.confirmed_timestamp = report.shown_timestamp
        self._queues.watermark = shown
        self._index.durable = IndexDurable(shown, self._index.end_offset)
        if not self._config.record_checksum:
            self._log.checksum_from = None
        elif self._log.checksum_from is None:
            self._log.checksum_from = end
        old = self._checkpoint.stamps
        newest, newest_shown = report.last_store_timestamp, report.shown_timestamp
        self._log_timestamp = max(old.log_timestamp, newest if report.aborted else 0)
        self._queue_timestamp = max(old.queue_timestamp, newest_shown if report.aborted else 0)
        self._index_timestamp = self._index.full_timestamp or old.index_timestamp
        self.scrubbing.begin(
            ScrubParts(
                self._log,
                self._queues,
                self._config,
                self._io,
                self._tombstones,
                lambda: self.settled_offset,
                frozenset((topic, queue_id) for topic, queue_id, _ in report.shifted_queues),
            )
        )
        self.write_checkpoint()
        if self._guard.was_left_by_another:
            # From here on the checkpoint is right again; not before.
            self._guard.announce_changes(os.getpid())
        if self._io.read_bytes(self._config.root / REBUILD_MARKER) is not None:
            self._io.unlink(self._config.root / REBUILD_MARKER)
        if report.cut is not None:
            failpoints.hit("cutting.recovered")
            end_cut(self._config.root, self._io)

    def _read_with_care_below(self, physical_offset: int) -> None:
        for reader in (self._reader, self._asking_reader):
            reader.written_from = max(reader.written_from, physical_offset)

    def _log_recovery(self, report: RecoveryReport) -> None:
        for name in self._index.foreign_names:
            log.warning("store.foreign_file_found", path=str(self._config.index_path / name))
        for damage in report.damage:
            log_damage(damage.path, damage.begin, damage.end, damage.reason)
        if report.torn_bytes:
            log.warning("store.torn_end_cut", physical_offset=report.end_offset, size=report.torn_bytes)
        for topic, queue_id, offset, count in report.dropped:
            log.warning(
                "store.entries_dropped", topic=topic, queue_id=queue_id, logical_offset=offset, count=count
            )
        for topic, queue_id, file, reason in report.cut_queues:
            log.warning("store.queue_rebuilt", topic=topic, queue_id=queue_id, path=file, reason=reason)
        for text in report.lost:
            log.error("store.loss_accepted", reason=text)
        if report.cut is not None:
            # Where all of it went (START_OVER) nobody knows any more where it began.
            cut = report.cut
            size = {} if cut.physical_offset < 0 else {"size": cut.end_offset - cut.physical_offset}
            log.warning("store.log_cut", **size, **asdict(cut))
        facts: dict[str, Any] = asdict(replace(report, held_back=None))  # it has more than facts
        del facts["cut"], facts["held_back"]
        for name in ("cut_queues", "damage", "dropped", "lost", "shifted_queues", "removed_index_files"):
            facts[name] = len(facts[name])
        log.info("store.recovered", **facts)

    def close(self) -> None:
        """Make everything durable and readable, remove the mark of an unfinished run, give the lock back.

        After a failed sync nothing is written and the mark stays. Calling it again does nothing. OSError: the disk
        failed on the way, whoever met it.
        """
        if not self.is_open:
            return
        self.is_open = False
        self.watch.end()
        try:
            if self.health.reason is None:
                self._settle()
        except StorePoisoned:
            # Who puts keys tells `health` and raises nothing.
            assert self.health.failure is not None
            raise self.health.failure from None
        except OSError as error:
            self.health.fail("store folder", error)
            raise
        finally:
            self._release()
        log.info("store.closed", end_offset=self._tail[0], poisoned=self.health.reason is not None)

    def _settle(self) -> None:
        failpoints.hit("store.closing")
        try:
            self.flush_disk()
            limit = self._log.flushed_offset
            if self.readers_limit is not None:
                limit = min(limit, self.readers_limit())
            self.confirm(limit)
            self.keys.build(self.keys.backlog)
            self.flush_queues()
            for part in self._parts:
                self._flush(part)  # what the flushes of a running store leave to others, too
            self.write_checkpoint()
            self._tombstones.save()
            self._list_queues()
            failpoints.hit("store.settled")
            held_back = self._appender.pending and self._appender.pending[0].end_offset > limit
            if not self._dispatcher.is_stuck and (held_back or not self._appender.pending):
                self._guard.all_changes_durable()
                failpoints.hit("store.abort_removed")
        except StoreFull as error:
            # The log has every message; the next start builds what found no room here.
            log.warning("store.closed_with_backlog", reason=str(error))

    def _list_queues(self) -> None:
        """Tell the next start which queues there are. Without it that start does not see when one goes away."""
        mark = self._checkpoint.mark
        queues = listed(self._queues)
        if mark is None or not queues or self._dispatcher.is_stuck:
            return
        try:
            QueueList(self._config.root, self._io).save(queues, self._checkpoint.generation, mark.log_end)
        except (OSError, StoreFull) as failed:
            log.warning("store.queue_list_not_saved", reason=str(failed))

    def _release(self) -> None:
        for part in reversed(self._parts):
            with contextlib.suppress(OSError):  # all that counts is synced, or has failed
                part.close()
        self._guard.leave()

    # --- writing ---------------------------------------------------------------------------------------

    @property
    def has_failed(self) -> bool:
        """Whether the disk has failed for good, or a file is gone; only another start may find out what is there."""
        return self.health.reason is not None

    @property
    def not_writeable_reason(self) -> str | None:
        """Why append() would refuse now, None if it would not."""
        if not self.is_open:
            return "it is not open"
        if self.health.reason is not None:
            return self.health.reason
        if self._config.is_copy:
            return "it is a slave's"
        if self._refusal is None and self.full_until and isinstance(self._full_by, OutOfResources):
            return str(self._full_by)
        return self._refusal or ("the disk is full" if self.full_until else None)

    def refuse_sends(self, reason: str | None) -> None:
        """Take no messages until this is called again with None: the disk is nearly full. Reads go on."""
        self._refusal = reason

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store messages in order; one answer each, refusals included.

        All are stored with one store time, by one write a file. Raises StoreNotWriteable (closed, or a
        sync failed: StorePoisoned) and StoreFull, with nothing stored.
        """
        return self._append(self._appender.append, messages)

    def check_group(self, messages: Sequence[NewMessage]) -> PutStatus:
        """What append_group() would answer, unless the disk is full or fails; nothing is stored."""
        return self._appender.check_group(messages)[0]

    def append_group(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """As append(), but all or none, in one file: a client's batch."""
        return self._append(self._appender.append_group, messages)

    def _append(
        self, write: Callable[[Sequence[NewMessage], int], list[Appended]], messages: Sequence[NewMessage]
    ) -> list[Appended]:
        if not self.is_open or self.health.reason is not None or self.full_until or self._refusal:
            self._check_writeable()
        if self._config.is_copy:
            raise StoreNotWriteable("it is a slave's: its log is its master's")
        if self.condition is not None:
            self.condition()
        if self._tombstones.is_dirty:
            self.topics.settle_deletions()
        return self._write(write, messages, self._clock())

    def _write(self, write: Callable[[_What, int], _Done], what: _What, now_ms: int) -> _Done:
        try:
            return write(what, now_ms)
        except StoreFull as error:
            self._wait_for_room(error, now_ms)
            raise
        except OSError as error:
            raise self.health.fail("commit log", error) from error
        finally:
            self._tail = (self._log.end_offset, now_ms)

    def _is_ready(self) -> bool:
        """Whether append() would do nothing but write."""
        if not self.is_open or self.health.reason is not None or self.full_until or self._refusal:
            return False
        if self._tombstones.is_dirty or self._config.is_copy:
            return False
        if self.condition is not None:
            try:
                self.condition()
            except StoreError:
                return False  # append() tells it
        return True

    @property
    def given_offset(self) -> int:
        """Physical offset below which replicas may have the log: what is on disk, or with sync_flush off all of it."""
        return self.raw.given_offset

    def read_raw(self, offset: int, size: int) -> memoryview:
        """Bytes of the log for a replica: at most `size` from the physical `offset` on, up to the end of its file, the
        blank there with it, and to `given_offset`. None at the end of that. NotInLog for an offset that was cleaned
        away, or that lies beyond `given_offset`."""
        return self.raw.read(offset, size)

    @property
    def next_raw_offset(self) -> int:
        """The physical offset from which on append_raw() wants bytes."""
        return self.raw.next_offset

    def append_raw(self, offset: int, *pieces: bytes | memoryview) -> int:
        """Take the bytes that lie at the physical `offset` in the log of which this store is a replica, as read_raw()
        gave them, cut anywhere, in pieces that follow each other; the new end_offset. What comes of a record that is
        not complete is not in the log yet.

        `offset` is next_raw_offset, or end_offset to begin anew there; an empty store may begin with any file. Else
        NotInLog. CorruptStore when what became complete is no record of that place; nothing is taken then. Readers see
        it as they see what append() stored: after confirm(). Other errors as append().
        """
        if not self.is_open or self.health.reason is not None or self.full_until or self._refusal:
            self._check_writeable()
        if self._tombstones.is_dirty:
            self.topics.settle_deletions()
        if self._log.checksum_from is not None:
            # Nobody knows what the source seals: the next start must not take its records for damaged ones.
            self._log.checksum_from = None
            try:
                self.write_checkpoint()
            except OSError as error:
                raise self.health.fail("checkpoint", error) from error
        try:
            newest = self.raw.append(offset, *pieces)
        except StoreFull as error:
            self._wait_for_room(error, self._clock())
            raise
        except OSError as error:
            raise self.health.fail("commit log", error) from error
        self._tail = (self._log.end_offset, self._tail[1] if newest is None else newest)
        return self._log.end_offset

    def _wait_for_room(self, error: StoreFull, now_ms: int) -> None:
        """Take no messages for a while; tell why."""
        self.full_until = now_ms + _FULL_RETRY_MS
        self._full_by = error.with_traceback(None)
        if isinstance(error, OutOfResources):
            log.warning(
                "store.resources_used_up", path=str(error.path), limit=error.limit, way_out=error.way_out
            )
        else:
            log.warning("store.disk_full_met", path=str(error.path), wanted_bytes=error.needed)

    def _check_writeable(self) -> None:
        if not self.is_open:
            raise StoreNotWriteable("it is not open")
        self.health.check()
        if self._refusal is not None:
            raise StoreNotWriteable(self._refusal)
        if self._dispatcher.is_stuck or self._clock() < self.full_until:
            cause = self._dispatcher.stuck_by or self._full_by
            if isinstance(cause, OutOfResources):
                raise cause.with_traceback(None)
            raise StoreFull(self._config.root, self._config.commit_log_file_size)
        self.full_until = 0
        self._full_by = None

    @property
    def end_offset(self) -> int:
        """Physical offset one past the last byte appended."""
        return self._log.end_offset

    @property
    def flushed_offset(self) -> int:
        """Physical offset below which the log is on disk."""
        return self._log.flushed_offset

    @property
    def confirmed_offset(self) -> int:
        """Physical offset below which readers see messages."""
        return self._dispatcher.confirmed_offset

    @property
    def settled_offset(self) -> int:
        """Physical offset below which messages and their queue entries are on disk, as after the last flush_queues().

        Nothing above may be cleaned away: a queue that lost both would give out its numbers again.
        """
        return min(self._queues.watermark, self._log.watermark)

    @property
    def newest_timestamp(self) -> int:
        """Store time (ms) of the newest append; before the first one, as far as the checkpoint and recovery tell."""
        return max(self._tail[1], self._log_timestamp)

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first byte that is kept."""
        return self._log.min_offset

    def confirm(self, offset: int, *, notify: bool = True, begun_max: int = 0) -> list[Arrival]:
        """Let readers see every batch that ends at or below `offset`; what arrived, per queue, if `notify` is set.

        Batches are confirmed whole. Entries that find no room on the disk are tried again by the next
        call; until then sends are refused. After a failure of the disk nothing arrives any more. At
        most `begun_max` batches begin queues (0: all), each of which has a folder and a file made, which may
        take a millisecond. `showing` says whether there is more.
        """
        if self.health.reason is not None:
            return []
        if failpoints.active:
            failpoints.hit("store.before_confirm")
        dispatcher = self._dispatcher
        try:
            arrivals = dispatcher.confirm(offset, notify=notify, begun_max=begun_max)
        except OSError as error:
            self.health.fail("consume queue", error)
            return []
        if failpoints.active:
            failpoints.hit("store.after_confirm")
        if dispatcher.is_stuck and not self.full_until:
            cause = dispatcher.stuck_by
            self._wait_for_room(cause or StoreFull(self._config.consume_queue_path, 0), self._clock())
        return arrivals

    # --- durability ------------------------------------------------------------------------------------

    def flush_disk(self) -> int:
        """Make all that was appended before the call durable; the new flushed_offset.

        For the flusher thread. OSError is final: the store takes nothing any more and the caller must
        answer the waiting senders with an error. StorePoisoned when that happened before.
        """
        self.health.check()
        _, newest = self._tail
        self._flush(self._log)
        self._log_timestamp = max(newest, self._log_timestamp)
        return self._log.flushed_offset

    def _flush(self, part: StorePart) -> int:
        try:
            return part.flush()
        except OSError as error:
            self.health.fail(part.title, error)
            raise

    def _spares_others(self) -> bool:
        """Whether somebody may wait for the disk while queues are flushed, and that has not taken long yet: rested for
        them then."""
        if not self.is_open or self._clock() >= self._spares_until:
            return False
        self._rest()
        return True

    def flush_queues(self) -> int:
        """Make queues and index durable, as far as they are written; how many files of queues were synced.

        Errors as flush_disk().
        """
        self.health.check()
        confirmed, stamp = self._dispatcher.confirmed_offset, self._dispatcher.confirmed_timestamp
        indexed = self._dispatcher.indexed_offset if self._config.index_enabled else confirmed
        index_last = self._index.end_offset
        settled = not self._dispatcher.is_stuck
        self._share_descriptors()
        self._spares_until = self._clock() + SPARING_MS
        count, *_ = [self._flush(part) for part in self._dispatched]
        if settled:
            self._queues.watermark = confirmed
            self._index.durable = IndexDurable(min(indexed, confirmed), index_last)
            self._queue_timestamp = max(stamp, self._queue_timestamp)
            self._index_timestamp = max(self._index.full_timestamp, self._index_timestamp)
        return count

    def write_checkpoint(self) -> None:
        """Write how far everything is on disk. Errors as flush_disk()."""
        with self._checkpointing:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        self.health.check()
        flushed = self._log.watermark
        queue_end = min(self._queues.watermark, flushed)
        sealed = self._log.checksum_from
        index_end, index_last = self._index.durable
        watermark = Watermark(
            flushed,
            queue_end,
            min(index_end, queue_end),
            index_last,
            -1 if sealed is None else sealed,
        )
        try:
            self._checkpoint.write(self._stamps(), watermark)
        except OSError as error:
            self.health.fail("checkpoint", error)
            raise

    def _stamps(self) -> Stamps:
        kept = self._checkpoint.stamps
        return kept._replace(
            log_timestamp=self._log_timestamp,
            queue_timestamp=self._queue_timestamp,
            index_timestamp=self._index_timestamp,
        )

    def _forget_what_is_gone(self, path: Path) -> None:
        """Let the next start ask the log for what was in the file: the checkpoint says that it is on disk."""
        config = self._config
        folders = (config.consume_queue_path, config.batch_queue_path, config.index_path)
        if not any(path.is_relative_to(folder) for folder in folders):
            return
        with self._checkpointing, contextlib.suppress(OSError, StoreError):
            mark = self._checkpoint.mark or Watermark(0, 0, 0)
            self._checkpoint.write(
                self._checkpoint.stamps, mark._replace(queue_end=0, index_end=0, index_last=-1)
            )

    def preallocate(self) -> bool:
        """Create the next files of log and index ahead of their use; True if one was made. For a worker thread.

        Errors as flush_disk().
        """
        is_made = False
        if self._config.is_copy and not self._log.mapped.files:
            return is_made  # which file it begins with, its source decides
        for part in (self._log, self._index):
            if not self.is_open or self.health.reason is not None or self._refusal is not None:
                break
            try:
                is_made = part.prepare_next() or is_made
            except StoreFull:
                break
            except OSError as error:
                self.health.fail(part.title, error)
                raise
        return is_made

    def statistics(self) -> StoreStatistics:
        """How it stands at this moment, for status lines and metrics."""
        return StoreStatistics(
            min_physical_offset=self._log.min_offset,
            end_offset=self._log.end_offset,
            flushed_offset=self._log.flushed_offset,
            confirmed_offset=self.confirmed_offset,
            dispatch_behind_bytes=self._log.end_offset - self.confirmed_offset,
            index_backlog=self._dispatcher.index_backlog,
            commit_log_files=len(self._log.mapped.files),
            queues=len(self._queues),
            open_queue_files=len(self._queues.open_files),
            closed_queue_files=self._queues.open_files.closed_count,
            index_files=len(self._index.files),
            damaged_stretches=len(self._log.damaged),
            scrubbed_bytes=self.scrubbing.size,
        )

    def _timer_message(self, physical_offset: int, size: int) -> Verified | None:
        """The timer message that lies there, proven; None when there is none of this size."""
        record = None if self._log.is_damaged(physical_offset) else self._log.scan(physical_offset)
        if record is None or record.size != size or record.topic != TIMER_TOPIC:
            return None
        out_ms = find_property(record.properties, TIMER_OUT_MS.encode()) or b""
        if not out_ms.isdigit() or len(out_ms) > _MS_DIGITS_MAX:
            return None
        return Verified(record.queue_offset, int(out_ms))

    def _timer_queue_end(self) -> int:
        queue = self._queues.get(TIMER_TOPIC, 0)
        return 0 if queue is None else queue.max_offset

    def _is_timer_message(self, physical_offset: int, size: int) -> bool:
        if self._log.is_damaged(physical_offset):
            return True  # named already
        header = header_at(self._log, physical_offset)
        return header is not None and header.size == size and header.topic == TIMER_TOPIC

    def check(self) -> None:
        """Walk everything and compare it with everything; CorruptStore at the first broken invariant.

        Slow: for tests and for operators.
        """
        for part in self._parts:
            part.check()
        indexed = self._index, self._dispatcher.indexed_offset if self._config.index_enabled else 0
        check_agreement(
            self._log, self._queues, self._config, self.confirmed_offset, self._tombstones, indexed
        )


def _log_wrong_entry(topic: str, queue_id: int, offset: int, reason: str) -> None:
    log.warning("store.entry_wrong", topic=topic, queue_id=queue_id, logical_offset=offset, reason=reason)
