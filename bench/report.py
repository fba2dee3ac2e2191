"""The result of a comparison: one row a contest and one a state, as values and as a table.

A row holds `figure`, `unit`, `engine` (that takes our sends), `ours` and `official` (each `side`, `value`, `cpu_us`,
`native_share` of the requests, `rounds`), `ratio`, `wanted`, `reached`; what was not measured is null.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from bench.figures import Figure, Measured
from bench.sides import Side

__all__ = ["Rates", "Row", "show_cpu", "speed_rows", "state_rows", "table"]

SHARE_WHOLE = 0.995  # of the requests; the first of each kind are read in Python
IDLE_WANTED_MIB, LOAD_WANTED_MIB, START_WANTED_S = 80.0, 200.0, 1.0

Row = dict[str, Any]
Rates = dict[tuple[str, str], list[Measured]]  # (figure's title, side's name) -> each round


def speed_rows(figures: list[Figure], rates: Rates, engines: Mapping[str, str]) -> list[Row]:
    """One row a contest: medians and their ratio. `engines` says of each side of ours which one takes its sends."""
    rows: list[Row] = []
    for figure in figures:
        for contest in figure.contests:
            official = contest.official or ""
            ours = _summary(contest.ours, rates.get((figure.title, contest.ours), []))
            theirs = _summary(official, rates.get((figure.title, official), []))
            ratio = ours["value"] / theirs["value"] if ours["value"] and theirs["value"] else None
            engine = engines.get(contest.ours, "")
            wanted, reached = "", None
            if (least := contest.wanted(engine)) is not None:
                wanted, reached = f">= {least:g} x", ratio >= least if ratio else None
            elif figure.rate is not None:
                wanted = f">= {figure.rate:,.0f} 1/s"
                reached = ours["value"] >= figure.rate if ours["value"] else None
            rows.append(
                {
                    "figure": figure.title,
                    "unit": "1/s",
                    "engine": engine,
                    "ours": ours,
                    "official": theirs,
                    "ratio": ratio,
                    "wanted": wanted,
                    "reached": reached,
                }
            )
    return rows


def _summary(side: str, rounds: list[Measured]) -> Row:
    return {
        "side": side,
        "value": statistics.median(one.rate for one in rounds) if rounds else None,
        "cpu_us": _median(one.cpu_us for one in rounds),
        "native_share": _median(one.native_share for one in rounds),
        "rounds": [round(one.rate, 1) for one in rounds],
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def state_rows(sides: dict[str, Side]) -> list[Row]:
    """Memory apart from mapped store files, and the time from the start to ready on an empty store."""
    limits = [
        ("memory idle", "MiB", IDLE_WANTED_MIB, {name: side.idle_mib for name, side in sides.items()}),
        (
            "memory under load",
            "MiB",
            LOAD_WANTED_MIB,
            {name: side.load_mib() for name, side in sides.items()},
        ),
        ("start to ready", "s", START_WANTED_S, {name: side.start_s for name, side in sides.items()}),
    ]
    rows: list[Row] = []
    for title, unit, selected, values in limits:
        for name, mine in values.items():
            label, _, mode = name.partition(" ")
            if label == "official":
                continue
            other = values.get(f"official {mode}")
            rows.append(
                {
                    "figure": title,
                    "unit": unit,
                    "engine": sides[name].engine,
                    "ours": {"side": name, "value": mine, "cpu_us": None, "rounds": []},
                    "official": {"side": f"official {mode}", "value": other, "cpu_us": None, "rounds": []},
                    "ratio": mine / other if mine and other else None,
                    "wanted": f"<= {selected:g} {unit}",
                    "reached": mine <= selected if mine else None,
                }
            )
    return rows


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [
        ("figure", "ours", "", "", "cpu", "official", "", "cpu", "ratio", "wanted", ""),
        *map(cells, rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in {1, 4, 5, 7, 8} else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(row: Row) -> tuple[str, ...]:
    """The columns of one row as text."""
    return (
        row["figure"],
        show(row["ours"]["value"], row["unit"]),
        show_engine(row.get("engine", ""), row["ours"].get("native_share")),
        row["ours"]["side"].rpartition(" ")[2],
        show_cpu(row["ours"]["cpu_us"]),
        show(row["official"]["value"], row["unit"]),
        row["official"]["side"].removeprefix("official "),
        show_cpu(row["official"]["cpu_us"]),
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        row["wanted"],
        {True: "reached", False: "missed", None: ""}[row["reached"]],
    )


def show_engine(engine: str, native_share: float | None) -> str:
    """Which engine takes our sends, and how many of the requests, where it left some to Python."""
    is_whole = engine != "native" or native_share is None or native_share >= SHARE_WHOLE
    return engine if is_whole else f"{engine} {native_share:.0%}"


def show_cpu(cpu_us: float | None) -> str:
    """The broker's processor time per message."""
    return "" if cpu_us is None else f"{cpu_us:.1f} us"


def show(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if unit != "s" else f"{value:.2f} s"
