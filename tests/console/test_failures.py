"""Exit codes and texts of errors."""

import errno

import pytest

from aerobee import (
    BrokerRefused,
    BrokerUnreachable,
    InvalidMessage,
    NameserverAnswer,
    NoNameserver,
    NoRoute,
    RequestTimeout,
    SendFailed,
)
from aerobee.errors import UNKNOWN_TOPIC
from aerobee_console.failures import CODES, Failure, describe, exit_code_of
from aerobee_remoting.settings import SettingsError, SettingsProblem


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failure("x", 5), 5),
        (Failure("x"), 1),
        (SettingsError([SettingsProblem("a", "b", "c", "d")]), 2),
        (InvalidMessage("x"), 2),
        (FileNotFoundError(errno.ENOENT, "No such file", "f"), 2),
        (NoNameserver("list", ()), 3),
        (RequestTimeout("list", "a:1", 3.0), 3),
        (BrokerUnreachable("list", "a:1", "gone"), 3),
        (SendFailed("t", (), "x"), 3),
        (BrokerRefused("list", "a:1", 13, "no"), 4),
        (BrokerRefused("list", "a:1", 17, "no topic"), 5),
        (NoRoute("t", (NameserverAnswer("a:1", UNKNOWN_TOPIC),)), 5),
        (NoRoute("t", (NameserverAnswer("a:1", "no connection"),)), 3),
        (ZeroDivisionError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_class_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_classes_known_by_name_exist() -> None:
    """They are not imported there, so a new name would go unnoticed."""
    import aerobee

    for name in CODES:
        assert name in ("SettingsError", "OSError") or hasattr(aerobee, name)


def test_errors_are_told_without_their_class() -> None:
    assert describe(Failure("do this")) == "do this"
    assert describe(NoRoute("t", ())) == str(NoRoute("t", ()))
    assert describe(PermissionError(errno.EACCES, "Permission denied", "/x")) == "/x: Permission denied"
    assert describe(OSError("cannot listen")) == "cannot listen"
