"""Workers: brokers that run as one service, each of which says its place in it.

Touches  the cluster through the client's admin calls.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aerobee_console.terminal.tables import Column

if TYPE_CHECKING:
    from aerobee import Client

__all__ = ["WORKER_COLUMNS", "Place", "WorkerRow", "place_of", "workers_of"]

PLACE: Final = re.compile(r"(\d{1,9}) of (\d{1,9}) of (.+)")
MASTER_ID: Final = 0

WORKER_COLUMNS: Final = (
    Column("broker_name", "worker"),
    Column("addr", "address"),
    Column("stored", "stored", number=True),
    Column("stored_per_second", "in/s", number=True),
    Column("read_per_second", "out/s", number=True),
    Column("disk_used_percent", "disk %", number=True),
    Column("runtime", "up for"),
)


class Place(NamedTuple):
    """Which worker a broker is, of how many, of which service."""

    number: int
    of: int
    service: str


@dataclass(slots=True, frozen=True)
class WorkerRow:
    """A worker of a service, by its own figures; rates are of the last ten seconds."""

    broker_name: str
    addr: str
    number: int
    of: int
    stored: int
    stored_per_second: float
    read_per_second: float
    disk_used_percent: int
    runtime: str


def place_of(figures: Mapping[str, str]) -> Place | None:
    """The place that a broker's figures name; None for one that is alone."""
    found = PLACE.fullmatch(figures.get("aerobeeWorker", ""))
    return Place(int(found[1]), int(found[2]), found[3]) if found else None


async def workers_of(client: "Client", service: str) -> list[WorkerRow]:
    """The registered workers of a service, in order; empty where there is none of that name."""
    name = re.compile(re.escape(service) + r"-[1-9]\d*")
    nodes = [
        node
        for node in await client.admin.brokers()
        if node.broker_id == MASTER_ID and name.fullmatch(node.broker_name)
    ]
    tables = await asyncio.gather(*(client.admin.broker_runtime_info(node.addr) for node in nodes))
    rows = [
        _row(node.broker_name, node.addr, place, figures)
        for node, figures in zip(nodes, tables, strict=True)
        if (place := place_of(figures)) is not None and place.service == service
    ]
    return sorted(rows, key=lambda row: row.number)


def _row(name: str, addr: str, place: Place, figures: Mapping[str, str]) -> WorkerRow:
    return WorkerRow(
        broker_name=name,
        addr=addr,
        number=place.number,
        of=place.of,
        stored=int(_number(figures, "msgPutTotalTodayNow")),
        stored_per_second=round(_number(figures, "putTps"), 2),
        read_per_second=round(_number(figures, "getTransferredTps"), 2),
        disk_used_percent=round(_number(figures, "commitLogDiskRatio") * 100),
        runtime=figures.get("runtime", "").strip("[] "),
    )


def _number(figures: Mapping[str, str], name: str) -> float:
    """The first number of a figure; 0 where there is none."""
    try:
        return float(figures.get(name, "").split(" ")[0] or 0)
    except ValueError:
        return 0.0
