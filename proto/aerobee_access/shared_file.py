"""One file of users and policies for several servers of a machine: each of them changes it, and all see it.

Touches  the file, as `file` says, and `<name>.lock` beside it, by which only one of them changes it at a time.

Invariants
- A change begins with what the file says, so none undoes that of another server.
- A file that cannot be read changes nothing: what was known stays in force, and the log says so.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aerobee_access.file import AccessFile, AccessFileDamaged
from aerobee_access.sealing import KeyFileError
from aerobee_access.table import AccessTable
from aerobee_service.logs.event_log import event_logger

__all__ = ["SharedAccessFile"]

log = event_logger("aerobee.access")

LOOK_S: Final = 0.5  # between two looks whether another server has changed it
LOCK_S: Final = 5.0  # a server that stands still with the lock keeps others from changes, no longer
RETRY_S: Final = 0.02

_State = tuple[int, int, int]


class SharedAccessFile(AccessFile):
    """A table and the file that it shares. `changing` around each change, also the first ones, and `run`."""

    def __init__(self, path: Path, table: AccessTable) -> None:
        super().__init__(path, table)
        self._shared = path
        self._state: _State | None = None  # of the file that was read or written last
        self._changes = asyncio.Lock()
        self._failed = ""

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Within it the table is what the file is, and behind it the file is what the table has become. OSError when it
        cannot be written, or another server keeps it; AccessFileDamaged, KeyFileError when it cannot be read."""
        async with self._changes:
            descriptor = await self._locked()
            try:
                await self._take()
                revision = self._table.revision
                yield
                if self._table.revision != revision:
                    await self.save()
                    self._state = self._state_now()
            finally:
                os.close(descriptor)

    async def run(self) -> None:
        """Take what other servers change, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take what another server has changed, if one has."""
        async with self._changes:
            try:
                await self._take()
            except (AccessFileDamaged, KeyFileError, OSError) as failed:
                if str(failed) != self._failed:
                    self._failed = str(failed)
                    log.error("access.file_unreadable", path=str(self._shared), reason=str(failed))  # noqa: TRY400
            else:
                self._failed = ""

    async def _take(self) -> None:
        state = self._state_now()
        if state == self._state:
            return
        content = await asyncio.to_thread(self.read)
        if content is not None:
            self._table.take(content)
        self._state = state

    def _state_now(self) -> _State | None:
        try:
            found = self._shared.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    async def _locked(self) -> int:
        """A descriptor that holds the lock until it is closed."""
        path = self._shared.with_name(f"{self._shared.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_mine = await _lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if not is_mine:
            os.close(descriptor)
            raise TimeoutError(f"another server has kept {path} for {LOCK_S:g} s")
        return descriptor


async def _lock(descriptor: int) -> bool:
    for _ in range(round(LOCK_S / RETRY_S)):
        if _try_lock(descriptor):
            return True
        await asyncio.sleep(RETRY_S)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
