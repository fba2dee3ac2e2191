"""What is measured, between whom, and which ratio is wanted: the list that the table shows.

A contest compares two sides by name, `"ours async"` with `"official async"`; `selected` is the least ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FIGURES", "PULL_TOPIC", "QUERY_TOPIC", "Contest", "Figure", "Measured"]

PULL_TOPIC, QUERY_TOPIC = "BenchPull", "BenchQuery"


@dataclass(slots=True, frozen=True)
class Contest:
    """One line of the table."""

    ours: str
    official: str
    selected: float


@dataclass(slots=True, frozen=True)
class Figure:
    """One kind of load. `command` is the load generator's, or `client:...` for the client libraries."""

    title: str
    command: str
    contests: tuple[Contest, ...]
    options: dict[str, object] = field(default_factory=dict)

    @property
    def is_client(self) -> bool:
        """Whether a client library makes the load, not the load generator."""
        return self.command.startswith("client:")

    @property
    def sides(self) -> list[str]:
        """Names of the sides that run it, ours first, each once."""
        return list(
            dict.fromkeys([*(one.ours for one in self.contests), *(one.official for one in self.contests)])
        )


@dataclass(slots=True, frozen=True)
class Measured:
    """One measurement: messages per second, and the broker's processor time per message in microseconds.

    The second depends little on what else the machine does. It is None for client libraries: they take time to
    start and to warm up, so their messages cannot be told from the broker's whole time.
    """

    rate: float
    cpu_us: float | None


def _async(selected: float) -> tuple[Contest, ...]:
    return (Contest("ours async", "official async", selected),)


FIGURES = (
    Figure(
        "send, 1 connection x 64",
        "send",
        (
            *_async(3.5),
            Contest("ours sync", "official async", 1.0),
            Contest("ours sync", "official sync", 8.0),
        ),
        {"topic": "BenchSend"},
    ),
    Figure("send, 8 connections x 32", "send", _async(2.5), {"topic": "BenchSend", "conns": 8, "window": 32}),
    Figure("send, one in flight", "send", _async(2.0), {"topic": "BenchSend", "window": 1}),
    Figure("send with keys, 1 x 64", "send", _async(3.0), {"topic": "BenchKeys", "keys": 1}),
    Figure("send 4 KiB bodies, 1 x 64", "send", _async(2.0), {"topic": "BenchLarge", "size": 4096}),
    Figure("pull 32, 1 connection", "pull", _async(1.8), {"topic": PULL_TOPIC}),
    Figure("pull 32, 4 connections", "pull", _async(1.8), {"topic": PULL_TOPIC, "conns": 4}),
    Figure("query by key", "query", _async(1.8), {"topic": QUERY_TOPIC}),
    Figure("client: producer, 64 awaited sends", "client:send", _async(2.0)),
    Figure("client: producer, 1024 unanswered", "client:nowait", _async(2.0)),
    Figure("client: consumer", "client:reader", _async(2.0)),
)
