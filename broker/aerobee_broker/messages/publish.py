"""Publishing: from messages as their senders describe them to one append.

Touches  the store, and readers who wait for what may be read at once.

All messages of one call are checked, given their stored form and appended together. Refusals of single messages do not
disturb the others. When they may be answered is for the caller to ask `Promises`.

Where the time goes, per message of 128 bytes (`bench/profile_send.py` measures it again, with header and answer):
checks and properties 2.5 us, append and dispatch 3.3 us.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from aerobee_broker.members.clients import born_host
from aerobee_broker.messages.intake import Intake, ToPublish
from aerobee_broker.messages.placement import SPECIAL_PROPERTIES, PlacementRules
from aerobee_broker.messages.recall_handles import recall_handle
from aerobee_broker.messages.refusals import check_body, put_refusal, store_refusal
from aerobee_broker.messages.values import Caller
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.stats import BrokerStats, TopicCounters
from aerobee_proto import names
from aerobee_proto.codes import SysFlag
from aerobee_proto.errors import RequestError
from aerobee_proto.javahash import tag_hash
from aerobee_proto.properties import KEYS, TAGS, UNIQ_KEY, WAIT, decode_properties
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Appended, NewMessage, PutStatus

__all__ = ["SPECIAL_BITS", "Published", "Publisher", "Publishing", "Submission"]

# Such a message is looked at more closely.
SPECIAL_BITS: Final = SysFlag.TRANSACTION_MASK | SysFlag.INNER_BATCH
# Of topics and queues in one turn, each with a folder and a file to be made: one, or so many of those that need not be.
TURN_MAKES_MAX: Final = 16
MOVED_MAKES: Final = 1
NOWHERE: Final = Appended(PutStatus.MESSAGE_ILLEGAL, -1, -1, 0, 0)


class Published(msgspec.Struct, gc=False):
    """What became of messages, column by column, each as long as what was given; the numbers are places in there.

    One is made for each read of sends: as a struct it costs 0.5 us less than as a class with slots.
    """

    places: list[Appended]
    queue_ids: list[int]  # as answered: a scheduled message lies in another
    unique_keys: list[str]
    refused: dict[int, RequestError]  # the columns hold nothing of these
    without_wait: set[int]  # their senders do not wait for the disk
    recall_handles: dict[int, str]  # of timer messages
    new_topics: set[int]  # they made their topic: nameservers are to hear of it before their senders do


class Submission(Protocol):
    """One message to be published."""

    @property
    def header(self) -> ToPublish:
        """What its sender says of it."""
        ...

    @property
    def body(self) -> bytes: ...


S = TypeVar("S", bound=Submission)


def reconsume_limit_of(submission: Submission) -> int | None:
    """What the message itself says."""
    return submission.header.max_reconsume_times


class Publishing:
    """What whoever publishes works with."""

    def __init__(
        self,
        intake: Intake,
        store: MessageStore,
        placement: PlacementRules,
        stats: BrokerStats,
        visibility: Visibility,
        store_host: bytes,
    ) -> None:
        """`store_host` is this broker's address as messages carry it."""
        self._intake = intake
        self._store = store
        self._placement = placement
        self._stats = stats
        self._visibility = visibility
        self._store_host = store_host


