"""What a check finds: the values that the checks of `aerobee doctor` fill in.

Touches  nothing.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Checkup"]


@dataclass(slots=True, frozen=True)
class Check:
    """One thing looked at: `fault` needs mending, `note` is worth knowing; `fix` says what to do."""

    name: str
    status: Literal["ok", "note", "fault"]
    text: str
    fix: str = ""


class Checkup:
    """Everything looked at so far, in order."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    @property
    def faults(self) -> list[Check]:
        return [check for check in self.checks if check.status == "fault"]

    def ok(self, name: str, text: str) -> None:
        self.checks.append(Check(name, "ok", text))

    def note(self, name: str, text: str, fix: str = "") -> None:
        self.checks.append(Check(name, "note", text, fix))

    def fault(self, name: str, text: str, fix: str) -> None:
        self.checks.append(Check(name, "fault", text, fix))
