"""Queue locks for orderly consumption: at most one client of a group consumes a queue.

Touches  nothing; the time comes in.

    lock(group, client, queues)    grants what is free, run out, or already this client's; renews it
    unlock(group, client, queues)  gives back what this client holds

A lock runs out 60 s after it was last taken or renewed (clients renew each 20 s and trust it for 30 s).

Invariants
- A lock is held by one client id; another gets it only after unlock or expiry.
- There are at most LOCKS_MAX of them, and LOCKS_PER_GROUP_MAX of one group: what is more is not granted, as if another
  client held it.
"""

from collections.abc import Iterable
from typing import Final

from aerobee_proto.bodies import MessageQueue
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["LOCKS_MAX", "LOCKS_PER_GROUP_MAX", "LOCK_EXPIRY_MS", "QueueLocks"]

LOCK_EXPIRY_MS: Final = 60_000
LOCKS_PER_GROUP_MAX: Final = 32_768
LOCKS_MAX: Final = 4 * LOCKS_PER_GROUP_MAX


class QueueLocks:
    """All locks of this broker. All calls from the event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}  # -> (client id, taken at, ms)
        self._count = 0  # of all of them

    def __len__(self) -> int:
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Take or renew locks; the queues of these that the client holds after the call."""
        locks = self._locks.setdefault(group, {})
        granted = []
        for queue in queues:
            holder = locks.get(queue)
            if holder is None:
                if self._count >= LOCKS_MAX or len(locks) >= LOCKS_PER_GROUP_MAX:
                    continue
                self._count += 1
            elif holder[0] != client_id and now_ms - holder[1] <= LOCK_EXPIRY_MS:
                continue
            locks[queue] = (client_id, now_ms)
            granted.append(queue)
        if not locks:
            del self._locks[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> int:
        """Give locks back; how many of these the client held."""
        locks = self._locks.get(group)
        if locks is None:
            return 0
        released = 0
        for queue in queues:
            holder = locks.get(queue)
            if holder is not None and holder[0] == client_id:
                del locks[queue]
                released += 1
        self._count -= released
        if not locks:
            del self._locks[group]
        return released

    def is_locked(self, group: str, now_ms: int) -> bool:
        """Whether anybody of the group holds a lock: the group consumes in order."""
        locks = self._locks.get(group)
        return locks is not None and any(now_ms - taken <= LOCK_EXPIRY_MS for _, taken in locks.values())

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client id that holds a queue's lock; None when it is free."""
        found = self._locks.get(group, {}).get(queue)
        return found[0] if found is not None and now_ms - found[1] <= LOCK_EXPIRY_MS else None

    def forget_expired(self, now_ms: int) -> int:
        """Drop locks that ran out; how many."""
        return at_once(self.expiry(now_ms))

    def expiry(self, now_ms: int) -> Steps[int]:
        """As `forget_expired`, in steps."""
        dropped = 0
        for group in list(self._locks):
            yield
            locks = self._locks.get(group, {})
            gone = [queue for queue, (_, taken) in locks.items() if now_ms - taken > LOCK_EXPIRY_MS]
            dropped += len(gone)
            self._count -= len(gone)
            for queue in gone:
                del locks[queue]
            if gone and not locks:
                del self._locks[group]
        return dropped
