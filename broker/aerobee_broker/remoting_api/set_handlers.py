"""What operators ask about the set of a broker, by the requests that RocketMQ's controller and its brokers serve.

1005 CONTROLLER_GET_METADATA_INFO   1006 CONTROLLER_GET_SYNC_STATE_DATA   1007 GET_BROKER_EPOCH_CACHE

Touches  nothing but through its parts.

There is no controller here: each member of a set with an election answers for its set, so any of them is the address
that `mqadmin getSyncStateSet -a` wants. Without an election there is nothing to tell, and it is said as an official
broker without a controller says it.
"""

from collections.abc import Callable, Sequence
from typing import Final

from aerobee_broker.lives.seating import SetStanding
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.javajson import TOLERANT_SIZE_MAX, dumps, loads
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, on_cluster, ours
from aerobee_store.replicas.epochs import Epoch

__all__ = ["SetHandlers"]

NAMES_BODY_SIZE_MAX: Final = 64 * 1024
OPEN_END: Final = 2**63 - 1  # of the epoch that still goes on
MASTER_ID: Final = 0


class SetHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        identity: BrokerIdentity,
        standing: Callable[[], SetStanding | None],
        epochs: Callable[[], Sequence[Epoch]],
        end_offset: Callable[[], int],
    ) -> None:
        """`standing` is what the election knows of the set; None where there is none, or nothing is known yet."""
        self._identity = identity
        self._standing = standing
        self._epochs = epochs
        self._end_offset = end_offset

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code, needs = table.register, RequestCode, (ours(on_cluster(GET)),)
        add(code.CONTROLLER_GET_METADATA_INFO, self.metadata, needs=needs)
        add(
            code.CONTROLLER_GET_SYNC_STATE_DATA,
            self.in_sync,
            needs=needs,
            body_size_max=NAMES_BODY_SIZE_MAX,
        )
        add(code.GET_BROKER_EPOCH_CACHE, self.epochs, needs=needs)

    def _known(self) -> SetStanding:
        standing = self._standing()
        if standing is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "this request is for sets with an election (electionEndpoints), and this broker has none, or knows "
                "nothing of it yet",
            )
        return standing

    def metadata(self, _: Request[NoFields]) -> Response:
        """Whom to ask about the set: this member."""
        self._known()
        me = self._identity
        return Response(
            ext={
                "group": me.broker_name,
                "controllerLeaderId": str(me.broker_id),
                "controllerLeaderAddress": me.broker_addr,
                "isLeader": "true",
                "peers": f"{me.broker_id}:{me.broker_addr};",
            }
        )

    def in_sync(self, request: Request[NoFields]) -> Response:
        """Who is in sync, of this set; other names are left out."""
        try:
            names = loads(request.body, tolerant_size_max=TOLERANT_SIZE_MAX)
        except FormatError as broken:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the names cannot be read: {broken}") from broken
        standing, name = self._known(), self._identity.broker_name
        table = {name: self._set(standing)} if isinstance(names, list) and name in names else {}
        return Response(body=dumps({"replicasInfoTable": table}))

    def _set(self, standing: SetStanding) -> dict[str, object]:
        members = sorted(standing.addrs.keys() | standing.in_sync)
        return {
            "inSyncReplicas": [
                self._member(standing, member) for member in members if member in standing.in_sync
            ],
            "masterAddress": standing.addrs.get(standing.master, ""),
            "masterBrokerId": standing.master,
            "masterEpoch": standing.epoch,
            "notInSyncReplicas": [
                self._member(standing, member) for member in members if member not in standing.in_sync
            ],
            "syncStateSetEpoch": standing.revision,
        }

    def _member(self, standing: SetStanding, member: int) -> dict[str, object]:
        return {
            "alive": member in standing.addrs,
            "brokerAddress": standing.addrs.get(member, ""),
            "brokerId": member,
            "brokerName": self._identity.broker_name,
        }

    def epochs(self, _: Request[NoFields]) -> Response:
        """The masterships of which this log has bytes, and where each begins and ends."""
        entries, me = self._epochs(), self._identity
        if not entries:
            self._known()
        ends = [*(entry.start_offset for entry in entries[1:]), OPEN_END]
        return Response(
            body=dumps(
                {
                    "brokerId": me.broker_id,
                    "brokerName": me.broker_name,
                    "clusterName": me.cluster_name,
                    "epochList": [
                        {"endOffset": end, "epoch": entry.epoch, "startOffset": entry.start_offset}
                        for entry, end in zip(entries, ends, strict=False)
                    ],
                    "maxOffset": self._end_offset(),
                }
            )
        )
