"""What operators look at: the parts of a broker that metrics, health and the table of its state read.

Touches  nothing.

Rooms above this one show their figures through the protocols here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aerobee_access.refusals import AccessFigures
from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.metrics.disk_figures import DiskFigures
from aerobee_broker.reading.cold_reads import ColdReads
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_broker.stats import BrokerStats
from aerobee_proto.names import GroupQueue
from aerobee_service.turns.slices import Steps
from aerobee_store.store import MessageStore

__all__ = [
    "ClientFigures",
    "LevelFigures",
    "LoopFigures",
    "NameserverFigures",
    "Observed",
    "ScheduleFigures",
    "TimerFigures",
    "TransactionFigures",
]


class NameserverFigures(Protocol):
    """What is known about one nameserver; `reason` says why it does not know this broker."""

    @property
    def addr(self) -> str: ...

    @property
    def registered(self) -> bool: ...

    @property
    def left_to_master(self) -> bool: ...

    @property
    def reason(self) -> str: ...


class ClientFigures(Protocol):
    """Clients that are connected: memberships in groups, by what they have in common."""

    def producers_online(self) -> Steps[Mapping[tuple[str, ...], int]]:
        """By language and version."""
        ...

    def consumers_online(self) -> Steps[Mapping[tuple[str, ...], int]]:
        """By group, language, version, and how the group consumes."""
        ...


class TransactionFigures(Protocol):
    """Transactions: those that are open now, the others since the start, by topic where there is a mapping."""

    @property
    def open_count(self) -> int: ...

    @property
    def committed(self) -> Mapping[str, int]: ...

    @property
    def rolled_back(self) -> Mapping[str, int]: ...

    @property
    def asked(self) -> int: ...

    @property
    def given_up(self) -> int: ...


class LevelFigures(Protocol):
    """Messages of one delay level."""

    @property
    def level(self) -> int: ...

    @property
    def delivered(self) -> int: ...

    @property
    def stored(self) -> int: ...


class TimerFigures(Protocol):
    """Messages with a time of their own: how late the timers are, and how many come and go a second."""

    @property
    def late_ms(self) -> int: ...

    @property
    def offset_behind(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def enqueued_per_second(self) -> float: ...

    @property
    def dequeued_per_second(self) -> float: ...


class ScheduleFigures(Protocol):
    """Messages that wait for their time."""

    def levels(self) -> Sequence[LevelFigures]:
        """One for each delay level of which something was delivered."""
        ...

    def timers(self) -> TimerFigures: ...

    def waiting(self) -> Iterable[tuple[str, int]]:
        """Topics that timer messages wait for, and how many."""
        ...


class LoopFigures(Protocol):
    """Turns of the event loop that took long, and how late looks at it came."""

    @property
    def held(self) -> Mapping[tuple[int, str], int]:
        """(request code, handler) -> turns that took too long."""
        ...

    @property
    def lag_sum_s(self) -> float: ...

    def looks(self) -> Iterable[tuple[str, int]]:
        """Upper bounds in seconds, and how many looks were at most so late."""
        ...


@dataclass(slots=True, frozen=True)
class Observed:
    """A broker as operators see it: read only, each figure as it is when it is asked for."""

    live: LiveConfig
    clock: Callable[[], int]  # epoch ms
    identity: BrokerIdentity
    store: MessageStore
    cold: ColdReads
    stats: BrokerStats
    catalog: Catalog
    clients: ClientFigures
    nameservers: Callable[[], Sequence[NameserverFigures]]
    transactions: Callable[[], TransactionFigures]
    schedule: ScheduleFigures
    loop: LoopFigures
    certificates: Callable[
        [], Iterable[tuple[str, float]]
    ]  # end of TLS, when what it shows expires (epoch s)
    disk: DiskFigures  # of the store's folder
    access: Callable[[], AccessFigures]
    turned_away: Callable[[], Mapping[str, int]]  # connections, by reason
    popped: Callable[[GroupQueue], int]  # messages popped and not acknowledged
    engine: Callable[[], str]  # which takes usual sends and pulls: native or python
    # Of each request code: its handler, requests, and those of them that the native engine took.
    requests: Callable[[], Iterable[tuple[int, str, int, int]]]
    facts: Callable[[], Mapping[str, object]]  # numbers that only the assembly knows, by name
