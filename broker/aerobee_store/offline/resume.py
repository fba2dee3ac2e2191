"""Where an interrupted look at a store folder stopped, so that the next run goes on there.

Touches  one file that the user names, outside the store.

    {"format": 2, "identity": {...}, "facts": {...}}        JSON; `facts` are the business of who saves them

Facts of another store, or of this one before it was opened again, are not taken up: the run starts at the beginning.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Final

from aerobee_store.faults.errors import StoreError
from aerobee_store.offline.inspection import Inspection

__all__ = ["NotAResume", "Resume"]

FORMAT: Final = 2
OLDER: Final = (1,)  # of versions that looked at less: what they did counts for nothing


class NotAResume(StoreError):
    """The file that was named is not one to keep where a look stopped; the text says why."""


class Resume:
    """The file of one look."""

    def __init__(self, path: Path, store: Path) -> None:
        """Raises NotAResume when `path` lies in the store folder, where no foreign file may be."""
        if path.resolve().is_relative_to(store.resolve()):
            raise NotAResume(f"{path} lies in the store: name a file outside of it")
        self._path = path

    def load(self, folder: Inspection) -> dict[str, object] | None:
        """The facts that were saved for this store as it is now; None when there are none. NotAResume, OSError."""
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            raise NotAResume(f"{self._path} is no file of an earlier run: name another") from None
        facts = content.get("facts") if isinstance(content, dict) else None
        if not isinstance(facts, dict) or content.get("format") not in (FORMAT, *OLDER):
            raise NotAResume(f"{self._path} is no file of an earlier run: name another")
        is_same = content["format"] == FORMAT and content.get("identity") == _identity(folder)
        return facts if is_same else None

    def save(self, folder: Inspection, facts: dict[str, object]) -> None:
        """Keep these facts in place of what was saved before."""
        content = {"format": FORMAT, "identity": _identity(folder), "facts": facts}
        beside = self._path.with_name(self._path.name + ".tmp")
        try:
            beside.write_text(json.dumps(content), encoding="utf-8")
            beside.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise

    def done(self) -> None:
        """The look is complete: the next one starts at the beginning."""
        self._path.unlink(missing_ok=True)


def _identity(folder: Inspection) -> dict[str, object]:
    """What changes when the store is opened by a broker, or is another one."""
    checkpoint = folder.root / "checkpoint"
    return {
        "store": str(folder.root.resolve()),
        "process": os.getpid() if folder.is_changing else None,
        "log_files": [[file.offset, file.size] for file in folder.log_files],
        "checkpoint": checkpoint.read_bytes().hex() if checkpoint.exists() else None,
        "was_aborted": folder.was_aborted,
    }
