"""What a slave does not do, whoever asks for it: refused before a handler sees it, with RocketMQ's codes. Who may not
ask is told that alone.

Touches  nothing.

    messages, and giving them back      SYSTEM_BUSY, as the official slave says; official producers try another broker
    ends of transactions, recalls       SLAVE_NOT_AVAILABLE
    pulls without slaveReadEnable       SYSTEM_BUSY
    resets of offsets                   SYSTEM_ERROR
    topics, groups, request modes       NO_PERMISSION: the official slave takes them, and forgets them soon
    POP and locks of queues             SYSTEM_ERROR: who has what is known to the master alone
"""

from collections.abc import Mapping, Sequence
from typing import Final

from aerobee_broker.remoting_api.pop import POP_CODES
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.gate import Gate, Row
from aerobee_remoting.exchange.needs import Need
from aerobee_remoting.peers.peer import Peer

__all__ = ["SLAVE_REFUSES", "SlaveGate"]

_CODES: Final = RequestCode
_BUSY: Final = "[REJECTREQUEST]this broker is a slave, it takes no messages; send them to the master"
_MASTERS: Final = "this broker is a slave; ask the master, which changes both"
_HANDED_OUT: Final = "this broker is a slave; who has which messages and queues is known to the master"
_NO_READS: Final = "[REJECTREQUEST]this broker is a slave and serves no reads (slaveReadEnable)"

SLAVE_REFUSES: Final[Mapping[int, tuple[ResponseCode, str]]] = {
    **dict.fromkeys(
        (
            _CODES.SEND_MESSAGE,
            _CODES.SEND_MESSAGE_V2,
            _CODES.SEND_BATCH_MESSAGE,
            _CODES.SEND_REPLY_MESSAGE,
            _CODES.SEND_REPLY_MESSAGE_V2,
            _CODES.CONSUMER_SEND_MSG_BACK,
        ),
        (ResponseCode.SYSTEM_BUSY, _BUSY),
    ),
    _CODES.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, _MASTERS),
    _CODES.RECALL_MESSAGE: (ResponseCode.SLAVE_NOT_AVAILABLE, _MASTERS),
    _CODES.INVOKE_BROKER_TO_RESET_OFFSET: (
        ResponseCode.SYSTEM_ERROR,
        "Can not reset offset in slave broker",
    ),
    **dict.fromkeys(
        (
            _CODES.UPDATE_AND_CREATE_TOPIC,
            _CODES.UPDATE_AND_CREATE_TOPIC_LIST,
            _CODES.DELETE_TOPIC_IN_BROKER,
            _CODES.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            _CODES.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            _CODES.DELETE_SUBSCRIPTIONGROUP,
            _CODES.UPDATE_AND_GET_GROUP_FORBIDDEN,
            _CODES.SET_MESSAGE_REQUEST_MODE,
            _CODES.CLONE_GROUP_OFFSET,
            _CODES.RESUME_CHECK_HALF_MESSAGE,
            _CODES.CLEAN_UNUSED_TOPIC,
        ),
        (ResponseCode.NO_PERMISSION, _MASTERS),
    ),
    **dict.fromkeys(
        (*POP_CODES, _CODES.LOCK_BATCH_MQ, _CODES.UNLOCK_BATCH_MQ),
        (ResponseCode.SYSTEM_ERROR, _HANDED_OUT),
    ),
}
_READS: Final = frozenset({_CODES.PULL_MESSAGE, _CODES.LITE_PULL_MESSAGE})


class SlaveGate(Gate):
    """Behind the gate that the broker has anyway."""

    def __init__(self, gate: Gate, live: LiveConfig) -> None:
        self._gate = gate
        self._live = live

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        self._gate.admit(caller, row, request)
        refusal = SLAVE_REFUSES.get(row.code)
        if refusal is None and row.code in _READS and not self._live.value.slave_read_enable:
            refusal = ResponseCode.SYSTEM_BUSY, _NO_READS
        if refusal is not None:
            raise RequestError(*refusal)

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        self._gate.admit_found(caller, row, request, needs)

    def greeting(self, caller: Peer) -> Mapping[str, str]:
        return self._gate.greeting(caller)
