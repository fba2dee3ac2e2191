"""The client: one object that knows the nameservers, the routes and the connections.

Touches  sockets through remoting, the clock, the environment (only in `from_env`).
"""

import os
import random
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from aerobee.consuming.fetching import Fetcher
from aerobee.consuming.pull_consumer import PullConsumer, PullSettings
from aerobee.consuming.reader import Reader
from aerobee.errors import ClientClosed, InvalidMessage, NoRoute
from aerobee.messages.message import Message
from aerobee.messages.outgoing import Encoder, checked_group, checked_topic
from aerobee.messages.watching import Watch
from aerobee.producing.delivery import Delivery
from aerobee.producing.producer import Producer, ProducerParts
from aerobee.producing.transactions import Checker, Transactions, TransactionsCheck
from aerobee.session.session import QueueSelection, Session
from aerobee.terms.arguments import checked
from aerobee.terms.config import ClientConfig, ConsumerConfig, FetchConfig, ProducerConfig, parse_addrs
from aerobee.terms.filters import Filter, chosen_filter
from aerobee.terms.routes import MessageQueue
from aerobee.terms.start_at import AtOffset, Where, floor_of, parse_where
from aerobee.terms.statistics import ClientStatistics
from aerobee_proto.names import TOOLS_GROUP
from aerobee_service.clock import epoch_ms

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from aerobee.admin.admin import Admin
    from aerobee.consuming.group_consumer import AnyConsumer, GroupConsumer
    from aerobee.consuming.ranges import RangeConfig, Ranges
    from aerobee.messages.codecs import AnyCodec, Codec
    from aerobee.messages.subscriptions import Topics
    from aerobee.producing.bulk import BulkSender
    from aerobee.producing.replay import Replay, ReplayConfig
    from aerobee.session.trace import TraceRecord

__all__ = ["Client"]

C = TypeVar("C", bound="DataclassInstance")
T = TypeVar("T")

# RocketMQ's own group for tools: known to every broker, so reading needs no group of its own.
DEFAULT_PRODUCER_GROUP: Final = "AEROBEE_PRODUCER"
TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"  # the official clients' name for it
TRACE_TIMEOUT_S: Final = 3.0  # traces are not worth a long wait, above all not when the client is closed
TRACES_MAX: Final = 64  # trace messages that one look-up reads


