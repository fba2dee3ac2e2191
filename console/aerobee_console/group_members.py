"""`aerobee group members`, `running-info` and `try`: who consumes, and how each of them does.

Touches  the cluster through the client's admin calls; brokers pass the questions on to the members.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from aerobee_console.failures import FAULT, NOT_FOUND, OK, Failure
from aerobee_console.messages import time_text
from aerobee_console.session import Connect, Output, run
from aerobee_console.tables import Column, print_json, print_table

if TYPE_CHECKING:
    from aerobee import Client
    from aerobee_proto.bodies import ConsumerRunningInfo

__all__ = ["members", "running_info", "try_message"]

MEMBER_COLUMNS: Final = (
    Column("client_id", "member"),
    Column("addr", "address"),
    Column("language", "language"),
    Column("version", "version", number=True),
)
SUBSCRIPTION_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("expression", "expression"),
    Column("expression_type", "type"),
)
CONFLICT_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("client_id", "member"),
    Column("subscription", "subscribes to"),
)
QUEUE_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("broker_name", "broker"),
    Column("queue_id", "queue", number=True),
    Column("consumer_offset", "offset", number=True),
    Column("cached_count", "cached", number=True),
    Column("locked", "locked"),
    Column("last_pulled", "last pull"),
    Column("last_consumed", "last consumed"),
)
RATE_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("pull_per_s", "pulled/s", number=True),
    Column("consumed_per_s", "consumed/s", number=True),
    Column("failed_per_s", "failed/s", number=True),
    Column("consume_ms", "took ms", number=True),
    Column("failed_count", "failed in an hour", number=True),
)
Group = Annotated[str, Parameter(help="Name of the group.")]
ClientId = Annotated[str, Parameter(help="The member, as `aerobee group members` shows it.")]


def members(
    group: Group,
    /,
    *,
    check: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Ask each member whether it subscribes to the same."),
    ] = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Show who consumes in a group, and what.

    With --check the exit code is 1 when members subscribe differently: then some messages reach nobody.
    """
    facts = run(connect, lambda client: _members(client, group, check=check))
    code = FAULT if facts.get("conflicts") else OK
    if output == "json":
        print_json(facts)
        return code
    sys.stdout.write(f"{facts['message_model'].lower()}, {facts['consume_type']}\n")
    print_table("\nmembers", MEMBER_COLUMNS, facts["members"])
    print_table("\nsubscriptions", SUBSCRIPTION_COLUMNS, facts["subscriptions"])
    if code != OK:
        print_table("\nmembers differ", CONFLICT_COLUMNS, facts["conflicts"])
    elif check:
        sys.stdout.write("\nall members subscribe to the same\n")
    return code


async def _members(client: "Client", group: str, *, check: bool) -> dict[str, Any]:
    online = await client.admin.group_connections(group)
    if online is None:
        await client.admin.find_group(group)
        raise Failure(f"nobody of group {group!r} is online", NOT_FOUND)
    ids = [one.client_id for one in online.connection_set]
    conflicts = {"conflicts": await _conflicts(client, group, ids)} if check else {}
    return conflicts | {
        "group": group,
        "message_model": online.message_model or "",
        "consume_type": online.consume_type or "",
        "members": [
            {
                "client_id": one.client_id,
                "addr": one.client_addr,
                "language": one.language,
                "version": one.version,
            }
            for one in online.connection_set
        ],
        "subscriptions": [
            {"topic": topic, "expression": one.sub_string, "expression_type": one.expression_type}
            for topic, one in sorted(online.subscription_table.items())
        ],
    }


async def _conflicts(client: "Client", group: str, client_ids: list[str]) -> list[dict[str, Any]]:
    """What each member subscribes to, of the topics in which they are not at one."""
    told: dict[str, dict[str, str]] = {}  # topic -> member -> what it wants
    for client_id in client_ids:
        info = await client.admin.member_running_info(group, client_id)
        for one in info.subscription_set:
            told.setdefault(one.topic, {})[client_id] = f"{one.expression_type} {one.sub_string}"
    return [
        {"topic": topic, "client_id": client_id, "subscription": wants.get(client_id)}
        for topic, wants in sorted(told.items())
        if len(wants) < len(client_ids) or len(set(wants.values())) > 1
        for client_id in client_ids
    ]


def running_info(
    group: Group,
    client_id: ClientId,
    /,
    *,
    threads: Annotated[
        bool, Parameter(negative=(), show_default=False, help="What its threads do, too.")
    ] = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Ask a member how it does: its queues, rates and settings."""
    info = run(connect, lambda client: client.admin.member_running_info(group, client_id, threads=threads))
    facts = _info(info) | {"group": group, "client_id": client_id}
    if output == "json":
        print_json(facts)
        return OK
    print_table("queues", QUEUE_COLUMNS, [_readable(row) for row in facts["queues"]])
    if facts["rates"]:
        print_table("\nrates", RATE_COLUMNS, facts["rates"])
    settings = [{"key": key, "value": value} for key, value in facts["properties"].items()]
    print_table("\nsettings", (Column("key", "key"), Column("value", "value")), settings)
    if info.jstack:
        sys.stdout.write(f"\nthreads\n{info.jstack.rstrip()}\n")
    return OK


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "last_pulled": time_text(row["last_pulled_ms"] or None),
        "last_consumed": time_text(row["last_consumed_ms"] or None),
    }


def _info(info: "ConsumerRunningInfo") -> dict[str, Any]:
    return {
        "queues": [
            {
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "consumer_offset": one.commit_offset,
                "cached_count": one.cached_msg_count,
                "locked": one.locked,
                "last_pulled_ms": one.last_pull_timestamp,
                "last_consumed_ms": one.last_consume_timestamp,
            }
            for queue, one in sorted(
                info.mq_table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id)
            )
        ],
        "rates": [
            {
                "topic": topic,
                "pull_per_s": round(one.pull_tps, 2),
                "consumed_per_s": round(one.consume_ok_tps, 2),
                "failed_per_s": round(one.consume_failed_tps, 2),
                "consume_ms": round(one.consume_rt, 2),
                "failed_count": one.consume_failed_msgs,
            }
            for topic, one in sorted(info.status_table.items())
        ],
        "subscriptions": [
            {"topic": one.topic, "expression": one.sub_string, "expression_type": one.expression_type}
            for one in sorted(info.subscription_set, key=lambda one: one.topic)
        ],
        "properties": dict(sorted(info.properties.items())),
        "threads": info.jstack,
    }


def try_message(
    group: Group,
    client_id: ClientId,
    topic: Annotated[str, Parameter(help="Name of the topic.")],
    message_id: Annotated[str, Parameter(help="Offset id of a message, as `aerobee query` shows it.")],
    /,
    *,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Hand one stored message to a member, outside of its queues, and show how it takes it.

    Exit code 1 when it could not consume it.
    """
    result = run(connect, lambda client: client.admin.consume_directly(group, client_id, topic, message_id))
    verdict = result.consume_result or ""
    facts = {"result": verdict, "remark": result.remark, "took_ms": result.spent_time_mills}
    if output == "json":
        print_json(facts)
    else:
        reason = f": {result.remark}" if result.remark else ""
        sys.stdout.write(f"{verdict} in {result.spent_time_mills} ms{reason}\n")
    return OK if verdict in ("CR_SUCCESS", "CR_COMMIT") else FAULT
