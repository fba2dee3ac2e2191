"""How full a file system is, as `df` says it: the one place where blocks become bytes.

Touches  the file system's figures (statvfs), nothing on it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DiskUse", "disk_use"]


@dataclass(slots=True, frozen=True)
class DiskUse:
    """Room on one file system, in bytes."""

    total: int
    free: int

    @property
    def used_percent(self) -> int:
        """Rounded up, as RocketMQ does."""
        return -(-100 * (self.total - self.free) // self.total) if self.total > 0 else 0

    def bytes_above(self, percent: int) -> int:
        """How much has to go so that at most `percent` are in use."""
        return max(0, self.total - self.free - self.total * percent // 100)


def disk_use(path: Path) -> DiskUse:
    """The room on the file system of a file or folder. Blocks that are kept back for root count as neither used nor
    free. OSError when it is not there or nobody may look."""
    facts = os.statvfs(path)
    usable = facts.f_blocks - facts.f_bfree + facts.f_bavail
    return DiskUse(total=usable * facts.f_frsize, free=facts.f_bavail * facts.f_frsize)
