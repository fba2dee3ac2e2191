"""The wall clock, as everything here reads it. Touches the clock."""

import time

__all__ = ["epoch_ms"]


def epoch_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
