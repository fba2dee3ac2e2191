"""How `./dev test` shares the tests out to several processes, and how long each of them takes.

pytest-xdist starts the processes ("workers") and collects what they report. Said here is the rest:

    pieces      what one worker does in one go, so that what tests share is made once: the tests of a module; all tests
                that use the fixture `spark`, for Spark is slow to start; each test of a module marked `spread`, which
                shares nothing; and, last of all, the tests marked `alone`.
    order       the pieces that take longest first, by `tests/durations.json`.
    alone       a test that is measured by the clock, or asks for what another test could take from it, has the machine
                for itself: no other test runs while it does. Tests that measure by `turns` are marked without asking.
    durations   each run of several workers leaves build/test-durations.json: seconds by the clock, and of processors
                (of the worker and of the programs that it has seen end). `./dev durations` shows it.

Touches  a folder of the run, with locks and the table of pieces; build/test-durations.json. In a run without workers
         (`pytest` without -n) nothing of this happens.

Invariants
- Waiting for the machine does not count against the time limit of a test.
- A worker that dies lets its locks go, because they are the kernel's.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

import nursery
import turns

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

__all__ = ["Counts", "Machine", "Pieces", "measures_turns"]

# Of a larger machine: Spark is one piece, and each worker may start programs of a gigabyte.
WORKERS_MAX: Final = 6
ALONE: Final = "alone"
SPARK: Final = "spark"
PIECES_FILE: Final = "pieces.json"
UNKNOWN_S: Final = 0.05  # a test of which nothing is recorded
UNKNOWN_SLOW_S: Final = 5.0  # ... and that is marked `slow` or `java`, or wants Spark
KEPT: Final = Path(__file__).parent / "durations.json"
COST: Final = "processor seconds"
ROOT: Final = Path(__file__).parent.parent
SHOWN: Final = 40  # lines of a table of durations
KEPT_MIN_S: Final = 1.0
LATEST: Final = ROOT / "build" / "test-durations.json"


class Machine:
    """Who may use the machine now: tests beside each other, or one that is alone. Shared by processes."""

    def __init__(self, folder: Path) -> None:
        # Whoever wants to be alone stays in the door until the others have left: nobody enters behind its back.
        self._door = (folder / "door.lock").open("w")
        self._room = (folder / "room.lock").open("w")

    @contextlib.contextmanager
    def used(self, *, alone: bool) -> Iterator[None]:
        """Wait until the machine is free for it, and keep it so."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the files back."""
        self._door.close()
        self._room.close()


# --- pieces --------------------------------------------------------------------------------------------------------


@functools.cache  # of hundreds of cases of one test
def measures_turns(function: Callable[..., object]) -> bool:
    """Whether a test measures by `turns`, itself or by a function or class of its module or of ours."""
    seen: set[int] = set()
    return any(_of_turns(found) for found in _reached(inspect.unwrap(function), seen))


def _of_turns(found: object) -> bool:
    return getattr(found, "__module__", None) == turns.__name__


def _reached(function: object, seen: set[int]) -> Iterator[object]:
    """What a function, a class or a fixture names, and what that names; within the tests."""
    if id(function) in seen:
        return
    seen.add(id(function))
    yield function
    if isinstance(function, type):
        inner: Iterable[object] = [member for member in vars(function).values() if callable(member)]
    elif isinstance(function, FunctionType):
        names = _names(function.__code__)
        inner = [function.__globals__[name] for name in names if name in function.__globals__]
    else:
        return
    for found in inner:
        found = inspect.unwrap(found) if callable(found) else found
        if _of_turns(found):
            yield found
        elif isinstance(found, (type, FunctionType)) and _is_ours(found):
            yield from _reached(found, seen)


def _names(code: CodeType) -> set[str]:
    """Names that a function's code asks for, those in inner functions and comprehensions included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


@functools.cache
def _is_ours(found: type | FunctionType) -> bool:
    try:
        return inspect.getfile(found).startswith(f"{KEPT.parent}{os.sep}")
    except (TypeError, OSError):
        return False


def piece_of(item: pytest.Item) -> str:
    """The piece of work that a test belongs to."""
    if item.get_closest_marker("alone"):
        return ALONE
    if SPARK in getattr(item, "fixturenames", ()):
        return SPARK
    if item.get_closest_marker("spread"):
        return item.nodeid
    return _module(item.nodeid)


def _guess_s(item: pytest.Item) -> float:
    slow = piece_of(item) == SPARK or any(item.get_closest_marker(mark) for mark in ("slow", "java"))
    return UNKNOWN_SLOW_S if slow else UNKNOWN_S


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Pieces:
    """Tests in the order in which they are to be handed out."""

    def __init__(self, tests: Iterable[tuple[str, str, float]], seconds: dict[str, float]) -> None:
        """`tests` has (node id, piece, guessed seconds) of each in order; `seconds` what each known module took."""
        self.of: dict[str, str] = {}
        guessed_s: dict[str, float] = {}
        for nodeid, piece, guess_s in tests:
            self.of[nodeid], guessed_s[nodeid] = piece, guess_s
        counts = Counter(map(_module, self.of))
        cost: Counter[str] = Counter()
        for nodeid, piece in self.of.items():
            module = _module(nodeid)
            cost[piece] += seconds[module] / counts[module] if module in seconds else guessed_s[nodeid]  # type: ignore[assignment]
        self._rank = {
            piece: rank for rank, piece in enumerate(sorted(cost, key=lambda p: (p == ALONE, -cost[p], p)))
        }

    def rank(self, nodeid: str) -> int:
        """When the test's turn comes; those of one piece have the same, and stay in their order."""
        return self._rank[self.of[nodeid]]


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist brings no types
    """Hands out pieces in the order in which the workers have sorted their tests."""

    def __init__(self, config: pytest.Config, log: Producer, folder: Path) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._folder = folder
        self._pieces: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._pieces:
            self._pieces = json.loads((self._folder / PIECES_FILE).read_text())
        return self._pieces[nodeid]


