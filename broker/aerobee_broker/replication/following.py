"""A slave's connection to its master: dialled, kept, dialled again.

Touches  one socket; the store, through the link.

The master's address is the one of the settings (haMasterAddress), or what nameservers say; they are asked again after
each link that has ended. A link is begun anew after a pause that grows up to RETRY_MAX_S, and at once when nameservers
name another master. What stands against it for good is told once for each reason, and tried again all the same: an
operator may be mending it.

Invariants
- At most one link at a time.
- A link begins when all of the log is as safe as this slave promises: its first report counts as an acknowledgement.
- A master counts as gone (`Meeting.missed`) only when there was a link to it, at the same address, and its host has
  refused GONE_AFTER connections since: nobody listens there. Silence says nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, cast

import structlog

from aerobee_broker.replication.confirmed import ConfirmedByMaster
from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.greeting import Greeting, OwnSide
from aerobee_broker.replication.hello import CutBack, Go, Outcome, StartOver, greet_master
from aerobee_broker.replication.taking import TakenLog, TakingBounds, TakingLink
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.bodies import HaClientInfo
from aerobee_proto.errors import FormatError
from aerobee_remoting.ends.client import split_addr
from aerobee_remoting.peers.tls import TlsContext, context_of
from aerobee_store.faults.errors import StoreError
from aerobee_store.terms.cuts import START_OVER

__all__ = ["Follower", "Meeting", "SafeLog"]

log = structlog.get_logger()

CONNECT_TIMEOUT_S: Final = 5.0
RETRY_FIRST_S: Final = 0.025
RETRY_MAX_S: Final = 5.0
TICK_MIN_S: Final = 0.01
GONE_AFTER: Final = 2
SPEED_S: Final = 1.0
HELLO_ROOM_SIZE: Final = 1 << 16  # bytes


class SafeLog(Protocol):
    """How safe the slave's log is."""

    @property
    def kept_offset(self) -> int:
        """Physical offset below which everything is as safe as promised."""
        ...

    async def settled(self) -> None:
        """Return when everything appended so far is."""


class Meeting(NamedTuple):
    """What comes before each link. `check_master` returns when the master is one to follow, and whether it is one of
    ours; LinkFault when it is not. `confirmed` is told what the master says of its readers. `own` is this end of the
    handshake with one of ours. `missed` is called with True when the master that was followed is gone, with False when
    it is there again."""

    check_master: Callable[[], Awaitable[bool]]
    confirmed: ConfirmedByMaster
    own: OwnSide | None = None
    missed: Callable[[bool], None] = lambda is_gone: None


