"""The house rules that a machine can check: which room imports which, and what each room may touch.

The imports are read from the syntax tree, so an import inside a function, under TYPE_CHECKING or in a `try`
counts as much as one at the top.
"""

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import rooms

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Room:
    """One package: where it lies, which other rooms of ours it may import, which modules it may not."""

    folder: str
    imports: frozenset[str] = frozenset()
    closed_to: frozenset[str] = frozenset()


EVENT_LOOP = frozenset({"asyncio", "uvloop", "selectors", "concurrent"})
SOCKETS = frozenset({"socket", "socketserver", "ssl", "http", "urllib"})
IN_MEMORY = {"BytesIO", "StringIO"}  # what of `io` touches no file
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
    "aerobee_service": Room("proto", closed_to=TERMINAL),
    "aerobee_remoting": Room("proto", imports=frozenset({"aerobee_service"}), closed_to=TERMINAL),
    "aerobee_access": Room(
        "proto", imports=frozenset({"aerobee_remoting", "aerobee_service"}), closed_to=TERMINAL
    ),
    "aerobee_store": Room("broker", closed_to=EVENT_LOOP | SOCKETS | CHANCE | TERMINAL | SETTINGS),
    "aerobee_broker": Room(
        "broker",
        imports=frozenset({"aerobee_store", "aerobee_access", "aerobee_remoting", "aerobee_service"}),
    ),
    "aerobee_nameserver": Room(
        "nameserver", imports=frozenset({"aerobee_access", "aerobee_remoting", "aerobee_service"})
    ),
    "aerobee": Room(
        "client",
        imports=frozenset({"aerobee_access", "aerobee_remoting", "aerobee_service"}),
        closed_to=TERMINAL | SETTINGS | {"structlog"},
    ),
    "aerobee_console": Room("console", imports=frozenset({"aerobee", "aerobee_access", "aerobee_service"})),
    "aerobee_pytest": Room(
        "console", imports=frozenset({"aerobee", "aerobee_console"}), closed_to=TERMINAL | SETTINGS
    ),
    "pyspark_aerobee": Room("pipeline", imports=frozenset({"aerobee", "aerobee_store", "aerobee_service"})),
}
BELOW_ALL = "aerobee_proto"
# Single modules that may import more than their room: the command line starts the servers and looks into stores that
# no server has open, and runs jobs on Spark. Everything else in it goes through the client.
DOORS = {
    ("aerobee_store", "io.py"): frozenset({"aerobee_service"}),  # what rights a replaced file has, said once
    ("aerobee_console", "daemons.py"): frozenset({"aerobee_broker", "aerobee_nameserver"}),
    ("aerobee_console", "local_cluster.py"): frozenset({"aerobee_broker", "aerobee_nameserver"}),
    ("aerobee_console", "local_set.py"): frozenset({"aerobee_nameserver"}),
    ("aerobee_pytest", "inside.py"): frozenset(
        {"aerobee_broker"}
    ),  # what the broker's in-process adapter takes
    ("aerobee_console", "store.py"): frozenset({"aerobee_store"}),
    ("aerobee_console", "pipelines.py"): frozenset({"pyspark_aerobee"}),
}


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every module that `source` imports, in any place and by any spelling."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            if node.module != "io" or {alias.name for alias in node.names} - IN_MEMORY:
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
            "aerobee_store", "from aerobee_remoting.ends import server", id="store and remoting are sideways"
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
        ("aerobee_broker", "import asyncio\nimport aerobee_store.store\nimport aerobee_remoting.ends.server"),
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


# --- rooms inside a package: the table is in `rooms.py`


@pytest.mark.parametrize("package", rooms.HOUSE)
def test_rooms_import_what_the_table_says_and_nothing_else(package: str) -> None:
    """A new arrow is written down in `tests/rooms.py`, or it does not come in; one that is gone leaves the table."""
    found = rooms.arrows(package)
    extra = {
        f"{room} -> {target}": places
        for room, targets in found.items()
        for target, places in targets.items()
        if target not in rooms.HOUSE[package].get(room, set())
    }
    assert extra == {}
    assert {room: set(targets) for room, targets in found.items()} == rooms.HOUSE[package]


@pytest.mark.parametrize("package", rooms.HOUSE)
def test_rooms_import_downward_only(package: str) -> None:
    assert rooms.floors(rooms.HOUSE[package]).keys() == rooms.HOUSE[package].keys()


@pytest.mark.parametrize("package", rooms.HOUSE)
def test_every_room_says_in_one_sentence_what_it_is_for(package: str) -> None:
    for room in rooms.HOUSE[package].keys() - {rooms.FACE} - rooms.LOOSE.get(package, frozenset()):
        words = rooms.purpose(package, room)
        assert words.endswith("."), room
        assert "\n\n" not in words, room
        assert len(words) > 20, room


