"""`aerobee cluster ...`: the brokers that the nameserver knows, their figures and settings.

Touches  the cluster through the client's admin calls.
"""

import sys
from typing import Annotated, Final

from cyclopts import App, Parameter

from aerobee_console.failures import NOT_FOUND, OK, Failure
from aerobee_console.session import Connect, Output, run
from aerobee_console.tables import Column, print_json, print_table, show

__all__ = ["app"]

app = App(
    "cluster", help="List the brokers of a cluster; show figures and settings of one.", help_epilogue=""
)
Broker = Annotated[str, Parameter(help="Name or address of a broker.")]

COLUMNS: Final = (
    Column("cluster_name", "cluster"),
    Column("broker_name", "broker"),
    Column("broker_id", "id", number=True),
    Column("role", "role"),
    Column("addr", "address"),
)
PAIR_COLUMNS: Final = (Column("name", "name"), Column("value", "value"))


@app.default
def list_brokers(*, output: Output = "table", connect: Connect | None = None) -> int:
    """List the brokers that the nameserver knows."""
    nodes = run(connect, lambda client: client.admin.brokers())
    rows = [
        {
            "cluster_name": node.cluster_name,
            "broker_name": node.broker_name,
            "broker_id": node.broker_id,
            "role": "master" if node.broker_id == 0 else "slave",
            "addr": node.addr,
        }
        for node in nodes
    ]
    empty = "the nameserver answers, but no broker has registered: aerobee broker --set namesrvAddr=..."
    show(output, "brokers", COLUMNS, rows, empty=empty)
    return OK


@app.command
def status(broker: Broker, /, *, output: Output = "table", connect: Connect | None = None) -> int:
    """Show the figures of a running broker."""
    table = run(connect, lambda client: client.admin.broker_runtime_info(broker))
    return _show_pairs(output, "status", table)


@app.command
def config(
    broker: Broker,
    keys: Annotated[tuple[str, ...], Parameter(help="Only these keys.")] = (),
    /,
    *,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Show the settings of a running broker."""
    table = run(connect, lambda client: client.admin.broker_config(broker))
    unknown = [key for key in keys if key not in table]
    if unknown:
        raise Failure(f"broker {broker} has no setting {', '.join(unknown)}", NOT_FOUND)
    return _show_pairs(output, "config", {key: table[key] for key in keys} or table)


def _show_pairs(output: str, name: str, table: dict[str, str]) -> int:
    pairs = dict(sorted(table.items()))
    if output == "json":
        print_json({name: pairs})
    elif pairs:
        print_table("", PAIR_COLUMNS, [{"name": key, "value": value} for key, value in pairs.items()])
    else:
        sys.stderr.write("the broker answered with nothing\n")
    return OK
