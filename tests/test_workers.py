"""The workers' rules: who goes together, who comes first, who is alone."""

import ast
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from turns import TURN_MAX, Turns, turn_of
from workers import ALONE, Machine, Pieces, measures_turns


def test_long_pieces_come_first_and_those_that_are_alone_last() -> None:
    tests = [
        ("a.py::one", "a.py", 0.1),
        ("b.py::one", "b.py", 0.1),
        ("b.py::two", "b.py", 0.1),
        ("c.py::one", "c.py::one", 0.1),
        ("c.py::two", "c.py::two", 0.1),
        ("d.py::one", ALONE, 0.1),
        ("e.py::one", "e.py", 7.0),
    ]
    pieces = Pieces(tests, {"a.py": 3.0, "b.py": 4.0, "c.py": 7.0, "d.py": 99.0})
    found = sorted((nodeid for nodeid, _, _ in tests), key=pieces.rank)
    assert found == [
        "e.py::one",  # nobody knows what it takes: it is guessed
        "b.py::one",
        "b.py::two",
        "c.py::one",
        "c.py::two",
        "a.py::one",
        "d.py::one",
    ]


def test_whoever_is_alone_has_nobody_beside_it(tmp_path: Path) -> None:
    """And comes to its turn although others come and go all the time."""
    inside: list[str] = []
    seen: list[list[str]] = []
    lock = threading.Lock()
    done = threading.Event()

    def user(name: str, *, alone: bool) -> None:
        machine = Machine(tmp_path)
        while not done.is_set():
            with machine.used(alone=alone):
                with lock:
                    inside.append(name)
                    seen.append(list(inside))
                os.sched_yield()
                with lock:
                    inside.remove(name)
                    if len([s for s in seen if s == ["alone"]]) > 50:
                        done.set()
        machine.close()

    users = [threading.Thread(target=user, args=(name,), kwargs={"alone": False}) for name in ("a", "b", "c")]
    users.append(threading.Thread(target=user, args=("alone",), kwargs={"alone": True}))
    for one in users:
        one.start()
    for one in users:
        one.join()
    assert ["alone"] in seen
    assert all(found == ["alone"] for found in seen if "alone" in found)


def _die_with_it(folder: str, mine: "Connection[str, str]") -> None:
    with Machine(Path(folder)).used(alone=True):
        mine.send("it is mine")
        os.kill(os.getpid(), 9)


def test_a_worker_that_dies_does_not_keep_the_machine(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_die_with_it, args=(str(tmp_path), theirs))
    process.start()
    assert mine.recv() == "it is mine"
    with contextlib.closing(Machine(tmp_path)) as machine, machine.used(alone=True):
        process.join()
    assert process.exitcode == -9


def _helper() -> float:
    return turn_of(lambda: None)


class _Sender:
    def __init__(self) -> None:
        self.turns = Turns()


def test_who_measures_turns_is_found_out() -> None:
    """A mark that has to be thought of is forgotten."""

    def plain() -> None:
        assert TURN_MAX

    def by_a_helper() -> None:
        assert [_helper() for _ in range(2)]

    def by_a_class() -> None:
        assert _Sender()

    assert [measures_turns(test) for test in (plain, by_a_helper, by_a_class)] == [False, True, True]
    assert not measures_turns(test_a_worker_that_dies_does_not_keep_the_machine)


CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "start_took_ms"}


def _reads_clock(node: ast.AST, measured: set[str]) -> bool:
    return any(
        (isinstance(part, ast.Attribute) and (part.attr in CLOCKS or ast.unparse(part) == "time.time"))
        or (isinstance(part, ast.Name) and part.id in CLOCKS | measured)
        for part in ast.walk(node)
    )


def _measured(test: ast.AST) -> set[str]:
    """Names of a test that were given what a clock says."""
    found: set[str] = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and _reads_clock(node.value, set()):
            found |= {
                name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
            }
        elif isinstance(node, ast.Call) and any(_reads_clock(given, set()) for given in node.args):
            found |= {
                name.id for name in ast.walk(node.func) if isinstance(name, ast.Name)
            }  # took.append(...)
    return found


def _says_at_most(test: ast.AST, measured: set[str]) -> bool:
    """Whether it asserts that something took no longer than so much; that it took at least as long holds anywhere."""
    for statement in ast.walk(test):
        if isinstance(statement, ast.Assert):
            for node in ast.walk(statement.test):
                if isinstance(node, ast.Compare) and isinstance(node.ops[-1], (ast.Lt, ast.LtE)):
                    sides = [node.left, *node.comparators]
                    if any(_reads_clock(side, measured) for side in sides[:-1]):
                        return True
    return False


def _tests_of(source: str) -> Iterator[tuple[str, bool, bool]]:
    """(name, whether it asserts how long something takes at most, whether it is marked) of each test of a module.

    A test asserts what a function of its module does that it names.
    """
    functions = [
        n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    measuring = {node.name for node in functions if _says_at_most(node, _measured(node))}
    for node in functions:
        if node.name.startswith("test_"):
            is_marked = any("mark.alone" in ast.unparse(mark) for mark in node.decorator_list)
            named = {node.name, *(part.id for part in ast.walk(node) if isinstance(part, ast.Name))}
            yield node.name, not measuring.isdisjoint(named), is_marked


def test_who_asserts_how_long_something_takes_is_marked() -> None:
    found = {
        f"{path.name}::{name}": is_marked
        for path in sorted(Path(__file__).parent.rglob("test_*.py"))
        if any(clock in (source := path.read_text()) for clock in (*CLOCKS, "time.time"))
        for name, is_measured, is_marked in _tests_of(source)
        if is_measured
    }
    assert len(found) >= 5
    assert not [name for name, is_marked in found.items() if not is_marked], "mark it `alone`"


def test_such_a_test_is_known_when_it_is_seen() -> None:
    bound = "began = time.monotonic()\n assert time.monotonic() - began < 1"
    later = "took = time.monotonic() - begun\n assert 0 <= took < 1"
    kept = "took.append(server.start_took_ms)\n assert min(took) < 400"
    least = "assert time.monotonic() - began >= 0.3"
    other = "until = time.monotonic()\n assert len(found) < 9"
    for body, expected in ((bound, True), (later, True), (kept, True), (least, False), (other, False)):
        assert list(_tests_of(f"def test_it():\n {body}")) == [("test_it", expected, False)], body
    helper = f"def fail():\n {bound}\ndef test_it():\n fail()"
    assert list(_tests_of(helper)) == [("test_it", True, False)]
    assert list(_tests_of(f"@pytest.mark.alone\ndef test_it():\n {bound}")) == [("test_it", True, True)]
