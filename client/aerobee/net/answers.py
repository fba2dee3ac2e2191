"""What a client takes of answers, which a peer may have written in any form: numbers of the header, bodies.

Touches  nothing.
"""

from typing import Final, TypeVar

from aerobee.errors import BadAnswer
from aerobee_proto.bodies import JsonBody
from aerobee_proto.errors import FormatError
from aerobee_proto.frames import Command

__all__ = ["body_of", "number_of", "number_or"]

T = TypeVar("T", bound=JsonBody)
CHARS_MAX: Final = 20  # of a number of 64 bits with its sign
LONG_MAX: Final = 2**63 - 1


def number_of(answer: Command, name: str, what: str, addr: str, default: int | None = None) -> int:
    """A header field as a number of 64 bits; `default` when it is not there. BadAnswer: it is no number, or it is not
    there and there is no default. `what` was asked of `addr`."""
    text = answer.ext.get(name)
    if text is None and default is not None:
        return default
    found = _number(text)
    if found is None:
        said = "is missing" if text is None else f"is {text[:CHARS_MAX]!r}, which is no number"
        raise BadAnswer(what, addr, f"the field {name} {said}")
    return found


def number_or(answer: Command, name: str, default: int) -> int:
    """A header field as a number of 64 bits; `default` when it is not there or none: what was asked for is done."""
    found = _number(answer.ext.get(name))
    return default if found is None else found


def body_of(form: type[T], answer: Command, what: str = "") -> T:
    """The body of a successful answer. BadAnswer when it is of another form; it says whatever `what` asked for."""
    try:
        return form.from_bytes(answer.body)
    except FormatError as broken:
        raise BadAnswer(what or f"read a {form.__name__}", "", str(broken)) from broken


def _number(text: str | None) -> int | None:
    if text is None or len(text) > CHARS_MAX:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    found = int(text)
    return found if -LONG_MAX - 1 <= found <= LONG_MAX else None