class Publisher(Publishing):
    """Takes messages one by one; batches are taken by `BatchPublisher`. All calls from the event loop."""

    def is_long(self, messages: Sequence[S]) -> bool:
        """Whether a topic or a queue is to be made for them, which has a folder and a file: they are to go in `runs`
        then, so that others are served between these, and the making of them is paced."""
        self._intake.refresh()
        topics = {message.header.topic for message in messages}
        return any(map(self._may_lack, topics)) and sum(self._made_for(messages)) >= TURN_MAKES_MAX

    def runs(self, messages: Sequence[S]) -> Iterator[Sequence[S]]:
        """The messages in order, in parts for which TURN_MAKES_MAX is made at most, by what is known when each is asked
        for."""
        start = 0
        while start < len(messages):
            end, made = start, 0
            for more in self._made_for(messages[start:]):
                made += more
                if made > TURN_MAKES_MAX:
                    break
                end += 1
            yield messages[start:end]
            start = end

    def queue_counts(self, messages: Sequence[S]) -> dict[str, int]:
        """How many queues the topics of these have."""
        count = self._store.topics.queue_count
        return {topic: count(topic) for topic in {message.header.topic for message in messages}}

    def have_more(self, counts: Mapping[str, int]) -> bool:
        """Whether one of these topics has more queues now."""
        return any(self._store.topics.queue_count(topic) > count for topic, count in counts.items())

    def take_began_s(self) -> float:
        """See `Visibility`."""
        return self._visibility.take_began_s()

    def _made_for(self, messages: Sequence[S]) -> Iterator[int]:
        """For each message what would be made, in units of TURN_MAKES_MAX, if those before it had what they need."""
        seen = set[tuple[str, int]]()
        for message in messages:
            header = message.header
            queue = (header.topic, header.queue_id)
            if queue in seen and header.queue_id >= 0:
                yield 0
            elif header.topic not in self._intake.routes and self._intake.lacks((header.topic,)):
                seen.add(queue)
                yield TURN_MAKES_MAX
            elif header.queue_id < 0:  # any of its queues
                yield TURN_MAKES_MAX if self._may_lack(header.topic) else 0
            elif self._store.topics.has_queue(*queue):
                yield 0
            else:
                seen.add(queue)
                yield MOVED_MAKES if self._may_be_moved(header) else TURN_MAKES_MAX

    def _may_lack(self, topic: str) -> bool:
        """Whether some of the queues of this topic may have to be made."""
        route = self._intake.routes.get(topic)
        return route is None or self._store.topics.queue_count(topic) < route.queue_id_limit

    def _may_be_moved(self, header: ToPublish) -> bool:
        """Whether it may wait in another queue first, so that its own need not be made for it."""
        if header.sys_flag & SPECIAL_BITS:
            return True
        return not SPECIAL_PROPERTIES.isdisjoint(decode_properties(header.properties))

    def publish(
        self,
        messages: Sequence[S],
        caller: Caller,
        limit_of: Callable[[S], int | None] = reconsume_limit_of,
    ) -> Published:
        """Store these; durable later. `limit_of` says of a message how often its sender wants it to come back to its
        group, None: as often as the group says."""
        intake = self._intake
        intake.refresh()
        made: list[NewMessage] = []
        counters: list[TopicCounters] = []
        queue_ids: list[int] = []
        unique_keys: list[str] = []
        refused: dict[int, RequestError] = {}
        without_wait: set[int] = set()
        recall_handles: dict[int, str] = {}
        new_topics: set[int] = set()
        # Looked up once, not for each message.
        routes, prepare = intake.routes, intake.stored_properties.prepare
        body_size_max = intake.config.max_message_size
        host, store_host = born_host(caller.peer), self._store_host
        for submission in messages:
            message, body = submission.header, submission.body
            try:
                # Where it goes.
                route = routes.get(message.topic)
                if route is None:
                    route = intake.route(message)
                    if route.is_new:
                        new_topics.add(len(queue_ids))
                queue_id, text = message.queue_id, message.properties
                if not 0 <= queue_id < route.queue_id_limit:
                    route, queue_id, text = intake.unusual_queue(message, route, limit_of(submission))
                topic = route.topic
                counted = route.counters
                if not 0 < len(body) <= body_size_max:
                    check_body("message", topic, len(body), body_size_max)
                # What is stored.
                raw, mapping = prepare(text)
                sys_flag = message.sys_flag | route.sys_flag
                unique_key = mapping[UNIQ_KEY]
                new = NewMessage(
                    topic,
                    queue_id,
                    message.flag,
                    sys_flag,
                    message.born_timestamp,
                    host,
                    store_host,
                    message.reconsume_times,
                    0,
                    body,
                    raw,
                    tag_hash(mapping.get(TAGS)),
                    mapping.get(KEYS),
                    unique_key,
                )
                # What asks for more than that.
                if sys_flag & SPECIAL_BITS or not SPECIAL_PROPERTIES.isdisjoint(mapping):
                    new = self._placement.place(new, mapping | intake.stored_properties.added)
                    counted, unique_key = self._stats.of_topic(new.topic), new.unique_key or ""
                    if new.topic == names.TIMER_TOPIC and not topic.startswith(names.RETRY_PREFIX):
                        handle = recall_handle(intake.config.broker_name, topic, new)
                        recall_handles[len(queue_ids)] = handle
                if mapping.get(WAIT) == "false":
                    without_wait.add(len(queue_ids))
            except RequestError as refusal:
                refused[len(queue_ids)] = refusal
                queue_ids.append(-1)
                unique_keys.append("")
                continue
            made.append(new)
            counters.append(counted)
            queue_ids.append(queue_id)
            unique_keys.append(unique_key)
        published = Published([], queue_ids, unique_keys, refused, without_wait, recall_handles, new_topics)
        if made:
            self._append(published, made, counters)
        if refused:
            self._stats.put_failed += len(refused)
        return published

    def _append(self, published: Published, made: list[NewMessage], counters: list[TopicCounters]) -> None:
        """Append what was not refused, and fill the column of places."""
        try:
            places = self._store.append(made)
        except StoreError as failed:
            published.refused |= dict.fromkeys(_accepted(published), store_refusal(failed))
            return
        # Count, once for each run of messages to one topic.
        stored = stored_size = 0
        counted, run, size = counters[0], 0, 0
        all_stored = True
        for of_topic, done in zip(counters, places):  # noqa: B905  `strict` costs 0.2 us a read
            if done.status is not PutStatus.PUT_OK:
                all_stored = False
                continue
            if of_topic is not counted:
                counted.count += run
                counted.size += size
                stored += run
                stored_size += size
                counted, run, size = of_topic, 0, 0
            run += 1
            size += done.size
        counted.count += run
        counted.size += size
        self._stats.put_all(stored + run, stored_size + size, stored + run)
        # Each place in the line of its message.
        if published.refused:
            published.places = [NOWHERE] * len(published.queue_ids)
            for number, done in zip(_accepted(published), places, strict=True):
                published.places[number] = done
        else:
            published.places = places
        if not all_stored:
            for number, new, done in zip(_accepted(published), made, places, strict=True):
                if done.status is not PutStatus.PUT_OK:
                    published.refused[number] = put_refusal(new, done)
        self._visibility.appended()


def _accepted(published: Published) -> Sequence[int]:
    """Places of the messages that were not refused so far."""
    return [number for number in range(len(published.queue_ids)) if number not in published.refused]
