"""`aerobee topic ...`: list, describe, route, create, alter, delete.

Touches  the cluster through the client's admin calls.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import App, Parameter

from aerobee_console.terminal.failures import OK, USAGE, Failure
from aerobee_console.terminal.messages import time_text
from aerobee_console.terminal.numbers import COUNT
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.several import several
from aerobee_console.terminal.tables import Column, print_json, print_table, show

if TYPE_CHECKING:
    from aerobee import Client, TopicDescription

__all__ = ["app"]

app = App("topic", help="List, create, describe, alter and delete topics.", help_epilogue="")
Topic = Annotated[str, Parameter(help="Name of the topic.")]
Queues = Annotated[int | None, Parameter(validator=COUNT, help="Queues on each broker.")]
WriteQueues = Annotated[
    int | None, Parameter(validator=COUNT, help="Queues to write to, if fewer than to read.")
]
Permission = Annotated[Literal["r", "w", "rw"] | None, Parameter(name=["--permission", "--perm"])]
ClusterName = Annotated[str | None, Parameter(help="Only in this cluster.")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), show_default=False, help="Do not ask.")]

QUEUE_COLUMNS: Final = (
    Column("broker_name", "broker"),
    Column("queue_id", "queue", number=True),
    Column("min_offset", "min offset", number=True),
    Column("max_offset", "max offset", number=True),
    Column("message_count", "messages", number=True),
    Column("last_stored", "last stored"),
)
ROUTE_COLUMNS: Final = (
    Column("broker_name", "broker"),
    Column("cluster_name", "cluster"),
    Column("broker_id", "id", number=True),
    Column("addr", "address"),
    Column("read_queues", "read queues", number=True),
    Column("write_queues", "write queues", number=True),
    Column("permission", "perm"),
)


@dataclass(slots=True, frozen=True)
class TopicRow:
    """A topic that the nameserver knows."""

    topic: str


@dataclass(slots=True, frozen=True)
class RouteRow:
    """A broker that has a topic."""

    broker_name: str
    cluster_name: str | None
    broker_id: int
    addr: str
    read_queues: int
    write_queues: int
    permission: str


@dataclass(slots=True, frozen=True)
class TopicSettings:
    """The settings of a topic on one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: str
    order: bool
    attributes: dict[str, str]


@dataclass(slots=True, frozen=True)
class TopicQueue:
    """A queue of a topic; `last_stored_ms` in epoch milliseconds."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    message_count: int
    last_stored_ms: int | None

    @property
    def last_stored(self) -> str | None:
        """The time for people."""
        return time_text(self.last_stored_ms)


@dataclass(slots=True, frozen=True)
class TopicFacts:
    """A topic: settings, queues with their offsets, groups that read it."""

    topic: str
    message_count: int
    groups: list[str]
    configs: list[TopicSettings]
    queues: list[TopicQueue]


@app.command(name="list")
def list_topics(
    *,
    all_topics: Annotated[
        bool,
        Parameter(
            name=["--all", "-a"], negative=(), help="RocketMQ's own, retry and dead-letter topics too."
        ),
    ] = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """List the topics that the nameserver knows."""
    names = run(connect, lambda client: client.admin.topics(system=all_topics, internal=all_topics))
    rows = [TopicRow(name) for name in names]
    empty = "no topics yet: aerobee topic create NAME, or send to one"
    show(output, "topics", (Column("topic", "topic"),), rows, empty=empty)
    return OK


@app.command
def describe(topic: Topic, /, *, output: Output = "table", connect: Connect | None = None) -> int:
    """Show a topic: settings, queues with their offsets, groups that read it."""
    found = run(connect, lambda client: client.admin.describe_topic(topic))
    facts = _description(found)
    if output == "json":
        print_json(facts)
        return OK
    for config in facts.configs:
        sys.stdout.write(_config_line(topic, config))
    sys.stdout.write(f"groups: {', '.join(facts.groups) or 'none'}\n")
    sys.stdout.write(f"messages: {facts.message_count}\n\n")
    print_table("", QUEUE_COLUMNS, facts.queues)
    return OK


def _config_line(topic: str, config: TopicSettings) -> str:
    """The settings on one broker, and what is wrong with them."""
    read, write = config.read_queues, config.write_queues
    words = [
        f"{read} queue{'s' if read != 1 else ''} to read",
        f"{write} to write",
        f"permission {config.permission}",
    ]
    words += ["ordered"] if config.order else []
    words += [f"{name}={value}" for name, value in sorted(config.attributes.items())]
    line = f"{config.broker_name}: {', '.join(words)}\n"
    if write > read:
        line += (
            f"  nobody gets what is written to queues {read} to {write - 1}:"
            f" aerobee topic alter {topic} --queues {write}\n"
        )
    return line


def _description(found: "TopicDescription") -> TopicFacts:
    return TopicFacts(
        topic=found.topic,
        message_count=found.message_count,
        groups=list(found.groups),
        configs=[
            TopicSettings(
                broker_name=broker_name,
                read_queues=config.read_queue_nums,
                write_queues=config.write_queue_nums,
                permission=_permission(config.perm),
                order=config.order,
                attributes=dict(config.attributes or {}),
            )
            for broker_name, config in found.configs.items()
        ],
        queues=[
            TopicQueue(
                broker_name=one.queue.broker_name,
                queue_id=one.queue.queue_id,
                min_offset=one.min_offset,
                max_offset=one.max_offset,
                message_count=one.message_count,
                last_stored_ms=one.last_update_ms,
            )
            for one in found.queues
        ],
    )


def _permission(perm: int) -> str:
    return "".join(letter for bit, letter in ((4, "r"), (2, "w")) if perm & bit) or "none"


@app.command
def route(topic: Topic, /, *, output: Output = "table", connect: Connect | None = None) -> int:
    """Show where a topic lives: brokers, addresses, queues."""
    data = run(connect, lambda client: client.admin.route(topic))
    queues = {one.broker_name: one for one in data.queue_datas}
    rows: list[RouteRow] = []
    for broker in sorted(data.broker_datas, key=lambda one: one.broker_name):
        place = queues.get(broker.broker_name)
        rows += [
            RouteRow(
                broker_name=broker.broker_name,
                cluster_name=broker.cluster,
                broker_id=broker_id,
                addr=addr,
                read_queues=place.read_queue_nums if place else 0,
                write_queues=place.write_queue_nums if place else 0,
                permission=_permission(place.perm) if place else "none",
            )
            for broker_id, addr in sorted(broker.broker_addrs.items())
        ]
    show(output, "routes", ROUTE_COLUMNS, rows)
    return OK


@app.command
def create(
    topic: Topic,
    /,
    *,
    queues: Annotated[int, Parameter(validator=COUNT, help="Queues on each broker.")] = 8,
    write_queues: WriteQueues = None,
    permission: Permission = None,
    order: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Mark it as an ordered topic.")
    ] = False,
    attributes: Annotated[tuple[str, ...], several("--attribute", "name=value; repeatable.")] = (),
    cluster: ClusterName = None,
    brokers: Annotated[
        tuple[str, ...],
        Parameter(name="--broker", negative=(), show_default=False, help="Only on this broker; repeatable."),
    ] = (),
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Create a topic, on every master unless told otherwise.

    One that exists with other settings is left alone (exit code 4): `aerobee topic alter` changes it.
    """
    pairs = dict(_pair(text) for text in attributes)
    done = run(
        connect,
        lambda client: client.admin.create_topic(
            topic,
            queues=queues,
            write_queues=write_queues,
            permission=permission or "rw",
            order=order,
            attributes=pairs,
            cluster=cluster,
            brokers=brokers,
        ),
    )
    return _print_done(output, topic, "created", done)


