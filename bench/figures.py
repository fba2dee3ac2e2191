"""What is measured, between whom, and what is wanted: the list that the table shows.

A contest compares two sides by name, `"ours async"` with `"official async"`. The least ratio that is wanted depends on
the engine that takes our sends: `native`, or `python` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = [
    "FIGURES",
    "GROUPS",
    "LARGE_TOPIC",
    "PULL_TOPIC",
    "QUERY_TOPIC",
    "SEND_TOPICS",
    "Contest",
    "Figure",
    "Measured",
]

PULL_TOPIC, QUERY_TOPIC, LARGE_TOPIC = "BenchPull", "BenchQuery", "BenchLarge"
SEND_TOPICS = ("BenchSend", "BenchKeys", "BenchSendLarge", "BenchClient")  # that nobody reads
LARGE = 4096  # bytes of a large body


@dataclass(slots=True, frozen=True)
class Contest:
    """One line of the table: two sides, or ours alone, and the least ratio that is wanted with each engine, if any."""

    ours: str
    official: str | None = None
    native: float | None = None
    python: float | None = None

    def wanted(self, engine: str) -> float | None:
        """The least ratio that is wanted with this engine."""
        return self.native if engine == "native" else self.python


@dataclass(slots=True, frozen=True)
class Figure:
    """One kind of load. `command` is the load generator's, or `client:...` for the client libraries; `rate` the least
    rate that is wanted of ours where no ratio is."""

    title: str
    group: str
    command: str
    contests: tuple[Contest, ...]
    options: dict[str, object] = field(default_factory=dict)
    rate: float | None = None

    @property
    def is_client(self) -> bool:
        """Whether a client library makes the load, not the load generator."""
        return self.command.startswith("client:")

    @property
    def sides(self) -> list[str]:
        """Names of the sides that run it, ours first, each once."""
        names = [*(one.ours for one in self.contests), *(one.official for one in self.contests)]
        return [name for name in dict.fromkeys(names) if name is not None]

    def between(self, ours: list[str]) -> Figure:
        """The same with each of these instead of `ours` in the names of sides."""
        contests = tuple(
            replace(contest, ours=contest.ours.replace("ours", label))
            for contest in self.contests
            for label in ours
        )
        return replace(self, contests=contests)


@dataclass(slots=True, frozen=True)
class Measured:
    """One measurement: messages per second, and the broker's processor time per message in microseconds.

    The second depends little on what else the machine does. Client libraries take time to start and to warm up, so
    their messages cannot be told from the broker's whole time: with our client it is the client's own, else None.
    `native_share` of the requests was served by the native engine, where the broker says so.
    """

    rate: float
    cpu_us: float | None
    native_share: float | None = None


def _async(native: float | None = None, python: float | None = None) -> Contest:
    return Contest("ours async", "official async", native, python)


ALONE = (Contest("ours async"),)
_BATCHES: dict[str, object] = {"topic": "BenchSend", "batch": 64, "window": 8}
FIGURES = (
    Figure(
        "send, 1 connection x 64",
        "sends",
        "send",
        (
            _async(3.5, 1.8),
            Contest("ours sync", "official async", 1.4, 0.9),
            Contest("ours sync", "official sync", 3.0, 1.9),
        ),
        {"topic": "BenchSend"},
    ),
    Figure(
        "send, 8 connections x 32",
        "sends",
        "send",
        (_async(4.0, 1.8),),
        {"topic": "BenchSend", "conns": 8, "window": 32},
    ),
    # Each send in a call of its own, as soon as one is answered: the generator's limit on two processors (README).
    Figure(
        "send, 1 x 64, each by itself",
        "sends",
        "send",
        (_async(3.5, 1.8),),
        {"topic": "BenchSend", "apart": 1},
    ),
    Figure(
        "send, 8 x 32, each by itself",
        "sends",
        "send",
        (_async(4.0, 1.8),),
        {"topic": "BenchSend", "conns": 8, "window": 32, "apart": 1},
    ),
    Figure("send, one in flight", "sends", "send", (_async(2.0, 1.6),), {"topic": "BenchSend", "window": 1}),
    Figure("send with keys, 1 x 64", "sends", "send", (_async(3.0, 1.5),), {"topic": "BenchKeys", "keys": 1}),
    Figure(
        "send 4 KiB bodies, 4 x 32",
        "sends",
        "send",
        (_async(3.0, 1.5),),
        {"topic": "BenchSendLarge", "size": LARGE, "conns": 4, "window": 32},
    ),
    Figure("client batches of 64, 1 x 8", "batches", "send", (_async(),), _BATCHES, 400_000),
    Figure("pull 32, 1 connection", "pulls", "pull", (_async(1.6, 1.3),), {"topic": PULL_TOPIC}),
    Figure("pull 32, 4 connections", "pulls", "pull", (_async(2.2, 1.7),), {"topic": PULL_TOPIC, "conns": 4}),
    Figure("pull 32 of 4 KiB, 1 connection", "pulls", "pull", (_async(1.5),), {"topic": LARGE_TOPIC}),
    Figure("query by key", "queries", "query", (_async(2.0, 1.3),), {"topic": QUERY_TOPIC}),
    Figure("client: producer, 64 awaited sends", "clients", "client:send", (_async(4.0),)),
    Figure("client: producer, 1024 unanswered", "clients", "client:nowait", (_async(),)),
    Figure("client: consumer", "clients", "client:reader", (_async(2.5),)),
    Figure("client: lists of 64, awaited", "clients", "client:batch", ALONE, rate=150_000),
    Figure("client: lists of 64, bulk sender", "clients", "client:bulk", ALONE),
)
GROUPS = tuple(dict.fromkeys(figure.group for figure in FIGURES))
