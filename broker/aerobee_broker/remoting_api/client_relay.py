"""Questions that only a consumer can answer: passed on to it, its answer passed back.

307 GET_CONSUMER_RUNNING_INFO   309 CONSUME_MESSAGE_DIRECTLY
223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS (to clients: 221 GET_CONSUMER_STATUS_FROM_CLIENT)

Touches  members' connections; for 309 the store, which has the message.

A client that does not answer in time is CONSUME_MSG_TIMEOUT; the request ends then, whatever comes later.
"""

import asyncio
from typing import Final

import structlog

from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.members.clients import Member
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.remoting_api.request_bodies import answer
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto.bodies import ConsumerStatusBody, MessageQueue
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import (
    ConsumeDirectlyHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    GroupTopicHeader,
)
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, SUB, need_of_topic, on_group, on_topic
from aerobee_remoting.peers.errors import RemotingError, RequestTimeout
from aerobee_store.store import MessageStore

__all__ = ["ClientRelay"]

log = structlog.get_logger()

RELAY_TIMEOUT_S: Final = 10.0
STATUS_SIZE_MAX: Final = 1 << 20  # bytes
STATUS_TIMEOUT_S: Final = 5.0
VERSION_MIN: Final = 62  # 3.1.8: older clients do not know 307 and 309


class ClientRelay:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        consumers: ConsumerTable,
    ) -> None:
        self._identity = identity
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(
            code.GET_CONSUMER_RUNNING_INFO,
            self.running_info,
            header=ConsumerRunningInfoHeader,
            needs=(on_group("consumer_group", GET),),
        )
        add(
            code.CONSUME_MESSAGE_DIRECTLY,
            self.consume_directly,
            header=ConsumeDirectlyHeader,
            needs=(on_group("consumer_group", SUB), on_topic("topic", SUB)),
        )
        add(
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            self.status,
            header=ConsumerStatusHeader,
            needs=(on_topic("topic", GET), on_group("group", GET)),
        )

    # --- one client -------------------------------------------------------------------------------------------

    async def running_info(self, request: Request[ConsumerRunningInfoHeader]) -> Response:
        """What a consumer tells of itself; with jstackEnable also what its threads do."""
        header: ConsumerRunningInfoHeader = request.header
        member = self._member(header.consumer_group, header.client_id)
        return await self._relay(member, request.code, request.ext, request.body)

    async def consume_directly(self, request: Request[ConsumeDirectlyHeader]) -> Response:
        """Hand one stored message to a consumer, outside of its queues, and tell how it took it."""
        header: ConsumeDirectlyHeader = request.header
        member = self._member(header.consumer_group, header.client_id or "")
        record = self._record(header.msg_id or "")
        # The request may name another topic than the record that lies there has.
        request.admit(need_of_topic(decode_record(record).topic, SUB))
        ext = {**request.ext, "brokerName": self._identity.broker_name}
        topic = self._topics.get(header.topic) if header.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.get(header.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        return await self._relay(member, request.code, ext, record)

    def _member(self, group: str, client_id: str) -> Member:
        member = self._consumers.member(group, client_id)
        if member is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:255]}> <{client_id[:512]}> not online"
            )
        if member.version < VERSION_MIN:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id[:512]}> Version <{member.version}> too low to finish:"
                f" {VERSION_MIN} (3.1.8) is needed",
            )
        return member

    def _record(self, message_id: str) -> bytes:
        try:
            place = decode_offset_message_id(message_id)
        except FormatError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
        record = self._store.asking.message_at(place.physical_offset)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no message with the id {message_id} is stored here"
            )
        return record

    async def _relay(self, member: Member, code: int, ext: dict[str, str], body: bytes) -> Response:
        """Ask the client and give its answer as ours. RequestError CONSUME_MSG_TIMEOUT or SYSTEM_ERROR."""
        try:
            given = await member.connection.request(code, ext, body, RELAY_TIMEOUT_S)
        except RequestTimeout as late:
            raise RequestError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{member.client_id}> Timeout: {late}"
            ) from late
        except RemotingError as failed:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{member.client_id}> Exception: {failed}"
            ) from failed
        return Response(given.code, given.remark, ext=given.ext_fields, body=given.body)

    # --- all of a group ---------------------------------------------------------------------------------------

    async def status(self, request: Request[ConsumerStatusHeader]) -> Response:
        """Where each member, or one, stands in its queues by its own account; who does not answer is left out."""
        header: ConsumerStatusHeader = request.header
        group = self._consumers.get(header.group)
        members = list(group.members.values()) if group is not None else []
        if not members:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"No Any Consumer online in the consumer group: [{header.group[:255]}]",
            )
        if header.client_addr:
            members = [member for member in members if member.client_id == header.client_addr]
        asked = [self._status_of(member, header) for member in members]
        tables = zip(members, await asyncio.gather(*asked), strict=True)
        return answer(
            ConsumerStatusBody(
                consumer_table={member.client_id: table for member, table in tables if table is not None}
            )
        )

    async def _status_of(
        self, member: Member, header: ConsumerStatusHeader
    ) -> dict[MessageQueue, int] | None:
        question = GroupTopicHeader(group=header.group, topic=header.topic)
        try:
            given = await member.connection.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, timeout=STATUS_TIMEOUT_S
            )
            if given.code == ResponseCode.SUCCESS and given.body:
                # Objects as keys are near-JSON: a tenth of a second for a thousand queues, so not in the event loop.
                read = await asyncio.to_thread(ConsumerStatusBody.from_bytes, given.body, STATUS_SIZE_MAX)
                return read.message_queue_table
        except (RemotingError, FormatError) as failed:
            log.warning(
                "broker.member_status_missing",
                group=header.group,
                client_id=member.client_id,
                reason=str(failed),
            )
        return None
