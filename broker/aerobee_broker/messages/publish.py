"""Publishing: from messages as their senders describe them to one append.

Touches  the store, and readers who wait for what may be read at once.

All messages of one call are checked, given their stored form and appended together. Refusals of single messages do not
disturb the others. When they may be answered is for the caller to ask `Promises`.

Where the time goes, per message of 128 bytes (`bench/profile_send.py` measures it again, with header and answer):
checks and properties 2.5 us, append and dispatch 3.3 us.
"""

from collections.abc import Callable, Iterator, Sequence
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
from aerobee_proto.properties import KEYS, TAGS, UNIQ_KEY, WAIT
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Appended, NewMessage, PutStatus

__all__ = ["SPECIAL_BITS", "Published", "Publisher", "Publishing", "Submission"]

# Such a message is looked at more closely.
SPECIAL_BITS: Final = SysFlag.TRANSACTION_MASK | SysFlag.INNER_BATCH
NEW_TOPICS_MAX: Final = 1  # made in one turn; each has folders and files
NEW_QUEUES_MAX: Final = 1  # ... so has each queue
FEW_QUEUES: Final = 16  # so many need not be counted: whoever makes all of them makes them once
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
        """Whether so many topics or queues would be made for them that they are too much for one turn of the event
        loop: each has a folder and a file to be made. They are to go in `runs` then."""
        if len(messages) <= NEW_TOPICS_MAX:
            return False
        intake = self._intake
        intake.refresh()
        routes = intake.routes
        topics = {message.header.topic for message in messages}
        unrouted = topics - routes.keys()
        if len(unrouted) > NEW_TOPICS_MAX and intake.lacks(unrouted) > NEW_TOPICS_MAX:
            return True
        if not unrouted and sum([routes[topic].queue_id_limit for topic in topics]) <= FEW_QUEUES:
            return False
        queues = {(message.header.topic, message.header.queue_id) for message in messages}
        return len(queues) > NEW_QUEUES_MAX and sum(map(self._lacks_queue, queues)) > NEW_QUEUES_MAX

    def makes(self, messages: Sequence[S]) -> bool:
        """Whether topics or queues are made for some of these, by what is known now."""
        queues = {(message.header.topic, message.header.queue_id) for message in messages}
        return any(map(self._lacks_queue, queues))

    def _lacks_queue(self, queue: tuple[str, int]) -> bool:
        return not self._store.topics.has_queue(*queue)

    def runs(self, messages: Sequence[S]) -> Iterator[Sequence[S]]:
        """The messages in order, in parts for which at most NEW_TOPICS_MAX topics and NEW_QUEUES_MAX queues have to be
        made, by what is known when each is asked for."""
        intake = self._intake
        start, new_topics, new_queues = 0, set[str](), set[tuple[str, int]]()
        for at, message in enumerate(messages):
            topic = message.header.topic
            queue = (topic, message.header.queue_id)
            makes_topic = (
                topic not in intake.routes and topic not in new_topics and intake.lacks((topic,)) > 0
            )
            makes_queue = queue not in new_queues and self._lacks_queue(queue)
            if (makes_topic and len(new_topics) == NEW_TOPICS_MAX) or (
                makes_queue and len(new_queues) == NEW_QUEUES_MAX
            ):
                yield messages[start:at]
                start, new_topics, new_queues = at, set(), set()
            if makes_topic:
                new_topics.add(topic)
            if makes_queue:
                new_queues.add(queue)
        yield messages[start:]

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
