"""What went wrong, for people and for scripts: one line with cause and next step, one exit code per class.

    0    well
    1    a check found damage or a fault; or a failure that is in no other class
    2    wrong arguments, settings or files
    3    a server did not answer
    4    a server understood and refused
    5    what was asked for is not there
    130  interrupted

Touches  nothing. The classes of other rooms are known by name, so that an error of the command line itself does not
         load the client.
"""

import re
import sys
from typing import Final

__all__ = [
    "FAULT",
    "NOT_FOUND",
    "OK",
    "REFUSED",
    "UNREACHABLE",
    "USAGE",
    "Failure",
    "describe",
    "exit_code_of",
]

OK: Final = 0
FAULT: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
NOT_FOUND: Final = 5

# Class name (of an error or one of its bases, nearest first) to exit code.
CODES: Final = {
    "SettingsError": USAGE,
    "InvalidMessage": USAGE,
    "NoQueue": NOT_FOUND,
    "NoRoute": NOT_FOUND,
    "NoBroker": NOT_FOUND,
    "NotFound": NOT_FOUND,
    "AlreadyExists": REFUSED,
    "HidesMessages": REFUSED,
    "NotPermitted": REFUSED,
    "MemberNotFound": NOT_FOUND,
    "NoNameserver": UNREACHABLE,
    "RequestTimeout": UNREACHABLE,
    "BrokerUnreachable": UNREACHABLE,
    "BrokerRefused": REFUSED,
    "HandOverRefused": REFUSED,
    "SendFailed": UNREACHABLE,
    "DamagedRecord": FAULT,
    "OSError": USAGE,
}


# Refusals that mean "there is no such thing", by the protocol's names of their codes.
ABSENT: Final = frozenset({"TOPIC_NOT_EXIST", "SUBSCRIPTION_GROUP_NOT_EXIST", "QUERY_NOT_FOUND"})


class Failure(Exception):
    """A command cannot go on: what is wrong and what to do, and the exit code of its class."""

    def __init__(self, text: str, code: int = FAULT) -> None:
        super().__init__(text)
        self.text = text
        self.code = code

    def __str__(self) -> str:
        return self.text


def exit_code_of(error: BaseException) -> int:
    """The exit code of an error's class; FAULT for one that nobody foresaw."""
    if isinstance(error, Failure):
        return error.code
    if getattr(error, "code_name", "") in ABSENT:
        return NOT_FOUND
    if type(error).__name__ == "NoRoute" and not _was_denied(error):
        return UNREACHABLE
    if missing_extra(_missing_module(error)):
        return USAGE
    known = (CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES)
    return next(known, FAULT)


def _was_denied(error: BaseException) -> bool:
    """Whether a nameserver said that there is no such topic, rather than nothing at all."""
    from aerobee.errors import UNKNOWN_TOPIC

    return any(answer.outcome == UNKNOWN_TOPIC for answer in getattr(error, "answers", ()))


def describe(error: BaseException) -> str:
    """The error as text for people: no class name where the text says it all, no traceback."""
    if isinstance(error, Failure) or any(kind.__name__ == "AerobeeError" for kind in type(error).__mro__):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    if missing := missing_extra(_missing_module(error)):
        return missing
    return f"unexpected {type(error).__name__}: {error}\n  --debug shows where; please report it"


def _missing_module(error: BaseException) -> str:
    """The module whose absence is behind an error; empty when it is none of that kind."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__ if isinstance(cause, ImportError) else None
    return cause.name or "" if cause is not None else ""


def missing_extra(module: str) -> str | None:
    """What to install for a module that belongs to an extra of ours; None for any other module.

    The command works in every environment that has Aerobee, also without a registry that knows it: pip takes what is
    installed, and adds what the extra asks for.
    """
    top = module.partition(".")[0]
    held = {extra: packages for extra, packages in _extras().items() if _holds(packages, top)}
    if not held:
        return None
    smallest = min(held, key=lambda extra: len(held[extra]))
    name = {"spark": "spark,jdk"}.get(smallest, smallest)  # jdk: a Java, where the system has none
    what = "the command line is an extra" if smallest == "cli" else f"{top} is missing, it is of an extra"
    more = "" if smallest == "spark" else " ('aerobee[all]' brings command line and servers)"
    return f"{what} that is not installed: {sys.executable} -m pip install 'aerobee[{name}]'{more}"


def _extras() -> dict[str, set[str]]:
    """The extras of the installed distribution, apart from the one of the others, and their packages."""
    from importlib.metadata import requires

    found: dict[str, set[str]] = {}
    for line in requires("aerobee") or ():
        package, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)", line)
        if package and extra and extra[1] != "all":
            found.setdefault(extra[1], set()).add(package[0].replace("-", "_").lower())
    return found


def _holds(packages: set[str], module: str) -> bool:
    return any(package == module or package.startswith(f"{module}_") for package in packages)
