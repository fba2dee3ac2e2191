"""The port at which slaves fetch the log.

Touches  sockets; one protocol for each slave, no task of its own.

What is new leaves at the end of the turn of the event loop in which it may be given, to all slaves. Where no send waits
for them, what comes within PAUSE_S after that leaves together: a gift costs a slave 0.3 ms, however small it is, and a
busy master has a thousand turns a second. Who does not read is waited for: a slave for which `WRITE_HIGH` bytes wait
is given no more of them, and they are bytes of the log, which lie in memory once for all.

Invariants
- At most CONNECTIONS_MAX connections; one that says nothing for haHousekeepingInterval is closed.
- Who is no replica yet keeps nobody out: for one that comes, the oldest of them goes, of the host that has most.
- One turn gives a slave at most TURN_SIZE bytes: others have theirs, too.
- The event loop does not wait for the disk: what lies further than HOT_SIZE below the log's end is brought into memory
  by a thread first, BRING_SIZE bytes at a time.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Final, cast

import structlog

from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.giving import NEWS_PAUSE_S, GivenLog, GivingBounds, GivingLink
from aerobee_broker.replication.greeting import Greeting, OwnSide
from aerobee_broker.replication.hello import Visitor, greet_slave
from aerobee_broker.replication.replicas import Replica, Replicas
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.errors import FormatError
from aerobee_proto.ha_hello import is_hello
from aerobee_remoting.peers.tls import TlsContext, context_of
from aerobee_service.neighbours import neighbours_of
from aerobee_service.program.accepting import accepting, handed_over

__all__ = ["GivingServer"]

log = structlog.get_logger()

CONNECTIONS_MAX: Final = 64
HANDSHAKE_S: Final = 10.0
GOOD_BYE_S: Final = 5.0  # for the reason why a handshake has failed to leave
WRITE_HIGH: Final = 1 << 20  # bytes
TURN_SIZE: Final = 1 << 20  # bytes
HOT_SIZE: Final = 64 << 20  # bytes; what was written last is in memory
BRING_SIZE: Final = 8 << 20  # bytes
PAUSE_S: Final = 0.004
TICK_MIN_S: Final = 0.01
SPEED_S: Final = 1.0


class GivingServer:
    """Serves slaves. `serve` once, `close` once."""

    def __init__(
        self,
        live: LiveConfig,
        source: GivenLog,
        replicas: Replicas,
        *,
        on_acknowledged: Callable[[], None] | None,
        on_first: Callable[[], None] = lambda: None,
        own: OwnSide | None = None,
    ) -> None:
        """`on_acknowledged` is called when slaves have more than before, None: no send waits for them; `on_first` with
        the first slave that ever says where it stands. `own` is the end of handshakes with slaves of ours; without it
        none is known as such."""
        self._live = live
        self._log = source
        self._replicas = replicas
        self._on_acknowledged = on_acknowledged
        self._on_first = on_first
        self.own = own
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # that accept, and those whose handshake is under way
        self._links: dict[_Giving, None] = {}  # in the order in which they came
        # Those that are no replicas yet, also those that are no links yet: their hosts, and what makes them go.
        self._guests: dict[_Giving, tuple[str, Callable[[], object]]] = {}
        self._scheduled = False
        self._pause_s = PAUSE_S if on_acknowledged is None else 0.0
        self._given_at = -PAUSE_S  # when all slaves were last given what there was
        self._begun = False
        self._closed = False
        self._moved = asyncio.Event()  # some slave has come further, or left

    async def serve(self, listener: socket.socket, tls: TlsContext | None = None) -> None:
        """Accept slaves at a socket that has taken its address; over TLS, if given, by what it is when each comes."""
        if tls is None:
            self._server = await self._loop.create_server(lambda: _Giving(self), sock=listener)
            return
        listener.setblocking(False)
        listener.listen(CONNECTIONS_MAX)
        self._start(self._accept(listener, tls), "slaves over TLS")

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_greeting(self, work: Coroutine[None, None, None], peer: str) -> asyncio.Task[None]:
        """A slave of ours says hello."""
        return self._start(work, f"handshake with slave {peer}")

    async def _accept(self, listener: socket.socket, tls: TlsContext) -> None:
        with listener:
            async for accepted, (host, port, *_) in accepting(listener, _accept_failed):
                peer = f"{host}:{port}"
                if not self._has_room():
                    _refused(peer)
                    accepted.close()
                    continue
                one = _Giving(self)
                greeting = self._start(self._greet(accepted, one, peer, tls), f"slave {peer}")
                self._guests[one] = neighbours_of(host), greeting.cancel

    async def _greet(self, accepted: socket.socket, one: "_Giving", peer: str, tls: TlsContext) -> None:
        try:
            await handed_over(accepted, lambda: one, context_of(tls), HANDSHAKE_S)
        except (OSError, TimeoutError) as failed:
            log.info("replication.handshake_failed", peer=peer, reason=str(failed) or type(failed).__name__)
        finally:
            if one not in self._links:
                self._guests.pop(one, None)

    def _has_room(self) -> bool:
        """Whether there is a place for one that comes, perhaps since now."""
        guests = self._guests
        if len(guests.keys() | self._links.keys()) < CONNECTIONS_MAX:
            return True
        if not guests:
            return False
        count = Counter(host for host, _ in guests.values())
        most = max(count.values())
        one, leave = next((one, leave) for one, (host, leave) in guests.items() if count[host] == most)
        del guests[one]
        self._links.pop(one, None)
        leave()
        return True

    def grew(self) -> None:
        """There may be more to give. Called very often."""
        if not self._links or self._scheduled:
            return
        self._scheduled = True
        pause_s = self._given_at + self._pause_s - self._loop.time() if self._pause_s else 0.0
        if pause_s > 0:
            self._loop.call_later(pause_s, self._pump_all)
        else:
            self._loop.call_soon(self._pump_all)

    def _pump_all(self) -> None:
        self._scheduled = False
        self._given_at = self._loop.time()
        for link in list(self._links):
            link.pump()

    async def drain(self, timeout_s: float) -> None:
        """Wait until the slaves have all that may be given, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(one.is_behind for one in self._links):
                    self._moved.clear()
                    await self._moved.wait()

    async def close(self) -> None:
        """Hang up and listen no more."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links):
            link.hang_up("this broker is stopping")
        if self._server is not None:
            await self._server.wait_closed()

    def bring(self, offset: int, then: Callable[[], None]) -> None:
        """Call `then` when the next BRING_SIZE bytes from there on are in memory, or cannot be."""

        async def work() -> None:
            if self.own is not None:
                with contextlib.suppress(OSError):  # whoever reads them meets it, too
                    await asyncio.to_thread(self.own.log.bring, offset, BRING_SIZE)
            then()

        self._start(work(), "log for a slave")

    @property
    def given_offset(self) -> int:
        """Physical offset below which slaves may have the log."""
        return self._log.given_offset

    # --- for the connections ----------------------------------------------------------------------------------

    def bounds(self) -> GivingBounds:
        """What the settings say now."""
        config = self._live.value
        limit = config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else None
        return GivingBounds(
            config.ha_transfer_batch_size,
            config.ha_send_heartbeat_interval / 1000,
            config.ha_housekeeping_interval / 1000,
            limit,
        )

    def opened(self, one: "_Giving", host: str) -> GivingLink | None:
        """A link for a new connection; None when there are too many."""
        if self._closed or (one not in self._guests and not self._has_room()):
            return None
        self._links[one] = None
        self._guests[one] = neighbours_of(host), one.make_way
        file_size = self._live.value.mapped_file_size_commit_log
        return GivingLink(self._log, file_size, self.bounds, self._loop.time())

    def begun(self, one: "_Giving", replica: Replica) -> None:
        """The slave has said where it stands."""
        self._guests.pop(one, None)
        before = self._replicas.joined(replica)
        for link in [link for link in self._links if link.replica in before]:
            link.hang_up("the slave is here by a newer connection")
        log.info(
            "replication.slave_joined",
            peer=replica.peer,
            physical_offset=replica.link.acked_offset,
            behind_bytes=replica.link.behind_bytes,
        )
        if not self._begun:
            self._begun = True
            self._on_first()

    def acknowledged(self) -> None:
        """A slave has said what it has."""
        self._moved.set()
        if self._replicas.advanced() and self._on_acknowledged is not None:
            self._on_acknowledged()

    def ended(self, one: "_Giving", replica: Replica | None) -> None:
        """A connection is gone."""
        self._links.pop(one, None)
        self._guests.pop(one, None)
        if replica is not None:
            self._replicas.left(replica)
            self.acknowledged()  # fewer may be needed now


def _accept_failed(failed: OSError) -> None:
    log.warning("replication.accept_failed", reason=str(failed))


def _refused(peer: str) -> None:
    log.warning("replication.slave_refused", peer=peer, connections_max=CONNECTIONS_MAX)


class _Giving(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: GivingServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._link: GivingLink | None = None
        self.replica: Replica | None = None  # once it has said where it stands
        self._peer = ""
        self._reason = "the slave hung up"
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._news: asyncio.TimerHandle | None = None  # when it is told what readers see, without new bytes
        self._speed_from = (0.0, 0)
        self._greeting: Greeting[Visitor] | None = None
        self._greeter: asyncio.Task[None] | None = None
        self._visitor: Visitor | None = None  # of ours, after the handshake
        # Old parts of the log: whether a thread is at it, and up to where they are in memory.
        self._bringing = False
        self._brought_until = 0

    # --- of the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._peer = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        self._link = self._server.opened(self, str(host))
        if self._link is None:
            _refused(self._peer)
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        self._tick()

    def data_received(self, data: bytes) -> None:
        link = self._link
        if link is None:
            return
        if self._greeting is not None:
            link.last_read = self._loop.time()
            self._greeting.received(data)
            return
        began = link.has_begun
        try:
            if not began and self._visitor is None and self._begins_greeting(data):
                return
            said = link.received(data, self._loop.time())
        except (LinkFault, FormatError) as fault:
            self._refuse(fault)
            return
        if said and not began:
            visitor = self._visitor
            self.replica = (
                Replica(link, self._peer)
                if visitor is None
                else Replica(
                    link, self._peer, visitor.member, visitor.store, follows_news=visitor.follows_news
                )
            )
            self._server.begun(self, self.replica)
        if said:
            self._server.acknowledged()
        if not began:
            self.pump()

    # --- the handshake of ours --------------------------------------------------------------------------------

    def _begins_greeting(self, data: bytes) -> bool:
        """Whether this is a slave of ours. LinkFault: it has to be one."""
        own = self._server.own
        if own is None:
            return False
        if is_hello(data):
            flow = greet_slave(own.member(), own.span, own.nonce())
            assert self._transport is not None
            self._greeting = Greeting(flow, own.log, self._transport)
            self._greeting.received(data)
            self._greeter = self._server.start_greeting(self._greet(self._greeting, own), self._peer)
            return True
        if own.member().secret is not None:
            raise LinkFault(
                "credentials",
                "it does not say who it is, and this broker has innerClientAuthenticationCredentials",
                "slaves of RocketMQ cannot say it: they are served by a broker without these credentials alone",
            )
        return False

    async def _greet(self, greeting: Greeting[Visitor], own: OwnSide) -> None:
        try:
            visitor = await greeting.run()
        except (LinkFault, FormatError) as fault:
            if isinstance(fault, LinkFault) and fault.epoch > own.member().epoch:
                own.replaced(fault.epoch)
            self._refuse(fault)
            return
        link = self._link
        if link is None:
            return
        link.begins_at_first = True
        link.says_confirmed = visitor.hears_confirmed
        self._visitor, self._greeting = visitor, None
        if rest := greeting.take_rest():
            self.data_received(rest)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._loop.call_soon(self.pump)

    def connection_lost(self, error: Exception | None) -> None:
        for timer in (self._timer, self._news):
            if timer is not None:
                timer.cancel()
        if self._greeter is not None:
            self._greeter.cancel()
        link, replica = self._link, self.replica
        self._link = self._transport = self.replica = None
        self._server.ended(self, replica)
        if replica is not None and link is not None:
            log.warning(
                "replication.slave_left",
                peer=self._peer,
                reason=self._reason if error is None else str(error),
                acked_offset=link.acked_offset,
                behind_bytes=link.behind_bytes,
            )

    @property
    def is_behind(self) -> bool:
        """Whether there is something to give that this slave has not acknowledged."""
        link = self._link
        return link is not None and link.has_begun and link.acked_offset < self._server.given_offset

    # --- giving -----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what there is, as far as the slave takes it."""
        link = self._link
        if link is None or self._bringing or self._paused:
            return
        at = link.next_offset
        if (
            at + TURN_SIZE > self._brought_until
            and link.has_begun
            and at < self._server.given_offset - HOT_SIZE
        ):
            self._bringing = True
            self._server.bring(at, lambda: self._brought(at + BRING_SIZE))
            return
        self._send()

    def _brought(self, until: int) -> None:
        self._bringing, self._brought_until = False, until
        self._send()

    def _send(self) -> None:
        """One turn's worth."""
        link, transport = self._link, self._transport
        if link is None or transport is None:
            return
        now, size = self._loop.time(), 0
        parts: list[bytes | memoryview] = []
        try:
            while size < TURN_SIZE and (piece := link.next_piece(now)) is not None:
                parts += piece
                size += len(piece.head) + len(piece.data)
        except LinkFault as fault:
            self._refuse(fault)
            return
        if parts:
            # At once: each by itself would wake the slave up.
            transport.writelines(parts)
        if size >= TURN_SIZE and not self._paused:
            self._loop.call_soon(self.pump)
        elif self._news is None and link.has_begun and link.has_news:
            self._news = self._loop.call_later(NEWS_PAUSE_S, self._give_news)

    def _give_news(self) -> None:
        self._news = None
        self.pump()

    def _tick(self) -> None:
        """What time brings."""
        link = self._link
        if link is None:
            return
        now = self._loop.time()
        self._count_speed(link, now)
        try:
            link.check(now)
        except LinkFault as fault:
            self._refuse(fault)
            return
        self.pump()
        if self._link is not None:
            self._timer = self._loop.call_later(min(max(link.wake_in(now), TICK_MIN_S), SPEED_S), self._tick)

    def _count_speed(self, link: GivingLink, now: float) -> None:
        since, sent = self._speed_from
        if now - since >= SPEED_S:
            if self.replica is not None:
                self.replica.speed = round((link.sent_bytes - sent) / (now - since))
            self._speed_from = now, link.sent_bytes

    def _refuse(self, fault: LinkFault | FormatError) -> None:
        kind = fault.kind if isinstance(fault, LinkFault) else "rubbish"
        if isinstance(fault, LinkFault) and fault.way_out:
            way_out = fault.way_out
            log.error(
                "replication.slave_cut_off", peer=self._peer, kind=kind, reason=str(fault), way_out=way_out
            )
        else:
            log.warning("replication.slave_cut_off", peer=self._peer, kind=kind, reason=str(fault))
        self.hang_up(str(fault))

    def make_way(self) -> None:
        """Go, for one that comes."""
        transport = self._transport
        reason = f"there are {CONNECTIONS_MAX} connections, another one comes, and this one is no replica yet"
        self._refuse(LinkFault("crowded", reason))
        if transport is not None:
            transport.abort()

    def hang_up(self, reason: str) -> None:
        """Close the connection for this reason."""
        self._reason = reason
        if self._transport is None:
            return
        if self._greeting is not None:
            self._transport.close()  # what was said last is the reason
            self._loop.call_later(GOOD_BYE_S, self._transport.abort)  # who does not read it goes, too
        else:
            self._transport.abort()