@app.command
def alter(
    topic: Topic,
    /,
    *,
    queues: Queues = None,
    write_queues: WriteQueues = None,
    permission: Permission = None,
    yes: Yes = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Change a topic on the brokers that have it; what is not named stays.

    Fewer queues hide the messages in those that go: it says how many, and asks first, unless --yes.
    """
    if queues is None and write_queues is None and permission is None:
        raise Failure("nothing to change: give --queues, --write-queues or --permission", USAGE)

    def change(*, hide_messages: bool) -> list[str]:
        return run(
            connect,
            lambda client: client.admin.update_topic(
                topic,
                queues=queues,
                write_queues=write_queues,
                permission=permission,
                hide_messages=hide_messages,
            ),
        )

    from aerobee import HidesMessages

    try:
        done = change(hide_messages=False)
    except HidesMessages as hides:
        if yes:
            sys.stderr.write(f"{hides.summary}\n")
        else:
            confirm(f"{hides.summary}. Do it?", yes=False)
        done = change(hide_messages=True)
    return _print_done(output, topic, "altered", done)


@app.command
def delete(
    topic: Topic,
    /,
    *,
    yes: Yes = False,
    cluster: ClusterName = None,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Delete a topic with all its messages and offsets. Asks first, unless --yes."""
    if not yes:
        confirm(run(connect, lambda client: _what_is_lost(client, topic)), yes=False)
    done = run(connect, lambda client: client.admin.delete_topic(topic, cluster=cluster))
    return _print_done(output, topic, "deleted", done)


async def _what_is_lost(client: "Client", topic: str) -> str:
    """The question before a topic is deleted; NoRoute when there is none."""
    found = await client.admin.describe_topic(topic)
    count = found.message_count
    messages = "1 message" if count == 1 else f"{count} messages"
    groups = f" and the offsets of {', '.join(found.groups)}" if found.groups else ""
    return f"Delete topic {topic} with its {messages}{groups}?"


def confirm(question: str, *, yes: bool) -> None:
    """Go on only when a person agrees, or --yes says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question} Nobody is here to answer: add --yes", USAGE)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("nothing was changed", USAGE)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.removeprefix("+").partition("=")  # mqadmin writes +name=value
    if not equals or not name:
        raise Failure(f"--attribute {text}: write name=value", USAGE)
    return name, value


def _print_done(output: str, topic: str, what: str, brokers: list[str]) -> int:
    if output == "json":
        print_json({"topic": topic, what: sorted(set(brokers))})
    elif not brokers:  # a nameserver alone knew it
        sys.stdout.write(f"no broker had topic {topic}; its route is {what}\n")
    else:
        sys.stdout.write(f"topic {topic} is {what} on {', '.join(sorted(set(brokers)))}\n")
    return OK
