"""How fast a consumer works: counts of about the last minute, a topic each. Time comes in, in seconds."""

__all__ = ["WINDOW_S", "Rates"]

WINDOW_S = 60.0


class Rates:
    """Two windows: the one that fills, and the full one before it."""

    __slots__ = ("_before", "_began", "_failed", "_ok", "_started", "_took_s", "failed_count")

    def __init__(self, now: float) -> None:
        self._started = self._began = now
        self._ok = self._failed = 0
        self._took_s = 0.0
        self._before = (0, 0, 0.0)
        self.failed_count = 0  # since the start

    def add(self, took_s: float, now: float, *, ok: bool) -> None:
        """One message was settled after `took_s`."""
        if now - self._began >= WINDOW_S:
            self._turn(now)
        if ok:
            self._ok += 1
        else:
            self._failed += 1
            self.failed_count += 1
        self._took_s += took_s

    def read(self, now: float) -> tuple[float, float, float]:
        """Messages a second that went well, that failed, and the mean time of one in milliseconds."""
        if now - self._began >= WINDOW_S:
            self._turn(now)
        ok, failed, took_s = (mine + old for mine, old in zip(self._current(), self._before, strict=True))
        span = max(now - max(self._started, self._began - WINDOW_S), 1.0)
        count = ok + failed
        return ok / span, failed / span, took_s * 1000 / count if count else 0.0

    def _current(self) -> tuple[int, int, float]:
        return self._ok, self._failed, self._took_s

    def _turn(self, now: float) -> None:
        idle = now - self._began >= 2 * WINDOW_S
        self._before = (0, 0, 0.0) if idle else self._current()
        self._ok = self._failed = 0
        self._took_s = 0.0
        self._began = now