class Follower:
    """Follows one master. `run` until it is cancelled."""

    def __init__(
        self,
        live: LiveConfig,
        taken: TakenLog,
        safe: SafeLog,
        *,
        clock: Callable[[], int],
        on_appended: Callable[[], None],
        meeting: Meeting,
        linked: asyncio.Event,
        tls: TlsContext | None = None,
    ) -> None:
        """`on_appended` is called after each read that brought bytes of the log, `linked` is set while the master is
        heard. `clock` gives ms since the epoch."""
        self._live = live
        self._log = taken
        self._safe = safe
        self._clock = clock
        self._on_appended = on_appended
        self.meeting = meeting
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._found = asyncio.Event()
        self._elsewhere = asyncio.Event()  # the master is
        # Called after each link that has ended: the set may have another master.
        self.look_for_master: Callable[[], None] = lambda: None
        self._followed_at = ""  # where it was
        self._refusals = 0  # by its host, since then
        self.ha_addr = live.value.ha_master_address
        if self.ha_addr:
            self._found.set()
        self._linked = linked
        self._taking: _Taking | None = None
        self.failures = 0  # since a link worked
        self._reported = ""

    # --- where the master is ----------------------------------------------------------------------------------

    def master_found(self, ha_addr: str) -> None:
        """Nameservers say where the master gives its log. Nothing of that counts when the settings name an address."""
        if not ha_addr or self._live.value.ha_master_address or ha_addr == self.ha_addr:
            return
        log.info("replication.master_found", ha_addr=ha_addr, before=self.ha_addr)
        self.ha_addr = ha_addr
        self._found.set()
        self._elsewhere.set()
        if self._taking is not None:
            self._taking.hang_up("the master has another address")

    # --- following --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self._found.wait()
            try:
                await self._follow()
            except LinkFault as fault:
                self._report(fault.kind, str(fault), fault.way_out)
            except FormatError as rubbish:
                self._report("rubbish", str(rubbish))
            except StoreError as refused:
                self._report("store", str(refused))
            except (OSError, ValueError, TimeoutError) as failed:
                self._report("connection", str(failed) or type(failed).__name__)
            self.failures += 1
            self._elsewhere.clear()
            self.look_for_master()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(RETRY_MAX_S, RETRY_FIRST_S * (1 << min(self.failures, 10)))):
                    await self._elsewhere.wait()

    def _report(self, kind: str, reason: str, way_out: str = "") -> None:
        """Once for each reason, until a link has worked."""
        if self._reported == kind:
            return
        self._reported = kind
        facts = {"ha_addr": self.ha_addr, "kind": kind, "reason": reason}
        if way_out:
            log.error("replication.master_lost", way_out=way_out, **facts)
        else:
            log.warning("replication.master_lost", **facts)

    async def _follow(self) -> None:
        """One link, from its beginning to its end."""
        await self._safe.settled()
        is_ours = await self.meeting.check_master()
        addr = self.ha_addr
        host, port = split_addr(addr)
        own = self.meeting.own if is_ours else None
        taking = _Taking(self, own)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: taking,
                    host,
                    port,
                    ssl=context_of(self._tls),
                    server_hostname=host if self._tls else None,
                )
        except ConnectionRefusedError:
            if addr == self._followed_at:
                self._refusals += 1
                if self._refusals == GONE_AFTER:
                    self.meeting.missed(True)
            raise
        self._taking = taking
        try:
            if own is not None:
                await self._greet(taking, own)
            await taking.ended
        finally:
            self._taking = None
            self._linked.clear()
            taking.hang_up("")

    async def _greet(self, taking: "_Taking", own: OwnSide) -> None:
        """The handshake with a master of ours; the link has begun when this returns. LinkFault, FormatError: there is
        none; OSError when the connection has ended."""
        outcome = await taking.greeted()
        match outcome:
            case Go(epochs, says_confirmed, store):
                await asyncio.to_thread(own.follow_epochs, epochs)
                own.copies(store)
                taking.begin(says_confirmed=says_confirmed)
            case CutBack(offset):
                await self._cut(own, offset)
            case StartOver():
                await self._cut(own, START_OVER)

    async def _cut(self, own: OwnSide, offset: int) -> None:
        """The log cannot stay as it is. Does not return: another life begins with another log."""
        end = self._log.end_offset
        if own.on_cut is None:
            raise LinkFault(
                "ahead", f"the log has to be cut back from {end} to {offset}, and nobody does that here"
            )
        log.warning("replication.log_diverged", ha_addr=self.ha_addr, physical_offset=offset, end_offset=end)
        own.on_cut(offset)
        await asyncio.Event().wait()

    def new_link(self, *, says_confirmed: bool) -> TakingLink:
        """For a connection that was just made. `says_confirmed`: the master is going to say what its readers see."""
        self.meeting.confirmed.link_began(says_confirmed=says_confirmed)
        return TakingLink(
            self._log,
            self._live.value.mapped_file_size_commit_log,
            lambda: self._safe.kept_offset,
            self._bounds,
            self._loop.time(),
            says_confirmed=says_confirmed,
        )

    def _bounds(self) -> TakingBounds:
        config = self._live.value
        return TakingBounds(config.ha_send_heartbeat_interval / 1000, config.ha_housekeeping_interval / 1000)

    def heard(self, link: TakingLink) -> None:
        """The master has sent something that is as it must be."""
        if not self._linked.is_set():
            self._linked.set()
            self.failures, self._reported = 0, ""
            if self._refusals >= GONE_AFTER:
                self.meeting.missed(False)
            self._followed_at, self._refusals = self.ha_addr, 0
            log.info(
                "replication.master_followed",
                ha_addr=self.ha_addr,
                physical_offset=self._log.end_offset,
                master_offset=link.master_offset,
            )

    def appended(self) -> None:
        """Bytes of the log have come."""
        self._on_appended()

    def confirmed(self, offset: int) -> None:
        """The master's readers see everything below this physical offset."""
        self.meeting.confirmed.said(offset)

    def advanced(self) -> None:
        """The log may be safe further than before: report it."""
        if self._taking is not None:
            self._taking.report()

    @property
    def is_linked(self) -> bool:
        """Whether the master is there, as far as this slave can tell."""
        return self._linked.is_set()

    def status(self) -> HaClientInfo:
        """What 907 shows of a slave's link."""
        taking = self._taking
        link = taking.link if taking is not None else None
        if taking is None or link is None:
            return HaClientInfo(master_addr=self.ha_addr or None, max_offset=self._log.end_offset)
        ago = self._clock() - self._loop.time() * 1000
        return HaClientInfo(
            activated=self.is_linked,
            last_read_timestamp=round(ago + link.last_read * 1000),
            last_write_timestamp=round(ago + link.last_write * 1000),
            master_addr=self.ha_addr,
            max_offset=self._log.end_offset,
            transferred_byte_in_second=taking.speed,
        )


