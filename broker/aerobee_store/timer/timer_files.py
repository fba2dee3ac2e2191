"""The side files of timer messages, as RocketMQ keeps them: what waits for which moment.

Touches  <root>/timerlog/, <root>/timerwheel, <root>/config/timercheck. No clock.

Time is cut into slots of `precision_ms`; a slot is named by its first millisecond. Every message that waits has a
unit in the timer log, and the units of one slot are chained, newest to oldest.

    unit         size 52 i32 | previous position i64 | magic i32 | write_ms i64 | delay_ms i32 (from write_ms)
                 | physical_offset i64 | record size i32 | Java hash of the real topic i32 | exact i64
    magic        1, and 2: to be put back into the timer topic (too far away for one go), 4: a recall
    end of file  rest i32 | 0 i64 | 0xCBD43194 i32
    wheel        1,209,600 slots: slot / precision i64 | first position i64 | last position i64 | count i32 | 0 i32;
                 the slot of a time is at (time / precision) % 1,209,600 and counts only with that time in it
    timercheck   read_ms | synced end of the timer log | queue_offset | the same again | DataVersion: 7 i64, 4096 bytes

write_ms + delay_ms lies in the unit's slot. RocketMQ writes the slot's first millisecond and delivers one slot
later; we write the millisecond before the message is due, and 1 in `exact`, where RocketMQ writes 0 and reads nothing.

Invariants
- `read_ms`: every message of slots below it is delivered. `queue_offset`: messages of the timer topic below it have
  a unit, or are delivered.
- A unit whose previous position is -1 begins its slot anew: older units of that slot are delivered.
- The checkpoint is written after what it speaks of is on disk.
- Here the wheel is written only; what waits is found from the log, so a torn wheel does no harm.

Threads: one thread calls everything but `sync`, which may run in another.
"""

import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from aerobee_store.disk.io import DataFile, StoreIo
from aerobee_store.disk.mapped_files import MappedFile, MappedFileQueue
from aerobee_store.faults.errors import StoreError, StoreFull

__all__ = [
    "MAGIC_DEFAULT",
    "MAGIC_DELETE",
    "MAGIC_ROLL",
    "CheckpointKept",
    "Snapshot",
    "TimerFiles",
    "TimerUnit",
    "Verified",
    "sound_units",
]

log = structlog.get_logger()

UNIT: Final = Struct(">iqiqiqiiq")
UNIT_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
BLANK: Final = Struct(">iqi")
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
SLOT: Final = Struct(">qqqii")
SLOT_DTYPE: Final = np.dtype(
    [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("zero", ">i4")]
)
SLOT_COUNT: Final = 2 * 7 * 24 * 3600
CHECKPOINT: Final = Struct(">7q")
CHECKPOINT_SIZE: Final = 4096
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
MAGIC_MASK: Final = 0xF
NOTHING: Final = -1
EXACT: Final = 1
ENDLESS: Final = 2**63 - 1


class TimerUnit(NamedTuple):
    """One unit of the timer log. `at_ms` lies in its slot; when it is `exact`, the message is due a millisecond
    later, else, as RocketMQ writes it, at the end of the slot."""

    previous: int
    magic: int
    write_ms: int
    at_ms: int
    physical_offset: int
    record_size: int
    topic_hash: int
    exact: bool = True

    @property
    def rolls(self) -> bool:
        """Whether the message goes back into the timer topic."""
        return self.magic & MAGIC_ROLL != 0

    @property
    def deletes(self) -> bool:
        """Whether this takes another message of the same slot out."""
        return self.magic & MAGIC_DELETE != 0


class CheckpointKept(StoreError):
    """The checkpoint of the timer files could not be written; the one before stands."""


class Verified(NamedTuple):
    """What the store knows of the message of a unit."""

    queue_offset: int  # in the timer topic
    out_ms: int  # its slot, when it does not roll


Verify = Callable[[int, int], Verified | None]
"""(physical offset, record size) -> the timer message that lies there; None when there is none."""


@dataclass(slots=True, frozen=True)
class Snapshot:
    """A state that a checkpoint may speak of once the log of messages is on disk up to `message_end`."""

    read_ms: int
    queue_offset: int
    log_end: int
    message_end: int
    files: tuple[MappedFile, ...]


