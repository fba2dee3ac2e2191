"""A producer of transactions by hand: half messages, their ends, the questions of the broker.

Touches  connections that callers give.
"""

from typing import Final, NamedTuple

from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import FLAG_ONEWAY, Command
from aerobee_proto.records import StoredRecord, decode_record
from system.running import Talker, text_of

__all__ = [
    "COMMIT",
    "GROUP",
    "HALF_TOPIC",
    "OP_TOPIC",
    "ROLLBACK",
    "UNKNOWN",
    "Half",
    "end",
    "end_request",
    "join_group",
    "next_question",
    "send_half",
]

GROUP: Final = "tx-producers"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Half(NamedTuple):
    """What ends a transaction: the places that the broker gave its message, and the message's key."""

    offset: int
    physical_offset: int
    key: str


async def send_half(talker: Talker, topic: str, body: bytes, *, key: str, **how: str) -> Half:
    """Open a transaction; `how` are further properties, `born` its time of birth in ms, `queue_id` its queue."""
    fields = {"bornTimestamp": how.pop("born")} if "born" in how else {}
    queue_id = int(how.pop("queue_id", "0"))
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": key, **how}
    answer = await talker.put(
        topic, body, queue_id=queue_id, properties=text_of(properties), sysFlag="4", **fields
    )
    assert answer.code == 0, answer.remark
    assert (answer.ext["queueId"], answer.ext["transactionId"]) == (str(queue_id), key)
    return Half(int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16), key)


def end_request(
    half: Half, how: int, *, group: str = GROUP, check: bool = False, oneway: bool = False
) -> Command:
    """Request 37 as clients write it."""
    fields = {
        "producerGroup": group,
        "tranStateTableOffset": str(half.offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": str(how),
        "fromTransactionCheck": "true" if check else "false",
        "msgId": half.key,
        "transactionId": half.key,
    }
    return Command(RequestCode.END_TRANSACTION, ext_fields=fields, flag=FLAG_ONEWAY if oneway else 0)


async def end(talker: Talker, half: Half, how: int, *, group: str = GROUP, check: bool = False) -> Command:
    """End a transaction and take the answer: as Go clients do, who do not set the oneway bit."""
    return await talker.exchange(end_request(half, how, group=group, check=check))


async def join_group(talker: Talker, group: str = GROUP, client_id: str = "10.0.0.1@1") -> None:
    """Be a producer of the group."""
    body = f'{{"clientID":"{client_id}","producerDataSet":[{{"groupName":"{group}"}}],"consumerDataSet":[]}}'
    answer = await talker.ask(RequestCode.HEART_BEAT, body=body.encode())
    assert answer.code == 0, answer.remark


async def next_question(talker: Talker) -> tuple[Half, Command, StoredRecord]:
    """The next check: what to answer with, the request, the message in it."""
    while True:
        command = await talker.receive()
        if command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.is_response:
            ext = command.ext
            half = Half(int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"]), ext["transactionId"])
            return half, command, decode_record(command.body)
