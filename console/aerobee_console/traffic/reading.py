"""`aerobee consume` and `aerobee tail`: messages out of a topic.

Touches  the cluster through the client; standard output. A group's offsets move only in `consume --group`.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

from cyclopts import Parameter

from aerobee_console.terminal.failures import OK, USAGE, Failure
from aerobee_console.terminal.messages import MessagePrinter, StreamFormat
from aerobee_console.terminal.numbers import COUNT, COUNT_OR_ZERO, QUEUE_ID
from aerobee_console.terminal.session import Connect, run

if TYPE_CHECKING:
    from aerobee import Client, Filter, Message, MessageQueue, PullConsumer, Reader

__all__ = ["consume", "tail"]

LAST_MAX: Final = 100_000


class ReadOptions(TypedDict):
    """What `Client.reader` and `Client.pull_consumer` take alike."""

    start: str | int
    end: str | None
    filter: "Filter"
    queues: list[int] | None


StreamOutput = Annotated[
    StreamFormat,
    Parameter(name=["--output", "-o"], help="table: a line each; json: an object a line; raw: the bodies."),
]
Tags = Annotated[str | None, Parameter(help='Only messages with these tags, "new || paid".')]
Sql = Annotated[
    str | None,
    Parameter(
        help="Only messages whose properties make this SQL92 condition true: \"price > 3 AND TAGS = 'new'\"."
        " The brokers must have enablePropertyFilter on."
    ),
]
Follow = Annotated[
    bool, Parameter(name=["--follow", "-f"], negative=(), show_default=False, help="Go on with new messages.")
]


def consume(
    topic: str,
    /,
    *,
    group: Annotated[
        str | None, Parameter(name=["--group", "-g"], help="Read for this group and commit its offsets.")
    ] = None,
    start: Annotated[
        str,
        Parameter(
            name="--from",
            allow_leading_hyphen=True,
            help="earliest, latest, an offset, -1h, or an ISO time with a zone. With a group: where it has "
            "committed nothing.",
        ),
    ] = "earliest",
    until: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Where to end: now, -1h, or an ISO time with a zone.")
    ] = "now",
    count: Annotated[int | None, Parameter(validator=COUNT, help="End after this many messages.")] = None,
    tags: Tags = None,
    sql: Sql = None,
    queues: Annotated[
        tuple[Annotated[int, Parameter(validator=QUEUE_ID)], ...],
        Parameter(name="--queue", negative=(), show_default=False, help="Only this queue; may be repeated."),
    ] = (),
    follow: Follow = False,
    output: StreamOutput = "table",
    connect: Connect | None = None,
) -> int:
    """Print the messages of a topic, up to those that are there now, or on and on with --follow.

    With --group the group goes on where it stopped; what was printed is committed.
    """
    if until.isdecimal():
        # A queue that is shorter would be waited for.
        raise Failure("--until takes a time; --count ends after so many messages", USAGE)
    options: ReadOptions = {
        "start": start,
        "end": None if follow else until,
        "filter": _filter(tags, sql),
        "queues": list(queues) or None,
    }
    printer = MessagePrinter(output)
    if group is None:
        return run(connect, lambda client: _read(client.reader(topic, **options), printer, count))
    return run(
        connect, lambda client: _consume(client.pull_consumer(group, topic, **options), printer, count)
    )


def _filter(tags: str | None, sql: str | None) -> "Filter":
    """The filter of --tags or --sql."""
    from aerobee import SqlFilter, TagFilter

    if sql is None:
        return TagFilter(tags)
    if tags is not None:
        raise Failure(
            "give --tags or --sql; in SQL the tag is TAGS, so --sql \"TAGS = 'new' AND ...\"", USAGE
        )
    return SqlFilter(sql)


async def _read(reader: "Reader", printer: MessagePrinter, count: int | None) -> int:
    async with reader:
        while _needs_more(printer, count) and (batch := await reader.next_batch()) is not None:
            printer.write(_first(reader.walk(batch), printer, count))
    return OK


async def _consume(consumer: "PullConsumer", printer: MessagePrinter, count: int | None) -> int:
    async with consumer:
        while _needs_more(printer, count) and (batch := await consumer.next_batch()) is not None:
            printer.write(_first(consumer.walk(batch), printer, count))
            await consumer.commit()
    return OK


def _needs_more(printer: MessagePrinter, count: int | None) -> bool:
    return count is None or printer.count < count


def _first(messages: Iterable["Message"], printer: MessagePrinter, count: int | None) -> Iterable["Message"]:
    return messages if count is None else islice(messages, count - printer.count)


def tail(
    topic: str,
    /,
    *,
    last: Annotated[
        int,
        Parameter(validator=COUNT_OR_ZERO, help="How many, counted over all queues."),
    ] = 10,
    follow: Follow = False,
    tags: Tags = None,
    sql: Sql = None,
    output: StreamOutput = "table",
    connect: Connect | None = None,
) -> int:
    """Print the newest messages of a topic, oldest first; with --follow go on with new ones."""
    printer = MessagePrinter(output)
    message_filter = _filter(tags, sql)
    return run(
        connect,
        lambda client: _tail(client, topic, min(last, LAST_MAX), message_filter, printer, follow=follow),
    )


async def _tail(
    client: "Client",
    topic: str,
    last: int,
    message_filter: "Filter",
    printer: MessagePrinter,
    *,
    follow: bool,
) -> int:
    async with client.reader(topic, start="latest", end="now", filter=message_filter) as reader:
        ends = reader.positions
        printer.write(await _newest(client, reader, ends, last))
    if follow:
        async with client.reader(topic, start="latest", filter=message_filter) as reader:
            for queue, offset in ends.items():
                if reader.positions.get(queue) != offset:
                    reader.seek(queue, offset)
            await _read(reader, printer, None)
    return OK


async def _newest(
    client: "Client", reader: "Reader", ends: dict["MessageQueue", int], last: int
) -> list["Message"]:
    """The `last` newest messages below `ends` that pass the reader's filter, by store time.

    The last ones of every queue are read: which queue has the newest is not known before.
    """
    begins = await asyncio.gather(*(client.admin.min_offset(queue) for queue in ends))
    for (queue, end), begin in zip(ends.items(), begins, strict=True):
        if (offset := max(begin, end - last)) < end:
            reader.seek(queue, offset)
    found: list[Message] = []
    while (batch := await reader.next_batch()) is not None:
        found += [message for message in batch if message.queue_offset < ends[batch.queue]]
    found.sort(key=lambda message: (message.store_timestamp_ms, message.record.physical_offset))
    return found[-last:] if last > 0 else []
