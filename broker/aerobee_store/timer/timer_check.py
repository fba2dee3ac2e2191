"""Whether the timer files of a store hold together: with themselves, and with the log.

Touches  <root>/timerlog/, <root>/timerwheel, <root>/config/timercheck, reading, in pieces.

What is on disk by the checkpoint is looked at; behind it a crash may leave anything, and the start of the timer cuts
it. The wheel is only measured: what waits is found from the log of units, and the wheel is written from it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_store.disk.io import DataFile, StoreIo
from aerobee_store.timer.timer_files import (
    BLANK,
    BLANK_MAGIC,
    CHECKPOINT,
    CHECKPOINT_SIZE,
    SLOT,
    SLOT_COUNT,
    UNIT,
    UNIT_DTYPE,
    sound_units,
)

__all__ = ["TimerFault", "timer_faults"]

_UNITS_A_PIECE: Final = 16384
_NAME_DIGITS: Final = 20
_FAULTS_MAX: Final = 100
IsMessage = Callable[[int, int], bool]
"""(physical offset, size) -> whether a message of the timer topic lies there in the log."""


class TimerFault(NamedTuple):
    """What is wrong with a timer file; `position` is in the file, None: the file as a whole."""

    path: Path
    position: int | None
    reason: str


def timer_faults(
    root: Path, io: StoreIo, *, log_min: int, log_end: int, is_message: IsMessage | None = None
) -> list[TimerFault]:
    """All that is wrong, at most a hundred; nothing where there are no timer files.

    Units of messages below `log_min` are of messages that were cleaned away. Without `is_message` the messages of
    the others are not looked at. OSError where a file cannot be read.
    """
    check = _Check(root, io, log_min, log_end, is_message)
    found = check.checkpoint()
    for fault in check.log():
        found.append(fault)
        if len(found) >= _FAULTS_MAX:
            break
    return found


class _Check:
    def __init__(
        self, root: Path, io: StoreIo, log_min: int, log_end: int, is_message: IsMessage | None
    ) -> None:
        self._root = root
        self._io = io
        self._log_min = log_min
        self._log_end = log_end
        self._is_message = is_message
        self._synced_end = 0

    def checkpoint(self) -> list[TimerFault]:
        """Faults of the checkpoint and the wheel; how far the log is on disk is known afterwards."""
        path = self._root / "config" / "timercheck"
        found = []
        raw = self._io.read_bytes(path)
        if raw is not None and len(raw) != CHECKPOINT_SIZE:
            found.append(TimerFault(path, None, f"length is {len(raw)}, must be {CHECKPOINT_SIZE}"))
        elif raw is not None:
            read_ms, self._synced_end, queue_offset = CHECKPOINT.unpack_from(raw)[:3]
            if min(read_ms, self._synced_end, queue_offset) < 0:
                found.append(TimerFault(path, 0, "a time or an offset is negative"))
        sizes = {entry.name: entry.size for entry in self._io.list_names(self._root)}
        wheel_size = sizes.get("timerwheel", SLOT_COUNT * SLOT.size)
        if wheel_size != SLOT_COUNT * SLOT.size:
            wheel, expected = self._root / "timerwheel", SLOT_COUNT * SLOT.size
            found.append(TimerFault(wheel, None, f"length is {wheel_size}, must be {expected}"))
        return found

    def log(self) -> Iterator[TimerFault]:
        """Faults of the log of units, as far as it is on disk."""
        folder = self._root / "timerlog"
        entries = [entry for entry in self._io.list_names(folder) if not entry.is_dir]
        end = 0
        for number, entry in enumerate(entries):
            path = folder / entry.name
            if len(entry.name) != _NAME_DIGITS or not entry.name.isdecimal():
                yield TimerFault(path, None, "foreign file in a data folder")
                continue
            offset = int(entry.name)
            if number and offset != end:
                yield TimerFault(path, None, f"the file that begins at {end} is missing before it")
            if entry.size != entries[0].size:
                yield TimerFault(path, None, f"length is {entry.size}, the first has {entries[0].size}")
                continue
            end = offset + entry.size
            if entry.size >= UNIT.size + BLANK.size and offset < self._synced_end:
                file = self._io.open_file(path, entry.size, writable=False)
                try:
                    yield from self._file(file, offset)
                finally:
                    file.close()
        # Without any file a start builds the log again from the topic: a copy of a store may leave it out.
        if entries and self._synced_end > end:
            reason = f"it ends at {end}, but was on disk up to {self._synced_end}"
            yield TimerFault(folder, None, reason)

    def _file(self, file: DataFile, offset: int) -> Iterator[TimerFault]:
        blank_at = (file.size - BLANK.size) // UNIT.size * UNIT.size
        is_closed = self._synced_end >= offset + file.size
        usable = min(blank_at, self._synced_end - offset) // UNIT.size
        if is_closed:
            rest, _, magic = BLANK.unpack(file.read(blank_at, BLANK.size))
            if (rest, magic) != (file.size - blank_at, BLANK_MAGIC):
                yield TimerFault(file.path, blank_at, "the mark that closes the file is not there")
        for first in range(0, usable, _UNITS_A_PIECE):
            count = min(_UNITS_A_PIECE, usable - first)
            begin = first * UNIT.size
            rows = np.frombuffer(file.read(begin, count * UNIT.size), UNIT_DTYPE)
            sound = sound_units(rows, offset + begin)
            for index in np.flatnonzero(~sound).tolist():
                yield TimerFault(file.path, begin + index * UNIT.size, "it is no unit of the timer")
            yield from self._messages(file.path, begin, rows, sound)

    def _messages(
        self, path: Path, begin: int, rows: NDArray[np.void], sound: NDArray[np.bool_]
    ) -> Iterator[TimerFault]:
        places = rows["physical_offset"].astype(np.int64)
        ends = places + rows["record_size"]
        kept = sound & (places >= self._log_min)
        for index in np.flatnonzero(kept).tolist():
            place, size = int(places[index]), int(rows["record_size"][index])
            if int(ends[index]) > self._log_end:
                reason = f"its message at {place} lies behind the log's end {self._log_end}"
            elif self._is_message is not None and not self._is_message(place, size):
                reason = f"no message of the timer topic with {size} bytes lies at {place}"
            else:
                continue
            yield TimerFault(path, begin + index * UNIT.size, reason)
