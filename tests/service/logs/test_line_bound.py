"""Lines that a peer can make: some are written, all are counted."""

import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest
import structlog

from aerobee_service.logs import logs
from aerobee_service.logs.line_bound import FACT_CHARS_MAX, LINES_A_SECOND_MAX, LineBound


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def out(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(logs, "LineBound", lambda _: LineBound(clock))
    stream = StringIO()
    logs.configure_logging(stream=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_what_a_peer_does_very_often_is_told_some_times_and_counted(out: StringIO, clock: Clock) -> None:
    """One heartbeat of 200 KB with 16,000 groups without a name wrote 16,000 lines."""
    log = structlog.get_logger()
    for number in range(16_000):
        log.warning("broker.group_refused", group=str(number))
    log.info("broker.stats")
    assert [line["event"] for line in lines(out)] == ["broker.group_refused"] * LINES_A_SECOND_MAX + [
        "broker.stats"
    ]
    assert "lines_left_out" not in lines(out)[-1]  # the second is not over, there may be more
    clock.now_s += 1
    log.warning("broker.group_refused", group="again")
    log.info("broker.stats")
    assert lines(out)[-2]["lines_left_out"] == {"broker.group_refused": 16_000 - LINES_A_SECOND_MAX}
    assert "lines_left_out" not in lines(out)[-1]


def test_what_is_left_out_over_several_seconds_is_one_count(out: StringIO, clock: Clock) -> None:
    bound = LineBound(clock)
    for _ in range(3):
        clock.now_s += 1
        for _ in range(LINES_A_SECOND_MAX + 7):
            bound.filter(
                logging.LogRecord("asyncio", 30, "", 0, "socket.send() raised exception.", None, None)
            )
    clock.now_s += 1
    assert bound(None, "info", {"event": "broker.stats"})["lines_left_out"] == {"asyncio": 21}


def test_events_are_counted_each_for_itself_and_damage_is_always_told(out: StringIO, clock: Clock) -> None:
    log = structlog.get_logger()
    for number in range(LINES_A_SECOND_MAX + 50):
        log.error("store.damage_found", physical_offset=number)
        log.info("nameserver.kv_put", key=str(number))
    logged = [line["event"] for line in lines(out)]
    assert logged.count("store.damage_found") == LINES_A_SECOND_MAX + 50
    assert logged.count("nameserver.kv_put") == LINES_A_SECOND_MAX


def test_lines_of_the_logging_module_are_bounded_by_their_logger(out: StringIO, clock: Clock) -> None:
    for number in range(LINES_A_SECOND_MAX + 5):
        logging.getLogger("asyncio").warning("socket.send() raised exception. %d", number)
    logging.getLogger("other").warning("is heard")
    assert [line["logger"] for line in lines(out)] == ["asyncio"] * LINES_A_SECOND_MAX + ["other"]


def test_a_long_text_is_cut_and_its_length_told(out: StringIO, clock: Clock) -> None:
    """A refused registration wrote a line of a megabyte, the name that was too long: a hundred times a second."""
    structlog.get_logger().warning("nameserver.registration_refused", broker_name="x" * 1_000_000, count=3)
    logging.getLogger("asyncio").warning("y" * 1_000_000)
    refused, other = lines(out)
    assert refused["broker_name"] == "x" * FACT_CHARS_MAX + "… (1000000 characters)"
    assert refused["count"] == 3
    assert other["event"] == "y" * FACT_CHARS_MAX + "… (1000000 characters)"
