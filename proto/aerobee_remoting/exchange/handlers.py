"""The handler table: what a peer may ask, in one place.

Each entry declares a request code, the handler, the header type, what its caller needs and the largest body. A handler
without declared needs cannot be registered, so none can be forgotten; one that does not say how large a body it reads
gets none. The table has the gate that every request passes on its way to a handler.

Three kinds of handler, told apart when they are registered:
- plain:  `def h(request) -> Response | None`, answered in the same turn; None means no answer, or a later one
          through `request.respond`.
- async:  `async def h(request) -> Response | None`, run as a task and counted against the connection's bound.
- batch:  `def h(connection, requests) -> None` over every consecutive request of its code in one read. It
          answers by itself. This is the hot path: one call, one append, one write for a whole read.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast, overload

import msgspec

from aerobee_proto.bodies import JsonBody, decoded_size
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached, RequestError, forget_frames
from aerobee_proto.frames import CODEC_JSON, Command, decode_command, language_name
from aerobee_proto.headers import ext_of
from aerobee_proto.requests import AnyIncoming, Incoming, NoFields, RequestDecoder, code_keys
from aerobee_remoting.exchange.gate import Gate, Judging, OpenGate, Row
from aerobee_remoting.exchange.needs import Need, Needs
from aerobee_remoting.peers.peer import Peer
from aerobee_service.turns.slices import Steps

__all__ = [
    "DECODED_SIZE_MAX",
    "MESSAGE_BODY_SIZE_MAX",
    "AnyRequest",
    "Channel",
    "Entry",
    "Front",
    "FrontTaken",
    "HandlerTable",
    "Request",
    "Response",
]

# What a frame may carry, in bytes: settings bound messages further.
MESSAGE_BODY_SIZE_MAX: Final = 16 * 1024 * 1024
# Bytes of a body that is read as a whole. Codes that allow more take messages, or read it piece by piece: whoever takes
# such a body bounds what it becomes.
DECODED_SIZE_MAX: Final = 4 * 1024 * 1024

H = TypeVar("H", bound=msgspec.Struct)
H_co = TypeVar("H_co", bound=msgspec.Struct, covariant=True)
B = TypeVar("B", bound=JsonBody)
T = TypeVar("T")


class Response:
    """An answer. `ext` is a dict of texts or a header struct; an empty body is no body."""

    __slots__ = ("body", "code", "ext", "remark")

    def __init__(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        *,
        ext: dict[str, str] | msgspec.Struct | None = None,
        body: bytes = b"",
    ) -> None:
        self.code = int(code)
        self.remark = remark
        self.ext = ext_of(ext) if isinstance(ext, msgspec.Struct) else ext
        self.body = body


class Request(msgspec.Struct, Generic[H_co], eq=False):
    """One request in a handler's hands."""

    connection: "Channel"
    incoming: Incoming[H_co]
    _command: Command | None = None

    @property
    def code(self) -> int:
        return self.incoming.envelope.code

    @property
    def opaque(self) -> int:
        return self.incoming.envelope.opaque

    @property
    def version(self) -> int:
        return self.incoming.envelope.version

    @property
    def language(self) -> str:
        return language_name(self.incoming.envelope.language)

    @property
    def codec(self) -> int:
        return self.incoming.frame[0]

    @property
    def oneway(self) -> bool:
        return self.incoming.oneway

    @property
    def remark(self) -> str | None:
        return self.incoming.envelope.remark

    @property
    def header(self) -> H_co:
        """The typed header: an instance of the type that the handler was registered with."""
        return self.incoming.envelope.ext  # type: ignore[return-value]  # decoders leave no None

    @property
    def ext(self) -> dict[str, str]:
        """Every header field as text, those too that the typed header does not name."""
        if self.is_shed:
            return {}
        if self._command is None:
            self._command = decode_command(self.incoming.frame)
        return self._command.ext

    @property
    def body(self) -> bytes:
        return self.incoming.frame[2]

    def read(self, form: type[B]) -> B:
        """The body as JSON of this form. RequestError SYSTEM_ERROR when it is missing or broken."""
        return self.incoming.read(form)

    def reading(self, form: type[B]) -> Steps[B]:
        """As `read`, in steps, for a body that may be large."""
        return self.incoming.reading(form)

    def shed(self) -> None:
        """Keep what an answer needs and the typed header; `body`, `ext` and `remark` are empty from here on.

        For whoever keeps a request beyond its turn: a frame may be a thousand times the header that is looked at.
        """
        incoming, self._command = self.incoming, None
        incoming.frame = (incoming.frame[0], b"", b"")
        incoming.content = None
        incoming.envelope.remark = None
        incoming.envelope.language = self.language  # one of a few; as sent it is any text

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        _, header, body = self.incoming.frame
        return len(header) + len(body)

    def working_size(self, *, is_decoded: bool = True) -> int:
        """Bytes in memory while a task works on it: the frame, the fields, and what its body is read into."""
        _, header, body = self.incoming.frame
        size = 2 * len(header) + len(body)
        return size + decoded_size(body) if is_decoded and body else size

    @property
    def is_shed(self) -> bool:
        return not self.incoming.frame[1]

    def admit(self, *needs: Need) -> None:
        """Ask the gate for what this request turned out to need. RequestError: it must not be told or done."""
        self.connection.admit_found(self.incoming, needs)

    def respond(self, response: Response) -> None:
        """Answer later, from anywhere in the event loop. Nothing is sent for oneway requests."""
        if not self.oneway:
            self.connection.respond(self.codec, self.opaque, response)

    def fail(self, failed: Exception) -> None:
        """Answer later that this came between, or that it is refused. To be called where it is handled."""
        if isinstance(failed, RequestError):
            forget_frames(failed)
            if isinstance(failed, LimitReached):
                self.connection.log_limit(failed.limit, failed.remark)
            self.respond(Response(failed.code, failed.remark))
        else:
            self.respond(self.connection.failure(self.code, failed))


