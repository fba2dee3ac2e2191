"""What `aerobee store verify` checks: log, queues against the log, index, checkpoint, tables.

Touches  a store folder through `Inspection`, reading.

    log         every record: lengths, place, body CRC, whole-record checksum; gaps and torn end
    queues      every record has its entry (place, size, tag hash), every entry in the log's range its record
    index       headers: counts within the file, first and last record within the log; every key between those of them
                that come first and last has its entry
    checkpoint  its length
    timers      the timer log: its units, the messages that they lead to, its checkpoint; the wheel's length
    tables      config/*.json can be read

Not looked at: `compaction/`, which RocketMQ alone reads; a note says so where there is something in it.

In a store that a broker has open, what arrives during the walk is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, TypedDict, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from aerobee_proto.errors import FormatError
from aerobee_proto.written_json import read_written
from aerobee_store.log.checkpoint import CHECKPOINT_SIZE
from aerobee_store.offline.index_check import IndexCheck, KeptIndexCheck
from aerobee_store.offline.inspection import MISSING, Advance, Finding, Inspection
from aerobee_store.offline.resume import Resume
from aerobee_store.queues.batch_queue import BATCH_DTYPE, BATCH_ENTRY_SIZE
from aerobee_store.queues.batch_queues import BATCH_QUEUE_FOLDER, QUEUE_FOLDER
from aerobee_store.queues.consume_queue import BLANK_SIZE, ENTRY, ENTRY_DTYPE, ENTRY_SIZE
from aerobee_store.queues.delay import entry_tag
from aerobee_store.records.property_columns import Flags, Ints
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.walking.agreement import are_same, compared_size, is_message
from aerobee_store.walking.log_sources import RowFile
from aerobee_store.walking.record_columns import Stretch

Entries = NDArray[np.void]

__all__ = ["Verdict", "Verified", "verify"]

REBUILT: Final = "a start of our broker builds it again from the log"
ORPHANED: Final = (
    "their records are damaged or missing: see what is said of the log, and restore them from a copy"
)
FINDINGS_PER_QUEUE_MAX: Final = 3
SHOWN_MAX: Final = 5  # topics in a note
# Bytes of log after which a run that can be gone on with writes down where it is.
SAVE_STEP: Final = 256 << 20


@dataclass(slots=True, frozen=True)
class Verdict:
    """What was looked at and found, for programs. `log_end` is None where the log was not walked."""

    path: str
    state: str
    sound: bool
    log_begin: int
    log_end: int | None
    log_files: int
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    findings: list[Finding]
    notes: list[str]


class Verified:
    """What was looked at, and what is wrong."""

    def __init__(self, folder: Inspection) -> None:
        self.folder = folder
        self.record_count = 0
        self.entry_count = 0
        self.queue_count = 0
        self.index_file_count = self.index_entry_count = 0
        self.findings: list[Finding] = folder.findings
        # What is odd and right: people should know, nothing has to be done.
        self.notes: list[str] = []

    def verdict(self) -> Verdict:
        """All of it, at once."""
        end = self.folder.log_end
        return Verdict(
            path=str(self.folder.root),
            state=self.folder.state,
            sound=not self.findings,
            log_begin=self.folder.log_begin,
            log_end=end.offset if end is not None else None,
            log_files=len(self.folder.log_files),
            records=self.record_count,
            queues=self.queue_count,
            queue_entries=self.entry_count,
            index_files=self.index_file_count,
            index_entries=self.index_entry_count,
            findings=self.findings,
            notes=self.notes,
        )


def verify(folder: Inspection, advance: Advance, resume: Resume | None = None) -> Verified:
    """Look at everything. `advance` is told how many bytes of the log are behind. With `resume` an earlier run that
    was interrupted is gone on with, and this one leaves behind where it is."""
    result = Verified(folder)
    tally = _Tally(folder)
    result.index_file_count, result.index_entry_count = tally.index.file_count, tally.index.entry_count
    start = tally.take_up(resume.load(folder)) if resume is not None else folder.log_begin
    advance(start - folder.log_begin)
    try:
        for found in folder.stretches(advance, start):
            tally.meet(found)
            if resume is not None and tally.end - start >= SAVE_STEP:
                start = tally.end
                resume.save(folder, tally.facts())
    except BaseException:
        if resume is not None:
            resume.save(folder, tally.facts())
        raise
    result.record_count, result.queue_count = tally.record_count, tally.queue_count
    if tally.dead_count:
        result.notes.append(
            f"{tally.dead_count} records are of topics that were deleted; they go with their log files"
        )
    assert folder.log_end is not None
    for (topic, queue_id), queue in sorted(tally.queues.items()):
        _check_queue(result, topic, queue_id, queue)
    _check_log_end(folder)
    tally.index.report(result.notes)
    _check_checkpoint(folder)
    _check_timers(folder)
    _check_tables(folder)
    _note_compacted(result)
    # What was met just before an interruption may have been met again.
    result.findings[:] = dict.fromkeys(result.findings)
    if resume is not None:
        resume.done()
    return result


# matched, behind, unmatched, and of the first unmatched records all but their properties; a list in the file
_KeptQueue = tuple[int, int, int, Sequence[tuple[object, ...]]]


class _Kept(TypedDict):
    """What a tally writes down, as it is read again."""

    end: int
    records: int
    dead: int
    findings: list[dict[str, object]]
    queues: list[tuple[str, int, _KeptQueue]]
    index: KeptIndexCheck


class _Tally:
    """What the walk of the log has met so far; it can be written down and taken up again."""

    def __init__(self, folder: Inspection) -> None:
        self._folder = folder
        self._deleted = folder.deleted_topics()
        self._batch_topics = folder.batch_topics()
        self.queues: dict[tuple[str, int], _Queue] = {
            (queue.topic, queue.queue_id): _Queue(folder, queue.topic, queue.files)
            for queue, _ in folder.queues()
            if queue.topic not in self._batch_topics
        }
        for queue, _ in folder.queues(batches=True):
            if queue.topic in self._batch_topics:
                self.queues[queue.topic, queue.queue_id] = _BatchQueue(folder, queue.topic, queue.files)
        self.queue_count = len(self.queues)
        self.index = IndexCheck(folder)
        self.record_count = self.dead_count = 0
        # One past the last record that was met.
        self.end = folder.log_begin

    def meet(self, found: Stretch | ScannedRecord) -> None:
        """Count the next records of the log, and look for their entries."""
        self.index.meet(found)
        if isinstance(found, ScannedRecord):
            self._meet_one(found)
        else:
            self._meet_many(found)

    def _meet_one(self, record: ScannedRecord) -> None:
        self.end = record.physical_offset + record.size
        self.record_count += 1
        if not record.is_queued:
            return
        if self._deleted.covers(record.topic, record.physical_offset):
            self.dead_count += 1
        else:
            self._queue(record.topic, record.queue_id).meet(record)

    def _meet_many(self, stretch: Stretch) -> None:
        self.end = stretch.end_offset
        self.record_count += stretch.count
        packed = stretch.entries(())
        for topic, queue_id, members in stretch.queues():
            dead = int((stretch.physical_offsets[members] < self._deleted.end_of(topic)).sum())
            self.dead_count += dead
            if dead < len(members):
                self._queue(topic, queue_id).meet_many(stretch, members[dead:], packed)

    def _queue(self, topic: str, queue_id: int) -> "_Queue":
        known = self.queues.get((topic, queue_id))
        if known is None:
            kind = _BatchQueue if topic in self._batch_topics else _Queue
            known = kind(self._folder, topic, ())
            self.queues[topic, queue_id] = known
        return known

    def facts(self) -> dict[str, object]:
        """For take_up() of another run."""
        return {
            "end": self.end,
            "records": self.record_count,
            "dead": self.dead_count,
            "findings": [asdict(one) for one in self._folder.findings],
            "queues": [[topic, number, queue.facts()] for (topic, number), queue in self.queues.items()],
            "index": self.index.facts(),
        }

    def take_up(self, facts: dict[str, object] | None) -> int:
        """Go on where these facts() ended; the physical offset from which on to walk."""
        if facts is None:
            return self.end
        kept = cast("_Kept", facts)
        known = {str(one) for one in self._folder.findings}
        earlier = msgspec.convert(kept["findings"], list[Finding])
        self._folder.findings += [one for one in earlier if str(one) not in known]
        self.end, self.record_count, self.dead_count = kept["end"], kept["records"], kept["dead"]
        for topic, number, queue in kept["queues"]:
            self._queue(topic, number).take_up(queue)
        self.index.take_up(kept["index"])
        return self.end


class _Queue:
    """The entries of one queue, and what the records say about them."""

    folder_name = QUEUE_FOLDER
    entry_size = ENTRY_SIZE

    def __init__(self, folder: Inspection, topic: str, files: Sequence[RowFile]) -> None:
        self.topic = topic
        self.files = files
        self._views = [folder.view(file) for file in files]
        self._size = files[0].size if files else 0
        # One past the last entry that is filled.
        self._end = self._filled_end()
        # Moved by meet(): records with their entry; without one, behind the last entry; without one, before it.
        self.matched = 0
        self.behind = 0
        self.unmatched = 0
        self.first_unmatched: list[ScannedRecord] = []

    def meet(self, record: ScannedRecord) -> None:
        """Look for the record's entry and count what was found."""
        if self.leads_to(record):
            self.matched += 1
        elif record.queue_offset >= self._end:
            self.behind += 1
        else:
            self.unmatched += 1
            if len(self.first_unmatched) < FINDINGS_PER_QUEUE_MAX:
                self.first_unmatched.append(record)

    def meet_many(self, stretch: Stretch, members: Ints, packed: Entries) -> None:
        """As meet(), for these records of a stretch and the entries that they should have."""
        leading = self._lead(stretch.queue_offsets[members], packed[members])
        self.matched += int(leading.sum())
        others = members[~leading]
        behind = stretch.queue_offsets[others] >= self._end
        self.behind += int(behind.sum())
        unmatched = others[~behind]
        self.unmatched += len(unmatched)
        required = FINDINGS_PER_QUEUE_MAX - len(self.first_unmatched)
        self.first_unmatched += [stretch.record(member) for member in unmatched[:required].tolist()]

    def _lead(self, offsets: Ints, expected: Entries) -> Flags:
        """Which of the entries with these queue offsets are the expected ones."""
        leading = np.zeros(len(offsets), np.bool_)
        for number, file in enumerate(self.files):
            found = self.entries(number)
            at = offsets - file.offset // ENTRY_SIZE
            inside = np.flatnonzero((at >= 0) & (at < len(found)))
            leading[inside] = are_same(self.topic, found[at[inside]], expected[inside])
        return leading

    def facts(self) -> _KeptQueue:
        """For take_up() of another run."""
        kept = [one[:-1] for one in self.first_unmatched]  # what is said of them needs no properties
        return self.matched, self.behind, self.unmatched, kept

    def take_up(self, facts: _KeptQueue) -> None:
        """Go on where these facts() ended."""
        self.matched, self.behind, self.unmatched, kept = facts
        self.first_unmatched = [ScannedRecord._make((*one, b"")) for one in kept]

    def _filled_end(self) -> int:
        for number in range(len(self.files) - 1, -1, -1):
            filled = self.entries(number)["size"].nonzero()[0]
            if len(filled):
                return self.files[number].offset // ENTRY_SIZE + int(filled[-1]) + 1
        return 0

    def position_of(self, entry_number: int) -> int | None:
        """Where in the row of files the entry with a number lies, if the number says it."""
        return entry_number * ENTRY_SIZE

    def wrong_numbers(self) -> list[int]:
        """Of entries that have their numbers in themselves: those that do not follow from the one before."""
        return []

    def leads_to(self, record: ScannedRecord) -> bool:
        """Whether the entry with the record's number has its place, size and tag hash."""
        entry = self.entry(record.queue_offset)
        if entry is None:
            return False
        tag = entry_tag(record.topic, record.properties, record.store_timestamp, ())
        compared = compared_size(self.topic, ENTRY_SIZE)
        expected = ENTRY.pack(record.physical_offset, record.size, tag)
        return ENTRY.pack(*entry)[:compared] == expected[:compared]

    def entry(self, entry_number: int) -> tuple[int, int, int] | None:
        """Physical offset, size, tag hash; None where no file is."""
        if not self.files or not self._size:
            return None
        position = entry_number * ENTRY_SIZE - self.files[0].offset
        number = position // self._size
        if position < 0 or number >= len(self.files):
            return None
        at = position - (self.files[number].offset - self.files[0].offset)
        if not 0 <= at <= self._size - ENTRY_SIZE:
            return None
        found: tuple[int, int, int] = ENTRY.unpack_from(self._views[number], at)
        return found

    def places(self, folder: Inspection) -> Iterator[tuple[int, int]]:
        """Queue offset and physical offset of each entry that leads into the log."""
        assert folder.log_end is not None
        begin, end = folder.log_begin, folder.log_end.offset
        for number, file in enumerate(self.files):
            entries = self.entries(number)
            places, sizes = entries["physical_offset"], entries["size"]
            inside = (sizes > 0) & (sizes != BLANK_SIZE) & (places >= begin) & (places < end)
            for at in inside.nonzero()[0].tolist():
                yield file.offset // ENTRY_SIZE + at, int(places[at])

    def entries(self, number: int) -> Entries:
        """All entries of one file as an array."""
        whole = len(self._views[number]) // ENTRY_SIZE * ENTRY_SIZE
        return np.frombuffer(self._views[number][:whole], ENTRY_DTYPE)


