"""Logs: the shape of a line, for programs and for people."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from aerobee_service.logs.event_log import event_logger
from aerobee_service.logs.logs import configure_logging, stray_errors_logged


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_configuration() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_stream_that_is_no_terminal_gets_json_lines_with_the_head_first() -> None:
    out = StringIO()
    configure_logging(stream=out)
    structlog.get_logger().info("nameserver.ready", address="127.0.0.1:9876", path=Path("/x"))
    line = json.loads(out.getvalue())
    assert list(line) == ["timestamp", "level", "event", "address", "path"]
    assert (line["event"], line["level"], line["path"]) == ("nameserver.ready", "info", "/x")
    assert line["timestamp"].endswith("Z")


def test_a_terminal_gets_text() -> None:
    out = Terminal()
    configure_logging(stream=out)
    structlog.get_logger().info("nameserver.ready", address="x")
    assert "nameserver.ready" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_the_choice_can_be_forced() -> None:
    out = Terminal()
    configure_logging(json=True, stream=out)
    structlog.get_logger().info("a.happened")
    assert json.loads(out.getvalue())["event"] == "a.happened"


def test_events_below_the_level_are_dropped() -> None:
    out = StringIO()
    configure_logging("warning", stream=out)
    structlog.get_logger().info("a.happened")
    logging.getLogger("asyncio").info("quiet")
    structlog.get_logger().warning("b.happened")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["b.happened"]


def test_lines_of_the_standard_module_have_the_same_shape() -> None:
    out = StringIO()
    configure_logging(stream=out)
    logging.getLogger("asyncio").warning("took %s s", 3)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["logger"]) == ("took 3 s", "warning", "asyncio")


def test_an_exception_is_one_json_line() -> None:
    out = StringIO()
    configure_logging(stream=out)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("a.failed")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="none of debug, info, warning, error"):
        configure_logging("loud")


def test_errors_that_nobody_can_catch_are_events() -> None:
    """A thread that could not begin for want of memory was a raw line "Exception ignored in thread started by"."""

    class Broken:
        def __del__(self) -> None:
            raise MemoryError("no map")

    def fail() -> None:
        raise MemoryError("no stack")

    before = (sys.unraisablehook, threading.excepthook)
    with capture_logs() as logs, stray_errors_logged():
        Broken()
        thread = threading.Thread(target=fail, name="flusher")
        thread.start()
        thread.join()
    ignored, failed = logs
    assert (ignored["event"], ignored["reason"]) == ("process.error_ignored", "MemoryError: no map")
    assert "__del__" in ignored["where"]
    assert failed == {
        "event": "process.thread_failed",
        "where": "flusher",
        "reason": "MemoryError: no stack",
        "log_level": "error",
    }
    assert (sys.unraisablehook, threading.excepthook) == before


def test_events_of_our_libraries_have_the_shape_of_the_servers_own() -> None:
    """A server's connections to others log with the standard module, as they do in a user's program."""
    out = StringIO()
    configure_logging(stream=out)
    event_logger("aerobee.remoting").warning("remoting.frame_refused", peer="10.0.0.1:5", reason="no frame")
    line = json.loads(out.getvalue())
    assert list(line) == ["timestamp", "level", "event", "peer", "reason"]
    assert (line["event"], line["peer"]) == ("remoting.frame_refused", "10.0.0.1:5")
