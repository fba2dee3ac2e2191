"""Sends: from a read full of requests to one append and one answer.

Touches  the store through `Services`, connections to answer on.

Every send of one read is checked, turned into a stored message and appended in one call; the answers leave in
one write, when they are as durable as the configuration promises. Refusals of single messages do not disturb
the others.

Where the time goes, per message of 128 bytes (`bench/profile_send.py` measures it again): header 1.1 us,
checks and properties 2.5 us, append and dispatch 3.3 us, answer 1.1 us.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import structlog

from aerobee_broker.clients import born_host
from aerobee_broker.config import BrokerConfig
from aerobee_broker.durability import Durability
from aerobee_broker.parking import SPECIAL_PROPERTIES, needs_place
from aerobee_broker.recalls import recall_handle
from aerobee_broker.refusals import check_sendable, check_takes_messages, no_such_queue
from aerobee_broker.retries import Retries
from aerobee_broker.services import Services
from aerobee_broker.stats import TopicCounters
from aerobee_broker.stored_properties import StoredProperties, stored_form
from aerobee_proto import batch, names, properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import Perm, RequestCode, ResponseCode, SysFlag
from aerobee_proto.errors import FormatError, LimitReached, RequestError
from aerobee_proto.frames import CODEC_JSON, FLAG_ONEWAY, FLAG_RESPONSE, Command, encode_command
from aerobee_proto.headers import SendMessageHeader, SendMessageV2Header
from aerobee_proto.javahash import tag_hash
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_proto.records import RECORD_OVERHEAD_V4, encode_host
from aerobee_proto.requests import Envelope
from aerobee_remoting.connection import Connection
from aerobee_remoting.handlers import (
    MESSAGE_BODY_SIZE_MAX,
    BatchItem,
    HandlerTable,
    Permission,
    Response,
)
from aerobee_store.errors import StoreError
from aerobee_store.messages import RECORD_EXTRA_MAX, Appended, NewMessage, PutStatus

__all__ = ["SendProcessor"]

log = structlog.get_logger()

DEAD_LETTER: Final = "\x02DELAY\x01-1\x02"  # behind other properties, where it wins
FRAME_WORDS: Final = Struct(">ii")
# Such a message is looked at more closely.
SPECIAL_BITS: Final = SysFlag.TRANSACTION_MASK | SysFlag.INNER_BATCH
ROUTES_MAX: Final = 65_536
BATCH_COUNT_MAX: Final = 16_384  # messages of one batch; with what the broker adds they are 4 MiB of records
APPEND_COUNT_MAX: Final = 4_096  # messages of a batch that are appended in one turn
TURN_COUNT_MAX: Final = 1_000  # messages of batches that are made ready in one turn of the event loop
TURN_PROPERTIES_MAX: Final = 128 * 1024  # bytes of their properties, which may be a name and a value in four

Reply = tuple[Envelope[Any], int, int, str, Appended, dict[str, str] | None]
"""Request, codec to answer in, queue asked for, unique key, place, and fields that most answers do not have; for a
batch: its first place, all keys and ids."""


class _Route:
    """What the hot path needs of a topic, kept while no topic changes."""

    __slots__ = ("config", "counters", "queue_id_limit", "sys_flag", "takes_batches", "topic")

    def __init__(self, config: TopicConfig, counters: TopicCounters, *, takes_batches: bool) -> None:
        self.config = config
        self.counters = counters
        # Messages carry this one text, not each its own: tables find it without a comparison.
        self.topic = config.topic_name
        # None is within the limit of a retry topic: every send to it is looked at more closely.
        retry = names.is_retry_topic(config.topic_name)
        self.queue_id_limit = 0 if retry else max(config.read_queue_nums, config.write_queue_nums)
        self.takes_batches = takes_batches  # as one record
        self.sys_flag = SysFlag.MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0


class _BatchPlan(NamedTuple):
    """One batch request as it was read, and where it goes."""

    item: BatchItem
    route: _Route
    queue_id: int
    entries: list[batch.BatchEntry]

    @property
    def properties_size(self) -> int:
        """Bytes of properties that its messages have, with those of the request that all of them get."""
        header: Any = self.item[0].ext
        common = len(header.properties)
        return sum([len(entry.properties) for entry in self.entries]) + common * len(self.entries)

    def slices(self) -> Iterator[list[batch.BatchEntry]]:
        """The messages, as many at once as one turn may make ready; always one."""
        header: Any = self.item[0].ext
        common = len(header.properties)
        some: list[batch.BatchEntry] = []
        size = 0
        for entry in self.entries:
            size += len(entry.properties) + common
            if some and (size > TURN_PROPERTIES_MAX or len(some) >= TURN_COUNT_MAX):
                yield some
                some, size = [], len(entry.properties) + common
            some.append(entry)
        yield some


class SendProcessor:
    """Handlers of SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        services: Services,
        durability: Durability,
        *,
        store_host: tuple[str, int],
        unique_keys: UniqueKeyFactory,
        retries: Retries,
    ) -> None:
        self._services = services
        self._retries = retries
        self._durability = durability
        self._routes: dict[str, _Route] = {}
        self._topic_changes = -1  # of the topic table, when the routes were made
        self._new_unique_key = unique_keys.next_key
        self._store_host = encode_host(*store_host)
        self._id_prefix = self._store_host.hex().upper()
        self._use(services.config)

    def _bring_up_to_date(self) -> None:
        """Check every topic anew when a topic changed, take over settings that were replaced."""
        if self._services.config is not self._config:
            self._use(self._services.config)
        if self._services.topics.changes != self._topic_changes:
            self._topic_changes = self._services.topics.changes
            self._routes.clear()

    def _use(self, config: BrokerConfig) -> None:
        """Take over settings; called again when they were replaced in the running broker."""
        self._config = config
        self._routes.clear()  # every topic is checked anew
        self._region = config.region_id
        self._trace_on = "true" if config.trace_on else "false"
        self._stored_properties = StoredProperties(
            region=config.region_id,
            trace_on=config.trace_on,
            cluster=config.broker_cluster_name,
            new_unique_key=self._new_unique_key,
        )

    def register(self, table: HandlerTable) -> None:
        for code, header in (
            (RequestCode.SEND_MESSAGE, SendMessageHeader),
            (RequestCode.SEND_MESSAGE_V2, SendMessageV2Header),
        ):
            table.register_batch(
                code,
                self.on_sends,
                permission=Permission.PUBLISH,
                header=header,
                body_size_max=MESSAGE_BODY_SIZE_MAX,
            )
        table.register_batch(
            RequestCode.SEND_BATCH_MESSAGE,
            self.on_batches,
            permission=Permission.PUBLISH,
            header=SendMessageV2Header,
            body_size_max=MESSAGE_BODY_SIZE_MAX,
        )

    # --- single messages --------------------------------------------------------------------------------------

    def on_sends(self, connection: Connection, items: Sequence[BatchItem]) -> None:
        """Every SEND_MESSAGE of one read."""
        self._bring_up_to_date()
        messages: list[NewMessage] = []
        counters: list[TopicCounters] = []
        queue_ids: list[int] = []  # as answered: a parked message lies in another
        accepted: list[BatchItem] = []
        hasty: set[int] = set()  # ids of requests that do not wait for the disk
        recalls: dict[int, str] = {}  # by the id of a timer message's request
        sender = born_host(connection)
        routes = self._routes
        prepare = self._stored_properties.prepare
        body_size_max = self._services.config.max_message_size
        for item in items:
            envelope, body, _ = item
            header: Any = envelope.ext
            try:
                route = routes.get(header.topic)
                if route is None:
                    route = self._route(header)
                queue_id = header.queue_id
                if not 0 <= queue_id < route.queue_id_limit:
                    route, queue_id = self._unusual_queue(envelope, route)
                topic = route.topic
                counted = route.counters
                if not 0 < len(body) <= body_size_max:
                    raise _bad_body(topic, len(body), body_size_max)
                raw, mapping = prepare(header.properties)
                sys_flag = header.sys_flag | route.sys_flag
                message = NewMessage(
                    topic,
                    queue_id,
                    header.flag,
                    sys_flag,
                    header.born_timestamp,
                    sender,
                    self._store_host,
                    header.reconsume_times,
                    0,
                    body,
                    raw,
                    tag_hash(mapping.get("TAGS")),
                    mapping.get("KEYS"),
                    mapping["UNIQ_KEY"],
                )
                if sys_flag & SPECIAL_BITS or not SPECIAL_PROPERTIES.isdisjoint(mapping):
                    message = self._services.parking.place(message, mapping | self._stored_properties.added)
                    counted = self._services.stats.of_topic(message.topic)
                    if message.topic == names.TIMER_TOPIC and not topic.startswith(names.RETRY_PREFIX):
                        recalls[id(envelope)] = recall_handle(self._config.broker_name, topic, message)
                if mapping.get("WAIT") == "false":
                    hasty.add(id(envelope))
            except RequestError as refused:
                self._refuse(connection, item, refused)
                continue
            messages.append(message)
            counters.append(counted)
            queue_ids.append(queue_id)
            accepted.append(item)
        if messages:
            self._append(connection, accepted, messages, counters, queue_ids, hasty, recalls)

    def _append(
        self,
        connection: Connection,
        items: list[BatchItem],
        messages: list[NewMessage],
        counters: list[TopicCounters],
        queue_ids: list[int],
        hasty: set[int],
        recalls: dict[int, str],
    ) -> None:
        try:
            appended = self._services.store.append(messages)
        except StoreError as refused:
            error = RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(refused))
            for item in items:
                self._refuse(connection, item, error)
            return
        replies: list[Reply] = []
        stored = stored_size = 0
        counted, count, size = counters[0], 0, 0
        for item, message, of_topic, queue_id, done in zip(
            items, messages, counters, queue_ids, appended, strict=True
        ):
            if done.status is not PutStatus.PUT_OK:
                self._refuse(connection, item, _put_refusal(message, done))
                continue
            if of_topic is not counted:
                counted.count += count
                counted.size += size
                stored += count
                stored_size += size
                counted, count, size = of_topic, 0, 0
            count += 1
            size += done.size
            envelope, _, codec = item
            if not envelope.flag & FLAG_ONEWAY:
                replies.append((envelope, codec, queue_id, message.unique_key or "", done, None))
        counted.count += count
        counted.size += size
        self._services.stats.put_all(stored + count, stored_size + size, stored + count)
        if recalls:
            replies = [
                (*reply[:5], {"recallHandle": recalls[id(reply[0])]}) if id(reply[0]) in recalls else reply
                for reply in replies
            ]
        self._answer(connection, replies, hasty)

    def _answer(self, connection: Connection, replies: list[Reply], hasty: set[int]) -> None:
        """Answer those that do not wait for the disk now, the others when their promise is kept."""
        self._services.appended()
        if hasty:
            at_once = [reply for reply in replies if id(reply[0]) in hasty]
            if at_once:
                connection.write(self._encode(at_once, ResponseCode.SUCCESS))
            replies = [reply for reply in replies if id(reply[0]) not in hasty]
        if not replies:
            self._durability.request_flush()
            return
        payload = self._encode(replies, ResponseCode.SUCCESS)
        self._durability.answer(connection, payload, lambda code: self._encode(replies, code), len(replies))

    # --- batches ----------------------------------------------------------------------------------------------

    def on_batches(self, connection: Connection, items: Sequence[BatchItem]) -> None:
        """SEND_BATCH_MESSAGE: each request is one group that is appended whole or not at all."""
        self._bring_up_to_date()
        plans: list[_BatchPlan] = []
        for item in items:
            try:
                plans.append(self._plan(item))
            except RequestError as refused:
                self._refuse(connection, item, refused)
        if any(plan.route.takes_batches for plan in plans):
            plans = self._store_as_records(connection, plans)
        if (
            sum([len(plan.entries) for plan in plans]) > TURN_COUNT_MAX
            or sum([plan.properties_size for plan in plans]) > TURN_PROPERTIES_MAX
        ):
            connection.run_alone(lambda: self._store_in_turns(connection, plans))
        elif plans:
            self._store_at_once(connection, plans)

    def _store_as_records(self, connection: Connection, plans: list["_BatchPlan"]) -> list["_BatchPlan"]:
        """Store the batches that become one record each, which have a key of their own; the others."""
        others: list[_BatchPlan] = []
        replies: list[Reply] = []
        hasty: set[int] = set()
        for plan in plans:
            header: Any = plan.item[0].ext
            mapping = properties.decode_properties(header.properties)
            unique_key = mapping.get(properties.UNIQ_KEY)
            if not plan.route.takes_batches or not unique_key:
                others.append(plan)
                continue
            try:
                message = self._record(plan, mapping, born_host(connection))
                reply = self._append_group(connection, plan.item, [message], len(plan.entries))
            except RequestError as refused:
                self._refuse(connection, plan.item, refused)
                continue
            if reply is not None:
                replies.append((*reply[:5], {"batchUniqId": unique_key}))
            if _is_hasty(header):
                hasty.add(id(plan.item[0]))
        if len(others) < len(plans):
            self._answer(connection, replies, hasty)
        return others

    def _record(self, plan: "_BatchPlan", mapping: dict[str, str], sender: bytes) -> NewMessage:
        """A whole batch as one message: its body is that of the request. RequestError when it is refused."""
        header: Any = plan.item[0].ext
        topic = plan.route.topic
        mapping = {**mapping, properties.INNER_NUM: str(len(plan.entries))}
        message = NewMessage(
            topic,
            plan.queue_id,
            header.flag,
            header.sys_flag | plan.route.sys_flag | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP,
            header.born_timestamp,
            sender,
            self._store_host,
            header.reconsume_times,
            0,
            bytes(plan.item[1]),
            *stored_form(mapping | self._stored_properties.added),
        )
        return self._services.parking.place(message, mapping)

    def _store_at_once(self, connection: Connection, plans: list["_BatchPlan"]) -> None:
        groups: list[list[NewMessage]] = []
        accepted: list[BatchItem] = []
        sender = born_host(connection)
        for plan in plans:
            try:
                groups.append(self._messages(plan, plan.entries, sender))
                accepted.append(plan.item)
            except RequestError as refused:
                self._refuse(connection, plan.item, refused)
        replies: list[Reply] = []
        for item, group in zip(accepted, groups, strict=True):
            reply = self._append_group(connection, item, group)
            if reply is not None:
                replies.append(reply)
        if accepted:
            self._answer(connection, replies, {id(item[0]) for item in accepted if _is_hasty(item[0].ext)})

    async def _store_in_turns(self, connection: Connection, plans: list["_BatchPlan"]) -> None:
        """As at once, for very many messages: others are served between the steps."""
        for plan in plans:
            await asyncio.sleep(0)
            try:
                await self._store_one_in_turns(connection, plan)
            except RequestError as refused:
                self._refuse(connection, plan.item, refused)

    async def _store_one_in_turns(self, connection: Connection, plan: "_BatchPlan") -> None:
        item, sender = plan.item, born_host(connection)
        group: list[NewMessage] = []
        for some in plan.slices():
            group += self._messages(plan, some, sender)
            await asyncio.sleep(0)
        self._bring_up_to_date()
        if self._routes.get(plan.route.topic) is not plan.route:
            self._route(item[0].ext)  # settings or topics have changed meanwhile: it may be refused now
        refusal = self._services.store.check_group(group)
        if refusal is not PutStatus.PUT_OK:
            raise self._group_refusal(group, Appended(refusal, -1, -1, 0, 0))
        await asyncio.sleep(0)
        appended: list[Appended] = []
        for start in range(0, len(group), APPEND_COUNT_MAX):
            # All of it has been checked: only a failing disk can still stop it half way.
            try:
                appended += self._services.store.append_group(group[start : start + APPEND_COUNT_MAX])
            except StoreError as refused:
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(refused)) from refused
            await asyncio.sleep(0)
        reply = self._group_reply(connection, item, group, appended)
        replies = [] if reply is None else [reply]
        self._answer(connection, replies, {id(item[0])} if _is_hasty(item[0].ext) else set())

    def _plan(self, item: BatchItem) -> "_BatchPlan":
        """Read one batch request and check what can be told without looking at each message. RequestError."""
        envelope, body, _ = item
        header: Any = envelope.ext
        route = self._routes.get(header.topic)
        if route is None:
            route = self._route(header)
        topic = route.topic
        if topic.startswith("%RETRY%"):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"batches cannot be sent to the retry topic {topic}"
            )
        queue_id = header.queue_id
        if not 0 <= queue_id < route.queue_id_limit:
            queue_id = self._queue_id(route.config, queue_id)
        limit = self._services.config.max_message_size
        if not 0 < len(body) <= limit:
            raise _bad_body(topic, len(body), limit)
        try:
            entries = batch.decode_batch(body, BATCH_COUNT_MAX)
        except FormatError as broken:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"batch to topic {topic}: {broken}") from broken
        if not entries:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"batch to topic {topic} holds no message")
        if route.takes_batches and properties.UNIQ_KEY in header.properties:
            return _BatchPlan(item, route, queue_id, entries)  # one record
        # Each record has a head, the topic and the properties that the broker adds.
        of_each = RECORD_OVERHEAD_V4 + len(topic) + len(self._stored_properties.suffix) - batch.ENTRY_OVERHEAD
        stored_size = len(body) + len(entries) * of_each
        if stored_size > limit + RECORD_EXTRA_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the {len(entries)} messages of a batch to topic {topic} take {stored_size} bytes or more as they are "
                f"stored, at most {limit + RECORD_EXTRA_MAX} are allowed (maxMessageSize and 64 KiB): send it in parts",
            )
        return _BatchPlan(item, route, queue_id, entries)

    def _messages(
        self, plan: "_BatchPlan", entries: Sequence[batch.BatchEntry], sender: bytes
    ) -> list[NewMessage]:
        """Some of the messages of one batch request. RequestError when any of them is refused: it is all or nothing."""
        header: Any = plan.item[0].ext
        topic, queue_id = plan.route.topic, plan.queue_id
        sys_flag = header.sys_flag | plan.route.sys_flag
        common = header.properties
        messages = []
        for entry in entries:
            raw, mapping = self._stored_properties.prepare(
                _joined(entry.properties, common) if common else entry.properties
            )
            if needs_place(sys_flag, mapping):
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"batch to topic {topic} holds a delayed, transaction or batch message; send these one by one",
                )
            messages.append(
                NewMessage(
                    topic,
                    queue_id,
                    entry.flag,
                    sys_flag,
                    header.born_timestamp,
                    sender,
                    self._store_host,
                    header.reconsume_times,
                    0,
                    entry.body,
                    raw,
                    tag_hash(mapping.get("TAGS")),
                    mapping.get("KEYS"),
                    mapping["UNIQ_KEY"],
                )
            )
        return messages

    def _append_group(
        self, connection: Connection, item: BatchItem, group: list[NewMessage], count: int | None = None
    ) -> Reply | None:
        """`count` messages, if one is not one."""
        try:
            appended = self._services.store.append_group(group)
        except StoreError as refused:
            self._refuse(connection, item, RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(refused)))
            return None
        return self._group_reply(connection, item, group, appended, count)

    def _group_reply(
        self,
        connection: Connection,
        item: BatchItem,
        group: list[NewMessage],
        appended: list[Appended],
        count: int | None = None,
    ) -> Reply | None:
        for done in appended:
            if done.status is not PutStatus.PUT_OK:
                self._refuse(connection, item, self._group_refusal(group, done))
                return None
        size = sum([done.size for done in appended])
        self._services.stats.put(group[0].topic, len(group) if count is None else count, size)
        envelope = item[0]
        if envelope.flag & FLAG_ONEWAY:
            return None
        header: Any = envelope.ext
        ids = ",".join([f"{self._id_prefix}{done.physical_offset:016X}" for done in appended])
        unique_key = properties.decode_properties(header.properties).get(properties.UNIQ_KEY)
        keys = unique_key or ",".join([message.unique_key or "" for message in group])
        return envelope, item[2], group[0].queue_id, keys, appended[0], {"msgId": ids}

    def _group_refusal(self, group: list[NewMessage], done: Appended) -> RequestError:
        """Why none of a batch was stored. Each message alone is small enough: that has been looked at."""
        if done.status is not PutStatus.MESSAGE_ILLEGAL or len(group) == 1:
            return _put_refusal(max(group, key=lambda message: len(message.properties)), done)
        config = self._config
        limit = min(config.max_message_size + RECORD_EXTRA_MAX, config.mapped_file_size_commit_log)
        return RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the {len(group)} messages of a batch to topic {group[0].topic} are too large together as they are "
            f"stored: less than {limit} bytes are allowed (maxMessageSize and 64 KiB, or one file of the log): "
            "send it in parts",
        )

    # --- checks -----------------------------------------------------------------------------------------------

    def _route(self, header: Any) -> _Route:
        """The topic's route, made anew; refuses what may not be sent to, creates what may be created."""
        topic = header.topic
        check_takes_messages(self._services.config)
        check_sendable(topic)
        if names.is_retry_topic(topic):
            self._retries.group_of(topic)
        found = self._services.topics.for_send(
            topic,
            template=header.default_topic,
            queue_count=header.default_topic_queue_nums,
            unit=header.unit_mode,
        )
        if not found.perm & Perm.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} may not be written to: its permission is {found.perm}",
            )
        return self._remember(found)

    def _remember(self, config: TopicConfig) -> _Route:
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        route = self._routes[config.topic_name] = _Route(
            config,
            self._services.stats.of_topic(config.topic_name),
            takes_batches=self._services.store.is_batch_topic(config.topic_name),
        )
        return route

    def _unusual_queue(self, envelope: Envelope[Any], route: _Route) -> tuple[_Route, int]:
        """Where a send goes whose queue is not simply one of its topic's: any queue, or a retry topic."""
        header: Any = envelope.ext
        topic = route.config.topic_name
        if not names.is_retry_topic(topic) or not self._retries.is_dead_letter(
            topic, header.reconsume_times, header.max_reconsume_times, envelope.version
        ):
            return route, self._queue_id(route.config, header.queue_id)
        group = topic.removeprefix(names.RETRY_PREFIX)
        dead = self._retries.dead_letter_topic(group)
        header.properties += DEAD_LETTER
        log.debug("broker.dead_lettered", group=group, topic=topic, reconsume_times=header.reconsume_times)
        known = self._routes.get(dead.topic_name)
        return known if known is not None and known.config is dead else self._remember(dead), 0

    @staticmethod
    def _queue_id(config: TopicConfig, queue_id: int) -> int:
        limit = max(config.read_queue_nums, config.write_queue_nums)
        if 0 <= queue_id < limit:
            return queue_id
        if queue_id < 0:
            return random.randrange(config.write_queue_nums)  # noqa: S311  # spread, not secrecy
        raise no_such_queue(config.topic_name, queue_id, limit)

    # --- answers ----------------------------------------------------------------------------------------------

    def _refuse(self, connection: Connection, item: BatchItem, refused: RequestError) -> None:
        envelope, _, codec = item
        log.debug("broker.send_refused", peer=connection.peer, code=refused.code, reason=refused.remark)
        self._services.stats.put_failed += 1
        if isinstance(refused, LimitReached):
            connection.tell_limit(refused.limit, refused.remark)
        if not envelope.flag & FLAG_ONEWAY:
            ext = {"MSG_REGION": self._region, "TRACE_ON": self._trace_on}
            connection.respond(codec, envelope.opaque, Response(refused.code, refused.remark, ext=ext))

    def _encode(self, replies: list[Reply], code: int) -> bytes:
        """All answers of one read as one run of bytes."""
        parts: list[bytes] = []
        prefix = self._id_prefix
        head = f'{{"code":{int(code)},"extFields":{{"queueId":"'
        tail = f'","TRACE_ON":"{self._trace_on}","MSG_REGION":"{self._region}","queueOffset":"'
        for envelope, codec, queue_id, unique_key, done, extra in replies:
            if codec == CODEC_JSON and extra is None and unique_key.isalnum() and unique_key.isascii():
                header = (
                    f'{head}{queue_id}","transactionId":"{unique_key}","msgId":"{prefix}'
                    f'{done.physical_offset:016X}{tail}{done.queue_offset}"}},"flag":1,"language":"PYTHON",'
                    f'"opaque":{envelope.opaque},"serializeTypeCurrentRPC":"JSON","version":479}}'
                ).encode()
                size = len(header)
                parts.append(FRAME_WORDS.pack(size + 4, size))
                parts.append(header)
                continue
            ext = {
                "queueId": str(queue_id),
                "transactionId": unique_key,
                "msgId": f"{prefix}{done.physical_offset:016X}",
                "TRACE_ON": self._trace_on,
                "MSG_REGION": self._region,
                "queueOffset": str(done.queue_offset),
                **(extra or {}),
            }
            parts.append(
                encode_command(
                    Command(
                        int(code), opaque=envelope.opaque, flag=FLAG_RESPONSE, ext_fields=ext, codec=codec
                    )
                )
            )
        return b"".join(parts)