def _note_compacted(result: Verified) -> None:
    """Say of which topics RocketMQ keeps values of its own, which may be in no other file any more."""
    folder = result.folder.root / "compaction" / "compactionLog"
    topics = sorted(topic.name for topic in folder.iterdir() if topic.is_dir()) if folder.is_dir() else []
    if topics:
        more = f" and {len(topics) - SHOWN_MAX} others" if len(topics) > SHOWN_MAX else ""
        result.notes.append(
            f"not verified: what RocketMQ keeps in compaction/ of {', '.join(topics[:SHOWN_MAX])}{more}; it is served"
            " by RocketMQ only, and may be in no other file"
        )


class _BatchQueue(_Queue):
    """The same of a queue of batches: its entries have their numbers in themselves."""

    folder_name = BATCH_QUEUE_FOLDER
    entry_size = BATCH_ENTRY_SIZE

    def __init__(self, folder: Inspection, topic: str, files: Sequence[RowFile]) -> None:
        self._all: Entries | None = None
        super().__init__(folder, topic, files)

    def _every(self) -> Entries:
        """The entries of all files that are filled; their numbers grow where the queue is sound."""
        if self._all is None:
            found = [self.entries(number) for number in range(len(self.files))]
            every = np.concatenate(found) if found else np.zeros(0, BATCH_DTYPE)
            self._all = every[every["size"] > 0]
        return self._all

    def _filled_end(self) -> int:
        every = self._every()
        return int(every["base"][-1]) + int(every["count"][-1]) if len(every) else 0

    def _lead(self, offsets: Ints, expected: Entries) -> Flags:
        every = self._every()
        if not len(every):
            return np.zeros(len(offsets), np.bool_)
        at = np.searchsorted(every["base"].astype(np.int64), offsets)
        at[at == len(every)] = 0
        leading: Flags = every["base"][at] == offsets
        return leading & are_same(self.topic, every[at], expected)

    def entry(self, entry_number: int) -> tuple[int, int, int] | None:
        every = self._every()
        at = int(every["base"].searchsorted(entry_number))
        if at == len(every) or every["base"][at] != entry_number:
            return None
        found = every[at]
        return int(found["physical_offset"]), int(found["size"]), int(found["tag_hash"])

    def places(self, folder: Inspection) -> Iterator[tuple[int, int]]:
        assert folder.log_end is not None
        every = self._every()
        places = every["physical_offset"]
        inside = (places >= folder.log_begin) & (places < folder.log_end.offset)
        for at in inside.nonzero()[0].tolist():
            yield int(every["base"][at]), int(places[at])

    def entries(self, number: int) -> Entries:
        whole = len(self._views[number]) // BATCH_ENTRY_SIZE * BATCH_ENTRY_SIZE
        return np.frombuffer(self._views[number][:whole], BATCH_DTYPE)

    def position_of(self, entry_number: int) -> int | None:
        return None

    def wrong_numbers(self) -> list[int]:
        """The numbers that entries begin with although the ones before them end elsewhere."""
        every = self._every()
        ends = every["base"][:-1] + every["count"][:-1]
        found: list[int] = every["base"][1:][every["base"][1:] != ends].tolist()
        return found


