"""Checks of sets with several members: one master, slaves that follow it, and enough of them.

Touches  nameservers and brokers through the client.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aerobee_console.checks.checkup import Checkup
from aerobee_service.clock import epoch_ms

if TYPE_CHECKING:
    from aerobee import BrokerNode, ClientConfig
    from aerobee.admin.set_admin import MemberState

__all__ = ["SetFacts", "check_set", "check_sets"]

MASTER_ID: Final = 0
LAG_NOTE_S: Final = 30.0
LAG_FAULT_BYTES: Final = 256 << 20  # the default of haMaxGapNotInSync


@dataclass(slots=True, frozen=True)
class SetFacts:
    """What is known about one set. `masters` is who is registered as such, by nameserver; "" where nobody is."""

    name: str
    masters: Mapping[str, str]
    states: "Sequence[MemberState]"
    settings: Mapping[str, str] = field(default_factory=dict)  # of its master


async def check_sets(checkup: Checkup, config: "ClientConfig") -> None:
    """All sets that have more than a master. Servers that do not answer have their own checks."""
    from aerobee import Client, ClientError

    async with Client(config=config) as client:
        sets = client.admin.sets
        try:
            known = await sets.registered()
        except ClientError:
            return
        members: dict[str, dict[str, BrokerNode]] = defaultdict(dict)
        for nodes in known.values():
            for node in nodes:
                members[node.broker_name].setdefault(node.addr, node)
        for name, nodes_by_addr in sorted(members.items()):
            if len(nodes_by_addr) == 1 and next(iter(nodes_by_addr.values())).broker_id == MASTER_ID:
                continue
            masters = {
                addr: next(
                    (one.addr for one in nodes if one.broker_name == name and one.broker_id == MASTER_ID), ""
                )
                for addr, nodes in known.items()
            }
            try:
                states = await asyncio.gather(*map(sets.state, nodes_by_addr.values()))
                master = next((one for one in states if one.is_there and one.is_master), None)
                settings = await client.admin.broker_config(master.node.addr) if master else {}
            except ClientError as failed:
                checkup.note(f"set {name}", f"its members were not asked: {failed}")
                continue
            check_set(checkup, SetFacts(name, masters, states, settings), epoch_ms())


def check_set(checkup: Checkup, facts: SetFacts, now_ms: int) -> None:
    """Judge one set."""
    name = f"set {facts.name}"
    before = len(checkup.checks)
    elects = any(state.is_elected for state in facts.states)
    masters = [state for state in facts.states if state.is_there and state.is_master]
    if len(masters) > 1:
        addrs = " and ".join(state.node.addr for state in masters)
        checkup.fault(
            name,
            f"it is split: {addrs} are both masters, and each takes messages that the other one has not",
            _ELECTION
            if elects
            else "decide which one is right; the other: aerobee cluster follow ADDRESS --master "
            f"{masters[0].node.addr}",
        )
        return
    if len(set(facts.masters.values())) > 1:
        said = "; ".join(f"{addr}: {master or 'nobody'}" for addr, master in facts.masters.items())
        checkup.fault(
            name,
            f"nameservers know different masters: {said}",
            "it passes when brokers register again, within a minute; else look for `broker.registration_failed`",
        )
    if not masters:
        checkup.fault(
            name,
            "it has no master that answers: nobody takes messages",
            _ELECTION
            if elects
            else "start it; if it is gone for good: aerobee cluster promote ADDRESS, of the slave that has most",
        )
        return
    _check_slaves(checkup, name, masters[0], facts.states, now_ms)
    _check_copies(checkup, name, masters[0], facts)
    if len(checkup.checks) == before:
        count = sum(state.is_there and not state.is_master for state in facts.states)
        checkup.ok(
            name, f"{masters[0].node.addr} is its master, {count} slave{'s' if count != 1 else ''} follow it"
        )


def _check_slaves(
    checkup: Checkup, name: str, master: "MemberState", states: "Sequence[MemberState]", now_ms: int
) -> None:
    for state in states:
        addr = state.node.addr
        if not state.is_there:
            checkup.note(name, state.error, "is it running, or is it what a take-over has left: stop it then")
        if not state.is_there or state.is_master:
            continue
        behind = master.end_offset - state.end_offset
        if not state.is_linked:
            checkup.fault(
                name,
                f"the slave {addr} does not follow its master, and is {max(behind, 0)} bytes behind",
                "its log says why: replication.master_lost",
            )
        elif behind < 0:
            checkup.fault(
                name,
                f"the slave {addr} has {-behind} bytes that its master has lost",
                "docs/replication.md, When it goes wrong, says what to do",
            )
        elif behind >= LAG_FAULT_BYTES:
            checkup.fault(name, f"the slave {addr} is {behind >> 20} MiB behind", _SLOW)
        elif behind and state.newest_message_ms and now_ms - state.newest_message_ms > LAG_NOTE_S * 1000:
            seconds = (now_ms - state.newest_message_ms) // 1000
            checkup.note(name, f"the slave {addr} is {behind} bytes and {seconds} s behind", _SLOW)


_ELECTION: Final = (
    "it elects one by itself within seconds while etcd answers and a member in sync runs; logs of its members say what "
    "is in the way (election.*)"
)
_SLOW: Final = (
    "look at its disk and at the network between the two; haFlowControlEnable bounds what it is sent"
)


def _check_copies(checkup: Checkup, name: str, master: "MemberState", facts: SetFacts) -> None:
    """Whether there are as many members as the settings of the master count on."""
    settings = facts.settings
    if settings.get("brokerRole") == "SYNC_MASTER":
        copies, least = _number(settings, "inSyncReplicas"), _number(settings, "minInSyncReplicas")
        there = 1 + master.in_sync_count
        if there < least:
            checkup.fault(
                name,
                f"sends are refused: {there} copies are in sync, minInSyncReplicas is {least}",
                "start the slaves that are missing, or let them catch up",
            )
        elif there < copies and settings.get("enableAutoInSyncReplicas") != "true":
            checkup.fault(
                name,
                f"sends wait in vain and are answered with code 12: {there} copies are in sync, inSyncReplicas is "
                f"{copies}",
                "start the slaves that are missing, or let them catch up",
            )
    expected = _number(settings, "totalReplicas")
    if expected > (there_all := sum(state.is_there for state in facts.states)):
        checkup.note(name, f"{there_all} of {expected} members are there (totalReplicas)", "start the others")


def _number(settings: Mapping[str, str], key: str) -> int:
    text = settings.get(key, "")
    return int(text) if text.isdecimal() else 1