AnyRequest = Request[msgspec.Struct]
"""One whose header fields do not matter."""

Answer = Response | None
PlainHandler = Callable[[Request[H]], Answer]
AsyncHandler = Callable[[Request[H]], Awaitable[Answer]]
BatchHandler = Callable[["Channel", Sequence[Incoming[H]]], None]


class Channel(Peer, Protocol):
    """The connection that requests came over, as their handlers see it."""

    @property
    def was_overtaken(self) -> bool:
        """Whether the request in hand is older than one of this peer that was handled before it."""

    def respond(self, codec: int, opaque: int, response: Response) -> None:
        """Answer the request `opaque` in the codec that it used."""

    def write(self, data: bytes) -> None:
        """Send whole frames. Within one turn of the loop everything leaves in one write, in order."""

    def write_now(self, data: bytes) -> None:
        """As `write`, without waiting for the end of the turn."""

    def write_last(self, data: bytes) -> None:
        """As `write`, of what answers the last request of a read: it leaves at once, with all before it, and is on its
        way while its sender notes what it means."""

    def hold(self, count: int) -> None:
        """Count requests of this peer that wait for their answer; no more are read at a bound."""

    def run_alone(self, work: Callable[[], Awaitable[None]], size: int = 0) -> None:
        """Run this as a task before anything else that this peer has sent is handled. It answers by itself, and keeps
        `size` bytes until then."""

    def answer_alone(self, request: AnyRequest, work: Callable[[], Awaitable[Answer]]) -> None:
        """As `run_alone`, for one request: `work` gives its answer, or refuses it, as an async handler does."""

    def answer_in_task(self, request: AnyRequest, work: Callable[[], Awaitable[Answer]]) -> None:
        """Have a task give the answer, as an async handler does, for what a plain one could not answer at once."""

    async def another_turn(self) -> None:
        """Between two steps of a task for this peer: others are served until it is its turn again."""

    async def in_turns(self, steps: Steps[T]) -> T:
        """What the work returns, done in steps of about a millisecond, each when it is this peer's turn again."""

    def failure(self, code: int, failed: Exception) -> Response:
        """The answer to a request that met this, which is told. To be called where it is handled."""

    def log_limit(self, limit: str, reason: str) -> None:
        """Name this peer in the log, once for each bound that it reaches; `limit` is the setting's name."""

    def admit_found(self, request: AnyIncoming, needs: Sequence[Need]) -> None:
        """Ask the gate for what a handler found that this request needs, too. RequestError when it is refused."""