def _check_queue(result: Verified, topic: str, queue_id: int, queue: _Queue) -> None:
    folder = result.folder
    assert folder.log_end is not None
    begin, end = folder.log_begin, folder.log_end.offset
    path = f"{queue.folder_name}/{topic}/{queue_id}"
    beyond = leading = 0
    wrong: list[tuple[str, int, str]] = []
    for number, file in enumerate(queue.files):
        entries = queue.entries(number)
        places, sizes = entries["physical_offset"], entries["size"]
        filled = (sizes > 0) & (sizes != BLANK_SIZE)
        inside = filled & (places >= begin) & (places < end)
        beyond += int((filled & (places >= end)).sum())
        leading += int(inside.sum())
        result.entry_count += int(filled.sum())
        odd = (sizes < 0) | (places < 0) | (filled & (places + sizes > end) & (places < end))
        wrong += [
            (file.path, int(at) * queue.entry_size, "an entry that cannot be one")
            for at in odd.nonzero()[0][:3]
        ]
    if folder.is_changing:
        return
    for file_path, position, reason in wrong:
        _add(result, file_path, reason, topic, position)
    for number in queue.wrong_numbers()[:FINDINGS_PER_QUEUE_MAX]:
        _add(result, path, f"the entry of number {number} does not follow the one before it", topic)
    if beyond:
        reason = f"{beyond} entries lead beyond the end of the log at {end}"
        _add(
            result,
            path,
            reason,
            topic,
            advice="records are missing at the end of the log: restore it from a copy",
        )
    _check_matches(result, path, queue_id, queue, leading)