def test_a_circle_of_rooms_is_found() -> None:
    assert rooms.floors({"a": {"b"}, "b": {"a"}, "c": set()}) == {"c": 1}
    assert rooms.floors({"a": {"b"}, "b": {"c"}, "c": set()}) == {"a": 3, "b": 2, "c": 1}


def test_the_house_has_this_many_rooms_floors_and_arrows() -> None:
    """Figures of `docs/architecture.md`; whoever changes them looks at the drawing, too."""
    counted = {
        package: (len(arrows), max(rooms.floors(arrows).values()), sum(map(len, arrows.values())))
        for package, arrows in rooms.HOUSE.items()
    }
    assert counted == rooms.COUNTS


def test_the_wire_stays_where_it_is_known() -> None:
    """Of connections and requests only the adapter knows, and who dials out. What a caller must be allowed says nothing
    of how a request travels."""
    known = {
        name
        for name, path in rooms.modules("aerobee_broker").items()
        if rooms.room_of(name, path) not in rooms.WIRE_ROOMS
        for _, module in imported_modules(path.read_text(encoding="utf-8"))
        if module.startswith(("aerobee_remoting.exchange", "aerobee_remoting.ends"))
        and not module.startswith(("aerobee_remoting.exchange.gate", "aerobee_remoting.exchange.needs"))
    }
    assert not known


# --- sizes: bounds that a change may lower, and exceptions that say why

ANY_MAX = {
    "aerobee_proto": 67,  # JSON of others is read and written here
    "aerobee_service": 27,  # structlog's processors are made of it
    "aerobee_remoting": 0,
    "aerobee_access": 8,  # settings, and JSON of files
    "aerobee_store": 14,
    "aerobee_broker": 25,
    "aerobee_nameserver": 0,
    "aerobee": 32,
    "aerobee_console": 4,
    "aerobee_pytest": 7,
    "pyspark_aerobee": 85,  # pyspark and fsspec are untyped
}
PARAMETERS_MAX = 8
LAYOUT = "a layout: one for each field"
OPTIONS = "a command: its options, as its users type them"
CALL = "what users call: each by its name, most of them never"
MANY_PARAMETERS = {
    ("aerobee_proto", "Command.__init__"): LAYOUT,
    ("aerobee_proto", "encode_record"): LAYOUT,
    ("aerobee", "Admin.create_topic"): CALL,
    ("aerobee", "Producer.send"): CALL,
    ("aerobee", "Producer.send_nowait"): CALL,
    ("aerobee", "Producer.transaction"): CALL,
    ("aerobee", "Producer.request"): CALL,
    ("aerobee_console", "create"): OPTIONS,
    ("aerobee_console", "archive"): OPTIONS,
    ("aerobee_console", "restore"): OPTIONS,
    ("aerobee_console", "dump"): OPTIONS,
    ("aerobee_console", "query"): OPTIONS,
    ("aerobee_console", "consume"): OPTIONS,
    ("aerobee_console", "send"): OPTIONS,
    ("pyspark_aerobee", "archive"): CALL,
    ("pyspark_aerobee", "restore"): CALL,
}
# What tests may reach behind a leading underscore, in parts of ours and of others. A test that must look inside asks
# a part for a view or a figure, or a helper that is the one place that knows (tests/store/inside.py).
PRIVATE_MAX = 20
PUBLIC_ALL_THE_SAME = frozenset(
    {"_replace", "_asdict", "_fields", "_make", "_exit"}
)  # of named tuples, and of os

