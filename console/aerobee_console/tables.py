"""Results on the terminal or for programs: tables, facts, JSON.

Touches  standard output.

A table on a terminal fits its width and has a line under its head. Into a pipe or a file it is plain text: no colour,
nothing cut off, one row a line. JSON is an interface: keys are snake_case, times are epoch milliseconds, and
every document starts with `schema_version`.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

__all__ = ["SCHEMA_VERSION", "Column", "OutputFormat", "print_json", "print_table", "printable", "show"]

OutputFormat = Literal["table", "json"]
SCHEMA_VERSION: Final = 1
GAP: Final = "  "


@dataclass(slots=True, frozen=True)
class Column:
    """One column: the row's key, its head, and whether it holds numbers."""

    key: str
    head: str
    number: bool = False


def show(
    output: OutputFormat,
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    title: str = "",
    empty: str = "",
) -> None:
    """A listing: `{"schema_version": 1, name: [row, ...]}`, or a table of the columns of each row.

    Rows may hold more than the columns show. `empty` is what a person reads when there are no rows.
    """
    if output == "json":
        print_json({name: list(rows)})
    elif rows:
        print_table(title, columns, rows)
    elif empty:
        sys.stderr.write(empty + "\n")


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document, readable, in UTF-8."""
    whole = {"schema_version": SCHEMA_VERSION, **document}
    sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")


def print_table(title: str, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table of texts and numbers; None is shown as nothing."""
    texts = [[_text(row.get(column.key)) for column in columns] for row in rows]
    if _is_terminal(sys.stdout):
        _print_rich(title, columns, texts)
    else:
        _print_plain(title, columns, texts)


def _print_plain(title: str, columns: Sequence[Column], rows: list[list[str]]) -> None:
    heads = [column.head for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    if title:
        sys.stdout.write(title + "\n")
    for row in [heads, *rows]:
        cells = (
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        )
        sys.stdout.write(GAP.join(cells).rstrip() + "\n")


def _print_rich(title: str, columns: Sequence[Column], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.head, justify="right" if column.number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, no_color="NO_COLOR" in os.environ or None).print(table)


def _is_terminal(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return printable(str(value))


def printable(text: str) -> str:
    """Text of others for a terminal: line ends and control characters become visible escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
