"""How messages look."""

import json
from typing import Any

import pytest

from aerobee import Message
from aerobee_console.terminal.messages import (
    BODY_SHOWN_CHARS_MAX,
    MessagePrinter,
    host_text,
    message_facts,
    preview,
    time_text,
)
from aerobee_proto.records import decode_record, encode_record

KEYS_IN_JSON = [
    "topic",
    "broker_name",
    "message_id",
    "queue_id",
    "queue_offset",
    "offset_message_id",
    "tags",
    "keys",
    "properties",
    "flag",
    "sys_flag",
    "physical_offset",
    "size",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_size",
    "body",
]


def message(body: bytes = b"hello", **fields: Any) -> Message:
    given: dict[str, Any] = {
        "topic": "t",
        "queue_id": 3,
        "queue_offset": 17,
        "physical_offset": 1000,
        "born_timestamp": 1_700_000_000_000,
        "born_host": ("192.0.2.1", 4000),
        "store_timestamp": 1_700_000_000_123,
        "store_host": ("192.0.2.2", 10911),
        "properties": "TAGS\x01new\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID1\x02own\x01x\x02",
        **fields,
    }
    return Message(decode_record(encode_record(body=body, **given)), "broker-a", 1 << 20)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    printer = MessagePrinter("table")
    printer.write([message(), message(b"two\nlines\x1b[2J", properties="")])
    assert capsys.readouterr().out == (
        "2023-11-14 22:13:20.123  broker-a/3@17  [new]  (k1 k2)  hello\n"
        "2023-11-14 22:13:20.123  broker-a/3@17  two\\nlines\\x1b[2J\n"
    )
    assert printer.count == 2


def test_an_object_a_line_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    MessagePrinter("json").write([message(), message("größe".encode())])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first) == KEYS_IN_JSON
    assert first["keys"] == ["k1", "k2"]
    assert first["properties"]["own"] == "x"
    assert first["message_id"] == "ID1"
    assert second["body"] == "größe"


def test_raw_bodies_are_what_was_sent(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    MessagePrinter("raw").write([message(b"a\xff"), message(b"b")])
    assert capfdbinary.readouterr().out == b"a\xff\nb\n"


def test_a_body_that_is_no_text_is_base64() -> None:
    facts = message_facts(message(b"\xff\x00"))
    assert (facts["body"], facts["body_base64"], facts["body_size"]) == (None, "/wA=", 2)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", ""),
        (b"x" * 600, "x" * BODY_SHOWN_CHARS_MAX + "…"),
        (b"\xff" * 3, "<3 bytes: ff ff ff>"),
        (b"\xff" * 20, f"<20 bytes: {'ff ' * 15}ff …>"),
        (b"text" * 600 + b"\xff", "text" * 125 + "…"),
        (b"x" + "金".encode() * 2000, "x" + "金" * 499 + "…"),
    ],
)
def test_a_body_for_people_is_short_and_safe(body: bytes, shown: str) -> None:
    assert preview(body) == shown


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [(0, "1970-01-01 00:00:00.000"), (None, None), (-1, None), (1 << 62, str(1 << 62))],
)
def test_times_that_no_calendar_has_are_no_error(timestamp_ms: int | None, shown: str | None) -> None:
    assert time_text(timestamp_ms) == shown


def test_an_ipv6_host_is_in_brackets() -> None:
    assert host_text(("fe80::1", 9)) == "[fe80::1]:9"
