"""What is kept in memory for peers: one account, one bound for all of it and one for each peer.

Touches  nothing.

Whoever keeps something that a peer made grow takes its size from the account before, and gives it back when it goes.
Sizes are what things cost in this process, as near as a fixed figure for each kind comes; tests weigh them.

    take        before it is kept; LimitReached when it would be too much, and nothing has changed
    give        it is gone
    note        it is here already (a read has happened): the owner compares with the bounds afterwards
    Shared      what several peers have in common: the sum has it once, each of them as a whole

Invariants
- `total` is the sum of `kinds`, and never above what was taken and noted; nothing is below zero.
- A peer with nothing is not in the table.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached

__all__ = ["NOBODY", "PEER_LIMIT", "PEER_MAX", "TOTAL_LIMIT", "TOTAL_MAX", "PeerMemory", "Shared"]

MIB: Final = 1 << 20
TOTAL_MAX: Final = 1536 * MIB
PEER_MAX: Final = 192 * MIB
TOTAL_LIMIT: Final = "maxPeerMemoryBytes"
PEER_LIMIT: Final = "maxPeerMemoryBytesPerConnection"
NOBODY: Final = None  # the peer of what belongs to all of them

T = TypeVar("T")


class PeerMemory:
    """See the module. All calls from the event loop."""

    def __init__(self, total_max: int = TOTAL_MAX, peer_max: int = PEER_MAX) -> None:
        # Fixed for life.
        self.total_max = total_max
        self.peer_max = peer_max
        # Moved by take, give and note only.
        self.total = 0
        self.kinds: Counter[str] = Counter()  # what the bytes are for
        self._peers: dict[Hashable, int] = {}

    def of(self, peer: Hashable) -> int:
        """Bytes kept for one peer."""
        return self._peers.get(peer, 0)

    @property
    def peer_count(self) -> int:
        """How many peers something is kept for."""
        return len(self._peers)

    def take(self, peer: Hashable, kind: str, size: int, *, of_sum: int | None = None) -> None:
        """Count `size` bytes for a peer; `of_sum` of them are new (all, unless said).

        LimitReached: it would be more than the peer, or all of them, may have; nothing was counted.
        """
        new = size if of_sum is None else of_sum
        if new > 0 and self.total + new > self.total_max:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self.total} bytes are kept for clients already, {new} more are wanted for {kind};"
                f" at most {self.total_max} are allowed",
                TOTAL_LIMIT,
            )
        if size > 0 and peer is not NOBODY and self.of(peer) + size > self.peer_max:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self.of(peer)} bytes are kept for this connection already, {size} more are wanted for {kind};"
                f" at most {self.peer_max} are allowed",
                PEER_LIMIT,
            )
        self.note(peer, kind, size, of_sum=new)

    def give(self, peer: Hashable, kind: str, size: int, *, of_sum: int | None = None) -> None:
        """What was taken or noted is gone."""
        self.note(peer, kind, -size, of_sum=None if of_sum is None else -of_sum)

    def note(self, peer: Hashable, kind: str, size: int, *, of_sum: int | None = None) -> None:
        """So many bytes more (or less) are kept, whatever the bounds say."""
        new = size if of_sum is None else of_sum
        self.total += new
        self.kinds[kind] += new
        if peer is not NOBODY:
            kept = self._peers.get(peer, 0) + size
            if kept:
                self._peers[peer] = kept
            else:
                self._peers.pop(peer, None)

    def check(self) -> None:
        """AssertionError at the first broken invariant."""
        assert self.total == self.kinds.total()
        assert all(size >= 0 for size in self.kinds.values())
        assert all(size > 0 for size in self._peers.values())


class _Held(Generic[T]):
    __slots__ = ("holders", "key", "size", "value")

    def __init__(self, key: Hashable, value: T, size: int) -> None:
        self.key = key
        self.value = value
        self.size = size
        self.holders: dict[Hashable, int] = {}  # peer -> how often


class Shared(Generic[T]):
    """Values that peers have in common, each kept once; `hold` and `drop` come in pairs."""

    def __init__(self, memory: PeerMemory, kind: str) -> None:
        self._memory = memory
        self._kind = kind
        self._held: dict[Hashable, _Held[T]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: Hashable, peer: Hashable, size: int, make: Callable[[], T]) -> T:
        """The value of `key`, made when nobody holds it yet. LimitReached: nothing was changed."""
        held = self._held.get(key)
        if held is None:
            self._memory.take(peer, self._kind, size)
            held = self._held[key] = _Held(key, make(), size)
            held.holders[peer] = 1
        elif peer in held.holders:
            held.holders[peer] += 1
        else:
            self._memory.take(peer, self._kind, held.size, of_sum=0)
            held.holders[peer] = 1
        return held.value

    def key_of(self, key: Hashable) -> Hashable:
        """The key that a held value is kept under: who stays keeps that one, not another that is equal to it. `key`
        itself while nobody holds it."""
        held = self._held.get(key)
        return key if held is None else held.key

    def drop(self, key: Hashable, peer: Hashable) -> T | None:
        """One of the peer's holds is over; the value, where nobody holds it any more."""
        held = self._held[key]
        held.holders[peer] -= 1
        if held.holders[peer]:
            return None
        del held.holders[peer]
        last = not held.holders
        self._memory.give(peer, self._kind, held.size, of_sum=held.size if last else 0)
        if not last:
            return None
        del self._held[key]
        return held.value
