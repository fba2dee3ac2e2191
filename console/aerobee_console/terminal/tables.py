"""Results on the terminal or for programs: tables, facts, JSON.

Touches  standard output.

A table on a terminal fits its width and has a line under its head. Into a pipe or a file it is plain text: no colour,
nothing cut off, one row a line. JSON is an interface: keys are snake_case, times are epoch milliseconds, and
every document starts with `schema_version`.

A row, or a document, is a frozen dataclass: its fields are what JSON has, in their order. What people alone read, such
as a time as a text, is a property: a table has a column for it, and JSON does not.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "ABSENT",
    "PAIR_COLUMNS",
    "SCHEMA_VERSION",
    "Absent",
    "Column",
    "OutputFormat",
    "Pair",
    "as_json",
    "json_line",
    "print_json",
    "print_table",
    "printable",
    "show",
]

OutputFormat = Literal["table", "json"]
SCHEMA_VERSION: Final = 1
GAP: Final = "  "


class Absent(Enum):
    """The value of a field that this document does not have: JSON leaves it out."""

    ABSENT = 0


ABSENT: Final = Absent.ABSENT


@dataclass(slots=True, frozen=True)
class Column:
    """One column: the name of the row's field or property, its head, and whether it holds numbers."""

    key: str
    head: str
    number: bool = False


@dataclass(slots=True, frozen=True)
class Pair:
    """A row of a table of names and values."""

    name: str
    value: object


PAIR_COLUMNS: Final = (Column("name", "name"), Column("value", "value"))


def show(
    output: OutputFormat,
    name: str,
    columns: Sequence[Column],
    rows: Sequence["DataclassInstance"],
    *,
    title: str = "",
    empty: str = "",
) -> None:
    """A listing: `{"schema_version": 1, name: [row, ...]}`, or a table of the columns of each row.

    JSON has every field of a row, the table the columns alone. `empty` is what a person reads when there are no rows.
    """
    if output == "json":
        print_json({name: list(rows)})
    elif rows:
        print_table(title, columns, rows)
    elif empty:
        sys.stderr.write(empty + "\n")


def as_json(row: "DataclassInstance") -> dict[str, object]:
    """The fields of a row or document, as JSON has them; rows in it are still rows."""
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return {name: value for name, value in fields.items() if value is not ABSENT}


def print_json(document: "Mapping[str, object] | DataclassInstance") -> None:
    """One JSON document, readable, in UTF-8."""
    fields = document if isinstance(document, Mapping) else as_json(document)
    whole = {"schema_version": SCHEMA_VERSION, **fields}
    sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False, default=as_json) + "\n")


def json_line(document: Mapping[str, object]) -> str:
    """One JSON document as a line of a stream of them."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=as_json) + "\n"


def print_table(title: str, columns: Sequence[Column], rows: Iterable["DataclassInstance"]) -> None:
    """A table of texts and numbers; None is shown as nothing."""
    texts = [[_text(getattr(row, column.key)) for column in columns] for row in rows]
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


def _text(value: object) -> str:
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