class TimerFiles:
    """What waits for which moment. `load` and `recover` first."""

    def __init__(self, root: Path, io: StoreIo, *, precision_ms: int, log_file_size: int) -> None:
        # Fixed for life.
        self._io = io
        self._check_path = root / "config" / "timercheck"
        self._wheel_path = root / "timerwheel"
        self._precision_ms = precision_ms
        self._files = MappedFileQueue(root / "timerlog", log_file_size, io)
        self._wheel: DataFile | None = None
        # Moved by add(), finish() and start_anew().
        self._slots: dict[int, array[int]] = {}  # slot -> positions of its units, oldest first
        self._order: list[int] = []  # heap of slots; one that is not in _slots is stale
        self._firsts: dict[int, int] = {}  # slot -> smallest physical offset of the messages of its units
        self._first_order: list[
            tuple[int, int]
        ] = []  # heap of the same; stale where _firsts says something else
        self.log_end = 0
        self.count = 0  # units in _slots
        # Moved by the owner, as messages of the timer topic get their units.
        self.queue_offset = 0
        # The queue_offset of before when recover() found the log damaged where it was on disk already: nothing was
        # taken from it, everything has to get its unit anew. 0: it is sound.
        self.lost_queue_offset = 0
        # Moved by finish(): every slot below is done.
        self.read_ms = 0
        # As last written.
        self.version_ms = 0
        self.version_count = 0
        self._synced_end = 0
        # The end of the log of messages that the last checkpoint of this run speaks of.
        self.message_end = 0

    # --- opening ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open what is there. CorruptStore for a file of another length or name; OSError."""
        raw = self._io.read_bytes(self._check_path) or b""
        if len(raw) >= CHECKPOINT.size:
            fields = CHECKPOINT.unpack_from(raw)
            self.read_ms, self._synced_end, self.queue_offset = (max(0, field) for field in fields[:3])
            self.version_ms, self.version_count = fields[5], fields[6]
        self._files.load()

    def recover(self, verify: Verify, message_end: int = ENDLESS, queue_end: int = ENDLESS) -> None:
        """Cut what a crash left half written, and find what waits; after load(). StoreFull and OSError.

        The log of messages ends at `message_end`, the timer topic at `queue_end`: what was on disk of more than that,
        before the log was cut, is let go.
        """
        self._let_go(verify, message_end, queue_end)
        sound = all(
            self._load(file, verify) for file in self._files.files if file.offset <= self._log_reach()
        )
        if not sound or self.log_end < self._synced_end:
            self._give_up_log()
        self._files.truncate(self.log_end)
        self._order = list(self._slots)
        heapq.heapify(self._order)
        if self._slots or self._wheel_exists():
            self._mend_wheel()

    def _let_go(self, verify: Verify, message_end: int, queue_end: int) -> None:
        """Units of messages that the log has lost ask for nothing, each about one that is left. Without such a one the
        log of units begins anew. Durable on return: other messages may come to lie there."""
        lost = [place for place, row in self._durable_rows(lambda ends: ends > message_end)]
        kept = (row for _, row in self._durable_rows(lambda ends: ends <= message_end)) if lost else ()
        left = next(
            (row for row in kept if verify(int(row["physical_offset"]), int(row["record_size"]))), None
        )
        if left is not None:
            for file, at in lost:
                _ask_for_nothing(file, at, left)
        elif lost:
            self._files.destroy()
            self._synced_end = 0
        if lost or self.queue_offset > queue_end:
            log.warning(
                "store.timer_cut", unit_count=len(lost), logical_offset=min(self.queue_offset, queue_end)
            )
            self.queue_offset = min(self.queue_offset, queue_end)
            files = tuple(dict.fromkeys(file for file, _ in lost)) if self._files.files else ()
            self.sync(Snapshot(self.read_ms, self.queue_offset, self._synced_end, 0, files), self.version_ms)

    def _durable_rows(
        self, chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> "Iterator[tuple[tuple[MappedFile, int], np.void]]":
        """Where units that are known to be on disk lie in their files, and what they say, newest first; of those whose
        messages end at `chosen` physical offsets."""
        for file in reversed(self._files.files):
            size = min(self._synced_end - file.offset, self._files.file_size - BLANK.size)
            rows = np.frombuffer(file.view, UNIT_DTYPE, count=max(size, 0) // UNIT.size)
            ends = rows["physical_offset"].astype(np.int64) + rows["record_size"]
            for index in np.flatnonzero(sound_units(rows, file.offset) & chosen(ends))[::-1].tolist():
                yield (file, index * UNIT.size), rows[index]

    def _log_reach(self) -> int:
        """Where the log may go on: behind what was read of it, and in the first file of all."""
        return max(self.log_end, self._synced_end, self._files.min_offset)

    def _load(self, file: MappedFile, verify: Verify) -> bool:
        """Take in the units of one file up to the log's end; False when it is damaged."""
        rows = np.frombuffer(file.view, UNIT_DTYPE, count=self._files.file_size // UNIT.size)
        blank_at = self._blank_at(file)
        usable = len(rows) if blank_at is None else blank_at // UNIT.size
        trusted = min(max(0, self._synced_end - file.offset) // UNIT.size, usable)
        sound = sound_units(rows[:usable], file.offset)
        count = trusted
        while count < usable and sound[count] and self._is_known(rows[count], verify):
            count += 1
        slots = self.slot_of(rows["write_ms"][:count] + rows["delay_ms"][:count])
        for index in np.flatnonzero(slots >= self.read_ms).tolist():
            place = file.offset + index * UNIT.size
            physical_offset = int(rows["physical_offset"][index])
            self._remember(int(slots[index]), place, int(rows["previous"][index]), physical_offset)
        whole = blank_at is not None and count == usable
        self.log_end = file.end if whole else file.offset + count * UNIT.size
        return bool(sound[:trusted].all())

    def _blank_at(self, file: MappedFile) -> int | None:
        """Position in the file of the mark that closes it."""
        at = (self._files.file_size - BLANK.size) // UNIT.size * UNIT.size
        rest, _, magic = BLANK.unpack_from(file.view, at)
        return at if magic == BLANK_MAGIC and rest == self._files.file_size - at else None

    def _is_known(self, row: "np.void", verify: Verify) -> bool:
        """Whether a unit that may be half written is about a message that is there; that one needs no unit then."""
        found = verify(int(row["physical_offset"]), int(row["record_size"]))
        if found is None:
            return False
        slot = self.slot_of(int(row["write_ms"]) + int(row["delay_ms"]))
        if slot != self.slot_of(found.out_ms) and not int(row["magic"]) & MAGIC_ROLL:
            return False
        self.queue_offset = max(self.queue_offset, found.queue_offset + 1)
        return True

    def _give_up_log(self) -> None:
        self.lost_queue_offset, self.queue_offset = self.queue_offset, 0
        log.error(
            "store.timer_log_damaged", path=str(self._files.folder), logical_offset=self.lost_queue_offset
        )
        self._slots.clear()
        self._firsts.clear()
        self._first_order.clear()
        self.count = self.log_end = self._synced_end = 0
        self._files.destroy()

    def _remember(self, slot: int, position: int, previous: int, physical_offset: int) -> None:
        positions = self._slots.get(slot)
        first = self._firsts.get(slot, ENDLESS)
        if positions is None:
            positions = self._slots[slot] = array("q")
        elif previous == NOTHING:
            self.count -= len(positions)
            del positions[:]
            first = ENDLESS
        positions.append(position)
        self.count += 1
        if physical_offset < first:
            self._firsts[slot] = physical_offset
            heapq.heappush(self._first_order, (physical_offset, slot))

    # --- the wheel --------------------------------------------------------------------------------------------

    def _wheel_exists(self) -> bool:
        return any(
            entry.name == self._wheel_path.name for entry in self._io.list_names(self._wheel_path.parent)
        )

    def _wheel_file(self) -> DataFile:
        if self._wheel is None:
            create = not self._wheel_exists()
            self._wheel = self._io.open_file(self._wheel_path, SLOT_COUNT * SLOT.size, create=create)
        return self._wheel

    def _mend_wheel(self) -> None:
        """Make the wheel say what the log says."""
        wheel = self._wheel_file()
        times = np.frombuffer(wheel.view, SLOT_DTYPE)["time"] * self._precision_ms
        for index in np.flatnonzero((times >= self.read_ms) & (times > 0)).tolist():
            if int(times[index]) not in self._slots:
                wheel.write(index * SLOT.size, bytes(SLOT.size))
        for slot in self._slots:
            self._put_slot(slot)

    def _put_slot(self, slot: int) -> None:
        positions = self._slots[slot]
        time = slot // self._precision_ms
        raw = SLOT.pack(time, positions[0], positions[-1], len(positions), 0)
        self._wheel_file().write(time % SLOT_COUNT * SLOT.size, raw)

    # --- what waits -------------------------------------------------------------------------------------------

    def slot_of(self, time_ms: Any) -> Any:
        """The slot that a time, or an array of times, lies in."""
        return time_ms // self._precision_ms * self._precision_ms

    def next_slot(self) -> int | None:
        """The earliest slot in which something waits and that was not taken."""
        order = self._order
        while order and order[0] not in self._slots:
            heapq.heappop(order)
        return order[0] if order else None

    def first_waiting(self) -> int | None:
        """The smallest physical offset of a message that has a unit in a slot that is not finished; None: there is
        none."""
        order = self._first_order
        while order and self._firsts.get(order[0][1]) != order[0][0]:
            heapq.heappop(order)
        return order[0][0] if order else None

    def take_slot(self) -> None:
        """The slot of `next_slot` is being delivered: from now on the one after it is the next."""
        heapq.heappop(self._order)

    def positions(self, slot: int) -> Sequence[int]:
        """Where the units of a slot lie, oldest first."""
        return self._slots.get(slot, ())

    def unit(self, position: int) -> TimerUnit | None:
        """The unit at a position of the log; None when its file is gone."""
        file = self._files.find(position)
        if file is None or position >= self.log_end:
            return None
        row = UNIT.unpack_from(file.view, position - file.offset)
        return TimerUnit(row[1], row[2], row[3], row[3] + row[4], row[5], row[6], row[7], row[8] == EXACT)

    def newest_unit(self) -> TimerUnit | None:
        """The last unit of the log; None when there is none."""
        return self.unit(self.log_end - UNIT.size) if self.log_end else None

    def topic_hashes(self) -> Counter[int]:
        """How many messages wait for each Java hash of a topic; recalls count one less."""
        found: Counter[int] = Counter()
        for positions in self._slots.values():
            for position in positions:
                unit = self.unit(position)
                if unit is not None:
                    found[unit.topic_hash] += -1 if unit.deletes else 1
        return found

    def add(self, unit: TimerUnit) -> int:
        """Append a unit, chained to the last one of its slot; its position. StoreFull: nothing was added."""
        slot = self.slot_of(unit.at_ms)
        positions = self._slots.get(slot)
        self._wheel_file()  # made before anything is written
        position = self._append(unit, positions[-1] if positions else NOTHING)
        if positions is None:
            heapq.heappush(self._order, slot)
        self._remember(slot, position, 0 if positions else NOTHING, unit.physical_offset)
        self._put_slot(slot)
        return position

    def _append(self, unit: TimerUnit, previous: int) -> int:
        files = self._files
        file = files.files[-1] if files.files else None
        if file is None or self.log_end >= file.end:
            file = files.create(self.log_end)
        elif self.log_end + UNIT.size + BLANK.size > file.end:
            following = files.create(file.end)
            rest = file.end - self.log_end
            file.data.write(self.log_end - file.offset, BLANK.pack(rest, 0, BLANK_MAGIC))
            self.log_end, file = file.end, following
        position = self.log_end
        delay_ms = unit.at_ms - unit.write_ms
        place = (unit.physical_offset, unit.record_size, unit.topic_hash)
        raw = UNIT.pack(
            UNIT.size, previous, unit.magic, unit.write_ms, delay_ms, *place, EXACT if unit.exact else 0
        )
        file.data.write(position - file.offset, raw)
        self.log_end += UNIT.size
        return position

    def finish(self, slot: int) -> None:
        """Everything of this slot, the earliest, is delivered."""
        self.count -= len(self._slots.pop(slot, ()))
        self._firsts.pop(slot, None)
        self.read_ms = max(self.read_ms, slot + self._precision_ms)

    def start_anew(self, slot: int, left: Sequence[int]) -> None:
        """Of this slot only the units at the positions `left` still wait: the end of an orderly stop."""
        units = [unit for position in left if (unit := self.unit(position)) is not None]
        if not units:
            # A unit that asks for nothing, so that nobody takes the others up again.
            newest = self.unit(self._slots[slot][-1])
            if newest is None:
                return
            units = [newest._replace(magic=MAGIC_DEFAULT | MAGIC_DELETE)]
        self.count -= len(self._slots.pop(slot))
        self._firsts.pop(slot, None)
        for unit in units:
            self.add(unit)

    # --- the disk ---------------------------------------------------------------------------------------------

    def snapshot(self, message_end: int) -> Snapshot:
        """The state as it is now; see Snapshot."""
        files = tuple(file for file in self._files.files if file.end > self._synced_end)
        return Snapshot(self.read_ms, self.queue_offset, self.log_end, message_end, files)

    def sync(self, snapshot: Snapshot, now_ms: int) -> None:
        """Bring the files to the disk and write the checkpoint.

        OSError is final: the disk may have dropped what it did not take. CheckpointKept: the checkpoint could not be
        written, the one before still holds; it may be written later, as it is made anew then.
        """
        for file in snapshot.files:
            file.data.sync()
        if self._wheel is not None:
            self._wheel.sync()
        count = self.version_count + 1
        offsets = (snapshot.read_ms, snapshot.log_end, snapshot.queue_offset, snapshot.queue_offset)
        raw = CHECKPOINT.pack(*offsets, 0, now_ms, count)
        try:
            self._io.replace_bytes(self._check_path, raw.ljust(CHECKPOINT_SIZE, b"\0"), keep_previous=False)
        except (OSError, StoreFull) as error:
            raise CheckpointKept(str(error)) from error
        self.version_ms, self.version_count = now_ms, count
        self._synced_end = snapshot.log_end
        self.message_end = max(snapshot.message_end, self.message_end)

    def flush(self) -> int:
        """Bring the files to the disk; how many. OSError is final. The checkpoint stays: see sync()."""
        files = [file.data for file in self._files.files if file.end > self._synced_end]
        if self._wheel is not None:
            files.append(self._wheel)
        for file in files:
            file.sync()
        return len(files)

    def open_files(self) -> list[DataFile]:
        """The files as they are open now. For any thread."""
        wheel = self._wheel
        return [file.data for file in self._files.files] + ([] if wheel is None else [wheel])

    def checkpoint(self) -> bytes:
        """The state as RocketMQ's brokers tell each other: the fields of timercheck."""
        offsets = (self.read_ms, self._synced_end, self.queue_offset, self.queue_offset)
        return CHECKPOINT.pack(*offsets, 0, self.version_ms, self.version_count)

    def release_before(self, log_min: int) -> list[MappedFile]:
        """Take the files out that are on disk and whose messages all lie below the log's beginning; never the last."""
        last_at = ((self._files.file_size - BLANK.size) // UNIT.size - 1) * UNIT.size
        released = []
        while len(self._files.files) > 1 and self._files.files[0].end <= self._synced_end:
            unit = self.unit(self._files.files[0].offset + last_at)
            if unit is None or unit.physical_offset >= log_min:
                break
            released.append(self._files.release_first())
        return released

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        if self._wheel is not None:
            self._wheel.close()
            self._wheel = None


def _ask_for_nothing(file: MappedFile, at: int, left: "np.void") -> None:
    """The unit at position `at` is about another message, and takes nothing out that waits."""
    size, previous, _, write_ms, delay_ms, *_ = UNIT.unpack_from(file.view, at)
    place = (int(left["physical_offset"]), int(left["record_size"]), int(left["topic_hash"]))
    raw = UNIT.pack(size, previous, MAGIC_DEFAULT | MAGIC_DELETE, write_ms, delay_ms, *place, EXACT)
    file.data.write(at, raw)


def sound_units(rows: "NDArray[np.void]", offset: int) -> "NDArray[np.bool_]":
    """Which rows of a file that begins at `offset` may be units."""
    own = offset + np.arange(len(rows), dtype=np.int64) * UNIT.size
    sound = (rows["size"] == UNIT.size) & ((rows["magic"] & ~MAGIC_MASK) == 0) & (rows["previous"] < own)
    return np.asarray(sound & (rows["physical_offset"] >= 0) & (rows["record_size"] > 0))
