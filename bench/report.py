"""The result of a comparison: one row a contest and one a state, as values and as a table.

A row holds `figure`, `unit`, `ours` and `official` (each `side`, `value`, `cpu_us`, `rounds`), `ratio`, `selected`,
`reached`; what was not measured is null.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.figures import Figure, Measured
from bench.sides import Side

__all__ = ["Rates", "Row", "show_cpu", "speed_rows", "state_rows", "table"]

IDLE_WANTED_MIB, LOAD_WANTED_MIB, START_WANTED_S = 80.0, 200.0, 1.0

Row = dict[str, Any]
Rates = dict[tuple[str, str], list[Measured]]  # (figure's title, side's name) -> each round


def speed_rows(figures: list[Figure], rates: Rates) -> list[Row]:
    """One row a contest: medians and their ratio."""
    rows: list[Row] = []
    for figure in figures:
        for contest in figure.contests:
            ours = _summary(contest.ours, rates.get((figure.title, contest.ours), []))
            theirs = _summary(contest.official, rates.get((figure.title, contest.official), []))
            ratio = ours["value"] / theirs["value"] if ours["value"] and theirs["value"] else None
            rows.append(
                {
                    "figure": figure.title,
                    "unit": "1/s",
                    "ours": ours,
                    "official": theirs,
                    "ratio": ratio,
                    "wanted": f">= {contest.selected:g} x",
                    "reached": ratio >= contest.selected if ratio else None,
                }
            )
    return rows


def _summary(side: str, rounds: list[Measured]) -> Row:
    return {
        "side": side,
        "value": statistics.median(one.rate for one in rounds) if rounds else None,
        "cpu_us": _median_cpu(rounds),
        "rounds": [round(one.rate, 1) for one in rounds],
    }


def _median_cpu(rounds: list[Measured]) -> float | None:
    known = [one.cpu_us for one in rounds if one.cpu_us is not None]
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
        for mode in ("async", "sync"):
            mine, other = values.get(f"ours {mode}"), values.get(f"official {mode}")
            if mine is None and other is None:
                continue
            rows.append(
                {
                    "figure": title,
                    "unit": unit,
                    "ours": {"side": f"ours {mode}", "value": mine, "cpu_us": None, "rounds": []},
                    "official": {"side": f"official {mode}", "value": other, "cpu_us": None, "rounds": []},
                    "ratio": mine / other if mine and other else None,
                    "wanted": f"<= {selected:g} {unit}",
                    "reached": mine <= selected if mine else None,
                }
            )
    return rows


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [("figure", "ours", "", "cpu", "official", "", "cpu", "ratio", "wanted", ""), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in {1, 3, 4, 6, 7} else cell.ljust(width)
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
        show_cpu(row["ours"]["cpu_us"]),
        show(row["official"]["value"], row["unit"]),
        row["official"]["side"].removeprefix("official "),
        show_cpu(row["official"]["cpu_us"]),
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        row["wanted"],
        {True: "reached", False: "missed", None: ""}[row["reached"]],
    )


def show_cpu(cpu_us: float | None) -> str:
    """The broker's processor time per message."""
    return "" if cpu_us is None else f"{cpu_us:.1f} us"


def show(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if unit != "s" else f"{value:.2f} s"