METHODS_MAX = 25
# A class that has more says why in its docstring, in a sentence with these words.
REASON = "public methods"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def trees(package: str) -> Iterator[ast.Module]:
    for path in sorted((ROOT / ROOMS[package].folder / package).rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def any_count(tree: ast.AST) -> int:
    """How often `Any` is written as a type, by whatever name typing was imported."""
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function with the names of the classes and functions that it is in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        if isinstance(node, Function | ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def parameter_count(function: Function) -> int:
    """Without `self`."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def large_classes(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            public = {
                one.name for one in node.body if isinstance(one, Function) and not one.name.startswith("_")
            }
            if len(public) > METHODS_MAX:
                yield node, len(public)


@pytest.mark.parametrize("package", ROOMS)
def test_any_is_written_no_more_often_than_it_must(package: str) -> None:
    assert sum(map(any_count, trees(package))) <= ANY_MAX[package]


def test_functions_name_at_most_eight_things_that_they_need() -> None:
    """More of them are fields of one value, or two functions; exceptions stand above with their reason."""
    many = {
        (package, name)
        for package in ROOMS
        for tree in trees(package)
        for name, function in functions(tree)
        if parameter_count(function) > PARAMETERS_MAX
    }
    assert many == MANY_PARAMETERS.keys()


@pytest.mark.parametrize("package", ROOMS)
def test_a_large_class_says_why_it_is_one(package: str) -> None:
    silent = {
        (node.name, count)
        for tree in trees(package)
        for node, count in large_classes(tree)
        if REASON not in (ast.get_docstring(node) or "")
    }
    assert silent == set()


ARGUMENTS_IN_ORDER = ("group", "topic", "queue_id")
# Console commands name their options in the order in which people think of them.
ORDERED = sorted(ROOMS.keys() - {"aerobee_console", "aerobee_pytest"})


def out_of_order(tree: ast.AST) -> list[str]:
    """Functions that name group, topic and queue id in another order."""
    found = []
    for name, function in functions(tree):
        given = function.args
        names = [
            one.arg.removesuffix("_name") for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)
        ]
        places = [ARGUMENTS_IN_ORDER.index(one) for one in names if one in ARGUMENTS_IN_ORDER]
        if places != sorted(places):
            found.append(name)
    return found


@pytest.mark.parametrize("package", ORDERED)
def test_group_topic_and_queue_id_come_in_this_order_everywhere(package: str) -> None:
    assert [name for tree in trees(package) for name in out_of_order(tree)] == []


def late_slots(tree: ast.AST) -> list[str]:
    """Listeners that are put into an object after it was made: `part.on_change = self.changed`."""
    return [
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
        and target.attr.startswith("on_")
        and ast.unparse(target.value) not in {"self", "cls"}
    ]


@pytest.mark.parametrize("package", ROOMS)
def test_listeners_are_arguments(package: str) -> None:
    """Whoever is called back is known when a part is made; the assembly has an order in which that works."""
    assert [slot for tree in trees(package) for slot in late_slots(tree)] == []


def test_late_slots_and_other_orders_are_found() -> None:
    source = """
class A:
    def f(self, topic, *, group_name): self.on_x = 1
    def g(self, group, topic): self.b.on_x = self.f
"""
    assert out_of_order(ast.parse(source)) == ["A.f"]
    assert late_slots(ast.parse(source)) == ["self.b.on_x"]


def test_what_is_too_large_is_found() -> None:
    source = """
class Large:
    def __init__(self, a, b, c, d, /, e, f, *, g, h, i): ...
    async def go(self, a, b, c, d, e, f, g, h): ...
""" + "".join(f"    def method_{number}(self): ...\n" for number in range(METHODS_MAX))
    tree = ast.parse(source)
    assert [(name, parameter_count(one)) for name, one in functions(tree)][:2] == [
        ("Large.__init__", 9),
        ("Large.go", 8),
    ]
    assert [(node.name, count) for node, count in large_classes(tree)] == [("Large", METHODS_MAX + 1)]
    assert any_count(ast.parse("a: Any\nb: typing.Any\ncompany = many")) == 2


def private_reaches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each `other._name`, where the module has not made the name itself."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, Definition)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            own.add(node.attr)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or _is_self(node.value):
            continue
        is_private = node.attr.startswith("_") and not node.attr.startswith("__")
        if is_private and node.attr not in own | PUBLIC_ALL_THE_SAME:
            yield node.lineno, ast.unparse(node)


def _is_self(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


def test_tests_reach_into_private_parts_no_more_often_than_they_must() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, text in private_reaches(ast.parse(path.read_text()))
    ]
    assert len(found) <= PRIVATE_MAX, "\n" + "\n".join(found)


def test_a_reach_into_a_private_part_is_found() -> None:
    source = """
class Mine:
    def __init__(self): self._open = 1
    def same(self, other): return other._open == self._open and self._inherited
store._log.read(); point._replace(x=1); patch(os._exit); Mine()._open
"""
    assert list(private_reaches(ast.parse(source))) == [(5, "store._log")]


# --- words: one for each idea, the field's; these were ours

OLD_WORDS = frozenset({"parked", "parking", "doomed", "dice", "keeper", "wanted", "told", "logical"})
# Keys of log events are an interface.
LOG_KEYS = frozenset({"logical_offset", "wanted_bytes"})


def names_in(path: Path) -> Iterator[str]:
    """What stands as a name in a file, be it of a variable, an argument, an attribute or a definition."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NAME:
                yield token.string


def old_words(name: str) -> frozenset[str]:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return OLD_WORDS & set(apart.lower().split("_"))


@pytest.mark.parametrize("package", ROOMS)
def test_names_are_the_field_s_words(package: str) -> None:
    """Scheduled, not parked; expired or deleted, not doomed; a cleaner, not a keeper; expected, not wanted; notified
    or logged, not told; queue_offset, not logical_offset."""
    found = {
        (path.name, name)
        for path in sorted((ROOT / ROOMS[package].folder / package).rglob("*.py"))
        for name in names_in(path)
        if old_words(name) and name not in LOG_KEYS
    }
    assert found == set()


def test_old_words_are_found_in_names() -> None:
    assert old_words("parked_messages") == old_words("ParkedMessages") == {"parked"}
    assert not old_words("unwanted_dicework")
