"""What members of a set and operators ask about replication.

905 NOTIFY_MIN_BROKER_ID_CHANGE   906 EXCHANGE_BROKER_HA_INFO   907 GET_BROKER_HA_STATUS   908 RESET_MASTER_FLUSH_OFFSET

Touches  nothing.
"""

from collections.abc import Callable

from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto.bodies import HaStatus
from aerobee_proto.codes import RequestCode
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, UPDATE, on_cluster, ours
from aerobee_store.store import MessageStore

__all__ = ["ReplicationHandlers"]


class ReplicationHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        status: Callable[[], HaStatus],
        *,
        identity: BrokerIdentity,
        store: MessageStore,
        look_for_master: Callable[[], None],
        facts: Callable[[], dict[str, str]],
    ) -> None:
        """`status` is how the copies stand, `facts` what ours tell besides; `look_for_master` asks the nameservers who
        the master is."""
        self._status = status
        self._identity = identity
        self._store = store
        self._look_for_master = look_for_master
        self._facts = facts

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        of_members = (on_cluster(UPDATE),)
        add(code.NOTIFY_MIN_BROKER_ID_CHANGE, self.members_changed, needs=of_members)
        add(code.EXCHANGE_BROKER_HA_INFO, self.exchange, needs=of_members)
        add(code.GET_BROKER_HA_STATUS, self.replication, needs=(ours(on_cluster(GET)),))
        add(code.RESET_MASTER_FLUSH_OFFSET, self.reset_master_flush, needs=of_members)

    def members_changed(self, _: Request[NoFields]) -> Response:
        """A nameserver says that a member of this set came or went; what that means is asked of all nameservers."""
        self._look_for_master()
        return Response()

    def exchange(self, _: Request[NoFields]) -> Response:
        """Where a master is reached. What a slave's question says of itself is not looked at: it registers, too."""
        me = self._identity
        if me.broker_id:
            return Response()
        return Response(
            ext={
                "masterAddress": me.broker_addr,
                "masterHaAddress": me.ha_addr,
                "masterFlushOffset": str(self._store.flushed_offset),
            }
        )

    def replication(self, _: Request[NoFields]) -> Response:
        """The state of replication: of a master its slaves and the end of its log, of a slave its link. The fields are
        ours; official tools pass over them."""
        return Response(ext=self._facts(), body=self._status().to_bytes())

    def reset_master_flush(self, _: Request[NoFields]) -> Response:
        """Success without a change: a slave compares its log with its master's when they meet."""
        return Response()
