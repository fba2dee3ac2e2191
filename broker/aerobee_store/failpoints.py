"""Named places in the store where a test may stop the world.

`hit(name)` costs one dictionary look-up in an empty dictionary unless a test armed that name. An armed
failpoint calls its action, which may raise (a disk fault) or kill the process (a crash).
Names are `module.moment`, e.g. `commit_log.before_sync`; `grep failpoints.hit` lists them all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["arm", "armed", "disarm", "hit"]

_actions: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """Run the action armed for `name`, if any."""
    if _actions:
        action = _actions.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` each time execution passes `name`, until `disarm(name)`."""
    _actions[name] = action


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
