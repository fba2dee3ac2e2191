"""A TLS context that follows its files: certificates are renewed without a restart.

Touches  the files of certificate, key and authorities, reading, in a thread; the log.

Files are looked at every LOOK_S. What has changed is used when it has stopped changing and holds together: certificate
and key are two files, and between the two replacements they do not belong together. Until then, and while the new files
cannot be used, new connections get what was in use. Open connections stay as they are.

Invariants
- `context` is one that was made whole; a failed try changes nothing.
- One line for each state of the files that cannot be used, not one for each look.
"""

import asyncio
import os
import ssl
import stat
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from aerobee_service.tls.contexts import Loaded, TlsUnusable

__all__ = ["LiveContext", "follow"]

log = structlog.get_logger()

LOOK_S: Final = 1.0
EXPIRES_SOON_S: Final = 14 * 86_400.0
WARNING_PAUSE_S: Final = 86_400.0

# What tells one state of a file from another: inode, size, time of change in ns; None where there is none.
_State = tuple[tuple[int, int, int] | None, ...]


class LiveContext:
    """See the module. `look` by one caller at a time; `context` is read by everybody."""

    def __init__(
        self, end: str, load: Callable[[], Loaded], *, now_s: Callable[[], float] = time.time
    ) -> None:
        """`end` says which end it is for ("server", "client"). TlsUnusable when the files cannot be used now."""
        self.end = end
        self._load = load
        self._now_s = now_s
        self._warned_at_s: float | None = None
        self._loaded = load()
        self._used = self._seen = _state_of(self._loaded.paths)
        self._refused: _State | None = None
        self._warn_of_open_keys()
        self._warn_of_expiry()

    def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        return self._loaded.context

    @property
    def not_after_s(self) -> float | None:
        """When the certificate in use expires, in seconds since the epoch; None without one."""
        validity = self._loaded.validity
        return None if validity is None else validity.not_after_s

    def look(self) -> bool:
        """One look; whether there is a new context."""
        self._warn_of_expiry()
        before, self._seen = self._seen, _state_of(self._loaded.paths)
        if self._seen in (self._used, self._refused) or self._seen != before:
            return False
        try:
            loaded = self._load()
        except TlsUnusable as failed:
            self._refused = self._seen
            log.error("tls.reload_failed", end=self.end, reason=str(failed), kept_until=self._until())  # noqa: TRY400
            return False
        if loaded.paths != self._loaded.paths:
            self._seen = _state_of(loaded.paths)
        self._used = (
            self._seen
        )  # as it was before they were read: what has changed meanwhile is seen next time
        self._loaded, self._refused, self._warned_at_s = loaded, None, None
        log.info("tls.reloaded", end=self.end, certificate_until=self._until())
        self._warn_of_open_keys()
        return True

    def _until(self) -> str | None:
        not_after_s = self.not_after_s
        return None if not_after_s is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(not_after_s))

    def _warn_of_expiry(self) -> None:
        not_after_s, now_s = self.not_after_s, self._now_s()
        if not_after_s is None or not_after_s - now_s > EXPIRES_SOON_S:
            return
        if self._warned_at_s is None or now_s - self._warned_at_s >= WARNING_PAUSE_S:
            self._warned_at_s = now_s
            log.warning("tls.certificate_expires", end=self.end, certificate_until=self._until())

    def _warn_of_open_keys(self) -> None:
        for path in self._loaded.private_paths:
            try:
                mode = os.stat(path).st_mode  # noqa: PTH116
            except OSError:
                continue
            if mode & (stat.S_IRGRP | stat.S_IROTH):
                log.warning("tls.key_is_open", path=path, mode=f"{stat.S_IMODE(mode):04o}")


async def follow(ends: Sequence[LiveContext]) -> None:
    """Look at the files of all of them every second, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for live in ends:
            await asyncio.to_thread(live.look)


def _state_of(paths: tuple[str, ...]) -> _State:
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            at = os.stat(path)  # noqa: PTH116  # follows links: volumes of Kubernetes are replaced by their link
        except OSError:
            found.append(None)
        else:
            found.append((at.st_ino, at.st_size, at.st_mtime_ns))
    return tuple(found)
