"""What the system lets this process have: files, maps.

Touches  the limits of the process, asking only; /proc/sys/vm/max_map_count.
"""

import resource
from pathlib import Path
from typing import Final

__all__ = ["MAPS_MAX_PATH", "maps_max", "open_files_max"]

MAPS_MAX_PATH: Final = Path("/proc/sys/vm/max_map_count")
_FILES_MANY: Final = 1 << 20  # where there is no limit
_MAPS_USUAL: Final = 65_530


def open_files_max() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MANY if soft == resource.RLIM_INFINITY else min(soft, _FILES_MANY)


def maps_max() -> int:
    """How many regions this process may have mapped."""
    try:
        return int(MAPS_MAX_PATH.read_text())
    except (OSError, ValueError):  # not Linux
        return _MAPS_USUAL
