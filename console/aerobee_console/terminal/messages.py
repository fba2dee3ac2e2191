"""Received messages on the terminal and for programs.

Touches  standard output, when `MessagePrinter` is told to.

    table  a line a message: store time, place, tags, keys, body; what is not printable is escaped
    json   a line a message: one JSON object (see `record_facts`)
    raw    the bodies alone, each with a line end: what `aerobee send --file -` takes
"""

import base64
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from aerobee_console.terminal.tables import ABSENT, Absent, as_json, json_line, printable

if TYPE_CHECKING:
    from aerobee import Message
    from aerobee_proto.records import StoredRecord

__all__ = [
    "MessagePrinter",
    "RecordFacts",
    "StreamFormat",
    "message_facts",
    "preview",
    "record_facts",
    "time_text",
]

StreamFormat = Literal["table", "json", "raw"]
BODY_SHOWN_CHARS_MAX: Final = 500


@dataclass(slots=True, frozen=True)
class RecordFacts:
    """Everything about a record. `body` is its text; None where it is not UTF-8, and `body_base64` has it."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    flag: int
    sys_flag: int
    physical_offset: int
    size: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_size: int
    body: str | None
    body_base64: str | Absent


def message_facts(message: "Message") -> dict[str, object]:
    """Everything about a message, as JSON has it; the body is as it was sent."""
    names = {"topic": message.topic, "broker_name": message.broker_name, "message_id": message.message_id}
    return names | as_json(record_facts(message.record, message.body)) | names


def record_facts(record: "StoredRecord", body: bytes) -> RecordFacts:
    """Everything about a record, with `body` in place of its own, which may be compressed."""
    text, coded = _body_texts(body)
    return RecordFacts(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        message_id=record.unique_key or record.offset_message_id,
        offset_message_id=record.offset_message_id,
        tags=record.tags,
        keys=list(record.keys),
        properties=dict(record.property_map),
        flag=record.flag,
        sys_flag=record.sys_flag,
        physical_offset=record.physical_offset,
        size=record.size,
        born_timestamp=record.born_timestamp,
        born_host=host_text(record.born_host),
        store_timestamp=record.store_timestamp,
        store_host=host_text(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_size=len(body),
        body=text,
        body_base64=coded,
    )


def _body_texts(body: bytes) -> tuple[str | None, str | Absent]:
    """A body as text; what is not UTF-8 in base64."""
    try:
        return body.decode(), ABSENT
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()


def preview(body: bytes) -> str:
    """A body for people: its text on one line, shortened; other bytes as their number and first values."""
    try:
        text = printable(body[: 4 * BODY_SHOWN_CHARS_MAX].decode(errors="strict"))
    except UnicodeDecodeError as broken:
        if broken.start < 4 * BODY_SHOWN_CHARS_MAX - 4 or len(body) <= 4 * BODY_SHOWN_CHARS_MAX:
            return f"<{len(body)} bytes: {body[:16].hex(' ')}{' …' if len(body) > 16 else ''}>"
        text = printable(body[: broken.start].decode())
    return text if len(text) <= BODY_SHOWN_CHARS_MAX else text[:BODY_SHOWN_CHARS_MAX] + "…"


def time_text(timestamp_ms: int | None) -> str | None:
    """Epoch milliseconds as local time for people; None stays None, so does what no calendar has."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def host_text(host: tuple[str, int]) -> str:
    """`address:port`, IPv6 in brackets."""
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


class MessagePrinter:
    """Writes messages to standard output, a batch at a time."""

    def __init__(self, output: StreamFormat) -> None:
        self._output = output
        self.count = 0

    def write(self, messages: Iterable["Message"]) -> None:
        """Write and flush, so that a reader at the other end of a pipe has them before they are committed."""
        chosen = list(messages)
        if self._output == "raw":
            sys.stdout.flush()
            sys.stdout.buffer.write(b"".join(message.body + b"\n" for message in chosen))
            sys.stdout.buffer.flush()
        else:
            line = _json_line if self._output == "json" else _text_line
            sys.stdout.write("".join(map(line, chosen)))
            sys.stdout.flush()
        self.count += len(chosen)


def _json_line(message: "Message") -> str:
    return json_line(message_facts(message))


def _text_line(message: "Message") -> str:
    words = [
        time_text(message.store_timestamp_ms) or "",
        f"{message.broker_name}/{message.queue_id}@{message.queue_offset}",
    ]
    if message.tags:
        words.append(f"[{printable(message.tags)}]")
    if message.keys:
        words.append(f"({printable(' '.join(message.keys))})")
    return "  ".join([*words, preview(message.body)]) + "\n"
