"""The result of a comparison: one row a contest and one a state, as values and as a table.

A row holds `figure`, `unit`, `ours` and `official` (each `side`, `value`, `rounds`), `ratio`, `wanted`, `reached`; what
was not measured is null.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.figures import Figure
from bench.sides import Side

__all__ = ["Rates", "Row", "speed_rows", "state_rows", "table"]

IDLE_WANTED_MIB, LOAD_WANTED_MIB, START_WANTED_S = 80.0, 200.0, 1.0

Row = dict[str, Any]
Rates = dict[
    tuple[str, str], list[float]
]  # (figure's title, side's name) -> messages per second of each round


def speed_rows(figures: list[Figure], rates: Rates) -> list[Row]:
    """One row a contest: medians and their ratio."""
    rows: list[Row] = []
    for figure in figures:
        for contest in figure.contests:
            ours = rates.get((figure.title, contest.ours))
            theirs = rates.get((figure.title, contest.official))
            mine = statistics.median(ours) if ours else None
            other = statistics.median(theirs) if theirs else None
            rows.append(
                {
                    "figure": figure.title,
                    "unit": "1/s",
                    "ours": {"side": contest.ours, "value": mine, "rounds": ours or []},
                    "official": {"side": contest.official, "value": other, "rounds": theirs or []},
                    "ratio": mine / other if mine and other else None,
                    "wanted": f">= {contest.wanted:g} x",
                    "reached": mine / other >= contest.wanted if mine and other else None,
                }
            )
    return rows


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
    for title, unit, wanted, values in limits:
        for mode in ("async", "sync"):
            mine, other = values.get(f"ours {mode}"), values.get(f"official {mode}")
            if mine is None and other is None:
                continue
            rows.append(
                {
                    "figure": title,
                    "unit": unit,
                    "ours": {"side": f"ours {mode}", "value": mine, "rounds": []},
                    "official": {"side": f"official {mode}", "value": other, "rounds": []},
                    "ratio": mine / other if mine and other else None,
                    "wanted": f"<= {wanted:g} {unit}",
                    "reached": mine <= wanted if mine else None,
                }
            )
    return rows


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [("figure", "ours", "", "official", "", "ratio", "wanted", ""), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in {1, 3, 5} else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(row: Row) -> tuple[str, ...]:
    """The columns of one row as text."""
    return (
        row["figure"],
        show(row["ours"]["value"], row["unit"]),
        row["ours"]["side"].removeprefix("ours "),
        show(row["official"]["value"], row["unit"]),
        row["official"]["side"].removeprefix("official "),
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        row["wanted"],
        {True: "reached", False: "missed", None: ""}[row["reached"]],
    )


def show(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if unit != "s" else f"{value:.2f} s"
