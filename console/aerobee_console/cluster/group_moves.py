"""`aerobee group reset` and `clone`: where a group goes on.

Touches  the cluster through the client's admin calls.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from aerobee_console.cluster.topics import Yes, confirm
from aerobee_console.terminal.failures import OK, USAGE, Failure
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.tables import Column, show

if TYPE_CHECKING:
    from aerobee import Client, MessageQueue

__all__ = ["clone", "reset"]

MOVE_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("broker_name", "broker"),
    Column("queue_id", "queue", number=True),
    Column("before", "before", number=True),
    Column("after", "after", number=True),
)
Source = Annotated[str, Parameter(help="Name of the group that has the offsets.")]
Target = Annotated[str, Parameter(help="Name of the group that gets them.")]


@dataclass(slots=True, frozen=True)
class QueueMove:
    """Where a group was in a queue, None where it had committed nothing, and where it goes on."""

    topic: str
    broker_name: str
    queue_id: int
    before: int | None
    after: int


def reset(
    group: Annotated[str, Parameter(help="Name of the group.")],
    topic: Annotated[str, Parameter(help="Name of the topic.")],
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True, help="earliest, latest, -1h, an ISO time with a zone, or an offset."
        ),
    ],
    queue: Annotated[
        str | None, Parameter(help="Only this queue, BROKER:NUMBER. An offset needs one.")
    ] = None,
    yes: Yes = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Make a group go on elsewhere in a topic, while it consumes or while nobody of it is online."""
    if to.isdecimal() and queue is None:
        raise Failure(
            f"--to {to}: an offset means something in one queue alone: add --queue BROKER:NUMBER", USAGE
        )
    confirm(f"Send group {group} to {to} in topic {topic}?", yes=yes)
    rows = run(connect, lambda client: _reset(client, group, topic, to, queue))
    show(output, "queues", MOVE_COLUMNS, rows)
    return OK


async def _reset(client: "Client", group: str, topic: str, to: str, queue: str | None) -> list[QueueMove]:
    only = None if queue is None else _queue(topic, queue)
    progress = await client.admin.group_progress(group, topic)
    before = {one.queue: one.consumer_offset for one in progress.queues}
    where = int(to) if to.isascii() and to.isdigit() else to
    after = await client.admin.reset_group(group, topic, where, queue=only)
    return [
        QueueMove(queue.topic, queue.broker_name, queue.queue_id, before.get(queue), after[queue])
        for queue in sorted(after)
    ]


def _queue(topic: str, text: str) -> "MessageQueue":
    from aerobee import MessageQueue

    broker_name, _, number = text.rpartition(":")
    if not broker_name or not number.isascii() or not number.isdigit():
        raise Failure(f"{text!r} is not a queue; write BROKER:NUMBER, like broker-a:0", USAGE)
    return MessageQueue(topic, broker_name, int(number))


def clone(
    source: Source,
    target: Target,
    /,
    *,
    topic: Annotated[str | None, Parameter(help="Only in this topic.")] = None,
    offline: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Also topics that the source has given up."),
    ] = False,
    yes: Yes = False,
    connect: Connect | None = None,
) -> int:
    """Start a group where another one is."""
    confirm(f"Send group {target} to where {source} is?", yes=yes)
    done = run(connect, lambda client: client.admin.clone_group(source, target, topic, offline=offline))
    sys.stdout.write(f"group {target} is where {source} is on {', '.join(sorted(set(done)))}\n")
    return OK
