"""What is said of damage in the log, by whoever meets it: readers, recovery, the scrub.

Touches  the log of events. The name of the event and its keys are for operators, and one place writes them.
"""

from typing import Final

import structlog

from aerobee_store.log.commit_log import CommitLog

__all__ = ["log_damage", "log_new_damage"]

log: Final = structlog.get_logger()


def log_damage(path: str, begin: int, end: int, reason: str) -> None:
    """Name a stretch of the log, physical offsets [begin, end), that is not as it was written."""
    log.error("store.damage_found", path=path, physical_offset=begin, end_offset=end, reason=reason)


def log_new_damage(commit_log: CommitLog, known: tuple[tuple[int, int], ...]) -> None:
    """Name the records that a reader asked for and did not get: those that were not `known` before."""
    for begin, end in commit_log.damaged[len(known) :]:
        log_damage(str(commit_log.folder), begin, end, commit_log.damage_reasons.get(begin, ""))
