"""The read path: from (topic, queue, offset) to records as they lie in the log.

Touches  queue files and the commit log, reading. No clock.

What always holds
- A record is served only if its entry agrees with it: magic, size, queue id, number and the stored physical offset;
  and not if it is known to be damaged. One that this run has neither written nor proven at its start is proven first,
  with all its checksums (about 8 us), and must name the queue that it is served from.
- Records that lie next to each other in the log leave as one slice; slices stay readable while held.
- With a `Residency` nobody waits for the disk: what is in memory is served up to the first record that is not.
- A call never crosses the end of a queue file and never scans more than `scan_size_max` bytes of entries, less
  when a selector says so.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate

import msgspec
import numpy as np

from aerobee_proto.errors import RecordError
from aerobee_proto.records import MAGIC_V1, MAGIC_V2, scan_header
from aerobee_store.disk.mapped_files import MappedFile
from aerobee_store.log.commit_log import CommitLog, OldRecords
from aerobee_store.queues.batch_queue import batch_entries
from aerobee_store.queues.consume_queue import ENTRY, ENTRY_DTYPE, ENTRY_SIZE, ConsumeQueue
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.reading.residency import TRUSTED_SIZE, Residency, places_of
from aerobee_store.terms.config import StoreConfig
from aerobee_store.walking.agreement import Agreement, header_at

__all__ = ["Followed", "GetResult", "GetStatus", "MessageReader", "Nearby", "Selector"]

# size, magic, queue id, number and physical offset of a record
_IDENTITY = struct.Struct(">iI4xi4xqq")
_PLACE = struct.Struct(">q")
_PLACE_AND_SIZE = struct.Struct(">qi")
_NOTHING_WRITTEN = 1 << 63
_IDENTITY_SIZE = _IDENTITY.size
_MAGICS = frozenset((MAGIC_V1, MAGIC_V2))
_REQUEST_SIZE_MIN = 100
_REQUEST_SIZE_MAX = 134_217_728
_WRONG_NAMED_MAX = 1000
# Entries for which a vectorised look for the first match pays off (about 8 us of set-up).
_VECTOR_MIN = 64
# Property bytes that one selecting read looks into: 800 usual messages, 20 of the largest. About 10 ms at worst.
_SELECT_BYTES_MAX = 1 << 18


class GetStatus(IntEnum):
    """How a read ended. OFFSET_RESET is only ever set by the broker."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


Nearby = tuple[
    memoryview,  # packed entries, from the queue offset on that was asked for
    memoryview,  # the file of the log that the first of them leads to
    int,  # physical offset of its first byte
    int,  # and of the byte behind the last that is written in it
    int,  # records that one read gives at most
    int,  # and bytes of them, the first one whatever its size
    int,  # min_offset of the queue
    int,  # max_offset of the queue
    OldRecords | None,  # what the records have to be, where this process has not written the first of them
]
"""What a usual read is gathered from."""


