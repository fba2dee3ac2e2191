"""`aerobee group members`, `running-info` and `try`: who consumes, and how each of them does.

Touches  the cluster through the client's admin calls; brokers pass the questions on to the members.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from aerobee_console.terminal.failures import FAULT, NOT_FOUND, OK, Failure
from aerobee_console.terminal.messages import time_text
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.tables import ABSENT, Absent, Column, Pair, print_json, print_table

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


@dataclass(slots=True, frozen=True)
class Conflict:
    """What one member subscribes to in a topic in which members differ; None: not to it."""

    topic: str
    client_id: str
    subscription: str | None


@dataclass(slots=True, frozen=True)
class Member:
    """A consumer that is online."""

    client_id: str
    addr: str
    language: str
    version: int


@dataclass(slots=True, frozen=True)
class SubscriptionRow:
    """What a group or member subscribes to."""

    topic: str
    expression: str
    expression_type: str


@dataclass(slots=True, frozen=True)
class GroupMembers:
    """Who consumes in a group, and what. `conflicts` is there when members were asked whether they differ."""

    conflicts: list[Conflict] | Absent
    group: str
    message_model: str
    consume_type: str
    members: list[Member]
    subscriptions: list[SubscriptionRow]


@dataclass(slots=True, frozen=True)
class MemberQueue:
    """A queue of a member; times in epoch milliseconds, 0: never."""

    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int
    cached_count: int
    locked: bool
    last_pulled_ms: int
    last_consumed_ms: int

    @property
    def last_pulled(self) -> str | None:
        """The time for people."""
        return time_text(self.last_pulled_ms or None)

    @property
    def last_consumed(self) -> str | None:
        """The time for people."""
        return time_text(self.last_consumed_ms or None)


@dataclass(slots=True, frozen=True)
class MemberRates:
    """How fast a member works on a topic: messages a second, milliseconds of one."""

    topic: str
    pull_per_s: float
    consumed_per_s: float
    failed_per_s: float
    consume_ms: float
    failed_count: int


@dataclass(slots=True, frozen=True)
class MemberInfo:
    """What a member says of itself."""

    queues: list[MemberQueue]
    rates: list[MemberRates]
    subscriptions: list[SubscriptionRow]
    properties: dict[str, str]
    threads: str | None
    group: str
    client_id: str


@dataclass(slots=True, frozen=True)
class Trial:
    """How a member took a message."""

    result: str
    remark: str | None
    took_ms: int


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
    conflicts = () if facts.conflicts is ABSENT else facts.conflicts
    code = FAULT if conflicts else OK
    if output == "json":
        print_json(facts)
        return code
    sys.stdout.write(f"{facts.message_model.lower()}, {facts.consume_type}\n")
    print_table("\nmembers", MEMBER_COLUMNS, facts.members)
    print_table("\nsubscriptions", SUBSCRIPTION_COLUMNS, facts.subscriptions)
    if conflicts:
        print_table("\nmembers differ", CONFLICT_COLUMNS, conflicts)
    elif check:
        sys.stdout.write("\nall members subscribe to the same\n")
    return code


async def _members(client: "Client", group: str, *, check: bool) -> GroupMembers:
    online = await client.admin.group_connections(group)
    if online is None:
        await client.admin.find_group(group)
        raise Failure(f"nobody of group {group!r} is online", NOT_FOUND)
    ids = [one.client_id for one in online.connection_set]
    return GroupMembers(
        conflicts=await _conflicts(client, group, ids) if check else ABSENT,
        group=group,
        message_model=online.message_model or "",
        consume_type=online.consume_type or "",
        members=[
            Member(one.client_id, one.client_addr, one.language, one.version) for one in online.connection_set
        ],
        subscriptions=[
            SubscriptionRow(topic, one.sub_string, one.expression_type)
            for topic, one in sorted(online.subscription_table.items())
        ],
    )


async def _conflicts(client: "Client", group: str, client_ids: list[str]) -> list[Conflict]:
    """What each member subscribes to, of the topics in which they are not at one."""
    by_topic: dict[str, dict[str, str]] = {}  # topic -> member -> what it wants
    for client_id in client_ids:
        info = await client.admin.member_running_info(group, client_id)
        for one in info.subscription_set:
            by_topic.setdefault(one.topic, {})[client_id] = f"{one.expression_type} {one.sub_string}"
    return [
        Conflict(topic, client_id, by_member.get(client_id))
        for topic, by_member in sorted(by_topic.items())
        if len(by_member) < len(client_ids) or len(set(by_member.values())) > 1
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
    facts = _info(info, group, client_id)
    if output == "json":
        print_json(facts)
        return OK
    print_table("queues", QUEUE_COLUMNS, facts.queues)
    if facts.rates:
        print_table("\nrates", RATE_COLUMNS, facts.rates)
    settings = [Pair(key, value) for key, value in facts.properties.items()]
    print_table("\nsettings", (Column("name", "key"), Column("value", "value")), settings)
    if info.jstack:
        sys.stdout.write(f"\nthreads\n{info.jstack.rstrip()}\n")
    return OK


def _info(info: "ConsumerRunningInfo", group: str, client_id: str) -> MemberInfo:
    queues = sorted(
        info.mq_table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id)
    )
    return MemberInfo(
        queues=[
            MemberQueue(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                consumer_offset=one.commit_offset,
                cached_count=one.cached_msg_count,
                locked=one.locked,
                last_pulled_ms=one.last_pull_timestamp,
                last_consumed_ms=one.last_consume_timestamp,
            )
            for queue, one in queues
        ],
        rates=[
            MemberRates(
                topic=topic,
                pull_per_s=round(one.pull_tps, 2),
                consumed_per_s=round(one.consume_ok_tps, 2),
                failed_per_s=round(one.consume_failed_tps, 2),
                consume_ms=round(one.consume_rt, 2),
                failed_count=one.consume_failed_msgs,
            )
            for topic, one in sorted(info.status_table.items())
        ],
        subscriptions=[
            SubscriptionRow(one.topic, one.sub_string, one.expression_type)
            for one in sorted(info.subscription_set, key=lambda one: one.topic)
        ],
        properties=dict(sorted(info.properties.items())),
        threads=info.jstack,
        group=group,
        client_id=client_id,
    )


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
    if output == "json":
        print_json(Trial(verdict, result.remark, result.spent_time_mills))
    else:
        reason = f": {result.remark}" if result.remark else ""
        sys.stdout.write(f"{verdict} in {result.spent_time_mills} ms{reason}\n")
    return OK if verdict in ("CR_SUCCESS", "CR_COMMIT") else FAULT
