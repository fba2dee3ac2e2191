"""Registration at the nameservers: each of them, at start, on change, at intervals, after a lost connection.

Touches  the nameservers through one `RemotingClient`; one task for each of them.

    state of a nameserver     what is sent next
    unknown, or lost          all topics
    registered, topics new    those topics
    registered, time is up    all topics (with forceRegister=false only if the nameserver says that it needs them)
    address is its master's   nothing: a nameserver has one broker at an address, and it would forget the master

A nameserver forgets a broker as soon as the connection is lost, so its loss is answered by a registration at
once, then with growing pauses.

Invariants
- The first registration holds all topics: a nameserver refuses an unknown broker that offers just one.
- What changed while a registration was on its way is sent by the next one.
- Nameservers do not wait for each other.
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.settings.config import LiveConfig, nameserver_addresses
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto.bodies import (
    BrokerMemberGroup,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    TopicRouteData,
)
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError
from aerobee_proto.frames import Command
from aerobee_proto.headers import BrokerIdentityHeader, RegisterBrokerHeader, TopicHeader
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig, Signer
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.tls import TlsContext

__all__ = ["NameserverRegistrar", "NameserverState", "Nameservers"]

log = structlog.get_logger()

MASTER_ID: Final = 0
PERIOD_MIN_S: Final = 10.0
PERIOD_MAX_S: Final = 60.0
MASTERLESS_S: Final = 1.0  # a slave that has no master asks for one that often
RETRY_FIRST_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
UNREGISTER_TIMEOUT_S: Final = 3.0


class NameserverState:
    """What is known about one nameserver."""

    __slots__ = (
        "addr",
        "asked",
        "failures",
        "left_to_master",
        "notified_version",
        "pending",
        "progress",
        "reason",
        "registered",
        "registered_ms",
        "wake",
        "whole_ms",
    )

    def __init__(self, addr: str) -> None:
        self.addr = addr
        # Moved by registrations.
        self.registered = False
        self.registered_ms = 0  # last time that it said yes
        self.whole_ms = 0  # last time that it said yes to all topics; 0: it must hear all of them now
        self.left_to_master = False  # whose address this broker's is, too
        self.failures = 0  # in a row
        self.reason = "not asked yet"
        # What it has to hear, counted: told <= asked, and progress is set (and replaced) when told moves.
        self.pending: dict[str, TopicConfig] = {}
        self.asked = 0
        self.notified_version = 0
        self.progress = asyncio.Event()
        self.wake = asyncio.Event()


class Nameservers:
    """Every nameserver that is configured, and what it has to hear."""

    def __init__(self) -> None:
        self.states: dict[str, NameserverState] = {}  # by address

    def topics_changed(self, topics: Sequence[TopicConfig]) -> None:
        """These topics are new or changed (none: only the version moved); tell every nameserver soon."""
        for state in self.states.values():
            for topic in topics:
                state.pending[topic.topic_name] = topic
            if not topics:
                state.whole_ms = 0
            state.asked += 1
            state.wake.set()


class NameserverRegistrar:
    """Keeps this broker registered. `start` after the listening port is known, `stop` before it closes."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicTable,
        clock: Callable[[], int],
        identity: BrokerIdentity,
        nameservers: Nameservers,
        tls: TlsContext | None = None,
        signer: Signer | None = None,
        is_masters_address: Callable[[], bool] = lambda: False,
    ) -> None:
        """`signer` signs what is asked, for nameservers with access control. `is_masters_address` says of a slave that
        its master is announced by the same address, or may be."""
        self._live = live
        self._is_masters_address = is_masters_address
        self._on_master: Callable[[str, str], None] | None = None
        self._masterless: set[str] = set()  # nameservers that know no master of this slave
        self._topics = topics
        self._clock = clock
        self.identity = identity
        self._client = RemotingClient(
            config=RemotingClientConfig(tls=tls), on_disconnect=self.connection_lost, signer=signer
        )
        self._nameservers = nameservers
        self._states = nameservers.states
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._first_round: dict[str, asyncio.Event] = {}
        self._notices: set[asyncio.Task[None]] = set()  # of those who hear when everything is registered

    # --- looking in -------------------------------------------------------------------------------------------

    @property
    def states(self) -> list[NameserverState]:
        """One for each configured nameserver."""
        return list(self._states.values())

    @property
    def registered_count(self) -> int:
        return sum(state.registered for state in self._states.values())

    # --- life -------------------------------------------------------------------------------------------------

    def start(self, on_master: Callable[[str, str], None] | None = None) -> None:
        """Start a task for each configured nameserver. `on_master`, of a slave, is notified of where its master gives
        its log, and where it answers requests."""
        self._on_master = on_master
        self.apply_config()

    def apply_config(self) -> None:
        """Follow `namesrvAddr`: start with the new nameservers, let go of those that are gone."""
        configured = nameserver_addresses(self._live.value.namesrv_addr)
        for addr in configured:
            if addr not in self._states:
                state = self._states[addr] = NameserverState(addr)
                self._first_round[addr] = asyncio.Event()
                self._tasks[addr] = asyncio.create_task(self._run(state), name=f"register at {addr}")
        for addr in [addr for addr in self._states if addr not in configured]:
            self._tasks.pop(addr).cancel()
            del self._states[addr], self._first_round[addr]

    async def first_round(self) -> int:
        """Wait until every nameserver was tried once; how many said yes."""
        await asyncio.gather(*(event.wait() for event in list(self._first_round.values())))
        return self.registered_count

    async def stop(self, *, stays: bool = False) -> None:
        """Unregister everywhere, as far as nameservers answer within 3 s, and end the tasks. `stays`: the broker comes
        back at once, with another role, and registers with that: nameservers keep what they know until then."""
        tasks = [*self._tasks.values(), *self._notices]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if not stays:
            await asyncio.gather(
                *(self._unregister(state) for state in self._states.values() if state.registered)
            )
        await self._client.close()

    # --- events -----------------------------------------------------------------------------------------------

    def connection_lost(self, addr: str, _: Connection) -> None:
        """A nameserver's connection is gone, and with it what it knew of this broker."""
        state = self._states.get(addr)
        if state is not None:
            if state.registered:
                log.warning("broker.nameserver_lost", nameserver=addr)
            state.registered = False
            state.reason = "the connection was lost"
            state.wake.set()

    def register_all(self) -> None:
        """Send all topics to every nameserver soon."""
        self._nameservers.topics_changed(())

    async def settled(self, timeout_s: float) -> bool:
        """Wait until the registered nameservers have heard of every change so far.

        False when the time is over first. Nameservers that are not reachable are not waited for.
        """
        behind = [state for state in self._states.values() if state.registered]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*map(_until_registered, behind))
        except TimeoutError:
            return False
        return True

    def when_settled(self, timeout_s: float, then: Callable[[], None]) -> None:
        """As `settled`, for whoever cannot wait: `then` is called once, after the time at the latest, and within this
        call when there is nothing to wait for."""
        if all(state.notified_version >= state.asked for state in self._states.values() if state.registered):
            then()
            return
        notice = asyncio.create_task(self._notify(timeout_s, then), name="notice of registration")
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _notify(self, timeout_s: float, then: Callable[[], None]) -> None:
        try:
            await self.settled(timeout_s)
        finally:
            then()

    # --- one nameserver ---------------------------------------------------------------------------------------

    async def _run(self, state: NameserverState) -> None:
        while True:
            state.wake.clear()
            asked = state.asked
            done = await self._try_register(state)
            state.notified_version = asked
            state.progress.set()
            state.progress = asyncio.Event()
            self._first_round[state.addr].set()
            looks_often = state.left_to_master or state.addr in self._masterless
            period_s = MASTERLESS_S if looks_often else self._period_s()
            await self._pause(state, period_s if done else _retry_pause_s(state.failures))

    async def _pause(self, state: NameserverState, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await state.wake.wait()
        except TimeoutError:
            return
        if state.failures:
            # Woken while it is down: still leave a pause, or a dead address would be dialled without end.
            await asyncio.sleep(_retry_pause_s(state.failures))

    def _period_s(self) -> float:
        return min(PERIOD_MAX_S, max(PERIOD_MIN_S, self._live.value.register_name_server_period / 1000))

    async def _try_register(self, state: NameserverState) -> bool:
        """Send what this nameserver lacks; whether it now has everything from this broker."""
        state.left_to_master = self._is_masters_address()
        if state.left_to_master:
            state.reason = "left to the master, whose address this is"
            return True
        pending, state.pending = state.pending, {}
        try:
            await self._register(state, pending)
        except (RemotingError, FormatError, OSError) as error:
            state.pending = pending | state.pending
            self._failed(state, str(error))
            return False
        return state.registered

    async def _register(self, state: NameserverState, pending: dict[str, TopicConfig]) -> None:
        config = self._live.value
        late = self._clock() - state.whole_ms >= self._period_s() * 1000
        whole = not state.registered or not pending or late
        may_skip = state.registered and state.whole_ms and not pending and not config.force_register
        if may_skip and not await self._needs_registration(state):
            state.registered_ms = state.whole_ms = self._clock()
            return
        if not whole and config.enable_single_topic_register:
            await self._register_each(state, self._as_permitted(list(pending.values())))
            return
        if late and state.registered and self.identity.broker_id == MASTER_ID:
            await self._look_for_another_master(state)
        chosen = list(self._topics.all().values()) if whole else list(pending.values())
        # Made topic by topic in Python: a thread, for the nameserver does not wait for other work of this broker.
        body = await asyncio.to_thread(self._body, chosen, self._version)
        answer = await self._client.request(
            state.addr,
            RequestCode.REGISTER_BROKER,
            self._header(body),
            body,
            timeout=config.register_broker_timeout_mills / 1000,
        )
        if answer.code != ResponseCode.SUCCESS:
            self._failed(state, f"refused with code {answer.code}: {answer.remark}")
            return
        self._succeeded(state, len(chosen), whole=whole)
        self._take_master(state, answer)
        self._take_order_topics(answer)

    async def _look_for_another_master(self, state: NameserverState) -> None:
        """Whether a nameserver knows another broker in the place of this one, which has been there."""
        answer = await self._client.request(
            state.addr,
            RequestCode.GET_BROKER_MEMBER_GROUP,
            self._identity_header(),
            timeout=self._live.value.register_broker_timeout_mills / 1000,
        )
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return  # one that does not know the question
        members = BrokerMemberGroup.from_stranger(answer.body).broker_member_group
        other = members.broker_addrs.get(MASTER_ID, "") if members is not None else ""
        if other and other != self.identity.broker_addr:
            log.error(
                "replication.split_set",
                nameserver=state.addr,
                broker_name=self.identity.broker_name,
                addr=self.identity.broker_addr,
                other_addr=other,
                way_out="two masters take messages that only one of them has: let one follow the other "
                "(aerobee cluster follow ADDRESS --master ADDRESS), or stop it",
            )

    async def _register_each(self, state: NameserverState, topics: Sequence[TopicConfig]) -> None:
        """Tell of topics one by one: a nameserver that drops what a registration does not list keeps the others."""
        for topic in topics:
            queues = QueueData(
                broker_name=self.identity.broker_name,
                perm=topic.perm,
                read_queue_nums=topic.read_queue_nums,
                topic_sys_flag=topic.topic_sys_flag,
                write_queue_nums=topic.write_queue_nums,
            )
            answer = await self._client.request(
                state.addr,
                RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                TopicHeader(topic=topic.topic_name),
                TopicRouteData(queue_datas=[queues]).to_bytes(),
                timeout=self._live.value.register_broker_timeout_mills / 1000,
            )
            if answer.code != ResponseCode.SUCCESS:
                self._failed(state, f"topic {topic.topic_name} refused: code {answer.code}: {answer.remark}")
                return
        self._succeeded(state, len(topics), whole=False)

    def _succeeded(self, state: NameserverState, topic_count: int, *, whole: bool) -> None:
        if not state.registered:
            log.info(
                "broker.registered", nameserver=state.addr, topic_count=topic_count, failures=state.failures
            )
        state.registered = True
        state.registered_ms = self._clock()
        if whole:
            state.whole_ms = state.registered_ms
        state.failures = 0
        state.reason = ""

    def _failed(self, state: NameserverState, reason: str) -> None:
        state.failures += 1
        if state.registered or state.failures == 1 or state.reason != reason:
            log.warning(
                "broker.registration_failed", nameserver=state.addr, failures=state.failures, reason=reason
            )
        state.registered = False
        state.reason = reason

    async def _needs_registration(self, state: NameserverState) -> bool:
        """Ask the nameserver whether what it knows of this broker is older than what is here."""
        answer = await self._client.request(
            state.addr,
            RequestCode.QUERY_DATA_VERSION,
            self._identity_header(),
            self._version.to_bytes(),
            timeout=self._live.value.register_broker_timeout_mills / 1000,
        )
        return answer.code != ResponseCode.SUCCESS or answer.ext.get("changed") != "false"

    @property
    def _version(self) -> DataVersion:
        """That of the topics, in this epoch: nameservers do not take a number from a live broker of a newer epoch, so a
        master that wakes up from long ago does not get its place back."""
        version, epoch = self._topics.version, self.identity.epoch
        return msgspec.structs.replace(version, state_version=epoch) if epoch else version

    def _body(self, topics: Sequence[TopicConfig], version: DataVersion) -> bytes:
        """In a thread: the topics, and the version that the table had with them."""
        config = self._live.value
        topics = self._as_permitted(topics)
        wrapper = TopicConfigWrapper(
            data_version=version,
            topic_config_table={topic.topic_name: topic for topic in topics},
            mapping_data_version=DataVersion(timestamp=self._clock()),
        )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        return body.to_compressed(with_mapping=True) if config.compressed_register else body.to_bytes()

    def _as_permitted(self, topics: Sequence[TopicConfig]) -> Sequence[TopicConfig]:
        """The topics with no more rights than the broker gives at all."""
        permission = self._live.value.broker_permission
        if permission & Perm.READ_WRITE == Perm.READ_WRITE:
            return topics
        return [msgspec.structs.replace(topic, perm=topic.perm & permission) for topic in topics]

    def _header(self, body: bytes) -> RegisterBrokerHeader:
        me = self.identity
        return RegisterBrokerHeader(
            broker_name=me.broker_name,
            broker_addr=me.broker_addr,
            cluster_name=me.cluster_name,
            ha_server_addr=me.ha_addr,
            broker_id=me.broker_id,
            enable_acting_master=False,
            compressed=self._live.value.compressed_register,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )

    def _identity_header(self) -> BrokerIdentityHeader:
        me = self.identity
        return BrokerIdentityHeader(
            broker_name=me.broker_name,
            broker_addr=me.broker_addr,
            cluster_name=me.cluster_name,
            broker_id=me.broker_id,
        )

    def _take_master(self, state: NameserverState, answer: Command) -> None:
        """A slave is told who its master is, as long as there is one; none yet: it asks again soon."""
        if self._on_master is None:
            return
        addr = answer.ext.get("masterAddr", "")
        if addr:
            self._masterless.discard(state.addr)
            self._on_master(answer.ext.get("haServerAddr", ""), addr)
        else:
            self._masterless.add(state.addr)
            state.whole_ms = 0

    def _take_order_topics(self, answer: Command) -> None:
        """A nameserver that has settings of ordered topics sends them along."""
        if not answer.body:
            return
        try:
            table = KVTable.from_stranger(answer.body).table
        except FormatError as error:
            log.warning("broker.order_topics_unreadable", reason=str(error))
            return
        if table:
            self._topics.mark_ordered(table)

    async def _unregister(self, state: NameserverState) -> None:
        try:
            await self._client.request(
                state.addr,
                RequestCode.UNREGISTER_BROKER,
                self._identity_header(),
                timeout=UNREGISTER_TIMEOUT_S,
            )
        except RemotingError as error:
            log.warning("broker.unregistration_failed", nameserver=state.addr, reason=str(error))
        else:
            log.info("broker.unregistered", nameserver=state.addr)
        state.registered = False


async def _until_registered(state: NameserverState) -> None:
    """Wait until a try has covered everything that is asked for now."""
    target = state.asked
    while state.notified_version < target:
        await state.progress.wait()


def _retry_pause_s(failures: int) -> float:
    """Pause before the next try after so many failures in a row."""
    return min(RETRY_MAX_S, RETRY_FIRST_S * (1 << min(failures, 10)))
