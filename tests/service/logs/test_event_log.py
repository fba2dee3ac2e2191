"""Events of libraries: records of the standard module, with the event and its facts where formatters find them."""

import ast
import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog

from aerobee_service.logs.event_log import RESERVED, event_logger

ROOT = Path(__file__).resolve().parent.parent.parent.parent
log = event_logger("aerobee.test_event_log")


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Records from the level INFO on, as a program may have asked for them."""
    found: list[logging.LogRecord] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler = Recorder()
    logger = logging.getLogger("aerobee.test_event_log")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_the_line_and_the_attributes_tell_the_same(records: list[logging.LogRecord]) -> None:
    log.warning("client.held_up", addr="b:1", reason="it's away", count=17, nothing="")
    (record,) = records
    assert record.getMessage() == """client.held_up addr=b:1 reason="it's away" count=17 nothing=''"""
    assert (record.name, record.levelname) == ("aerobee.test_event_log", "WARNING")
    facts = vars(record)
    assert (facts["event"], facts["addr"], facts["count"]) == ("client.held_up", "b:1", 17)
    assert Path(record.pathname) == Path(__file__)


def test_levels_are_the_programs_own(records: list[logging.LogRecord]) -> None:
    log.debug("client.a")
    log.info("client.b")
    logging.getLogger("aerobee.test_event_log").setLevel(logging.ERROR)
    log.warning("client.c")
    log.error("client.d")
    assert [record.getMessage() for record in records] == ["client.b", "client.d"]


def test_a_fact_never_takes_the_place_of_what_a_record_has(records: list[logging.LogRecord]) -> None:
    log.info("client.a", name="n", message="m", args=1, event_="e")
    (record,) = records
    assert record.name == "aerobee.test_event_log"
    assert {key: vars(record)[key] for key in ("name_", "message_", "args_")} == {
        "name_": "n",
        "message_": "m",
        "args_": 1,
    }


def test_no_event_of_ours_has_such_a_fact() -> None:
    folders = (
        ROOT / "client" / "aerobee",
        ROOT / "proto" / "aerobee_remoting",
        ROOT / "proto" / "aerobee_service",
    )
    logged = {
        keyword.arg
        for folder in folders
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log.", "self._log."))
        for keyword in node.keywords
        if keyword.arg != "exc_info" or not ast.unparse(node.func).endswith(".exception")  # there a parameter
    }
    assert "reason" in logged
    assert not logged & RESERVED


def test_percent_signs_are_text(records: list[logging.LogRecord]) -> None:
    log.info("client.a", reason="100 %s %d")
    assert records[0].getMessage() == "client.a reason='100 %s %d'"


def test_an_exception_comes_with_its_traceback(records: list[logging.LogRecord]) -> None:
    try:
        int("x")
    except ValueError:
        log.exception("client.handler_failed", group="g")
    (record,) = records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


def test_structlog_makes_the_event_and_its_facts_of_it(records: list[logging.LogRecord]) -> None:
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), structlog.processors.add_log_level],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    log.info("client.a", queue_id=3)
    handler.handle(records[0])
    line = json.loads(out.getvalue())
    line.pop("message", None)  # pytest's own handler has formatted the record before
    assert line == {"event": "client.a", "queue_id": 3, "level": "info"}
