"""One connection: frames in, frames out, whoever opened it.

Touches  one transport of the event loop.

The same class serves broker, nameserver and client: requests of the peer go to the handler table, responses to
the futures that wait for them. One read is one batch: all whole frames are cut, handled in order, and what they
answer leaves in one write.

Who asks for much does not hold up who asks for little: a server's connections share `Turns`. What one may not handle at
once is held back, in order, but for small control requests, which overtake what their own connection held back: they
are handled at once as long as `Turns` spares time for them, and else first when it is the connection's turn. What
overtakes stays in order too.

What is buffered for the peer is counted in its account (`PeerMemory`), in steps: after a read that leaves something,
after a write that leaves much, and when the owner sweeps.

Bounds, all in `ConnectionLimits`
- A peer that does not read: reading from it stops while more than `write_high` bytes wait to be sent, what was read
  and not handled waits too, and the connection is closed when they do not shrink for `write_stalled_s`, or at once
  when they are more than `unsent_max`.
- A peer that pipelines without end: reading stops while `in_flight_max` of its requests have no answer yet, or tasks
  are at work on RUNNING_SIZE_MAX bytes of them; and when reads of one turn of the event loop have taken a slice, until
  the connection has its next one.
- A frame that does not arrive whole within `frame_s`, or silence in both directions for `idle_s`: closed.
- A closing connection whose peer does not take what waits to be sent: gone after `write_stalled_s`, whatever closed it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

import msgspec

from aerobee_proto.codes import VERSION, ResponseCode
from aerobee_proto.errors import FrameError, RequestError, forget_frames
from aerobee_proto.frames import (
    CODEC_JSON,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    Frame,
    FrameDecoder,
    decode_command,
    decode_outline,
    encode_command,
)
from aerobee_proto.headers import RequestHeader, ext_of
from aerobee_proto.proxy_protocol import ProxyHeaderError, Source
from aerobee_proto.requests import UNREADABLE, AnyIncoming, Envelope, Incoming, request_code_key
from aerobee_remoting.exchange.calls import Calls
from aerobee_remoting.exchange.dispatch import Dispatcher
from aerobee_remoting.exchange.handlers import (
    DECODED_SIZE_MAX,
    AnyRequest,
    Entry,
    HandlerTable,
    Request,
    Response,
)
from aerobee_remoting.exchange.limits import Common, format_addr
from aerobee_remoting.exchange.loop_watch import in_timed_steps
from aerobee_remoting.exchange.needs import Need
from aerobee_remoting.peers.errors import ConnectionLost
from aerobee_remoting.peers.peer_memory import PEER_LIMIT
from aerobee_remoting.peers.tls import subject_of
from aerobee_service.logs.event_log import event_logger
from aerobee_service.neighbours import neighbours_of
from aerobee_service.turns.slices import Steps
from aerobee_service.turns.turns import AT_ONCE, LATER, TURN_S, Account

__all__ = ["Connection"]

log = event_logger("aerobee.remoting")

T = TypeVar("T")

NO_HANDLERS: Final = HandlerTable()
BUFFERS: Final = "buffers of connections"  # in the account
READ_AHEAD: Final = 262_144  # bytes held back at which reading stops; what overtakes must have been read
# Requests in one slice. To cut a read into so many and to keep them takes 0.5 ms: what is more is cut in later turns.
SLICE_FRAMES_MAX: Final = 512
# A batch handler gets as many requests at once as take about so long, by what those before them took.
BATCH_S: Final = 0.0005
TASKS_AT_ONCE: Final = 16  # of one connection, that begin without waiting for their turn
STEPS_S: Final = 0.001  # of a task that works in steps, before others have their turn
BATCH_FIRST: Final = (
    4  # requests, while nothing is known: a filter of 1,200 tags takes more than a millisecond
)
# Bytes of the large ones among their headers: few dear requests may follow very many cheap ones.
BATCH_HEADERS_SIZE: Final = 65_536
LARGE_HEADER: Final = 4096
OVERTAKING_MAX: Final = 64  # requests that may overtake what is held back, until nothing is
RUNNING_SIZE_MAX: Final = 16 * 1024 * 1024  # bytes that tasks are at work on, at which reading stops
COUNT_STEP: Final = 65_536  # bytes that may wait to be sent before they are counted at once
# Bytes of what was read that may wait before they are counted: a small request waits for its turn, no longer.
UNCOUNTED_SIZE: Final = 1024


class Connection(asyncio.Protocol):
    """See the module. Not to be made by hand: `RemotingServer` and `RemotingClient` make them.

    Its public methods are those that four others call, each of whom knows a few of them: the event loop (transport
    callbacks), handlers (`Channel`), whoever asks the peer (`Peer`), and the end that owns it (`sweep`, `go_on`).

    Reading, turns and writing stay in one class: after each request it is looked at what waits to be sent, and what is
    held back. What needs none of that is apart: our own requests (`Calls`), and running handlers (`Dispatcher`).
    """

    __slots__ = (
        "__weakref__",  # group notices forget who is gone
        "_alone",
        "_batch_max",
        "_broken",
        "_calls",
        "_clock",
        "_close_reason",
        "_counted",
        "_deadline",
        "_dispatcher",
        "_done_reading",
        "_frame_since",
        "_front_max",
        "_handlers",
        "_has_read_enough",
        "_held_back",
        "_held_back_size",
        "_in_read",
        "_is_left_to_front",
        "_last_call",
        "_limits",
        "_limits_logged",
        "_log",
        "_loop",
        "_memory",
        "_on_close",
        "_on_excess",
        "_on_open",
        "_out",
        "_out_size",
        "_overtaking",
        "_passed_max",
        "_running_size",
        "_source",
        "_tasks",
        "_turns",
        "_urgent",
        "_waits",
        "_write_blocked",
        "_write_scheduled",
        "account",
        "blocked_since",
        "closed",
        "codec",
        "common",
        "decoder",
        "in_flight",
        "language",
        "last_active",
        "neighbours",
        "peer",
        "peer_host",
        "reading_paused",
        "subject",
        "transport",
        "version",
        "was_overtaken",
    )

    def __init__(
        self,
        handlers: HandlerTable | None = None,
        *,
        common: Common | None = None,
        on_open: "Callable[[Connection], None] | None" = None,
        on_close: "Callable[[Connection], None] | None" = None,
        source: Source | None = None,
    ) -> None:
        """`source` is where it comes from, where that is not the other end of the socket: a proxy said so."""
        common = common or Common()
        # Fixed for life.
        self.common = common
        self._handlers = handlers or NO_HANDLERS
        self._dispatcher = Dispatcher(self._handlers, common.watch, common.log)
        self._limits = common.limits
        self._memory = common.memory
        self._turns = common.turns
        self._clock = time.perf_counter if common.turns is None else common.turns.clock
        self._on_excess = common.on_excess
        self._on_open = on_open
        self._on_close = on_close
        self._source = source
        self._log = common.log
        self._loop = asyncio.get_running_loop()
        self.decoder = FrameDecoder(self._limits.frame_size_max, self._limits.header_size_max)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self.peer = "unknown"  # host:port
        self.peer_host = ""  # host alone
        self.neighbours = ""  # what that is counted as
        self.subject = ""  # common name of its certificate, verified; "" where it has shown none
        self.account: Account = None  # type: ignore[assignment]  # of its turns; set by connection_made
        self.closed: asyncio.Future[None] = self._loop.create_future()  # done when the connection is gone
        self._limits_logged: set[str] = set()
        # Learned from the peer's frames.
        self.version = VERSION
        self.language = "OTHER"
        self.codec = CODEC_JSON  # codec for our own requests
        self._calls = Calls(self._limits.waiting_max)  # our own requests
        # What leaves with the next write.
        self._out: list[bytes] = []
        self._out_size = 0
        self._in_read = False
        self._write_scheduled = False
        # Reading stops while any of these reasons holds.
        self.in_flight = 0
        self._write_blocked = False
        self._done_reading = False
        self._deadline = LATER  # of what is read now
        self._is_left_to_front = False  # what the decoder has; it is not cut
        self._has_read_enough = False  # for this turn; it stands in the row to read on
        self._broken: FrameError | None = None  # what was read last is no frame: nothing is read any more
        self._alone = 0  # pieces of work that what was read later has to wait for
        # Read, and to be handled in a later turn, or when what waits to be sent has shrunk.
        self._held_back: deque[Frame] = deque()
        # What overtakes those, and is not handled either.
        self._urgent: deque[Frame] = deque()
        self._held_back_size = 0  # bytes of both
        self._waits = False  # for its turn
        # Requests that have overtaken what is held back; at the bound they stay in order.
        self._overtaking = 0
        # Whether the request in hand is older than one of this peer that was handled before it.
        self.was_overtaken: bool = False
        self._batch_max = BATCH_FIRST  # moved by _run_batch
        # Moved by _take_front: how many requests the front gets at once, and how many are not shown to it when it does
        # not take the first of them, the more the more often that was so.
        self._front_max = BATCH_FIRST
        self._passed_max = 1
        self._running_size = 0  # bytes of the requests that tasks are at work on
        self._counted = 0  # of `buffered_size`, in the account
        self.reading_paused = False
        self._close_reason = "closed by the peer"
        # Swept by the owner (`sweep`); seconds of the loop's clock.
        self.last_active = self._loop.time()
        self._frame_since: float | None = None
        self.blocked_since: float | None = None
        self._last_call: asyncio.TimerHandle | None = None  # armed by `close`
        self._tasks: set[asyncio.Task[None]] = set()

    # --- transport callbacks ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by shape, not by class
        self.transport.set_write_buffer_limits(high=self._limits.write_high, low=self._limits.write_low)
        peer = self._source or transport.get_extra_info("peername")
        self.peer = format_addr(peer)
        self.peer_host = str(peer[0]) if isinstance(peer, tuple) else ""
        self.neighbours = neighbours_of(self.peer_host)
        self.subject = subject_of(transport)
        if self._turns is not None:
            self.account = self._turns.open(self.neighbours)
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._close_reason = str(exc) or type(exc).__name__
        self._calls.lose(self._close_reason)
        if self._last_call is not None:
            self._last_call.cancel()
        for task in self._tasks:
            task.cancel()
        if self._turns is not None:
            self._turns.close(self.account)
        self._memory.give(self, BUFFERS, self._counted)
        self._counted = 0
        if not self.closed.done():
            self.closed.set_result(None)
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        self._write_blocked = True
        self.blocked_since = self._loop.time()
        self._gate_reading()

    def resume_writing(self) -> None:
        self._write_blocked = False
        self.blocked_since = None
        self._wait()
        self._gate_reading()

    def stop_reading(self) -> None:
        """Read no more requests, for good; answers to those that were read still leave."""
        self._done_reading = True
        self._gate_reading()

    def _gate_reading(self) -> None:
        waits = self._held_back_size + (self.decoder.pending_size if self._is_left_to_front else 0)
        stop = (
            self._done_reading
            or self._has_read_enough
            or (self.decoder.has_more and not self._is_left_to_front)
            or self._write_blocked
            or bool(self._alone)
            or waits > READ_AHEAD
            or self.in_flight >= self._limits.in_flight_max
            or self._running_size >= RUNNING_SIZE_MAX
        )
        if stop is self.reading_paused or self.transport.is_closing():
            return
        self.reading_paused = stop
        if stop:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._broken is not None:
            return
        decoder, turns = self.decoder, self._turns
        self._in_read = True
        try:
            deadline = time.perf_counter() + TURN_S if turns is None else turns.enter(self.account)
            if self._held_back or self._urgent or self._alone:
                deadline = LATER
            is_cut = self._feed(data, deadline)
            if self._out:
                self._write_out()  # at once: who has one request under way waits for it
            else:
                self.last_active = self._loop.time()
            if turns is not None and turns.left(self.account, len(data), is_served=deadline != LATER):
                self._has_read_enough = True
            if self._held_back or self._urgent or self._has_read_enough or decoder.has_more:
                self._wait()
                self._gate_reading()
        finally:
            self._in_read = False
            if self._out:
                self._write_out()
        if decoder.has_more or not decoder.pending_size:
            self._frame_since = None
        elif is_cut or self._frame_since is None:
            self._frame_since = self.last_active
        if decoder.pending_size > UNCOUNTED_SIZE or self._counted:
            self.count_buffers()

    def _feed(self, data: bytes, deadline: float) -> bool:
        """Cut frames off, and handle them until the deadline; what that leaves is held back, or left uncut where the
        front of the table may serve it. Whether there were any that it did not serve."""
        decoder = self.decoder
        self._is_left_to_front, self._deadline = False, deadline
        front = None if self._handlers.front is None else self._take_front
        if front is None or decoder.pending_size:
            frames = decoder.feed(data, front, count_max=SLICE_FRAMES_MAX)
        else:
            taken, count_max = front(data)
            if taken == len(data):
                return False
            frames = decoder.feed(data[taken:], count_max=count_max)
        is_cut = bool(frames)
        while frames:
            left = self._handle(frames, deadline) if deadline != LATER else frames
            if left:
                self._hold_back(left)
            if (
                left
                or front is None
                or not decoder.has_more
                or not self._is_free
                or self._clock() >= deadline
            ):
                break
            # Behind what is unusual there may be more for the front.
            frames = decoder.feed(b"", front, count_max=SLICE_FRAMES_MAX)
        if decoder.error is not None and self._broken is None and not self.transport.is_closing():
            self._break(decoder.error)
        return is_cut

    def _take_front(self, data: bytes) -> tuple[int, int]:
        """Let the front of the table have the first requests of this until `_deadline`: how many bytes it took, and how
        many frames behind those may be cut. None where it may go on later, and nothing is to overtake."""
        deadline, dispatcher = self._deadline, self._dispatcher
        at, began = 0, self._clock()
        while deadline != LATER:
            taken = dispatcher.take_front(self, data, at, self._front_max)
            if taken is None:
                passed = self._passed_max
                self._passed_max = min(2 * passed, SLICE_FRAMES_MAX)
                return at, passed
            at += taken.size
            self._passed_max = 1
            self.version = taken.version
            self._frame_since = None
            if at == len(data):
                return at, SLICE_FRAMES_MAX
            now = self._clock()
            self._front_max = _fitting(self._front_max, taken.request_count, now - began)
            began = now
            if now >= deadline or self._out_size > self._limits.write_high:
                break
        self._is_left_to_front = dispatcher.front_serves_all(data, at)
        return at, 0 if self._is_left_to_front else SLICE_FRAMES_MAX

    def _hold_back(self, frames: list[Frame]) -> None:
        """Handle these later, in order, but for the small control requests among them."""
        starts = self._handlers.overtaking_starts
        row = self._held_back
        for frame in frames:
            codec, header, body = frame
            if (codec == CODEC_JSON and not header.startswith(starts)) or not self._overtakes(frame):
                row.append(frame)
            elif self._urgent or not self._handle_spared(frame):
                self._urgent.append(frame)
            else:
                continue
            self._held_back_size += len(header) + len(body)

    def _overtakes(self, frame: Frame) -> bool:
        """Whether this need not wait for what is held back."""
        codec, header, _ = frame
        by_key = self._handlers.by_key
        if self._overtaking >= OVERTAKING_MAX or codec >= len(by_key):
            return False
        entry = by_key[codec].get(request_code_key(codec, header))
        if entry is None or not entry.overtakes:
            return False
        if self._alone:
            self._overtaking = OVERTAKING_MAX  # it waits, so those behind it do
            return False
        self._overtaking += 1
        return True

    def _handle_spared(self, frame: Frame) -> bool:
        """Handle a control request in this turn, if there is time for it."""
        turns = self._turns
        if turns is None:
            self._handle([frame], AT_ONCE)
            return True
        if not turns.spares(self.account):
            return False
        began = self._clock()
        self._handle([frame], AT_ONCE)
        turns.spared(self._clock() - began)
        return True

    def _wait(self) -> None:
        """Stand in the row for the next turns."""
        if self._can_go_on and not self._waits:
            self._waits = True
            if self._turns is None:
                self._loop.call_soon(lambda: self.go_on(time.perf_counter() + TURN_S))
            else:
                self._turns.join(self)

    def go_on(self, deadline: float) -> bool:
        """Handle some of what was held back, as far as the peer reads the answers; whether to go on in a later turn.

        Then it is read again, where that has stopped for the turn.
        """
        self._waits = self._has_read_enough = False
        if self._can_go_on:
            self._in_read = True
            try:
                is_over = False
                if self._urgent:
                    self._handle_some(self._urgent, deadline)
                    is_over = bool(self._urgent) or self._clock() >= deadline
                if self._held_back and not is_over and self._is_free:
                    self.was_overtaken = self._overtaking > 0
                    self._handle_some(self._held_back, deadline)
                    self.was_overtaken = False
                if self.decoder.has_more and not self._held_back and not self._urgent and self._is_free:
                    self._cut_more(deadline)
            except Exception:
                # A fault of ours, which the event loop tells. As behind a read that met one, the peer is not left
                # waiting for answers that nobody will give.
                self.abort("what it sent could not be handled")
                raise
            finally:
                self.was_overtaken = False
                self._in_read = False
                if self._out:
                    self._write_out()
            if not self._held_back:
                self._overtaking = 0
        if self._broken is not None:
            self._close_broken()
        self._gate_reading()
        if not self._can_go_on:
            return False
        if self._turns is None:
            self._wait()
            return False
        self._waits = True
        return True

    def _cut_more(self, deadline: float) -> None:
        """Go on with what was read and was not cut into frames; all before that is handled."""
        if self._clock() >= deadline:
            return
        self._feed(b"", deadline)
        pending_size = self.decoder.pending_size
        if pending_size and not self.decoder.has_more:
            self._frame_since = self._loop.time()
        if pending_size > UNCOUNTED_SIZE or self._counted:
            self.count_buffers()

    @property
    def _is_free(self) -> bool:
        """Whether anything may be handled now."""
        return not self._write_blocked and not self._alone and not self.transport.is_closing()

    @property
    def _can_go_on(self) -> bool:
        """Whether something was read that may be handled, or it may be read on."""
        has_more = self._held_back or self._urgent or self._has_read_enough or self.decoder.has_more
        return bool(has_more) and self._is_free

    def _handle_some(self, row: deque[Frame], deadline: float) -> None:
        """Handle the first of these; what the deadline leaves stays."""
        if len(row) <= SLICE_FRAMES_MAX:
            frames = list(row)
            row.clear()
        else:
            frames = [row.popleft() for _ in range(SLICE_FRAMES_MAX)]
        waits_more = self._held_back or self._urgent
        self._held_back_size = self._held_back_size - _size_of(frames) if waits_more else 0
        left = self._handle(frames, deadline)
        if left:
            row.extendleft(reversed(left))
            self._held_back_size += _size_of(left)

    # --- what the peer sends ----------------------------------------------------------------------------------

    def _handle(self, frames: list[Frame], deadline: float) -> list[Frame]:
        """Handle frames in order, and give back those that the deadline, or what waits to be sent, leaves for later.

        Consecutive requests of one batch handler go to it together.
        """
        left: list[Frame] = []
        self._handlers.before_others()
        clock, write_high = self._clock, self._limits.write_high
        json_keys = self._handlers.by_key[CODEC_JSON]
        run: list[AnyIncoming] = []
        run_size = 0  # bytes of the large headers of these
        run_entry: Entry | None = None
        broken: FrameError | None = None
        # A few more than a batch may have go with it: two batches cost more than their requests.
        is_one_batch = len(frames) <= self._batch_max * 3 // 2
        rest = iter(frames)
        for frame in rest:
            codec, header, body = frame
            entry = json_keys.get(header[: header.find(b",", 8, 24)]) if codec == CODEC_JSON else None
            envelope = None
            if entry is not None:
                # The usual request, without calls in between: 0.7 us less for each (bench/profile_send.py).
                try:
                    envelope = entry.decode_json(header)
                except UNREADABLE:
                    envelope = None  # read again below, where the fault gets its name
            if (
                entry is None
                or envelope is None
                or envelope.ext is None
                or envelope.flag & FLAG_RESPONSE
                or len(body) > entry.body_size_max
            ):
                try:
                    entry, envelope = self._read(frame)
                except FrameError as fault:
                    broken = fault
                    break
                except _HeaderRefused as refused:
                    if run:  # what came before is judged before
                        self._run_batch(run_entry, run)
                        run, run_size = [], 0
                        if self._alone:
                            left = [frame, *rest]
                            break
                    self._refuse_header(frame, refused)
                    entry = None
                if entry is None or envelope is None:
                    if self._out_size > write_high or self._alone or clock() >= deadline:
                        left = list(rest)  # and so this loop ends
                    continue
            if entry.batch is not None:
                if len(header) >= LARGE_HEADER:
                    run_size += len(header)
                if run and (
                    entry is not run_entry
                    or (len(run) >= self._batch_max and not is_one_batch)
                    or run_size > BATCH_HEADERS_SIZE
                ):
                    self._run_batch(run_entry, run)
                    run, run_size = [], 0
                    if self._out_size > write_high or self._alone or clock() >= deadline:
                        left = [frame, *rest]
                        break
                run_entry = entry
                run.append(Incoming(envelope, frame, envelope.ext, body))  # type: ignore[arg-type]  # no None here
                continue
            if run:
                self._run_batch(run_entry, run)
                run, run_size = [], 0
                if self._alone or clock() >= deadline:
                    left = [frame, *rest]
                    break
            entry.requests += 1
            incoming = Incoming(envelope, frame, envelope.ext, body)
            if entry.in_task is None:
                self._dispatcher.run(self, entry, Request(self, incoming))
            else:
                self._run_in_task(entry, entry.in_task, Request(self, incoming))
            if self._out_size > write_high or self._alone or clock() >= deadline:
                left = list(rest)  # and so this loop ends
        if run:
            self._run_batch(run_entry, run)
        if broken is not None:
            # What waits came behind it.
            self._held_back.clear()
            self._urgent.clear()
            self._held_back_size = 0
            self._break(broken)
        return left

    def _read(self, frame: Frame) -> tuple[Entry | None, Envelope[msgspec.Struct] | None]:
        """Any frame: a request and its entry, or nothing more to do. FrameError when the stream is broken,
        _HeaderRefused when no handler gets this."""
        codec, header, body = frame
        by_key = self._handlers.by_key
        entry = by_key[codec].get(request_code_key(codec, header)) if codec < len(by_key) else None
        try:
            if entry is None:
                command = decode_command(frame)
                entry = self._handlers.by_code.get(command.code)
                if command.flag & FLAG_RESPONSE or entry is None:
                    self._on_other(command, frame)
                    return None, None
                envelope = entry.decoder.convert(command)
            else:
                envelope = entry.decoder.decode(frame)
                if envelope.flag & FLAG_RESPONSE:
                    self._on_other(decode_command(frame), frame)
                    return None, None
            if len(body) > entry.body_size_max:
                raise _body_too_large(entry, len(body))
        except RequestError as reason:
            command = decode_outline(frame)
            if command.flag & FLAG_RESPONSE:
                self._on_response(decode_command(frame))
                return None, None
            raise _HeaderRefused(command, entry, reason) from None
        return entry, envelope

    def _on_other(self, command: Command, frame: Frame) -> None:
        """An answer, or a request that nobody serves: _HeaderRefused when that is to be told."""
        if command.flag & FLAG_RESPONSE:
            self._on_response(command)
        elif command.code and not command.is_oneway:
            remark = f" request type {command.code} not supported"
            unserved = RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            raise _HeaderRefused(command, None, unserved)
        # An empty header asks for nothing; official servers are silent too.

    def _run_batch(self, entry: Entry | None, run: list[AnyIncoming]) -> None:
        assert entry is not None
        self.version = run[-1].envelope.version
        began, count = self._clock(), len(run)
        self._dispatcher.run_batch(self, entry, run)
        self._batch_max = _fitting(self._batch_max, count, self._clock() - began)

    def admit_found(self, request: AnyIncoming, needs: Sequence[Need]) -> None:
        """Ask the gate for what a handler found that this request needs, too. RequestError when it is refused."""
        self._dispatcher.admit_found(self, request, needs)

    def run_alone(self, work: Callable[[], Awaitable[None]], size: int = 0) -> None:
        """Run this as a task before anything else that this peer has sent is handled: its order is kept.

        For work that is too long for one turn, and keeps `size` bytes meanwhile. It answers by itself.
        """
        self._alone += 1
        self._at_work(1, size)
        self._gate_reading()
        self._start_task(lambda: self._run_alone(work, size))

    async def _run_alone(self, work: Callable[[], Awaitable[None]], size: int) -> None:
        try:
            await work()
        finally:
            self._alone -= 1
            self._at_work(-1, -size)
            self._close_broken()
            self._wait()
            self._gate_reading()

    def answer_alone(self, request: AnyRequest, work: Callable[[], Awaitable[Response | None]]) -> None:
        """As `run_alone`, for one request: `work` gives its answer, or refuses it, as an async handler does."""
        entry = self._handlers.by_code[request.code]
        self.run_alone(lambda: self._run_async(entry, request, work), _working_size_of(entry, request))

    def answer_in_task(self, request: AnyRequest, work: Callable[[], Awaitable[Response | None]]) -> None:
        """Have a task give the answer, as an async handler does, for what a plain one could not answer at once."""
        self._answer_in_task(self._handlers.by_code[request.code], request, work)

    def _run_in_task(
        self, entry: Entry, handler: Callable[[AnyRequest], Awaitable[Response | None]], request: AnyRequest
    ) -> None:
        if self._dispatcher.admits(self, entry, request.incoming):
            self._answer_in_task(entry, request, lambda: handler(request))

    def _answer_in_task(
        self, entry: Entry, request: AnyRequest, work: Callable[[], Awaitable[Response | None]]
    ) -> None:
        """It counts from now on, also while it waits for its turn."""
        size = _working_size_of(entry, request)
        self._at_work(1, size)
        task = self._start_task(lambda: self._run_async(entry, request, work))
        task.add_done_callback(lambda _: self._at_work(-1, -size))

    def failure(self, code: int, failed: Exception) -> Response:
        """The answer to a request that met this, which is told. To be called where it is handled."""
        return self._dispatcher.failure(self, code, failed)

    def log_limit(self, limit: str, reason: str) -> None:
        """Name this peer in the log, once for each bound that it reaches; `limit` is the setting's name."""
        if limit not in self._limits_logged:
            self._limits_logged.add(limit)
            self._log.warning("remoting.limit_reached", peer=self.peer, limit=limit, reason=reason)

    async def _run_async(
        self, entry: Entry, request: AnyRequest, work: Callable[[], Awaitable[Response | None]]
    ) -> None:
        response = await self._dispatcher.answer(self, entry, work)
        if response is not None and not request.oneway:
            self.respond(request.codec, request.opaque, response)

    def _at_work(self, count: int, size: int) -> None:
        """So many more tasks (or fewer) are at work, on so many bytes."""
        self._running_size += size
        self.hold(count)
        if abs(size) > COUNT_STEP:
            self._gate_reading()
            self.count_buffers()

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        is_one_of_many = len(self._tasks) >= TASKS_AT_ONCE
        task = self._loop.create_task(self._charged(work, is_one_of_many), name=f"request from {self.peer}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _charged(self, work: Callable[[], Awaitable[None]], is_one_of_many: bool) -> None:
        """What tasks do for this peer is charged to it, step by step. Those of one read would all begin in one turn of
        the event loop, whatever they take together; so from some on each waits for its own."""
        if is_one_of_many:
            await self.another_turn()
        await in_timed_steps(work(), 0.0, self._charge)

    def _charge(self, took_s: float) -> None:
        if self._turns is not None:
            self._turns.charge(self.account, took_s)

    async def another_turn(self) -> None:
        """Between two steps of a task for this peer: others are served until it is its turn again."""
        if self._turns is None:
            await asyncio.sleep(0)
        else:
            await self._turns.pause(self.account)

    async def in_turns(self, steps: Steps[T]) -> T:
        """What the work returns, done in steps of about STEPS_S, each when it is this peer's turn again."""
        until = self._clock() + self._step_s()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._clock() >= until:
                await self.another_turn()
                until = self._clock() + self._step_s()

    def _step_s(self) -> float:
        return STEPS_S if self._turns is None else self._turns.step_s(STEPS_S)

    def hold(self, count: int) -> None:
        """Count requests of this peer that wait for their answer; reading stops at the bound."""
        self.in_flight += count
        if (self.in_flight >= self._limits.in_flight_max) is not self.reading_paused:
            self._gate_reading()

    def _on_response(self, command: Command) -> None:
        if self._calls.end(command):
            self.version = command.version
        else:
            self._log.debug(
                "remoting.answer_unexpected", peer=self.peer, opaque=command.opaque, code=command.code
            )

    def _refuse_header(self, frame: Frame, refused: "_HeaderRefused") -> None:
        if refused.entry is not None:
            refused.entry.requests += 1
            refused.entry.refused += 1
        self._dispatcher.refuse_stranger(self, refused.command, frame, refused.reason)

    def _break(self, broken: FrameError) -> None:
        """Nothing more can be read; what was read before is handled, then the connection is closed."""
        forget_frames(broken)  # the decoder keeps it
        forged = isinstance(broken, ProxyHeaderError)
        self.common.broken_off["proxy_header" if forged else "frame"] += 1
        event = "remoting.proxy_header_refused" if forged else "remoting.frame_refused"
        self._log.warning(event, peer=self.peer, reason=str(broken))
        self.decoder.error = self.decoder.error or broken
        self.decoder.has_more = False
        self._broken = broken
        self.stop_reading()
        self._close_broken()

    def _close_broken(self) -> None:
        """Close what is broken, unless something that was read before waits."""
        if self._broken is not None and not (self._alone or self._held_back or self._urgent):
            self.close(f"frame refused: {self._broken}")

    # --- what we send -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send whole frames. Within one turn of the loop everything leaves in one write, in order."""
        self._out.append(data)
        self._out_size += len(data)
        if not self._in_read and not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self.flush)

    def write_now(self, data: bytes) -> None:
        """As `write`, without waiting for the end of the turn."""
        self._out.append(data)
        self._out_size += len(data)
        if not self._in_read:
            self._write_out()

    def write_last(self, data: bytes) -> None:
        """As `write`, of what answers the last request of a read: it leaves at once, with all before it, and is on its
        way while its sender notes what it means."""
        self._out.append(data)
        self._write_out()

    def flush(self) -> None:
        """Hand to the transport what was written in this turn of the loop; done by itself at its end."""
        self._write_scheduled = False
        if self._out:
            self._write_out()

    def _write_out(self) -> None:
        out, self._out = self._out, []
        self._out_size = 0
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        self.last_active = self._loop.time()
        unsent = transport.get_write_buffer_size()
        if unsent > self._counted + COUNT_STEP:
            self.count_buffers()
        if unsent > self._limits.unsent_max:
            reason = f"more than {self._limits.unsent_max} bytes wait for a peer that does not read"
            self.log_limit("maxUnsentBytes", reason)
            self.abort(reason)

    def respond(self, codec: int, opaque: int, response: Response) -> None:
        """Answer the request `opaque` in the codec that it used."""
        self.write(
            encode_command(
                Command(
                    response.code,
                    opaque=opaque,
                    flag=FLAG_RESPONSE,
                    remark=response.remark,
                    ext_fields=response.ext,
                    body=response.body,
                    codec=codec,
                )
            )
        )

    def send_request(
        self,
        code: int,
        header: RequestHeader | dict[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = 3.0,
    ) -> asyncio.Future[Command]:
        """Send one request; the future gives the answer, whatever its code.

        The future fails with RequestTimeout or ConnectionLost. ConnectionLost or TooManyRequests is raised at
        once when nothing can be sent.
        """
        if self.closed.done() or self.transport.is_closing():
            raise ConnectionLost(self.peer, self._close_reason)
        opaque, future = self._calls.begin(self.peer, int(code), timeout_s)
        self.write(self._encode(code, opaque, 0, header, body))
        return future

    async def request(
        self,
        code: int,
        header: RequestHeader | dict[str, str] | None = None,
        body: bytes = b"",
        timeout: float = 3.0,  # noqa: ASYNC109  # the wire's own time-out, noticed by one scan for all
    ) -> Command:
        """`send_request` and wait for the answer."""
        return await self.send_request(code, header, body, timeout)

    def send_oneway(
        self, code: int, header: RequestHeader | dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a request that gets no answer. ConnectionLost when the connection is gone."""
        if self.closed.done() or self.transport.is_closing():
            raise ConnectionLost(self.peer, self._close_reason)
        self.write(self._encode(code, self._calls.next_opaque(), FLAG_ONEWAY, header, body))

    def _encode(
        self, code: int, opaque: int, flag: int, header: RequestHeader | dict[str, str] | None, body: bytes
    ) -> bytes:
        ext = header if isinstance(header, dict) or header is None else ext_of(header)
        codec = self.codec if -0x8000 <= code < 0x8000 or self.codec != 1 else CODEC_JSON
        return encode_command(
            Command(int(code), opaque=opaque, flag=flag, ext_fields=ext, body=body, codec=codec)
        )

    # --- the end ----------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.closed.done() or self.transport.is_closing()

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads so slowly that nothing large, and nothing unasked, should be added."""
        return self._write_blocked or self.transport.get_write_buffer_size() > self._limits.write_high

    @property
    def buffered_size(self) -> int:
        """Bytes in memory for this peer: of frames that are not whole or not handled yet, and waiting to be sent."""
        kept = self.decoder.pending_size + self._held_back_size + self._running_size
        return kept + self.transport.get_write_buffer_size()

    @property
    def waiting_size(self) -> int:
        """Bytes of requests that are not answered yet, as far as reading goes on with them."""
        return min(self.decoder.pending_size + self._held_back_size + self._running_size, READ_AHEAD)

    def count_buffers(self) -> None:
        """Bring the account up to date; a peer that has more than it may is cut off. Requests that only wait for their
        turn are not held against it: nobody but this process keeps them waiting, and they may be about to be refused.
        """
        if self.closed.done():
            return
        size = self.recount()
        memory = self._memory
        if memory.of(self) - self.waiting_size > memory.peer_max and not self.transport.is_closing():
            reason = f"more than {memory.peer_max} bytes are kept for this connection, {size} of them buffers"
            self.log_limit(PEER_LIMIT, reason)
            self.abort(reason)
        elif memory.total > memory.total_max:
            self._on_excess()

    def recount(self) -> int:
        """Bring the account up to date and do nothing about it; bytes of buffers."""
        size = self.buffered_size
        self._memory.note(self, BUFFERS, size - self._counted)
        self._counted = size
        return size

    def sweep(self, now: float) -> str | None:
        """Close the connection if one of its time bounds is over; the reason, or None.

        None too for a connection that is closing already: its reason has been told, and its end is sure.
        """
        if self.is_closed:
            return None
        limits = self._limits
        reason = None
        if self._frame_since is not None and now - self._frame_since > limits.frame_s:
            reason = f"a frame did not arrive whole within {limits.frame_s:g} s"
        elif self.blocked_since is not None and now - self.blocked_since > limits.write_stalled_s:
            reason = f"the peer did not read for {limits.write_stalled_s:g} s"
        elif not self.in_flight and now - self.last_active > limits.idle_s:
            reason = f"silent for {limits.idle_s:g} s"
        if reason is not None:
            if self.blocked_since is not None:
                self.abort(reason)
            else:
                self.close(reason)
        return reason

    @property
    def at_work(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks of requests that are not answered yet."""
        return tuple(self._tasks)

    def close(self, reason: str = "closed here") -> None:
        """Send what is waiting, then close; a peer that does not take it has `write_stalled_s` for that."""
        if self.transport.is_closing():
            return
        self._close_reason = reason
        if self._out:
            self._write_out()
        self.transport.close()
        if not self.closed.done() and self._last_call is None:
            self._last_call = self._loop.call_later(self._limits.write_stalled_s, self.transport.abort)

    def abort(self, reason: str = "aborted here") -> None:
        """Close at once; what waits to be sent is dropped."""
        self._close_reason = reason
        self.transport.abort()


class _HeaderRefused(Exception):
    """A request that no handler gets: nobody serves its code, or what its header or the size of its body says."""

    def __init__(self, command: Command, entry: Entry | None, reason: RequestError) -> None:
        super().__init__(str(reason))
        self.command = command
        self.entry = entry
        self.reason = reason


def _fitting(count_max: int, count: int, took_s: float) -> int:
    """How many requests to handle at once after `count` that took so long, where `count_max` were allowed."""
    if took_s > BATCH_S:
        return max(1, int(count * BATCH_S / took_s))
    if took_s < BATCH_S / 2 and count >= count_max:
        return min(2 * count_max, SLICE_FRAMES_MAX)
    return count_max


def _size_of(frames: Iterable[Frame]) -> int:
    return sum([len(header) + len(body) for _, header, body in frames])


def _body_too_large(entry: Entry, size: int) -> RequestError:
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"body of request {entry.code} has {size} bytes, at most {entry.body_size_max} are allowed"
        if entry.body_size_max
        else f"request {entry.code} takes no body, this one has {size} bytes",
    )


def _working_size_of(entry: Entry, request: AnyRequest) -> int:
    """Bytes in memory that a task for it keeps."""
    return request.working_size(is_decoded=entry.body_size_max <= DECODED_SIZE_MAX)
