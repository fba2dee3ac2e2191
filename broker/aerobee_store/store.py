"""The message store: the one class that the broker talks to.

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
flush_queues(), write_checkpoint() and preallocate(), which a third may, and look_after_files(), for a fourth.
What they share with the rest: the log's end (one tuple, replaced per append), what each has flushed (written by
that thread alone), and the rows of files (tuples, replaced). close() is called when none of the first three is
inside.
"""

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.records import RECORD_SIZE_MIN
from aerobee_store import failpoints
from aerobee_store.agreement import header_at
from aerobee_store.appender import Appender
from aerobee_store.batch_queue import BatchQueue
from aerobee_store.batch_queues import batch_topics
from aerobee_store.check import check_store
from aerobee_store.checkpoint import Checkpoint, Stamps, Watermark
from aerobee_store.cleaning import Cleaner
from aerobee_store.commit_log import CommitLog
from aerobee_store.config import StoreConfig
from aerobee_store.consume_queue import ConsumeQueueEntry
from aerobee_store.dispatcher import Dispatcher
from aerobee_store.errors import (
    CorruptStore,
    FileGone,
    OutOfResources,
    StoreError,
    StoreFull,
    StoreNotWriteable,
    StorePoisoned,
)
from aerobee_store.file_watch import FileWatch, OpenFiles
from aerobee_store.get_message import GetResult, MessageReader, Selector
from aerobee_store.index import IndexService, finished
from aerobee_store.io import StoreIo
from aerobee_store.lock import StoreGuard
from aerobee_store.log_walk import Damage
from aerobee_store.messages import Appended, Arrival, NewMessage, PutStatus
from aerobee_store.offset_by_time import offset_by_time
from aerobee_store.query import QueryResult, query_messages
from aerobee_store.queue_files import DESCRIPTORS_A_FILE
from aerobee_store.queue_list import QueueList, listed
from aerobee_store.queue_table import QueueTable
from aerobee_store.recovery import QUARANTINE, REBUILD_MARKER, Parts, RecoveryReport, recover
from aerobee_store.scrub import Scrubber, ScrubParts, ScrubStep
from aerobee_store.timer_check import TimerFault, timer_faults
from aerobee_store.tombstones import Tombstones

__all__ = ["MessageStore"]

log = structlog.get_logger()

# While the disk is full, how often a send may try again whether there is room.
_INDEX_STEP = 4096  # messages whose keys a query indexes at a time
_FULL_RETRY_MS = 1000
_OTHER_FILES = 8  # checkpoint, lock, files of the timer, the next file of the log
# physical offset, sys flag; then store time, behind a born host of 8 or 20 bytes
_PLACE_AND_FLAG = struct.Struct(">28xqi")
_STORE_TIME_AT = (56, 68)
_TIME = struct.Struct(">q")
_BORN_V6 = 0x10


