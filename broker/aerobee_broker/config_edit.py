"""Change keys in a settings file the way a person would: only their lines, comments and order kept.

    edit_settings("# mine\\nlistenPort = 10911\\n", {"fileReservedTime": "48"}, toml=False)
        ->  "# mine\\nlistenPort = 10911\\nfileReservedTime=48\\n"

Touches  nothing; the caller reads and replaces the file.

Invariants
- Lines of other keys, comments and blank lines come out as they went in.
- A key that is there several times is changed in its last line, the one that counts, and dropped from the others.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

__all__ = ["edit_settings"]

PROPERTY_LINE: Final = re.compile(r"^\s*(?P<key>[^\s#!:=\\]+)\s*[=:\s]")
TOML_LINE: Final = re.compile(r"^\s*(?P<quote>[\"']?)(?P<key>[A-Za-z0-9_.-]+)(?P=quote)\s*=")


def edit_settings(text: str, changes: Mapping[str, str], *, toml: bool) -> str:
    """The file's text with the keys set; a new key goes to the end (in TOML: before the first table)."""
    pattern = TOML_LINE if toml else PROPERTY_LINE
    lines = text.splitlines()
    end = next((at for at, line in enumerate(lines) if toml and line.lstrip().startswith("[")), len(lines))
    head, tail = lines[:end], lines[end:]
    for key, value in changes.items():
        written = f"{key} = {_toml_value(value)}" if toml else f"{key}={_property_value(value)}"
        places = [at for at, line in enumerate(head) if _key_of(pattern, line) == key]
        if not places:
            head.append(written)
            continue
        # A value that goes on in the next lines (backslash at the end) goes with its key.
        for at in reversed(places):
            head[at : _value_end(head, at, toml=toml)] = [written] if at == places[-1] else []
    return "\n".join([*head, *tail]) + "\n"


def _key_of(pattern: re.Pattern[str], line: str) -> str | None:
    found = pattern.match(line)
    return found["key"] if found else None


def _value_end(lines: list[str], at: int, *, toml: bool) -> int:
    """Index after the last line of the value that begins in line `at`."""
    while not toml and at + 1 < len(lines) and _goes_on(lines[at]):
        at += 1
    return at + 1


def _goes_on(line: str) -> bool:
    stripped = line.rstrip("\\")
    return (len(line) - len(stripped)) % 2 == 1


def _property_value(value: str) -> str:
    """A value with what properties files treat specially escaped."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + escaped if escaped[:1] in (" ", "=", ":") else escaped


def _toml_value(value: str) -> str:
    """Booleans and integers stand bare, everything else is a string."""
    if value in ("true", "false") or re.fullmatch(r"-?(0|[1-9][0-9]*)", value):
        return value
    return json.dumps(value, ensure_ascii=False)
