"""Reading: check, read, and hold what finds nothing until there is something.

Touches  the store; members' subscriptions; the account of what is kept for peers.

A query whose messages are not in memory waits until they are (`ColdReads`).
A query that finds nothing is held and run again when a message that its filter lets through becomes readable, or
when its time is over; it is not held twice. While it is held a filter by properties looks at each new message once.

A slave has what its master has, a little later. Whoever asks for more than is here is sent to the master while that is
there; without it, he waits here as he would there.

Invariants
- Each query is answered once: by what `read` returns, by its RequestError, or later by its reply. Who is gone by then
  is not answered.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence, Sized
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.catalog.consumer_offsets import offset_key
from aerobee_broker.members.consumers import ConsumerTable, Subscription
from aerobee_broker.members.filters import EVERYTHING, Filter, Filters, check_type
from aerobee_broker.messages.held_pulls import HeldPull, HeldPulls
from aerobee_broker.messages.refusals import (
    Forbidden,
    ForbiddenBy,
    check_broker_readable,
    check_consumes,
    check_queue,
    check_readable,
)
from aerobee_broker.messages.values import (
    Caller,
    Done,
    Failed,
    Moved,
    Outcome,
    Query,
    Read,
    ReadKind,
    Skipped,
)
from aerobee_broker.reading.cold_reads import WAITING_SIZE, ColdReads
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_broker.stats import BrokerStats
from aerobee_proto.bodies import SubscriptionGroupConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_proto.names import QueueKey
from aerobee_service.turns.each_turn import EachTurn
from aerobee_service.turns.slices import Steps, at_once, begin_slices, in_slices
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import OutOfResources, StoreError
from aerobee_store.queues.consume_queue import tags_of
from aerobee_store.reading.get_message import Followed, GetResult, GetStatus, Nearby
from aerobee_store.terms.messages import Arrival

__all__ = ["HOLD_MS_MAX", "Master", "Reading", "UsualQuery"]

log = structlog.get_logger()

RESOURCES_RETRY_S: Final = 1.0  # until work that found no descriptor or memory is done again
SWEEP_S: Final = 0.1
HOLD_MS_MAX: Final = 120_000  # longer wishes are cut to this; official clients ask for 15 to 30 s
MESSAGE_COUNT_MAX: Final = 1024
# Held pulls that are run again in one turn of the event loop; one reads and answers in 50 us.
WAKE_MAX: Final = 256
WOKEN_AT_ONCE_MAX: Final = (
    2048  # held pulls that leave in the turn in which a message arrives; one takes 3 us
)
RESET_A_STEP: Final = 32  # held pulls that are told of a reset in one step, or run again
PROBE_MAX: Final = 128  # filters that look at new messages in one turn; one takes 20 us for a message
KNOWN_FILTER_SIZE: Final = (
    2048  # bytes: larger filters are not kept with the queries that come again and again
)
BODY_SIZE_MAX: Final = 134_217_728  # the official bound; what the store sends at once is configured there

KINDS: Final = {
    GetStatus.FOUND: ReadKind.FOUND,
    GetStatus.NO_MATCHED_MESSAGE: ReadKind.LOOK_AGAIN,
    GetStatus.MESSAGE_WAS_REMOVING: ReadKind.LOOK_AGAIN,
    GetStatus.OFFSET_FOUND_NULL: ReadKind.NOTHING_YET,
    GetStatus.OFFSET_OVERFLOW_ONE: ReadKind.NOTHING_YET,
    GetStatus.OFFSET_OVERFLOW_BADLY: ReadKind.MOVED,
    GetStatus.OFFSET_TOO_SMALL: ReadKind.MOVED,
    GetStatus.OFFSET_RESET: ReadKind.MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ReadKind.NOTHING_YET,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ReadKind.NOTHING_YET,
}
NOTHING_MATCHED: Final = frozenset({GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_OVERFLOW_ONE})
_KIND_OF: Final = tuple(KINDS[status] for status in GetStatus)  # an index is quicker than an enum's hash
EMPTY_QUEUE: Final = frozenset({GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE})
_NEARBY: Final = GetResult(GetStatus.FOUND, 0, 0, 0)  # as far as a suggestion goes by it


class UsualQuery:
    """A query that comes again and again with other offsets, and what is known of it."""

    __slots__ = (
        "changes",
        "commits",
        "followed",
        "goes_by_members",
        "key",
        "message_filter",
        "pair",
        "query",
        "queue_id",
        "settings",
    )

    def __init__(self, query: Query) -> None:
        self.query = query
        self.queue_id = query.queue_id
        self.commits = query.commit_offset is not None
        self.goes_by_members = not query.has_filter  # by what members have said that they want
        # Of its offsets and of its counters.
        self.key = offset_key(query.group, query.topic)
        self.pair = (query.group, query.topic)
        # It was let in with these settings, when so much had changed, has this filter then, and reads so.
        self.settings: BrokerConfig | None = None
        self.changes = 0
        self.message_filter = EVERYTHING
        self.followed: Followed | None = None


# An answer, its messages, bytes of their records, and the offset to go on from.
Gathered = tuple[bytes, int, int, int]


class _Work(msgspec.Struct):
    """What a held query is run again with."""

    query: Query
    message_filter: Filter
    done: Done


class Master(Protocol):
    """The master of a slave."""

    @property
    def is_linked(self) -> bool:
        """Whether it is there."""
        ...


_Held = HeldPull[Caller, _Work]
T = TypeVar("T")


class Reading:
    """Reads queues for groups, and keeps the queries that wait. All calls from the event loop."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        cold: ColdReads,
        catalog: Catalog,
        consumers: ConsumerTable,
        filters: Filters,
        stats: BrokerStats,
        master: Master | None = None,
    ) -> None:
        """`master` is a slave's."""
        self._live = live
        self._clock = clock
        self._master = master
        self._cold = cold
        self._messages = cold.messages
        self._nearby = cold.messages.nearby
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._offsets = catalog.offsets
        self._consumers = consumers
        self._filters = filters
        self._stats = stats
        self.held: HeldPulls[Caller, _Work] = HeldPulls(
            live.value.max_held_pulls,
            owner_max=live.value.max_held_pulls_per_connection,
            is_gone=lambda caller: caller.is_closed,
            memory=filters.memory,
        )
        # Of queues in which very many wait: what has arrived, and is to be told; in which ones that goes on.
        self._arrived: dict[tuple[str, int], tuple[int, set[int]]] = {}
        self._waking: set[tuple[str, int]] = set()
        self._to_probe: dict[_Held, int] = {}  # -> the end of its queue, as far as that was told
        self.probing = EachTurn(self._probe, PROBE_MAX)
        self.woken = EachTurn(self._run, WAKE_MAX)

    def read(
        self, query: Query, caller: Caller, reply: Callable[[T, Outcome], None], to: T
    ) -> Read | Moved | None:
        """The answer; None when the query is held: it comes by `reply(to, ...)` then.

        RequestError: refused. Forbidden, where the broker, the topic or the group may not be read; LimitReached, when
        too many are held already.
        """
        message_filter = self._check(query)
        if query.commit_offset is not None:
            self._commit(query, query.commit_offset, caller)
        reset = self._offsets.take_reset(query.group, query.topic, query.queue_id)
        if reset is not None:
            return self._moved(query, reset)
        try:
            result = self._read(query, query.offset, message_filter)
        except NotInMemory as missing:
            self._wait_for_disk(missing, query, caller, message_filter, partial(reply, to))
            return None
        kind = self._kind_of(query, result, query.offset)
        if kind is ReadKind.NOTHING_YET and query.wait_ms is not None:
            wait_ms = self._wait_ms(query.wait_ms)
            if wait_ms > 0:
                self._hold(query, caller, message_filter, wait_ms, partial(reply, to))
                return None
        return self._finish(query, result, kind)

    def read_nearby(
        self,
        asked: UsualQuery,
        offset: int,
        commit_offset: int,
        caller: Caller,
        gather: Callable[[Nearby, bytes | None, int, int, T], Gathered | None],
        to: T,
        send: Callable[[bytes], None],
    ) -> int | None:
        """Answer a usual query at once: bytes of the answer. None: nothing was done, it is for `read`.

        The query stays the caller's: the offsets of this time come beside it. `gather` makes the answer of what is
        nearby, packed hashes of tags (None: all messages), the offset, a suggested broker, and `to`; None leaves it to
        `read`. `send` has it before what it means is noted. RequestError as of `read`, with nothing sent.
        """
        offsets, live = self._offsets, self._live.value
        if offsets.resets:
            return None
        is_known = asked.settings is live and asked.changes == self._changes(asked)
        message_filter = asked.message_filter if is_known else self._check_usual(asked)
        followed = asked.followed
        if message_filter.selector is not None or followed is None:
            return None
        nearby = self._nearby(followed, offset)
        if nearby is None:
            return None
        suggested = (
            0 if followed.may_be_far else self._suggested_broker(asked.pair[0], _NEARBY, ReadKind.FOUND)
        )
        gathered = gather(nearby, message_filter.packed_tags, offset, suggested, to)
        if gathered is None:
            return None
        answer, found_count, size, next_offset = gathered
        send(answer)
        key, queue_id = asked.key, asked.queue_id
        if asked.commits:
            if caller.was_overtaken:
                self._commit(asked.query, commit_offset, caller)
            else:
                offsets.commit_by(key, queue_id, commit_offset)
        offsets.note_pull_by(key, queue_id, next_offset)
        self._stats.got(asked.pair, found_count, size)
        return len(answer)

    def _check_usual(self, asked: UsualQuery) -> Filter:
        """Check a query; one with a small filter need not be checked again until something changes."""
        query, live = asked.query, self._live.value
        message_filter = self._check(query)
        if message_filter.size <= KNOWN_FILTER_SIZE:
            asked.settings, asked.message_filter = live, message_filter
            asked.changes = self._changes(asked)
        else:
            asked.settings, asked.message_filter = None, EVERYTHING
        has_tags, may_be_far = message_filter.packed_tags is not None, not live.slave_read_enable
        followed = asked.followed
        if followed is None or (followed.has_tags, followed.may_be_far) != (has_tags, may_be_far):
            count = min(query.count, MESSAGE_COUNT_MAX)
            asked.followed = Followed(
                query.topic, query.queue_id, count, has_tags=has_tags, may_be_far=may_be_far
            )
        return message_filter

    def _changes(self, asked: UsualQuery) -> int:
        """A number that grows when a topic, a group, or what the members want that it goes by changes."""
        topics = self._topics
        changes = topics.changes + topics.revision + self._groups.revision
        return changes + self._consumers.changes if asked.goes_by_members else changes

    def _wait_ms(self, asked_ms: int) -> int:
        config = self._live.value
        return min(asked_ms if config.long_polling_enable else config.short_polling_time_mills, HOLD_MS_MAX)

    def _commit(self, query: Query, offset: int, caller: Caller) -> None:
        """Take the offset that comes with a query, unless the caller has committed a later one meanwhile."""
        offsets = self._offsets
        if caller.was_overtaken and (offsets.get(query.group, query.topic, query.queue_id) or 0) > offset:
            return
        offsets.commit(query.group, query.topic, query.queue_id, offset)

    # --- checks -----------------------------------------------------------------------------------------------

    def _check(self, query: Query) -> Filter:
        """All checks in the official order; the filter of a query that may go on."""
        config = self._live.value
        check_broker_readable(config)
        if query.is_lite and not config.lite_pull_message_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, "lite pull is turned off (litePullMessageEnable)")
        group = self._groups.require(query.group)
        check_consumes(group)
        topic = self._topics.require(query.topic)
        check_readable(topic)
        check_queue(query.topic, query.queue_id, topic.read_queue_nums)
        if query.count < 1:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"maxMsgNums {query.count} is not positive")
        if query.has_filter:
            if check_type(query.expression_type, sql_enabled=config.enable_property_filter):
                return self._filters.tags(query.expression)
            return self._filters.sql(query.expression)
        return self._subscribed(query, group)

    def _subscribed(self, query: Query, group: SubscriptionGroupConfig) -> Filter:
        """The filter that the group registered by heartbeat."""
        name, topic = query.group, query.topic
        registered = self._consumers.get(name)
        if registered is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"no member of group {name} is registered; send a heartbeat",
            )
        if registered.is_broadcasting and not group.consume_broadcast_enable:
            raise Forbidden(ForbiddenBy.BROADCAST, f"group {name} may not consume by broadcasting")
        if self._groups.is_forbidden(name, topic):
            raise Forbidden(ForbiddenBy.SUBSCRIPTION, f"group {name} may not read topic {topic}")
        subscription = registered.subscriptions.get(topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"group {name} has not subscribed to topic {topic}"
            )
        if subscription.version < query.subscription_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of group {name} to topic {topic} is older here than the pull's",
            )
        if check_type(subscription.expression_type, sql_enabled=self._live.value.enable_property_filter):
            return subscription.tag_filter
        return self._registered_sql(name, subscription)

    def _registered_sql(self, group: str, subscription: Subscription) -> Filter:
        """The SQL92 filter of a heartbeat. It is compiled here, so a heartbeat with many of them holds up nobody."""
        try:
            message_filter = self._filters.sql(subscription.data.sub_string)
        except RequestError as broken:
            older = subscription.compiled_version is not None
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_LATEST if older else ResponseCode.FILTER_DATA_NOT_EXIST,
                f"group {group} registered a filter for topic {subscription.data.topic} that does not compile"
                f"{', after an older one that does' if older else ''}: {broken.remark}",
            ) from broken
        subscription.compiled_version = subscription.version
        return message_filter

    # --- reading ----------------------------------------------------------------------------------------------

    def _read(self, query: Query, offset: int, message_filter: Filter) -> GetResult:
        return self._messages.get_message(
            query.group,
            query.topic,
            query.queue_id,
            offset,
            min(query.count, MESSAGE_COUNT_MAX),
            BODY_SIZE_MAX,
            message_filter.tag_hashes,
            message_filter.selector,
        )

    def _kind_of(self, query: Query, result: GetResult, asked_offset: int) -> ReadKind:
        """What a reader does next; `result` says then where it goes on."""
        kind = _KIND_OF[result.status]
        if kind is ReadKind.NOTHING_YET and asked_offset != 0 and result.status in EMPTY_QUEUE:
            kind = ReadKind.MOVED
        if kind is ReadKind.MOVED and result.status is not GetStatus.OFFSET_TOO_SMALL:
            next_offset = self._messages.next_offset(query.topic, query.queue_id)
            if result.max_offset < asked_offset <= next_offset:
                # It was shown by the master before, or at another member; here it is not confirmed yet.
                result.next_offset = asked_offset
                kind = ReadKind.NOTHING_YET
        if self._master is None or kind in (ReadKind.FOUND, ReadKind.LOOK_AGAIN):
            return kind
        if kind is ReadKind.MOVED and self._live.value.offset_check_in_slave:
            return kind
        # The master may have it, or have it still.
        result.next_offset = asked_offset
        return ReadKind.LOOK_AGAIN if self._master.is_linked else ReadKind.NOTHING_YET

    def _finish(self, query: Query, result: GetResult, kind: ReadKind) -> Read:
        """Note and count what was read."""
        self._offsets.note_pull(query.group, query.topic, query.queue_id, result.next_offset)
        if result.count:
            self._stats.got((query.group, query.topic), result.count, result.size)
        else:
            self._stats.missed()
        suggested = (
            self._suggested_broker(query.group, result, kind) if self._live.value.slave_read_enable else 0
        )
        return Read(kind, result, suggested)

    def _suggested_broker(self, group_name: str, result: GetResult, kind: ReadKind) -> int:
        """A slave, where the group has one and the reader is far behind. A slave sends all others to the master."""
        group = self._groups.get(group_name)
        if group is None:
            return 0
        if result.suggest_slave:
            return group.which_broker_when_consume_slowly
        return group.broker_id if self._master is None or kind is ReadKind.MOVED else 0

    def _moved(self, query: Query, offset: int) -> Moved:
        messages, topic, queue_id = self._messages, query.topic, query.queue_id
        return Moved(offset, messages.min_offset(topic, queue_id), messages.max_offset(topic, queue_id))

    # --- waiting for the disk ---------------------------------------------------------------------------------

    def _wait_for_disk(
        self, missing: NotInMemory, query: Query, caller: Caller, message_filter: Filter, done: Done
    ) -> None:
        """What the query is for is not in memory: it is read when it is."""
        query.expression = query.expression_type = None  # compiled by now, and long perhaps
        self._cold.wait(
            missing,
            caller,
            lambda: self._read_late(query, caller, message_filter, done),
            lambda failed: done(Failed(failed)),
            size=WAITING_SIZE + message_filter.size,
        )

    def _read_late(self, query: Query, caller: Caller, message_filter: Filter, done: Done) -> None:
        if caller.is_congested:
            done(Skipped(query.offset))
            return
        result = self._read(query, query.offset, message_filter)
        kind = self._kind_of(query, result, query.offset)
        wait_ms = self._wait_ms(query.wait_ms) if query.wait_ms is not None else 0
        if kind is ReadKind.NOTHING_YET and wait_ms > 0:
            self._hold(query, caller, message_filter, wait_ms, done)
        else:
            done(self._finish(query, result, kind))

    # --- waiting ----------------------------------------------------------------------------------------------

    def _hold(self, query: Query, caller: Caller, message_filter: Filter, wait_ms: int, done: Done) -> None:
        query.expression = query.expression_type = None  # compiled by now, and long perhaps
        pull = HeldPull(
            QueueKey(query.topic, query.queue_id),
            query.offset,
            message_filter.tag_hashes,
            self._clock() + wait_ms,
            caller,
            _Work(query, message_filter, done),
            None
            if message_filter.selector is None
            else lambda offset: self._none_until(query, offset, message_filter),
            None if message_filter is EVERYTHING else (message_filter, message_filter.size),
        )
        if self.held.hold(pull):
            return
        limit = "maxHeldPulls" if self.held.is_full else "maxHeldPullsPerConnection"
        raise LimitReached(
            ResponseCode.SYSTEM_BUSY,
            f"{len(self.held)} pulls are held already, {self.held.count_of(caller)} of them for this connection;"
            " try again later",
            limit,
        )

    @property
    def waiting(self) -> Sized:
        """Empty when no query is held."""
        return self.held.waiting

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """These messages can be read now: run the queries that wait for them."""
        for topic, queue_id, max_offset, entries in arrivals:
            self.wake(topic, queue_id, max_offset, entries)

    def wake(self, topic: str, queue_id: int, max_offset: int, entries: bytes) -> None:
        """Run the queries that new readable messages are for; `entries` as packed in the queue."""
        if not self.held.waits_in(topic, queue_id):
            return
        tag_hashes = tags_of(entries)
        held = self.held.of_queue(topic, queue_id)
        if len(held) <= WOKEN_AT_ONCE_MAX:
            self._wake_some(list(held), max_offset, tag_hashes)
            return
        # So many that to look at all of them takes its time: what comes meanwhile is told to all of them, too.
        queue = topic, queue_id
        before = self._arrived.get(queue)
        self._arrived[queue] = (max_offset, {*tag_hashes, *(before[1] if before else ())})
        if queue not in self._waking:
            self._waking.add(queue)
            begin_slices(self._wake_all(queue))

    def _wake_all(self, queue: tuple[str, int]) -> Steps[None]:
        try:
            while (arrived := self._arrived.pop(queue, None)) is not None:
                held = list(self.held.of_queue(*queue))
                for start in range(0, len(held), WAKE_MAX):
                    self._wake_some(held[start : start + WAKE_MAX], *arrived)
                    yield
        finally:
            self._waking.discard(queue)

    def _wake_some(self, held: Sequence[_Held], max_offset: int, tag_hashes: Collection[int]) -> None:
        self.woken.add(self.held.ready_of(held, max_offset, tag_hashes))
        to_probe = [pull for pull in held if pull.probe is not None and pull.waiting]
        if to_probe:
            new = [pull for pull in to_probe if pull not in self._to_probe]
            self._to_probe.update(dict.fromkeys(to_probe, max_offset))
            self.probing.add(new)

    def _probe(self, pull: _Held) -> None:
        """Let a query look at what arrived."""
        if self.held.probe(pull, self._to_probe.pop(pull)):
            self._run_again(pull)

    def drop_owner(self, caller: Caller) -> None:
        """Forget what a caller that is gone waits for."""
        if self.held.count_of(caller) <= WOKEN_AT_ONCE_MAX:
            self.held.drop_owner(caller)
        else:
            begin_slices(self.held.dropping(caller))
        self._cold.drop_owner(caller)

    def group_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Tell a member that waits in a queue where the group goes on: at once, where not very many wait there."""
        if len(self.held.of_queue(topic, queue_id)) <= WAKE_MAX:
            at_once(self._resetting(group, topic, queue_id))
        else:
            begin_slices(self._resetting(group, topic, queue_id))

    def _resetting(self, group: str, topic: str, queue_id: int) -> Steps[None]:
        held = list(self.held.of_queue(topic, queue_id))
        for start in range(0, len(held), RESET_A_STEP):
            some = held[start : start + RESET_A_STEP]
            for pull in self.held.take(some, lambda work: work.query.group == group):
                offset = self._offsets.take_reset(group, topic, queue_id)
                if offset is None:
                    self._run_again(pull)
                else:
                    pull.work.done(self._moved(pull.work.query, offset))
            yield

    async def run(self) -> None:
        """Answer the queries whose time is over, until cancelled; later where descriptors or memory are missing."""
        while True:
            try:
                await in_slices(self.expire_steps())
            except OutOfResources as scarce:
                log.warning("broker.task_delayed", task="held pulls", reason=str(scarce))
                await asyncio.sleep(RESOURCES_RETRY_S)
            await asyncio.sleep(SWEEP_S)

    def expire(self) -> None:
        """Answer the queries whose time is over."""
        at_once(self.expire_steps())

    def expire_steps(self) -> Steps[None]:
        """As `expire`, in steps."""
        now_ms = self._clock()
        while self.held.has_due(now_ms):
            self.woken.add(self.held.expired(now_ms, WAKE_MAX))
            yield

    def _run(self, pull: _Held) -> None:
        """Run a query that has left the table."""
        if not pull.owner.is_closed:
            self._run_again(pull)

    def _none_until(self, query: Query, offset: int, message_filter: Filter) -> int | None:
        """Where to look next when no message from `offset` on matches; None when the query has to be run again."""
        try:
            result = self._read(query, offset, message_filter)
        except NotInMemory:
            return None
        if result.status not in NOTHING_MATCHED:
            return None
        return result.next_offset

    def _run_again(self, pull: _Held) -> None:
        query, message_filter, done = pull.work.query, pull.work.message_filter, pull.work.done
        if pull.owner.is_congested:
            # One message may wake thousands of queries: what they find is not piled up for who does not read.
            done(Skipped(pull.offset))
            return
        try:
            result = self._read(query, pull.offset, message_filter)
        except NotInMemory as missing:
            query.offset, query.wait_ms = pull.offset, None  # it is not held twice
            self._wait_again(missing, pull)
            return
        except (OSError, StoreError) as failed:  # of this queue alone: nobody else is to suffer
            done(Failed(failed))
            return
        done(self._finish(query, result, self._kind_of(query, result, pull.offset)))

    def _wait_again(self, missing: NotInMemory, pull: _Held) -> None:
        work = pull.work
        try:
            self._wait_for_disk(missing, work.query, pull.owner, work.message_filter, work.done)
        except LimitReached as refused:
            work.done(Failed(refused))
