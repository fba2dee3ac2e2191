"""`aerobee cluster ...`: the brokers that the nameserver knows, their figures and settings.

Touches  the cluster through the client's admin calls.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from aerobee_console.cluster.replicas import add_commands
from aerobee_console.cluster.workers import WORKER_COLUMNS, WorkerRow, workers_of
from aerobee_console.terminal.failures import NOT_FOUND, OK, REFUSED, USAGE, Failure
from aerobee_console.terminal.messages import time_text
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.several import several
from aerobee_console.terminal.tables import (
    ABSENT,
    PAIR_COLUMNS,
    Absent,
    Column,
    Pair,
    print_json,
    print_table,
    show,
)

if TYPE_CHECKING:
    from aerobee import Client

__all__ = ["app"]

app = App(
    "cluster",
    help="List the brokers of a cluster; show figures and settings of one; change the master of a set.",
    help_epilogue="",
)
Broker = Annotated[str, Parameter(help="Name or address of a broker.")]
BrokerOrService = Annotated[
    str, Parameter(name="BROKER", help="Name or address of a broker, or the name of a service of workers.")
]

COLUMNS: Final = (
    Column("cluster_name", "cluster"),
    Column("broker_name", "broker"),
    Column("broker_id", "id", number=True),
    Column("role", "role"),
    Column("addr", "address"),
)


@dataclass(slots=True, frozen=True)
class BrokerRow:
    """A broker that the nameserver knows."""

    cluster_name: str
    broker_name: str
    broker_id: int
    role: str
    addr: str


@dataclass(slots=True, frozen=True)
class SettingRow:
    """A setting of a broker, and what a change of it needs."""

    name: str
    value: str
    change: str


@dataclass(slots=True, frozen=True)
class SettingFacts:
    """Settings of a broker; `hot` are those that take effect at once, where the broker says which."""

    config: dict[str, str]
    hot: list[str] | Absent


@dataclass(slots=True, frozen=True)
class Change:
    """A setting before and after it was changed."""

    before: str
    after: str


@app.default
def list_brokers(*, output: Output = "table", connect: Connect | None = None) -> int:
    """List the brokers that the nameserver knows."""
    nodes = run(connect, lambda client: client.admin.brokers())
    rows = [
        BrokerRow(
            cluster_name=node.cluster_name,
            broker_name=node.broker_name,
            broker_id=node.broker_id,
            role="master" if node.broker_id == 0 else "slave",
            addr=node.addr,
        )
        for node in nodes
    ]
    empty = "the nameserver answers, but no broker has registered: aerobee broker --set namesrvAddr=..."
    show(output, "brokers", COLUMNS, rows, empty=empty)
    return OK


@app.command
def status(broker: BrokerOrService, /, *, output: Output = "table", connect: Connect | None = None) -> int:
    """Show the figures of a running broker, by RocketMQ's names. All of them, as it sent them, are in -o json.

    Of a service of workers, by the name that they share, a line for each worker.
    """
    table = run(connect, lambda client: _figures(client, broker))
    if isinstance(table, list):
        title = f"{broker}: {len(table)} of {table[0].of} workers are registered"
        show(output, "workers", WORKER_COLUMNS, table, title=title)
        return OK
    return _show_pairs(output, "status", table if output == "json" else readable(table))


async def _figures(client: "Client", broker: str) -> dict[str, str] | list[WorkerRow]:
    """Of a broker, or of the workers of the service with that name."""
    from aerobee import NotFound

    try:
        return await client.admin.broker_runtime_info(broker)
    except NotFound:
        rows = await workers_of(client, broker)
        if not rows:
            raise
        return rows


@app.command
def config(
    broker: Broker,
    keys: Annotated[tuple[str, ...], Parameter(help="Only these keys.")] = (),
    /,
    *,
    changes: Annotated[
        tuple[str, ...], several("--set", "Change a setting that is hot, KEY=VALUE; may be repeated.")
    ] = (),
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Show the settings of a running broker, or change some with --set: all of them, or none.

    A change of a setting that is hot is in effect at once, and the broker notes it in its settings file. Others are
    read at start alone: change them in that file and start the broker again.
    """
    if changes and keys:
        raise Failure("give keys to show, or --set KEY=VALUE to change, not both", USAGE)
    requested = dict(_pair(text) for text in changes)
    if requested:
        moved = run(connect, lambda client: _change(client, broker, requested))
        return _show_changes(output, moved)
    table, hot = run(connect, lambda client: _settings(client, broker))
    for key in keys:
        _require(broker, key, table)
    return _show_settings(output, {key: table[key] for key in keys} or table, hot)


