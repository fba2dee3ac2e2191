"""Every option that takes a number refuses what makes no sense, before anything is asked or changed."""

from dataclasses import dataclass
from typing import Any, Final, get_args

import pytest
from cyclopts import Argument

from console.support import Command, Runner, commands

# Where 0 means something.
ZERO: Final = {
    ("send", "--queue"),
    ("tail", "--last"),
    ("consume", "--queue"),
    ("group create", "--retries"),
    ("group alter", "--retries"),
    ("store dump", "--queue"),
    ("store dump", "--from"),
    ("pipeline restore", "--born-within-ms"),
}


@dataclass(frozen=True)
class Option:
    """An option that takes a number."""

    command: Command
    name: str
    kind: type

    def __str__(self) -> str:
        return f"{self.command.name} {self.name}"


def _number_of(hint: Any) -> type | None:
    """int or float, where the type is one, an optional one or a tuple of them."""
    if hint in (int, float):
        return hint  # type: ignore[no-any-return]
    kinds = [kind for one in get_args(hint) if (kind := _number_of(one)) is not None]
    return kinds[0] if kinds else None


def _options() -> list[Option]:
    return [
        Option(command, argument.name, kind)
        for command in commands()
        for argument in command.arguments
        if argument.parse and (kind := _number_of(argument.hint)) is not None
    ]


def _filled(command: Command) -> list[str]:
    """The command with something for everything that it asks for."""
    words = list(command.path)
    for argument in command.arguments:
        if argument.parse and argument.required:
            words += ["x"] if _is_positional(argument) else [argument.name, "x"]
    return words


def _is_positional(argument: Argument) -> bool:
    return argument.index is not None


OPTIONS = _options()


def test_the_walk_finds_them() -> None:
    found = {str(option) for option in OPTIONS}
    assert {
        "tail --last",
        "topic create --queues",
        "consume --queue",
        "query --timeout",
        "dev --port",
    } <= found
    assert {str(option) for option in OPTIONS if option.kind is float} >= {"send --timeout"}


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_a_number_that_makes_no_sense_is_refused(option: Option, aerobee: Runner) -> None:
    """`--timeout 0`, `--count -1`, `--last -3` and `--retries -1` were taken in silence, with exit code 0."""
    wrong = ["-1", "9223372036854775808"]
    if option.kind is float:
        wrong += ["0", "nan", "inf", "-0.5"]
    elif (option.command.name, option.name) not in ZERO:
        wrong.append("0")
    for number in wrong:
        refused = aerobee(*_filled(option.command), f"{option.name}={number}")
        assert (refused.code, refused.out) == (2, ""), number
        assert 'Invalid value "' in refused.err
        assert f'" for {option.name}. Must be' in refused.err
        assert refused.err.endswith(f" {option.command.name} --help\n")