class Entry(Row):
    """One row of the table. Counters for metrics: `requests`, those of them that the front took (`by_front`), and those
    that were `refused`."""

    __slots__ = (
        "batch",
        "body_size_max",
        "by_front",
        "decode_json",
        "decoder",
        "in_task",
        "overtakes",
        "plain",
        "refused",
        "requests",
    )

    def __init__(
        self,
        code: int,
        handler: PlainHandler[H] | AsyncHandler[H] | None,
        batch: BatchHandler[H] | None,
        header: type[msgspec.Struct],
        needs: Needs,
        body_size_max: int,
        *,
        overtakes: bool = False,
    ) -> None:
        super().__init__(code, getattr(batch or handler, "__qualname__", "?"), header, needs)
        # One of the three. The decoder makes the header that the handler takes: the casts say no more than that.
        self.plain = cast("PlainHandler[msgspec.Struct]", _is_not_plain)
        self.in_task: AsyncHandler[msgspec.Struct] | None = None
        self.batch = cast("BatchHandler[msgspec.Struct] | None", batch)
        if inspect.iscoroutinefunction(handler):
            self.in_task = cast("AsyncHandler[msgspec.Struct]", handler)
        elif handler is not None:
            self.plain = cast("PlainHandler[msgspec.Struct]", handler)
        self.decoder: RequestDecoder[msgspec.Struct] = RequestDecoder(header)
        self.decode_json = self.decoder.json.decode  # for the hot path; `ext` may be None, errors are raw
        self.body_size_max = body_size_max
        self.overtakes = overtakes
        self.requests = 0
        self.by_front = 0
        self.refused = 0


def _nothing_to_do() -> None: ...


def _is_not_plain(_: AnyRequest) -> Answer:
    raise AssertionError("this code is not served by a plain handler")


class FrontTaken(NamedTuple):
    """What a front has taken of a read: requests of one code, the first ones."""

    size: int  # bytes
    request_count: int
    code: int
    version: int  # of the client, as the last of them says


class Front(Protocol):
    """Who serves the requests at the front of a read without their being cut and read one by one.

    It is shown what begins with a frame when nothing of the connection waits before that. What it does not take goes
    the usual way, so it need know nothing but what is frequent.
    """

    def take(
        self, channel: Channel, data: bytes, at: int, count_max: int, judging: Judging | None
    ) -> FrontTaken | None:
        """Serve and answer the first requests from this place of a read on, as many as it likes; None: none of them.
        Each has to be let in by the judge, where there is one."""

    def serves_all(self, data: bytes, at: int) -> bool:
        """Whether all requests from this place of a read on are of kinds that it serves: it may be shown them later."""


