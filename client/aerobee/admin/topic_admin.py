"""What an administrator does with one topic: make it, change it, delete it.

Touches  nameservers and brokers through `Peers`. `Admin` has these calls under its own name.

Nothing is hidden
- A topic that exists is not made again with other settings: fewer queues would put messages out of reach.
- A change that takes queues from the readers counts what is stored in them, and is refused unless that is wanted.
- No topic gets queues that are written and not read.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aerobee.errors import (
    AlreadyExists,
    BrokerRefused,
    HidesMessages,
    InvalidMessage,
    NoRoute,
    NotFound,
)
from aerobee.net.answers import body_of
from aerobee.net.peers import Nameservers, Peers
from aerobee.terms.routes import MessageQueue
from aerobee_proto.bodies import TopicConfig, TopicRouteData, TopicStatsTable
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.names import TEMPLATE_TOPIC

__all__ = ["PermissionText", "QueueOffsets", "TopicAdmin", "permission_text"]

PERMISSIONS: Final = {"r": Perm.READ, "w": Perm.WRITE, "rw": Perm.READ_WRITE}
PermissionText = Literal["r", "w", "rw"]

Masters = Callable[[str | None, Sequence[str]], Awaitable[Mapping[str, str]]]
"""Broker name to address: of the masters of a cluster or with these names."""


@dataclass(slots=True, frozen=True)
class QueueOffsets:
    """Ends of one queue; `last_update_ms` is the store time of its last message, None when it is empty."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int | None

    @property
    def message_count(self) -> int:
        return self.max_offset - self.min_offset


def permission_text(perm: int) -> str:
    """`rw`, `r`, `w` or `none`."""
    return "".join(letter for bit, letter in ((Perm.READ, "r"), (Perm.WRITE, "w")) if perm & bit) or "none"