async def _settings(client: "Client", broker: str) -> tuple[dict[str, str], frozenset[str]]:
    return await client.admin.broker_config(broker), await client.admin.hot_settings(broker)


async def _change(client: "Client", broker: str, requested: dict[str, str]) -> dict[str, Change]:
    """Change them; the value of each before and after, as the broker tells it. Failure where nothing was changed."""
    before, hot = await _settings(client, broker)
    for key in requested:
        _require(broker, key, before)
    cold = [key for key in requested if hot and key not in hot]
    if cold:
        raise Failure(
            f"{', '.join(cold)} of broker {broker}: read at start only; nothing was changed\n"
            "  write it into the broker's settings file (or its --set) and start it again",
            REFUSED,
        )
    await client.admin.update_broker_config(broker, requested)
    after = await client.admin.broker_config(broker)
    return {key: Change(before[key], after.get(key, "")) for key in requested}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Failure(f"--set {text}: write KEY=VALUE", USAGE)
    return key.strip(), value.strip()


def _require(broker: str, key: str, table: dict[str, str]) -> None:
    """Failure with similar names when the broker has no such setting."""
    if key in table:
        return
    from aerobee.terms.routes import near_names

    near = near_names(key, sorted(table))
    hint = f"\n  did you mean {', '.join(near)}?" if near else ""
    raise Failure(f"broker {broker} has no setting {key}{hint}", NOT_FOUND)


def _show_settings(output: str, table: dict[str, str], hot: frozenset[str]) -> int:
    names = sorted(table)
    if output == "json":
        marks = [key for key in names if key in hot] if hot else ABSENT
        print_json(SettingFacts({key: table[key] for key in names}, marks))
        return OK
    columns = (*PAIR_COLUMNS, Column("change", "a change needs")) if hot else PAIR_COLUMNS
    print_table(
        "",
        columns,
        [SettingRow(key, table[key], "nothing more" if key in hot else "a restart") for key in names],
    )
    return OK


def _show_changes(output: str, moved: dict[str, Change]) -> int:
    if output == "json":
        print_json({"changed": moved})
        return OK
    for key, change in moved.items():
        old, new = change.before, change.after
        sys.stdout.write(
            f"{key}: {old} -> {new}, in effect now\n" if old != new else f"{key}: {new}, as before\n"
        )
    return OK


add_commands(app)


def readable(figures: Mapping[str, str]) -> dict[str, str]:
    """The figures as people want to read them: times as such, two decimals, and no thread pool that holds nothing.

    The names are RocketMQ's: this broker has no such pools, and says 0 for each.
    """
    idle = {
        pool
        for name, value in figures.items()
        if (pool := _pool_of(name, "Size")) is not None and value == "0"
    }
    shown: dict[str, str] = {}
    for name, value in figures.items():
        pools = {_pool_of(name, end) for end in ("Size", "Capacity", "HeadWaitTimeMills")} - {None}
        if not pools & idle:
            shown[name] = _readable(name, value)
    return shown


def _pool_of(name: str, end: str) -> str | None:
    """`send` of `sendThreadPoolQueueSize`, where the name ends like that."""
    stem = name.removesuffix(end)
    if stem == name or not stem.endswith("Queue"):
        return None
    return stem.removesuffix("Queue").removesuffix("ThreadPool").casefold()


def _readable(name: str, value: str) -> str:
    if name.casefold().endswith("timestamp") and value.removeprefix("-").isdecimal():
        return (time_text(int(value)) if int(value) > 0 else None) or "never"
    if name.endswith("Tps"):  # over 10 seconds, a minute, 10 minutes
        return " ".join(_rounded(word) for word in value.split())
    return _rounded(value)


def _rounded(word: str) -> str:
    """A number with a fraction, shortened to two decimals; other words as they are."""
    whole, point, fraction = word.partition(".")
    if not point or not whole.removeprefix("-").isdecimal() or not fraction.isdecimal():
        return word
    return f"{float(word):.2f}"


def _show_pairs(output: str, name: str, table: dict[str, str]) -> int:
    pairs = dict(sorted(table.items()))
    if output == "json":
        print_json({name: pairs})
    elif pairs:
        print_table("", PAIR_COLUMNS, [Pair(key, value) for key, value in pairs.items()])
    else:
        sys.stderr.write("the broker answered with nothing\n")
    return OK
