"""Whose log this slave's is a copy of: the file `copiedFrom.json`.

Touches  nothing by itself; `config_files` writes the table.

    {"store": "0123456789abcdef0123456789abcdef"}

Where no epochs say who wrote a log, this does: all of it was this store's when the link to its master began, and all
that came since. So when that store has deleted what comes next here, the copy may begin anew: nothing is in it that was
not there.

Invariants
- Forgotten where anybody else may have written into the log: by a life that is no slave's, and by one that does not
  know whether the life before was one.
"""

from collections.abc import Mapping
from typing import Any

from aerobee_proto import bodies

__all__ = ["CopiedFrom"]


class CopiedFrom:
    """All calls from the event loop."""

    file_name = "copiedFrom.json"

    def __init__(self) -> None:
        self.store = ""  # identity of the master's store; "" when it is not known
        self.revision = 0

    def follow(self, store: str) -> None:
        """The log is the beginning of that one's, and goes on with it; "" for a master that does not say which."""
        if store != self.store:
            self.store = store
            self.revision += 1

    def forget(self) -> None:
        """Somebody else may have written into this log."""
        self.follow("")

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"store": self.store}

    def parse(self, content: Mapping[str, object]) -> str:
        """A file's content. FormatError when it is none."""
        return bodies.convert(content.get("store", ""), str)

    def take(self, parsed: str) -> None:
        """Put parsed content in place of the table's own."""
        self.store = parsed
