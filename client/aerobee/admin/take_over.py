"""The set of an official master moves to ours: our slave of it becomes the master, while clients go on.

Touches  the brokers of the set, through SetAdmin and Admin.

    fence     brokerRole=SLAVE at the official master: it refuses every write from there on, its own as well, and still
              gives its log, its tables and reads
    level     our slave has the log up to its end, and the tables of behind the fence
    promote   our slave is the master, and registers as such
    demote    brokerId=N at the official broker: it registers as slave N, and no more as the master
    offsets   what clients still commit at the official broker, until they have asked for the route again, is
              committed at ours

The official broker writes both settings into its file: started again it is a slave of ours, never a second master.

Invariants
- Until ours is asked to become the master everything is undone when something is not as needed; from then on nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from aerobee.admin.hand_over import HandOver, HandOverRefused, Moved, Say
from aerobee.admin.set_admin import BrokerNode, MemberState, SetAdmin
from aerobee.errors import BadAnswer, BrokerRefused, ClientError, RequestTimeout
from aerobee.terms.routes import MASTER_ID

__all__ = ["TakeOver"]

STILL_S: Final = 0.15  # between two looks at the end of a log that is fenced
STILL_LOOKS: Final = 3  # that show the same end
FENCED_S: Final = 15.0  # for that
LEVEL_MILLIS: Final = 30_000
CARRY_S: Final = 2.0  # between two looks at the offsets of the official broker
SETTLE_S: Final = 40.0  # official clients ask for the route every 30 s
# Settings of an official broker with which it has a say in who is master, and that must be off.
OWN_WAYS: Final = ("enableControllerMode", "enableSlaveActingMaster", "duplicationEnable")


class Configured(Protocol):
    """Settings of brokers, official ones as well: the part of Admin that is used here."""

    async def broker_config(self, broker: str) -> dict[str, str]: ...

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None: ...

    async def broker_runtime_info(self, broker: str) -> dict[str, str]: ...


class TakeOver(HandOver):
    """Leads the move of one set."""

    def __init__(self, sets: SetAdmin, say: Say, now: Callable[[], float], settings: Configured) -> None:
        super().__init__(sets, say, now)
        self._settings = settings

    async def take_over(
        self,
        broker_name: str,
        to: str | None = None,
        *,
        without_old: bool = False,
        settle_s: float = SETTLE_S,
    ) -> Moved:
        """Make our slave (`to`: its address; without one the only one) the master of an official master's set.

        `without_old`: also where messages are left behind that the slave has never had. `settle_s` is how long offsets
        are carried over afterwards. HandOverRefused, and all is as before, when something is not as needed.
        """
        states = await self._states(await self._sets.nodes(broker_name))
        master = self._one_master(broker_name, states)
        slave = self._slave(states, to, broker_name)
        before = await self._look(master, slave, without_old=without_old)
        await self._catch_up(slave, await self._sets.log_end(master.node.addr))
        began = self._now()
        old, end_offset, facts = await self._fence_and_level(master, slave, before)
        notes = [facts["note"]] if facts.get("note") else []
        await self._serves(slave.node)
        await self._is_registered(slave.node)
        fenced_ms = round((self._now() - began) * 1000)
        self._say(f"{slave.node.addr} is the master; {fenced_ms} ms after the fence")
        number = 1 + max(state.node.broker_id for state in states)
        notes += await self._demote(old, number, before, end_offset)
        await self._sets.register_again(slave.node.addr)
        carried = await self._carry_offsets(old, slave.node.addr, settle_s)
        if carried:
            notes.append(
                f"{carried} offsets that clients committed at {old.addr} meanwhile were carried over"
            )
        notes.append(
            f"stop the official broker at {old.addr} now. Started again it follows {slave.node.addr} as slave {number} "
            "if it was started with a settings file (-c), into which it has written so. Do not start it with its old "
            "settings: it would be a second master"
        )
        return Moved(broker_name, slave.node.addr, old.addr, fenced_ms, tuple(notes))

    # --- before -----------------------------------------------------------------------------------------------

    async def _look(self, master: MemberState, slave: MemberState, *, without_old: bool) -> dict[str, str]:
        """Everything that can be known before somebody is fenced. The official master's settings."""
        addr, ours = master.node.addr, slave.node.addr
        if master.is_ours:
            raise HandOverRefused(f"{addr} is a broker of ours: aerobee cluster switch lets it change places")
        if not slave.is_ours:
            raise HandOverRefused(f"{ours} is no broker of ours: attach one as a slave first")
        self._check_follows(slave, master)
        theirs, own = await asyncio.gather(
            self._settings.broker_config(addr), self._settings.broker_config(ours)
        )
        for key in OWN_WAYS:
            if theirs.get(key) == "true":
                raise HandOverRefused(f"{key}=true at {addr}: such a set has other ways to choose its master")
        if theirs.get("brokerRole") not in {"ASYNC_MASTER", "SYNC_MASTER"}:
            raise HandOverRefused(
                f"brokerRole of {addr} is {theirs.get('brokerRole')}: it is fenced already?"
            )
        key = "mappedFileSizeCommitLog"
        if theirs.get(key) != own.get(key):
            raise HandOverRefused(f"{key} is {theirs.get(key)} at {addr} and {own.get(key)} at {ours}")
        first, own_first = await asyncio.gather(self._log_begin(addr), self._log_begin(ours))
        if own_first > first and not without_old:
            raise HandOverRefused(
                f"{own_first - first} bytes of messages, from {first} to {own_first}, are at {addr} alone: a slave "
                "that begins empty has the last file of its master's log. Wait until they have expired there; or begin "
                "the slave with a copy of the master's store folder; or leave them behind with --without-old"
            )
        return theirs

    async def _log_begin(self, addr: str) -> int:
        figures = await self._settings.broker_runtime_info(addr)
        try:
            return int(figures["commitLogMinOffset"])
        except (KeyError, ValueError) as missing:
            raise BadAnswer(
                f"ask broker {addr} where its log begins", addr, "there is no commitLogMinOffset in it"
            ) from missing

    # --- up to the point of no return -------------------------------------------------------------------------

    async def _fence_and_level(
        self, master: MemberState, slave: MemberState, before: Mapping[str, str]
    ) -> tuple[BrokerNode, int, Mapping[str, str]]:
        """Fence the official master, level our slave, ask it to become the master; all undone when that fails.

        The official broker, the end of its log, and what our slave said.
        """
        old = master.node
        self._say(f"fencing the official master {old.addr}: brokerRole=SLAVE")
        try:
            await self._settings.update_broker_config(old.addr, {"brokerRole": "SLAVE"})
            # Asked for anew: an official broker answers with success where it could not take a value.
            role = (await self._settings.broker_config(old.addr)).get("brokerRole")
            if role != "SLAVE":
                raise HandOverRefused(f"{old.addr} has taken brokerRole=SLAVE and has {role}")
            end_offset = await self._still_end(old.addr)
            self._say(f"its log ends at {end_offset}; waiting for {slave.node.addr}")
            await self._sets.level(slave.node.addr, end_offset, LEVEL_MILLIS)
            self._say(f"{slave.node.addr} has everything: it becomes the master")
            facts = await self._sets.change_role(slave.node.addr, {"brokerRole": "MASTER", "force": True})
        except (ClientError, TimeoutError, asyncio.CancelledError) as failed:
            said = await asyncio.shield(self._undo(old, slave, before, failed))
            if isinstance(failed, asyncio.CancelledError):
                self._say(said)
                raise
            raise HandOverRefused(said) from failed
        return old, end_offset, facts

    async def _still_end(self, addr: str) -> int:
        """Where a log ends that does not grow any more. TimeoutError when it grows on."""
        end, same = await self._sets.log_end(addr), 1
        async with asyncio.timeout(FENCED_S):
            while same < STILL_LOOKS:
                await asyncio.sleep(STILL_S)
                now = await self._sets.log_end(addr)
                end, same = now, same + 1 if now == end else 1
        return end

    async def _undo(
        self, old: BrokerNode, slave: MemberState, before: Mapping[str, str], failed: BaseException
    ) -> str:
        """Take the fence away, unless our slave may be the master by now. What to say."""
        why = str(failed) or type(failed).__name__
        state = await self._sets.state(slave.node)
        asked = not isinstance(failed, BrokerRefused) and isinstance(failed, RequestTimeout)
        if state.is_master or (asked and not state.is_there):
            return (
                f"{why}; {slave.node.addr} may be the master by now, so {old.addr} stays fenced. Look at both: aerobee "
                f"cluster replicas {old.broker_name}. To go back stop ours, then: aerobee cluster config {old.addr} "
                f"--set brokerRole={before['brokerRole']}"
            )
        role = before["brokerRole"]
        try:
            await self._settings.update_broker_config(old.addr, {"brokerRole": role})
        except ClientError as lost:
            return (
                f"{why}; and the fence is still there: {lost}. Take it away: aerobee cluster config {old.addr} --set "
                f"brokerRole={role}"
            )
        return f"{why}; {old.addr} is the master as before and takes messages again"

    # --- afterwards -------------------------------------------------------------------------------------------

    async def _demote(
        self, old: BrokerNode, number: int, before: Mapping[str, str], end_offset: int
    ) -> list[str]:
        """Let the official broker register as a slave; what there is to note."""
        permission = before.get("brokerPermission", "6")  # named, it lets that broker register at once
        changes = {"brokerId": str(number), "brokerPermission": permission}
        notes = []
        try:
            await self._settings.update_broker_config(old.addr, changes)
            last = await self._sets.log_end(old.addr)
        except ClientError as lost:
            return [f"{old.addr} does not answer any more: {lost}. It must not come back as a master"]
        if last != end_offset:
            notes.append(
                f"{last - end_offset} bytes came into the log of {old.addr} after {end_offset}, where ours took over: "
                f"they are there alone. aerobee store dump shows them"
            )
        self._say(f"{old.addr} registers as slave {number} now")
        return notes

    async def _carry_offsets(self, old: BrokerNode, ours: str, settle_s: float) -> int:
        """Commit at ours what clients still commit at the official broker. How many offsets that were."""
        if settle_s > 0:
            self._say(
                f"carrying offsets over for {settle_s:g} s: official clients ask for the route every 30 s. Messages "
                "are taken and read meanwhile"
            )
        count, end = 0, self._now() + settle_s
        while True:
            left = end - self._now()
            try:
                count += await self._sets.carry_offsets(old.addr, ours)
            except ClientError as failed:
                self._say(f"the offsets were not read any more: {failed}")
                return count
            if left <= 0:
                return count
            await asyncio.sleep(min(CARRY_S, left))

    def _slave(self, states: list[MemberState], to: str | None, broker_name: str) -> MemberState:
        """Ours that is meant; slaves of RocketMQ stay slaves."""
        slaves = [
            one for one in states if one.is_there and not one.is_master and one.node.broker_id != MASTER_ID
        ]
        mine = [one for one in slaves if one.is_ours and to in (None, one.node.addr)]
        if len(mine) == 1:
            return mine[0]
        if mine:
            addrs = ", ".join(one.node.addr for one in mine)
            raise HandOverRefused(f"{broker_name} has several slaves of ours: name one of {addrs} with --to")
        raise HandOverRefused(
            f"{to or 'no broker of ours'} is {'no ' if to else 'a '}slave of {broker_name}: start one with brokerName="
            f"{broker_name}, brokerRole=SLAVE, a brokerId, and the namesrvAddr of the set"
        )
