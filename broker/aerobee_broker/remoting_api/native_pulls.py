"""Usual pulls by the native engine: a reader asks the same again and again, but for where it has got to.

Touches  connections to answer on.

A request is read in Python once, as all others are; what it asks is learned (`learn_pull`), and the engine finds it
again by the bytes of its header, of which it reads nothing but the three numbers that change, and what makes one
signature differ from the next. Judged, checked, committed, counted and found it is here each time, by the parts that
do it for all other pulls (`Reading.read_nearby`). Their answer, header and records, the engine makes in one piece.
Whatever is unusual goes on to `PullHandlers`: who is not let in, what finds nothing, or filters by properties, or is
not in memory. What was written before this run the engine proves first; what it cannot prove goes on, too.

`bench/profile_pull.py --engine native` measures it.
"""

import struct
from typing import Final

import msgspec

from aerobee_access.judging import AskedAgain, asked_again
from aerobee_access.signature import FRESHNESS
from aerobee_broker.messages.read import Reading, UsualQuery
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.native.engine import ANSWERS_SIZE, FoundPull, NativeEngine, SendEngine
from aerobee_broker.remoting_api.native_queries import FIRST_OF_QUERIES, NativeQueries
from aerobee_broker.remoting_api.native_sends import NativeSends
from aerobee_broker.remoting_api.pull import query_of
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import AerobeeError
from aerobee_proto.frames import FLAG_ONEWAY, FLAG_RESPONSE
from aerobee_proto.headers import PullMessageHeader
from aerobee_proto.requests import RequestDecoder
from aerobee_remoting.exchange.gate import Judging
from aerobee_remoting.exchange.handlers import Channel, FrontTaken, HandlerTable

__all__ = ["NativePulls"]

CODES: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
# What a read that begins with a pull has behind the words of its first frame: JSON, RocketMQ's own, msgpack.
FIRST: Final = (b'{"code":11,', b'{"code":361,', b"\0\x0b", b"\x01\x69", b"\x97\x0b", b"\x97\xcd\x01\x69")
_WORDS: Final = struct.Struct(">ii")
# The fields that change and are signed, in the order of their names, and how they are written.
PLACES: Final = {FRESHNESS: b"%b", "commitOffset": b"%d", "queueOffset": b"%d"}


class _Pull(msgspec.Struct, frozen=True):
    """What pulls ask that differ in offsets, opaque, signature and freshness alone. It leads to a queue, and so back to
    the engine that has it: the search for garbage has to know it."""

    usual: UsualQuery
    codec: int
    code: int
    version: int
    signed: AskedAgain | None  # how they are judged; None: the usual way


class NativePulls:
    """The front of a broker's handler table, before those for queries by key and for sends."""

    def __init__(
        self,
        engine: SendEngine,
        native: NativeEngine,
        reading: Reading,
        sends: NativeSends,
        queries: NativeQueries,
        visibility: Visibility,
    ) -> None:
        self._engine = engine
        self._native = native
        self._reading = reading
        self._sends = sends
        self._queries = queries
        self._visibility = visibility
        self._decoder = RequestDecoder(PullMessageHeader)

    def serve(self, table: HandlerTable) -> None:
        """Take what is usual of all reads, until the engine has a fault."""
        table.front = self
        table.before_others = self._visibility.show_waiting
        self._sends.begin()

        def ended() -> None:
            table.front = None

        self._engine.when_ended(ended)

    def serves_all(self, data: bytes, at: int) -> bool:
        """As `Front`."""
        try:
            return self._native.serves_all(data, at)
        except Exception as failed:
            self._engine.give_up(failed)
            return False

    def take(
        self, channel: Channel, data: bytes, at: int, count_max: int, judging: Judging | None
    ) -> FrontTaken | None:
        """As `Front`."""
        if not data.startswith(FIRST, at + 8):
            if data.startswith(FIRST_OF_QUERIES, at + 8):
                self._visibility.show_waiting()
                return self._queries.take(channel, data, at, count_max) if judging is None else None
            return self._sends.take(channel, data, at, count_max, judging)
        if self._visibility.is_left:
            self._visibility.show_waiting()
        native, reading = self._native, self._reading
        begin = at
        requests = size = code = version = 0
        served = None if judging is None else judging.mark()  # what was let in before it
        while requests < count_max:
            try:
                found = native.pull(data, at)
                if found is None:
                    break
                known, end, offset, commit_offset, opaque, _, _ = found
                asked = known if isinstance(known, _Pull) else self._learn(data, found, at)
                if asked is None or (requests and asked.code != code):
                    break
                if judging is not None and not _is_let_in(judging, asked, found):
                    break
                send = channel.write_last if end == len(data) else channel.write
                answer_size = reading.read_nearby(
                    asked.usual, offset, commit_offset, channel, native.gather, (asked.codec, opaque), send
                )
            except (AerobeeError, OSError):
                break  # who asks is told why the usual way
            except Exception as failed:
                self._engine.give_up(failed)
                break
            if answer_size is None:
                break
            requests += 1
            at = end
            code, version = asked.code, asked.version
            if judging is not None:
                served = judging.mark()
            if at == len(data):
                break
            size += answer_size
            if size >= ANSWERS_SIZE:
                break
        if judging is not None:
            judging.go_back(served)
        return FrontTaken(at - begin, requests, code, version) if requests else None

    def _learn(self, data: bytes, found: FoundPull, at: int) -> _Pull | None:
        """Read a request in full, for it and all that are such as it; None for one that is not usual after all."""
        _, end, offset, commit_offset, opaque, *_ = found
        _, word = _WORDS.unpack_from(data, at)
        codec, header_end = word >> 24 & 0xFF, at + 8 + (word & 0xFFFFFF)
        frame = codec, data[at + 8 : header_end], data[header_end:end]
        try:
            envelope = self._decoder.decode(frame)
        except AerobeeError:
            return None
        header = envelope.ext
        if header is None or envelope.code not in CODES or envelope.flag & (FLAG_RESPONSE | FLAG_ONEWAY):
            return None
        if (header.queue_offset, header.commit_offset, envelope.opaque) != (offset, commit_offset, opaque):
            return None
        usual = UsualQuery(query_of(envelope.code, header))
        names = {"topic": header.topic, "consumerGroup": header.consumer_group}
        signed = asked_again(frame, envelope.code, envelope.version, names, PLACES)
        learned = _Pull(usual, codec, envelope.code, envelope.version, signed)
        self._native.learn_pull(learned)
        return learned


def _is_let_in(judging: Judging, asked: _Pull, found: FoundPull) -> bool:
    """Whether the judge says so, of a pull such as this."""
    if asked.signed is None:
        return False
    _, _, offset, commit_offset, _, signature, freshness = found
    kind, content = asked.signed
    values = (commit_offset, offset) if freshness is None else (freshness, commit_offset, offset)
    return judging.judge(kind, signature, content % values, b"")
