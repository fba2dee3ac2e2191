"""Another master for a set, by an operator: planned, after a loss, or from an official broker to one of ours.

Touches  the brokers of the set, through SetAdmin.

    switch      fence the master, wait for the slave, master -> slave, slave -> master
    promote     slave -> master: the master is gone; with an election, when all members in sync are
    follow      master -> slave of the master that the nameservers know

Invariants
- In a switch no member takes messages before the one that took them has stopped for good: what dies in between leaves
  a set without a master, never one with two.
- What could not be finished is undone, and said.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aerobee.admin.set_admin import BrokerNode, MemberState, SetAdmin
from aerobee.errors import BrokerRefused, BrokerUnreachable, ClientError, NotFound, RequestTimeout
from aerobee.terms.routes import MASTER_ID

__all__ = ["HandOver", "HandOverRefused", "Moved"]

FENCE_MILLIS: Final = 10_000
CATCH_UP_MILLIS: Final = 60_000
LEVEL_MILLIS: Final = 3_000  # behind the fence
LAG_MAX: Final = 256 << 20  # bytes; a slave that is further behind is not waited for
POLL_S: Final = 0.01
SERVING_S: Final = 15.0  # for a new life to begin, and to be known at the nameservers
TRIES: Final = 3

Say = Callable[[str], None]


class HandOverRefused(ClientError):
    """The master of the set has not changed; the text says why, and what was undone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(slots=True, frozen=True)
class Moved:
    """What has changed. `fenced_ms` is how long nothing was taken; None: nobody was fenced."""

    broker_name: str
    master_addr: str
    former_addr: str
    fenced_ms: int | None
    notes: tuple[str, ...] = ()


