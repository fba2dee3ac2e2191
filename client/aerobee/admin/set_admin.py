"""Members of a set, each asked for itself: its state, and another role.

Touches  nameservers and brokers through `Peers`. Nothing is cached: every call asks.

Roles can be changed at brokers of ours alone: others answer that they do not know the request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aerobee.errors import BadAnswer, BrokerRefused, BrokerUnreachable, NotFound, RequestTimeout
from aerobee.net.answers import body_of
from aerobee.net.peers import Nameservers, Peers
from aerobee.terms.routes import near_names
from aerobee_proto.bodies import ClusterInfo, HaStatus, KVTable
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import FormatError
from aerobee_proto.javajson import loads

__all__ = ["BrokerNode", "MemberState", "SetAdmin", "nodes_of"]

ASK_S: Final = 3.0
REMARK: Final = 80  # characters of what an official broker says of its failure


@dataclass(slots=True, frozen=True)
class BrokerNode:
    """One broker process. `broker_id` 0 is the master."""

    cluster_name: str
    broker_name: str
    broker_id: int
    addr: str


def nodes_of(info: ClusterInfo) -> list[BrokerNode]:
    """Every broker of a nameserver's table, ordered by cluster, name and id."""
    nodes = [
        BrokerNode(broker.cluster or "", broker.broker_name, broker_id, addr)
        for broker in info.broker_addr_table.values()
        for broker_id, addr in broker.broker_addrs.items()
    ]
    return sorted(nodes, key=lambda node: (node.cluster_name, node.broker_name, node.broker_id))


@dataclass(slots=True, frozen=True)
class MemberState:
    """What a broker says of itself. Offsets are physical, of its log; None: it does not say."""

    node: BrokerNode
    error: str = ""  # why it has not answered; the rest is empty then
    is_ours: bool = False
    is_master: bool = False
    role: str = ""
    member: int = 0  # its brokerId
    epoch: int | None = None
    end_offset: int = 0
    newest_message_ms: int | None = None
    is_elected: bool = False  # its set elects its master
    fixed_by: str = ""  # why operators cannot change its role; "": they can, or it does not say
    is_linked: bool = False  # of a slave: it has its master
    master_addr: str = ""  # of a slave
    slave_count: int = 0  # of a master, connected
    in_sync_count: int = 0  # of those
    in_sync: frozenset[int] | None = (
        None  # of a master: numbers of the members in sync; None: it does not say
    )

    @property
    def is_there(self) -> bool:
        return not self.error


