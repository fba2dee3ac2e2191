"""`aerobee query`: messages by key or by id, and what clients have traced of one.

Touches  the cluster through the client.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from aerobee_console.terminal.failures import NOT_FOUND, OK, USAGE, Failure
from aerobee_console.terminal.messages import message_facts, preview, time_text
from aerobee_console.terminal.numbers import COUNT
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.tables import Column, OutputFormat, Pair, print_json, print_table, show

if TYPE_CHECKING:
    from aerobee import Client, Message
    from aerobee.session.trace import TraceRecord

__all__ = ["query"]

COLUMNS: Final = (
    Column("stored", "stored"),
    Column("broker_name", "broker"),
    Column("queue_id", "queue", number=True),
    Column("queue_offset", "offset", number=True),
    Column("tags", "tags"),
    Column("keys", "keys"),
    Column("message_id", "message id"),
    Column("body", "body"),
)

TRACE_COLUMNS: Final = (
    Column("at", "at"),
    Column("what", "what"),
    Column("group", "group"),
    Column("took_ms", "ms", number=True),
    Column("ended", "ended"),
    Column("details", "details"),
)
# RocketMQ's numbers for how a delivery ended.
OUTCOMES: Final = {0: "acked", 1: "timed out", 2: "raised", 3: "returned nothing", 4: "sent back"}
WHATS: Final = {
    "Pub": "sent",
    "SubBefore": "delivered",
    "SubAfter": "settled",
    "EndTransaction": "transaction ended",
}


@dataclass(slots=True, frozen=True)
class TraceFacts:
    """What one trace record says, in words."""

    at: str | None
    what: str
    group: str
    took_ms: int | None
    ended: str
    details: str


@dataclass(slots=True, frozen=True)
class MessageRow:
    """One of several messages, for people."""

    stored: str | None
    broker_name: str
    queue_id: int
    queue_offset: int
    tags: str | None
    keys: tuple[str, ...]
    message_id: str
    body: str


def query(
    topic: str,
    key: str | None = None,
    /,
    *,
    key_option: Annotated[
        str | None, Parameter(name=["--key", "-k"], help="The look-up word, instead of as second argument.")
    ] = None,
    message_id: Annotated[
        str | None, Parameter(name="--id", help="One message by its id, either kind.")
    ] = None,
    begin: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, help="Stored since: -1h, or an ISO time with a zone."),
    ] = None,
    end: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Stored until.")] = None,
    count: Annotated[int, Parameter(validator=COUNT, help="At most so many; of more, the newest.")] = 64,
    trace: Annotated[bool, Parameter(help="With --id: what clients that write traces did with it.")] = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Find messages of a topic by key, or one by its id."""
    word = key if key is not None else key_option
    if (word is None) == (message_id is None):
        raise Failure("give a key, or --id and a message id", USAGE)
    if trace:
        if message_id is None:
            raise Failure("--trace goes with --id", USAGE)
        return _trace(topic, message_id, output, connect)

    async def ask(client: "Client") -> list["Message"]:
        if message_id is not None:
            found = await client.query_by_id(message_id, topic)
            return [found] if found is not None else []
        assert word is not None
        return await client.query(topic, key=word, begin=begin, end=end, max_messages=count)

    found = run(connect, ask)
    if not found:
        what = f"id {message_id}" if message_id is not None else f"key {word!r}"
        raise Failure(f"topic {topic!r} has no message with {what}", NOT_FOUND)
    if found[0].topic != topic:  # an id that names a place is found wherever it is
        raise Failure(f"message {message_id} is in topic {found[0].topic!r}, not in {topic!r}", NOT_FOUND)
    _print(found, output, alone=message_id is not None)
    return OK


def _trace(topic: str, message_id: str, output: OutputFormat, connect: Connect | None) -> int:
    """Show the trace records of one message, which may be named by either of its ids."""

    async def ask(client: "Client") -> list["TraceRecord"]:
        found = await client.query_by_id(message_id, topic)
        return await client.trace(message_id if found is None else found.message_id)

    records = run(connect, ask)
    if not records:
        raise Failure(
            f"nobody has traced message {message_id}: clients write traces when they are told to, into a topic that"
            " brokers have with traceTopicEnable",
            NOT_FOUND,
        )
    show(output, "traces", TRACE_COLUMNS, [_trace_facts(record, records) for record in records])
    return OK


def _trace_facts(record: "TraceRecord", records: list["TraceRecord"]) -> TraceFacts:
    group = record.group
    if record.kind == "SubAfter":  # says only which delivery it ends
        group = next((one.group for one in records if one.request_id == record.request_id and one.group), "")
        ended = OUTCOMES.get(record.outcome or 0, "unknown") if record.outcome is not None else str(record.ok)
    elif record.kind == "EndTransaction":
        ended = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}.get(
            record.transaction_state or "", "unknown"
        )
    else:
        ended = "stored" if record.kind == "Pub" and record.ok else "failed" if record.kind == "Pub" else ""
    details = {"to": record.topic or None, "at": record.store_host or None}
    if record.kind == "SubBefore":
        details["redelivery"] = str(record.reconsume_times) if record.reconsume_times else None
    return TraceFacts(
        at=time_text(record.timestamp_ms),
        what=WHATS[record.kind],
        group=group,
        took_ms=record.took_ms if record.kind in ("Pub", "SubAfter") else None,
        ended=ended,
        details="  ".join(f"{name} {value}" for name, value in details.items() if value),
    )


def _print(found: list["Message"], output: OutputFormat, *, alone: bool) -> None:
    if output == "json":
        print_json({"messages": [message_facts(message) for message in found]})
    elif alone:
        rows = [Pair(name, value) for name, value in _shown_facts(found[0]).items()]
        print_table("", [Column("name", "fact"), Column("value", "value")], rows)
    else:
        print_table("", COLUMNS, [_row(message) for message in found])


def _row(message: "Message") -> MessageRow:
    return MessageRow(
        stored=time_text(message.store_timestamp_ms),
        broker_name=message.broker_name,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        tags=message.tags,
        keys=message.keys,
        message_id=message.message_id,
        body=preview(message.body),
    )


def _shown_facts(message: "Message") -> dict[str, object]:
    """Everything about one message, as people want to read it."""
    facts = message_facts(message)
    del facts["body"]
    facts.pop("body_base64", None)
    return facts | {
        "properties": "  ".join(f"{name}={value}" for name, value in message.properties.items()),
        "born_timestamp": time_text(message.record.born_timestamp),
        "store_timestamp": time_text(message.store_timestamp_ms),
        "stored": time_text(message.store_timestamp_ms),
        "body": preview(message.body),
    }