class HandOver:
    """Leads hand-overs of one set."""

    def __init__(self, sets: SetAdmin, say: Say, now: Callable[[], float]) -> None:
        """`say` is given lines about how far it is; `now` is a clock in seconds."""
        self._sets = sets
        self._say = say
        self._now = now

    # --- planned ----------------------------------------------------------------------------------------------

    async def switch(self, broker_name: str, to: str | None = None) -> Moved:
        """Let a slave of ours (`to`: its address; without one the only one) and the master change places.

        HandOverRefused when it cannot be; NotFound when nobody knows the set.
        """
        sets = self._sets
        states = await self._states(await sets.nodes(broker_name))
        master = self._one_master(broker_name, states)
        slave = _chosen(states, to, broker_name)
        for state in (master, slave):
            if not state.is_ours:
                raise HandOverRefused(
                    f"{state.node.addr} is an official broker, or an older one of ours: it takes no other role by "
                    "request. To move its set to ours: aerobee cluster take-over"
                )
            if not master.is_elected:
                _check_changes(state)
        in_sync = master.in_sync or frozenset()
        if master.is_elected and slave.member not in in_sync:
            raise HandOverRefused(
                f"{slave.node.addr} is not in sync: only one of the members {sorted(in_sync)} can be elected"
            )
        self._check_follows(slave, master)
        await self._catch_up(slave, master.end_offset)
        self._say(f"fencing the master {master.node.addr}")
        began = self._now()
        fenced = await sets.fence(master.node.addr, FENCE_MILLIS)
        try:
            facts = await sets.level(slave.node.addr, int(fenced["endOffset"]), LEVEL_MILLIS)
            self._say(f"{slave.node.addr} has everything, up to {fenced['endOffset']}: the two change places")
            down = await self._step_down(
                master,
                {
                    "brokerRole": "SLAVE",
                    "brokerId": slave.member,
                    "masterAddr": facts["brokerAddr"],
                    "masterHaAddr": facts["haAddr"],
                },
            )
        except ClientError as failed:
            raise HandOverRefused(await self._unfence(master.node.addr, failed)) from failed
        # An election makes the slave master by itself, as the old one has named it.
        up: Mapping[str, str] = {} if master.is_elected else await self._raise(slave, master, fenced)
        await self._serves(slave.node)
        await self._is_registered(slave.node)
        fenced_ms = round((self._now() - began) * 1000)
        notes = _notes({master.node.addr: down, slave.node.addr: up})
        return Moved(broker_name, slave.node.addr, master.node.addr, fenced_ms, notes)

    async def _step_down(self, master: MemberState, header: Mapping[str, object]) -> Mapping[str, str]:
        """Make the master a slave. One by election may hang up before it answers: its life ends when its seat is left.
        Whether it has left it shows in who serves next."""
        try:
            return await self._sets.change_role(master.node.addr, header)
        except BrokerUnreachable:
            if not master.is_elected:
                raise
            return {}

    async def _raise(
        self, slave: MemberState, master: MemberState, fenced: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Make the slave master, with the promises of the old one; when it will not, the old one again."""
        header = {
            "brokerRole": fenced["brokerRole"],
            "inSyncReplicas": fenced["inSyncReplicas"],
            "minInSyncReplicas": fenced["minInSyncReplicas"],
            "force": True,  # its link may still be open: the other end is going down
        }
        last: ClientError | None = None
        for _ in range(TRIES):
            try:
                return await self._sets.change_role(slave.node.addr, header)
            except (BrokerRefused, RequestTimeout, BrokerUnreachable) as failed:
                last = failed
        # Nobody else is master: the old one has everything.
        back = await self._back(master, header)
        raise HandOverRefused(f"{slave.node.addr} did not become master: {last}; {back}") from last

    async def _back(self, master: MemberState, header: Mapping[str, object]) -> str:
        addr = master.node.addr
        try:
            await self._serves(master.node, as_master=False)
            await self._sets.change_role(addr, header)
        except (ClientError, TimeoutError) as failed:
            return (
                f"{addr} is a slave now and did not become master again: {failed}. The set has no master: look which "
                f"broker runs, then aerobee cluster promote {addr}"
            )
        return f"{addr} is the master again"

    async def _unfence(self, addr: str, failed: ClientError) -> str:
        """What to say when nothing has changed but the fence."""
        try:
            await self._sets.fence(addr, 0)
        except ClientError:
            return f"{failed}; the fence at {addr} falls by itself within {FENCE_MILLIS // 1000} s"
        return f"{failed}; {addr} takes messages again"

    # --- after a loss -----------------------------------------------------------------------------------------

    async def promote(self, addr: str, *, force: bool = False) -> Moved:
        """Make a slave of ours the master of its set, whose master is gone.

        HandOverRefused while a master of the set is registered, unless `force`. A set with an election refuses while
        one of its members can be elected, and without `force`, as it loses what only members in sync had.
        """
        node = await self._node(addr)
        state = await self._state(node)
        if state.is_master:
            raise HandOverRefused(f"{addr} is a master already")
        if state.is_elected:
            return await self._promote_elected(state, force=force)
        _check_changes(state)
        known = await self._sets.registered()
        others = {
            other.addr: nameserver
            for nameserver, nodes in known.items()
            for other in nodes
            if other.broker_name == node.broker_name and other.broker_id == MASTER_ID and other.addr != addr
        }
        if others and not force:
            other, nameserver = next(iter(others.items()))
            raise HandOverRefused(
                f"{other} is registered as the master of {node.broker_name} at {nameserver}. If it runs, let the two "
                f"change places: aerobee cluster switch {node.broker_name}. If it is gone for good: --force"
            )
        said = await self._sets.change_role(addr, {"brokerRole": "MASTER", "force": force})
        await self._serves(node)
        await self._is_registered(node)
        notes = [
            "what the old master had and this slave had not is not here; messages up to physical offset "
            f"{state.end_offset} are",
            "the old master must not come back as one: before it starts again, set brokerRole=SLAVE and "
            f"brokerId={state.member} for it (or, if it runs: aerobee cluster follow ITS-ADDRESS)",
            *_notes({addr: said}),
        ]
        return Moved(node.broker_name, addr, next(iter(others), ""), None, tuple(notes))

    async def _promote_elected(self, state: MemberState, *, force: bool) -> Moved:
        node = state.node
        try:
            said = await self._sets.change_role(node.addr, {"brokerRole": "MASTER", "force": force})
        except BrokerRefused as refused:
            raise HandOverRefused(f"{node.addr}: {refused.remark}") from refused
        except (
            BrokerUnreachable
        ):  # its life has ended before it could answer: who serves next shows what was done
            said = {}
        await self._serves(node)
        await self._is_registered(node)
        notes = (
            f"messages up to physical offset {state.end_offset} are here; members that have others cut them off when "
            "they come back (store.log_cut)",
            *_notes({node.addr: said}),
        )
        return Moved(node.broker_name, node.addr, "", None, notes)

    async def remove(self, addr: str) -> BrokerNode:
        """Let no nameserver lead clients to a member that is gone for good; without this they forget it after two
        minutes of silence.

        HandOverRefused when it runs: it would register again. NotFound when no nameserver knows it.
        """
        node = await self._node(addr)
        state = await self._sets.state(node)
        if state.is_there:
            way = f"aerobee cluster switch {node.broker_name}, then stop it" if state.is_master else "stop it"
            raise HandOverRefused(f"{addr} runs, and would register again: first {way}")
        for nameserver, nodes in (await self._sets.registered()).items():
            for known in nodes:
                if known.addr == addr and known.broker_name == node.broker_name:
                    await self._sets.unregister(nameserver, known)
        return node

    async def follow(self, addr: str, *, master: str | None = None, force: bool = False) -> Moved:
        """Make a master of ours a slave of the one that the nameservers know as master of its set, or of `master`: an
        old master that has come back is known in the place of the new one.

        HandOverRefused when there is none, or when this one has more than that one, unless `force`.
        """
        node = await self._node(addr)
        state = await self._state(node)
        if not state.is_master:
            raise HandOverRefused(f"{addr} is a slave already")
        _check_changes(state)
        nodes = await self._sets.nodes(node.broker_name)
        masters = [one.addr for one in nodes if one.broker_id == MASTER_ID and one.addr != addr]
        if master is None and not masters:
            raise HandOverRefused(
                f"no other master of {node.broker_name} is registered. If this broker has taken its place at the "
                "nameservers, name it: --master ADDRESS. If there is none, let a slave be the master first: aerobee "
                f"cluster switch {node.broker_name}"
            )
        other = await self._state(node_at(master or masters[0], node))
        if not other.is_master:
            raise HandOverRefused(f"{other.node.addr} is no master")
        if other.end_offset < state.end_offset and not force:
            raise HandOverRefused(
                f"{addr} has {state.end_offset - other.end_offset} bytes more than the master {other.node.addr}: "
                "they may be messages that nobody else has. --force lets it follow all the same"
            )
        taken = {one.broker_id for one in nodes}
        member = state.member
        if member == MASTER_ID or member in taken:
            member = next(number for number in range(1, len(taken) + 2) if number not in taken)
        said = await self._sets.change_role(
            addr,
            {
                "brokerRole": "SLAVE",
                "brokerId": member,
                "masterAddr": other.node.addr,
                "masterHaAddr": await self._sets.ha_addr(other.node.addr),
            },
        )
        await self._serves(node, as_master=False)
        await self._sets.register_again(other.node.addr)
        return Moved(node.broker_name, other.node.addr, addr, None, _notes({addr: said}))

    # --- steps ------------------------------------------------------------------------------------------------

    async def _node(self, addr: str) -> BrokerNode:
        """The broker at this address. NotFound when no nameserver knows one there."""
        for nodes in (await self._sets.registered()).values():
            for node in nodes:
                if node.addr == addr:
                    return node
        raise NotFound(
            "broker",
            addr,
            where="is registered",
            advice="if one runs there, its log says `broker.registration_failed` and why",
        )

    async def _states(self, nodes: Sequence[BrokerNode]) -> list[MemberState]:
        return list(await asyncio.gather(*map(self._sets.state, nodes)))

    async def _state(self, node: BrokerNode) -> MemberState:
        state = await self._sets.state(node)
        if not state.is_there:
            raise HandOverRefused(state.error)
        return state

    def _one_master(self, broker_name: str, states: Sequence[MemberState]) -> MemberState:
        masters = [state for state in states if state.is_there and state.is_master]
        if len(masters) == 1:
            return masters[0]
        if masters:
            addrs = " and ".join(state.node.addr for state in masters)
            raise HandOverRefused(f"{addrs} are both masters of {broker_name}: end one of them first")
        silent = "; ".join(state.error for state in states if state.error)
        way_out = "aerobee cluster promote makes a slave the master"
        if any(state.is_elected for state in states):
            way_out = (
                "it elects one by itself while etcd answers and a member in sync runs; logs of its members say what is "
                "in the way (election.*)"
            )
        raise HandOverRefused(
            f"no master of {broker_name} answers{f' ({silent})' if silent else ''}: {way_out}"
        )

    def _check_follows(self, slave: MemberState, master: MemberState) -> None:
        behind = master.end_offset - slave.end_offset
        if not slave.is_linked:
            raise HandOverRefused(
                f"{slave.node.addr} does not follow its master: its log says why (replication.master_lost)"
            )
        if behind > LAG_MAX:
            raise HandOverRefused(
                f"{slave.node.addr} is {behind >> 20} MiB behind, more than {LAG_MAX >> 20}: ask again when it has "
                "caught up (aerobee cluster replicas)"
            )

    async def _catch_up(self, slave: MemberState, end_offset: int) -> None:
        """Before anybody is fenced: let it have what there is now."""
        self._say(f"waiting for {slave.node.addr} to be level")
        try:
            await self._sets.level(slave.node.addr, end_offset, CATCH_UP_MILLIS)
        except BrokerRefused as late:
            raise HandOverRefused(f"{slave.node.addr} did not catch up: {late.remark}") from late

    async def _serves(self, node: BrokerNode, *, as_master: bool = True) -> None:
        """Wait until its new life answers. TimeoutError when it does not."""
        async with asyncio.timeout(SERVING_S):
            while True:
                state = await self._sets.state(node)
                if state.is_there and state.is_master == as_master:
                    return
                await asyncio.sleep(POLL_S)

    async def _is_registered(self, node: BrokerNode) -> None:
        """Wait until each nameserver that answers knows it as the master. TimeoutError when one does not."""
        async with asyncio.timeout(SERVING_S):
            while True:
                known = await self._sets.registered()
                expected = BrokerNode(node.cluster_name, node.broker_name, MASTER_ID, node.addr)
                if all(expected in nodes for nodes in known.values()):
                    return
                await asyncio.sleep(POLL_S)


def _chosen(states: Sequence[MemberState], to: str | None, broker_name: str) -> MemberState:
    """The slave that is meant."""
    slaves = [state for state in states if state.is_there and not state.is_master]
    if to is not None:
        slaves = [state for state in slaves if state.node.addr == to]
    if not slaves:
        what = f"{to} is no slave of {broker_name} that answers" if to else f"{broker_name} has no slave"
        raise HandOverRefused(f"{what}; aerobee cluster replicas {broker_name} shows its members")
    if len(slaves) > 1:
        addrs = ", ".join(state.node.addr for state in slaves)
        raise HandOverRefused(f"{broker_name} has several slaves: name one of {addrs} with --to")
    return slaves[0]


def _check_changes(state: MemberState) -> None:
    if state.fixed_by:
        raise HandOverRefused(f"{state.node.addr}: {state.fixed_by}")


def node_at(addr: str, member: BrokerNode) -> BrokerNode:
    """The master at this address, of the set of this member."""
    return BrokerNode(member.cluster_name, member.broker_name, MASTER_ID, addr)


def _notes(said: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    return tuple([f"{addr}: {answer['note']}" for addr, answer in said.items() if answer.get("note")])
