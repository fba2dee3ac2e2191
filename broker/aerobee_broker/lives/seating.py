"""What an election and a life of its broker have to do with each other.

Touches  nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["Copies", "ElectionStatistics", "Seating", "Served", "SetStanding", "SyncRules"]


class SyncRules(NamedTuple):
    """When a member is in sync."""

    gap_max: int  # bytes behind at which it is not
    catch_up_s: float  # time without having been at the end of the log
    away_s: float  # time without a connection
    copies_min: int = 1  # the master's own among them: with fewer in sync nothing is acknowledged


class CopyLink(Protocol):
    """The link to a slave."""

    @property
    def acked_offset(self) -> int:
        """Physical offset below which the slave has everything."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether it has said where it stands."""
        ...


class Copy(Protocol):
    """One connected slave."""

    @property
    def link(self) -> CopyLink: ...

    @property
    def member(self) -> int | None:
        """Its number; None: it has not said."""
        ...

    @property
    def store(self) -> str:
        """The identity of its store; "": it has not said."""
        ...


class Copies(Protocol):
    """The slaves of a master."""

    @property
    def connected(self) -> Sequence[Copy]: ...

    @property
    def offset(self) -> int:
        """Physical offset below which everything is where it has to be."""
        ...

    def wait_for(self, waited_for: frozenset[int], in_sync: frozenset[int]) -> bool:
        """From now on each of these members has to have a send. Whether anything is new by it."""
        ...


@dataclass(slots=True, frozen=True)
class Served:
    """A life that serves, as an election sees it."""

    addr: str  # where it answers requests
    ha_addr: str  # where it gives its log, or would as a master
    end_offset: Callable[[], int]  # where its log ends
    last_epoch: int
    epoch: int = 0  # of a master's life
    replicas: Copies | None = None  # of a master
    advanced: Callable[[], None] = lambda: None  # tells a master that fewer or others may be waited for
    # Of a master: numbers of the last change of the tables that a member has, and that there was.
    tables: Callable[[int], tuple[int, int]] = lambda _: (0, 0)
    rules: Callable[[float], SyncRules] = lambda away_s: SyncRules(0, 0.0, away_s)  # as its settings say now


class SetStanding(NamedTuple):
    """A set as its election knows it."""

    epoch: int
    revision: int  # of what is known about who is in sync: it grows with each change
    master: int  # member number; 0: there is none now
    addrs: Mapping[int, str]  # of the members that run, by number
    in_sync: frozenset[int]


@dataclass(slots=True, frozen=True)
class ElectionStatistics:
    """How the election stands, named as in the `broker.stats` line."""

    election_epoch: int
    election_in_sync: int  # members that the register names; 0: not known
    election_lease_left_ms: int  # 0: none
    election_register_reached: int  # 1: the last call was answered


class Seating(Protocol):
    """An election. All calls from the event loop."""

    @property
    def store(self) -> str:
        """The identity of this broker's store."""
        ...

    def holds(self, epoch: int) -> bool:
        """Whether this broker is the master of this epoch at this moment, for certain."""
        ...

    def standing(self) -> SetStanding | None:
        """What is known of the set; None: nothing yet."""
        ...

    def is_shared(self, addr: str) -> bool:
        """Whether other members are announced by this address, too; also as long as nobody knows."""
        ...

    def statistics(self) -> ElectionStatistics:
        """For figures and metrics."""
        ...

    def began(self, served: Served) -> None:
        """A life serves."""
        ...

    def heard_of(self, epoch: int) -> None:
        """A slave knows of a master of this epoch, which is newer than that of the life."""
        ...

    def missed(self, epoch: int, *, is_gone: bool) -> None:
        """Nobody listens any more where the master of this epoch gave its log to the life; or somebody does again."""
        ...

    def left(self) -> None:
        """The broker stops, and has given its last answer: it is no master any more, however long its lease."""
        ...

    def ended(self) -> None:
        """It is about to end: from here on it answers nothing."""
        ...