class SetAdmin:
    """Calls about members of sets."""

    def __init__(self, peers: Peers, nameservers: Nameservers) -> None:
        self._peers = peers
        self._nameservers = nameservers

    # --- who is there -----------------------------------------------------------------------------------------

    async def registered(self) -> dict[str, list[BrokerNode]]:
        """What each nameserver knows, by its address; one that does not answer is left out."""
        known: dict[str, list[BrokerNode]] = {}
        for addr in self._nameservers.addrs:
            try:
                answer = await self._peers.call("list brokers", addr, RequestCode.GET_BROKER_CLUSTER_INFO)
            except (RequestTimeout, BrokerUnreachable):
                continue
            known[addr] = nodes_of(body_of(ClusterInfo, answer))
        return known

    async def nodes(self, broker_name: str | None = None) -> list[BrokerNode]:
        """Every registered broker, or those of one set. NotFound when there is none."""
        answer = await self._nameservers.call("list brokers", RequestCode.GET_BROKER_CLUSTER_INFO)
        nodes = nodes_of(body_of(ClusterInfo, answer))
        if broker_name is None:
            return nodes
        found = [node for node in nodes if node.broker_name == broker_name]
        if not found:
            names = sorted({node.broker_name for node in nodes})
            raise NotFound("broker", broker_name, known=names, near_names=near_names(broker_name, names))
        return found

    async def state(self, node: BrokerNode) -> MemberState:
        """What this broker says of itself; `error` when it does not answer."""
        what = f"ask broker {node.addr} how it stands"
        try:
            answer = await self._peers.call(
                what, node.addr, RequestCode.GET_BROKER_HA_STATUS, timeout_s=self._timeout_s
            )
            status = HaStatus.from_stranger(bytes(answer.body))
        except (RequestTimeout, BrokerUnreachable) as silent:
            return MemberState(node, error=str(silent))
        except BrokerRefused as refused:
            # An official broker whose role was changed under it (take-over) fails at this question.
            return MemberState(
                node,
                error=f"{node.addr} does not say how it stands: {refused.code_name} {refused.remark[:REMARK]}",
            )
        except FormatError as rubbish:
            raise BadAnswer(what, node.addr, str(rubbish)) from rubbish
        said = answer.ext
        link = status.ha_client_runtime_info
        return MemberState(
            node,
            is_ours="brokerRole" in said,
            is_master=status.master,
            role=said.get("brokerRole", "MASTER" if status.master else "SLAVE"),
            member=int(said.get("brokerId", node.broker_id)),
            epoch=int(said["epoch"]) if "epoch" in said else None,
            end_offset=status.master_commit_log_max_offset if status.master else link.max_offset,
            newest_message_ms=int(said["newestMessageMillis"]) if "newestMessageMillis" in said else None,
            is_elected=said.get("elected") == "true",
            fixed_by=said.get("roleFixedBy", ""),
            is_linked=said.get("linked") == "true" if "linked" in said else link.activated,
            master_addr=said.get("masterAddr", ""),
            slave_count=len(status.ha_connection_info),
            in_sync_count=status.in_sync_slave_nums,
            in_sync=_numbers(said["inSyncMembers"]) if "inSyncMembers" in said else None,
        )

    async def log_end(self, addr: str) -> int:
        """Where the log of a broker ends, by its figures: one whose role was changed under it answers nothing else."""
        what = f"ask broker {addr} where its log ends"
        answer = await self._peers.call(what, addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            return int(body_of(KVTable, answer).table["commitLogMaxOffset"])
        except (KeyError, ValueError) as missing:
            raise BadAnswer(what, addr, "there is no commitLogMaxOffset in it") from missing

    @property
    def _timeout_s(self) -> float:
        return min(ASK_S, self._peers.timeout_s)

    async def unregister(self, nameserver: str, node: BrokerNode) -> None:
        """Let a nameserver forget a broker. BrokerRefused: it does not."""
        fields = {"brokerName": node.broker_name, "brokerAddr": node.addr, "clusterName": node.cluster_name}
        await self._peers.call(
            f"unregister {node.addr}",
            nameserver,
            RequestCode.UNREGISTER_BROKER,
            fields | {"brokerId": str(node.broker_id)},
        )

    # --- roles ------------------------------------------------------------------------------------------------

    async def change_role(self, addr: str, header: Mapping[str, object]) -> Mapping[str, str]:
        """Let a broker of ours begin a life with another role; what it says. BrokerRefused with the reason.

        `header` has the fields of the request by their wire names: brokerRole, brokerId and others.
        """
        fields = {name: _text(value) for name, value in header.items()}
        answer = await self._peers.call(
            f"change the role of broker {addr}", addr, RequestCode.CHANGE_ROLE, fields
        )
        return answer.ext

    async def fence(self, addr: str, millis: int) -> Mapping[str, str]:
        """Let nothing be written at a master of ours for so long (0: write again); its role, and where its log ends."""
        timeout_s = max(self._peers.timeout_s, millis / 1000 + 1)
        answer = await self._peers.call(
            f"fence broker {addr}",
            addr,
            RequestCode.FENCE_WRITES,
            {"millis": str(millis)},
            timeout_s=timeout_s,
        )
        return answer.ext

    async def level(self, addr: str, end_offset: int, millis: int) -> Mapping[str, str]:
        """Wait until a slave of ours has its master's log up to there, and its tables. BrokerRefused: not in time."""
        answer = await self._peers.call(
            f"wait for slave {addr}",
            addr,
            RequestCode.AWAIT_LEVEL,
            {"endOffset": str(end_offset), "millis": str(millis)},
            timeout_s=millis / 1000 + self._peers.timeout_s,
        )
        return answer.ext

    async def carry_offsets(self, source: str, target: str) -> int:
        """Commit at one broker what groups have committed at another further on; how many offsets that were."""
        theirs, own = await self._offsets(source), await self._offsets(target)
        further = [(place, offset) for place, offset in theirs.items() if offset > own.get(place, -1)]
        for (key, queue_id), offset in further:
            topic, _, group = key.partition("@")
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
            await self._peers.request(
                f"commit an offset of group {group!r}",
                target,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                fields | {"commitOffset": str(offset)},
            )
        return len(further)

    async def _offsets(self, addr: str) -> dict[tuple[str, int], int]:
        """Offset by `topic@group` and queue."""
        what = f"ask broker {addr} for the offsets of its groups"
        answer = await self._peers.call(what, addr, RequestCode.GET_ALL_CONSUMER_OFFSET)
        try:
            table = loads(bytes(answer.body))["offsetTable"]
            return {
                (str(key), int(queue_id)): int(offset)
                for key, queues in table.items()
                for queue_id, offset in queues.items()
            }
        except (FormatError, KeyError, TypeError, ValueError, AttributeError) as rubbish:
            raise BadAnswer(what, addr, str(rubbish)) from rubbish

    async def ha_addr(self, addr: str) -> str:
        """Where a master gives its log; "" when it does not say."""
        what = f"ask broker {addr} where it gives its log"
        answer = await self._peers.call(what, addr, RequestCode.EXCHANGE_BROKER_HA_INFO)
        return answer.ext.get("masterHaAddress", "")

    async def register_again(self, addr: str) -> None:
        """Let a broker of ours tell the nameservers at once who it is: another one has had its place."""
        await self._peers.call(f"let broker {addr} register", addr, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(word) for word in text.split(",") if word.isdecimal())


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
