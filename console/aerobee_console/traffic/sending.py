"""`aerobee send`: one message from the command line, or a file of them, one a line.

Touches  the cluster through the client; the input file.
"""

import asyncio
import os
import re
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

from cyclopts import Parameter

from aerobee_console.terminal.failures import OK, USAGE, Failure
from aerobee_console.terminal.numbers import QUEUE_ID
from aerobee_console.terminal.progress import progress
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.several import several
from aerobee_console.terminal.tables import Column, OutputFormat, print_json, show

if TYPE_CHECKING:
    from aerobee import Client, Producer, SendResult

__all__ = ["send"]

READ_BYTES: Final = 1 << 18
LINE_BYTES_MAX: Final = 16 << 20
LEVELS: Final = 18
DIGITS_MAX: Final = 9  # of a span
SPAN: Final = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
COLUMNS: Final = (
    Column("message_id", "message id"),
    Column("broker_name", "broker"),
    Column("queue_id", "queue", number=True),
    Column("queue_offset", "offset", number=True),
    Column("status", "status"),
)


class Delay(TypedDict, total=False):
    """When a message is to be delivered: at most one of what `Producer.send` takes for it."""

    delay_level: int
    deliver_after: float
    deliver_at: datetime


class SendOptions(Delay, total=False):
    """What all messages of one command have, by the names that `Producer.send` has for it."""

    tags: str | None
    keys: list[str] | None
    properties: dict[str, str] | None
    queue: int | None
    sharding_key: str | None


@dataclass(slots=True, frozen=True)
class Sent:
    """Where a message is stored."""

    message_id: str
    offset_message_id: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    status: str


@dataclass(slots=True, frozen=True)
class LinesSent:
    """What became of a file of messages."""

    sent: int
    failed: int
    skipped: int
    took_ms: int


