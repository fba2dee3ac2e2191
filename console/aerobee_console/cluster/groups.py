"""`aerobee group ...`: list, describe, create, alter, delete, lag; the others are in modules of their own.

Touches  the cluster through the client's admin calls.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from aerobee_console.cluster.group_members import members, running_info, try_message
from aerobee_console.cluster.group_moves import clone, reset
from aerobee_console.cluster.topics import Yes, confirm
from aerobee_console.terminal.failures import OK, USAGE, Failure
from aerobee_console.terminal.messages import time_text
from aerobee_console.terminal.numbers import COUNT_OR_ZERO
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.tables import Column, print_json, print_table, show
from aerobee_proto.names import is_system_group

if TYPE_CHECKING:
    from aerobee import Client

__all__ = ["app"]

app = App(
    "group",
    help="List, describe, create, alter and delete consumer groups; send them elsewhere.",
    help_epilogue="",
)
app.command(reset)
app.command(clone)
app.command(members)
app.command(running_info, name="running-info")
app.command(try_message, name="try")
Group = Annotated[str, Parameter(help="Name of the group.")]

QUESTIONS_AT_ONCE: Final = 16

GROUP_COLUMNS: Final = (
    Column("group", "group"),
    Column("members", "members", number=True),
    Column("lag", "lag", number=True),
    Column("consume_enabled", "may consume"),
    Column("broadcast_enabled", "may broadcast"),
    Column("retry_max_times", "retries", number=True),
)
LAG_COLUMNS: Final = (
    Column("group", "group"),
    Column("topic", "topic"),
    Column("lag", "lag", number=True),
    Column("in_flight", "in flight", number=True),
    Column("delay", "late by"),
)
PROGRESS_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("broker_name", "broker"),
    Column("queue_id", "queue", number=True),
    Column("broker_offset", "broker offset", number=True),
    Column("consumer_offset", "group offset", number=True),
    Column("lag", "lag", number=True),
    Column("last_consumed", "last consumed"),
)
MEMBER_COLUMNS: Final = (
    Column("client_id", "member"),
    Column("addr", "address"),
    Column("language", "language"),
)


@dataclass(slots=True, frozen=True)
class GroupRow:
    """A consumer group of all brokers; `lag` is None while it has consumed nothing."""

    group: str
    members: int
    lag: int | None
    consume_enabled: bool
    broadcast_enabled: bool
    retry_max_times: int


@dataclass(slots=True, frozen=True)
class QueueProgress:
    """How far a group is in one queue; `last_consumed_ms` in epoch milliseconds."""

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_consumed_ms: int | None

    @property
    def last_consumed(self) -> str | None:
        """The time for people."""
        return time_text(self.last_consumed_ms)


@dataclass(slots=True, frozen=True)
class OnlineMember:
    """A member that is connected."""

    client_id: str
    addr: str
    language: str


@dataclass(slots=True, frozen=True)
class GroupDescription:
    """How far a group is in each queue, and who is online."""

    group: str
    lag: int
    members: list[OnlineMember]
    queues: list[QueueProgress]


@dataclass(slots=True, frozen=True)
class LagRow:
    """How far a group is behind in a topic; `delay_ms` is the age of the oldest message that it has not consumed."""

    group: str
    topic: str
    lag: int
    in_flight: int
    delay_ms: int | None

    @property
    def delay(self) -> str | None:
        """The age for people."""
        return None if self.delay_ms is None else f"{self.delay_ms / 1000:.1f} s"


@app.command(name="list")
def list_groups(
    *,
    all_groups: Annotated[
        bool,
        Parameter(name=["--all", "-a"], negative=(), show_default=False, help="RocketMQ's own groups too."),
    ] = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """List the consumer groups of all brokers: who is online, how far behind, what they may."""
    rows = run(connect, lambda client: _rows(client, all_groups=all_groups))
    show(output, "groups", GROUP_COLUMNS, rows, empty="no groups yet: a consumer makes one")
    return OK


async def _rows(client: "Client", *, all_groups: bool) -> list[GroupRow]:
    found = [one for one in await client.admin.groups() if all_groups or not is_system_group(one.group_name)]
    lags: dict[str, int] = {}
    for lag in await client.admin.group_lags():
        lags[lag.group] = lags.get(lag.group, 0) + lag.lag
    asked_at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def member_count(group: str) -> int:
        async with asked_at_once:
            online = await client.admin.group_connections(group)
        return 0 if online is None else len(online.connection_set)

    counts = await asyncio.gather(*(member_count(one.group_name) for one in found))
    return [
        GroupRow(
            group=one.group_name,
            members=count,
            lag=lags.get(one.group_name),
            consume_enabled=one.consume_enable,
            broadcast_enabled=one.consume_broadcast_enable,
            retry_max_times=one.retry_max_times,
        )
        for one, count in zip(found, counts, strict=True)
    ]


@app.command
def describe(
    group: Group,
    /,
    *,
    topic: Annotated[str | None, Parameter(help="Only this topic.")] = None,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Show how far a group is in each queue, and its members."""
    facts = run(connect, lambda client: _describe(client, group, topic))
    if output == "json":
        print_json(facts)
        return OK
    sys.stdout.write(f"lag: {facts.lag} messages\n")
    print_members(facts.members)
    if facts.queues:
        print_table("\nprogress", PROGRESS_COLUMNS, facts.queues)
    return OK


