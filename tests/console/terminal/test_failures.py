"""Exit codes and texts of errors."""

import errno
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from aerobee import (
    BrokerRefused,
    BrokerUnreachable,
    InvalidMessage,
    NameserverAnswer,
    NoNameserver,
    NoRoute,
    NotPermitted,
    RequestTimeout,
    SendFailed,
)
from aerobee.errors import UNKNOWN_TOPIC
from aerobee_console.terminal.failures import CODES, Failure, describe, exit_code_of, missing_extra
from aerobee_service.settings.settings import SettingsError, SettingsProblem


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
        (NotPermitted("t", "queue that may be written", (), "w"), 4),
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
    from aerobee.admin import hand_over

    for name in CODES:
        assert name in ("SettingsError", "OSError") or hasattr(aerobee, name) or hasattr(hand_over, name)


def test_errors_are_told_without_their_class() -> None:
    assert describe(Failure("do this")) == "do this"
    assert describe(NoRoute("t", ())) == str(NoRoute("t", ()))
    assert describe(PermissionError(errno.EACCES, "Permission denied", "/x")) == "/x: Permission denied"
    assert describe(OSError("cannot listen")) == "cannot listen"


EXTRAS = sorted(
    {
        (re.split(r"[^\w.-]", line)[0].replace("-", "_").lower(), line.split("extra == ")[1].strip("'\""))
        for line in requires("aerobee") or ()
        if "extra == " in line
    }
)


@pytest.mark.parametrize(("package", "extra"), [pair for pair in EXTRAS if pair[1] not in ("all", "test")])
def test_every_package_of_an_extra_is_known_by_its_module(package: str, extra: str) -> None:
    module = {"opentelemetry_api": "opentelemetry"}.get(package, package)
    logged = missing_extra(f"{module}.inner")
    assert logged is not None
    assert f"{sys.executable} -m pip install 'aerobee[" in logged
    offered = logged.partition("aerobee[")[2].partition("]")[0].split(",")
    assert any((package, one) in EXTRAS for one in offered)


def test_a_module_that_is_nobodys_extra_is_a_fault_to_report() -> None:
    assert missing_extra("nowhere") is None
    assert missing_extra("") is None
    assert "please report it" in describe(ModuleNotFoundError("No module named 'nowhere'", name="nowhere"))


def test_the_cause_of_an_import_that_failed_is_told() -> None:
    failed = ImportError("Cannot import module 'store_commands'")
    failed.__cause__ = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    assert describe(failed).startswith("numpy is missing")
    assert exit_code_of(failed) == 2


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv[1:] = {words!r}
from aerobee_console.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("absent", "words", "extra"),
    [
        (["cyclopts", "rich"], [], "cli"),
        (["cyclopts", "rich"], ["send", "t", "b"], "cli"),
        (["numpy", "javaproperties", "pydantic", "prometheus_client"], ["dev"], "broker"),
        (["numpy", "javaproperties", "pydantic", "prometheus_client"], ["broker"], "broker"),
        (["numpy", "javaproperties", "pydantic"], ["nameserver"], "broker"),
        (["numpy"], ["store", "verify", "/"], "broker"),
        (["pyspark"], ["pipeline", "audit", "--path", "/"], "spark,jdk"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_command_without_its_packages_says_in_one_line_what_to_install(
    absent: list[str], words: list[str], extra: str, tmp_path: Path
) -> None:
    """`pip install .` and then `aerobee` was a traceback about cyclopts."""
    script = WITHOUT.format(absent=absent, words=words)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"-m pip install 'aerobee[{extra}]'" in line