# --- what the runner asks -------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Join in when there are workers: here they are started, or this is one of them."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(Path(config.workerinput["folder"])), "our worker")
    else:
        config.pluginmanager.register(Counts(), "our counts")
        if getattr(config.option, "numprocesses", None):
            config.pluginmanager.register(Conductor(), "our conductor")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: one more than the cores that this process may use, as a good part of the tests waits."""
    return min(_cores() + 1, WORKERS_MAX)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    return cores


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who measures turns is alone."""
    for item in items:
        if isinstance(item, pytest.Function) and measures_turns(item.function):
            item.add_marker("alone")


def _processor_s() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system + nursery.processor_s()


class Worker:
    """One of several processes that run tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machine = Machine(folder)
        self._used_s = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the tests by their pieces; each worker comes to the same order."""
        seconds = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        pieces = Pieces([(item.nodeid, piece_of(item), _guess_s(item)) for item in items], seconds)
        items.sort(key=lambda item: pieces.rank(item.nodeid))
        draft = self._folder / f"{PIECES_FILE}.{os.getpid()}"
        draft.write_text(json.dumps(pieces.of))
        draft.replace(self._folder / PIECES_FILE)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Outside of everything that has a clock: the limits of tests, and the durations."""
        with self._machine.used(alone=item.get_closest_marker("alone") is not None):
            self._used_s = _processor_s()
            return (yield)

    def pytest_unconfigure(self) -> None:
        """Leave the room."""
        self._machine.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """The last report of a test says what it cost."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((COST, round(_processor_s() - self._used_s, 3)))
        return report


class Conductor:
    """The process that hands out the pieces."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="aerobee-tests-"))
        # Test to its seconds; those of set-up and clean-up included. By the clock, and of processors.
        self._took: dict[str, list[float]] = {}

    def pytest_configure_node(self, node: WorkerController) -> None:
        """Tell a new worker where the others meet."""
        node.workerinput["folder"] = str(self._folder)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> LongestFirst:
        """The order of ours."""
        return LongestFirst(config, log, self._folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what a test took."""
        took = self._took.setdefault(report.nodeid, [0.0, 0.0])
        took[0] += report.duration
        took[1] += sum(cost for name, cost in report.user_properties if name == COST)  # type: ignore[misc]

    def pytest_sessionfinish(self) -> None:
        """Leave the durations for the next one who looks where the time goes."""
        shutil.rmtree(self._folder, ignore_errors=True)
        LATEST.parent.mkdir(exist_ok=True)
        took = {nodeid: [round(s, 3) for s in seconds] for nodeid, seconds in sorted(self._took.items())}
        LATEST.write_text(json.dumps(took, indent=0) + "\n")


class Counts:
    """What tests have counted (`record_property("crash states", 1234)`), summed up at the end of a run."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Once a test."""
        if report.when == "call":
            for name, count in report.user_properties:
                if isinstance(count, int):
                    self._sums[name] += count

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each name."""
        for name, count in sorted(self._sums.items()):
            terminalreporter.write_line(f"{name}: {count}")


# --- ./dev durations ------------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    """Show where the time of the last run went; with --keep, write what the next run is ordered by."""
    if words not in ([], ["--keep"]):
        print(f"usage: ./dev durations [--keep]; not {' '.join(words)}", file=sys.stderr)
        return 2
    if not LATEST.exists():
        print(f"{LATEST} is not there: it is made by ./dev test", file=sys.stderr)
        return 1
    tests: dict[str, list[float]] = json.loads(LATEST.read_text())
    modules: dict[str, list[float]] = {}
    for nodeid, (clock_s, processor_s) in tests.items():
        sums = modules.setdefault(_module(nodeid), [0.0, 0.0, 0])
        for place, more in enumerate((clock_s, processor_s, 1)):
            sums[place] += more
    for what, table in (("modules", modules), ("tests", tests)):
        print(f"\n{'seconds':>9} {'processor':>9}  {what}, those of most seconds")
        for name, found in sorted(table.items(), key=lambda row: -row[1][0])[:SHOWN]:
            print(f"{found[0]:9.1f} {found[1]:9.1f}  {name}")
    all_s = [sum(found[place] for found in modules.values()) for place in (0, 1)]
    print(f"{all_s[0]:9.1f} {all_s[1]:9.1f}  all {len(tests)} tests of {len(modules)} modules")
    if words == ["--keep"]:
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        kept |= {module: round(found[0], 1) for module, found in modules.items()}
        there = {
            module: s for module, s in sorted(kept.items()) if s >= KEPT_MIN_S and (ROOT / module).exists()
        }
        KEPT.write_text(json.dumps(there, indent=2) + "\n")
        print(f"{KEPT}: {len(there)} modules of {KEPT_MIN_S:g} s or more")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
