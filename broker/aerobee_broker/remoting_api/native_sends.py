"""Usual sends by the native engine: from the bytes of a read to one write of the log, and to one run of answers.

Touches  connections to answer on.

The engine reads the front of what a socket gave and says what it comes to. Written, counted, shown and promised it is
here, by the parts that do it for all other sends, so faults, durability and readers know nothing of the engine.
Whatever it does not take goes on to `SendProcessor`.

`bench/profile_send.py --engine native` measures it.
"""

from typing import Final, cast

import msgspec

from aerobee_broker.members.clients import born_host
from aerobee_broker.messages.intake import Intake
from aerobee_broker.messages.promises import Promises
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.native.engine import NativeEngine, SendEngine
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.stats import BrokerStats, TopicCounters
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import CODEC_ROCKETMQ, FrameDecoder, decode_command, encode_command
from aerobee_proto.requests import code_keys
from aerobee_remoting.exchange.gate import Judging
from aerobee_remoting.exchange.handlers import Channel, FrontTaken
from aerobee_store.faults.errors import NotMaster, StoreError, StorePoisoned
from aerobee_store.index.index import KeyedBlock
from aerobee_store.writing.appender import PackedRecords, Touched
from aerobee_store.writing.packing import Packing

__all__ = ["NativeSends", "with_code"]

CODES: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
# A read that can begin with a send has one of these behind the words of its first frame, by codec.
FIRST_OF_JSON: Final = frozenset([b'{"code":%d,' % code for code in CODES])
FIRST_OF_OTHERS: Final = frozenset(
    [key for code in CODES for codec, key in code_keys(code) if codec == CODEC_ROCKETMQ]
    + [b"\x97\xcd", b"\x97\x0a"]  # msgpack: an array of seven, its first number of 16 bits, or 10
)


class _Answers(msgspec.Struct, eq=False):
    """The answers to what was taken of one read, which leave together when their promise is kept."""

    connection: Channel
    payload: bytes  # all of them, when all is well
    count: int

    @property
    def peer(self) -> str:
        return self.connection.peer

    def keep(self) -> None:
        self.connection.hold(-self.count)
        self.connection.write_now(self.payload)

    def refuse(self, code: int) -> None:
        self.connection.hold(-self.count)
        self.connection.write(with_code(self.payload, code))


def with_code(payload: bytes, code: int) -> bytes:
    """The same answers with another code."""
    commands = [decode_command(frame) for frame in FrameDecoder().feed(payload)]
    for command in commands:
        command.code = int(code)
    return b"".join([encode_command(command) for command in commands])


class NativeSends:
    """A front of a broker's handler table."""

    def __init__(
        self,
        engine: SendEngine,
        native: NativeEngine,
        intake: Intake,
        packing: Packing,
        visibility: Visibility,
        promises: Promises,
        stats: BrokerStats,
    ) -> None:
        self._engine = engine
        self._native = native
        self._intake = intake
        self._packing = packing
        self._visibility = visibility
        self._promises = promises
        self._stats = stats
        # The settings that the engine has; None: it has none that it can work with.
        self._used: BrokerConfig | None = None
        self._is_able = False

    def begin(self) -> None:
        """Be told of topics and queues, until the engine has a fault."""
        self._intake.keep_book(self._native)
        self._packing.keep_book(self._native)

        def ended() -> None:
            self._intake.keep_book(None)
            self._packing.keep_book(None)

        self._engine.when_ended(ended)

    def take(
        self, channel: Channel, data: bytes, at: int, count_max: int, judging: Judging | None
    ) -> FrontTaken | None:
        """As `Front`."""
        first = data[at + 8 : at + 21]
        if first[:2] not in FIRST_OF_OTHERS and first[: first.find(b",", 8) + 1] not in FIRST_OF_JSON:
            return None
        intake = self._intake
        intake.refresh()
        if intake.config is not self._used:
            self._use(intake)
        if not self._is_able or self._promises.is_over:
            return None
        place = self._packing.place()
        if place is None:
            return None
        begin, limit, now_ms = place
        judge = None if judging is None else judging.judge
        part, host = (at, count_max), born_host(channel.peer)
        try:
            taken = self._native.take(data, part, (begin, limit), now_ms, host, judge)
        except Exception as failed:
            self._engine.give_up(failed)
            return None
        if taken is None:
            return None
        end, requests, count, records, touched, counted, hashes, places, waiting, at_once, version, code = (
            taken
        )
        keys = KeyedBlock(count, hashes, places, begin, now_ms) if hashes else None
        try:
            packed = PackedRecords(records, cast("list[Touched]", touched), keys)
            self._packing.append(packed, now_ms)
        except StoreError:
            return None  # nothing is stored: each sender is told why the usual way
        # Who has one send under way waits for its answer, and for nothing else of this.
        self._answer(channel, waiting, at_once, is_last=end == len(data))
        for counters, messages, times, stored_size in counted:
            of_topic = cast("TopicCounters", counters)
            of_topic.count += messages
            of_topic.size += stored_size
            of_topic.in_batches += messages - times
        self._stats.put_all(count, len(records), requests)
        self._visibility.taken()
        return FrontTaken(end - at, requests, code, version)

    def _use(self, intake: Intake) -> None:
        """Take over settings, if they can be sent."""
        config = self._used = intake.config
        suffix = intake.stored_properties.suffix
        trace_on = "true" if config.trace_on else "false"
        try:
            region = config.region_id
            in_json = msgspec.json.encode(region)[1:-1]
            self._native.use_settings(config.max_message_size, suffix, trace_on, region, in_json)
        except UnicodeEncodeError:
            self._is_able = False
        else:
            self._is_able = True
        intake.keep_book(self._native)

    def _answer(
        self, channel: Channel, waiting: tuple[bytes, int], at_once: tuple[bytes, int], *, is_last: bool
    ) -> None:
        """Answer those that do not wait for the disk now, the others when their promise is kept."""
        promises = self._promises
        if at_once[1]:
            channel.write(at_once[0])
        payload, count = waiting
        if not count:
            promises.hurry()
            return
        try:
            if promises.are_kept():
                if is_last:
                    channel.write_last(payload)
                else:
                    channel.write(payload)
                return
        except (StorePoisoned, NotMaster):
            channel.write(with_code(payload, ResponseCode.SERVICE_NOT_AVAILABLE))
            return
        channel.hold(count)
        promises.promise(_Answers(channel, payload, count))
