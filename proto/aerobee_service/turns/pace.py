"""A share of the time for work that others notice however short it is, and that somebody may ask for without end.

Touches  nothing; who works says how long it took and what time it is.

`Turns` leaves no time unused: who is alone has all of it. That is wrong for what others meet outside of the event loop
(a journal of the file system, one processor for all threads): of that there is `share`, after a credit that stays for
those who want much of it once.
"""

__all__ = ["Pace"]


class Pace:
    """Of one kind of work, whoever asks for it."""

    __slots__ = ("_at", "_credit_max_s", "_credit_s", "_share")

    def __init__(self, share: float, credit_max_s: float) -> None:
        """`share` of the time, 0 to 1; after a long time without any, `credit_max_s` seconds of work without a rest."""
        # Fixed for life.
        self._share = share
        self._credit_max_s = credit_max_s
        # Moved by worked().
        self._credit_s = credit_max_s
        self._at = float("-inf")

    def worked(self, took_s: float, now: float) -> float:
        """So much has just been done; seconds until more of it should be."""
        earned = (now - self._at) * self._share
        self._at = now
        self._credit_s = min(self._credit_max_s, self._credit_s + earned) - took_s
        return max(0.0, -self._credit_s / self._share)
