"""Named places in the store where a test may stop the world.

`hit(name)` costs one dictionary look-up in an empty dictionary unless a test armed that name. An armed
failpoint calls its action, which may raise (a disk fault) or end the process (a crash).
Names are `module.moment`, e.g. `commit_log.before_sync`; FAILPOINTS lists those of the store, SERVICE_FAILPOINTS
those of the broker above it.

A process of its own is armed by text, which the broker reads from an environment variable:
`name=ACTION[@N]`, separated by commas. ACTION is `kill` (SIGKILL) or `exit` (as if by exit(1), without any
cleaning up); it happens when execution passes the place for the N-th time, the first without N.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

__all__ = ["FAILPOINTS", "SERVICE_FAILPOINTS", "active", "arm", "arm_from_text", "armed", "disarm", "hit"]

FAILPOINTS: Final = frozenset(
    {
        "checkpoint.copy_written",
        "checkpoint.stamps_written",
        "commit_log.after_sync",
        "commit_log.after_write",
        "commit_log.before_roll",
        "commit_log.before_sync",
        "commit_log.before_write",
        "commit_log.rolled",
        "consume_queue.after_sync",
        "consume_queue.after_write",
        "consume_queue.before_sync",
        "consume_queue.before_write",
        "cutting.announced",
        "cutting.forgotten",
        "cutting.recovered",
        "cutting.truncated",
        "index_file.after_sync",
        "index_file.before_header",
        "index_file.before_slots",
        "index_file.before_sync",
        "next_file.named",
        "next_file.prepared",
        "io.before_rename",
        "io.file_allocated",
        "io.file_created",
        "io.previous_kept",
        "io.renamed",
        "recovery.cut",
        "recovery.durable",
        "recovery.indexed",
        "recovery.prepared",
        "recovery.walked",
        "store.abort_removed",
        "store.abort_written",
        "store.after_confirm",
        "store.before_confirm",
        "store.closing",
        "store.settled",
    }
)

# In the broker's own services, passed only when these have something to do.
SERVICE_FAILPOINTS: Final = frozenset(
    {
        "transactions.asked",
        "transactions.commit_appended",
        "transactions.commit_durable",
        "transactions.copies_appended",
        "transactions.copies_durable",
        "transactions.marks_appended",
    }
)

_actions: dict[str, Callable[[], None]] = {}
# The same table, for a path so hot that it asks whether anything is armed before it calls hit().
active: Final[Mapping[str, Callable[[], None]]] = _actions


def hit(name: str) -> None:
    """Run the action armed for `name`, if any."""
    if _actions:
        action = _actions.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` each time execution passes `name`, until `disarm(name)`."""
    _actions[name] = action


def arm_from_text(text: str) -> tuple[str, ...]:
    """Arm what `text` says (see the top of the module); the names. ValueError, and nothing armed, when it
    names a place or an action that there is not."""
    requested = [_parse(piece.strip()) for piece in text.split(",") if piece.strip()]
    for name, ending, count in requested:
        arm(name, _at_hit(count, ending))
    return tuple(name for name, _, _ in requested)


def _parse(piece: str) -> tuple[str, Callable[[], None], int]:
    name, _, rest = piece.partition("=")
    action, at, number = rest.partition("@")
    known = FAILPOINTS | SERVICE_FAILPOINTS
    if name not in known:
        raise ValueError(f"{piece}: there is no failpoint {name!r}; there are {', '.join(sorted(known))}")
    if action not in _ENDINGS or (at and not (number.isdecimal() and int(number) > 0)):
        raise ValueError(f"{piece}: write {name}=kill@3 or {name}=exit, the number counts passes from 1")
    return name, _ENDINGS[action], int(number or 1)


def _at_hit(count: int, ending: Callable[[], None]) -> Callable[[], None]:
    passes = itertools.count(1)  # next() is atomic: threads may pass at the same time

    def pass_by() -> None:
        if next(passes) == count:
            ending()

    return pass_by


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(1)


_ENDINGS: Final = {"kill": _kill, "exit": _exit}


def disarm(name: str) -> None:
    """Forget the action of `name`; unknown names are fine."""
    _actions.pop(name, None)


@contextmanager
def armed(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Arm `name` for the length of a with-block."""
    arm(name, action)
    try:
        yield
    finally:
        disarm(name)
