"""Settings files, changed in place: one line a changed key; comments, order and all other lines stay.

Touches  the settings file and what lies beside it, as whole_files says.

Invariants
- The file is replaced as a whole; after a crash it is the old or the new one. It may hold secrets: its rights stay.
- What is to be written is read back before: a file that would not say what it should is not installed.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import javaproperties

from aerobee_service.settings.settings import SettingsError, SettingsProblem, read_properties
from aerobee_service.settings.whole_files import replace_file

__all__ = ["store_changes"]


def store_changes(path: Path, values: Mapping[str, object]) -> None:
    """Make the settings file say `values` (outside name to value). Blocks until it is on disk.

    A file that does not exist is made. Raises OSError, and SettingsError when the file cannot be edited line by
    line (a TOML value over several lines); the file is then as it was.
    """
    before = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    edit = _edit_toml if path.suffix == ".toml" else _edit_properties
    after = edit(before, values)
    if not _says(path, after, values):
        problem = SettingsProblem(", ".join(values), "", str(path), "cannot be changed here; edit the file")
        raise SettingsError([problem])
    replace_file(path, after.encode())


def _edit_properties(text: str, values: Mapping[str, object]) -> str:
    names = {_plain(name): name for name in values}
    missing = dict(names)
    lines: list[str] = []
    for element in javaproperties.parse(StringIO(text)):
        plain = _plain(element.key) if isinstance(element, javaproperties.KeyValue) else ""
        if plain in names:
            missing.pop(plain, None)
            lines.append(_property_line(names[plain], values[names[plain]]))
        else:
            lines.append(_with_newline(element.source))
    return "".join([*lines, *(_property_line(name, values[name]) for name in missing.values())])


def _edit_toml(text: str, values: Mapping[str, object]) -> str:
    lines = [_with_newline(line) for line in text.splitlines()]
    for name, value in values.items():
        line = f"{name} = {_toml_value(value)}\n"
        places = [place for place, old in enumerate(lines) if _plain(_toml_key(old)) == _plain(name)]
        if places:
            lines[places[0]] = line
        else:
            # In front of the first table: a line after it would belong to that table.
            first_table = next((n for n, old in enumerate(lines) if old.lstrip().startswith("[")), len(lines))
            lines.insert(first_table, line)
    return "".join(lines)


def _toml_key(line: str) -> str:
    found = re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", line)
    return found[1] if found else ""


def _toml_value(value: object) -> str:
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(_text(value), ensure_ascii=False)


def _property_line(name: str, value: object) -> str:
    return javaproperties.join_key_value(name, _text(value)) + "\n"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "value", value))


def _says(path: Path, text: str, values: Mapping[str, object]) -> bool:
    """Whether the text, read again, has every value."""
    try:
        read: Mapping[str, object] = tomllib.loads(text) if path.suffix == ".toml" else read_properties(text)
    except ValueError:
        return False
    return all(name in read and _text(read[name]) == _text(values[name]).strip() for name in values)


def _plain(key: str) -> str:
    """A key without the differences of its two spellings, camelCase and snake_case."""
    return key.replace("_", "").lower()


def _with_newline(line: str) -> str:
    return line if line.endswith("\n") else line + "\n"