def print_members(members: Sequence[OnlineMember]) -> None:
    if members:
        print_table("\nmembers", MEMBER_COLUMNS, members)
    else:
        sys.stdout.write("members: nobody is online\n")


async def _describe(client: "Client", group: str, topic: str | None) -> GroupDescription:
    progress = await client.admin.group_progress(group, topic)
    online = await client.admin.group_connections(group)
    members = [
        OnlineMember(one.client_id, one.client_addr, str(one.language))
        for one in (online.connection_set if online is not None else ())
    ]
    queues = [
        QueueProgress(
            topic=one.queue.topic,
            broker_name=one.queue.broker_name,
            queue_id=one.queue.queue_id,
            broker_offset=one.broker_offset,
            consumer_offset=one.consumer_offset,
            lag=one.lag,
            last_consumed_ms=one.last_timestamp_ms,
        )
        for one in progress.queues
    ]
    return GroupDescription(group, progress.lag, members, queues)


@app.command
def create(
    group: Group,
    /,
    *,
    retries: Annotated[
        int, Parameter(validator=COUNT_OR_ZERO, help="Redeliveries before a message is given up.")
    ] = 16,
    cluster: Annotated[str | None, Parameter(help="Only in this cluster.")] = None,
    connect: Connect | None = None,
) -> int:
    """Create a consumer group.

    One that exists with other settings is left alone (exit code 4): `aerobee group alter` changes it.
    """
    done = run(
        connect,
        lambda client: client.admin.create_group(group, retry_max_times=retries, cluster=cluster),
    )
    sys.stdout.write(f"group {group} is created on {', '.join(sorted(set(done)))}\n")
    return OK


@app.command
def alter(
    group: Group,
    /,
    *,
    retries: Annotated[
        int | None, Parameter(validator=COUNT_OR_ZERO, help="Redeliveries before a message is given up.")
    ] = None,
    consume: Annotated[
        bool | None, Parameter(negative="--no-consume", help="Whether its members get messages.")
    ] = None,
    broadcast: Annotated[
        bool | None, Parameter(negative="--no-broadcast", help="Whether it may broadcast.")
    ] = None,
    connect: Connect | None = None,
) -> int:
    """Change a consumer group; what is not named stays. --no-consume lets its members wait."""
    if retries is None and consume is None and broadcast is None:
        raise Failure("nothing to change: name --retries, --consume or --broadcast", USAGE)
    done = run(
        connect,
        lambda client: client.admin.update_group(
            group, retry_max_times=retries, consume=consume, broadcast=broadcast
        ),
    )
    sys.stdout.write(f"group {group} is changed on {', '.join(sorted(set(done)))}\n")
    return OK


@app.command
def lag(
    group: Annotated[str | None, Parameter(help="Only this group, with the delays.")] = None,
    /,
    *,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Show how far groups are behind, by topic."""
    found = run(
        connect,
        lambda client: client.admin.group_lags() if group is None else client.admin.group_lag(group),
    )
    rows = [LagRow(one.group, one.topic, one.lag, one.in_flight, one.delay_ms) for one in found]
    columns = LAG_COLUMNS if group is not None else LAG_COLUMNS[:-1]
    empty = (
        "no group has consumed anything yet" if group is None else f"group {group} has consumed nothing yet"
    )
    show(output, "lags", columns, rows, empty=empty)
    return OK


@app.command
def delete(group: Group, /, *, yes: Yes = False, connect: Connect | None = None) -> int:
    """Delete a consumer group with its offsets. Asks first, unless --yes."""
    if not yes:
        confirm(run(connect, lambda client: _what_is_lost(client, group)), yes=False)
    done = run(connect, lambda client: client.admin.delete_group(group))
    sys.stdout.write(f"group {group} is deleted on {', '.join(sorted(set(done)))}\n")
    return OK


async def _what_is_lost(client: "Client", group: str) -> str:
    """The question before a group is deleted; NotFound when there is none."""
    await client.admin.find_group(group)
    online = await client.admin.group_connections(group)
    count = len(online.connection_set) if online is not None else 0
    members = (
        ""
        if not count
        else " While 1 member is online?"
        if count == 1
        else f" While {count} members are online?"
    )
    return f"Delete group {group} with its offsets?{members}"