class MessageStore:
    """One open store folder."""

    def __init__(self, config: StoreConfig, *, io: StoreIo, clock: Callable[[], int]) -> None:
        """`clock` gives the time in ms since the epoch. Nothing is touched before open()."""
        self._config = config
        self._io = io
        self._clock = clock
        self._guard = StoreGuard(config.root, io)
        self._checkpoint = Checkpoint(config.root / "checkpoint", io)
        self._log = CommitLog(config.commit_log_path, config.commit_log_file_size, io)
        self._queues = QueueTable(
            config.consume_queue_path,
            config.consume_queue_file_size,
            io,
            batch_file_size=config.batch_queue_file_size,
        )
        self._index = IndexService(
            config.index_path, io, clock, slot_count=config.index_slots, entry_limit=config.index_entries
        )
        self._appender = Appender(self._log, self._queues, config)
        self._dispatcher = Dispatcher(self._appender.pending, self._index if config.index_enabled else None)
        self._reader = MessageReader(self._log, self._queues, config)
        self._reader.on_wrong_entry = self._tell_wrong_entry
        self._tombstones = Tombstones(config.root, io)
        # Deletes old files; see there which thread may do what.
        self.cleaner = Cleaner(self._log, self._queues, self._index, io)
        self.is_open = False
        # Why nothing can be written any more; set by whichever thread met the failure, never cleared.
        self._poison: str | None = None
        # What it was; set with _poison.
        self.failure: OSError | None = None
        # Files of others that lie in the store folder, to be looked after with its own.
        self.watched: list[OpenFiles] = []
        rows: list[OpenFiles] = [
            self._log.open_files,
            self._checkpoint.open_files,
            self._index.open_files,
            lambda: [file for row in self.watched for file in row()],
        ]
        self._watch = FileWatch(rows, self._queues)
        self._looking = threading.Lock()  # against close()
        self._look_failed = False
        self._checkpointing = threading.RLock()  # a failure may be met inside
        # Called once, by the thread that met it, when the disk has failed for good, or a file is gone.
        self.on_failure: Callable[[OSError], None] = lambda error: None
        # Made by open(), used by scrub() only.
        self._scrubber: Scrubber | None = None
        # Counted by scrub(): bytes read, damaged stretches found, entries written again; the last two of this round.
        self._scrubbed = self._scrub_damage = self._scrub_mended = 0
        # Told by open() how far it is: the step, and how many more bytes of the log are behind it.
        self.on_progress: Callable[[str, int], None] = lambda step, size: None
        # When room may be looked for again after the disk was full, ms since the epoch; 0: it is not full.
        self._full_until = 0
        # What was met then: a full disk, or a process that may not open more.
        self._full_by: StoreFull | None = None
        # Why sends are refused although there may be room; set by refuse_sends().
        self._refusal: str | None = None
        # (end_offset, newest store time) as one value, for the flusher.
        self._tail = (0, 0)
        # Store times of the newest message that is on disk. Written by flush_disk() only, after open().
        self._log_timestamp = 0
        # The rest is written by flush_queues() only, after open().
        self._queue_timestamp = 0
        self._index_timestamp = 0
        self._queue_end = 0
        self._index_end = 0
        self._index_last = -1

    # --- start and end ---------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Take the lock, load and recover the store; what recovery found.

        Raises StoreLocked when another process has it, CorruptStore when an operator must decide (the
        text names the file and the way out), StoreFull when there is no room to go on. Nothing stays
        locked or open then.
        """
        if self.is_open:
            raise StoreError("the store is open already")
        try:
            self._guard.enter()
            report = self._load_and_recover()
        except BaseException:
            self._release()
            raise
        self.is_open = True
        self._log_recovery(report)
        return report

    def _load_and_recover(self) -> RecoveryReport:
        batches = batch_topics(self._config.root, self._io)
        aborted = self._guard.was_aborted
        if not aborted:
            self._guard.announce_changes(os.getpid())
            failpoints.hit("store.abort_written")
        try:
            self._log.load()
            self._queues.load(batches)
            self._checkpoint.load()
            self._tombstones.load()
            if self._config.index_enabled:
                self._index.load()
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
            self._tombstones,
            self.on_progress,
        )
        report = recover(parts, aborted=aborted)
        if aborted:
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
            self._queues.open_files.allow(min(left // DESCRIPTORS_A_FILE, self._config.maps_max - others))

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
        end = report.end_offset
        self._tail = (end, report.last_store_timestamp)
        self._log.proven_from = report.start_offset
        self._reader.written_from = end
        self._dispatcher.confirmed_offset = end
        self._dispatcher.confirmed_timestamp = report.last_store_timestamp
        self._queue_end = self._index_end = end
        self._index_last = self._index.end_offset
        if not self._config.record_checksum:
            self._log.checksum_from = None
        elif self._log.checksum_from is None:
            self._log.checksum_from = end
        old = self._checkpoint.stamps
        newest = report.last_store_timestamp if report.aborted else 0
        self._log_timestamp = max(old.log_timestamp, newest)
        self._queue_timestamp = max(old.queue_timestamp, newest)
        self._index_timestamp = self._index.full_timestamp or old.index_timestamp
        self._scrubber = Scrubber(
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
        if self._io.read_bytes(self._config.root / REBUILD_MARKER) is not None:
            self._io.unlink(self._config.root / REBUILD_MARKER)

    def _log_recovery(self, report: RecoveryReport) -> None:
        for name in self._index.foreign_names:
            log.warning("store.foreign_file_found", path=str(self._config.index_path / name))
        for damage in report.damage:
            self._tell_one_damage(damage)
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
        facts: dict[str, Any] = asdict(report)
        for name in ("cut_queues", "damage", "dropped", "lost", "shifted_queues", "removed_index_files"):
            facts[name] = len(facts[name])
        log.info("store.recovered", **facts)

    def _tell_one_damage(self, damage: Damage) -> None:
        log.error(
            "store.damage_found",
            path=str(damage.path),
            physical_offset=damage.begin,
            end_offset=damage.end,
            reason=damage.reason,
        )

    def close(self) -> None:
        """Make everything durable and readable, remove the mark of an unfinished run, give the lock back.

        After a failed sync nothing is written and the mark stays. Calling it again does nothing.
        """
        with self._looking:
            if not self.is_open:
                return
            self.is_open = False
        try:
            if self._poison is None:
                self._settle()
        except OSError as error:
            self._fail("store folder", error)
            raise
        finally:
            self._release()
        log.info("store.closed", end_offset=self._tail[0], poisoned=self._poison is not None)

    def _settle(self) -> None:
        failpoints.hit("store.closing")
        try:
            self.flush_disk()
            self.confirm(self._log.flushed_offset)
            self.build_index(self.index_backlog)
            self.flush_queues()
            self.write_checkpoint()
            self._tombstones.save()
            self._list_queues()
            failpoints.hit("store.settled")
            if not self._dispatcher.is_stuck and not self._appender.pending:
                self._guard.all_changes_durable()
                failpoints.hit("store.abort_removed")
        except StoreFull as error:
            # The log has every message; the next start builds what found no room here.
            log.warning("store.closed_with_backlog", reason=str(error))

    def _list_queues(self) -> None:
        """Tell the next start which queues there are. Without it that start does not see when one goes away."""
        mark = self._checkpoint.watermark
        queues = listed(self._queues)
        if mark is None or not queues or self._dispatcher.is_stuck:
            return
        try:
            QueueList(self._config.root, self._io).save(queues, self._checkpoint.generation, mark.log_end)
        except (OSError, StoreFull) as failed:
            log.warning("store.queue_list_not_saved", reason=str(failed))

    def _release(self) -> None:
        for part in (self._checkpoint, self._index, self._queues, self._log):
            with contextlib.suppress(OSError):  # all that counts is synced, or has failed
                part.close()
        self._guard.leave()

    # --- writing ---------------------------------------------------------------------------------------

    @property
    def has_failed(self) -> bool:
        """Whether the disk has failed for good, or a file is gone; only another start may find out what is there."""
        return self._poison is not None

    @property
    def not_writeable_reason(self) -> str | None:
        """Why append() would refuse now, None if it would not."""
        if not self.is_open:
            return "it is not open"
        if self._poison is not None:
            return self._poison
        if self._refusal is None and self._full_until and isinstance(self._full_by, OutOfResources):
            return str(self._full_by)
        return self._refusal or ("the disk is full" if self._full_until else None)

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
        if not self.is_open or self._poison is not None or self._full_until or self._refusal:
            self._check_writeable()
        if self._tombstones.is_dirty:
            self._settle_deletions()
        now_ms = self._clock()
        try:
            answers = write(messages, now_ms)
        except StoreFull as error:
            self._wait_for_room(error, now_ms)
            raise
        except OSError as error:
            raise self._fail("commit log", error) from error
        finally:
            self._tail = (self._log.end_offset, now_ms)
        return answers

    def _wait_for_room(self, error: StoreFull, now_ms: int) -> None:
        """Take no messages for a while; tell why."""
        self._full_until = now_ms + _FULL_RETRY_MS
        self._full_by = error.with_traceback(None)
        if isinstance(error, OutOfResources):
            log.warning(
                "store.resources_used_up", path=str(error.path), limit=error.limit, way_out=error.way_out
            )
        else:
            log.warning("store.disk_full_met", path=str(error.path), wanted_bytes=error.wanted)

    def _settle_deletions(self) -> None:
        """No message may follow a deletion that a crash takes back: it could be of the same topic."""
        try:
            self._tombstones.save()
        except OSError as error:
            raise self._fail("list of deleted topics", error) from error

    def _check_writeable(self) -> None:
        if not self.is_open:
            raise StoreNotWriteable("it is not open")
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        if self._refusal is not None:
            raise StoreNotWriteable(self._refusal)
        if self._dispatcher.is_stuck or self._clock() < self._full_until:
            cause = self._dispatcher.stuck_by or self._full_by
            if isinstance(cause, OutOfResources):
                raise cause.with_traceback(None)
            raise StoreFull(self._config.root, self._config.commit_log_file_size)
        self._full_until = 0
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
        return min(self._queue_end, self._log.flushed_offset)

    @property
    def newest_timestamp(self) -> int:
        """Store time (ms) of the newest append; before the first one, as far as the checkpoint and recovery tell."""
        return max(self._tail[1], self._log_timestamp)

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first byte that is kept."""
        return self._log.min_offset

    def confirm(self, offset: int, *, tell: bool = True) -> list[Arrival]:
        """Let readers see every batch that ends at or below `offset`; what arrived, per queue, if `tell` is set.

        Batches are confirmed whole. Entries that find no room on the disk are tried again by the next
        call; until then sends are refused. After a failure of the disk nothing arrives any more.
        """
        if self._poison is not None:
            return []
        failpoints.hit("store.before_confirm")
        try:
            arrivals = self._dispatcher.confirm(offset, tell=tell)
        except OSError as error:
            self._fail("consume queue", error)
            return []
        failpoints.hit("store.after_confirm")
        if self._dispatcher.is_stuck and not self._full_until:
            cause = self._dispatcher.stuck_by
            self._wait_for_room(cause or StoreFull(self._config.consume_queue_path, 0), self._clock())
        return arrivals

    # --- durability ------------------------------------------------------------------------------------

    def flush_disk(self) -> int:
        """Make all that was appended before the call durable; the new flushed_offset.

        For the flusher thread. OSError is final: the store takes nothing any more and the caller must
        answer the waiting senders with an error. StorePoisoned when that happened before.
        """
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        _, newest = self._tail
        try:
            flushed = self._log.flush()
        except OSError as error:
            self._fail("commit log", error)
            raise
        self._log_timestamp = max(newest, self._log_timestamp)
        return flushed

    def flush_queues(self) -> int:
        """Make queues and index durable, as far as they are written; how many files of queues were synced.

        Errors as flush_disk().
        """
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        confirmed, stamp = self._dispatcher.confirmed_offset, self._dispatcher.confirmed_timestamp
        indexed = self._dispatcher.indexed_offset if self._config.index_enabled else confirmed
        index_last = self._index.end_offset
        settled = not self._dispatcher.is_stuck
        what = "consume queue"
        self._share_descriptors()
        try:
            count = self._queues.flush()
            what = "index"
            if self._config.index_enabled:
                self._index.flush()
        except OSError as error:
            self._fail(what, error)
            raise
        if settled:
            self._queue_end = confirmed
            self._index_end, self._index_last = min(indexed, confirmed), index_last
            self._queue_timestamp = max(stamp, self._queue_timestamp)
            self._index_timestamp = max(self._index.full_timestamp, self._index_timestamp)
        return count

    def write_checkpoint(self) -> None:
        """Write how far everything is on disk. Errors as flush_disk()."""
        with self._checkpointing:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        flushed = self._log.flushed_offset
        queue_end = min(self._queue_end, flushed)
        sealed = self._log.checksum_from
        watermark = Watermark(
            flushed,
            queue_end,
            min(self._index_end, queue_end),
            self._index_last,
            -1 if sealed is None else sealed,
        )
        try:
            self._checkpoint.write(self._stamps(), watermark)
        except OSError as error:
            self._fail("checkpoint", error)
            raise

    def _stamps(self) -> Stamps:
        kept = self._checkpoint.stamps
        return kept._replace(
            log_timestamp=self._log_timestamp,
            queue_timestamp=self._queue_timestamp,
            index_timestamp=self._index_timestamp,
        )

    def _fail(self, what: str, error: OSError) -> StorePoisoned:
        """The disk has failed for good; the first failure is told, others that follow from it are not."""
        gone = isinstance(error, FileGone)
        reason = f"the disk failed at the {what} ({error}); restart the broker after a look at it"
        if gone:
            reason = f"a file of the store is gone ({error}); restart the broker after a look at it"
        if self._poison is None:
            self._poison, self.failure = reason, error
            flushed = self._log.flushed_offset
            path = str(error.filename or self._config.root)
            event = "store.file_gone" if gone else "store.disk_failed"
            log.error(event, what=what, path=path, reason=str(error), flushed_offset=flushed)
            if isinstance(error, FileGone):
                self._forget_what_is_gone(error.path)
            self.on_failure(error)
        return StorePoisoned(reason)

    def _forget_what_is_gone(self, path: Path) -> None:
        """Let the next start ask the log for what was in the file: the checkpoint says that it is on disk."""
        config = self._config
        folders = (config.consume_queue_path, config.batch_queue_path, config.index_path)
        if not any(path.is_relative_to(folder) for folder in folders):
            return
        with self._checkpointing, contextlib.suppress(OSError, StoreError):
            mark = self._checkpoint.watermark or Watermark(0, 0, 0)
            self._checkpoint.write(
                self._checkpoint.stamps, mark._replace(queue_end=0, index_end=0, index_last=-1)
            )

    def fail(self, what: str, error: OSError) -> None:
        """Other files that the store's promises rest on could not be written: as final as a failed sync. From any
        thread."""
        self._fail(what, error)

    def look_after_files(self) -> None:
        """See whether every file is still in its place; one that is not is final, as a failed sync. Lock and abort
        are put back. For a thread of its own, which does this all the time.
        """
        with self._looking:
            if not self.is_open or self._poison is not None:
                return
            try:
                for path in self._guard.keep(os.getpid()):
                    log.warning("store.file_put_back", path=str(path))
                self._watch.look()
                self._look_failed = False
            except FileGone as gone:
                self._fail(_what(self._config, gone.path), gone)
            except (OSError, StoreFull) as failed:
                # Nobody can tell now; what writes will find out by itself.
                if not self._look_failed:
                    log.warning("store.files_not_looked_at", reason=str(failed))
                self._look_failed = True

    def preallocate(self) -> bool:
        """Create the next log file ahead of its use; True if one was made. For a worker thread.

        Errors as flush_disk().
        """
        if not self.is_open or self._poison is not None or self._refusal is not None:
            return False
        try:
            return self._log.prepare_next()
        except StoreFull:
            return False
        except OSError as error:
            self._fail("commit log", error)
            raise

    # --- index -----------------------------------------------------------------------------------------

    @property
    def index_backlog(self) -> int:
        """Messages whose keys are not indexed yet."""
        return self._dispatcher.index_backlog

    def build_index(self, limit: int) -> int:
        """Index the keys of at most `limit` waiting messages; how many keys. StoreFull keeps them waiting.

        After a failure of the disk none are indexed any more.
        """
        if self._poison is not None:
            return 0
        try:
            return self._dispatcher.build_index(limit)
        except OSError as error:
            self._fail("index", error)
            return 0

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int) -> QueryResult:
        """As query_steps(), at once."""
        return finished(self.query_steps(topic, key, max_num, begin, end))

    def query_steps(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> Generator[None, None, QueryResult]:
        """The newest `max_num` messages of `topic` that carry `key` (a KEYS word or the unique key) and were
        stored in [begin, end] (ms), oldest first.

        A key that very many messages share is looked for in steps of a few milliseconds; a yield ends each.
        """
        left = self.index_backlog
        with contextlib.suppress(StoreFull):  # the newest keys wait for room; what is indexed can be found
            while left > 0:
                self.build_index(min(left, _INDEX_STEP))
                left -= _INDEX_STEP
                if left > 0:
                    yield
        known = self._log.damaged
        found = yield from query_messages(
            self._index,
            self._log,
            self._queues,
            topic,
            key,
            min(max_num, self._config.query_count_max),
            begin,
            end,
        )
        if self._log.damaged is not known:
            self._tell_damage(known)
        return found

    # --- looking for rot -------------------------------------------------------------------------------

    def scrub(self) -> ScrubStep:
        """Read on a little in what is stored, and put aside or mend what is not as it was written.

        For the worker thread that deletes files. StoreFull when there is no room for the copy of a damaged stretch:
        it is not served all the same. Errors as flush_disk().
        """
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        if self._scrubber is None:
            raise StoreNotWriteable("it is not open")
        try:
            with self._queues.open_files.borrowing():
                step = self._scrubber.step()
        except OSError as error:
            self._fail("scrub", error)
            raise
        self._tell_scrubbed(step)
        return step

    def _tell_scrubbed(self, step: ScrubStep) -> None:
        for damage in step.damage:
            # The quick way of reads must not serve it either.
            self._reader.written_from = max(self._reader.written_from, damage.end)
            self._tell_one_damage(damage)
        for topic, queue_id, offset in step.mended:
            log.warning("store.entry_mended", topic=topic, queue_id=queue_id, logical_offset=offset)
        for topic, queue_id, offset in step.unmended:
            self._tell_wrong_entry(topic, queue_id, offset, "it does not lead to its record")
        self._scrubbed += step.size
        self._scrub_damage += len(step.damage)
        self._scrub_mended += len(step.mended)
        if step.is_round_done:
            self._tell_timer_faults()
            log.info(
                "store.scrub_finished",
                end_offset=self.settled_offset,
                damage=self._scrub_damage,
                mended=self._scrub_mended,
            )
            self._scrub_damage = self._scrub_mended = 0

    def _tell_timer_faults(self) -> None:
        try:
            for path, position, reason in self.timer_faults():
                log.error("store.timer_file_wrong", path=str(path), position=position, reason=reason)
        except FileNotFoundError:
            pass  # cleaned away meanwhile
        except (OSError, StoreError) as failed:
            root = str(self._config.root)
            log.error("store.timer_file_wrong", path=root, position=None, reason=str(failed))  # noqa: TRY400

    # --- reading ---------------------------------------------------------------------------------------

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_filter: frozenset[int] | None,
        selector: Selector | None = None,
    ) -> GetResult:
        """Records of a queue from the logical `offset` on, as stored; see MessageReader.get()."""
        known = self._log.damaged
        found = self._reader.get(topic, queue_id, offset, max_count, max_bytes, tag_filter, selector)
        if self._log.damaged is not known:
            self._tell_damage(known)
        return found

    def _tell_damage(self, known: tuple[tuple[int, int], ...]) -> None:
        """Name the records that a reader asked for and did not get: those that were not `known` before."""
        for begin, end in self._log.damaged[len(known) :]:
            log.error(
                "store.damage_found",
                path=str(self._config.commit_log_path),
                physical_offset=begin,
                end_offset=end,
                reason=self._log.damage_reasons.get(begin, ""),
            )

    def _tell_wrong_entry(self, topic: str, queue_id: int, offset: int, reason: str) -> None:
        log.warning("store.entry_wrong", topic=topic, queue_id=queue_id, logical_offset=offset, reason=reason)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First readable logical offset; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last readable logical offset; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def readable_range(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """(min_offset, max_offset) of a queue; None when it never held a message, or is unknown."""
        queue = self._queues.get(topic, queue_id)
        return None if queue is None or queue.max_offset == 0 else (queue.min_offset, queue.max_offset)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The logical offset that the next message of the queue will get."""
        queue = self._queues.get(topic, queue_id)
        return self._appender.next_offset(queue) if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, upper: bool) -> int:
        """Logical offset of the first message stored at or after `timestamp` (ms); with `upper` of the last
        one stored at or before it. Within [min_offset, max_offset]; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            return queue.offset_by_time(timestamp, upper=upper)
        return offset_by_time(queue, timestamp, upper, self._store_time_at, log_min=self._log.min_offset)

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueEntry | None:
        """Where the message at a logical offset lies; None outside the queue's data."""
        queue = self._queues.get(topic, queue_id)
        return queue.entry(offset) if queue is not None else None

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time (ms) of the queue's first readable message, -1 without one."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of the message at a logical offset, -1 without one."""
        entry = self.queue_entry(topic, queue_id, offset)
        return self._store_time_at(entry.physical_offset, entry.size) if entry is not None else -1

    def _store_time_at(self, physical_offset: int, size: int) -> int:
        """Only what a search by time needs, read where it lies: it asks for many records."""
        record = self._log.read(physical_offset, size) if physical_offset >= self._log.min_offset else None
        if record is None or size < RECORD_SIZE_MIN:
            return -1
        found_offset, sys_flag = _PLACE_AND_FLAG.unpack_from(record)
        if found_offset != physical_offset:
            return -1
        time: int = _TIME.unpack_from(record, _STORE_TIME_AT[bool(sys_flag & _BORN_V6)])[0]
        return time

    def message_at(self, physical_offset: int) -> bytes | None:
        """The record that begins at `physical_offset`; None if none does or readers may not see it yet."""
        if physical_offset >= self.confirmed_offset:
            return None
        record = self._log.scan(physical_offset, property_crc=self._config.verify_property_crc)
        if record is None or self._log.is_damaged(physical_offset):
            return None
        data = self._log.read(physical_offset, record.size)
        return bytes(data) if data is not None else None

    # --- topics and state ------------------------------------------------------------------------------

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the topic's queues that hold or held messages, sorted."""
        found = ((i, self._queues.get(topic, i)) for i in self._queues.queue_ids(topic))
        return [i for i, q in found if q is not None and self._appender.next_offset(q) > 0]

    def queue_entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[ConsumeQueueEntry]:
        """At most `count` entries of a queue from the logical `offset` on; empty for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return []
        found: list[ConsumeQueueEntry] = []
        at = offset
        for _ in range(count):
            entry = queue.entry(at) if at < queue.max_offset else None
            if entry is not None:
                found.append(entry)
            at = queue.after(at)
        return found

    def topics(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return self._queues.topics

    def is_batch_topic(self, topic: str) -> bool:
        """Whether the topic has queues of batches: a record may hold several messages."""
        return topic in self._queues.batch_topics

    @property
    def batch_topics(self) -> frozenset[str]:
        """All topics with queues of batches."""
        return frozenset(self._queues.batch_topics)

    def prepare_batch_topics(self, topics: Iterable[str]) -> None:
        """Do what takes time of make_batch_topic(), for any thread. OSError or StoreFull: the disk does not take it."""
        for topic in topics:
            self._queues.prepare_batch_topic(topic)

    def forget_prepared(self, topics: Iterable[str]) -> None:
        """Take prepare_batch_topics() back for those that have not become such a topic. What it leaves after a failure
        is without harm: a folder without files, see batch_queues."""
        with contextlib.suppress(OSError):
            self._queues.forget_prepared(topics)

    def make_batch_topic(self, topic: str) -> None:
        """Give a new topic queues of batches; durable on return. StoreError when it cannot have them, as it has plain
        ones or the disk does not take the folder; it has none then."""
        try:
            self._queues.make_batch_topic(topic)
        except OSError as failed:
            raise StoreError(f"topic {topic} cannot have queues of batches: {failed}") from failed

    def delete_topic(self, topic: str) -> int:
        """Delete the topic's queues; how many there were. Its records stay in the log until cleaned.

        That is on disk already, unless save_deletions() says why it cannot be; then a crash may bring them back.
        StorePoisoned when their files cannot be deleted.
        """
        count = len(self._queues.queue_ids(topic))
        for _ in self.topic_deletion(topic):
            pass
        return count

    def topic_deletion(self, topic: str) -> Generator[None, None, int]:
        """As delete_topic, in steps of a queue each. The topic has no queue from this call on, and may have new ones
        before the last step."""
        self._appender.forget_topic(topic)
        self._tombstones.add(topic, self._log.end_offset)
        # First, as queues that are gone without a reason are built again under numbers that were given out anew.
        with contextlib.suppress(OSError, StoreFull):
            self._tombstones.save()
        try:
            steps = self._queues.deletion(topic)
        except OSError as error:
            raise self._fail("consume queue", error) from error
        return self._deletion(steps)

    def _deletion(self, steps: Generator[None, None, int]) -> Generator[None, None, int]:
        try:
            return (yield from steps)
        except OSError as error:
            raise self._fail("consume queue", error) from error

    def is_dead(self, topic: str, physical_offset: int) -> bool:
        """Whether a message of `topic` that came at `physical_offset` died with the topic, which was deleted later."""
        return self._tombstones.covers(topic, physical_offset)

    def save_deletions(self) -> None:
        """Make it durable which topics were deleted before this call; for any thread.

        OSError or StoreFull when that is not possible now; it is not final, and may be tried again.
        """
        if self.is_open and self._poison is None:
            self._tombstones.prune(self._log.min_offset)
            self._tombstones.save()

    def statistics(self) -> dict[str, int]:
        """Offsets in bytes of the log, and counts, for status lines."""
        return {
            "min_physical_offset": self._log.min_offset,
            "end_offset": self._log.end_offset,
            "flushed_offset": self._log.flushed_offset,
            "confirmed_offset": self.confirmed_offset,
            "dispatch_behind_bytes": self._log.end_offset - self.confirmed_offset,
            "index_backlog": self._dispatcher.index_backlog,
            "commit_log_files": len(self._log.mapped.files),
            "queues": len(self._queues),
            "open_queue_files": len(self._queues.open_files),
            "closed_queue_files": self._queues.open_files.closed_count,
            "index_files": len(self._index.files),
            "damaged_stretches": len(self._log.damaged),
            "scrubbed_bytes": self._scrubbed,
        }

    def timer_faults(self) -> list[TimerFault]:
        """What is wrong with the timer files, by themselves and with the log. Slow; for any thread."""
        return timer_faults(
            self._config.root,
            self._io,
            log_min=self._log.min_offset,
            log_end=self._log.end_offset,
            is_message=self._is_timer_message,
        )

    def _is_timer_message(self, physical_offset: int, size: int) -> bool:
        if self._log.is_damaged(physical_offset):
            return True  # named already
        header = header_at(self._log, physical_offset)
        return header is not None and header.size == size and header.topic == TIMER_TOPIC

    def check(self) -> None:
        """Walk everything and compare it with everything; CorruptStore at the first broken invariant.

        Slow: for tests and for operators.
        """
        check_store(
            self._log, self._queues, self._index, self._config, self.confirmed_offset, self._tombstones
        )
        for fault in self.timer_faults():
            raise CorruptStore(fault.path, fault.position, fault.reason)


def _what(config: StoreConfig, path: Path) -> str:
    """What a file of the store is, for people."""
    folders = {
        config.commit_log_path: "commit log",
        config.consume_queue_path: "consume queue",
        config.batch_queue_path: "consume queue",
        config.index_path: "index",
        config.root / "timerlog": "timer log",
    }
    return next((what for folder, what in folders.items() if path.is_relative_to(folder)), path.name)