def _check_matches(result: Verified, path: str, queue_id: int, queue: _Queue, leading: int) -> None:
    """Records without their entry, and entries without their record."""
    topic = queue.topic
    for record in queue.first_unmatched:
        reason = f"entry {record.queue_offset} does not lead to its record at {record.physical_offset}"
        _add(result, path, reason, topic, queue.position_of(record.queue_offset))
    if (more := queue.unmatched - len(queue.first_unmatched)) > 0:
        _add(result, path, f"{more} more records have no entry that leads to them", topic)
    if queue.behind and result.folder.was_aborted:
        result.notes.append(
            f"{path}: the last {queue.behind} records have no entry yet; the next start adds them"
        )
    elif queue.behind:
        _add(result, path, f"the last {queue.behind} records have no entry", topic)
    if leading > queue.matched and not queue.unmatched:
        _name_orphans(result, path, queue_id, queue, leading - queue.matched)


def _name_orphans(result: Verified, path: str, queue_id: int, queue: _Queue, count: int) -> None:
    """Entries that lead to no record of their queue: the first few by place, the others by number."""
    topic, named = queue.topic, 0
    for entry_number, place in queue.places(result.folder):
        if named == min(count, FINDINGS_PER_QUEUE_MAX):
            break
        record = result.folder.record_at(place)
        if record is None or not is_message(record, topic, queue_id, entry_number):
            named += 1
            reason = f"entry {entry_number} leads to {place}, where no record of its queue is"
            _add(result, path, reason, topic, queue.position_of(entry_number), ORPHANED)
    if count > named:
        _add(result, path, f"{count - named} more entries lead to no record", topic, advice=ORPHANED)


