"""How far the readers of a slave may see: what its master has confirmed, as far as it has said so.

Touches  nothing.

    no link yet                    nothing more than what readers of the last life could see (the store keeps that)
    a master of ours               what it has said, on this link or an earlier one
    a master that says nothing     everything: RocketMQ's, or one of ours that is older

Invariants
- `offset` says how far readers may come to see more; what they have seen they go on seeing, also when it falls.
"""

from collections.abc import Callable

from aerobee_proto.ha import OFFSET_MAX

__all__ = ["ConfirmedByMaster"]


class ConfirmedByMaster:
    """Of one life of a slave. All calls from the event loop."""

    def __init__(self, on_moved: Callable[[], None]) -> None:
        """`on_moved` is called when more may be seen than before."""
        self._on_moved = on_moved
        self._said = 0
        self.offset = 0  # physical; readers see what lies below

    def link_began(self, *, says_confirmed: bool) -> None:
        """A master is followed from now on, one that says what its readers see, or one that does not."""
        self.offset = self._said if says_confirmed else OFFSET_MAX
        if not says_confirmed:
            self._on_moved()

    def said(self, offset: int) -> None:
        """The master's readers see everything below this physical offset."""
        if offset > self._said:
            self._said = self.offset = offset
            self._on_moved()
