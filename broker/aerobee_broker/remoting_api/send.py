"""Sends: from a read full of requests to one call of a use case, and to one answer.

Touches  connections to answer on.

Every send of one read is published in one call; the answers leave in one write, when they are as durable as the
configuration promises. Refusals of single messages do not disturb the others. A send that has made its topic is
answered when the nameservers know of that: whoever hears of the answer may ask them for the topic.

Where the time goes, per message of 128 bytes (`bench/profile_send.py` measures it again): header 1.1 us, publishing
5.8 us, answer 1.1 us.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

import msgspec
import structlog

from aerobee_broker.messages.promises import Promises
from aerobee_broker.messages.publish import Published, Publisher
from aerobee_broker.messages.publish_batches import BatchPlan, BatchPublisher, StoredBatch, size_unread
from aerobee_broker.remoting_api.client_versions import reconsume_limit_of
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_proto import properties
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import LimitReached, RequestError, forget_frames
from aerobee_proto.frames import CODEC_JSON, FLAG_ONEWAY, FLAG_RESPONSE, Command, encode_command
from aerobee_proto.headers import SendHeader, SendMessageHeader, SendMessageV2Header
from aerobee_proto.requests import Incoming
from aerobee_remoting.exchange.handlers import MESSAGE_BODY_SIZE_MAX, Channel, HandlerTable, Response
from aerobee_remoting.exchange.needs import PUB, SUB, on_topic
from aerobee_service.turns.pace import Pace
from aerobee_service.turns.slices import Steps
from aerobee_store.faults.errors import NotMaster, StorePoisoned
from aerobee_store.terms.messages import Appended

__all__ = ["SendProcessor"]

log = structlog.get_logger()

FRAME_WORDS: Final = Struct(">ii")
# By the size of a header without a body, the words in front of it, each byte as one character.
WORDS: Final = [FRAME_WORDS.pack(size + 4, size).decode("latin-1") for size in range(1024)]
# How long the answer to a send that has made its topic waits for nameservers; most take some ms.
REGISTRATION_MAX_S: Final = 1.0

# Of reads that make many topics and queues: each takes folders and files, 1 to 3 ms, and so long as the file system
# writes its journal. So much of the time, and before that a hundred or more at once: three times as many were 0.3 s in
# which synchronous sends of others took 5 to 10 ms.
MAKING_SHARE: Final = 0.2
MAKING_CREDIT_S: Final = 0.1
MAKING_S: Final = 0.01  # that one takes at most; what is more, of a large batch, is not making

NO_FIELDS: Final = repeat(None)  # for each reply

Send = Incoming[SendHeader]

Reply = tuple[Send, int, str, Appended, dict[str, str] | None]
"""Request, queue asked for, unique key, place, and fields that most answers do not have; for a batch: its first place,
all keys and ids. One for each message: to name the fields takes 0.3 us more."""


class _Making(NamedTuple):
    """Of queues: how many each topic had, and when it began."""

    counts: dict[str, int]
    began: float


class _Replies:
    """Replies by what they wait for."""

    __slots__ = ("at_once", "of_new_topics", "stored")

    def __init__(self) -> None:
        self.stored: list[Reply] = []  # for their promise
        self.at_once: list[Reply] = []  # for nothing
        self.of_new_topics: _Replies | None = None  # the same, behind the registration of their topics

    def add(self, reply: Reply, *, is_without_wait: bool, made_topic: bool) -> None:
        replies = self
        if made_topic:
            replies = self.of_new_topics = self.of_new_topics or _Replies()
        (replies.at_once if is_without_wait else replies.stored).append(reply)


class _Answers(msgspec.Struct, eq=False):
    """The answers to one read of one connection, which leave together when their promise is kept."""

    connection: Channel
    replies: list[Reply]
    payload: bytes  # all of them, when all is well
    encode: Callable[[list[Reply], int], bytes]  # with another code

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def count(self) -> int:
        return len(self.replies)

    def keep(self) -> None:
        self.connection.hold(-self.count)
        self.connection.write_now(self.payload)

    def refuse(self, code: int) -> None:
        self.connection.hold(-self.count)
        self.connection.write(self.encode(self.replies, code))


class SendProcessor:
    """Handlers of SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        publisher: Publisher,
        batches: BatchPublisher,
        promises: Promises,
        live: LiveConfig,
        store_host: bytes,
        when_registered: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """`store_host` is this broker's address as messages carry it. `when_registered` calls what it is given as soon
        as the nameservers that can be reached know of every topic, and after so many seconds at the latest."""
        self._publisher = publisher
        self._batches = batches
        self._promises = promises
        self._live = live
        self._when_registered = when_registered
        self._id_prefix = store_host.hex().upper()
        self._pace = Pace(MAKING_SHARE, MAKING_CREDIT_S)  # of making topics and queues
        # What all answers have, made of these settings.
        self._encoded_for: BrokerConfig | None = None
        self._trace_on = self._tail = ""
        self._is_plain = False  # the region stands in JSON as it is

    def register(self, table: HandlerTable) -> None:
        # A consumer sends what failed to the retry topic of its group: it must be one that may read there.
        needs = (on_topic("topic", PUB, of_retry=(SUB,), official_group="producer_group"),)
        table.register_batch(
            RequestCode.SEND_MESSAGE,
            self.on_sends,
            header=SendMessageHeader,
            needs=(on_topic("topic", PUB, of_retry=(SUB,)),),
            body_size_max=MESSAGE_BODY_SIZE_MAX,
        )
        table.register_batch(
            RequestCode.SEND_MESSAGE_V2,
            self.on_sends,
            header=SendMessageV2Header,
            needs=needs,
            body_size_max=MESSAGE_BODY_SIZE_MAX,
        )
        table.register_batch(
            RequestCode.SEND_BATCH_MESSAGE,
            self.on_batches,
            header=SendMessageV2Header,
            needs=needs,
            body_size_max=MESSAGE_BODY_SIZE_MAX,
        )

    # --- single messages --------------------------------------------------------------------------------------

    def on_sends(self, connection: Channel, items: Sequence[Send]) -> None:
        """Every SEND_MESSAGE of one read."""
        if not self._publisher.is_long(items):
            self._send_at_once(connection, items)
            return
        runs = self._publisher.runs(items)
        first = next(runs)
        making = self._begin(first)
        self._send_at_once(connection, first)
        size = sum([_frame_size(item) for item in items[len(first) :]])
        connection.run_alone(lambda: self._send_in_turns(connection, making, runs), size)

    async def _send_in_turns(
        self, connection: Channel, making: "_Making", runs: Iterator[Sequence[Send]]
    ) -> None:
        """What comes behind sends for which topics or queues are made, and more of these: others are served between."""
        await self._end(making)
        for run in runs:
            await connection.another_turn()
            making = self._begin(run)
            self._send_at_once(connection, run)
            await self._end(making)

    def _begin(self, items: Sequence[Send]) -> "_Making":
        """Before these are stored."""
        return _Making(self._publisher.queue_counts(items), time.perf_counter())

    async def _end(self, making: "_Making") -> None:
        """Behind sends: where topics or queues were made for these, what comes now waits, so that making has its share
        of the time and no more."""
        if self._publisher.have_more(making.counts):
            now = time.perf_counter()
            # Files are made when readers may see the messages: at once, or later, these or those of who came before.
            took_s = max(now - making.began, self._publisher.take_began_s())
            await asyncio.sleep(self._pace.worked(min(took_s, MAKING_S), now))

    def _send_at_once(self, connection: Channel, items: Sequence[Send]) -> None:
        published = self._publisher.publish(items, connection, reconsume_limit_of)
        if published.refused or published.without_wait or published.recall_handles or published.new_topics:
            self._answer_each(connection, items, published)
            return
        columns = zip(items, published.queue_ids, published.unique_keys, published.places, NO_FIELDS)  # noqa: B905  as in publish
        self._answer(connection, [reply for reply in columns if not reply[0].envelope.flag & FLAG_ONEWAY], [])

    def _answer_each(self, connection: Channel, items: Sequence[Send], published: Published) -> None:
        """The same where messages differ: some are refused, or do not wait, or have something more to be told."""
        replies = _Replies()
        for number, item in enumerate(items):
            refused = published.refused.get(number)
            if refused is not None:
                self._refuse(connection, item, refused)
                continue
            if item.envelope.flag & FLAG_ONEWAY:
                continue
            handle = published.recall_handles.get(number)
            reply = (
                item,
                published.queue_ids[number],
                published.unique_keys[number],
                published.places[number],
                None if handle is None else {"recallHandle": handle},
            )
            replies.add(
                reply,
                is_without_wait=number in published.without_wait,
                made_topic=number in published.new_topics,
            )
        if len(published.refused) < len(items):
            self._answer_all(connection, replies)

    def _answer_all(self, connection: Channel, replies: "_Replies") -> None:
        """Answer each as soon as it may be."""
        self._answer(connection, replies.stored, replies.at_once)
        of_new = replies.of_new_topics
        if of_new is None:
            return
        count = len(of_new.stored) + len(of_new.at_once)

        def registered() -> None:
            connection.hold(-count)
            self._answer(connection, of_new.stored, of_new.at_once)

        connection.hold(count)
        self._when_registered(REGISTRATION_MAX_S, registered)

    def _answer(self, connection: Channel, replies: list[Reply], at_once: list[Reply]) -> None:
        """Answer those that do not wait for the disk now, the others when their promise is kept."""
        if at_once:
            code = ResponseCode.SERVICE_NOT_AVAILABLE if self._promises.is_over else ResponseCode.SUCCESS
            connection.write(self._encode(at_once, code))
        if not replies:
            self._promises.hurry()
            return
        payload = self._encode(replies, ResponseCode.SUCCESS)
        try:
            if self._promises.are_kept():
                connection.write(payload)
                return
        except (StorePoisoned, NotMaster):
            connection.write(self._encode(replies, ResponseCode.SERVICE_NOT_AVAILABLE))
            return
        connection.hold(len(replies))
        self._promises.promise(_Answers(connection, replies, payload, self._encode))

    # --- batches ----------------------------------------------------------------------------------------------

    def on_batches(self, connection: Channel, items: Sequence[Send]) -> None:
        """SEND_BATCH_MESSAGE: each request is one group that is appended whole or not at all."""
        planned: list[tuple[Send, BatchPlan]] = []
        unread: list[tuple[Send, Steps[BatchPlan | RequestError]]] = []
        for item in items:
            planning = self._batches.planning(item.header, item.body)
            if unread:
                unread.append((item, planning))
                continue
            try:
                next(planning)
            except StopIteration as end:
                self._planned(connection, item, end.value, planned)
            else:
                unread.append((item, planning))  # it is long, and those behind it wait
        is_long = self._batches.is_long([plan for _, plan in planned if plan.record_key is None])
        if unread or is_long or self._publisher.is_long([item for item, _ in planned]):
            size = sum([_frame_size(item) + plan.working_size for item, plan in planned])
            size += sum([_frame_size(item) + size_unread(item.body) for item, _ in unread])
            connection.run_alone(lambda: self._store_in_turns(connection, planned, unread), size)
        elif planned:
            self._store_at_once(connection, planned)

    def _planned(
        self,
        connection: Channel,
        item: Send,
        plan: BatchPlan | RequestError,
        planned: list[tuple[Send, BatchPlan]],
    ) -> None:
        if isinstance(plan, RequestError):
            self._refuse(connection, item, plan)
        else:
            planned.append((item, plan))

    def _store_at_once(self, connection: Channel, planned: Sequence[tuple[Send, BatchPlan]]) -> None:
        outcomes = self._batches.publish([plan for _, plan in planned], connection)
        self._answer_batches(connection, [item for item, _ in planned], outcomes)

    async def _store_in_turns(
        self,
        connection: Channel,
        planned: list[tuple[Send, BatchPlan]],
        unread: Sequence[tuple[Send, Steps[BatchPlan | RequestError]]],
    ) -> None:
        """As at once, for very many messages: others are served between the steps."""
        for item, plan in planned:
            await self._store_one_in_turns(connection, item, plan)
        for item, planning in unread:
            await connection.another_turn()
            read: list[tuple[Send, BatchPlan]] = []
            self._planned(connection, item, await connection.in_turns(planning), read)
            for _, plan in read:
                await self._store_one_in_turns(connection, item, plan)

    async def _store_one_in_turns(self, connection: Channel, item: Send, plan: BatchPlan) -> None:
        await connection.another_turn()
        making = self._begin([item])
        if plan.record_key is not None:
            self._store_at_once(connection, [(item, plan)])
        else:
            outcome = await connection.in_turns(self._batches.steps(plan, connection))
            self._answer_batches(connection, [item], [outcome])
        await self._end(making)

    def _answer_batches(
        self, connection: Channel, items: Sequence[Send], outcomes: Sequence[StoredBatch | RequestError]
    ) -> None:
        replies = _Replies()
        refused = 0
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, RequestError):
                refused += 1
                self._refuse(connection, item, outcome)
            elif not item.oneway:
                replies.add(
                    self._reply(item, outcome),
                    is_without_wait=outcome.is_without_wait,
                    made_topic=outcome.made_topic,
                )
        if refused < len(items):
            self._answer_all(connection, replies)

    def _reply(self, item: Send, stored: StoredBatch) -> Reply:
        if stored.record_key is not None:
            extra = {"batchUniqId": stored.record_key}
        else:
            extra = {
                "msgId": ",".join(
                    [f"{self._id_prefix}{place.physical_offset:016X}" for place in stored.places]
                )
            }
        return item, stored.queue_id, stored.keys, stored.places[0], extra

    # --- answers ----------------------------------------------------------------------------------------------

    def _refuse(self, connection: Channel, item: Send, refused: RequestError) -> None:
        forget_frames(refused)
        log.debug("broker.send_refused", peer=connection.peer, code=refused.code, reason=refused.remark)
        if isinstance(refused, LimitReached):
            connection.log_limit(refused.limit, refused.remark)
        if not item.oneway:
            config = self._live.value
            ext = {
                properties.MSG_REGION: config.region_id,
                properties.TRACE_ON: "true" if config.trace_on else "false",
            }
            connection.respond(
                item.codec, item.envelope.opaque, Response(refused.code, refused.remark, ext=ext)
            )

    def _encode(self, replies: list[Reply], code: int) -> bytes:
        """All answers of one read as one run of bytes.

        They are put together as text in which each character is a byte: one conversion for all of them, 0.1 us less for
        each.
        """
        parts: list[str] = []
        prefix, config = self._id_prefix, self._live.value
        if config is not self._encoded_for:
            self._encoded_for = config
            self._trace_on = "true" if config.trace_on else "false"
            region = config.region_id
            self._is_plain = region.isascii() and region.isprintable() and not {'"', "\\"} & {*region}
            self._tail = f'","TRACE_ON":"{self._trace_on}","MSG_REGION":"{config.region_id}","queueOffset":"'
        trace_on, tail = self._trace_on, self._tail
        head = f'{{"code":{int(code)},"extFields":{{"queueId":"'
        is_plain = self._is_plain
        for item, queue_id, unique_key, done, extra in replies:
            opaque, codec = item.envelope.opaque, item.frame[0]
            if (
                codec == CODEC_JSON
                and extra is None
                and is_plain
                and unique_key.isalnum()
                and unique_key.isascii()
            ):
                header = (
                    f'{head}{queue_id}","transactionId":"{unique_key}","msgId":"{prefix}'
                    f'{done.physical_offset:016X}{tail}{done.queue_offset}"}},"flag":1,"language":"PYTHON",'
                    f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":479}}'
                )
                size = len(header)
                if size < len(WORDS):
                    parts.append(WORDS[size])
                else:
                    parts.append(FRAME_WORDS.pack(size + 4, size).decode("latin-1"))
                parts.append(header)
                continue
            ext = {
                "queueId": str(queue_id),
                "transactionId": unique_key,
                "msgId": f"{prefix}{done.physical_offset:016X}",
                properties.TRACE_ON: trace_on,
                properties.MSG_REGION: config.region_id,
                "queueOffset": str(done.queue_offset),
                **(extra or {}),
            }
            command = Command(int(code), opaque=opaque, flag=FLAG_RESPONSE, ext_fields=ext, codec=codec)
            parts.append(encode_command(command).decode("latin-1"))
        return "".join(parts).encode("latin-1")


def _frame_size(item: Send) -> int:
    """Bytes of the frame, and of the fields that were read from it."""
    _, header, body = item.frame
    return 2 * len(header) + len(body)
