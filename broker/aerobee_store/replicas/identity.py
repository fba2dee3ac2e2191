"""The identity of a store: this very one is counted on to have a message, not whatever lies in its folder later.

Touches  <root>/storeIdentity and its backup.

Made up at the first question and kept from then on, also across a move of the folder. A folder that was emptied is
another store.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.json_files import JsonFile

__all__ = ["IDENTITY_FILE", "store_identity"]

IDENTITY_FILE: Final = "storeIdentity"
_FORM: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


def store_identity(root: Path, io: StoreIo, new: Callable[[], str]) -> str:
    """The identity of the store in this folder, 32 hexadecimal digits; `new` makes one up. Durable when this returns.
    CorruptStore, OSError."""
    file = JsonFile(root / IDENTITY_FILE, io, _parse)
    known = file.load()
    if known is None:
        known = new()
        file.save(json.dumps({"store": known}).encode())
    return known


def _parse(raw: bytes) -> str:
    found = json.loads(raw)
    identity = found.get("store") if isinstance(found, dict) else None
    if not isinstance(identity, str) or _FORM.fullmatch(identity) is None:
        raise ValueError("it has no identity of a store")
    return identity
