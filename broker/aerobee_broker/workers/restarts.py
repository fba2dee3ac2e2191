"""When a worker that has ended is started again: after pauses that grow, or never.

Touches  nothing.

Invariants
- The codes after which a person has to look first are those after which `deploy/systemd` starts no broker again.
- One that keeps ending is started once in `PAUSES_S[-1]` in the end, so its part of the log is bounded.
"""

from typing import Final

from aerobee_broker.process.exit_codes import (
    EXIT_DISK_FAILED,
    EXIT_FAILED,
    EXIT_FILE_GONE,
    EXIT_USAGE,
)

__all__ = ["FINAL", "Restarts", "worst"]

PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
SOUND_AFTER_S: Final = 60.0  # who has served so long begins with the shortest pause
# Code -> why it is not started again, and what to do.
FINAL: Final = {
    0: ("somebody stopped it", "restart the service to have it back"),
    EXIT_USAGE: ("its settings or its folder are wrong", "correct them, then restart the service"),
    EXIT_FILE_GONE: (
        "somebody took a file of its store away",
        "docs/operations.md#when-a-file-goes-away, then restart the service",
    ),
    EXIT_DISK_FAILED: ("its disk failed", "docs/operations.md#when-the-disk-fails, then restart the service"),
}
_GRAVITY: Final = (EXIT_DISK_FAILED, EXIT_FILE_GONE, EXIT_USAGE)


class Restarts:
    """The pauses of one worker."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    def pause_after(self, code: int, served_s: float) -> float | None:
        """How long to wait, in s, before the next start of one that ended so after serving so long; None: for ever."""
        if code in FINAL:
            return None
        if served_s >= SOUND_AFTER_S:
            self._failures = 0
        pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        return pause


def worst(codes: list[int]) -> int:
    """The exit code of a service whose workers ended so: the one that needs a person most. Signals count as 1."""
    for code in _GRAVITY:
        if code in codes:
            return code
    return EXIT_FAILED if any(codes) else 0
