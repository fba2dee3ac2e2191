"""Threads that are there before they are needed."""

import threading

import pytest

from aerobee_broker.process.threads import started_executor


def test_work_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors made their threads when work came, and where memory was short that ended what asked for it."""
    executor = started_executor(3, "worker")

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    together = threading.Barrier(3)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        waits = [executor.submit(together.wait, 30) for _ in range(3)]
        assert sorted(wait.result() for wait in waits) == [0, 1, 2]
    executor.shutdown()
