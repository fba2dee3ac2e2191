"""From requests to their handlers: through the gate, with faults turned into answers, and with a look at the clock.

Touches  the log.

Invariants
- No handler sees a request that the gate has not let in; a gate that fails lets nobody in.
- Whatever a handler raises becomes the answer of its requests, and of no others.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import AerobeeError, LimitReached, RequestError, forget_frames
from aerobee_proto.frames import Command, Frame
from aerobee_proto.requests import AnyIncoming, Envelope, Incoming, NoFields
from aerobee_remoting.exchange.gate import RefusedSlowly, Row
from aerobee_remoting.exchange.handlers import (
    AnyRequest,
    Channel,
    Entry,
    FrontTaken,
    HandlerTable,
    Response,
)
from aerobee_remoting.exchange.loop_watch import LoopWatch, in_timed_steps
from aerobee_remoting.exchange.needs import Need, Open
from aerobee_service.logs.event_log import EventLog

__all__ = ["Dispatcher"]

NO_FIELDS: Final = NoFields()
NOBODY_SERVES_IT: Final = Open("nothing comes of it")
UNCHECKED: Final = "whether this may be asked could not be found out; the server's log says why"


class Dispatcher:
    """Runs the handlers of one table, for whichever connection a request came over. It keeps nothing of either."""

    __slots__ = ("_gate", "_handlers", "_log", "_watch")

    def __init__(self, handlers: HandlerTable, watch: LoopWatch, log: EventLog) -> None:
        self._handlers = handlers
        self._gate = handlers.gate
        self._watch = watch
        self._log = log

    def run(self, channel: Channel, entry: Entry, request: AnyRequest) -> None:
        """A plain handler: asked for its answer, which is sent."""
        began = time.perf_counter()
        response: Response | None
        is_let_in = False
        try:
            self._gate.admit(channel, entry, request.incoming)
            is_let_in = True
            response = entry.plain(request)
        except RefusedSlowly as refused:
            entry.refused += 1
            self._refuse_late(channel, [request.incoming], refused)
            return
        except RequestError as refused:
            response = self._refusal(channel, entry, refused)
        except Exception as failed:
            tell = self.failure if is_let_in else self._unchecked
            response = tell(channel, entry.code, failed)
        if response is not None and not request.oneway:
            channel.respond(request.codec, request.opaque, response)
        took_s = time.perf_counter() - began
        if took_s >= self._watch.held_s:
            self._watch.took(entry, took_s, channel.peer)

    def run_batch(self, channel: Channel, entry: Entry, run: list[AnyIncoming]) -> None:
        """A batch handler: given those of `run` that the gate lets in. It answers by itself."""
        batch = entry.batch
        assert batch is not None
        entry.requests += len(run)
        began = time.perf_counter()
        try:
            refused = self._gate.turned_away(channel, entry, run)
        except Exception as failed:  # a gate that fails lets nobody in
            refused = [(item, failed) for item in run]
        if refused:
            slow = [(item, reason) for item, reason in refused if isinstance(reason, RefusedSlowly)]
            if slow:  # all of them with the one that waits longest
                entry.refused += len(slow)
                self._refuse_late(channel, [item for item, _ in slow], max(slow, key=_delay)[1])
            for item, reason in refused:
                if not isinstance(reason, RefusedSlowly):
                    self._turn_away(channel, entry, item, reason)
            away = {id(item) for item, _ in refused}
            run = [item for item in run if id(item) not in away]
        try:
            if run:
                batch(channel, run)
        except Exception as failed:
            response = self.failure(channel, entry.code, failed)
            for item in run:
                if not item.oneway:
                    channel.respond(item.codec, item.envelope.opaque, response)
        took_s = time.perf_counter() - began
        if took_s >= self._watch.held_s:
            self._watch.took(entry, took_s, channel.peer)

    def front_serves_all(self, data: bytes, at: int) -> bool:
        """Whether all requests of a read from this place on are of kinds that the front of the table serves."""
        front = self._handlers.front
        return front is not None and front.serves_all(data, at)

    def take_front(self, channel: Channel, data: bytes, at: int, count_max: int) -> FrontTaken | None:
        """What the front of the table takes of this read from a place on, of what the gate lets in."""
        front = self._handlers.front
        if front is None:
            return None
        began = time.perf_counter()
        if self._gate.lets_all(channel):
            taken = front.take(channel, data, at, count_max, None)
        else:
            judging = self._gate.judging(channel, self._handlers.by_code)
            if judging is None:
                return None
            begin = judging.mark()
            taken = front.take(channel, data, at, count_max, judging)
            if taken is None:
                judging.go_back(begin)
        if taken is not None:
            entry = self._handlers.by_code[taken.code]
            entry.requests += taken.request_count
            entry.by_front += taken.request_count
            took_s = time.perf_counter() - began
            if took_s >= self._watch.held_s:
                self._watch.took(entry, took_s, channel.peer)
        return taken

    async def answer(
        self, channel: Channel, entry: Entry, work: Callable[[], Awaitable[Response | None]]
    ) -> Response | None:
        """What `work` answers to a request that was let in, or how it is refused."""
        try:
            response: Response | None = await in_timed_steps(
                work(),
                self._watch.held_s,
                lambda took_s: self._watch.took(entry, took_s, channel.peer),
            )
        except RequestError as refused:
            return self._refusal(channel, entry, refused)
        except Exception as failed:
            return self.failure(channel, entry.code, failed)
        return response

    def refuse_stranger(
        self, channel: Channel, command: Command, frame: Frame, otherwise: RequestError
    ) -> None:
        """Answer what has no handler, or no readable header: who may not ask is told nothing about that.

        `otherwise` is told to who is let in.
        """
        envelope: Envelope[msgspec.Struct] = Envelope(
            command.code, NO_FIELDS, command.flag, opaque=command.opaque, version=command.version
        )
        request = Incoming(envelope, frame, NO_FIELDS, frame[2])
        try:
            self._gate.admit(channel, Row(command.code, "nobody", NoFields, NOBODY_SERVES_IT), request)
        except RequestError as refused:
            self._refuse(channel, request, refused)
        except Exception as failed:  # a gate that fails lets nobody in
            response = self._unchecked(channel, command.code, failed)
            self._refuse(channel, request, RequestError(response.code, response.remark or ""))
        else:
            self._refuse(channel, request, otherwise)

    def admits(self, channel: Channel, entry: Entry, item: AnyIncoming) -> bool:
        """Whether the gate lets this in; if not, it is answered."""
        try:
            self._gate.admit(channel, entry, item)
        except Exception as failed:  # a gate that fails lets nobody in
            self._turn_away(channel, entry, item, failed)
            return False
        return True

    def _refuse(self, channel: Channel, item: AnyIncoming, refused: RequestError) -> None:
        """Answer what was refused before it had a handler; now, or when who asks has waited."""
        forget_frames(refused)
        if isinstance(refused, RefusedSlowly):
            self._refuse_late(channel, [item], refused)
        elif not item.oneway:
            channel.respond(item.codec, item.envelope.opaque, Response(refused.code, refused.remark))

    def _refuse_late(self, channel: Channel, items: Sequence[AnyIncoming], refused: RefusedSlowly) -> None:
        """Answer these when the peer has waited; nothing else that it has sent is handled before."""
        forget_frames(refused)
        answers = [(item.codec, item.envelope.opaque) for item in items if not item.oneway]
        response, delay_s = Response(refused.code, refused.remark), refused.delay_s

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            for codec, opaque in answers:
                channel.respond(codec, opaque, response)

        channel.run_alone(wait)

    def _turn_away(self, channel: Channel, entry: Entry, item: AnyIncoming, failed: Exception) -> None:
        if isinstance(failed, RefusedSlowly):
            entry.refused += 1
            self._refuse_late(channel, [item], failed)
            return
        response = (
            self._refusal(channel, entry, failed)
            if isinstance(failed, RequestError)
            else self._unchecked(channel, entry.code, failed)
        )
        if not item.oneway:
            channel.respond(item.codec, item.envelope.opaque, response)

    def admit_found(self, channel: Channel, request: AnyIncoming, needs: Sequence[Need]) -> None:
        """Ask the gate for what a handler found that this request needs, too. RequestError when it is refused."""
        entry = self._handlers.by_code[request.envelope.code]
        self._gate.admit_found(channel, entry, request, needs)

    def failure(self, channel: Channel, code: int, failed: Exception) -> Response:
        """The answer to a request that met this, which is told: a file that cannot be read is no fault of ours."""
        path = getattr(failed, "filename", None) or getattr(failed, "path", None)
        if isinstance(failed, OSError | AerobeeError) and path:
            self._log.error(
                "remoting.file_unreadable", peer=channel.peer, code=code, path=str(path), reason=str(failed)
            )
        else:
            self._log.exception("remoting.handler_failed", exc_info=failed, peer=channel.peer, code=code)
        forget_frames(failed)
        return Response(ResponseCode.SYSTEM_ERROR, f"{type(failed).__name__}: {failed}")

    def _unchecked(self, channel: Channel, code: int, failed: Exception) -> Response:
        """The answer where the gate failed, which is told: what failed is nothing for somebody who was not let in."""
        return Response(self.failure(channel, code, failed).code, UNCHECKED)

    def _refusal(self, channel: Channel, entry: Entry, refused: RequestError) -> Response:
        entry.refused += 1
        forget_frames(refused)
        if isinstance(refused, LimitReached):
            channel.log_limit(refused.limit, refused.remark)
        return Response(refused.code, refused.remark)


def _delay(slow: tuple[AnyIncoming, RefusedSlowly]) -> float:
    return slow[1].delay_s
