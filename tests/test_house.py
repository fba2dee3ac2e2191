"""The house rules that a machine can check: which room imports which, and what each room may touch.

The imports are read from the syntax tree, so an import inside a function, under TYPE_CHECKING or in a `try`
counts as much as one at the top.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Room:
    """One package: where it lies, which other rooms of ours it may import, which modules it may not."""

    folder: str
    imports: frozenset[str] = frozenset()
    closed_to: frozenset[str] = frozenset()


EVENT_LOOP = frozenset({"asyncio", "uvloop", "selectors", "concurrent"})
SOCKETS = frozenset({"socket", "socketserver", "ssl", "http", "urllib"})
FILES = frozenset({"os", "pathlib", "mmap", "io", "shutil", "tempfile", "fcntl"})
LOGS = frozenset({"logging", "structlog"})
# Time and randomness come in as arguments, so that a test can replay a run.
CHANCE = frozenset({"time", "random", "secrets", "uuid"})
TERMINAL = frozenset({"rich", "cyclopts"})
SETTINGS = frozenset({"pydantic", "pydantic_settings"})

# Proto is open to all and is added below.
ROOMS = {
    "aerobee_proto": Room(
        "proto", closed_to=EVENT_LOOP | SOCKETS | FILES | LOGS | CHANCE | TERMINAL | SETTINGS
    ),
    "aerobee_remoting": Room("proto", closed_to=TERMINAL),
    "aerobee_store": Room("broker", closed_to=EVENT_LOOP | SOCKETS | CHANCE | TERMINAL | SETTINGS),
    "aerobee_broker": Room("broker", imports=frozenset({"aerobee_store", "aerobee_remoting"})),
    "aerobee_nameserver": Room("nameserver", imports=frozenset({"aerobee_remoting"})),
    "aerobee": Room(
        "client", imports=frozenset({"aerobee_remoting"}), closed_to=TERMINAL | SETTINGS | {"structlog"}
    ),
    "aerobee_console": Room("console", imports=frozenset({"aerobee"})),
    "aerobee_pytest": Room(
        "console", imports=frozenset({"aerobee", "aerobee_console"}), closed_to=TERMINAL | SETTINGS
    ),
    "pyspark_aerobee": Room("pipeline", imports=frozenset({"aerobee", "aerobee_store"})),
}
BELOW_ALL = "aerobee_proto"
# Single modules that may import more than their room: the command line starts the servers and looks into stores that
# no server has open, and runs jobs on Spark. Everything else in it goes through the client.
DOORS = {
    ("aerobee_console", "daemons.py"): frozenset(
        {"aerobee_broker", "aerobee_nameserver", "aerobee_remoting"}
    ),
    ("aerobee_console", "local_cluster.py"): frozenset({"aerobee_broker", "aerobee_nameserver"}),
    ("aerobee_console", "interrupts.py"): frozenset({"aerobee_remoting"}),
    ("aerobee_console", "ports.py"): frozenset({"aerobee_remoting"}),
    ("aerobee_console", "store.py"): frozenset({"aerobee_store"}),
    ("aerobee_console", "pipelines.py"): frozenset({"pyspark_aerobee"}),
}


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every module that `source` imports, in any place and by any spelling."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.lineno, node.module
        elif isinstance(node, ast.Call) and _is_import_call(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def _is_import_call(function: ast.expr) -> bool:
    spelling = ast.unparse(function)
    return spelling in {"__import__", "import_module", "importlib.import_module"}


def complaints(package: str, source: str, module_name: str = "") -> list[str]:
    """What `source`, a module of `package`, imports against the rules; one line for each offence."""
    room = ROOMS[package]
    allowed = room.imports | {package, BELOW_ALL} | DOORS.get((package, module_name), frozenset())
    found = []
    for line, module in imported_modules(source):
        top = module.partition(".")[0]
        if top in ROOMS and top not in allowed:
            found.append(f"line {line}: {package} may not import {top}")
        if top in room.closed_to:
            found.append(f"line {line}: {package} may not touch {top}")
    return found


def modules() -> list[tuple[str, Path]]:
    return [
        (package, path)
        for package, room in ROOMS.items()
        for path in sorted((ROOT / room.folder / package).rglob("*.py"))
    ]


@pytest.mark.parametrize(
    ("package", "path"), modules(), ids=lambda value: value.name if isinstance(value, Path) else value
)
def test_imports_point_down(package: str, path: Path) -> None:
    found = complaints(package, path.read_text(encoding="utf-8"), path.name)
    assert not found, f"{path.relative_to(ROOT)}:\n  " + "\n  ".join(found)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        pytest.param("aerobee_proto", "import asyncio", id="proto knows no event loop"),
        pytest.param("aerobee_proto", "import structlog", id="proto does not log"),
        pytest.param("aerobee_proto", "from os import path", id="proto touches no files"),
        pytest.param("aerobee_proto", "import aerobee_remoting.frames", id="proto imports nobody"),
        pytest.param("aerobee_store", "from socket import AF_INET", id="store knows no sockets"),
        pytest.param("aerobee_store", "import asyncio.events", id="store knows no event loop"),
        pytest.param(
            "aerobee_store", "from aerobee_remoting import server", id="store and remoting are sideways"
        ),
        pytest.param(
            "aerobee_remoting", "from aerobee_store import store", id="remoting and store are sideways"
        ),
        pytest.param("aerobee", "import aerobee_broker", id="client and broker are sideways"),
        pytest.param("aerobee_nameserver", "import aerobee_broker", id="nameserver and broker are sideways"),
        pytest.param("aerobee_console", "import aerobee_broker.main", id="console asks through the client"),
        pytest.param("aerobee_store", "def f():\n    import asyncio", id="inside a function"),
        pytest.param(
            "aerobee_store",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from aerobee_broker import main",
            id="for the type checker only",
        ),
        pytest.param(
            "aerobee_store",
            "import importlib\nimportlib.import_module('aerobee_broker')",
            id="by a call with a name",
        ),
    ],
)
def test_a_wrong_import_is_found(package: str, source: str) -> None:
    assert len(complaints(package, source)) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("aerobee_proto", "import struct, zlib\nfrom aerobee_proto.errors import FormatError"),
        (
            "aerobee_store",
            "import os, mmap\nfrom aerobee_proto.records import decode_record\nfrom . import io",
        ),
        ("aerobee_broker", "import asyncio\nimport aerobee_store.store\nimport aerobee_remoting.server"),
        ("aerobee_console", "from aerobee import Client\nimport rich"),
    ],
)
def test_a_right_import_is_left_alone(package: str, source: str) -> None:
    assert complaints(package, source) == []


def test_every_package_of_the_distribution_is_a_room() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for path in packages:
        folder, package = path.split("/")
        assert ROOMS[package].folder == folder
        assert (ROOT / path / "py.typed").exists()


def test_every_package_in_a_source_root_is_a_room() -> None:
    """A new package joins ROOMS, or nobody watches its imports."""
    for folder in {room.folder for room in ROOMS.values()}:
        for init in (ROOT / folder).glob("*/__init__.py"):
            assert init.parent.name in ROOMS


def test_the_client_loads_nothing_that_only_the_broker_needs() -> None:
    """`import aerobee` is paid for by every user's program: neither numpy nor settings nor terminal in it."""
    script = "import sys, aerobee; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    loaded = set(answer.stdout.split())
    assert "aerobee" in loaded
    unwanted = {
        "numpy",
        "prometheus_client",
        "cyclopts",
        "aerobee_store",
        "aerobee_broker",
        "aerobee_console",
    }
    # rich is not in the list: structlog loads it by itself where it is installed.
    assert loaded & (unwanted | SETTINGS) == set()


def test_servers_read_what_strangers_send_with_the_bounds_for_it() -> None:
    """The tolerant JSON reader takes 1.4 us a byte: servers read bodies through `from_stranger`, or in a thread.

    4 MiB with single quotes held the event loop of a broker for 4 s.
    """
    readers = {
        f"{path.name}: {line.strip()}"
        for folder in ("broker/aerobee_broker", "nameserver/aerobee_nameserver")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if (".from_bytes" in line and "int.from_bytes" not in line) or "javajson.loads(" in line
    }
    assert {reader for reader in readers if "asyncio.to_thread(" not in reader} == set()
