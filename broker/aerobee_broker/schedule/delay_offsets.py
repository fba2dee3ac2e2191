"""How far each delay level is delivered, and the file `delayOffset.json`.

Touches  nothing by itself; `config_files` writes the table, `schedule_delivery` says when.

    {"dataVersion": {...}, "offsetTable": {"1": 120, "3": 44}}

A level is a number from 1 on; its offset is the queue offset of the next message of queue level - 1 of the
schedule topic that is not delivered yet.

Invariants
- The file never runs ahead of the disk: an offset enters it when the deliveries below it are durable.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from aerobee_broker.settings.config_files import table_of
from aerobee_proto import bodies
from aerobee_proto.bodies import AllDelayOffsets, DataVersion

__all__ = ["DelayOffsets"]


class DelayOffsets:
    """Level -> queue offset. All calls from the event loop."""

    file_name = "delayOffset.json"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._offsets: dict[int, int] = {}
        # (log end, level, offset): holds once the log is on disk up to its end. Bounded by a sync's worth of batches.
        self._unsettled: deque[tuple[int, int, int]] = deque()
        self.version = DataVersion(timestamp=clock())
        self.revision = 0

    def get(self, level: int) -> int:
        """The offset that the file holds or may hold; 0 for a level that never moved."""
        return self._offsets.get(level, 0)

    @property
    def levels(self) -> list[int]:
        """The levels that ever moved."""
        return sorted(self._offsets)

    def moved(self, level: int, offset: int, log_end: int) -> None:
        """The level was delivered up to `offset`; the deliveries lie in the log below `log_end`."""
        self._unsettled.append((log_end, level, offset))

    def settle(self, flushed_offset: int) -> None:
        """The log is on disk up to `flushed_offset`: take over what that covers."""
        changed = False
        while self._unsettled and self._unsettled[0][0] <= flushed_offset:
            _, level, offset = self._unsettled.popleft()
            changed |= self._offsets.get(level) != offset
            self._offsets[level] = offset
        if changed:
            self.version = self.version.next(self._clock())
            self.revision += 1

    def follow(self, theirs: AllDelayOffsets) -> bool:
        """Become what the master's table is; False when it is that already. All that it speaks of is on this disk."""
        if theirs.data_version == self.version and theirs.offset_table == self._offsets:
            return False
        self.take(theirs)
        self.revision += 1
        return True

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of `delayOffset.json`, which is also the answer to GET_ALL_DELAY_OFFSET."""
        return {"dataVersion": msgspec.to_builtins(self.version), "offsetTable": dict(self._offsets)}

    def parse(self, content: Mapping[str, object]) -> AllDelayOffsets:
        """A file's content. FormatError when it is not an offset table."""
        table_of(content, "offsetTable")
        return bodies.convert(content, AllDelayOffsets)

    def take(self, parsed: AllDelayOffsets) -> None:
        """Put parsed content in place of the table's own."""
        self._offsets = {
            level: offset for level, offset in parsed.offset_table.items() if level > 0 and offset >= 0
        }
        self.version = parsed.data_version
