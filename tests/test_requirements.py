"""The lock files say what pyproject.toml asks for, and nothing of the machine that wrote them."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("run.txt", "build.txt", "test.txt")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


def lock_text(name: str) -> str:
    return (ROOT / "requirements" / name).read_text(encoding="utf-8")


def pins(name: str) -> dict[str, set[str]]:
    """Package to its locked versions: several when they depend on the Python version."""
    found: dict[str, set[str]] = {}
    for line in lock_text(name).splitlines():
        if pin := PIN.match(line):
            found.setdefault(canonicalize_name(pin[1]), set()).add(pin[2])
    return found


def expected(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [
        *project["dependencies"],
        *(text for name in extras for text in project["optional-dependencies"][name]),
    ]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("run.txt", ("broker", "cli", "compression", "election")),
        ("test.txt", ("broker", "cli", "compression", "election", "test")),
    ],
)
def test_every_dependency_is_locked_to_a_version_that_is_allowed(lock: str, extras: tuple[str, ...]) -> None:
    locked = pins(lock)
    for requirement in expected(*extras):
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"{lock} lacks {requirement}: run ./dev lock"
        for version in versions:
            assert requirement.specifier.contains(version), (
                f"{lock} has {version}, not {requirement}: run ./dev lock"
            )


def test_the_test_lock_holds_the_versions_that_run() -> None:
    assert pins("run.txt").items() <= pins("test.txt").items()


def test_the_build_tool_is_the_one_of_the_build_system() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [line for line in lock_text("build.in").splitlines() if line and not line.startswith("#")]
    assert named[0:1] == project["build-system"]["requires"]
    assert [Requirement(line).name for line in named[1:]] == [
        "maturin",
        "setuptools",
    ]  # build native/ and pyspark
    assert {canonicalize_name(Requirement(line).name) for line in named} <= pins("build.txt").keys()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_carries_hashes_and_no_address(lock: str) -> None:
    text = lock_text(lock)
    entries = [entry for entry in re.split(r"\n(?=[A-Za-z0-9])", text) if PIN.match(entry)]
    assert entries
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.search(r"://|--(?:extra-)?index|--trusted|--find-links", text) is None
