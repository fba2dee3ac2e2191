"""Key index of a store: which records carry a key, over all index files.

Touches  <root>/index/<17 digits> and <root>/index/next. No sockets, no asyncio; the clock that names new files is
         passed in.

Keys     the unique key of a message first, then each non-empty piece of its KEYS between spaces, each as
         `topic#key`. Which messages are indexed (all but rolled back ones) is the caller's business.

Invariants
- Files are in the order of their names, which is the order of the physical offsets in them; a new file's
  name is larger than every other, whatever the clock says.
- Every file holds at least one entry; all files but the newest were full when the next one was begun.
- A record's keys are indexed once, however often the record is offered.
- Foreign files in the folder are left alone; `foreign_names` tells them to whoever logs.
- A file with a name of the index and no byte is none: its making was cut short, and a start removes it.
- Nothing here that the commit log cannot rebuild: recovery keeps what it can prove and cuts the rest.

Threads: one thread calls everything except flush(), make_next() and prepare_next(), which may run in others while keys
are put, but not beside recover(), release_before(), destroy() or close(). A put that needs the next file waits while it
is made.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.javahash import index_key_hash_many, index_key_hash_of
from aerobee_proto.steps import finished
from aerobee_store.disk.io import DataFile, StoreIo
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.index.index_file import (
    CHAINS_MAX,
    HEADER_SIZE,
    SLOT,
    Chainer,
    Holds,
    IndexedRecord,
    IndexFile,
    KeyedBlock,
    RecordProbe,
    index_file_size,
    missing_chains,
)
from aerobee_store.index.next_file import PREPARED_NAME, NextFile

__all__ = [
    "QUERY_NUM_MAX",
    "HashedKeys",
    "IndexDurable",
    "IndexRecovery",
    "IndexService",
    "IndexedRecord",
    "KeyedBlock",
    "KeyedRecord",
    "RecordProbe",
    "hashed_keys",
    "joined_keys",
    "key_blocks",
    "key_texts",
]

# topic, KEYS as stored, unique key, physical offset, store time in ms. One for each message: to name the fields of a
# tuple takes 0.3 us more.
KeyedRecord = tuple[str, str | None, str | None, int, int]

SLOT_COUNT: Final = 5_000_000
ENTRY_LIMIT: Final = 20_000_000
QUERY_NUM_MAX: Final = 64
_NAME_DIGITS: Final = 17
# The next file is made when a quarter of the newest is left: it takes 420 MB, and a small store needs no second one.
# At 100,000 keys a second that is 50 seconds ahead.
_PREPARED_BEFORE: Final = 4

_Ints = NDArray[np.int64]


class HashedKeys(NamedTuple):
    """Keys in log order, arrays of one length: hash of `topic#key`, place and store time (ms) of the record."""

    hashes: _Ints
    physical_offsets: _Ints
    store_timestamps: _Ints


class IndexDurable(NamedTuple):
    """All keys of records below the physical offset `end` are on disk, and the newest record of them that has any lies
    at `last` (-1: none has). Two numbers that are only true together."""

    end: int
    last: int


@dataclass(slots=True, frozen=True)
class IndexRecovery:
    """What recover() left: `end_offset` is the physical offset of the newest record that is indexed (-1
    for none), from which on records must be offered again; `cut_offset` that of the first entry that was cut (-1 for
    none); counts of entries and names of whole files."""

    end_offset: int
    cut_offset: int
    kept_entries: int
    cut_entries: int
    removed_files: tuple[str, ...]
    repaired_files: tuple[str, ...]


def key_texts(topic: str, keys: str | None, unique_key: str | None) -> list[str]:
    """The texts that a message is indexed under, in the order of their entries."""
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    if keys:
        texts += [f"{topic}#{piece}" for piece in keys.split(" ") if piece]
    return texts


def hashed_keys(records: Sequence[KeyedRecord | KeyedBlock]) -> HashedKeys:
    """All keys of these records, in the order of their entries."""
    kinds = {*map(type, records)}
    if KeyedBlock not in kinds:
        return _keys_of_records(cast("Sequence[KeyedRecord]", records))
    if len(kinds) == 1:
        return _keys_of_blocks(cast("Sequence[KeyedBlock]", records))
    runs = groupby(records, lambda record: isinstance(record, KeyedBlock))
    return joined_keys([hashed_keys(list(run)) for _, run in runs])


def _keys_of_blocks(blocks: Sequence[KeyedBlock]) -> HashedKeys:
    counts = [len(block.hashes) // 8 for block in blocks]
    return HashedKeys(
        np.frombuffer(b"".join([block.hashes for block in blocks]), np.int64),
        np.frombuffer(b"".join([block.physical_offsets for block in blocks]), np.int64),
        np.repeat(np.array([block.store_timestamp for block in blocks], np.int64), counts),
    )


def _keys_of_records(records: Sequence[KeyedRecord]) -> HashedKeys:
    if not records:
        return HashedKeys(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    topics, keys, unique_keys, places, times = zip(*records, strict=True)
    offsets, stamps = np.array(places, np.int64), np.array(times, np.int64)
    if not any(keys) and all(unique_keys):
        # One key each, as most messages have: half of the time of the general way.
        texts = [f"{topic}#{key}" for topic, key in zip(topics, unique_keys, strict=True)]
    else:
        texts = []
        counts: list[int] = []
        for topic, words, unique_key in zip(topics, keys, unique_keys, strict=True):
            own = key_texts(topic, words, unique_key)
            texts += own
            counts.append(len(own))
        offsets, stamps = np.repeat(offsets, counts), np.repeat(stamps, counts)
    return HashedKeys(index_key_hash_many(texts).astype(np.int64), offsets, stamps)


def key_blocks(keys: HashedKeys) -> list[KeyedBlock]:
    """Keys in log order, cut where the store time changes."""
    cuts = [0, *(np.flatnonzero(np.diff(keys.store_timestamps)) + 1).tolist(), len(keys.hashes)]
    blocks: list[KeyedBlock] = []
    for begin, end in pairwise(cuts):
        if begin == end:
            continue
        places = keys.physical_offsets[begin:end]
        count = 1 + int(np.count_nonzero(np.diff(places)))
        hashes, stamp = keys.hashes[begin:end].tobytes(), int(keys.store_timestamps[begin])
        blocks.append(KeyedBlock(count, hashes, places.tobytes(), int(places[0]), stamp))
    return blocks


def joined_keys(parts: Sequence[HashedKeys]) -> HashedKeys:
    """Several, at least one, behind each other."""
    return HashedKeys(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class IndexService:
    """Puts and finds keys over a row of index files; a part of a store."""

    title = "index"

    def __init__(
        self,
        folder: Path,
        io: StoreIo,
        clock: Callable[[], int],
        *,
        slot_count: int = SLOT_COUNT,
        entry_limit: int = ENTRY_LIMIT,
        writable: bool = True,
    ) -> None:
        """`clock` gives epoch ms; `slot_count` and `entry_limit` fix the size of all files for life."""
        assert slot_count > 0
        assert entry_limit > 1
        # Fixed for life.
        self._folder = folder
        self._io = io
        self._clock = clock
        self._slot_count = slot_count
        self._entry_limit = entry_limit
        self._writable = writable
        # Replaced, never changed in place: flush() may be looking.
        self._files: tuple[IndexFile, ...] = ()
        # What of the index is on disk; replaced by who knows what was indexed before a flush().
        self.durable = IndexDurable(0, -1)
        # Names in the folder that are no index files; found by load().
        self.foreign_names: tuple[str, ...] = ()
        self._unmade: list[str] = []  # files that a crash left without length
        # Asked first, where somebody is quick at it.
        self.chainer: Chainer | None = None
        # Made ahead by prepare_next(), the newest file once it holds a key.
        self._next = NextFile(
            folder,
            io,
            index_file_size(slot_count, entry_limit),
            HEADER_SIZE + slot_count * SLOT.size,
            new_name=self._new_name,
            opened=partial(self._open, create=False),
        )

    # --- loading and recovery --------------------------------------------------------------------------

    def load(self) -> None:
        """Open the index files. Whatever has another form of name or another length is foreign."""
        size = index_file_size(self._slot_count, self._entry_limit)
        names: list[str] = []
        foreign: list[str] = []
        for entry in self._io.list_names(self._folder):
            if entry.name == PREPARED_NAME and not entry.is_dir:
                self._next.is_left_over = True
                continue
            is_named = not entry.is_dir and _is_index_name(entry.name)
            row = names if entry.size == size else self._unmade if not entry.size else foreign
            (row if is_named else foreign).append(entry.name)
        self._files = tuple(self._open(name, create=False) for name in names)
        self.foreign_names = tuple(foreign)

    def _remove_left_over(self) -> None:
        """What an earlier run had begun to make."""
        self._next.remove_left_over()
        for name in self._unmade:
            self._io.unlink(self._folder / name)
        self._unmade.clear()

    def _open(self, name: str, *, create: bool) -> IndexFile:
        size = index_file_size(self._slot_count, self._entry_limit)
        data = self._io.open_file(self._folder / name, size, create=create, writable=self._writable)
        return IndexFile(data, self._slot_count, self._entry_limit)

    def recover(
        self,
        log_end: int,
        *,
        log_min: int = 0,
        proven_offset: int = 0,
        probe: RecordProbe | None = None,
        settled: bool = False,
    ) -> IndexRecovery:
        """Keep what is proven and cut the rest; call once, after load().

        Full files whose records all lie below `proven_offset` are known to be durable and get a cheap test.
        One with room shares pages with entries that came later and may be half on disk, slots above all: it
        is walked too, unless the store was closed in order (`settled`).
        The others are walked: links and order must hold, no record may lie at or above `log_end`, and
        `probe` must confirm the entries of records from `proven_offset` and `log_min` on. Files behind a
        cut go: their keys come back, in order, when the records from `end_offset` on are offered again.
        """
        self._remove_left_over()
        found = self._files
        found_entries = sum(file.count for file in found)
        cut_offset = -1
        repaired: list[str] = []
        previous_end = 0
        for at, file in enumerate(found):
            durable = file.end_physical < min(proven_offset, log_end) and (settled or file.room == 0)
            if durable and file.looks_sound(previous_end):
                proven = file.count
            else:
                proven = file.proven_count(log_end, previous_end, max(proven_offset, log_min), probe)
                whole = proven == file.count and file.room == 0
                if proven < file.count:
                    cut_offset = file.physical_offset_of(proven + 1)
                elif file.room and at + 1 < len(found) and found[at + 1].count:
                    cut_offset = found[at + 1].begin_physical
                # Files behind a hole go first: a crash in between must not leave them behind a shorter file.
                self._remove(found[at + 1 if proven else at :] if not whole else ())
                if proven and file.cut(proven, probe):
                    repaired.append(file.path.name)
            if len(self._files) <= at + 1:
                break
            previous_end = file.end_physical
        kept_entries = sum(file.count for file in self._files)
        removed = tuple(file.path.name for file in found[len(self._files) :])
        cut_entries = found_entries - kept_entries
        return IndexRecovery(self.end_offset, cut_offset, kept_entries, cut_entries, removed, tuple(repaired))

    def _remove(self, files: Sequence[IndexFile]) -> None:
        """Delete these files, newest first, so that what a crash leaves is still a row without holes."""
        self._files = tuple(file for file in self._files if file not in files)
        for file in reversed(files):
            file.close()
            self._io.unlink(file.path)
        if files:
            self._io.sync_folder(self._folder)

    # --- state -----------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """Physical offset below which all keys are on disk."""
        return self.durable.end

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest record that is indexed; -1 for none. For any thread."""
        newest = self._newest
        return newest.end_physical if newest is not None else -1

    @property
    def updated(self) -> tuple[int, int]:
        """Physical offset and store time (ms) of the newest record that is indexed; 0 and 0 for none."""
        newest = self._newest
        return (newest.end_physical, newest.end_timestamp) if newest is not None else (0, 0)

    @property
    def _newest(self) -> IndexFile | None:
        """The newest file that holds an entry. Another thread may see one behind it, whose first are just put."""
        for file in reversed(self._files):
            if file.next_entry > 1:
                return file
        return None

    @property
    def full_timestamp(self) -> int:
        """Store time (ms) of the last record of the newest file that is full and durable; 0 for none."""
        stamps = [file.end_timestamp for file in self._files if file.room == 0 and not file.dirty]
        return stamps[-1] if stamps else 0

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._folder

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The files, oldest first."""
        return self._files

    # --- writing ---------------------------------------------------------------------------------------

    def open_files(self) -> list[DataFile]:
        """The files as they are open now. For any thread."""
        return [file.data for file in self._files]

    def put_many(self, records: Sequence[KeyedRecord | KeyedBlock]) -> int:
        """Index all keys of these records, which are in the order of their physical offsets; how many keys.

        Records that are indexed already are passed over, also the missing part of one that is indexed
        in part. StoreFull when a new file finds no room: keys before it are in, the rest may be offered
        again with the same call. A batch of 256 keys or more takes about 1 us a key.
        """
        end_offset = self.end_offset
        if records and records[0][3] <= end_offset:
            # Those of a block are told apart below, key by key.
            records = [
                record for record in records if record[3] >= end_offset or isinstance(record, KeyedBlock)
            ]
        if not records:
            return 0
        return self._put_chained(records) or self.put_hashed(hashed_keys(records))

    def _put_chained(self, records: Sequence[KeyedRecord | KeyedBlock]) -> int:
        """As put_many(), for new blocks in the newest file, if somebody is quick at that; how many keys. 0: none are
        put."""
        if self.chainer is None or not self._files or {*map(type, records)} != {KeyedBlock}:
            return 0
        blocks = cast("Sequence[KeyedBlock]", records)
        if blocks[0].physical_offset <= self.end_offset:
            return 0
        return self._files[-1].put_chained(blocks, self.chainer)

    def put_hashed(self, keys: HashedKeys) -> int:
        """As put_many(), for keys whose hashes are known."""
        hashes, offsets, stamps = keys
        end_offset = self.end_offset
        if len(offsets) and int(offsets[0]) <= end_offset:
            left = offsets >= end_offset
            left[left] = self._new_keys(hashes[left], offsets[left])
            hashes, offsets, stamps = hashes[left], offsets[left], stamps[left]
        if len(hashes):
            self._put(hashes, offsets, stamps)
        return len(hashes)

    def _new_keys(self, hashes: _Ints, offsets: _Ints) -> NDArray[np.bool_]:
        """Which of these keys are new, when the first ones belong to the newest record of the index."""
        end_offset = self.end_offset
        known: Counter[int] = Counter()
        for file in reversed(self._files):
            newest = file.newest_of(end_offset)
            known.update(newest)
            if len(newest) < file.count:
                break
        new = np.ones(len(hashes), np.bool_)
        for at in np.flatnonzero(offsets == end_offset).tolist():
            key_hash = int(hashes[at])
            new[at] = known[key_hash] <= 0
            known[key_hash] -= 1
        return new

    def _put(self, hashes: _Ints, offsets: _Ints, stamps: _Ints) -> None:
        start = 0
        while start < len(hashes):
            file = self._files[-1] if self._files else None
            if file is None or file.room == 0:
                file = self._next_file()
                self._files = (*self._files, file)
            stop = start + file.room
            file.put(hashes[start:stop], offsets[start:stop], stamps[start:stop])
            start = stop

    def _next_file(self) -> IndexFile:
        """A file behind all others: the one made ahead, if there is one."""
        return self._next.take() or self._open(self._new_name(), create=True)

    @property
    def lacks_file(self) -> bool:
        """Whether the next key goes to a file that has yet to be made."""
        files = self._files
        return not (files and files[-1].room) and not self._next.is_made

    def make_next(self) -> bool:
        """Make the file after the newest, or the first one; True if it was made. As prepare_next()."""
        return self._next.prepare()

    def prepare_next(self) -> bool:
        """Make the file after the newest ahead of its use, when that one is nearly full; True if one was made.

        For a worker thread. StoreFull when there is no room.
        """
        files = self._files
        if not files or files[-1].room > self._entry_limit // _PREPARED_BEFORE:
            return False
        return self._next.prepare()

    def _new_name(self) -> str:
        """Local time as yyyyMMddHHmmssSSS, moved on when it is not behind the newest name."""
        now_ms = self._clock()
        moment = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone()
        name = f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
        newest = max((n for n in (*self._file_names(), *self.foreign_names) if _is_index_name(n)), default="")
        return name if name > newest else f"{int(newest) + 1:0{_NAME_DIGITS}d}"

    def _file_names(self) -> list[str]:
        return [file.path.name for file in self._files]

    def recover_to(self, begin: int, end: int) -> None:
        """As StorePart: what leads elsewhere went with recover(), which asks the records."""

    def flush(self) -> int:
        """Make every key put before this call durable; how many files were synced. OSError is final for the store."""
        dirty = [file for file in self._files if file.dirty]
        for file in dirty:
            file.sync()
        self._next.sync_names()
        return len(dirty)

    # --- reading ---------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int) -> list[int]:
        """As query_steps(), at once."""
        return finished(self.query_steps(topic, key, max_num, begin, end))

    def query_steps(
        self, topic: str, key: str, max_num: int, begin: int, end: int, *, holds: Holds | None = None
    ) -> Generator[NotInMemory | None, None, list[int]]:
        """Physical offsets, newest first, of at most `max_num` (and QUERY_NUM_MAX) records that may carry
        `key` and were stored in [begin, end] (ms). Yields after every few milliseconds of work; with
        `holds`, which says what is in memory, also what has to be brought there before the next step.

        Only hashes were compared: the caller reads the records and checks topic and key. Store times are
        known to the second below: records of the last second before `begin` + 1 s may be missing.
        """
        max_num = min(max_num, QUERY_NUM_MAX)
        key_hash = index_key_hash_of(topic, key)
        found: list[int] = []
        files: list[IndexFile] = []  # newest first
        for file in reversed(self._files):
            if file.time_matches(begin, end):
                files.append(file)
            if file.begin_timestamp < begin:
                break
        brought: set[tuple[IndexFile, int]] = set()  # slots and entries that were just read
        has = None if holds is None else partial(_has, brought, holds)
        for number, file in enumerate(files):
            if len(found) >= max_num:
                break
            for missing in file.collect(key_hash, begin, end, max_num, found, holds=has):
                if missing is not None and (file, file.slot_at(key_hash)) not in brought:
                    several = files[number : number + CHAINS_MAX]
                    yield missing_chains(several, key_hash, begin, brought)
                else:
                    yield missing
        return found

    # --- the lower end ---------------------------------------------------------------------------------

    def release_before(self, log_min: int) -> list[IndexFile]:
        """Take the oldest files out whose records all lie below `log_min`, never the newest; closing and deleting them,
        oldest first, is the caller's business."""
        gone = self._stale_count(log_min)
        released, self._files = list(self._files[:gone]), self._files[gone:]
        return released

    def _stale_count(self, log_min: int) -> int:
        count = 0
        while count < len(self._files) - 1 and self._files[count].end_physical < log_min:
            count += 1
        return count

    def destroy(self) -> None:
        """Delete all index files; foreign files stay, and the folder with them."""
        self._remove_left_over()
        self._next.discard()
        self._remove(self._files)
        self._io.remove_folder(self._folder)

    def close(self) -> None:
        """Close the files and remove the one made ahead and not used. Nothing is flushed."""
        files, self._files = self._files, ()
        for file in files:
            file.close()
        self._next.discard()

    def check(self) -> None:
        """Check every file and their order; CorruptStore at the first broken invariant."""
        previous_end = 0
        for file in self._files:
            file.check()
            if file.begin_physical < previous_end:
                raise CorruptStore(file.path, file.begin_physical, f"begins below {previous_end}")
            previous_end = file.end_physical


def _has(
    brought: set[tuple[IndexFile, int]], holds: Holds, file: IndexFile, position: int, length: int
) -> bool:
    return (file, position) in brought or holds(file, position, length)


def _is_index_name(name: str) -> bool:
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdecimal()