class HandlerTable:
    """Request code -> `Entry`, and the gate that requests pass on their way there; without one everybody may ask."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate: Gate = OpenGate() if gate is None else gate
        self.front: Front | None = None
        # Called before requests are handled that the front has not taken.
        self.before_others: Callable[[], None] = _nothing_to_do
        # As registered; and as served now, where some may be refused.
        self._registered: dict[int, Entry] = {}
        self._refusals: list[tuple[Collection[int], PlainHandler[msgspec.Struct]]] = []
        self.by_code: dict[int, Entry] = {}
        # (codec -> key bytes -> entry): finds the entry before the header is read
        self.by_key: tuple[dict[bytes, Entry], dict[bytes, Entry], dict[bytes, Entry]] = ({}, {}, {})
        # What a JSON header of a request that overtakes begins with, as clients write it.
        self.overtaking_starts: tuple[bytes, ...] = ()

    @overload
    def register(
        self,
        code: int,
        handler: PlainHandler[NoFields] | AsyncHandler[NoFields],
        *,
        needs: Needs,
        body_size_max: int = 0,
        overtakes: bool = False,
    ) -> None: ...

    @overload
    def register(
        self,
        code: int,
        handler: PlainHandler[H] | AsyncHandler[H],
        *,
        header: type[H],
        needs: Needs,
        body_size_max: int = 0,
        overtakes: bool = False,
    ) -> None: ...

    def register(
        self,
        code: int,
        handler: PlainHandler[H] | AsyncHandler[H],
        *,
        header: type[msgspec.Struct] = NoFields,
        needs: Needs,
        body_size_max: int = 0,
        overtakes: bool = False,
    ) -> None:
        """Serve `code` with a plain or async handler. ValueError when the code is served already, or when its needs
        cannot be worked out of its header.

        `overtakes`: a small control request (a heartbeat, an offset) that is served before the sends and pulls that its
        connection has waiting. Its order towards those must not matter; among each other such requests stay in order.
        """
        self._add(Entry(int(code), handler, None, header, needs, body_size_max, overtakes=overtakes))

    def register_batch(
        self,
        code: int,
        handler: BatchHandler[H],
        *,
        header: type[H],
        needs: Needs,
        body_size_max: int = 0,
    ) -> None:
        """Serve `code` with a batch handler. ValueError as for `register`."""
        self._add(Entry(int(code), None, handler, header, needs, body_size_max))

    def refuse(self, codes: Collection[int], refusal: RequestError) -> Callable[[], None]:
        """Answer those of these codes that are served with the refusal, to whom the gate lets in, until what is
        returned is called. Where several refuse a code the last of them does."""

        def refused(_: AnyRequest) -> Response:
            raise refusal

        one = codes, refused
        self._refusals.append(one)
        self._serve(codes)

        def undo() -> None:
            self._refusals.remove(one)
            self._serve(codes)

        return undo

    def counts(self) -> Iterator[tuple[int, str, int, int]]:
        """Of each code: its handler, its requests since the start, and those of them that the front took."""
        for code, entry in self._registered.items():
            served = self.by_code[code]
            refused_now = 0 if served is entry else served.requests
            yield code, entry.name, entry.requests + refused_now, entry.by_front

    def _serve(self, codes: Collection[int]) -> None:
        """These as they are to be served now."""
        for code, entry in self._registered.items():
            if code not in codes:
                continue
            served = self.by_code[code]
            if served is not entry:  # it has refused them, and is done
                entry.requests += served.requests
                entry.refused += served.refused
            refusing = [refused for refused_codes, refused in self._refusals if code in refused_codes]
            if refusing:
                self._put(
                    Entry(
                        code,
                        refusing[-1],
                        None,
                        entry.header,
                        entry.needs,
                        entry.body_size_max,
                        overtakes=entry.overtakes,
                    )
                )
            else:
                self._put(entry)

    def _add(self, entry: Entry) -> None:
        if entry.code in self.by_code:
            raise ValueError(f"request code {entry.code} has a handler already")
        self._registered[entry.code] = entry
        self._put(entry)

    def _put(self, entry: Entry) -> None:
        self.by_code[entry.code] = entry
        for codec, key in code_keys(entry.code):
            self.by_key[codec][key] = entry
            if entry.overtakes and codec == CODEC_JSON:
                self.overtaking_starts = tuple({*self.overtaking_starts, key + b","})
