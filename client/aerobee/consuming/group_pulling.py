"""Pulls of a group member: one task a queue, into that queue, never more than it has room for.

Touches  brokers through `Pulls`.

Failures  Everything is tried again with a growing pause: an operator may be about to grant the permission that is
          missing. Only a filter that the broker cannot read ends a queue: nothing but a new program cures that.
Moved     A broker that says "offset moved" has deleted messages, or an operator has reset the group's offset: what
          was pulled is forgotten, the new offset is committed, and reading goes on there.
"""

from collections.abc import Callable, Mapping

from aerobee.consuming.pulls import Patience, Pulled, Pulls, PullTerms, decoded
from aerobee.errors import BrokerRefused
from aerobee.messages.owned_queue import OwnedQueue
from aerobee.messages.subscriptions import Subscription
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.config import ConsumerConfig
from aerobee_proto.codes import ResponseCode
from aerobee_service.logs.event_log import event_logger

__all__ = ["GroupPulls", "pulls_of"]

log = event_logger("aerobee.consumer")

# No other refusal is final: an operator may be about to cure it.
ONLY_A_NEW_PROGRAM_CURES = ResponseCode.SUBSCRIPTION_PARSE_FAILED


def pulls_of(group: str, config: ConsumerConfig, *, peers: Peers, routes: RouteTable) -> Pulls:
    """How a member of a group asks brokers."""
    return Pulls(
        PullTerms(
            group=group,
            count=config.pull_count,
            max_bytes=None,
            hold_s=config.hold_s,
            timeout_s=config.hold_s + config.answer_margin_s,
        ),
        Patience(config.retry_s, config.retry_max_s, None, lambda code: code != ONLY_A_NEW_PROGRAM_CURES),
        peers=peers,
        routes=routes,
        log=log,
    )


class GroupPulls:
    """Pulls queues of one group."""

    def __init__(
        self,
        pulls: Pulls,
        subscriptions: Mapping[str, Subscription],
        *,
        check_records: bool,
        clock_ms: Callable[[], int],
        on_records: Callable[[OwnedQueue], None],
        on_moved: Callable[[OwnedQueue, int], None],
    ) -> None:
        self._pulls = pulls
        self._subscriptions = subscriptions
        self._check_records = check_records
        self._clock_ms = clock_ms
        self._on_records = on_records
        self._on_moved = on_moved

    async def run(self, owned: OwnedQueue) -> None:
        """Pull one queue until it is dropped (the task is cancelled) or broken."""
        subscription = self._subscriptions[owned.queue.topic]

        def asking() -> None:
            owned.last_pull_ms = self._clock_ms()

        while not owned.dropped and owned.broken is None:
            await owned.room()
            try:
                pulled = await self._pulls.next(
                    owned, subscription.filter, subscription.version_ms, asking=asking
                )
            except BrokerRefused as failed:
                owned.broken = failed
                self._on_records(owned)
                return
            if pulled is None or owned.dropped:
                continue
            if pulled.moved:
                self._on_moved(owned, pulled.next_offset)
            else:
                self._offer(owned, pulled, subscription)

    def _offer(self, owned: OwnedQueue, pulled: Pulled, subscription: Subscription) -> None:
        if pulled.max_offset is not None:
            owned.max_offset = pulled.max_offset
        offset, next_offset = pulled.offset, pulled.next_offset
        records, damage = decoded(owned.queue, offset, pulled.body, check_crc=self._check_records)
        if damage is not None:
            owned.broken = damage
            next_offset = records[-1].queue_offset + 1 if records else offset
        passes = subscription.filter.passes
        owned.offer(
            [record for record in records if record.queue_offset >= offset and passes(record)], next_offset
        )
        if records or damage is not None:
            self._on_records(owned)
