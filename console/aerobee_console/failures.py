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

from typing import Final

__all__ = [
    "FAULT",
    "INTERRUPTED",
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
INTERRUPTED: Final = 130

# Class name (of an error or one of its bases, nearest first) to exit code.
CODES: Final = {
    "SettingsError": USAGE,
    "InvalidMessage": USAGE,
    "NoRoute": NOT_FOUND,
    "NoBroker": NOT_FOUND,
    "NotFound": NOT_FOUND,
    "AlreadyExists": REFUSED,
    "HidesMessages": REFUSED,
    "MemberNotFound": NOT_FOUND,
    "NoNameserver": UNREACHABLE,
    "RequestTimeout": UNREACHABLE,
    "BrokerUnreachable": UNREACHABLE,
    "BrokerRefused": REFUSED,
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
    return f"unexpected {type(error).__name__}: {error}\n  --debug shows where; please report it"