class Client:
    """A connection to a cluster. Use it as `async with Client("127.0.0.1:9876") as mq:`.

    nameservers  one address, several in one text (`a:9876;b:9876`), or a list; None takes those of `config`
    config       everything else, or single settings by name: `Client("a:9876", trace=True, tls=True)`; see
                 `ClientConfig`

    Nothing is dialled before the first call. One client serves any number of producers, readers and consumers
    of one event loop.
    """

    @checked
    def __init__(
        self,
        nameservers: str | Iterable[str] | None = None,
        *,
        config: ClientConfig | None = None,
        **settings: object,
    ) -> None:
        chosen: ClientConfig = _with_settings(config or ClientConfig(), settings)
        if nameservers is not None:
            chosen = replace(chosen, nameservers=parse_addrs(nameservers))
        self.config: Final = chosen
        self._salt = random.SystemRandom().getrandbits(32)
        self._ip = _local_ip()
        name = chosen.client_name or str(os.getpid())
        self.client_id: Final = f"{self._ip}@{name}#{time.time_ns()}"
        # Made by __aenter__, in the event loop.
        self._session: Session | None = None
        self._closed = False

    @classmethod
    @checked
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Client":
        """A client with settings from environment variables; see `ClientConfig.from_env`."""
        return cls(config=ClientConfig.from_env(os.environ if environ is None else environ))

    async def __aenter__(self) -> Self:
        if self._closed or self._session is not None:
            raise ClientClosed("client")
        session = self._session = Session(self.config, self._ip, self._salt, self.client_id)
        session.start()
        if self.config.trace:
            from aerobee.session.trace import TraceWriter

            session.traces = TraceWriter(
                partial(self._trace_producer, session),
                topic=self.config.trace_topic,
                clock_ms=epoch_ms,
                new_id=session.keys.next_key,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Flush and close every producer, stop every reader and consumer, tell the brokers that the client is gone."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def admin(self) -> "Admin":
        """Administration calls: topics, groups, brokers, offsets."""
        return self._open().admin

    @checked
    def producer(
        self,
        /,
        group: str = DEFAULT_PRODUCER_GROUP,
        *,
        check: TransactionsCheck | None = None,
        codec: "AnyCodec | None" = None,
        config: ProducerConfig | None = None,
        **settings: object,
    ) -> Producer:
        """A producer, to be used as `async with`.

        group     name under which brokers know this producer and its like
        check     tells a broker how a transaction ended whose end it has not heard: takes the message, returns True
                  (committed), False (rolled back) or None (not known yet); a coroutine function, or a plain one,
                  which is run in a thread
        codec     what bodies are written with; see `aerobee.messages.codecs`
        config    or single settings by name: `producer(linger_s=0.005, queue_choice="latency")`
        """
        session = self._open()
        chosen: ProducerConfig = _with_settings(config or ProducerConfig(), settings)
        transactions = None
        if checked_group(group) != DEFAULT_PRODUCER_GROUP:
            transactions = Transactions(group, session.peers, session.routes, chosen.send_timeout_s)
        checker = None
        if check is not None:
            if transactions is None:
                raise InvalidMessage("check needs a producer group of its own name, for brokers ask by group")
            checker = Checker(
                check, transactions, session.routes.broker_name_of, self.config.decompressed_size_max
            )
        parts = self._producer_parts(
            session, group, chosen, transactions, checker, codec, session.watch(group)
        )
        return Producer(
            group, chosen, parts=parts, on_open=session.add_producer, on_close=session.remove_producer
        )

    def _producer_parts(
        self,
        session: Session,
        group: str,
        config: ProducerConfig,
        transactions: Transactions | None,
        checker: Checker | None,
        codec: "AnyCodec | None",
        watch: Watch | None,
    ) -> ProducerParts:
        return ProducerParts(
            client_id=self.client_id,
            delivery=Delivery(
                group,
                config,
                peers=session.peers,
                routes=session.routes,
                clock_ms=epoch_ms,
                rotation_start=random.SystemRandom().getrandbits(16),
            ),
            encoder=Encoder(config, session.keys, self.config.body_size_max),
            routes=session.routes,
            peers=session.peers,
            transactions=transactions,
            checker=checker,
            replies=session.replies,
            new_id=session.keys.next_key,
            greet=session.greet,
            codec=codec,
            watch=watch,
            meters=session.meters,
        )

    def _trace_producer(self, session: Session) -> Producer:
        """The producer that traces are written with; nobody looks on at it, and brokers need not know it."""
        config = ProducerConfig(send_timeout_s=TRACE_TIMEOUT_S)
        parts = self._producer_parts(session, TRACE_GROUP, config, None, None, None, None)
        return Producer(TRACE_GROUP, config, parts=parts, on_open=lambda _: None, on_close=lambda _: None)

    @checked
    def reader(
        self,
        /,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where | None = None,
        queues: QueueSelection = None,
        tags: str | Iterable[str] | None = None,
        filter: Filter | None = None,
        config: FetchConfig | None = None,
        **settings: object,
    ) -> Reader:
        """Read a topic without a group.

        start   "earliest", "latest", a queue offset (of every queue; nothing before it comes), a time (datetime,
                timedelta, "-1h")
        end     where each queue ends, not included; "now" is what is there when reading starts; None goes on
        queues  some queues only: queue ids (on every broker) or `MessageQueue`s
        tags    "new || paid" or several texts; None reads every message
        filter  instead of tags: `SqlFilter("price > 3")` or a `TagFilter`
        """
        session = self._open()
        checked_topic(topic)
        begin = parse_where(start, epoch_ms())
        stop = None if end is None else parse_where(end, epoch_ms())
        fetcher = session.fetcher(
            TOOLS_GROUP,
            topic,
            chosen_filter(tags, filter),
            _with_settings(config or FetchConfig(), settings),
        )

        async def open_queues(opened: Fetcher) -> None:
            await session.open_queues(
                opened,
                topic,
                queues,
                lambda queue: session.offsets.resolve(queue, begin),
                stop,
                floor_of(begin),
            )

        return Reader(fetcher, open_queues)

    @checked
    def pull_consumer(
        self,
        /,
        group: str,
        topic: str,
        *,
        tags: str | Iterable[str] | None = None,
        filter: Filter | None = None,
        start: Where = "earliest",
        end: Where | None = None,
        queues: QueueSelection = None,
        config: FetchConfig | None = None,
        **settings: object,
    ) -> PullConsumer:
        """Read a topic for a group, from where the group has committed; to be used as `async with`.

        `start` is for queues in which the group has committed nothing. All else is as for `reader`.
        """
        session = self._open()
        checked_group(group)
        checked_topic(topic)
        begin = parse_where(start, epoch_ms())
        stop = None if end is None else parse_where(end, epoch_ms())
        pulled = PullSettings(group, topic, chosen_filter(tags, filter))
        fetcher = session.fetcher(
            group, topic, pulled.filter, _with_settings(config or FetchConfig(), settings)
        )

        async def start_of(queue: MessageQueue) -> int:
            committed = await session.offsets.committed(group, queue)
            return await session.offsets.resolve(queue, begin) if committed is None else committed

        async def open_queues(opened: Fetcher) -> None:
            await session.open_queues(opened, topic, queues, start_of, stop, floor_of(begin))

        return PullConsumer(
            pulled,
            fetcher,
            session.offsets,
            open_queues=open_queues,
            clock_ms=epoch_ms,
            on_open=session.add_consumer,
            on_close=session.remove_consumer,
        )

    @overload
    def consumer(
        self,
        group: str,
        topics: "Topics",
        *,
        start: Where = "earliest",
        orderly: bool = False,
        model: Literal["clustering", "broadcasting"] = "clustering",
        codec: None = None,
        config: ConsumerConfig | None = None,
        **settings: object,
    ) -> "GroupConsumer[bytes]": ...

    @overload
    def consumer(
        self,
        group: str,
        topics: "Topics",
        *,
        start: Where = "earliest",
        orderly: bool = False,
        model: Literal["clustering", "broadcasting"] = "clustering",
        codec: "Codec[T]",
        config: ConsumerConfig | None = None,
        **settings: object,
    ) -> "GroupConsumer[T]": ...

    @checked
    def consumer(
        self,
        group: str,
        topics: "Topics",
        *,
        start: Where = "earliest",
        orderly: bool = False,
        model: Literal["clustering", "broadcasting"] = "clustering",
        codec: "AnyCodec | None" = None,
        config: ConsumerConfig | None = None,
        **settings: object,
    ) -> "AnyConsumer":
        """A member of a consumer group, to be used as `async with`. Members share the topics' queues out.

        topics   a topic, several, or a mapping of topics to filters: `{"orders": "new || paid", "returns": None}`
        start    where the group begins in a queue in which it has committed nothing: "earliest", "latest", a time
        orderly  queues are locked for one member and handled strictly in order; a message that fails is repeated
                 before the next one
        model    "clustering": each message goes to one member; "broadcasting": to every member, each keeps its
                 offsets in a file
        codec    what `message.value` is read with
        config   or single settings by name: `consumer(..., auto_ack=False)`; see `ConsumerConfig`
        """
        from aerobee.consuming.group_consumer import ConsumerParts, GroupConsumer
        from aerobee.consuming.group_member import GroupMember, GroupSettings
        from aerobee.consuming.send_back import SendBack
        from aerobee.messages.subscriptions import parse_topics

        session = self._open()
        session.check_free(checked_group(group))
        chosen: ConsumerConfig = _with_settings(config or ConsumerConfig(), settings)
        position = parse_where(start, epoch_ms())
        if isinstance(position, AtOffset):
            raise InvalidMessage("a group starts at an end of its queues or at a time, not at an offset")
        broadcasting = model == "broadcasting"
        if broadcasting and orderly:
            raise InvalidMessage("a broadcasting group cannot be orderly: its members share no queues")
        group_settings = GroupSettings(
            group=group,
            subscriptions=parse_topics(topics, epoch_ms(), None if broadcasting else group),
            start=position,
            orderly=orderly,
            broadcasting=broadcasting,
            client_id=self.client_id,
            stable_name=f"{self._ip}@{self.config.client_name or 'DEFAULT'}",
        )
        parts = ConsumerParts(
            make_member=lambda on_records: GroupMember(
                group_settings,
                chosen,
                self.config,
                peers=session.peers,
                routes=session.routes,
                offsets=session.offsets,
                clock_ms=epoch_ms,
                on_records=on_records,
            ),
            send_back=SendBack(
                group,
                chosen.max_reconsume_times,
                peers=session.peers,
                routes=session.routes,
                clock_ms=epoch_ms,
            ),
            replier=session.replier,
            offsets=session.offsets,
            clock_ms=epoch_ms,
            watch=session.watch(group),
            meters=session.meters,
        )
        return GroupConsumer(
            chosen,
            codec,
            body_size_max=self.config.decompressed_size_max,
            parts=parts,
            on_open=session.add_member,
            on_close=session.remove_member,
        )

    @checked
    def bulk_sender(
        self,
        group: str = DEFAULT_PRODUCER_GROUP,
        *,
        config: ProducerConfig | None = None,
        **settings: object,
    ) -> "BulkSender":
        """Sends ready-made batches, with one result for each: for programs that write very many messages.

        Of the settings those count that are about tries: send_timeout_s, try_timeout_s, attempts_max, queue_choice.
        """
        from aerobee.producing.bulk import BulkSender

        session = self._open()
        chosen: ProducerConfig = _with_settings(config or ProducerConfig(), settings)
        return BulkSender(
            Delivery(
                checked_group(group),
                chosen,
                peers=session.peers,
                routes=session.routes,
                clock_ms=epoch_ms,
                rotation_start=random.SystemRandom().getrandbits(16),
            ),
            session.keys,
            body_size_max=self.config.body_size_max,
            timeout_s=chosen.send_timeout_s,
        )

    @checked
    def ranges(self, config: "RangeConfig | None" = None) -> "Ranges":
        """Whole ranges of queues as brokers store them, undecoded: for tools that read very many messages."""
        from aerobee.consuming.ranges import RangeConfig, Ranges

        session = self._open()
        return Ranges(
            config or RangeConfig(),
            client_id=self.client_id,
            peers=session.peers,
            routes=session.routes,
            offsets=session.offsets,
        )

    @checked
    def replay(self, config: "ReplayConfig | None" = None) -> "Replay":
        """Messages that were stored before, sent again with their ids and times of birth: for tools that restore."""
        from aerobee.producing.replay import Replay, ReplayConfig

        session = self._open()
        return Replay(config or ReplayConfig(), peers=session.peers, routes=session.routes)

    @checked
    async def query(
        self,
        topic: str,
        *,
        key: str,
        begin: Where | None = None,
        end: Where | None = None,
        max_messages: int = 64,
    ) -> list[Message]:
        """Messages of a topic that were sent with that key (or have that message_id), oldest first.

        `begin` and `end` bound the store time; of more than `max_messages` the newest are returned.
        """
        checked_topic(topic)
        return await self._open().queries.by_key(topic, key, begin, end, max_messages)

    @checked
    async def trace(self, message_id: str) -> "list[TraceRecord]":
        """What happened to a message: the trace records with its id, oldest first.

        Only messages of clients that write traces have any, and only where brokers have the trace topic.
        """
        from aerobee.session.trace import parse_trace

        session = self._open()
        try:
            found = await session.queries.by_key(self.config.trace_topic, message_id, None, None, TRACES_MAX)
        except NoRoute:
            return []  # no broker has the topic, so nobody has written to it
        records = [record for message in found for record in parse_trace(message.text())]
        return sorted(
            (record for record in records if record.message_id == message_id),
            key=lambda record: record.timestamp_ms,
        )

    @checked
    async def query_by_id(self, message_id: str, topic: str | None = None) -> Message | None:
        """The message with that id, None when there is none.

        An offset id needs no topic. Finding a `SendResult.message_id` needs the topic: its index is searched.
        """
        return await self._open().queries.by_id(message_id, topic)

    @checked
    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read, ordered by broker and queue id."""
        checked_topic(topic)
        return (await self._open().routes.for_subscribe(topic)).subscribe

    def statistics(self) -> ClientStatistics:
        """What this client, its producers, consumers and readers have done; they have a `statistics()` each."""
        return self._open().statistics()

    def _open(self) -> Session:
        if self._session is None:
            raise ClientClosed("client")
        return self._session


def _with_settings(config: C, settings: Mapping[str, Any]) -> C:
    try:
        return replace(config, **settings) if settings else config
    except TypeError:
        known = sorted(field.name for field in fields(config))
        unknown = ", ".join(sorted(set(settings) - set(known)))
        raise InvalidMessage(f"unknown setting {unknown}; there are {', '.join(known)}") from None


def _local_ip() -> str:
    """An address of this machine for ids: the one that traffic would leave by. Nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: no route is needed to exist
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
