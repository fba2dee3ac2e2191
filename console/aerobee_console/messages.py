"""Received messages on the terminal and for programs.

Touches  standard output, when `MessagePrinter` is told to.

    table  a line a message: store time, place, tags, keys, body; what is not printable is escaped
    json   a line a message: one JSON object (see `record_facts`)
    raw    the bodies alone, each with a line end: what `aerobee send --file -` takes
"""

import base64
import json
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from aerobee_console.tables import printable

if TYPE_CHECKING:
    from aerobee import Message
    from aerobee_proto.records import StoredRecord

__all__ = ["MessagePrinter", "StreamFormat", "message_facts", "preview", "record_facts", "time_text"]

StreamFormat = Literal["table", "json", "raw"]
BODY_SHOWN_CHARS_MAX: Final = 500


def message_facts(message: "Message") -> dict[str, Any]:
    """Everything about a message; the body is as it was sent."""
    names = {"topic": message.topic, "broker_name": message.broker_name, "message_id": message.message_id}
    return names | record_facts(message.record, message.body) | names


def record_facts(record: "StoredRecord", body: bytes) -> dict[str, Any]:
    """Everything about a record. `body` is its text, None when it is not UTF-8: then `body_base64` has it."""
    facts: dict[str, Any] = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "message_id": record.unique_key or record.offset_message_id,
        "offset_message_id": record.offset_message_id,
        "tags": record.tags,
        "keys": list(record.keys),
        "properties": dict(record.property_map),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "born_timestamp": record.born_timestamp,
        "born_host": host_text(record.born_host),
        "store_timestamp": record.store_timestamp,
        "store_host": host_text(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_size": len(body),
    }
    return facts | body_facts(body)


def body_facts(body: bytes) -> dict[str, Any]:
    """`body` as text, or `body` None and `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


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
            sys.stdout.write("".join(line(message) + "\n" for message in chosen))
            sys.stdout.flush()
        self.count += len(chosen)


def _json_line(message: "Message") -> str:
    return json.dumps(message_facts(message), ensure_ascii=False, separators=(",", ":"))


def _text_line(message: "Message") -> str:
    words = [
        time_text(message.store_timestamp_ms) or "",
        f"{message.broker_name}/{message.queue_id}@{message.queue_offset}",
    ]
    if message.tags:
        words.append(f"[{printable(message.tags)}]")
    if message.keys:
        words.append(f"({printable(' '.join(message.keys))})")
    return "  ".join([*words, preview(message.body)])