def _is_hasty(header: Any) -> bool:
    """Whether a batch does not wait for the disk: its own properties say so, not those of its messages."""
    text: str = header.properties
    return "WAIT\x01false" in text and properties.decode_properties(text).get(properties.WAIT) == "false"


def _joined(own: str, common: str) -> str:
    """A batch entry's properties followed by those of the whole batch; its own win."""
    separated = own if not own or own.endswith("\x02") else own + "\x02"
    if not common:
        return separated
    shared = properties.decode_properties(common)
    mine = properties.decode_properties(separated)
    extra = {name: value for name, value in shared.items() if name not in mine}
    return separated + "".join([f"{name}\x01{value}\x02" for name, value in extra.items()])


def _bad_body(topic: str, size: int, limit: int) -> RequestError:
    if size == 0:
        return RequestError(ResponseCode.SYSTEM_ERROR, f"message to topic {topic} has no body")
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"body of a message to topic {topic} has {size} bytes, at most {limit} are allowed (maxMessageSize)",
    )


def _put_refusal(message: NewMessage, done: Appended) -> RequestError:
    if done.status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return RequestError(
            ResponseCode.SYSTEM_ERROR, "no new commit log file could be made; is the disk full?"
        )
    what = "properties are" if done.status is PutStatus.PROPERTIES_SIZE_EXCEEDED else "message is"
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"{what} too large: body {len(message.body)} bytes, properties {len(message.properties)} bytes "
        f"with what the broker adds (at most {properties.PROPERTIES_SIZE_MAX}), topic {message.topic}",
    )
