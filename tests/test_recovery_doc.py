"""docs/recovery.md: every rule is there, and every test that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:\w+/)?test_\w+\.py)::(test_\w+)`")
RULES = 26


def test_every_rule_has_a_row_with_what_is_done() -> None:
    rows = {int(row[1]): row[2] for row in re.finditer(r"^\| W(\d+): (.+) \|$", TEXT, re.MULTILINE)}
    assert sorted(rows) == list(range(1, RULES + 1))
    for number, row in rows.items():
        _, ours, shown_by = row.rsplit(" | ", 2)
        assert len(ours) > 5, f"W{number}: what is done?"
        assert NAMED.search(shown_by), f"W{number}: which test shows it?"


def test_every_test_named_exists() -> None:
    named = NAMED.findall(TEXT)
    assert len(named) > RULES
    missing = [f"{file}::{name}" for file, name in named if not exists(file, name)]
    assert not missing


def exists(file: str, name: str) -> bool:
    return any(
        re.search(rf"^(?:async )?def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in (ROOT / "tests").glob(f"**/{file}")
    )
