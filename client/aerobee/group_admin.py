"""What an administrator does with one consumer group: send it elsewhere, copy it, look into its members.

Touches  brokers through `Peers`. `Admin` has these calls under its own name.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aerobee.errors import BrokerRefused, ClientError, InvalidMessage
from aerobee.offsets import Offsets
from aerobee.peers import Peers
from aerobee.routes import MessageQueue
from aerobee.start_at import AtOffset, AtTime, Position, QueueEnd
from aerobee_proto.bodies import (
    BrokerConsumeStats,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeTimeSpanBody,
    ResetOffsetBody,
)
from aerobee_proto.codes import RequestCode, ResponseCode

__all__ = ["GroupAdmin", "MemberNotFound", "TopicLag"]

END: Final = -1  # as the time of a reset: the end of each queue
RELAY_TIMEOUT_S: Final = 12.0  # a broker waits 10 s for the member that it asks

Masters = Callable[[str | None], Awaitable[Mapping[str, str]]]
"""Broker name to address: of the masters that have a topic, or of all."""


class MemberNotFound(ClientError):
    """No broker knows a member of the group by this client id."""

    def __init__(self, group: str, client_id: str, remark: str) -> None:
        super().__init__(group, client_id, remark)
        self.group = group
        self.client_id = client_id
        self.remark = remark

    def __str__(self) -> str:
        return f"group {self.group!r} has no member {self.client_id!r} online: {self.remark}"


@dataclass(slots=True, frozen=True)
class TopicLag:
    """How far a group is behind in one topic.

    `in_flight` messages are pulled and not yet committed; `delay_ms` is the age of the oldest message that is not
    consumed, 0 without one and None when it was not asked for.
    """

    group: str
    topic: str
    lag: int
    in_flight: int
    delay_ms: int | None = None


class GroupAdmin:
    """Calls about one group, on every master that has a part of it."""

    def __init__(self, peers: Peers, offsets: Offsets, masters: Masters) -> None:
        self._peers = peers
        self._offsets = offsets
        self._masters = masters

    # --- where it goes on -------------------------------------------------------------------------------------

    async def reset(
        self, group: str, topic: str, position: Position, queue: MessageQueue | None
    ) -> dict[MessageQueue, int]:
        """See `Admin.reset_group`."""
        if isinstance(position, AtOffset) and queue is None:
            raise InvalidMessage(f"offset {position.offset} means something in one queue only; say which")
        done: dict[MessageQueue, int] = {}
        for broker_name, addr in (await self._masters(topic)).items():
            if queue is None or queue.broker_name == broker_name:
                done |= await self._reset_on(addr, group, topic, position, queue)
        if queue is not None and not done:
            raise InvalidMessage(f"no master of broker {queue.broker_name!r} has topic {topic!r}")
        return done

    async def _reset_on(
        self, addr: str, group: str, topic: str, position: Position, only: MessageQueue | None
    ) -> dict[MessageQueue, int]:
        fields = {"group": group, "topic": topic, "isForce": "true"} | _target(position, only)
        what = f"reset group {group!r} in topic {topic!r}"
        answer = await self._peers.request(what, addr, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return await self._commit_on(addr, group, topic, position, only)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(what, addr, answer.code, answer.remark)
        return {
            MessageQueue(queue.topic, queue.broker_name, queue.queue_id): offset
            for queue, offset in ResetOffsetBody.from_bytes(answer.body).offset_table.items()
        }

    async def _commit_on(
        self, addr: str, group: str, topic: str, position: Position, only: MessageQueue | None
    ) -> dict[MessageQueue, int]:
        """For brokers that leave resets to the members, while there are none: what was committed is all there is."""
        stats = await self._stats(addr, group, topic)
        done = {}
        for known in stats.offset_table:
            queue = MessageQueue(known.topic, known.broker_name, known.queue_id)
            if only is not None and queue != only:
                continue
            done[queue] = await self._offsets.resolve(queue, position)
            await self._offsets.commit(group, queue, done[queue])
        return done

    async def clone(self, source: str, target: str, topic: str | None, *, offline: bool) -> list[str]:
        """See `Admin.clone_group`."""
        header = {"srcGroup": source, "destGroup": target, "offline": "true" if offline else "false"}
        if topic is not None:
            header["topic"] = topic
        masters = await self._masters(topic)
        for addr in masters.values():
            what = f"start group {target!r} where {source!r} is"
            await self._peers.call(what, addr, RequestCode.CLONE_GROUP_OFFSET, header)
        return list(masters)

    # --- how far it is ----------------------------------------------------------------------------------------

    async def lags(self) -> list[TopicLag]:
        """See `Admin.group_lags`."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for addr in (await self._masters(None)).values():
            answer = await self._peers.call(
                "ask the progress of all groups",
                addr,
                RequestCode.GET_BROKER_CONSUME_STATS,
                {"isOrder": "false"},
            )
            for groups in BrokerConsumeStats.from_bytes(answer.body).consume_stats_list:
                for group, tables in groups.items():
                    _add_lags(found, group, tables)
        return _lags_of(found)

    async def lag(self, group: str) -> list[TopicLag]:
        """See `Admin.group_lag`."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        delays: dict[str, int] = {}
        for addr in (await self._masters(None)).values():
            stats = await self._stats(addr, group)
            _add_lags(found, group, [stats])
            for topic in {queue.topic for queue in stats.offset_table}:
                delays[topic] = max(delays.get(topic, 0), await self._delay_ms(addr, group, topic))
        return _lags_of(found, delays)

    async def _stats(self, addr: str, group: str, topic: str | None = None) -> ConsumeStats:
        header = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        what = f"ask the progress of group {group!r}"
        answer = await self._peers.call(what, addr, RequestCode.GET_CONSUME_STATS, header)
        return ConsumeStats.from_bytes(answer.body)

    async def _delay_ms(self, addr: str, group: str, topic: str) -> int:
        answer = await self._peers.call(
            f"ask how late group {group!r} is",
            addr,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            {"group": group, "topic": topic},
        )
        spans = ConsumeTimeSpanBody.from_bytes(answer.body).consume_time_span_set
        return max((span.delay_time for span in spans), default=0)

    # --- its members ------------------------------------------------------------------------------------------

    async def running_info(self, group: str, client_id: str, *, threads: bool) -> ConsumerRunningInfo:
        """See `Admin.member_running_info`."""
        header = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if threads else "false",
        }
        return ConsumerRunningInfo.from_bytes(
            await self._ask_member(group, client_id, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        )

    async def consume_directly(
        self, group: str, client_id: str, topic: str, message_id: str, addr: str
    ) -> ConsumeMessageDirectlyResult:
        """See `Admin.consume_directly`; `addr` is the broker that has the message."""
        header = {"consumerGroup": group, "clientId": client_id, "topic": topic, "msgId": message_id}
        what = f"hand message {message_id} to member {client_id!r} of group {group!r}"
        answer = await self._peers.call(
            what, addr, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=RELAY_TIMEOUT_S
        )
        return ConsumeMessageDirectlyResult.from_bytes(answer.body)

    async def _ask_member(
        self, group: str, client_id: str, code: RequestCode, header: dict[str, str]
    ) -> bytes:
        """The body that a member answered; a broker that does not know it is passed over."""
        what, remark = f"ask member {client_id!r} of group {group!r}", "no broker is there"
        for addr in (await self._masters(None)).values():
            answer = await self._peers.request(what, addr, code, header, timeout_s=RELAY_TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS:
                return answer.body
            if answer.code != ResponseCode.SYSTEM_ERROR:
                raise BrokerRefused(what, addr, answer.code, answer.remark)
            remark = f"{addr} says: {answer.remark}"
        raise MemberNotFound(group, client_id, remark)


def _target(position: Position, queue: MessageQueue | None) -> dict[str, str]:
    """Header fields that say where to."""
    one = {} if queue is None else {"queueId": str(queue.queue_id)}
    match position:
        case AtOffset(offset):
            return one | {"offset": str(offset), "timestamp": "0"}
        case AtTime(timestamp_ms):
            return one | {"timestamp": str(max(0, timestamp_ms))}
        case QueueEnd.EARLIEST:
            return one | {"timestamp": "0"}
        case QueueEnd.LATEST:
            return one | {"timestamp": str(END)}


def _add_lags(
    found: dict[tuple[str, str], tuple[int, int]], group: str, tables: Sequence[ConsumeStats]
) -> None:
    """Add the messages behind and in flight of each topic."""
    for stats in tables:
        for queue, one in stats.offset_table.items():
            lag, in_flight = found.get((group, queue.topic), (0, 0))
            found[group, queue.topic] = (
                lag + one.broker_offset - one.consumer_offset,
                in_flight + max(0, one.pull_offset - one.consumer_offset),
            )


def _lags_of(
    found: Mapping[tuple[str, str], tuple[int, int]], delays: Mapping[str, int] | None = None
) -> list[TopicLag]:
    return [
        TopicLag(group, topic, lag, in_flight, None if delays is None else delays.get(topic, 0))
        for (group, topic), (lag, in_flight) in sorted(found.items())
    ]
