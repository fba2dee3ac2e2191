"""`aerobee cluster replicas, switch, promote, follow, remove, take-over`: members of sets, and another master for one.

Touches  the cluster through the client's admin calls.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from aerobee_console.terminal.failures import FAULT, OK, Failure
from aerobee_console.terminal.numbers import SECONDS
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.tables import Column, print_json, show
from aerobee_service.clock import epoch_ms

if TYPE_CHECKING:
    from aerobee import BrokerNode, Client
    from aerobee.admin.hand_over import Moved
    from aerobee.admin.set_admin import MemberState
    from aerobee.admin.take_over import TakeOver

__all__ = ["add_commands"]

Set = Annotated[str, Parameter(name="SET", help="Name that the brokers of the set share.")]
Address = Annotated[str, Parameter(name="BROKER", help="Address of the broker, host:port.")]
Force = Annotated[bool, Parameter(negative=(), help="Do it all the same.")]

COLUMNS: Final = (
    Column("broker_name", "broker"),
    Column("broker_id", "id", number=True),
    Column("addr", "address"),
    Column("role", "role"),
    Column("end_offset", "log end", number=True),
    Column("lag_bytes", "lag bytes", number=True),
    Column("lag_seconds", "lag s", number=True),
    Column("in_sync", "in sync"),
    Column("epoch", "epoch", number=True),
    Column("says", ""),
)


@dataclass(slots=True, frozen=True)
class ReplicaRow:
    """A member of a set; what it does not say, or cannot be told, is None."""

    broker_name: str
    broker_id: int
    addr: str
    role: str
    end_offset: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    in_sync: bool | None
    epoch: int | None
    says: str


def add_commands(app: App) -> None:
    """Make the commands of this module sub-commands of `app`."""
    for command in (replicas, switch, promote, follow, remove, take_over):
        app.command(command)


def replicas(
    broker: Set | None = None, /, *, output: Output = "table", connect: Connect | None = None
) -> int:
    """Show the members of a set, or of all: role, how far its log goes, and how far behind a slave is.

    Lag in seconds is the age of the newest message that a slave has, while it is behind.
    """
    rows = run(connect, lambda client: _rows(client, broker))
    show(output, "replicas", COLUMNS, rows, empty="the nameserver answers, but no broker has registered")
    return FAULT if any(row.says for row in rows) else OK


async def _rows(client: "Client", broker: str | None) -> list[ReplicaRow]:
    sets = client.admin.sets
    states = await asyncio.gather(*map(sets.state, await sets.nodes(broker)))
    return rows_of(list(states), epoch_ms())


def rows_of(states: "list[MemberState]", now_ms: int) -> list[ReplicaRow]:
    """One row for each member."""
    masters: dict[str, list[MemberState]] = {}
    for state in states:
        if state.is_there and state.is_master:
            masters.setdefault(state.node.broker_name, []).append(state)
    return [_row(state, masters.get(state.node.broker_name, []), now_ms) for state in states]


def _row(state: "MemberState", masters: "list[MemberState]", now_ms: int) -> ReplicaRow:
    node = state.node
    if not state.is_there:
        return ReplicaRow(
            node.broker_name, node.broker_id, node.addr, "?", None, None, None, None, None, state.error
        )
    says, lag, lag_s, in_sync = "", None, None, None
    if not state.is_master:
        says = "" if state.is_linked else "it does not follow its master"
        if len(masters) == 1:
            lag = max(0, masters[0].end_offset - state.end_offset)
            newest = state.newest_message_ms
            if lag == 0:
                lag_s = 0.0
            elif newest:
                lag_s = round(max(0, now_ms - newest) / 1000, 1)
            in_sync = _is_in_sync(state, masters[0])
    elif len(masters) > 1:
        says = "the set has two masters"
    role = state.role.casefold().replace("_", " ")
    return ReplicaRow(
        node.broker_name,
        node.broker_id,
        node.addr,
        role,
        state.end_offset,
        lag,
        lag_s,
        in_sync,
        state.epoch,
        says,
    )


def _is_in_sync(state: "MemberState", master: "MemberState") -> bool | None:
    """None: the master says how many slaves are in sync, and not which."""
    if master.in_sync is not None:
        return state.member in master.in_sync
    if state.is_linked and 0 < master.in_sync_count < master.slave_count:
        return None
    return state.is_linked and master.in_sync_count > 0


def switch(
    broker: Set,
    /,
    *,
    to: Annotated[str | None, Parameter(help="Address of the slave, where there are several.")] = None,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Let the master and a slave of a set change places, without a lost message.

    The master takes nothing any more, the slave gets the last bytes and all offsets, then the roles are swapped; both
    processes go on. Clients that try again notice a pause of less than a second.
    """
    return _led(output, connect, lambda lead: lead.switch(broker, to))


