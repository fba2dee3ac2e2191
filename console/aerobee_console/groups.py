"""`aerobee group ...`: list, describe, create, alter, delete, lag; the others are in modules of their own.

Touches  the cluster through the client's admin calls.
"""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from aerobee_console.failures import OK, USAGE, Failure
from aerobee_console.group_members import members, running_info, try_message
from aerobee_console.group_moves import clone, reset
from aerobee_console.messages import time_text
from aerobee_console.numbers import COUNT_OR_ZERO
from aerobee_console.session import Connect, Output, run
from aerobee_console.tables import Column, print_json, print_table, show
from aerobee_console.topics import Yes, confirm
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


async def _rows(client: "Client", *, all_groups: bool) -> list[dict[str, Any]]:
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
        {
            "group": one.group_name,
            "members": count,
            "lag": lags.get(one.group_name),  # None: it has consumed nothing yet
            "consume_enabled": one.consume_enable,
            "broadcast_enabled": one.consume_broadcast_enable,
            "retry_max_times": one.retry_max_times,
        }
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
    sys.stdout.write(f"lag: {facts['lag']} messages\n")
    print_members(facts["members"])
    if facts["queues"]:
        rows = [one | {"last_consumed": time_text(one["last_consumed_ms"])} for one in facts["queues"]]
        print_table("\nprogress", PROGRESS_COLUMNS, rows)
    return OK


def print_members(members: list[dict[str, Any]]) -> None:
    if members:
        print_table("\nmembers", MEMBER_COLUMNS, members)
    else:
        sys.stdout.write("members: nobody is online\n")


async def _describe(client: "Client", group: str, topic: str | None) -> dict[str, Any]:
    progress = await client.admin.group_progress(group, topic)
    online = await client.admin.group_connections(group)
    members = [
        {"client_id": one.client_id, "addr": one.client_addr, "language": str(one.language)}
        for one in (online.connection_set if online is not None else ())
    ]
    return {
        "group": group,
        "lag": progress.lag,
        "members": members,
        "queues": [
            {
                "topic": one.queue.topic,
                "broker_name": one.queue.broker_name,
                "queue_id": one.queue.queue_id,
                "broker_offset": one.broker_offset,
                "consumer_offset": one.consumer_offset,
                "lag": one.lag,
                "last_consumed_ms": one.last_timestamp_ms,
            }
            for one in progress.queues
        ],
    }


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
    rows = [
        {
            "group": one.group,
            "topic": one.topic,
            "lag": one.lag,
            "in_flight": one.in_flight,
            "delay_ms": one.delay_ms,
            "delay": None if one.delay_ms is None else f"{one.delay_ms / 1000:.1f} s",
        }
        for one in found
    ]
    if output == "json":
        for row in rows:
            del row["delay"]
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
