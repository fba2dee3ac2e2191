"""One member of a consumer group: which queues are its own, their locks, offsets and pulls.

Touches  brokers through `Peers`, the offsets file of a broadcasting group, the event loop's clock.

Tasks    rebalance every `rebalance_s`, when a broker says that members came or went, and when a route changes;
         commit every `commit_s`; orderly groups renew their locks every `lock_s`. One task a queue pulls.

Invariants
- A queue is in `owned` only while this member believes that it is its own; with an orderly group, only once locked.
- What is committed for a queue never lies behind a message that is not done.
- Handing a queue over: no more of it is handed out; an orderly group waits for what is out, commits, then unlocks.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aerobee.consuming.group_pulling import GroupPulls, pulls_of
from aerobee.consuming.local_offsets import LocalOffsets, offsets_folder
from aerobee.consuming.queue_locks import QueueLocks
from aerobee.consuming.rebalance import take_share
from aerobee.errors import ClientError, NoRoute
from aerobee.messages.owned_queue import OwnedQueue
from aerobee.messages.subscriptions import Subscription
from aerobee.net.answers import body_of
from aerobee.net.offsets import Offsets
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.config import ClientConfig, ConsumerConfig
from aerobee.terms.filters import SqlFilter
from aerobee.terms.routes import MASTER_ID, MessageQueue, Route
from aerobee.terms.start_at import AtTime, Position, QueueEnd
from aerobee_proto.bodies import CheckClientConfigBody, ConsumerData, ConsumerIdList
from aerobee_proto.codes import RequestCode
from aerobee_proto.names import is_retry_topic
from aerobee_service.logs.event_log import event_logger

__all__ = ["GroupMember", "GroupSettings"]

log = event_logger("aerobee.consumer")

# Pause before queues are shared out again when something kept this member from taking its share.
UNBALANCED_S: Final = 1.0


@dataclass(slots=True, frozen=True)
class GroupSettings:
    """What a member of a group is told when it is made."""

    group: str
    subscriptions: Mapping[str, Subscription]
    start: Position
    orderly: bool
    broadcasting: bool
    client_id: str
    stable_name: str  # the same after a restart: names the offsets file of a broadcasting group

    @property
    def heartbeat(self) -> ConsumerData:
        """How heartbeats describe this member."""
        where = "CONSUME_FROM_LAST_OFFSET"
        if self.start is QueueEnd.EARLIEST:
            where = "CONSUME_FROM_FIRST_OFFSET"
        elif isinstance(self.start, AtTime):
            where = "CONSUME_FROM_TIMESTAMP"
        return ConsumerData(
            consume_from_where=where,
            consume_type="CONSUME_PASSIVELY",
            group_name=self.group,
            message_model="BROADCASTING" if self.broadcasting else "CLUSTERING",
            subscription_data_set=[one.data for _, one in sorted(self.subscriptions.items())],
        )


class GroupMember:
    """See the module. Made by `Client.consumer()`."""

    def __init__(
        self,
        settings: GroupSettings,
        config: ConsumerConfig,
        client_config: ClientConfig,
        *,
        peers: Peers,
        routes: RouteTable,
        offsets: Offsets,
        clock_ms: Callable[[], int],
        on_records: Callable[[OwnedQueue], None],
    ) -> None:
        # Fixed for life.
        self.settings = settings
        self.config = config
        self._peers = peers
        self._routes = routes
        self._offsets = offsets
        self._clock_ms = clock_ms
        self._pulls = GroupPulls(
            pulls_of(settings.group, config, peers=peers, routes=routes),
            settings.subscriptions,
            check_records=client_config.check_records,
            clock_ms=clock_ms,
            on_records=on_records,
            on_moved=self._on_moved,
        )
        self._locks = QueueLocks(settings.group, settings.client_id, peers, routes)
        self._local: LocalOffsets | None = None
        if settings.broadcasting:
            folder = offsets_folder(config.offsets_folder)
            self._local = LocalOffsets(folder, settings.stable_name, settings.group)
        # Moved by the tasks and calls below.
        self.owned: dict[MessageQueue, OwnedQueue] = {}
        self._handing_over: dict[MessageQueue, OwnedQueue] = {}  # no longer ours, and not yet given back
        self._paused: set[MessageQueue] = set()
        self._masters: dict[str, str] = {}  # broker name -> address
        self._lock_now = asyncio.Event()
        self._rebalance_now = asyncio.Event()
        self._balancing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing: set[asyncio.Task[None]] = set()  # hand-overs and commits, which close() waits for
        self._closing = False

    # --- joining and leaving ----------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Learn the routes and have filters checked, before brokers hear of this member.

        NoRoute for a topic that does not exist (unless it may come later), BrokerRefused for a filter.
        """
        for topic, subscription in self.settings.subscriptions.items():
            try:
                await self._routes.for_subscribe(topic)
            except NoRoute as missing:
                if is_retry_topic(topic):
                    continue
                if not self.config.wait_for_topics:
                    missing.hint = "or have the consumer wait for it: consumer(..., wait_for_topics=True)"
                    raise
                log.warning("client.topic_missing", topic=topic, reason=str(missing))
                continue
            if isinstance(subscription.filter, SqlFilter):
                await self._check_filter(subscription)
        if self._local is not None:
            self._local.load()

    async def start(self) -> None:
        """Take a share of the queues, now and whenever members or queues change. Brokers must know this member."""
        self._routes.listeners.append(self._on_route)
        await self._balance()
        self._spawn(self._keep_balanced(), "rebalance")
        self._spawn(self._keep_committing(), "commit")
        if self.settings.orderly:
            self._spawn(self._keep_locked(), "locks")

    def stop(self) -> None:
        """Take no more queues and pull no more; what was pulled stays to be worked on."""
        self._closing = True
        if self._on_route in self._routes.listeners:
            self._routes.listeners.remove(self._on_route)
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """After stop(), when nobody works on messages any more: commit what is done and give the locks back."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._handing_over.values():
            one.idle.set()  # what is out of it now stays so
        owned = list(self.owned.values())
        for one in owned:
            one.dropped = True
        try:
            async with asyncio.timeout(self.config.close_timeout_s):
                await asyncio.gather(*self._finishing, return_exceptions=True)
                await self._commit(owned, final=True)
                if self.settings.orderly:
                    await self._locks.unlock_all()
        except TimeoutError:
            log.warning("client.close_slow", group=self.settings.group, timeout_s=self.config.close_timeout_s)
        for task in self._finishing:
            task.cancel()
        self.owned.clear()

    # --- what brokers and callers ask -------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Members came or went: share out anew."""
        self._rebalance_now.set()

    def committable(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """For each own queue (of a topic) the offset that would be committed now."""
        return {
            queue: owned.tracker.committable
            for queue, owned in self.owned.items()
            if topic is None or queue.topic == topic
        }

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets: what was pulled of these queues is forgotten, the offsets are committed."""
        touched = []
        for queue, offset in offsets.items():
            owned = self.owned.get(queue)
            if owned is not None:
                self._restart(owned, offset)
                touched.append(owned)
        await self._commit(touched)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues until resume(), also when they come back after a rebalance."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self.owned:
                self.owned[queue].paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> list[OwnedQueue]:
        """Hand out again; the own queues among them."""
        found = []
        for queue in queues:
            self._paused.discard(queue)
            if queue in self.owned:
                self.owned[queue].paused = False
                found.append(self.owned[queue])
        return found

    async def commit(self) -> None:
        """Commit now what is done and not committed; waits for the brokers. Raises what the first one raised."""
        await self._commit(list(self.owned.values()), final=True, strict=True)

    # --- sharing out ------------------------------------------------------------------------------------------

    async def _keep_balanced(self) -> None:
        balanced = True
        while True:
            wait_s = self.config.rebalance_s if balanced else min(UNBALANCED_S, self.config.rebalance_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._rebalance_now.wait()
            called = self._rebalance_now.is_set()
            self._rebalance_now.clear()
            try:
                if called:
                    # A new member asks for the offsets in a moment: what they lack is delivered twice.
                    await self._commit(list(self.owned.values()))
                balanced = await self._balance()
            except Exception:
                log.exception("client.rebalance_broke", group=self.settings.group)
                balanced = False

    async def _balance(self) -> bool:
        """Take what is ours, hand over what is not; False when something was in the way."""
        async with self._balancing:
            done = [await self._balance_topic(topic) for topic in self.settings.subscriptions]
        return all(done)

    async def _balance_topic(self, topic: str) -> bool:
        route = self._routes.cached(topic)
        if route is None or not route.subscribe:
            route = await self._routes.refresh(topic)
        if route is None or not route.subscribe:
            # Made by the broker with the first heartbeat; then the route poll finds it.
            return is_retry_topic(topic)
        if self.settings.broadcasting:
            share = list(route.subscribe)
        else:
            members = await self._members(route)
            if members is None:
                return False
            share = take_share(route.subscribe, members, self.settings.client_id)
        return await self._own(topic, share)

    async def _members(self, route: Route) -> list[str] | None:
        """Client ids of the group, asked from any broker of the topic; None when it does not say."""
        addrs = sorted(addr for addrs in route.brokers.values() for addr in list(addrs.values())[:1])
        addr = random.SystemRandom().choice(addrs)
        group = self.settings.group
        try:
            answer = await self._peers.call(
                f"ask for the members of group {group!r}",
                addr,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                {"consumerGroup": group},
            )
            members = body_of(ConsumerIdList, answer).consumer_id_list
        except ClientError as failed:
            log.warning("client.members_unknown", group=group, addr=addr, reason=str(failed))
            return None
        # Who has just become the master has not heard of all: what is ours would be handed over, and taken again.
        return members if self.settings.client_id in members else None

    async def _own(self, topic: str, share: list[MessageQueue]) -> bool:
        assigned = set(share)
        if self.settings.orderly:
            await self._give_back_strays(topic, assigned)
        gone = [
            owned for queue, owned in self.owned.items() if queue.topic == topic and queue not in assigned
        ]
        fresh = [queue for queue in share if queue not in self.owned and queue not in self._handing_over]
        for owned in gone:
            del self.owned[owned.queue]
            self._handing_over[owned.queue] = owned
            self._spawn(self._hand_over(owned), f"hand over {owned.queue}", self._finishing)
        if gone or fresh:
            log.info(
                "client.rebalanced",
                group=self.settings.group,
                topic=topic,
                queue_count=len(share),
                gained=[str(queue) for queue in fresh],
                lost=[str(owned.queue) for owned in gone],
            )
        locked = await self._locks.lock(fresh) if self.settings.orderly and fresh else set(fresh)
        results = await asyncio.gather(*(self._acquire(queue) for queue in fresh if queue in locked))
        return len(locked) == len(fresh) and all(results) and not assigned & self._handing_over.keys()

    async def _give_back_strays(self, topic: str, assigned: set[MessageQueue]) -> None:
        """Unlock queues that were locked but not taken (their offsets were unknown, say), and are another's now."""
        strays = [
            queue
            for queue in self._locks.asked
            if queue.topic == topic
            and queue not in assigned
            and queue not in self.owned
            and queue not in self._handing_over
        ]
        await self._locks.unlock(strays, wait=False)

    async def _acquire(self, queue: MessageQueue) -> bool:
        """Begin with a queue where the group has stopped; False when no broker says where that is."""
        try:
            offset = await self._start_of(queue)
        except ClientError as failed:
            log.warning("client.offset_unknown", queue=str(queue), reason=str(failed))
            return False
        if self._closing:
            return True
        owned = OwnedQueue(
            queue, offset, self.config, serial=self.settings.orderly, joined_ms=self._clock_ms()
        )
        owned.paused = queue in self._paused
        if self.settings.orderly:
            owned.lock_until = self._now() + self.config.lock_valid_s
        self.owned[queue] = owned
        if (route := self._routes.cached(queue.topic)) is not None:
            self._look_at_masters(route)
        self._pull(owned)
        return True

    async def _start_of(self, queue: MessageQueue) -> int:
        if self._local is not None:
            stored = self._local.get(queue)
        else:
            stored = await self._offsets.committed(self.settings.group, queue)
        if stored is not None:
            return stored
        start = QueueEnd.EARLIEST if is_retry_topic(queue.topic) else self.settings.start
        return await self._offsets.resolve(queue, start)

    async def _hand_over(self, owned: OwnedQueue) -> None:
        """A queue is another member's now. Should it become ours again, then only after this is done."""
        self._end_pull(owned)
        owned.dropped = True
        try:
            if self.settings.orderly:
                try:
                    async with asyncio.timeout(self.config.lock_s):
                        await owned.idle.wait()
                except TimeoutError:
                    log.warning("client.hand_over_slow", queue=str(owned.queue), waited_s=self.config.lock_s)
            await self._commit([owned])
            if self.settings.orderly:
                await self._locks.unlock([owned.queue], wait=False)
        finally:
            del self._handing_over[owned.queue]

    # --- pulling ----------------------------------------------------------------------------------------------

    def _pull(self, owned: OwnedQueue) -> None:
        if not self._closing:
            owned.pull_task = self._spawn(self._pulls.run(owned), f"pull {owned.queue}")

    @staticmethod
    def _end_pull(owned: OwnedQueue) -> None:
        if owned.pull_task is not None:
            owned.pull_task.cancel()
            owned.pull_task = None

    def _restart(self, owned: OwnedQueue, offset: int) -> None:
        self._end_pull(owned)
        owned.reset(offset)
        owned.committed = None
        self._pull(owned)

    def _on_moved(self, owned: OwnedQueue, offset: int) -> None:
        """Called by the pull itself, which goes on at the new offset."""
        owned.reset(offset)
        owned.committed = None
        self._spawn(self._commit([owned]), f"commit {owned.queue}", self._finishing)

    # --- offsets ----------------------------------------------------------------------------------------------

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self.config.commit_s)
            await self._commit(list(self.owned.values()))

    async def _commit(
        self, owned: Iterable[OwnedQueue], *, final: bool = False, strict: bool = False
    ) -> None:
        """Store where the group would go on. With `final` every broker's answer is waited for."""
        moved = [one for one in owned if one.committed != one.tracker.committable]
        if self._local is not None:
            self._commit_locally(self._local, moved)
            return
        results = await asyncio.gather(
            *(self._commit_one(one, one.tracker.committable, wait=final) for one in moved),
            return_exceptions=True,
        )
        for one, result in zip(moved, results, strict=True):
            if isinstance(result, BaseException):
                if strict or not isinstance(result, ClientError):
                    raise result
                log.warning("client.commit_failed", queue=str(one.queue), reason=str(result))

    async def _commit_one(self, owned: OwnedQueue, offset: int, *, wait: bool) -> None:
        if wait:
            await self._offsets.commit(self.settings.group, owned.queue, offset)
        else:
            await self._offsets.commit_oneway(self.settings.group, owned.queue, offset)
        owned.committed = offset

    def _commit_locally(self, local: LocalOffsets, moved: list[OwnedQueue]) -> None:
        for one in moved:
            local.set(one.queue, one.tracker.committable)
        try:
            if moved:
                local.save()
        except OSError as failed:
            log.warning("client.commit_failed", queue=str(local.path), reason=str(failed))
            return
        for one in moved:
            one.committed = one.tracker.committable

    # --- locks ------------------------------------------------------------------------------------------------

    async def _keep_locked(self) -> None:
        """Renew the locks in time; soon again where no broker answered, and at once where another one is the master."""
        pause_s = self.config.lock_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._lock_now.wait()
            self._lock_now.clear()
            asked_at = self._now()
            queues = list(self.owned)
            held = await self._locks.lock(queues)
            pause_s = self.config.lock_s if held.issuperset(queues) else self.config.suspend_s
            for queue in queues:
                owned = self.owned.get(queue)
                if owned is None:
                    continue
                if queue in held:
                    owned.lock_until = asked_at + self.config.lock_valid_s
                elif queue in self._locks.denied or not owned.is_locked(self._now()):
                    self._lose(owned)

    def _lose(self, owned: OwnedQueue) -> None:
        """The lock is over: another member may be at work. Nothing is committed; sharing out begins anew."""
        log.warning("client.lock_lost", queue=str(owned.queue))
        del self.owned[owned.queue]
        owned.dropped = True
        self._end_pull(owned)
        self.rebalance_soon()

    # --- the rest ---------------------------------------------------------------------------------------------

    async def _check_filter(self, subscription: Subscription) -> None:
        """Have one broker check a filter that is no list of tags."""
        route = await self._routes.for_subscribe(subscription.topic)
        addr = self._routes.master_addr(subscription.topic, route.subscribe[0].broker_name)
        what = f"check the filter {subscription.filter.text!r} of topic {subscription.topic!r}"
        body = CheckClientConfigBody(
            client_id=self.settings.client_id, group=self.settings.group, subscription_data=subscription.data
        )
        await self._peers.call(what, addr, RequestCode.CHECK_CLIENT_CONFIG, {}, body.to_bytes())

    def _on_route(self, route: Route) -> None:
        if route.topic in self.settings.subscriptions:
            self._look_at_masters(route)
            self.rebalance_soon()

    def _look_at_masters(self, route: Route) -> None:
        """A new master knows no locks, and may not have heard of the last commits."""
        masters = {name: addrs[MASTER_ID] for name, addrs in route.brokers.items() if MASTER_ID in addrs}
        new = {name for name, addr in masters.items() if self._masters.get(name, addr) != addr}
        self._masters |= masters
        for queue, owned in self.owned.items():
            if queue.broker_name in new:
                owned.committed = None
                self._lock_now.set()

    def _spawn(
        self, work: "asyncio._CoroutineLike[None]", name: str, kept: set[asyncio.Task[None]] | None = None
    ) -> asyncio.Task[None]:
        """Run `work`; close() waits for those in `_finishing`, the others end with stop()."""
        kept = self._tasks if kept is None else kept
        task = asyncio.get_running_loop().create_task(work, name=f"{self.settings.group}: {name}")
        kept.add(task)
        task.add_done_callback(kept.discard)
        return task

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