class TopicAdmin:
    """Calls about one topic, on every master that is to have it or has it."""

    def __init__(self, peers: Peers, nameservers: Nameservers, masters: Masters) -> None:
        self._peers = peers
        self._nameservers = nameservers
        self._masters = masters

    # --- looking ----------------------------------------------------------------------------------------------

    async def configs(self, topic: str, addrs: Mapping[str, str]) -> dict[str, TopicConfig]:
        """Settings by name of the broker, of those that have the topic."""
        found: dict[str, TopicConfig] = {}
        for broker_name, addr in addrs.items():
            what = f"ask broker {broker_name} for topic {topic!r}"
            header = {"topic": topic, "lo": "true"}
            answer = await self._peers.request(what, addr, RequestCode.GET_TOPIC_CONFIG, header)
            if answer.code == ResponseCode.SUCCESS:
                found[broker_name] = body_of(TopicConfig, answer)
            elif answer.code != ResponseCode.TOPIC_NOT_EXIST:
                raise BrokerRefused(what, addr, answer.code, answer.remark)
        return found

    async def require(self, topic: str, addrs: Mapping[str, str]) -> dict[str, TopicConfig]:
        """`configs` of a topic that has a route; NotFound when no broker in it has the topic (any more)."""
        found = await self.configs(topic, addrs)
        if not found:
            raise NotFound(
                "topic", topic, where=f"on {', '.join(addrs) or 'any master'}, in spite of its route"
            )
        return found

    async def ends(self, topic: str, addr: str) -> list[QueueOffsets]:
        """Ends of every queue that a broker has of a topic."""
        what = f"describe topic {topic!r}"
        answer = await self._peers.call(what, addr, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        return [
            QueueOffsets(
                MessageQueue(queue.topic, queue.broker_name, queue.queue_id),
                ends.min_offset,
                ends.max_offset,
                ends.last_update_timestamp or None,
            )
            for queue, ends in body_of(TopicStatsTable, answer).offset_table.items()
        ]

    # --- changing ---------------------------------------------------------------------------------------------

    async def create(
        self,
        requested: TopicConfig,
        *,
        cluster: str | None,
        brokers: Sequence[str],
        exist_ok: bool,
    ) -> list[str]:
        """See `Admin.create_topic`; `requested` says how it is to be, with its attributes."""
        _check_queues(requested)
        topic = requested.topic_name
        masters = await self._masters(cluster, brokers)
        there = await self.configs(topic, masters)
        others = {
            name: _how(found) for name, found in there.items() if not _is_as_requested(found, requested)
        }
        if others and not exist_ok:
            raise AlreadyExists("topic", topic, others)
        for broker_name, addr in masters.items():
            if broker_name not in there:
                await self._put(f"create topic {topic!r}", addr, requested)
        return list(masters)

    async def update(
        self,
        topic: str,
        addrs: Mapping[str, str],
        *,
        queues: int | None,
        write_queues: int | None,
        permission: PermissionText | None,
        hide_messages: bool,
    ) -> list[str]:
        """See `Admin.update_topic`; `addrs` are the masters in its route."""
        before = await self.require(topic, addrs)
        after: dict[str, TopicConfig] = {}
        for broker_name, config in before.items():
            after[broker_name] = changed = _changed(config, queues, write_queues, permission)
            if queues is not None or write_queues is not None:
                _check_queues(changed)
        if not hide_messages:
            hidden: dict[tuple[str, int], int] = {}
            for broker_name, config in before.items():
                if _takes_from_readers(config, after[broker_name]):
                    hidden |= await self._hidden(addrs[broker_name], config, after[broker_name])
            if hidden:
                raise HidesMessages(topic, hidden)
        for broker_name, config in after.items():
            await self._put(f"change topic {topic!r}", addrs[broker_name], config)
        return list(after)

    async def _hidden(self, addr: str, before: TopicConfig, after: TopicConfig) -> dict[tuple[str, int], int]:
        """Messages of each queue that may be read now and not any more."""
        return {
            (one.queue.broker_name, one.queue.queue_id): one.message_count
            for one in sorted(await self.ends(before.topic_name, addr), key=lambda one: one.queue)
            if one.message_count > 0
            and one.queue.queue_id < before.read_queue_nums
            and (one.queue.queue_id >= after.read_queue_nums or not after.perm & Perm.READ)
        }

    async def _put(self, what: str, addr: str, config: TopicConfig) -> None:
        header: dict[str, str] = {
            "topic": config.topic_name,
            "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": str(config.read_queue_nums),
            "writeQueueNums": str(config.write_queue_nums),
            "perm": str(int(config.perm)),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": str(config.topic_sys_flag),
            "order": "true" if config.order else "false",
        }
        if config.attributes:
            header["attributes"] = ",".join(f"+{key}={value}" for key, value in config.attributes.items())
        await self._peers.call(what, addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete(
        self, topic: str, route: TopicRouteData | NoRoute, *, cluster: str | None, missing_ok: bool
    ) -> list[str]:
        """See `Admin.delete_topic`; `route` is what the nameservers know, or the error that says that they do not."""
        masters = await self._masters(cluster, ())
        there = await self.configs(topic, masters)
        if not there and not missing_ok:
            if isinstance(route, NoRoute):
                raise route
            if cluster is not None:
                known = sorted({broker.broker_name for broker in route.broker_datas})
                where = f"in cluster {cluster}"
                raise NotFound("topic", topic, where=where, advice=f"it is on {', '.join(known)}")
        what = f"delete topic {topic!r}"
        for broker_name in there:
            await self._peers.call(
                what, masters[broker_name], RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}
            )
        header = {"topic": topic} | ({"clusterName": cluster} if cluster else {})
        for addr in self._nameservers.addrs:
            await self._peers.call(what, addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        return list(there)


def _check_queues(config: TopicConfig) -> None:
    """InvalidMessage for numbers of queues that lose messages or that no topic has."""
    topic, read, write = config.topic_name, config.read_queue_nums, config.write_queue_nums
    if read < 1 or write < 1:
        raise InvalidMessage(f"topic {topic!r} needs at least one queue, not {min(read, write)}")
    if write > read:
        unread = f"queue {read}" if write == read + 1 else f"queues {read} to {write - 1}"
        raise InvalidMessage(
            f"topic {topic!r} would have {write} queues to write and {read} to read: nobody would get the messages"
            f" in {unread}; read at least as many as are written"
        )


def _changed(
    config: TopicConfig, queues: int | None, write_queues: int | None, permission: PermissionText | None
) -> TopicConfig:
    if write_queues is None:
        write_queues = config.write_queue_nums if queues is None else queues
    return TopicConfig(
        topic_name=config.topic_name,
        read_queue_nums=config.read_queue_nums if queues is None else queues,
        write_queue_nums=write_queues,
        perm=config.perm if permission is None else PERMISSIONS[permission],
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
    )


def _takes_from_readers(before: TopicConfig, after: TopicConfig) -> bool:
    if not before.perm & Perm.READ:
        return False
    return after.read_queue_nums < before.read_queue_nums or not after.perm & Perm.READ


def _is_as_requested(found: TopicConfig, requested: TopicConfig) -> bool:
    attributes = found.attributes or {}
    return (
        found.read_queue_nums == requested.read_queue_nums
        and found.write_queue_nums == requested.write_queue_nums
        and found.perm == requested.perm
        and found.order == requested.order
        and all(attributes.get(key) == value for key, value in (requested.attributes or {}).items())
    )


def _how(config: TopicConfig) -> str:
    """A topic's settings in a few words."""
    read, write = config.read_queue_nums, config.write_queue_nums
    words = [f"{read} queue{'s' if read != 1 else ''}"]
    if write != read:
        words.append(f"{write} of them to write" if write < read else f"{write} to write")
    words.append(f"permission {permission_text(config.perm)}")
    if config.order:
        words.append("ordered")
    words += [f"{key}={value}" for key, value in sorted((config.attributes or {}).items())]
    return ", ".join(words)
