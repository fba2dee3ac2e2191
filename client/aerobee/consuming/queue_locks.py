"""Locks of queues for orderly groups: asked from the master of each queue's broker, many queues a request."""

import asyncio
from collections.abc import Iterable

from aerobee.errors import ClientError
from aerobee.net.answers import body_of
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.routes import MessageQueue
from aerobee_proto.bodies import LockBatchBody, LockedQueues, UnlockBatchBody
from aerobee_proto.codes import RequestCode
from aerobee_proto.javajson import MessageQueue as QueueKey
from aerobee_service.logs.event_log import event_logger

__all__ = ["QueueLocks"]

log = event_logger("aerobee.consumer")


class QueueLocks:
    """Locks and unlocks queues for one client of one group."""

    def __init__(self, group: str, client_id: str, peers: Peers, routes: RouteTable) -> None:
        self._group = group
        self._client_id = client_id
        self._peers = peers
        self._routes = routes
        # Queues that a broker may hold locked for this client: asked for, and not given back.
        self.asked: set[MessageQueue] = set()
        # Those that a broker did not give when they were asked for last: others have them.
        self.denied: set[MessageQueue] = set()

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues, or renew their locks: those that this client holds now. A silent broker locks nothing."""
        by_broker = self._by_broker(queues)
        for some in by_broker.values():
            self.asked.update(some)
        results = await asyncio.gather(*(self._lock_at(addr, some) for addr, some in by_broker.items()))
        return set().union(*results)

    async def unlock(self, queues: Iterable[MessageQueue], *, wait: bool) -> None:
        """Give locks back; with `wait` the brokers' answers are waited for. Failures are logged: locks expire."""
        await asyncio.gather(
            *(self._unlock_at(addr, some, wait=wait) for addr, some in self._by_broker(queues).items())
        )

    async def unlock_all(self) -> None:
        """Give back every lock that this client may hold: also one whose answer nobody waited for any more."""
        await self.unlock(list(self.asked), wait=True)

    async def _lock_at(self, addr: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        body = LockBatchBody(client_id=self._client_id, consumer_group=self._group, mq_set=_keys(queues))
        try:
            answer = await self._peers.call(
                f"lock {len(queues)} queues", addr, RequestCode.LOCK_BATCH_MQ, {}, body.to_bytes()
            )
            locked = body_of(LockedQueues, answer).locked
        except ClientError as failed:
            log.warning("client.lock_failed", group=self._group, addr=addr, reason=str(failed))
            self.denied.difference_update(queues)
            for topic in {queue.topic for queue in queues}:
                self._routes.refresh_soon(topic)  # another broker may be the master by now
            return set()
        held = {MessageQueue(key.topic, key.broker_name, key.queue_id) for key in locked}
        self.denied.difference_update(held)
        self.denied.update(queue for queue in queues if queue not in held)
        return held

    async def _unlock_at(self, addr: str, queues: list[MessageQueue], *, wait: bool) -> None:
        self.asked.difference_update(queues)
        self.denied.difference_update(queues)
        body = UnlockBatchBody(client_id=self._client_id, consumer_group=self._group, mq_set=_keys(queues))
        what = f"unlock {len(queues)} queues"
        try:
            if wait:
                await self._peers.call(what, addr, RequestCode.UNLOCK_BATCH_MQ, {}, body.to_bytes())
            else:
                await self._peers.oneway(what, addr, RequestCode.UNLOCK_BATCH_MQ, {}, body.to_bytes())
        except ClientError as failed:
            log.warning("client.unlock_failed", group=self._group, addr=addr, reason=str(failed))

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        """Queues by the address of their master; those without one are left out and so not locked."""
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                addr = self._routes.master_addr(queue.topic, queue.broker_name)
            except ClientError as failed:
                log.warning("client.lock_failed", group=self._group, addr="unknown", reason=str(failed))
                continue
            found.setdefault(addr, []).append(queue)
        return found


def _keys(queues: Iterable[MessageQueue]) -> list[QueueKey]:
    return [QueueKey(queue.topic, queue.broker_name, queue.queue_id) for queue in queues]
