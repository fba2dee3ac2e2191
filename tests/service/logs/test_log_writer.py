"""Lines of a log and their reader: one that hangs, one that comes back, one that goes away. Real pipes."""

import atexit
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import structlog

from aerobee_service.logs import logs
from aerobee_service.logs.log_writer import WAITING_SIZE_MAX, LogWriter

PATIENCE_S = 60.0  # of a busy machine; nothing here takes long


def left_out_line(count: int) -> str:
    return f"left out {count}\n"


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    inlet, outlet = os.pipe()
    try:
        yield inlet, outlet
    finally:
        close_once(inlet)
        close_once(outlet)


def close_once(end: int) -> None:
    with suppress(OSError):
        os.close(end)


class Reader:
    """Reads a pipe to its end, in a thread."""

    def __init__(self, inlet: int) -> None:
        self._inlet = inlet
        self.data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while piece := os.read(self._inlet, 1 << 16):
            self.data += piece

    def lines(self) -> list[str]:
        """All of them, once the other end is closed."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.data.decode().splitlines()


def test_nobody_waits_for_a_reader_that_hangs_and_it_is_told_what_was_left_out() -> None:
    """A pipe that nobody read held the event loop for ever, after 64 KiB of lines."""
    with pipe() as (inlet, outlet):
        writer = LogWriter(outlet, left_out_line)
        line = "x" * 1000
        for number in range(3000):
            writer.write(f"{number} {line}\n")
        assert not writer.drain(0.01)
        writer.write("too late\n")
        reader = Reader(inlet)
        assert writer.drain(PATIENCE_S)
        writer.write("it goes on\n")
        assert writer.drain(PATIENCE_S)
        os.close(outlet)
        *lines, last = reader.lines()
    assert last == "it goes on"
    # All are there, in order, or counted at their place: more than once, where the thread was late to begin to wait.
    number = written = 0
    for text in lines:
        if text.startswith("left out "):
            number += int(text.removeprefix("left out "))
        else:
            assert text == (f"{number} {line}" if number < 3000 else "too late")
            number += 1
            written += len(text) + 1
    assert number == 3001
    assert any(text.startswith("left out ") for text in lines)
    assert WAITING_SIZE_MAX * 0.9 < written <= WAITING_SIZE_MAX + (64 << 10)


def test_one_line_that_is_larger_than_the_bound_is_written() -> None:
    with pipe() as (inlet, outlet):
        writer = LogWriter(outlet, left_out_line, waiting_max=100)
        reader = Reader(inlet)
        writer.write("x" * 200_000 + "\n")
        assert writer.drain(PATIENCE_S)
        os.close(outlet)
        assert reader.lines() == ["x" * 200_000]


def test_a_reader_that_has_gone_is_no_error_and_its_lines_are_counted() -> None:
    """The line itself raised BrokenPipeError, in whatever wrote it."""
    with pipe() as (inlet, outlet):
        writer = LogWriter(outlet, left_out_line)
        os.close(inlet)
        for number in range(3):
            writer.write(f"{number}\n")
            assert writer.drain(PATIENCE_S)
        inlet, other = os.pipe()
        try:
            os.dup2(other, outlet)  # somebody reads again
            os.close(other)
            reader = Reader(inlet)
            writer.write("again\n")
            assert writer.drain(PATIENCE_S)
            os.close(outlet)
            assert reader.lines() == ["left out 3", "again"]
        finally:
            os.close(inlet)


@pytest.mark.parametrize("least", [0, 1100])
def test_a_descriptor_that_must_not_wait_is_waited_for(least: int) -> None:
    """Whoever else has the terminal or the pipe may have set that, for all of them.

    `select.select` takes no descriptor above 1,023: the thread ended with an error, and no line came any more.
    """
    with pipe() as (inlet, given), ExitStack() as held:
        outlet = fcntl.fcntl(given, fcntl.F_DUPFD, max(least, given))
        os.close(given)
        held.callback(close_once, outlet)
        os.set_blocking(outlet, False)
        writer = LogWriter(outlet, left_out_line)
        writer.write("x" * 300_000 + "\n")
        reader = Reader(inlet)
        assert writer.drain(PATIENCE_S)
        os.close(outlet)
        assert [len(line) for line in reader.lines()] == [300_000]


@pytest.fixture
def restored_configuration() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored_configuration")
def test_both_kinds_of_loggers_write_by_it_and_the_count_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_writers", [])
    monkeypatch.setattr(atexit, "register", lambda _: None)
    with pipe() as (inlet, outlet):
        with os.fdopen(os.dup(outlet), "w") as stream:
            for _ in range(2):  # as programs do: with their settings, and again when they begin
                logs.configure_logging(stream=stream, by_thread=True, facts={"worker": "a"})
            for number in range(2000):
                structlog.get_logger().info("store.something", number=number, text="x" * 1000)
            assert not logs.finish_logs(0.01)
            reader = Reader(inlet)
            assert logs.finish_logs(PATIENCE_S)
            logging.getLogger("other").warning("heard")
            assert logs.finish_logs(PATIENCE_S)
        os.close(outlet)
        lines = reader.lines()
    assert '"event":"process.log_lines_left_out"' in lines[-2]
    assert f'"worker":"a","count":{2000 - (len(lines) - 2)},' in lines[-2]
    assert '"event":"heard","worker":"a","logger":"other"' in lines[-1]