def send(
    topic: str,
    body: str | None = None,
    /,
    *,
    tags: Annotated[str | None, Parameter(help="Label that consumers filter by.")] = None,
    keys: Annotated[tuple[str, ...], several(["--keys", "--key"], "Look-up word; may be repeated.")] = (),
    properties: Annotated[tuple[str, ...], several("--property", "name=value; may be repeated.")] = (),
    delay: Annotated[
        str | None,
        Parameter(
            help="Deliver later: a level (1 to 18), a span like 90s, or a time: $(date -d '+1 hour' -Is)."
        ),
    ] = None,
    queue: Annotated[
        int | None, Parameter(validator=QUEUE_ID, help="Position of the queue to send to.")
    ] = None,
    sharding_key: Annotated[str | None, Parameter(help="Equal keys go to one queue, in order.")] = None,
    file: Annotated[
        Path | None,
        Parameter(
            name=["--file", "-f"],
            allow_leading_hyphen=True,
            help="Send each line of this file; - is standard input.",
        ),
    ] = None,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Send one message, or with --file one a line.

    Says where each message is stored; with --file how many. BODY may be left out for standard input as one body.
    """
    options: SendOptions = {
        "tags": tags,
        "keys": list(keys) or None,
        "properties": _properties(properties),
        "queue": queue,
        "sharding_key": sharding_key,
        **_delay(delay),
    }
    if file is not None:
        if body is not None:
            raise Failure("give either BODY or --file, not both", USAGE)
        return run(connect, lambda client: _send_lines(client, topic, file, options, output))
    data = _from_standard_input() if body is None else body.encode(errors="surrogateescape")
    if not data:
        raise Failure("empty body, and brokers refuse those: give BODY, or --file", USAGE)
    return run(connect, lambda client: _send_one(client, topic, data, options, output))


def _from_standard_input() -> bytes:
    if sys.stdin.isatty():
        sys.stderr.write("the body is read from here; Ctrl-D ends it (or give BODY, or --file)\n")
    return sys.stdin.buffer.read()


def _properties(pairs: Sequence[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Failure(f"--property {pair}: write name=value", USAGE)
        found[name] = value
    return found or None


def _delay(text: str | None) -> Delay:
    """What the producer is told about the time of delivery; Failure for what is none."""
    if text is None:
        return {}
    if text.isdecimal() and 0 < int(text[:9]) <= LEVELS:
        return {"delay_level": int(text)}
    span = SPAN.fullmatch(text)
    if span is not None:
        if len(span[1]) > DIGITS_MAX:
            raise Failure(
                f"--delay {text}: no broker waits that long; theirs is 3 days at most by default", USAGE
            )
        return {"deliver_after": int(span[1]) * UNITS_MS[span[2]] / 1000}
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(
            f"--delay {text}: a level from 1 to {LEVELS}, a span like 500ms, 90s, 10m, 2h or 1d, "
            f"or a time like {(datetime.now().astimezone() + timedelta(hours=1)).isoformat(timespec='seconds')}",
            USAGE,
        ) from None
    return {"deliver_at": when.astimezone() if when.tzinfo is None else when}


async def _send_one(
    client: "Client", topic: str, body: bytes, options: SendOptions, output: OutputFormat
) -> int:
    async with client.producer(send_timeout_s=client.config.request_timeout_s) as producer:
        result = await producer.send(topic, body, **options)
    show(output, "sent", COLUMNS, [_facts(result)])
    return OK


def _facts(result: "SendResult") -> Sent:
    return Sent(
        message_id=result.message_id,
        offset_message_id=result.offset_message_id,
        topic=result.queue.topic,
        broker_name=result.queue.broker_name,
        queue_id=result.queue.queue_id,
        queue_offset=result.queue_offset,
        status=result.status.name,
    )


class _Tally:
    """What became of the lines: how many are stored, and what stopped the first that was not."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self.sent = 0
        self.skipped = 0
        self.failed = 0
        self.first_failure: tuple[int, BaseException] | None = None
        self._done = done
        self._waited_for = set["asyncio.Future[SendResult]"]()  # accepted, and not counted

    def watch(self, line_number: int, accepted: "asyncio.Future[SendResult]") -> None:
        """Count it when it has ended."""

        def ended(future: "asyncio.Future[SendResult]") -> None:
            self._waited_for.discard(future)
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            if error is None:
                self.sent += 1
                self._done(1)
            else:
                self.fail(line_number, error)

        self._waited_for.add(accepted)
        accepted.add_done_callback(ended)

    async def counted(self) -> None:
        """Return when everything that was watched is counted: the event loop counts after the producer has ended."""
        await asyncio.gather(*self._waited_for, return_exceptions=True)

    def fail(self, line_number: int, error: BaseException) -> None:
        self.failed += 1
        if self.first_failure is None or line_number < self.first_failure[0]:
            self.first_failure = (line_number, error)


async def _send_lines(
    client: "Client", topic: str, file: Path, options: SendOptions, output: OutputFormat
) -> int:
    started = time.monotonic()
    with progress(f"sending to {topic}") as done:
        tally = _Tally(done)
        async with client.producer(send_timeout_s=client.config.request_timeout_s) as producer:
            await _send_until_failure(producer, topic, file, options, tally)
        await tally.counted()
    took_ms = round((time.monotonic() - started) * 1000)
    if output == "json":
        print_json(LinesSent(tally.sent, tally.failed, tally.skipped, took_ms))
    else:
        empty = f", {tally.skipped} empty lines skipped" if tally.skipped else ""
        rate = round(tally.sent * 1000 / max(took_ms, 1))
        sys.stdout.write(f"sent {tally.sent} messages in {took_ms / 1000:.1f} s ({rate}/s){empty}\n")
    if tally.first_failure is not None:
        line_number, error = tally.first_failure
        sys.stderr.write(f"aerobee: line {line_number} was not sent; {tally.failed} failed in all\n")
        raise error
    return OK


async def _send_until_failure(
    producer: "Producer", topic: str, file: Path, options: SendOptions, tally: _Tally
) -> None:
    """Everything that was accepted is waited for by the end of the producer; the first failure stops reading."""
    from aerobee import ClientError

    number = 0
    async for lines in _line_batches(file):
        for line in lines:
            number += 1
            if tally.first_failure is not None:
                return
            if not line:
                tally.skipped += 1
                continue
            await producer.ready()
            try:
                accepted = producer.send_nowait(topic, line, **options)
            except ClientError as refused:
                tally.fail(number, refused)
            else:
                tally.watch(number, accepted)


async def _line_batches(file: Path) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, as many as are there at a time: a slow pipe is sent as it comes."""
    descriptor = sys.stdin.fileno() if str(file) == "-" else os.open(file, os.O_RDONLY)
    rest = b""
    try:
        while data := await _read(descriptor):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise Failure(
                    f"{file}: a line is longer than {LINE_BYTES_MAX} bytes; is it a text file?", USAGE
                )
            yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest]
    finally:
        if str(file) != "-":
            os.close(descriptor)


async def _read(descriptor: int) -> bytes:
    """The next bytes; empty at the end. A pipe or terminal is waited for in the event loop, so Ctrl-C works."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        await asyncio.sleep(0)
        return os.read(descriptor, READ_BYTES)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:  # a device that cannot be waited for, /dev/null for one
        return os.read(descriptor, READ_BYTES)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)
