"""What an administrator does with one consumer group: send it elsewhere, copy it, look into its members.

Touches  brokers through `Peers`. `Admin` has these calls under its own name.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aerobee.errors import AlreadyExists, BrokerRefused, ClientError, InvalidMessage, NotFound
from aerobee.net.answers import body_of
from aerobee.net.offsets import Offsets
from aerobee.net.peers import Peers
from aerobee.terms.routes import MessageQueue, near_names
from aerobee.terms.start_at import AtOffset, AtTime, Position, QueueEnd
from aerobee_proto.bodies import (
    AllGroups,
    BrokerConsumeStats,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeTimeSpanBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    TopicList,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command

__all__ = ["GroupAdmin", "MemberNotFound", "TopicLag"]

END: Final = -1  # as the time of a reset: the end of each queue
MEMBERS_NAMED_MAX: Final = 10
RELAY_TIMEOUT_S: Final = 12.0  # a broker waits 10 s for the member that it asks

Masters = Callable[[str | None], Awaitable[Mapping[str, str]]]
"""Broker name to address: of the masters that have a topic, or of all."""


class MemberNotFound(ClientError):
    """No broker knows a member of the group by this client id; `online` are those that there are."""

    def __init__(self, group: str, client_id: str, remark: str, online: Sequence[str] = ()) -> None:
        super().__init__(group, client_id, remark)
        self.group = group
        self.client_id = client_id
        self.remark = remark
        self.online = tuple(online)

    def __str__(self) -> str:
        said = f"group {self.group!r} has no member {self.client_id!r} online: {self.remark}"
        if not self.online:
            return f"{said}\n  nobody of it is online"
        more = (
            f", and {len(self.online) - MEMBERS_NAMED_MAX} more"
            if len(self.online) > MEMBERS_NAMED_MAX
            else ""
        )
        return f"{said}\n  online are: {', '.join(self.online[:MEMBERS_NAMED_MAX])}{more}"


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

    # --- whether it is there ----------------------------------------------------------------------------------

    async def configs(self, masters: Mapping[str, str]) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Settings of all groups: broker name, group.

        The list is asked for also where one group is meant: a question about that one can create it.
        """
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker_name, addr in masters.items():
            answer = await self._peers.call("list groups", addr, code)
            found[broker_name] = body_of(AllGroups, answer).subscription_group_table
        return found

    async def places(self, group: str, masters: Mapping[str, str]) -> dict[str, str]:
        """Those of the brokers that know the group: by its settings, offsets or members. NotFound when none does."""
        configs = await self.configs(masters)
        found = {name: addr for name, addr in masters.items() if group in configs[name]}
        for broker_name, addr in masters.items():
            if broker_name not in found and (
                await self._topics_of(group, addr) or await self.members(group, addr) is not None
            ):
                found[broker_name] = addr
        if not found:
            known = sorted({name for table in configs.values() for name in table})
            raise NotFound(
                "group",
                group,
                where=f"on {', '.join(sorted(masters))}",
                near_names=near_names(group, known),
                advice="aerobee group list shows those there are; consuming makes one, so does aerobee group create",
            )
        return found

    async def _topics_of(self, group: str, addr: str) -> list[str]:
        """Topics in which the group has offsets."""
        what = f"list the topics of group {group!r}"
        answer = await self._peers.call(what, addr, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group})
        return list(body_of(TopicList, answer).topic_list)

    async def members(self, group: str, addr: str) -> ConsumerConnection | None:
        """Who is online in the group at one broker; None when nobody is."""
        what = f"list members of group {group!r}"
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._peers.request(what, addr, code, {"consumerGroup": group})
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(what, addr, answer.code, answer.remark)
        return body_of(ConsumerConnection, answer)

    # --- making and changing ----------------------------------------------------------------------------------

    async def create(
        self, group: str, retry_max_times: int, masters: Mapping[str, str], *, exist_ok: bool
    ) -> list[str]:
        """See `Admin.create_group`."""
        requested = SubscriptionGroupConfig(group_name=group, retry_max_times=retry_max_times)
        configs = await self.configs(masters)
        there = {name: table[group] for name, table in configs.items() if group in table}
        others = {name: _how(config) for name, config in there.items() if _how(config) != _how(requested)}
        if others and not exist_ok:
            raise AlreadyExists("group", group, others)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        for broker_name, addr in masters.items():
            if broker_name not in there:
                await self._peers.call(f"create group {group!r}", addr, code, None, requested.to_bytes())
        return list(masters)

    async def update(self, group: str, changes: Mapping[str, Any]) -> list[str]:
        """See `Admin.update_group`."""
        what = f"change group {group!r}"
        places = await self.places(group, await self._masters(None))
        for addr in places.values():
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._peers.call(what, addr, code, {"group": group})
            config = msgspec.structs.replace(body_of(SubscriptionGroupConfig, answer), **changes)
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._peers.call(what, addr, code, None, config.to_bytes())
        return list(places)

    async def delete(
        self, group: str, masters: Mapping[str, str], *, offsets: bool, missing_ok: bool
    ) -> list[str]:
        """See `Admin.delete_group`."""
        try:
            places = await self.places(group, masters)
        except NotFound:
            if missing_ok:
                return []
            raise
        flag = "true" if offsets else "false"
        header = {"groupName": group, "cleanOffset": flag, "removeOffset": flag}
        for addr in places.values():
            await self._peers.call(
                f"delete group {group!r}", addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, header
            )
        return list(places)

    # --- where it goes on -------------------------------------------------------------------------------------

    async def reset(
        self, group: str, topic: str, position: Position, queue: MessageQueue | None
    ) -> dict[MessageQueue, int]:
        """See `Admin.reset_group`."""
        if isinstance(position, AtOffset) and queue is None:
            raise InvalidMessage(f"offset {position.offset} means something in one queue only; say which")
        if queue is not None and (queue.topic != topic or queue.queue_id < 0):
            raise InvalidMessage(f"queue {queue} is not one of topic {topic!r}")
        done: dict[MessageQueue, int] = {}
        masters = await self._masters(topic)
        await self.places(group, await self._masters(None))
        if queue is not None and queue.broker_name not in masters:
            where = f"with topic {topic!r}"
            raise NotFound("broker", queue.broker_name, where=where, known=sorted(masters))
        for broker_name, addr in masters.items():
            if queue is None or queue.broker_name == broker_name:
                done |= await self._reset_on(addr, group, topic, position, queue)
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
            for queue, offset in body_of(ResetOffsetBody, answer).offset_table.items()
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
        await self._check_source(source, topic, await self.places(source, await self._masters(None)))
        for addr in masters.values():
            what = f"start group {target!r} where {source!r} is"
            await self._peers.call(what, addr, RequestCode.CLONE_GROUP_OFFSET, header)
        return list(masters)

    async def _check_source(self, source: str, topic: str | None, places: Mapping[str, str]) -> None:
        """NotFound when the group has no offset that could be copied."""
        topics = {name for addr in places.values() for name in await self._topics_of(source, addr)}
        if topics if topic is None else topic in topics:
            return
        raise NotFound(
            "offset of group",
            source,
            where=f"in topic {topic!r}" if topic is not None else "in any topic",
            advice=f"it has offsets in {', '.join(sorted(topics))}"
            if topics
            else "it has consumed nothing yet",
        )

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
            for groups in body_of(BrokerConsumeStats, answer).consume_stats_list:
                for group, tables in groups.items():
                    _add_lags(found, group, tables)
        return _lags_of(found)

    async def lag(self, group: str) -> list[TopicLag]:
        """See `Admin.group_lag`."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        delays: dict[str, int] = {}
        masters = await self._masters(None)
        for addr in masters.values():
            stats = await self._stats(addr, group)
            _add_lags(found, group, [stats])
            for topic in {queue.topic for queue in stats.offset_table}:
                delays[topic] = max(delays.get(topic, 0), await self._delay_ms(addr, group, topic))
        if not found:
            await self.places(group, masters)
        return _lags_of(found, delays)

    async def _stats(self, addr: str, group: str, topic: str | None = None) -> ConsumeStats:
        header = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        what = f"ask the progress of group {group!r}"
        answer = await self._peers.call(what, addr, RequestCode.GET_CONSUME_STATS, header)
        return body_of(ConsumeStats, answer)

    async def _delay_ms(self, addr: str, group: str, topic: str) -> int:
        answer = await self._peers.call(
            f"ask how late group {group!r} is",
            addr,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            {"group": group, "topic": topic},
        )
        spans = body_of(ConsumeTimeSpanBody, answer).consume_time_span_set
        return max((span.delay_time for span in spans), default=0)

    # --- its members ------------------------------------------------------------------------------------------

    async def running_info(self, group: str, client_id: str, *, threads: bool) -> ConsumerRunningInfo:
        """See `Admin.member_running_info`."""
        header = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if threads else "false",
        }
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return body_of(ConsumerRunningInfo, await self._ask_member(group, client_id, code, header))

    async def consume_directly(
        self, group: str, client_id: str, topic: str, message_id: str, addr: str
    ) -> ConsumeMessageDirectlyResult:
        """See `Admin.consume_directly`; `addr` is the broker that has the message."""
        header = {"consumerGroup": group, "clientId": client_id, "topic": topic, "msgId": message_id}
        what = f"hand message {message_id} to member {client_id!r} of group {group!r}"
        answer = await self._peers.request(
            what, addr, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=RELAY_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            masters = await self._masters(None)
            await self.places(group, masters)
            online = await self._online(group, masters)
            if client_id not in online:
                raise MemberNotFound(group, client_id, f"{addr} says: {answer.remark}", online)
            raise BrokerRefused(what, addr, answer.code, answer.remark)
        return body_of(ConsumeMessageDirectlyResult, answer)

    async def _ask_member(
        self, group: str, client_id: str, code: RequestCode, header: dict[str, str]
    ) -> Command:
        """What a member answered; a broker that does not know it is passed over."""
        what, remark = f"ask member {client_id!r} of group {group!r}", "no broker is there"
        masters = await self._masters(None)
        for addr in masters.values():
            answer = await self._peers.request(what, addr, code, header, timeout_s=RELAY_TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS:
                return answer
            if answer.code != ResponseCode.SYSTEM_ERROR:
                raise BrokerRefused(what, addr, answer.code, answer.remark)
            remark = f"{addr} says: {answer.remark}"
        await self.places(group, masters)
        raise MemberNotFound(group, client_id, remark, await self._online(group, masters))

    async def _online(self, group: str, masters: Mapping[str, str]) -> list[str]:
        """Client ids of the group's members; every member talks to every broker."""
        for addr in masters.values():
            found = await self.members(group, addr)
            if found is not None:
                return sorted(one.client_id for one in found.connection_set)
        return []


def _how(config: SubscriptionGroupConfig) -> str:
    """A group's settings in a few words."""
    words = [f"{config.retry_max_times} retries"]
    if not config.consume_enable:
        words.append("not allowed to consume")
    if not config.consume_broadcast_enable:
        words.append("not allowed to broadcast")
    if config.consume_message_orderly:
        words.append("orderly")
    return ", ".join(words)


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