def promote(
    broker: Address,
    /,
    *,
    force: Force = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Make a slave the master of its set, because the master is gone. For a planned change: `aerobee cluster switch`.

    Refused while a master is registered; with --force it is done all the same, and two masters may then take messages
    that only one of them has. A set with an election makes its masters itself: there --force is the way out when all
    members in sync are gone for good, and what only they had is lost.
    """
    return _led(output, connect, lambda lead: lead.promote(broker, force=force))


def follow(
    broker: Address,
    /,
    *,
    master: Annotated[
        str | None, Parameter(help="Address of the master, where the nameservers know this broker as such.")
    ] = None,
    force: Force = False,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Make a master a slave of the one that the nameservers know: an old master that has come back.

    Refused when it has more than the master; with --force it follows all the same.
    """
    return _led(output, connect, lambda lead: lead.follow(broker, master=master, force=force))


def remove(broker: Address, /, *, output: Output = "table", connect: Connect | None = None) -> int:
    """Let nameservers forget a member that is gone for good: clients are not led there any more.

    Refused when it runs: it would register again. A member that does not run is not waited for by its set.
    """

    async def removed(client: "Client") -> "BrokerNode":
        from aerobee.admin.hand_over import HandOver

        return await HandOver(client.admin.sets, lambda line: None, time.monotonic).remove(broker)

    node = run(connect, removed)
    if output == "json":
        print_json(node)
    else:
        sys.stdout.write(f"no nameserver names {node.addr} of {node.broker_name} any more\n")
    return OK


def take_over(
    broker: Set,
    /,
    *,
    to: Annotated[str | None, Parameter(help="Address of our slave, where there are several.")] = None,
    without_old: Annotated[
        bool, Parameter(negative=(), help="Leave messages behind that the slave has never had.")
    ] = False,
    settle: Annotated[
        float,
        Parameter(validator=SECONDS, help="Seconds to carry offsets over that are still committed there."),
    ] = 40.0,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Move a live set of RocketMQ to ours: our slave of its official master becomes the master.

    The official master takes nothing any more, our slave gets the last bytes and all offsets, and takes its place;
    clients go on. Refused, with everything as before, when something is not as needed. docs/replication.md says more.
    """
    return _led(
        output,
        connect,
        lambda lead: lead.take_over(broker, to, without_old=without_old, settle_s=settle),
    )


def _led(
    output: str, connect: Connect | None, work: "Callable[[TakeOver], Coroutine[Any, Any, Moved]]"
) -> int:
    async def led(client: "Client") -> "Moved":
        from aerobee.admin.take_over import TakeOver

        began = time.monotonic()

        def say(line: str) -> None:
            sys.stderr.write(f"{time.monotonic() - began:6.2f} s  {line}\n")

        try:
            return await work(TakeOver(client.admin.sets, say, time.monotonic, client.admin))
        except TimeoutError as late:
            raise Failure(
                "the roles were changed, but a broker or a nameserver did not say so in time: aerobee cluster "
                "replicas shows how it stands"
            ) from late

    moved = run(connect, led)
    if output == "json":
        print_json(moved)
        return OK
    took = f"; nothing was taken for {moved.fenced_ms} ms" if moved.fenced_ms is not None else ""
    sys.stdout.write(f"{moved.master_addr} is the master of {moved.broker_name}{took}\n")
    for note in moved.notes:
        sys.stdout.write(f"note: {note}\n")
    return OK