class _Taking(asyncio.BufferedProtocol):
    """The connection of one link. `ended` has the reason as its exception."""

    def __init__(self, follower: Follower, own: OwnSide | None) -> None:
        """`own`: this end of the handshake that comes first; None: the master is RocketMQ's."""
        self._follower = follower
        self._greeting: Greeting[Outcome] | None = None
        self._own = own
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.link: TakingLink | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.speed = 0
        self._speed_from = (0.0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._hello_room = memoryview(bytearray(HELLO_ROOM_SIZE))  # for what comes when there is no link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        if self._own is None:
            self.begin()
            return
        own = self._own
        flow = greet_master(own.member(), own.span(), own.nonce())
        self._greeting = Greeting(flow, own.log, transport)

    async def greeted(self) -> Outcome:
        """What comes out of the handshake. LinkFault, FormatError, OSError: nothing does."""
        greeting = self._greeting
        assert greeting is not None
        running = asyncio.ensure_future(greeting.run())
        try:
            await asyncio.wait((running, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self.ended
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def begin(self, *, says_confirmed: bool = False) -> None:
        """The link itself: the first report, and whatever came behind the handshake."""
        transport = self._transport
        if transport is None:
            return
        greeting, self._greeting = self._greeting, None
        self.link = self._follower.new_link(says_confirmed=says_confirmed)
        transport.write(self.link.opened(self._loop.time()))
        self._tick()
        if greeting is None:
            return
        self.link.has_heard = True  # in the handshake
        self._follower.heard(self.link)
        if rest := greeting.take_rest():
            self._received(lambda link, now: link.received(rest, now))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport puts what comes."""
        return self._hello_room if self.link is None else self.link.room()

    def buffer_updated(self, nbytes: int) -> None:
        """So much of it has come."""
        if self._greeting is not None:
            self._greeting.received(bytes(self._hello_room[:nbytes]))
            return
        self._received(lambda link, now: link.came(nbytes, now))

    def _received(self, take: Callable[[TakingLink, float], bytes]) -> None:
        link, transport = self.link, self._transport
        if link is None or transport is None or self.ended.done():
            return
        before = link.received_bytes
        try:
            if reports := take(link, self._loop.time()):
                transport.write(reports)  # before anything is shown to readers: senders wait for it
        except (LinkFault, FormatError, StoreError) as fault:
            self._end(fault)
        self._follower.confirmed(link.confirmed_offset)
        if link.received_bytes != before:
            self._follower.appended()
        if link.has_heard and not self.ended.done():
            self._follower.heard(link)

    def report(self) -> None:
        """Tell the master what is safe by now."""
        link, transport = self.link, self._transport
        if link is not None and transport is not None and (said := link.report(self._loop.time())):
            transport.write(said)

    def _tick(self) -> None:
        link, transport = self.link, self._transport
        if link is None or transport is None:
            return
        now = self._loop.time()
        since, received = self._speed_from
        if now - since >= SPEED_S:
            self.speed = round((link.received_bytes - received) / (now - since))
            self._speed_from = now, link.received_bytes
        try:
            said = link.tick(now)
        except LinkFault as fault:
            self._end(fault)
            return
        if said:
            transport.write(said)
        self._timer = self._loop.call_later(min(max(link.wake_in(now), TICK_MIN_S), SPEED_S), self._tick)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error if isinstance(error, OSError) else ConnectionError("the master hung up"))

    def hang_up(self, reason: str) -> None:
        """End the link from here."""
        self._end(ConnectionError(reason))

    def _end(self, reason: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        transport, self._transport, self.link = self._transport, None, None
        if transport is not None:
            transport.abort()
        if not self.ended.done():
            self.ended.set_exception(reason)
            self.ended.exception()  # whoever has stopped to wait does not need it
