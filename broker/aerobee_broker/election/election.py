"""The election of one broker: it keeps a lease, reads the register, and says which role the next life has.

Touches  the register; one task that renews the lease, one that hears of changes, one that reads and decides.

It outlives lives: those are told by it what they are, and tell it when they begin and end.

    every third of a lease    the lease is renewed, and the register read
    on each change there      it is read again
    master gone               the same: its process has ended, and a member in sync takes the seat without waiting
    every LOOK_S              a master looks who is in sync

The lease counts from when its last successful renewal was sent, by a clock that goes on while the machine sleeps, less
DRIFT of it: two clocks may drift apart that much. Without a register everything goes on as long as the lease does.

Invariants
- Nothing but `Seat` decides; here is what it cannot do: to wait.
- A master waits for a member from the turn of the event loop on in which that is proposed to the register.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from aerobee_broker.election.in_sync import Chosen, InSync, Linked
from aerobee_broker.election.records import Keys, decode_view
from aerobee_broker.election.register import (
    NO_LEASE,
    ChangesLost,
    LeaseGone,
    Register,
    RegisterError,
    RegisterUnreachable,
)
from aerobee_broker.election.seat import LogFacts, Part, Problem, Seat, Tenure
from aerobee_broker.lives.role import Role
from aerobee_broker.lives.seating import ElectionStatistics, Served, SetStanding
from aerobee_broker.settings.config import BrokerConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError

__all__ = ["Election", "clock_s"]

log = structlog.get_logger()

DRIFT: Final = 0.1  # of a lease
RENEWALS: Final = 3  # in the time of a lease
LOOK_S: Final = 0.1
FIRST_S: Final = 1.0  # that the first life waits to hear what it is
STEPS_MAX: Final = 8  # transactions in one go
RETRY_S: Final = 0.2  # after a failed call
CLOSE_S: Final = 1.0
OF_AN_ELECTION: Final = (
    "the role of this broker is given by an election (electionEndpoints): aerobee cluster switch hands the seat of the "
    "master over to a member in sync, and one that is stopped leaves it to another"
)
MASTER_SETTINGS: Final = (("brokerRole", "SYNC_MASTER"),)


def clock_s() -> float:
    """Seconds since the machine was started, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Election:
    """A RoleSource, and the Seating of the lives. `first` once, `close` once. All calls from the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        register: Register,
        *,
        store: str,
        clock: Callable[[], float] = clock_s,
        close_register: Callable[[], Awaitable[None]] | None = None,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`store` is the identity of this broker's store, `clock` gives seconds that never stand still. `beside` runs
        as long as the election does."""
        # Fixed for life.
        self._config = config
        self._register = register
        self._close_register = close_register
        self._beside = beside
        self.store = store
        self._clock = clock
        self._lease_s = config.election_lease_millis / 1000
        self._keys = Keys(config.election_prefix, config.broker_cluster_name, config.broker_name)
        self.seat = Seat(self._keys, config.broker_id, config.total_replicas, config.min_in_sync_replicas)
        # Moved by the tasks.
        self._lease = NO_LEASE
        self._in_sync: InSync | None = None
        self._judged: Tenure | None = None  # whose members `_in_sync` knows
        self._joining: frozenset[int] = frozenset()  # waited for, and not proposed yet
        self._kept: frozenset[int] = frozenset()  # in sync by the register alone
        self._read_at = float("-inf")
        self._read = asyncio.Event()  # once
        self._woken = asyncio.Event()  # the register has to be read
        self._moved = asyncio.Event()  # another role may be due
        self._tasks: list[asyncio.Task[None]] = []
        # Moved by lives.
        self._served: Served | None = None
        self._shared_addr = ""  # of several members, as was seen once
        # For the log: what was said last.
        self._unreached = ""
        self._problem: Problem | None = None
        self._known_part: Part | None = None

    # --- as RoleSource ----------------------------------------------------------------------------------------

    async def first(self) -> Role:
        """A slave's role, of the master that there is: nobody becomes master before its store is open."""
        log.info(
            "election.started",
            member=self._config.broker_id,
            store=self.store,
            keys=self._keys.prefix,
            lease_ms=self._config.election_lease_millis,
        )
        for name, work in (("lease", self._renew), ("register", self._watch), ("decide", self._decide)):
            self._tasks.append(asyncio.create_task(work(), name=f"election {name}"))
        if self._beside is not None:
            self._tasks.append(asyncio.create_task(_run(self._beside), name="election files"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await self._read.wait()
        return self._role(Role(False, 0, self._config.broker_id))

    async def next(self, role: Role) -> Role:
        """Return when the register says that this member has another part, or the lease is over."""
        while (due := self._role(role)) == role:
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._moved.wait()
        return due

    def _role(self, role: Role) -> Role:
        """What a life with this role should be; itself while nothing else is known."""
        member = self._config.broker_id
        part = self.seat.part(self._clock())
        if part is None:
            return role._replace(is_master=False, settings=()) if role.is_master else role
        if part.is_master:
            return Role(True, part.epoch, member, settings=MASTER_SETTINGS)
        view = self.seat.view
        master = view.members.get(part.master) if view is not None else None
        if master is None:
            return role._replace(is_master=False, settings=()) if role.is_master else role
        return Role(False, part.epoch, member, master.addr, master.ha_addr)

    async def close(self) -> None:
        """Let go of the seat, for whoever may take it, if the register can be reached."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.seat.lease_gone()
        if self._lease != NO_LEASE:
            with contextlib.suppress(RegisterError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._register.revoke(self._lease)
        if self._close_register is not None:
            await self._close_register()

    # --- as RoleControl ---------------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why no role can be asked for."""
        return OF_AN_ELECTION

    async def change(
        self, settings: Mapping[str, str], master_addr: str, master_ha_addr: str, *, is_forced: bool = False
    ) -> str:
        """Hand the seat over to the member at `master_addr`, which has to be in sync: only the master may be asked. Or,
        by force, take it as a slave that is not in sync, when nobody else can. RequestError: it cannot be."""
        if settings.get("brokerRole") != "SLAVE":
            return await self._take_by_force(is_forced=is_forced)
        view = self.seat.view
        if view is None or not self.seat.holds(self._clock()):
            raise RequestError(ResponseCode.NO_PERMISSION, OF_AN_ELECTION)
        there = [number for number, record in view.members.items() if record.addr == master_addr]
        proposal = self.seat.resign(self._clock(), there[0]) if there else None
        if proposal is None:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"{master_addr[:100] or 'nobody'} is not in sync: members {sorted(self.seat.in_sync)} are",
            )
        log.info("election.seat_left", successor=there[0])
        self._moved.set()
        try:
            done = await self._register.swap(proposal.conditions, proposal.puts, proposal.deletes)
        except RegisterError as failed:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the seat is left, and nobody named: {failed}"
            ) from failed
        finally:
            self._woken.set()
        if done is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the set has changed meanwhile: ask again")
        return ""

    async def _take_by_force(self, *, is_forced: bool) -> str:
        """All members in sync are gone for good, as an operator says: what only they had is lost."""
        self.seat.serves(self._facts())
        if obstacle := self.seat.obstacle(self._clock()):
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, f"{OF_AN_ELECTION}; {obstacle}")
        proposal = self.seat.forced(self._clock())
        gone = sorted(self.seat.in_sync)
        if not is_forced or proposal is None:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"only members {gone} have everything that was answered with success, and none of them runs: bring "
                "one of them back. If they are gone for good: --force makes this one the master, with its log as it "
                "is, and what it has not is lost",
            )
        try:
            done = await self._register.swap(proposal.conditions, proposal.puts, proposal.deletes)
        except RegisterError as failed:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"it may be master soon, or not: {failed}"
            ) from failed
        finally:
            self._woken.set()
        if done is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the set has changed meanwhile: look again")
        facts = self._facts()
        log.error(
            "election.seat_forced",
            in_sync_before=gone,
            end_offset=None if facts is None else facts.end_offset,
        )
        return f"members {gone} were in sync: what they had and this one has not is lost"

    # --- as Seating -------------------------------------------------------------------------------------------

    def holds(self, epoch: int) -> bool:
        """Whether this broker is the master of this epoch at this moment, for certain."""
        seat = self.seat
        return seat.holds(self._clock()) and seat.tenure is not None and seat.tenure.epoch == epoch

    def began(self, served: Served) -> None:
        """A life serves."""
        self._served = served
        self._take_waits()
        self._woken.set()

    def heard_of(self, epoch: int) -> None:
        """A slave knows of a master of this epoch, which is newer than that of the life: the register says more."""
        log.warning("election.newer_epoch_heard", epoch=epoch)
        self._woken.set()

    def missed(self, epoch: int, *, is_gone: bool) -> None:
        """The host of the master refuses connections where it gave its log: the process is gone, and its lease need
        not be waited for."""
        self.seat.missed(epoch, is_gone=is_gone)
        if is_gone:
            log.warning("election.master_gone", epoch=epoch)
            self._woken.set()

    def left(self) -> None:
        """Not master any more. The lease goes with the process, or before."""
        self.seat.leave()

    def ended(self) -> None:
        """It is about to end."""
        self._served = None
        self.seat.serves(None)

    # --- the lease --------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            sent = self._clock()
            try:
                if self._lease == NO_LEASE:
                    lease, granted_s = await self._register.grant(self._lease_s), self._lease_s
                else:
                    lease, granted_s = self._lease, await self._register.keep_alive(self._lease)
            except LeaseGone:
                log.warning("election.lease_lost", lease=self._lease)
                self._lease = NO_LEASE
                self.seat.lease_gone()
                self._moved.set()
                continue
            except RegisterError as failed:
                self._failed(failed)
                await asyncio.sleep(RETRY_S)
                continue
            self._lease = lease
            self.seat.leased(lease, sent + min(granted_s, self._lease_s) * (1 - DRIFT))
            self._woken.set()
            await asyncio.sleep(max(0.0, sent + self._lease_s / RENEWALS - self._clock()))

    # --- the register -----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Have the register read whenever something of the set changes."""
        await self._read.wait()
        while True:
            view = self.seat.view
            assert view is not None, "it was read"
            try:
                async with contextlib.aclosing(
                    self._register.watch(self._keys.prefix, view.revision)
                ) as changes:
                    async for _ in changes:
                        self._woken.set()
            except ChangesLost:
                self._woken.set()
                await asyncio.sleep(RETRY_S)
            except RegisterError as failed:
                self._failed(failed)
                await asyncio.sleep(RETRY_S)

    async def _decide(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            if not self._woken.is_set() and not self.seat.holds(self._clock()):
                continue
            try:
                if self._woken.is_set():
                    self._woken.clear()
                    await self._look()
                await self._step()
            except (RegisterError, FormatError) as failed:
                self._failed(failed)
                await asyncio.sleep(RETRY_S)
                self._woken.set()

    async def _look(self) -> None:
        """Read the register, and tell whom it concerns."""
        view = decode_view(await self._register.read(self._keys.prefix), self._keys)
        if self._unreached:
            log.info("election.register_reached", after=self._unreached)
            self._unreached = ""
        before = self.seat.in_sync
        self.seat.saw(view)
        self._read.set()
        self._take_waits()
        self._report(before)
        self._moved.set()

    async def _step(self) -> None:
        """Do what there is to do, one transaction after the other."""
        for _ in range(STEPS_MAX):
            self.seat.serves(self._facts())
            chosen = self._chosen()
            self._joining = chosen.joining if chosen is not None else frozenset()
            self._kept = chosen.kept if chosen is not None else frozenset()
            proposal = self.seat.proposal(self._clock(), None if chosen is None else chosen.in_sync)
            self._take_waits()
            if proposal is None:
                return
            revision = await self._register.swap(proposal.conditions, proposal.puts, proposal.deletes)
            self.seat.answered(proposal, revision)
            if revision is not None and proposal.kind in ("create", "take"):
                log.info("election.seat_taken", kind=proposal.kind, in_sync=sorted(proposal.in_sync))
            await self._look()

    def _facts(self) -> LogFacts | None:
        served = self._served
        if served is None:
            return None
        return LogFacts(served.addr, served.ha_addr, served.end_offset(), served.last_epoch, self.store)

    def _chosen(self) -> Chosen | None:
        """Who should be in sync, as the life of this mastership sees it; None: it is not for this member to say."""
        served, tenure, view = self._served, self.seat.tenure, self.seat.view
        if served is None or served.replicas is None or tenure is None or view is None:
            return None
        if served.epoch != tenure.epoch:
            return None
        if self._judged is not tenure or self._in_sync is None:
            self._judged, self._in_sync = tenure, InSync(self._config.broker_id, self.store)
        replicas = served.replicas
        served.advanced()  # what is acknowledged has to be known up to now
        linked = {
            one.member: Linked(one.store, one.link.acked_offset, served.tables(one.member))
            for one in sorted(replicas.connected, key=lambda one: one.link.acked_offset)
            if one.member is not None and one.link.has_begun
        }
        return self._in_sync.chosen(
            self._clock(),
            self.seat.in_sync,
            {member: record.store for member, record in view.members.items()},
            linked,
            (replicas.offset, served.end_offset()),
            served.rules(self._lease_s / 2),
        )

    def _take_waits(self) -> None:
        """Let the life wait for whom it has to."""
        served = self._served
        if served is None or served.replicas is None or self.seat.tenure is None:
            return
        others = frozenset(self.seat.in_sync) - {self._config.broker_id} - self._kept
        if served.replicas.wait_for(self.seat.waited_for | self._joining, others):
            served.advanced()

    # --- what operators see -----------------------------------------------------------------------------------

    def standing(self) -> SetStanding | None:
        """As the register was when it was read last."""
        view = self.seat.view
        if view is None or view.set is None:
            return None
        return SetStanding(
            view.set.epoch,
            view.set_revision,
            view.master.member if view.master is not None else 0,
            {number: member.addr for number, member in view.members.items()},
            frozenset(view.set.in_sync),
        )

    def is_shared(self, addr: str) -> bool:
        """Whether other members are announced by this address. They still are when they do not run."""
        view = self.seat.view
        others = view.members.items() if view is not None else ()
        if any(number != self._config.broker_id and member.addr == addr for number, member in others):
            self._shared_addr = addr
        return view is None or self._shared_addr == addr

    def statistics(self) -> ElectionStatistics:
        """For figures and metrics."""
        view, left_s = self.seat.view, self.seat.until - self._clock()
        return ElectionStatistics(
            view.set.epoch if view is not None and view.set is not None else 0,
            len(self.seat.in_sync),
            max(0, round(left_s * 1000)) if self._lease != NO_LEASE else 0,
            int(not self._unreached),
        )

    def _failed(self, failed: Exception) -> None:
        """Once, until the register was read again."""
        if not self._unreached:
            kind = "unreachable" if isinstance(failed, RegisterUnreachable) else "refused"
            log.warning("election.register_failed", kind=kind, reason=str(failed))
        self._unreached = str(failed) or type(failed).__name__

    def _report(self, before: dict[int, str]) -> None:
        now, present = self._clock(), self.seat.in_sync
        if present != before:
            log.info("election.in_sync_changed", in_sync=sorted(present), before=sorted(before))
        part = self.seat.part(now)
        if part is not None and part != self._known_part:
            self._known_part = part
            log.info("election.master_known", master=part.master, epoch=part.epoch, is_own=part.is_master)
        problem = self.seat.problem(now)
        if problem is not None and (self._problem is None or problem.kind != self._problem.kind):
            facts = {"kind": problem.kind, "reason": problem.reason}
            if problem.kind == "went_back":
                log.error("election.set_incomplete", **facts)
            else:
                log.warning("election.set_incomplete", **facts)
        self._problem = problem


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()
