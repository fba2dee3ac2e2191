"""A thread that goes before the others: while it is told so, where that is allowed, and nothing else happens."""

import os
import sys
import threading
from collections.abc import Callable

import pytest

from aerobee_service.program.thread_priority import NICE_FIRST, ThreadPriority

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have priorities of their own on Linux alone"
)


def in_a_thread(work: Callable[[], None]) -> None:
    """Whatever it does to its thread ends with that."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def nice_of(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


@linux
def test_it_goes_first_while_it_is_told_so_and_the_others_stay() -> None:
    def work() -> None:
        own, main = threading.get_native_id(), nice_of(os.getpid())
        priority = ThreadPriority()
        before = nice_of(own)
        priority.go_first(False)
        assert nice_of(own) == before
        priority.go_first(True)
        first = nice_of(own)
        if first == before:
            pytest.skip("not allowed here")
        assert first == NICE_FIRST
        priority.go_first(True)
        priority.go_first(False)
        assert nice_of(own) == before
        assert nice_of(os.getpid()) == main

    in_a_thread(work)


@linux
def test_where_it_is_not_allowed_it_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(_which: int, _who: int, nice: int) -> None:
        asked.append(nice)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    priority = ThreadPriority()
    for is_first in (False, True, False, True):
        priority.go_first(is_first)
    assert asked == [NICE_FIRST]


def test_nothing_is_asked_for_where_priorities_are_those_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("the whole process went first"))
    ThreadPriority().go_first(True)
