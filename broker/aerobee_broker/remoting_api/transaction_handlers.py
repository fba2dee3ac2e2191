"""What producers and operators say about transactions, decoded and answered.

37 END_TRANSACTION   commit, roll back, or "I do not know yet", which gets no answer
323 RESUME_CHECK_HALF_MESSAGE   a message that was given up is asked about again

Touches  connections to answer on.
"""

from typing import Final

import structlog

from aerobee_broker.transactions.ending import Ending, EndOfTransaction
from aerobee_proto.codes import RequestCode, SysFlag
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import EndTransactionHeader, ResumeCheckHeader
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import PUB, UPDATE, need_of_topic, on_topic

__all__ = ["TransactionHandlers"]

log = structlog.get_logger()

COMMIT: Final = SysFlag.TRANSACTION_COMMIT
ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK


class TransactionHandlers:
    """Handlers of the codes above."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        table.register(
            RequestCode.END_TRANSACTION,
            self.end,
            header=EndTransactionHeader,
            needs=(on_topic("topic", PUB),),
        )
        table.register(
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            self.resume,
            header=ResumeCheckHeader,
            needs=(on_topic("topic", UPDATE),),
        )

    def end(self, request: Request[EndTransactionHeader]) -> Response | None:
        """A commit is answered when it is durable. Neither commit nor rollback: nothing happens, no answer."""
        header = request.header
        connection = request.connection
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            log.debug(
                "broker.transaction_undecided", peer=connection.peer, reason=(request.remark or "")[:200]
            )
            return None
        end = EndOfTransaction(
            producer_group=header.producer_group,
            physical_offset=header.commit_log_offset,
            half_offset=header.tran_state_table_offset,
            answers_check=header.from_transaction_check,
        )
        if header.commit_or_rollback == ROLLBACK:
            self._ending.roll_back(end, admit=lambda topic: request.admit(need_of_topic(topic, PUB)))
            return Response()

        def done(failed: RequestError | None) -> None:
            connection.hold(-1)
            request.respond(Response() if failed is None else Response(failed.code, failed.remark))

        connection.hold(1)
        try:
            self._ending.commit(end, done, admit=lambda topic: request.admit(need_of_topic(topic, PUB)))
        except RequestError:
            connection.hold(-1)
            raise
        return None

    async def resume(self, request: Request[ResumeCheckHeader]) -> Response:
        """Answered when the message is a half message again."""
        resumed = await self._ending.resume(
            request.header.msg_id or "",
            admit=lambda topic: request.admit(need_of_topic(topic, UPDATE)),
        )
        log.info(
            "transactions.resumed",
            topic=resumed.topic,
            physical_offset=resumed.physical_offset,
            peer=request.connection.peer,
        )
        return Response()