def _check_log_end(folder: Inspection) -> None:
    assert folder.log_end is not None
    known = folder.known_durable
    if folder.log_end.offset < known:
        reason = f"the log ends at {folder.log_end.offset}, and was on disk up to {known}"
        finding = Finding(folder.name_of(folder.log_folder), reason, MISSING, folder.log_end.offset, known)
        folder.findings.append(finding)


def _check_checkpoint(folder: Inspection) -> None:
    path = folder.root / "checkpoint"
    if path.exists() and (size := path.stat().st_size) != CHECKPOINT_SIZE:
        reason = f"length is {size}, must be {CHECKPOINT_SIZE}"
        advice = "a start goes on without it and looks at more of the log"
        folder.findings.append(Finding(folder.name_of(path), reason, advice))


def _check_timers(folder: Inspection) -> None:
    advice = "stop the broker, remove timerlog and timerwheel and keep config/timercheck: a start builds them again"
    for path, position, reason in folder.timer_faults():
        folder.findings.append(Finding(folder.name_of(path), reason, advice, position))


def _check_tables(folder: Inspection) -> None:
    for path in folder.config_files():
        try:
            read_written((folder.root / path).read_bytes())
        except FormatError as broken:
            advice = f"the copy from before the last change is {path.rpartition('/')[2]}.bak"
            folder.findings.append(Finding(path, f"no JSON: {broken}", advice))


def _add(
    result: Verified,
    path: str,
    reason: str,
    topic: str | None = None,
    begin: int | None = None,
    advice: str = REBUILT,
) -> None:
    result.findings.append(Finding(path, reason, advice, begin, None, topic))
