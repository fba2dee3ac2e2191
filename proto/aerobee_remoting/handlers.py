"""The handler table: what a peer may ask, in one place.

Each entry declares a request code, the handler, the header type, the permission that the caller needs and the
largest body. A handler without a declared permission cannot be registered, so none can be forgotten; one that does
not say how large a body it reads gets none.

Three kinds of handler, told apart when they are registered:
- plain:  `def h(request) -> Response | None`, answered in the same turn; None means no answer, or a later one
          through `request.respond`.
- async:  `async def h(request) -> Response | None`, run as a task and counted against the connection's bound.
- batch:  `def h(connection, requests) -> None` over every consecutive request of its code in one read. It
          answers by itself. This is the hot path: one call, one append, one write for a whole read.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from aerobee_proto.codes import ResponseCode
from aerobee_proto.frames import FLAG_ONEWAY, Command, Frame, decode_command, language_name
from aerobee_proto.headers import ext_of
from aerobee_proto.requests import Envelope, RequestDecoder, code_keys

if TYPE_CHECKING:
    from aerobee_remoting.connection import Connection

__all__ = ["MESSAGE_BODY_SIZE_MAX", "BatchItem", "Entry", "HandlerTable", "Permission", "Request", "Response"]

# What a frame may carry, in bytes: settings bound messages further.
MESSAGE_BODY_SIZE_MAX: Final = 16 * 1024 * 1024

BatchItem = tuple[Envelope[Any], bytes, int]
"""One request of a batch: typed header, body, codec to answer in."""


class Permission(Enum):
    """What a caller must be allowed to do.

    A declaration: no gate reads it, since there is no access control, and everybody may do everything. It is there so
    that no code can be added without the question being answered; `tests/system/test_permissions.py` walks the table.
    """

    ANYONE = "anyone"  # harmless: codecs, heartbeats, routes
    PUBLISH = "publish"  # write messages to a topic
    SUBSCRIBE = "subscribe"  # read messages and move a group's offsets
    INSPECT = "inspect"  # read state that is not messages
    ADMIN = "admin"  # change topics, groups, configuration
    CLUSTER = "cluster"  # what brokers and nameservers tell each other


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


class Request:
    """One request in a handler's hands."""

    __slots__ = ("_command", "_envelope", "_frame", "connection")

    def __init__(self, connection: "Connection", envelope: Envelope[Any], frame: Frame) -> None:
        self.connection = connection
        self._envelope = envelope
        self._frame = frame
        self._command: Command | None = None

    @property
    def code(self) -> int:
        return self._envelope.code

    @property
    def opaque(self) -> int:
        return self._envelope.opaque

    @property
    def version(self) -> int:
        return self._envelope.version

    @property
    def language(self) -> str:
        return language_name(self._envelope.language)

    @property
    def codec(self) -> int:
        return self._frame[0]

    @property
    def oneway(self) -> bool:
        return self._envelope.flag & FLAG_ONEWAY != 0

    @property
    def remark(self) -> str | None:
        return self._envelope.remark

    @property
    def header(self) -> Any:
        """The typed header: an instance of the type that the handler was registered with."""
        return self._envelope.ext

    @property
    def ext(self) -> dict[str, str]:
        """Every header field as text, those too that the typed header does not name."""
        if self.is_shed:
            return {}
        if self._command is None:
            self._command = decode_command(self._frame)
        return self._command.ext

    @property
    def body(self) -> bytes:
        return self._frame[2]

    def shed(self) -> None:
        """Keep what an answer needs and the typed header; `body`, `ext` and `remark` are empty from here on.

        For whoever keeps a request beyond its turn: a frame may be a thousand times the header that is looked at.
        """
        self._frame = (self._frame[0], b"", b"")
        self._command = None
        self._envelope.remark = None
        self._envelope.language = self.language  # one of a few; as sent it is any text

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return len(self._frame[1]) + len(self._frame[2])

    @property
    def is_shed(self) -> bool:
        return not self._frame[1]

    def respond(self, response: Response) -> None:
        """Answer later, from anywhere in the event loop. Nothing is sent for oneway requests."""
        if not self.oneway:
            self.connection.respond(self.codec, self.opaque, response)

    def fail(self, failed: Exception) -> None:
        """Answer later that this came between. To be called where it is handled."""
        self.respond(self.connection.failure(self.code, failed))


PlainHandler = Callable[[Request], Response | None]
AsyncHandler = Callable[[Request], Awaitable[Response | None]]
BatchHandler = Callable[["Connection", Sequence[BatchItem]], None]


class Entry:
    """One row of the table. `requests` and `refused` are counters for metrics."""

    __slots__ = (
        "batch",
        "body_size_max",
        "code",
        "decode_json",
        "decoder",
        "handler",
        "is_async",
        "name",
        "overtakes",
        "permission",
        "refused",
        "requests",
    )

    def __init__(
        self,
        code: int,
        handler: PlainHandler | AsyncHandler | None,
        batch: BatchHandler | None,
        header: type[msgspec.Struct] | None,
        permission: Permission,
        body_size_max: int,
        *,
        overtakes: bool = False,
    ) -> None:
        self.code = code
        self.handler: Any = handler
        self.batch = batch
        self.name = getattr(batch or handler, "__qualname__", "?")  # of the handler, for people
        self.is_async = inspect.iscoroutinefunction(handler)
        self.decoder: RequestDecoder[Any] = RequestDecoder(header)
        self.decode_json = self.decoder.json.decode  # for the hot path; `ext` may be None, errors are raw
        self.permission = permission
        self.body_size_max = body_size_max
        self.overtakes = overtakes
        self.requests = 0
        self.refused = 0


class HandlerTable:
    """Request code -> `Entry`."""

    def __init__(self) -> None:
        self.by_code: dict[int, Entry] = {}
        # (codec -> key bytes -> entry): finds the entry before the header is read
        self.by_key: tuple[dict[bytes, Entry], dict[bytes, Entry], dict[bytes, Entry]] = ({}, {}, {})

    def register(
        self,
        code: int,
        handler: PlainHandler | AsyncHandler,
        *,
        permission: Permission,
        header: type[msgspec.Struct] | None = None,
        body_size_max: int = 0,
        overtakes: bool = False,
    ) -> None:
        """Serve `code` with a plain or async handler. ValueError when the code is served already.

        `overtakes`: a small control request (a heartbeat, an offset) that is served before the sends and pulls that its
        connection has waiting. Its order towards those must not matter; among each other such requests stay in order.
        """
        self._add(Entry(int(code), handler, None, header, permission, body_size_max, overtakes=overtakes))

    def register_batch(
        self,
        code: int,
        handler: BatchHandler,
        *,
        permission: Permission,
        header: type[msgspec.Struct],
        body_size_max: int = 0,
    ) -> None:
        """Serve `code` with a batch handler. ValueError when the code is served already."""
        self._add(Entry(int(code), None, handler, header, permission, body_size_max))

    def _add(self, entry: Entry) -> None:
        if entry.code in self.by_code:
            raise ValueError(f"request code {entry.code} has a handler already")
        self.by_code[entry.code] = entry
        for codec, key in code_keys(entry.code):
            self.by_key[codec][key] = entry
