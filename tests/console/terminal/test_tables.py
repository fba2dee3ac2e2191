"""Tables and JSON, on a terminal and into a pipe."""

import io
import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from aerobee_console.terminal import tables
from aerobee_console.terminal.tables import (
    ABSENT,
    Absent,
    Column,
    Pair,
    print_json,
    print_table,
    printable,
    show,
)

COLUMNS = (Column("name", "name"), Column("size", "bytes", number=True), Column("tags", "tags"))


@dataclass(frozen=True)
class Thing:
    name: str
    size: int
    tags: object
    more: int | Absent = ABSENT

    @property
    def shout(self) -> str:
        return self.name.upper()


ROWS = [
    Thing("a", 7, ["x", "y"], 1),
    Thing("long name", 12345, None),
    Thing("evil\x1b[31m\n", 0, True),
]
PLAIN = """\
title
name            bytes  tags
a                   7  x, y
long name       12345
evil\\x1b[31m\\n      0  yes
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal()
    monkeypatch.setattr(tables, "sys", SimpleNamespace(stdout=screen))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


def test_a_table_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", COLUMNS, ROWS)
    assert capsys.readouterr().out == PLAIN


def test_nothing_is_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", (Column("name", "a"),), [Pair("x" * 5_000, None)])
    assert capsys.readouterr().out == f"a\n{'x' * 5_000}\n"


def test_a_table_on_a_terminal_fits_it_and_cannot_be_painted_by_its_content(terminal: Terminal) -> None:
    print_table("title", COLUMNS, [*ROWS, Thing("y" * 100, 1, "")])
    shown = terminal.getvalue()
    assert "\x1b[1m" in shown
    assert "\x1b[31m" not in shown
    assert "─" in shown


def test_no_color_is_honoured_on_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    print_table("title", COLUMNS, ROWS)
    assert "\x1b[3" not in terminal.getvalue()


def test_a_dumb_terminal_gets_plain_text(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    print_table("title", COLUMNS, ROWS)
    assert terminal.getvalue() == PLAIN


def test_json_has_a_version_and_everything_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    show("json", "things", COLUMNS, ROWS)
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1,
        "things": [
            {"name": "a", "size": 7, "tags": ["x", "y"], "more": 1},
            {"name": "long name", "size": 12345, "tags": None},
            {"name": "evil\x1b[31m\n", "size": 0, "tags": True},
        ],
    }


def test_a_property_is_for_tables_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", (Column("shout", "loud"),), ROWS[:1])
    assert capsys.readouterr().out == "loud\nA\n"
    print_json(ROWS[1])
    document = json.loads(capsys.readouterr().out)
    assert document == {"schema_version": 1, "name": "long name", "size": 12345, "tags": None}


def test_nothing_to_show_is_said_to_people_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show("table", "things", COLUMNS, [], empty="none yet")
    assert capsys.readouterr() == ("", "none yet\n")
    show("json", "things", COLUMNS, [], empty="none yet")
    said = capsys.readouterr()
    assert json.loads(said.out)["things"] == []
    assert said.err == ""


def test_text_of_others_keeps_its_letters() -> None:
    assert printable("größe 金 a\tb\x00") == "größe 金 a\\tb\\x00"
