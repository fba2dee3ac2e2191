"""The workers' rules: who goes together, who comes first, who is alone."""

import contextlib
import multiprocessing
import os
import threading
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
