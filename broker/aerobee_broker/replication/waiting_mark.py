"""Where a slave would begin to look for timer messages that wait, if it became the master: the file `timerMark.json`.

Touches  nothing by itself; `config_files` writes the table.

    {"physicalOffset": 4096, "endOffset": 9000, "digest": "..."}

No timer message that lies below the one offset waits: what was due was delivered in the log below the other one, whose
last bytes have this digest. The master says the first part, and a log that was cut back since and has grown again has
other bytes there.

Invariants
- Both offsets only grow.
- `done_below` is 0 unless the log is the one of which that was said.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aerobee_proto import bodies
from aerobee_proto.bodies import Long

__all__ = ["WaitingMark"]

WINDOW_SIZE: Final = 4096  # bytes

Digests = Callable[[Sequence[tuple[int, int]]], list[bytes]]


class _Mark(NamedTuple):
    physical_offset: int = 0
    end_offset: int = 0
    digest: str = ""


class WaitingMark:
    """All calls from the event loop."""

    file_name = "timerMark.json"

    def __init__(self) -> None:
        self._mark = _Mark()
        self.revision = 0

    async def follow(self, done_below: int, end_offset: int, digests: Digests) -> None:
        """The master has said so of its log up to `end_offset`, and that part is here, too."""
        if done_below > self._mark.physical_offset:
            digest = await asyncio.to_thread(_digest_at, end_offset, digests)
            if digest:
                self._mark = _Mark(done_below, end_offset, digest)
                self.revision += 1

    def done_below(self, digests: Digests) -> int:
        """Physical offset below which nothing waits; 0: not known of the log that is here."""
        mark = self._mark
        is_same = mark.digest and _digest_at(mark.end_offset, digests) == mark.digest
        return mark.physical_offset if is_same else 0

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        mark = self._mark
        return {"physicalOffset": mark.physical_offset, "endOffset": mark.end_offset, "digest": mark.digest}

    def parse(self, content: Mapping[str, object]) -> _Mark:
        """A file's content. FormatError when it is no mark."""
        return _Mark(
            bodies.convert(content.get("physicalOffset", 0), Long),
            bodies.convert(content.get("endOffset", 0), Long),
            bodies.convert(content.get("digest", ""), str),
        )

    def take(self, parsed: _Mark) -> None:
        """Put parsed content in place of the table's own."""
        self._mark = parsed


def _digest_at(end_offset: int, digests: Digests) -> str:
    """Of the log's last bytes below an offset; "" where they are not there."""
    return digests([(max(0, end_offset - WINDOW_SIZE), end_offset)])[0].hex()
