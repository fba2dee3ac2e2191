"""Publishing batches: each is stored whole or not at all, as messages of its own or, in some topics, as one record.

Touches  the store, and readers who wait for what may be read at once.

A small batch is stored in one turn of the event loop. A large one goes in steps, with others served in between; what
refuses it is found before the first message is appended.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from aerobee_broker.members.clients import born_host
from aerobee_broker.messages.intake import Route, ToPublish
from aerobee_broker.messages.placement import SPECIAL_PROPERTIES, needs_place
from aerobee_broker.messages.publish import SPECIAL_BITS, Publishing
from aerobee_broker.messages.refusals import check_body, group_put_refusal, store_refusal
from aerobee_broker.messages.stored_properties import stored_form
from aerobee_broker.messages.values import Caller
from aerobee_proto import batch, names, properties
from aerobee_proto.codes import ResponseCode, SysFlag
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.javahash import tag_hash
from aerobee_proto.properties import KEYS, TAGS, UNIQ_KEY
from aerobee_proto.records import RECORD_OVERHEAD_V4
from aerobee_service.turns.slices import Steps
from aerobee_store.faults.errors import StoreError
from aerobee_store.terms.messages import RECORD_EXTRA_MAX, Appended, NewMessage, PutStatus

__all__ = ["BATCH_COUNT_MAX", "TURN_COUNT_MAX", "BatchPlan", "BatchPublisher", "StoredBatch", "size_unread"]

BATCH_COUNT_MAX: Final = 16_384  # messages of one batch; with what the broker adds they are 4 MiB of records
MESSAGE_SIZE: Final = 1024  # bytes in memory of one that is made ready, besides its texts
TURN_COUNT_MAX: Final = (
    500  # messages of batches that are stored in one turn of the event loop; one takes 6 us
)
TURN_PROPERTIES_MAX: Final = 64 * 1024  # bytes of their properties, which may be a name and a value in four
# Of those that go in steps.
MESSAGES_A_STEP: Final = 128
PROPERTIES_A_STEP: Final = 16 * 1024
APPENDED_A_STEP: Final = 512
APPENDED_SIZE_A_STEP: Final = 256 * 1024  # bytes; the pages of the file are new, so a MiB takes 3 ms


class BatchPlan(NamedTuple):
    """One batch as it was read, and where it goes."""

    common: ToPublish  # what all its messages have in common
    body: bytes
    route: Route
    queue_id: int
    entries: list[batch.BatchEntry]
    record_key: str | None  # it becomes one record with this unique key

    @property
    def properties_size(self) -> int:
        """Bytes of properties that its messages have, with those of the batch that all of them get."""
        common = len(self.common.properties)
        return sum([len(entry.properties) for entry in self.entries]) + common * len(self.entries)

    @property
    def working_size(self) -> int:
        """Bytes in memory that its messages take, besides the request itself, until they are stored."""
        return MESSAGE_SIZE * len(self.entries) + 2 * len(self.body) + 2 * self.properties_size

    @property
    def is_without_wait(self) -> bool:
        """Whether it does not wait for the disk: its own properties say so, not those of its messages."""
        text = self.common.properties
        return "WAIT\x01false" in text and properties.decode_properties(text).get(properties.WAIT) == "false"

    def slices(self) -> Iterator[list[batch.BatchEntry]]:
        """The messages, as many at once as one step may make ready; always one."""
        common = len(self.common.properties)
        some: list[batch.BatchEntry] = []
        size = 0
        for entry in self.entries:
            size += len(entry.properties) + common
            if some and (size > PROPERTIES_A_STEP or len(some) >= MESSAGES_A_STEP):
                yield some
                some, size = [], len(entry.properties) + common
            some.append(entry)
        yield some


def _appended_at_once(group: Sequence[NewMessage]) -> Iterator[list[NewMessage]]:
    """Messages that are made ready, as many at once as one step may append; always one."""
    some: list[NewMessage] = []
    size = 0
    for message in group:
        size += len(message.body) + len(message.properties)
        if some and (size > APPENDED_SIZE_A_STEP or len(some) >= APPENDED_A_STEP):
            yield some
            some, size = [], len(message.body) + len(message.properties)
        some.append(message)
    yield some


def size_unread(body: bytes) -> int:
    """Bytes in memory that a batch takes at the most, besides the request itself, while it is read and stored."""
    return MESSAGE_SIZE * min(len(body) // batch.ENTRY_OVERHEAD, BATCH_COUNT_MAX) + 4 * len(body)


class StoredBatch(NamedTuple):
    """Where a batch lies."""

    places: list[Appended]  # of its messages, or of its one record
    queue_id: int
    keys: str  # its own unique key, or those of its messages
    record_key: str | None
    is_without_wait: bool
    made_topic: bool  # nameservers are to hear of it before its sender does


class BatchPublisher(Publishing):
    """Takes batches. All calls from the event loop."""

    def planning(self, common: ToPublish, body: bytes) -> Steps[BatchPlan | RequestError]:
        """Read a batch and check what can be told without looking at each message; in one step where it is short."""
        self._intake.refresh()
        try:
            return (yield from self._planned(common, body))
        except RequestError as refused:
            return self._refused(refused)

    def is_long(self, plans: Sequence[BatchPlan]) -> bool:
        """Whether they are too much for one turn of the event loop, so that each is to go in steps."""
        return (
            sum([len(plan.entries) for plan in plans]) > TURN_COUNT_MAX
            or sum([plan.properties_size for plan in plans]) > TURN_PROPERTIES_MAX
        )

    def publish(self, plans: Sequence[BatchPlan], caller: Caller) -> list[StoredBatch | RequestError]:
        """Store them at once; durable later. What became of each."""
        outcomes: list[StoredBatch | RequestError] = []
        for plan, group in [(plan, self._group(plan, caller)) for plan in plans]:
            if isinstance(group, RequestError):
                outcomes.append(group)
                continue
            try:
                outcomes.append(self._stored(plan, group, self._append(group)))
            except RequestError as refused:
                outcomes.append(self._refused(refused))
        self._visibility.appended()
        return outcomes

    def steps(self, plan: BatchPlan, caller: Caller) -> Steps[StoredBatch | RequestError]:
        """Store one batch, with others served between the steps; durable later."""
        try:
            return (yield from self._steps(plan, caller))
        except RequestError as refused:
            return self._refused(refused)

    def _steps(self, plan: BatchPlan, caller: Caller) -> Steps[StoredBatch]:
        intake = self._intake
        group: list[NewMessage] = []
        for some in plan.slices():
            group += self._messages(plan, some, caller)
            yield
        intake.refresh()
        if intake.routes.get(plan.route.topic) is not plan.route:
            intake.route(plan.common)  # settings or topics have changed meanwhile: it may be refused now
        refusal = self._store.check_group(group)
        if refusal is not PutStatus.PUT_OK:
            raise group_put_refusal(group, Appended(refusal, -1, -1, 0, 0), intake.config)
        yield
        places: list[Appended] = []
        for part in _appended_at_once(group):
            # All of it has been checked: only a failing disk can still stop it half way.
            places += self._append(part)
            yield
        stored = self._stored(plan, group, places)
        self._visibility.appended()
        return stored

    def _refused(self, refused: RequestError) -> RequestError:
        self._stats.put_failed += 1
        return refused

    # --- what is asked for ------------------------------------------------------------------------------------

    def _planned(self, common: ToPublish, body: bytes) -> Steps[BatchPlan]:
        intake = self._intake
        route = intake.routes.get(common.topic)
        if route is None:
            route = intake.route(common)
        topic = route.topic
        if names.is_retry_topic(topic):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"batches cannot be sent to the retry topic {topic}"
            )
        queue_id = common.queue_id
        if not 0 <= queue_id < route.queue_id_limit:
            queue_id = intake.any_queue(route, queue_id)
        limit = intake.config.max_message_size
        check_body("message", topic, len(body), limit)
        try:
            entries = yield from batch.decode_batch_steps(body, BATCH_COUNT_MAX)
        except FormatError as broken:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"batch to topic {topic}: {broken}") from broken
        if not entries:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"batch to topic {topic} holds no message")
        if route.takes_batches and (key := _unique_key(common)):
            return BatchPlan(common, body, route, queue_id, entries, key)
        # Each record has a head, the topic and the properties that the broker adds.
        suffix = intake.stored_properties.suffix
        of_each = RECORD_OVERHEAD_V4 + len(topic) + len(suffix) - batch.ENTRY_OVERHEAD
        stored_size = len(body) + len(entries) * of_each
        if stored_size > limit + RECORD_EXTRA_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the {len(entries)} messages of a batch to topic {topic} take {stored_size} bytes or more as they are "
                f"stored, at most {limit + RECORD_EXTRA_MAX} are allowed (maxMessageSize and 64 KiB): send it in parts",
            )
        return BatchPlan(common, body, route, queue_id, entries, None)

    # --- what is stored ---------------------------------------------------------------------------------------

    def _group(self, plan: BatchPlan, caller: Caller) -> list[NewMessage] | RequestError:
        """What is appended together for one batch."""
        try:
            if plan.record_key is not None:
                return [self._record(plan, caller)]
            return self._messages(plan, plan.entries, caller)
        except RequestError as refused:
            return self._refused(refused)

    def _record(self, plan: BatchPlan, caller: Caller) -> NewMessage:
        """A whole batch as one message: its body is that of the request. RequestError when it is refused."""
        common = plan.common
        mapping = properties.decode_properties(common.properties)
        mapping[properties.INNER_NUM] = str(len(plan.entries))
        message = NewMessage(
            plan.route.topic,
            plan.queue_id,
            common.flag,
            common.sys_flag | plan.route.sys_flag | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP,
            common.born_timestamp,
            born_host(caller.peer),
            self._store_host,
            common.reconsume_times,
            0,
            bytes(plan.body),
            *stored_form(mapping | self._intake.stored_properties.added),
        )
        return self._placement.place(message, mapping)

    def _messages(
        self, plan: BatchPlan, entries: Sequence[batch.BatchEntry], caller: Caller
    ) -> list[NewMessage]:
        """Some of the messages of one batch. RequestError when any of them is refused: it is all or nothing."""
        common = plan.common
        topic, queue_id = plan.route.topic, plan.queue_id
        sys_flag = common.sys_flag | plan.route.sys_flag
        text = common.properties
        prepare, host = self._intake.stored_properties.prepare, born_host(caller.peer)
        born_timestamp, reconsume_times, store_host = (
            common.born_timestamp,
            common.reconsume_times,
            self._store_host,
        )
        messages = []
        for entry in entries:
            raw, mapping = prepare(_joined(entry.properties, text) if text else entry.properties)
            # Nearly none has any of these: no call for each to ask whether it means something.
            if (sys_flag & SPECIAL_BITS or not SPECIAL_PROPERTIES.isdisjoint(mapping)) and needs_place(
                sys_flag, mapping
            ):
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
                    born_timestamp,
                    host,
                    store_host,
                    reconsume_times,
                    0,
                    entry.body,
                    raw,
                    tag_hash(mapping.get(TAGS)),
                    mapping.get(KEYS),
                    mapping[UNIQ_KEY],
                )
            )
        return messages

    def _append(self, group: list[NewMessage]) -> list[Appended]:
        try:
            return self._store.append_group(group)
        except StoreError as failed:
            raise store_refusal(failed) from failed

    def _stored(self, plan: BatchPlan, group: list[NewMessage], places: list[Appended]) -> StoredBatch:
        """Count a batch that was stored. RequestError when it was not."""
        for done in places:
            if done.status is not PutStatus.PUT_OK:
                raise group_put_refusal(group, done, self._intake.config)
        count = len(group) if plan.record_key is None else len(plan.entries)
        self._stats.put(group[0].topic, count, sum([done.size for done in places]))
        keys = _unique_key(plan.common) or ",".join([message.unique_key or "" for message in group])
        return StoredBatch(
            places, group[0].queue_id, keys, plan.record_key, plan.is_without_wait, plan.route.is_new
        )


def _unique_key(common: ToPublish) -> str | None:
    return properties.decode_properties(common.properties).get(UNIQ_KEY)


def _joined(own: str, common: str) -> str:
    """A batch entry's properties followed by those of the whole batch; its own win."""
    separated = own if not own or own.endswith("\x02") else own + "\x02"
    if not common:
        return separated
    shared = properties.decode_properties(common)
    mine = properties.decode_properties(separated)
    extra = {name: value for name, value in shared.items() if name not in mine}
    return separated + "".join([f"{name}\x01{value}\x02" for name, value in extra.items()])
