"""Scrubbing a running store: one slice after the other, and what becomes of what is found.

Touches  what the scrub touches, and the log of events.

Threads: step() is for the worker that deletes files, see scrub; begin() comes before its first call.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from aerobee_store.checking.scrub import Scrubber, ScrubParts, ScrubStep
from aerobee_store.faults.errors import StoreError, StoreNotWriteable
from aerobee_store.faults.health import StoreHealth
from aerobee_store.log.damage_events import log_damage

__all__ = ["Scrubbing", "TellWrongEntry"]

log: Final = structlog.get_logger()

# topic, queue id, queue offset, reason
TellWrongEntry = Callable[[str, int, int, str], None]
# file, byte in it, what is wrong
_Fault = tuple[Path, int | None, str]


class Scrubbing:
    """The rounds of the scrub over one store."""

    def __init__(
        self,
        health: StoreHealth,
        *,
        timer_faults: Callable[[], Iterable[_Fault]],
        on_damage: Callable[[int], None],
        on_wrong_entry: TellWrongEntry,
    ) -> None:
        """`timer_faults` looks through the timer files, once a round. `on_damage` gets the physical offset behind each
        stretch that was put aside: readers must look with care below it."""
        self._health = health
        self._timer_faults = timer_faults
        self._on_damage = on_damage
        self._on_wrong_entry = on_wrong_entry
        # Made by begin(), used by step() only; None: the store was never open.
        self._scrubber: Scrubber | None = None
        self._parts: ScrubParts | None = None
        # Bytes read since the start.
        self.size = 0
        # Of this round: damaged stretches, entries written again.
        self._damage = self._mended = 0

    def begin(self, parts: ScrubParts) -> None:
        """The store is open: step() may read."""
        self._parts, self._scrubber = parts, Scrubber(parts)

    def step(self) -> ScrubStep:
        """Read on a little in what is stored, and put aside or mend what is not as it was written.

        StoreFull when there is no room for the copy of a damaged stretch: it is not served all the same. OSError is
        final for the store; StorePoisoned when it has failed before.
        """
        self._health.check()
        if self._scrubber is None or self._parts is None:
            raise StoreNotWriteable("it is not open")
        try:
            with self._parts.queues.open_files.borrowing():
                step = self._scrubber.step()
        except OSError as error:
            self._health.fail("scrub", error)
            raise
        self._log_step(step, self._parts)
        return step

    def _log_step(self, step: ScrubStep, parts: ScrubParts) -> None:
        for damage in step.damage:
            # The quick way of reads must not serve it either.
            self._on_damage(damage.end)
            log_damage(damage.path, damage.begin, damage.end, damage.reason)
        for topic, queue_id, offset in step.mended:
            log.warning("store.entry_mended", topic=topic, queue_id=queue_id, logical_offset=offset)
        for topic, queue_id, offset in step.unmended:
            self._on_wrong_entry(topic, queue_id, offset, "it does not lead to its record")
        self.size += step.size
        self._damage += len(step.damage)
        self._mended += len(step.mended)
        if step.is_round_done:
            self._log_timer_faults(parts.config.root)
            log.info(
                "store.scrub_finished",
                end_offset=parts.settled(),
                damage=self._damage,
                mended=self._mended,
            )
            self._damage = self._mended = 0

    def _log_timer_faults(self, root: Path) -> None:
        try:
            for path, position, reason in self._timer_faults():
                log.error("store.timer_file_wrong", path=str(path), position=position, reason=reason)
        except FileNotFoundError:
            pass  # cleaned away meanwhile
        except (OSError, StoreError) as failed:
            log.error("store.timer_file_wrong", path=str(root), position=None, reason=str(failed))  # noqa: TRY400