class GetResult(msgspec.Struct, eq=False):
    """Answer to a read: `count` records of `size` bytes in `body`, and where to go on.

    `next_offset`, `min_offset` and `max_offset` are queue offsets. `suggest_slave`: the records lie so far
    behind the log's end that reading them would push newer ones out of memory.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: list[memoryview] = []
    count: int = 0
    size: int = 0
    suggest_slave: bool = False


class Selector:
    """A choice of messages by their properties.

    `matches` gets the raw property bytes of a record; `scan_max` bounds how many records one read shows to it.
    """

    __slots__ = ("matches", "scan_max")

    def __init__(self, matches: Callable[[bytes], bool], scan_max: int) -> None:
        self.matches = matches
        self.scan_max = scan_max


class Followed:
    """A queue that somebody reads again and again in the same way, and what is known of it (`MessageReader.nearby`).

    At most `count_max` messages at once; with `has_tags` it looks for some of them. `may_be_far`: nobody is sent to a
    slave for what lies far behind the log's end.
    """

    __slots__ = (
        "count",
        "count_max",
        "has_tags",
        "may_be_far",
        "queue",
        "queue_id",
        "read_count",
        "removals",
        "size_max",
        "topic",
    )

    def __init__(
        self, topic: str, queue_id: int, count_max: int, *, has_tags: bool, may_be_far: bool
    ) -> None:
        # Fixed for life.
        self.topic = topic
        self.queue_id = queue_id
        self.count_max = count_max
        self.has_tags = has_tags
        self.may_be_far = may_be_far
        # Found when it is read, and again when queues were removed: none yet, or what one read gives at most.
        self.queue: ConsumeQueue | None = None
        self.removals = 0
        self.count = 0
        self.read_count = 0
        self.size_max = 0


class MessageReader:
    """Answers reads from the queues and the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        config: StoreConfig,
        *,
        on_wrong_entry: Callable[[str, int, int, str], None] = lambda topic, queue_id, offset, reason: None,
        residency: Residency | None = None,
    ) -> None:
        """`on_wrong_entry` is called once for each entry that leads to a record of another one: topic, queue id,
        number, reason. With `residency` nothing waits for the disk: what is in memory is given, and NotInMemory raised
        when that is nothing."""
        self._log = log
        self._queues = queues
        self._config = config
        self._file_entries = config.consume_queue_file_size // ENTRY_SIZE
        self._distance = config.in_memory_distance
        self._residency = residency
        # Within this distance nobody is asked whether a record is in memory.
        self._trusted = self._distance if residency is None else min(self._distance, TRUSTED_SIZE)
        # Records from here on were written by this process: their entries need no look at them.
        self.written_from = _NOTHING_WRITTEN
        self._agreement = Agreement(log, queues)
        self._on_wrong_entry = on_wrong_entry
        self._wrong_entries: set[tuple[str, int, int]] = set()

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_filter: frozenset[int] | None,
        selector: Selector | None = None,
    ) -> GetResult:
        """Records from the queue offset `offset` on.

        `tag_filter` holds the signed 32-bit hashes of the tags that are wanted, None: all. With a `selector` the
        properties decide instead.
        """
        if queue_id < 0:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        size_max = min(max(max_bytes, _REQUEST_SIZE_MIN), _REQUEST_SIZE_MAX)
        if not queue.hot_from <= offset < queue.hot_until and self._residency is not None:
            self._residency.require_entries(queue, offset, self._scan_count(max_count))
        if queue.is_batch:
            scan_count = self._scan_count(max_count)
            return self._batches(queue, offset, scan_count, max_count, size_max, tag_filter, selector)
        if tag_filter is None and selector is None:
            # No more entries than it takes: where the file is not mapped they are copied.
            count = min(max_count, self._config.memory_transfer_count_max)
            recent = self._recent(queue, queue.read(offset, count), offset, size_max)
            if recent is not None:
                return recent
        scan_count = self._scan_count(max_count)
        entries = queue.read(offset, scan_count)
        if not entries:
            following = (offset // self._file_entries + 1) * self._file_entries
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
        if selector is not None:
            return self._select(queue, entries, offset, max_count, size_max, selector)
        return self._collect(queue, entries, offset, max_count, size_max, tag_filter)

    def nearby(self, followed: Followed, offset: int) -> Nearby | None:
        """What the usual read is gathered from by who does that himself: in memory, in one file, written by this
        process or to be proven. None: `get` has to look carefully.

        It gathers as `get` does without a bound of bytes: the first records that it wants, up to both bounds, none that
        is no sound record.
        """
        if followed.queue is None or followed.removals != self._queues.removals:
            self._find(followed)
        queue, log, has_tags = followed.queue, self._log, followed.has_tags
        if queue is None:
            return None
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return None
        if not queue.hot_from <= offset < queue.hot_until:
            # Several may read it at several places; the row of blocks around one of them is all that is known so.
            residency = self._residency
            if residency is not None and not residency.holds_entries(queue, offset, followed.read_count):
                return None
        if has_tags and log.damaged:
            return None
        entries = queue.read(offset, followed.read_count)
        if not entries:
            return None
        (first,) = _PLACE.unpack_from(entries)
        files = log.mapped.files
        if not files:
            return None
        file, end = files[-1], log.end_offset
        if not file.offset <= first < file.end:
            found = log.mapped.find(first)
            if found is None:
                return None
            file = found
        file_end = file.end
        old = None
        if first < self.written_from:
            old = self._old(queue, offset)
            if old is None:
                return None
        if old is not None or first < end - self._trusted:
            last, size = _PLACE_AND_SIZE.unpack_from(entries, len(entries) - ENTRY_SIZE)
            if last >= file_end and not has_tags:
                return None
            stop = min(last + size, file_end)
            if not self._holds(file, first, stop, may_be_far=followed.may_be_far):
                return None
        end = min(end, file_end)
        return entries, file.view, file.offset, end, followed.count, followed.size_max, low, high, old

    def _find(self, followed: Followed) -> None:
        """Find its queue, if there is one by now, and what one read of it gives at most."""
        queues, config = self._queues, self._config
        queue = queues.get(followed.topic, followed.queue_id)
        followed.removals = queues.removals
        followed.queue = None if queue is None or queue.is_batch else queue
        followed.count = min(followed.count_max, config.memory_transfer_count_max)
        followed.read_count = self._scan_count(followed.count_max) if followed.has_tags else followed.count
        followed.size_max = min(_REQUEST_SIZE_MAX, config.memory_transfer_size_max)

    def _old(self, queue: ConsumeQueue, offset: int) -> OldRecords | None:
        """What records have to be that entries from a queue offset on lead to; None: they have to be looked at one by
        one."""
        topic, log = queue.topic, self._log
        if log.damaged or log.prover is None or not topic.isascii():
            return None
        return topic.encode(), queue.queue_id, offset, log.trust

    def _memory_floor(self) -> int:
        """Physical offset from which on records count as being in memory, until one is seen not to be: the log's
        beginning where that can be asked, else what lies not far behind the log's end."""
        can_tell = self._residency is not None and not self._residency.is_off
        return 0 if can_tell else self._log.end_offset - self._distance

    def _holds(self, file: MappedFile, begin: int, end: int, *, may_be_far: bool = True) -> bool:
        """Whether a stretch of the log, in one file, is in memory as a whole."""
        residency = self._residency
        if residency is None:
            return False
        is_near = (may_be_far and not residency.is_off) or begin >= self._log.end_offset - self._distance
        return is_near and residency.holds(file, begin, end)

    def _limits(self, max_count: int, size_max: int, *, of_memory: bool) -> tuple[int, int]:
        """Records that one read gives at most, and bytes: more of what is in memory than of what the disk has to be
        asked for."""
        config = self._config
        if of_memory:
            count, size = config.memory_transfer_count_max, config.memory_transfer_size_max
        else:
            count, size = config.disk_transfer_count_max, config.disk_transfer_size_max
        return min(max_count, count), min(size_max, size)

    def _scan_count(self, max_count: int) -> int:
        return max(-(-self._config.scan_size_max // ENTRY_SIZE), max_count)

    def _recent(
        self, queue: ConsumeQueue, entries: memoryview, offset: int, size_max: int
    ) -> GetResult | None:
        """The usual read: everything, in memory, in one file, written by this process or proven. None: look carefully.

        6 us for 32 records that are not adjacent, against 15 us for the careful way (bench/micro_store.py).
        """
        config = self._config
        count = len(entries) // ENTRY_SIZE
        if count < 1:
            return None
        numbers = _entries_struct(count).unpack_from(entries)
        places, sizes = numbers[0::3], numbers[1::3]
        first = places[0]
        end = self._log.end_offset
        is_old = first < self.written_from
        old = self._old(queue, offset) if is_old else None
        if is_old and old is None:
            return None
        file = self._log.mapped.find(first)
        if file is None or places[-1] >= file.end:
            return None
        if (is_old or first < end - self._trusted) and not self._holds(file, first, places[-1] + sizes[-1]):
            return None
        size_sum = sum(sizes)
        limit = min(size_max, config.memory_transfer_size_max)
        if size_sum > limit:
            count = max(1, bisect_right(list(accumulate(sizes)), limit))
            places, sizes = places[:count], sizes[:count]
            size_sum = sum(sizes)
        view, start = file.view, file.offset
        if old is not None and not self._log.has_proven_all(
            entries[: count * ENTRY_SIZE], (view, start, min(file.end, end)), old
        ):
            return None
        if places[-1] + sizes[-1] - first == size_sum:
            body = [view[first - start : first - start + size_sum]]
        else:
            body = [
                view[place - start : place - start + size] for place, size in zip(places, sizes, strict=True)
            ]
        return GetResult(
            GetStatus.FOUND,
            offset + count,
            queue.min_offset,
            queue.max_offset,
            body,
            count,
            size_sum,
            end - places[-1] > self._distance,
        )

    def _collect(
        self,
        queue: ConsumeQueue,
        entries: memoryview,
        offset: int,
        max_count: int,
        size_max: int,
        tag_filter: frozenset[int] | None,
    ) -> GetResult:
        # One loop with everything in locals: 9 us for 32 records that are not adjacent (bench/micro_store.py).
        log = self._log
        end = log.end_offset
        log_min = log.min_offset
        damaged = log.damaged
        proven_from, written_from = log.proven_from, self.written_from
        topic, queue_id = queue.topic, queue.queue_id
        far_end = end - self._distance
        memory_floor = self._memory_floor()
        in_memory = False
        count_limit, size_limit = self._limits(max_count, size_max, of_memory=False)
        identity = _IDENTITY.unpack_from
        status = GetStatus.NO_MATCHED_MESSAGE
        body: list[memoryview] = []
        count = size_sum = 0
        physical_offset = 0
        next_offset = offset
        # 1. Entries with other tags in front, many at a time: a reader of a rare tag passes thousands of them.
        if tag_filter is not None and len(entries) >= _VECTOR_MIN * ENTRY_SIZE:
            skipped = _leading_mismatches(entries, tag_filter)
            next_offset += skipped
            entries = entries[skipped * ENTRY_SIZE :]
            physical_offset = -1
        first_offset = next_offset
        view: memoryview = entries
        file_start = file_end = 0  # of the file that `view` shows, cut at the log's end
        run_start = run_end = 0
        residency = self._residency
        known_from, known_end = (
            max(end - self._trusted, written_from),
            end,
        )  # in memory; so is what is seen to be
        for physical_offset, size, tag in ENTRY.iter_unpack(entries):
            # 2. Enough? More of what is in memory than of what the disk has to be asked for. The first record goes
            # whatever its size, as else a reader would never come past it.
            if not in_memory and physical_offset >= memory_floor:
                in_memory = True
                count_limit, size_limit = self._limits(max_count, size_max, of_memory=True)
            if count and (count >= count_limit or size_sum + size > size_limit):
                break
            next_offset += 1
            if tag_filter is not None and tag not in tag_filter and _signed32(tag) not in tag_filter:
                if not count:
                    status = GetStatus.NO_MATCHED_MESSAGE
                continue
            # 3. The file. Where it changes, what was found side by side ends: a slice is of one map. What is below the
            # log's beginning, or in a file that is gone, is passed over and not waited for.
            if not file_start <= physical_offset < file_end:
                file = log.mapped.find(physical_offset) if physical_offset >= log_min else None
                if file is None:
                    if not count:
                        status = GetStatus.MESSAGE_WAS_REMOVING
                    continue
                if run_end > run_start:
                    body.append(view[run_start:run_end])
                view, file_start, file_end = file.view, file.offset, min(file.end, end)
                run_start = run_end = 0
            if residency is not None and not known_from <= physical_offset <= known_end - size:
                assert file is not None
                known_from, known_end = residency.known_around(file, physical_offset, size)
                if known_from == known_end:
                    # What was come to so far leaves; who asks from here on has it brought.
                    next_offset -= 1
                    at = (next_offset - first_offset) * ENTRY_SIZE
                    if physical_offset < far_end:
                        count_limit, size_limit = self._limits(max_count, size_max, of_memory=False)
                    limits = count_limit - count, size_limit - size_sum
                    self._bring(queue, entries[at:], tag_filter, limits, next_offset > offset)
                    break
            # 4. The record must be what its entry says. What this run wrote need not be proven; what recovery walked
            # through is proven; the rest is, now.
            at = physical_offset - file_start
            if size < _IDENTITY_SIZE or physical_offset + size > file_end:
                known = False
            else:
                found_size, magic, found_queue, number, stored_offset = identity(view, at)
                known = stored_offset == physical_offset and found_size == size and magic in _MAGICS
                if damaged and log.is_damaged(physical_offset):
                    known = False
                elif known and physical_offset < written_from:
                    if physical_offset < proven_from and not log.has_proven(
                        view, at, size, physical_offset, topic
                    ):
                        proven = log.prove(physical_offset, size)
                        known = proven is not None and (
                            proven.topic == topic
                            or self._agrees(queue, next_offset - 1, physical_offset, size)
                        )
                        damaged = log.damaged
                    if number + 1 != next_offset or found_queue != queue_id:
                        known = known and self._agrees(queue, next_offset - 1, physical_offset, size)
                        damaged = log.damaged
            if not known:
                if not count:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            # 5. Records that lie side by side are one slice.
            if at == run_end and count:
                run_end += size
            else:
                if run_end > run_start:
                    body.append(view[run_start:run_end])
                run_start = at
                run_end = at + size
            count += 1
            size_sum += size
        # 6. The last slice, and where to go on: behind the last entry that was looked at, served or not.
        if count:
            status = GetStatus.FOUND
            if (
                run_end > run_start
            ):  # else nothing of the last file is sound, and the slice before it is in already
                body.append(view[run_start:run_end])
        assert offset < next_offset <= queue.max_offset
        assert len(body) <= count
        suggest_slave = physical_offset >= 0 and end - physical_offset > self._distance
        return GetResult(
            status, next_offset, queue.min_offset, queue.max_offset, body, count, size_sum, suggest_slave
        )

    def _select(
        self,
        queue: ConsumeQueue,
        entries: memoryview,
        offset: int,
        max_count: int,
        size_max: int,
        selector: Selector,
    ) -> GetResult:
        """As _collect, for readers that choose by properties: every record is looked into, 4 us each."""
        end = self._log.end_offset
        far_end, memory_floor = end - self._distance, self._memory_floor()
        status = GetStatus.NO_MATCHED_MESSAGE
        body: list[memoryview] = []
        size_sum = looked_into = 0
        next_offset, physical_offset = offset, -1
        for physical_offset, size, _ in ENTRY.iter_unpack(entries[: selector.scan_max * ENTRY_SIZE]):
            of_memory = physical_offset >= memory_floor
            count_limit, size_limit = self._limits(max_count, size_max, of_memory=of_memory)
            if body and (len(body) >= count_limit or size_sum + size > size_limit):
                break
            if looked_into > _SELECT_BYTES_MAX:
                break
            if self._residency is not None and not self._is_there(physical_offset, size):
                at = (next_offset - offset) * ENTRY_SIZE
                limits = self._limits(max_count, size_max, of_memory=physical_offset >= far_end)
                self._bring(queue, entries[at:], None, limits, next_offset > offset)
                break
            next_offset += 1
            found = self._record(queue, next_offset - 1, physical_offset, size)
            if found is None:
                status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            record, properties = found
            looked_into += len(properties)
            if selector.matches(properties):
                body.append(record)
                size_sum += size
            else:
                status = GetStatus.NO_MATCHED_MESSAGE
        return GetResult(
            GetStatus.FOUND if body else status,
            next_offset,
            queue.min_offset,
            queue.max_offset,
            body,
            len(body),
            size_sum,
            physical_offset >= 0 and end - physical_offset > self._distance,
        )

    def _batches(
        self,
        queue: ConsumeQueue,
        offset: int,
        scan_count: int,
        max_count: int,
        size_max: int,
        tag_filter: frozenset[int] | None,
        selector: Selector | None,
    ) -> GetResult:
        """As _select, of records that may hold several messages, from the one that message `offset` is in."""
        log_end = self._log.end_offset
        far_end, memory_floor = log_end - self._distance, self._memory_floor()
        status = GetStatus.NO_MATCHED_MESSAGE
        body: list[memoryview] = []
        count = size_sum = looked_into = 0
        next_offset, place = offset, -1
        if selector is not None:
            scan_count = min(scan_count, selector.scan_max)
        packed = queue.read(offset, scan_count)
        entries = batch_entries(packed)
        if not entries:
            return GetResult(GetStatus.OFFSET_FOUND_NULL, offset + 1, queue.min_offset, queue.max_offset)
        for index, entry in enumerate(entries):
            place, size, tag = entry.physical_offset, entry.size, entry.tag_hash
            count_limit, size_limit = self._limits(max_count, size_max, of_memory=place >= memory_floor)
            is_full = count + entry.message_count > max_count or count >= count_limit
            if (body and (is_full or size_sum + size > size_limit)) or looked_into > _SELECT_BYTES_MAX:
                break
            next_offset = entry.end
            if tag_filter is not None and tag not in tag_filter and _signed32(tag) not in tag_filter:
                status = GetStatus.NO_MATCHED_MESSAGE
                continue
            if self._residency is not None and not self._is_there(place, size):
                rest = packed[index * queue.entry_size :]
                limits = self._limits(max_count, size_max, of_memory=place >= far_end)
                self._bring(queue, rest, tag_filter, limits, index > 0)
                next_offset = max(entry.base, offset)
                break
            found = self._record(queue, entry.base, place, size)
            if found is None:
                status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            record, properties = found
            looked_into += len(properties)
            if selector is not None and not selector.matches(properties):
                status = GetStatus.NO_MATCHED_MESSAGE
                continue
            body.append(record)
            count += entry.message_count
            size_sum += size
        return GetResult(
            GetStatus.FOUND if body else status,
            next_offset,
            queue.min_offset,
            queue.max_offset,
            body,
            count,
            size_sum,
            place >= 0 and log_end - place > self._distance,
        )

    def _is_there(self, physical_offset: int, size: int) -> bool:
        """Whether a record can be looked into without waiting; also where there is none."""
        log = self._log
        file = log.mapped.find(physical_offset) if physical_offset >= log.min_offset else None
        if file is None or size <= 0 or self._residency is None:
            return True
        if physical_offset >= max(log.end_offset - self._trusted, self.written_from):
            return True
        known_from, known_end = self._residency.known_around(file, physical_offset, size)
        return known_from < known_end

    def _bring(
        self,
        queue: ConsumeQueue,
        entries: memoryview,
        tag_filter: frozenset[int] | None,
        limits: tuple[int, int],
        has_found: bool,
    ) -> None:
        """What the first of these entries leads to is not in memory: have it brought, as many more as one read gives
        (`limits`, records and bytes), and the next ones. NotInMemory when nothing was found before it."""
        residency = self._residency
        assert residency is not None
        missing = residency.missing(places_of(queue, entries, tag_filter), *limits)
        if not has_found:
            raise missing
        residency.ahead(missing)

    def _agrees(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int) -> bool:
        """Whether entry and record agree after all; what does not is told, and not served from now on."""
        header = header_at(self._log, physical_offset)
        found = self._agreement.of_entry(queue, offset, header) if header is not None else None
        if found is None:
            return header is not None
        entry = (queue.topic, queue.queue_id, offset)
        if found.of_record:
            self._log.add_damaged(physical_offset, physical_offset + size, found.reason)
        elif entry not in self._wrong_entries and len(self._wrong_entries) < _WRONG_NAMED_MAX:
            self._wrong_entries.add(entry)
            self._on_wrong_entry(*entry, found.reason)
        return False

    def _record(
        self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int
    ) -> tuple[memoryview, bytes] | None:
        """The record of an entry and its raw properties; None when the log has no such sound record any more."""
        log = self._log
        file = log.mapped.find(physical_offset) if physical_offset >= log.min_offset else None
        if file is None or physical_offset + size > min(file.end, log.end_offset):
            return None
        at = physical_offset - file.offset
        record = file.view[at : at + size]
        try:
            header = scan_header(record, 0)
        except RecordError:
            return None
        if header.is_blank or header.size != size or header.physical_offset != physical_offset:
            return None
        if log.damaged and log.is_damaged(physical_offset):
            return None
        if (
            physical_offset < log.proven_from
            and not log.has_proven(file.view, at, size, physical_offset, header.topic)
            and log.prove(physical_offset, size) is None
        ):
            return None
        named = (header.queue_offset, header.queue_id, header.topic)
        if named != (offset, queue.queue_id, queue.topic) and not self._agrees(
            queue, offset, physical_offset, size
        ):
            return None
        return record, header.properties


@lru_cache(maxsize=64)
def _entries_struct(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def _signed32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _leading_mismatches(entries: memoryview, tag_filter: frozenset[int]) -> int:
    """How many entries at the beginning have none of the wanted hashes."""
    tags = np.frombuffer(entries, ENTRY_DTYPE)["tag_hash"].astype(np.int32)
    matches = np.isin(tags, np.fromiter(tag_filter, np.int64, len(tag_filter)).astype(np.int32))
    return int(matches.argmax()) if matches.any() else len(matches)
