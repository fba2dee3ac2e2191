"""The golden tables that official RocketMQ code computed, and a few helpers for reading them."""

import json
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"


@cache
def golden_table(name: str) -> Any:
    """One table of tests/golden/codec/tables.json."""
    tables = json.loads((GOLDEN / "codec" / "tables.json").read_text(encoding="utf-8"))
    return tables[name]


def unbase64(text: str) -> bytes:
    """Bytes of a base64 field of the tables."""
    return b64decode(text, validate=True)
