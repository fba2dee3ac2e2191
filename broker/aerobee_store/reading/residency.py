"""What readers are going to look at: whether it is in memory, and if not, what has to be brought there.

Touches  the page cache, asking. Nothing is read here.

Asking the system takes 2 us, a whole pull 8; so the answer is believed for a moment (`forget`). What was written to the
log in its last 64 MiB is in memory without being asked for: it is either dirty or was so a moment ago.

Reading ahead
- What a reader asks for next stands in its queue: with what it needs now comes what the entries behind lead to, in
  stretches that leave out what lies between.
- A reader that goes through the log block by block has the blocks behind read before it comes to them.

Invariants
- Bounded: one NotInMemory names at most STRETCHES_MAX stretches for now and as many for later, of `ahead_size` bytes in
  all, but for what one read needs.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from mmap import PAGESIZE
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.records import SIZE_AND_MAGIC
from aerobee_store.disk.mapped_files import MappedFile
from aerobee_store.disk.page_cache import NotInMemory, Stretch
from aerobee_store.index.index_file import IndexFile
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ENTRY_SIZE, ConsumeQueue

__all__ = ["TRUSTED_SIZE", "IndexNearby", "Places", "Residency", "places_of"]

TRUSTED_SIZE: Final = 64 << 20  # bytes behind the log's end that are not asked for
STRETCHES_MAX: Final = 64
_TRIES_MAX: Final = 4  # then what does not stay in memory is read as it is
_BLOCK_BITS: Final = 18
_BLOCK: Final = 1 << _BLOCK_BITS  # of the log: what is asked for together, 6 us
# Of a file of the index, 19 us, each page by itself: chains lead to anywhere in 400 MB of entries; where memory had
# become scarce, hardly a query met nothing but blocks that were there as a whole.
_INDEX_BITS: Final = 20
_INDEX_BLOCK: Final = 1 << _INDEX_BITS
_INDEX_PAGES: Final = _INDEX_BLOCK // PAGESIZE
_QUEUE_BLOCK: Final = 1 << 16  # of a queue file: 3,276 entries
_BLOCKS_MAX: Final = 4096  # of queues, of which the answer is believed
_INDEX_BLOCKS_MAX: Final = 16_384  # of the index: 5 MiB of answers for 40 files
_GAP_MAX: Final = 32 << 10  # bytes between two records that are read with them
_SPAN_MAX: Final = 64  # blocks that one pull is looked for in
_RECORD_MAX: Final = 32 << 20  # bytes; an entry that says more leads to no record
_ALL: Final = 1 << 62

Ints = NDArray[np.int64]


IndexNearby = tuple[
    memoryview,  # a file of the index
    int,  # its slots
    int,  # the number behind its last entry
    int,  # store time (ms) of its first record
    int,  # and of its last one
    dict[int, bytes] | None,  # its pages in memory, as `index_pages` has them; None: all
]


class Places(NamedTuple):
    """Where records lie in the log, and how long they are, as far as entries can be believed."""

    offsets: Ints
    sizes: Ints


class Residency:
    """Of one store. All calls from the thread that reads."""

    def __init__(self, log: CommitLog, *, count_max: int, ahead_size: int = 1 << 20) -> None:
        """No read takes more than `count_max` entries of a queue."""
        self.log = log
        self._count_max = count_max
        # Bytes that are read before they are asked for; 0: none.
        self.ahead_size = ahead_size
        # Nobody is asked, all counts as being in memory: turned off, or to read as it is what does not stay there.
        self.is_off = True
        self._read_ahead: Callable[[Sequence[Stretch]], None] = lambda stretches: None
        # Blocks of the log that were in memory a moment ago, and those that were asked to be read.
        self._known: set[int] = set()
        self._coming: set[int] = set()
        # Blocks of queues, by the byte of the row where they begin. One row of blocks of each is in its `hot_from` and
        # `hot_until`, too.
        self._known_entries: set[tuple[ConsumeQueue, int]] = set()
        # Pages of files of the index, the same, by their file and block; and how many blocks those are.
        self._known_index: dict[IndexFile, dict[int, bytes]] = {}
        self._known_index_count = 0
        # What index_nearby() gave last, and for what. Forgotten with the pages that it names, and as it holds the maps
        # of files that may be deleted meanwhile.
        self._nearby: list[IndexNearby] = []
        self._nearby_of: tuple[tuple[IndexFile, ...], int, bool] | None = None
        # The file of the index that was found ready for keys a moment ago.
        self.known_index: IndexFile | None = None

    def begin(self, read_ahead: Callable[[Sequence[Stretch]], None]) -> None:
        """Ask from now on. `read_ahead` is told what should be read some time."""
        self._read_ahead = read_ahead
        self.is_off = False

    def ahead(self, missing: NotInMemory) -> None:
        """Have it read some time: who would need it now has found something else first."""
        self._read_ahead([*missing.needed, *missing.ahead])

    def forget(self) -> None:
        """Believe no answer any longer. To be called every second or so: memory may be wanted by others."""
        self._known.clear()
        self._coming.clear()
        self.known_index = None
        self._forget_index()
        self._forget_entries()

    def _forget_entries(self) -> None:
        for queue, _ in self._known_entries:
            queue.hot_from = queue.hot_until = 0
        self._known_entries.clear()

    # --- queues ------------------------------------------------------------------------------------------------

    def require_entries(self, queue: ConsumeQueue, offset: int, count: int) -> None:
        """NotInMemory, unless `count` entries from a queue offset on are in memory."""
        if self.holds_entries(queue, offset, count):
            return
        file = queue.file_of(offset)
        assert file is not None
        begin = offset * ENTRY_SIZE - file.offset
        end = min(queue.max_offset * ENTRY_SIZE, file.end) - file.offset
        stop = min(begin + count * ENTRY_SIZE, end)
        behind = min(_QUEUE_BLOCK, end - stop) if self.ahead_size else 0
        path = file.data.path
        ahead = [Stretch(path, stop, behind)] if behind else []
        raise NotInMemory([Stretch(path, begin, stop - begin)], ahead)

    def holds_entries(self, queue: ConsumeQueue, offset: int, count: int) -> bool:
        """Whether `count` entries from a queue offset on are in memory; also where there are none."""
        if self.is_off or queue.is_batch or queue.hot_from <= offset < queue.hot_until:
            return True
        file = queue.file_of(offset)
        if file is None:
            return True
        begin = offset * ENTRY_SIZE
        block = begin - (begin - file.offset) % _QUEUE_BLOCK
        if (queue, block) in self._known_entries:
            return True
        end = min(queue.max_offset * ENTRY_SIZE, file.end)  # no read goes beyond a file
        if self._has_entries(queue, file, block, end):
            return True
        stop = min(begin + count * ENTRY_SIZE, end)
        return file.data.in_memory(begin - file.offset, stop - begin)

    def _has_entries(self, queue: ConsumeQueue, file: MappedFile, block: int, end: int) -> bool:
        """Whether reads that begin in a block find all their entries in memory; `end` is where none goes beyond."""
        first, behind = block, block + _QUEUE_BLOCK
        stop = min(behind + self._count_max * ENTRY_SIZE, end)
        if not file.data.in_memory(first - file.offset, stop - first):
            return False
        if len(self._known_entries) >= _BLOCKS_MAX:
            self._forget_entries()
        self._known_entries.add((queue, block))
        hot_from, hot_until = -(-first // ENTRY_SIZE), behind // ENTRY_SIZE
        if behind >= end:  # what is put there from now on is in memory
            hot_until = end // ENTRY_SIZE if end == file.end else _ALL
        if hot_from <= queue.hot_until + 1 and queue.hot_from <= hot_until + 1:
            hot_from, hot_until = min(hot_from, queue.hot_from), max(hot_until, queue.hot_until)
        queue.hot_from, queue.hot_until = hot_from, hot_until
        return True

    # --- the index ----------------------------------------------------------------------------------------------

    def holds_index(self, file: IndexFile, position: int, length: int) -> bool:
        """Whether a few bytes of a file of the index, a slot or an entry, are in memory."""
        return self._has_index_page(file, position) and self._has_index_page(file, position + length - 1)

    def _has_index_page(self, file: IndexFile, position: int) -> bool:
        block, page = position >> _INDEX_BITS, position % _INDEX_BLOCK // PAGESIZE
        known = self._known_index.get(file, {}).get(block)
        if known is not None and known[page]:
            return True
        begin = block << _INDEX_BITS
        if not begin <= position < file.data.size:
            return True  # there is nothing to read
        pages = file.data.pages_in_memory(begin, min(_INDEX_BLOCK, file.data.size - begin))
        if known is None:
            if self._known_index_count >= _INDEX_BLOCKS_MAX:
                self._forget_index()
            self._known_index_count += 1
        self._known_index.setdefault(file, {})[block] = pages.ljust(_INDEX_PAGES, b"\0")
        return bool(pages[page])

    def _forget_index(self) -> None:
        self._nearby, self._nearby_of = [], None
        self._known_index.clear()
        self._known_index_count = 0

    def index_pages(self, file: IndexFile) -> "dict[int, bytes] | None":
        """Which pages of a file of the index are known to be in memory, by its blocks of 1 MiB: a byte for each page, 1
        where it is. None: all count as such."""
        return None if self.is_off else self._known_index.setdefault(file, {})

    def index_nearby(self, files: tuple[IndexFile, ...]) -> list[IndexNearby]:
        """What who looks a key up by himself has to know of these files, the newest first. Made anew when something has
        changed: made for each query, it was a tenth of its time."""
        now = files, files[-1].next_entry if files else 0, self.is_off
        if now != self._nearby_of:
            pages = self.index_pages
            self._nearby = [
                (one.view, one.slot_count, one.next_entry, one.begin_timestamp, one.end_timestamp, pages(one))
                for one in reversed(files)
            ]
            self._nearby_of = now
        return self._nearby

    @property
    def log_blocks(self) -> "set[int] | None":
        """The same of the log."""
        return None if self.is_off else self._known

    # --- the log -----------------------------------------------------------------------------------------------

    def holds(self, file: MappedFile, begin: int, end: int) -> bool:
        """Whether a stretch of the log, in one file, is in memory as a whole."""
        if self.is_off:
            return True
        first, last = begin >> _BLOCK_BITS, (end - 1) >> _BLOCK_BITS
        if first in self._known and (first == last or (first + 1 == last and last in self._known)):
            return True
        blocks = range(first, last + 1)
        if len(blocks) > _SPAN_MAX:
            return False
        return all(
            block in self._known or self._has_block(file, block) or self._has_part(file, block, begin, end)
            for block in blocks
        )

    def _has_part(self, file: MappedFile, block: int, begin: int, end: int) -> bool:
        """Whether what a stretch has of a block is in memory: the block is there only in part."""
        begin, end = max(begin, block << _BLOCK_BITS), min(end, (block + 1) << _BLOCK_BITS)
        return file.data.in_memory(begin - file.offset, end - begin)

    def known_around(self, file: MappedFile, begin: int, size: int) -> tuple[int, int]:
        """A stretch [begin, end) of the log that is in memory and holds a record; an empty one when the record is
        not there."""
        block = begin >> _BLOCK_BITS
        end = begin + max(size, 1)
        if self.is_off:
            return begin, end
        if block == (end - 1) >> _BLOCK_BITS and (block in self._known or self._has_block(file, block)):
            return block << _BLOCK_BITS, (block + 1) << _BLOCK_BITS
        length = min(size, file.end - begin, _RECORD_MAX)
        return (begin, end) if file.data.in_memory(begin - file.offset, length) else (begin, begin)

    def require(self, physical_offset: int, size: int) -> None:
        """NotInMemory, unless these bytes of the log are in memory or not in the log."""
        file = self.log.mapped.find(physical_offset)
        if file is None or physical_offset >= self.log.end_offset:
            return
        known_from, known_end = self.known_around(file, physical_offset, size)
        if known_from == known_end:
            needed = _Stretches(self.log)
            needed.add(physical_offset, size)
            raise NotInMemory(needed.found())

    def require_record(self, physical_offset: int) -> None:
        """NotInMemory, unless the record that begins there is in memory, or none does."""
        self.require(physical_offset, SIZE_AND_MAGIC.size)
        head = self.log.read(physical_offset, SIZE_AND_MAGIC.size)
        if head is not None:
            self.require(physical_offset, max(SIZE_AND_MAGIC.unpack(head)[0], SIZE_AND_MAGIC.size))

    def has_records(self, places: Sequence[int]) -> bool:
        """Whether the records that begin there are known to be in memory; a no says nothing."""
        return self.is_off or all(map(self._has_record, places))

    def _has_record(self, place: int) -> bool:
        log = self.log
        file = log.mapped.find(place)
        if file is None or place >= log.end_offset:
            return True  # there is none
        block = place >> _BLOCK_BITS
        if (place + SIZE_AND_MAGIC.size) >> _BLOCK_BITS != block or place + SIZE_AND_MAGIC.size > file.end:
            return False
        if block not in self._known and not self._has_block(file, block):
            return False
        size = SIZE_AND_MAGIC.unpack_from(file.view, place - file.offset)[0]
        end = min(place + max(size, 1), file.end)
        return (end - 1) >> _BLOCK_BITS == block or self.holds(file, place, end)

    def bring_records(self, places: Sequence[int]) -> Generator[NotInMemory, None, None]:
        """What has to be brought before the records at these physical offsets are looked at."""
        for _ in range(_TRIES_MAX):
            needed: list[Stretch] = []
            for place in places:
                try:
                    self.require_record(place)
                except NotInMemory as missing:
                    needed += missing.needed
            if not needed:
                return
            yield NotInMemory(needed)

    def _has_block(self, file: MappedFile, block: int) -> bool:
        begin = max(block << _BLOCK_BITS, file.offset)
        end = min((block + 1) << _BLOCK_BITS, file.end, self.log.end_offset)
        if begin >= end or not file.data.in_memory(begin - file.offset, end - begin):
            return False
        self._known.add(block)
        if block - 1 in self._known and self.ahead_size:
            self._go_ahead(file, block + 1)
        return True

    def _go_ahead(self, file: MappedFile, block: int) -> None:
        """Somebody goes through the log and comes to this block next. Half of what is read ahead is on its way always:
        asked for when it is needed, it was waited for each time."""
        count = max(self.ahead_size >> _BLOCK_BITS, 1)
        middle = block + count // 2
        if middle in self._coming or middle in self._known:
            return
        while block < middle and (block in self._coming or block in self._known):
            block += 1
        begin = block << _BLOCK_BITS
        end = min(begin + max(self.ahead_size, _BLOCK), file.end, self.log.end_offset)
        if begin >= end:
            return
        self._coming.update(range(block, ((end - 1) >> _BLOCK_BITS) + 1))
        if not file.data.in_memory(begin - file.offset, end - begin):
            self._read_ahead([Stretch(file.data.path, begin - file.offset, end - begin)])

    def missing(self, places: Places, count: int, size_max: int) -> NotInMemory:
        """What to bring for records that are read one after the other: the first `count` of them now, of at most
        `size_max` bytes or one; the others ahead."""
        needed, ahead = _Stretches(self.log), _Stretches(self.log)
        # By arrays: one by one, 250 records took 190 us of the event loop.
        sums = np.cumsum(np.maximum(places.sizes, 0))
        now = min(max(count, 1), int(np.searchsorted(sums, size_max)) + 1, len(sums))
        later = max(now, int(np.searchsorted(sums, self.ahead_size, side="right")))
        for number, place, size in self._joined(places.offsets[:later], places.sizes[:later], now):
            stretches = needed if number < now else ahead
            if not stretches.is_full:
                stretches.add(place, size)
        return NotInMemory(needed.found(), ahead.found())

    def _joined(self, offsets: Ints, sizes: Ints, cut: int) -> Iterable[tuple[int, int, int]]:
        """Records that lie near each other as one, but for those from the number `cut` on with those before: number of
        the first, its place, bytes. Where an entry leads to no possible record, it stays alone."""
        if not len(offsets):
            return ()
        ends = offsets + sizes
        inside = (offsets >= self.log.min_offset) & (offsets < self.log.end_offset)
        usual = inside & (sizes > 0) & (sizes <= _RECORD_MAX)
        files = offsets // self.log.file_size
        near = (offsets[1:] >= offsets[:-1]) & (offsets[1:] - ends[:-1] <= _GAP_MAX)
        near &= usual[1:] & usual[:-1] & (files[1:] == files[:-1])
        near[cut - 1 : cut] = False
        begins = np.flatnonzero(np.concatenate(([True], ~near)))
        reached = np.maximum.reduceat(ends, begins)
        return zip(
            begins.tolist(), offsets[begins].tolist(), (reached - offsets[begins]).tolist(), strict=True
        )


class _Stretches:
    """Records put together to stretches of files."""

    __slots__ = ("_begin", "_end", "_file", "_found", "_log")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._found: list[Stretch] = []
        self._file: MappedFile | None = None
        self._begin = self._end = 0

    @property
    def is_full(self) -> bool:
        return len(self._found) >= STRETCHES_MAX

    def add(self, place: int, size: int) -> None:
        """A record that is believed to lie there, in one file."""
        file = self._file
        if file is None or not self._begin <= place <= min(self._end + _GAP_MAX, file.end - 1):
            self._close()
            file = (
                self._log.mapped.find(place) if self._log.min_offset <= place < self._log.end_offset else None
            )
            self._file, self._begin, self._end = file, place, place
        if file is not None:
            self._end = max(self._end, min(place + max(size, 1), place + _RECORD_MAX, file.end))

    def _close(self) -> None:
        if self._file is not None:
            at = self._begin - self._file.offset
            self._found.append(Stretch(self._file.data.path, at, self._end - self._begin))
            self._file = None

    def found(self) -> list[Stretch]:
        self._close()
        return self._found


def places_of(queue: ConsumeQueue, entries: memoryview, tag_filter: frozenset[int] | None) -> Places:
    """Where the records lie that entries lead to, and how long they are; only those with a tag of the filter."""
    columns = np.frombuffer(entries, queue.dtype)
    if tag_filter is not None:
        tags = columns["tag_hash"].astype(np.int32)
        hashes = np.fromiter(tag_filter, np.int64, len(tag_filter)).astype(np.int32)
        columns = columns[np.isin(tags, hashes)]
    return Places(columns["physical_offset"].astype(np.int64), columns["size"].astype(np.int64))
