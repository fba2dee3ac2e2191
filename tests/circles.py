"""What is left over in circles: objects that hold each other, which only a search for garbage would find.

A request that leaves one behind is kept in memory with all that its handler had in hand, until somebody searches; and
servers search as seldom as they can, for a search holds everybody up.
"""

import gc
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aerobee_proto.requests import Incoming
from aerobee_remoting.exchange.handlers import Request

__all__ = ["circles"]

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = tuple(f"{ROOT / folder}/" for folder in ("proto", "broker", "nameserver"))


@contextmanager
def circles() -> Iterator[Counter[str]]:
    """Filled in the end with what the block has left of requests: calls (by name and line), requests, their bytes."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(name for name in map(_name, gc.garbage) if name is not None)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _name(left: object) -> str | None:
    if isinstance(left, types.FrameType):
        code = left.f_code
        return f"{code.co_qualname}:{left.f_lineno}" if code.co_filename.startswith(PRODUCT) else None
    if isinstance(left, Request | Incoming):
        return type(left).__name__
    return None
