"""What producers and operators say about transactions.

37 END_TRANSACTION   commit, roll back, or "I do not know yet", which gets no answer
323 RESUME_CHECK_HALF_MESSAGE   a message that was given up is asked about again

Touches  nothing but what `Transactions` touches.
"""

from typing import Final

import structlog

from aerobee_broker.half_messages import HalfMessage, half_in
from aerobee_broker.services import Services
from aerobee_proto import names, properties
from aerobee_proto.codes import RequestCode, ResponseCode, SysFlag
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import EndTransactionHeader, ResumeCheckHeader
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.records import decode_record
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.errors import StoreError
from aerobee_store.messages import PutStatus

__all__ = ["TransactionHandlers"]

log = structlog.get_logger()

COMMIT: Final = SysFlag.TRANSACTION_COMMIT
ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK
NOT_FOUND: Final = "Find prepared transaction message failed"


class TransactionHandlers:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        table.register(
            RequestCode.END_TRANSACTION,
            self.end,
            permission=Permission.PUBLISH,
            header=EndTransactionHeader,
        )
        table.register(
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            self.resume,
            permission=Permission.ADMIN,
            header=ResumeCheckHeader,
        )

    # --- the end of a transaction -----------------------------------------------------------------------------

    def end(self, request: Request) -> Response | None:
        """A commit is answered when it is durable. Neither commit nor rollback: nothing happens, no answer."""
        header: EndTransactionHeader = request.header
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            log.debug(
                "broker.transaction_undecided",
                peer=request.connection.peer,
                reason=(request.remark or "")[:200],
            )
            return None
        half = self._half(header)
        if header.commit_or_rollback == ROLLBACK:
            self._services.transactions.roll_back(half)
            return Response()
        connection = request.connection

        def done(failed: RequestError | None) -> None:
            connection.hold(-1)
            request.respond(Response() if failed is None else Response(failed.code, failed.remark))

        connection.hold(1)
        try:
            self._services.transactions.commit(half, done)
        except RequestError:
            connection.hold(-1)
            raise
        return None

    def _half(self, header: EndTransactionHeader) -> HalfMessage:
        """The half message that is meant. RequestError when there is none, or it is another's."""
        half = self._services.transactions.half_at(header.commit_log_offset)
        if half is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        if not header.from_transaction_check:
            self._check_immunity(half)
        if half.producer_group != header.producer_group:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.offset != header.tran_state_table_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    def _check_immunity(self, half: HalfMessage) -> None:
        """After the time that the producer itself has set, only answers to checks count."""
        immunity_ms, chosen = half.immunity_ms(self._services.config.transaction_time_out)
        if chosen and self._services.clock() - half.record.born_timestamp > immunity_ms:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the message is older than its {properties.CHECK_IMMUNITY_TIME_IN_SECONDS}: the broker asks now",
            )

    # --- messages that were given up --------------------------------------------------------------------------

    async def resume(self, request: Request) -> Response:
        """Make a half message again of one that was given up; its checks are counted from the beginning."""
        header: ResumeCheckHeader = request.header
        services = self._services
        half = self._given_up(header.msg_id or "")
        own = half.final_properties() | {properties.TRANSACTION_CHECK_TIMES: "0"}
        message = services.writer.copy(half.record, names.HALF_TOPIC, 0, own)
        try:
            (done,) = await services.writer.put([message])
        except StoreError as refused:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(refused)) from refused
        if done.status is not PutStatus.PUT_OK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"it could not be stored: {done.status.name}")
        log.info(
            "transactions.resumed",
            topic=half.real_topic,
            physical_offset=done.physical_offset,
            peer=request.connection.peer,
        )
        return Response()

    def _given_up(self, message_id: str) -> HalfMessage:
        try:
            place = decode_offset_message_id(message_id)
        except FormatError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
        data = self._services.store.message_at(place.physical_offset)
        half = None if data is None else half_in(decode_record(data), names.CHECK_MAX_TIME_TOPIC)
        if half is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{message_id} is no message of {names.CHECK_MAX_TIME_TOPIC}"
            )
        return half
