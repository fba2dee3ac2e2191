"""A small cluster for the client's tests: real remoting servers, tables instead of stores, faults on order.

Each fake broker keeps stored records by queue and answers like the real one in the ordinary cases. A test
orders what goes wrong: `broker.script(code, ...)` gives the next requests of a code another outcome.
"""

import asyncio
import struct
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from aerobee_proto.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    QueueData,
    TopicList,
    TopicRouteData,
)
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.headers import (
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    QueueHeader,
    RouteHeader,
    SearchOffsetHeader,
    SendMessageV2Header,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record, encode_record
from aerobee_proto.requests import NoFields
from aerobee_remoting.ends.server import RemotingServer, ServerConfig
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import Open
from aerobee_remoting.peers.peer import Peer

STORE_TIME_MS = 1_700_000_000_000
Outcome = Response | Callable[[Request[Any]], Response | None]


def silence(_: Request[Any]) -> None:
    """An outcome: the request is read and never answered."""


def hang_up(request: Request[Any]) -> None:
    """An outcome: the connection breaks instead of an answer."""
    request.connection.abort("the test wants it")


class Hold:
    """An outcome: requests wait until the test lets them go; `arrived` counts them."""

    def __init__(self, answer: Callable[[Request[Any]], Response | None]) -> None:
        self._answer = answer
        self._held: list[Request[Any]] = []
        self._changed = asyncio.Event()

    def __call__(self, request: Request[Any]) -> None:
        self._held.append(request)
        self._changed.set()

    @property
    def arrived(self) -> int:
        return len(self._held)

    async def wait_for(self, count: int) -> None:
        while len(self._held) < count:
            self._changed.clear()
            await self._changed.wait()

    def let_go(self) -> None:
        """Answer what is held, as the broker would have."""
        held, self._held = self._held, []
        for request in held:
            response = self._answer(request)
            if response is not None:
                request.respond(response)


class FakeServer:
    """Handlers with an ordered list of other outcomes, and a log of what was asked."""

    def __init__(self, config: ServerConfig | None = None) -> None:
        self._table = HandlerTable()
        self.usual: dict[int, Callable[[Request[Any]], Response | None]] = {}
        self._scripts: dict[int, deque[Outcome]] = defaultdict(deque)
        self._always: dict[int, Outcome] = {}
        self.requests: list[tuple[int, dict[str, str], bytes]] = []
        self._asked = asyncio.Event()
        self.server = RemotingServer(self._table, config=config)
        self.addr = ""

    def serve(
        self,
        code: int,
        usual: Callable[[Request[Any]], Response | None],
        header: type[msgspec.Struct] = NoFields,
    ) -> None:
        self.usual[code] = usual
        self._table.register(code, self._handle, needs=Open("a test"), header=header, body_size_max=1 << 24)

    def script(self, code: int, *outcomes: Outcome) -> None:
        """What happens to the next requests of `code`, one outcome each."""
        self._scripts[code].extend(outcomes)

    def always(self, code: int, outcome: Outcome | None) -> None:
        """What happens to every request of `code` from now on; None brings the usual back."""
        if outcome is None:
            self._always.pop(code, None)
        else:
            self._always[code] = outcome

    def hold(self, code: int) -> Hold:
        """Hold every request of `code` from now on."""
        hold = Hold(self.usual[code])
        self._always[code] = hold
        return hold

    def asked(self, code: int) -> list[dict[str, str]]:
        """Header fields of every request of a code so far."""
        return [ext for asked, ext, _ in self.requests if asked == code]

    async def wait_asked(self, code: int, count: int = 1) -> list[dict[str, str]]:
        while len(found := self.asked(code)) < count:
            self._asked.clear()
            await self._asked.wait()
        return found

    async def start(self, port: int = 0) -> None:
        self.addr = f"127.0.0.1:{await self.server.start('127.0.0.1', port)}"

    async def close(self) -> None:
        await self.server.close()

    def _handle(self, request: Request[Any]) -> Response | None:
        self.requests.append((request.code, dict(request.ext), bytes(request.body)))
        self._asked.set()
        script = self._scripts[request.code]
        outcome: Outcome | None = script.popleft() if script else self._always.get(request.code)
        if outcome is None:
            return self.usual[request.code](request)
        return outcome if isinstance(outcome, Response) else outcome(request)


class FakeNameserver(FakeServer):
    def __init__(self, config: ServerConfig | None = None) -> None:
        super().__init__(config)
        self.routes: dict[str, TopicRouteData] = {}
        self.cluster = ClusterInfo()
        self.serve(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route, RouteHeader)
        self.serve(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._topics)
        self.serve(RequestCode.GET_BROKER_CLUSTER_INFO, lambda _: Response(body=self.cluster.to_bytes()))

    def add_topic(self, topic: str, *brokers: "FakeBroker", queues: int = 2, perm: int = 6) -> None:
        self.routes[topic] = TopicRouteData(
            broker_datas=[
                BrokerData(broker_addrs={0: broker.addr}, broker_name=broker.name, cluster="c")
                for broker in brokers
            ],
            queue_datas=[
                QueueData(broker_name=broker.name, perm=perm, read_queue_nums=queues, write_queue_nums=queues)
                for broker in brokers
            ],
        )
        for data in self.routes[topic].broker_datas:
            self.cluster.broker_addr_table[data.broker_name] = data
        self.cluster.cluster_addr_table["c"] = sorted(self.cluster.broker_addr_table)

    def _route(self, request: Request[Any]) -> Response:
        route = self.routes.get(request.header.topic)
        if route is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info: {request.header.topic}")
        return Response(body=route.to_standard())

    def _topics(self, _: Request[Any]) -> Response:
        return Response(body=TopicList(topic_list=sorted(self.routes)).to_bytes())


class FakeBroker(FakeServer):
    def __init__(self, name: str = "b-a", config: ServerConfig | None = None) -> None:
        super().__init__(config)
        self.name = name
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.store_time_ms = STORE_TIME_MS
        self.end = 0
        self._held: dict[tuple[str, int], list[Request[Any]]] = defaultdict(list)
        serve, code = self.serve, RequestCode
        serve(code.SEND_MESSAGE_V2, self._send, SendMessageV2Header)
        serve(code.SEND_BATCH_MESSAGE, self.send_batch, SendMessageV2Header)
        serve(code.PULL_MESSAGE, self._pull, PullMessageHeader)
        serve(code.GET_MIN_OFFSET, lambda _: Response(ext={"offset": "0"}), QueueHeader)
        serve(code.GET_MAX_OFFSET, self._max, QueueHeader)
        serve(code.SEARCH_OFFSET_BY_TIMESTAMP, self._by_time, SearchOffsetHeader)
        serve(code.QUERY_CONSUMER_OFFSET, self._committed, QueryConsumerOffsetHeader)
        serve(code.UPDATE_CONSUMER_OFFSET, self._commit, UpdateConsumerOffsetHeader)
        serve(code.QUERY_MESSAGE, self._query, QueryMessageHeader)
        serve(code.VIEW_MESSAGE_BY_ID, self._view, ViewMessageHeader)
        serve(code.HEART_BEAT, self._beat)
        serve(code.UNREGISTER_CLIENT, lambda _: Response(), UnregisterClientHeader)
        # Groups and transactions.
        self._client_id = ""
        self.members: list[str] = []  # client ids besides the one that asks
        self.locked_by_others: set[int] = set()  # queue ids
        self.client: Peer | None = None  # the connection that sent the last heartbeat
        serve(code.GET_CONSUMER_LIST_BY_GROUP, self._list_members)
        serve(code.LOCK_BATCH_MQ, self._lock)
        serve(code.UNLOCK_BATCH_MQ, lambda _: Response())
        serve(code.CONSUMER_SEND_MSG_BACK, lambda _: Response())
        serve(code.END_TRANSACTION, lambda _: Response())
        serve(code.RECALL_MESSAGE, lambda _: Response(ext={"msgId": "taken back"}))
        serve(code.SEND_REPLY_MESSAGE_V2, lambda _: Response(ext={"msgId": "0", "queueOffset": "0"}))

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str = "",
        *,
        flag: int = 0,
        sys_flag: int = 0,
    ) -> tuple[int, str]:
        """Store one message: its queue offset and its offset id."""
        queue = self.queues[topic, queue_id]
        record = encode_record(
            topic=topic,
            queue_id=queue_id,
            queue_offset=len(queue),
            physical_offset=self.end,
            born_timestamp=self.store_time_ms - 1,
            born_host=("127.0.0.1", 1),
            store_timestamp=self.store_time_ms,
            store_host=("127.0.0.1", int(self.addr.rpartition(":")[2] or 1)),
            body=body,
            properties=properties,
            flag=flag,
            sys_flag=sys_flag,
            checksum=True,
        )
        queue.append(record)
        message_id = encode_offset_message_id("127.0.0.1", int(self.addr.rpartition(":")[2] or 1), self.end)
        self.end += len(record)
        self.store_time_ms += 1
        for request in self._held.pop((topic, queue_id), []):
            response = self._pull(request)
            assert response is not None
            request.respond(response)
        return len(queue) - 1, message_id

    def bodies(self, topic: str) -> list[bytes]:
        """Stored bodies of a topic, queue after queue."""
        return [
            decode_record(record).body
            for (name, _), queue in sorted(self.queues.items())
            if name == topic
            for record in queue
        ]

    def stored(self, topic: str, queue_id: int) -> list[bytes]:
        """Stored bodies of one queue."""
        return [decode_record(record).body for record in self.queues[topic, queue_id]]

    def _send(self, request: Request[Any]) -> Response:
        header: SendMessageV2Header = request.header
        offset, message_id = self.append(
            header.topic,
            header.queue_id,
            bytes(request.body),
            header.properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
        )
        return _stored(header, offset, message_id)

    def send_batch(self, request: Request[Any]) -> Response:
        header: SendMessageV2Header = request.header
        offsets, ids = [], []
        for flag, body, properties in split_batch(bytes(request.body)):
            offset, message_id = self.append(header.topic, header.queue_id, body, properties, flag=flag)
            offsets.append(offset)
            ids.append(message_id)
        return _stored(header, offsets[0], ",".join(ids))

    def _beat(self, request: Request[Any]) -> Response:
        self.client = request.connection
        self._client_id = HeartbeatData.from_bytes(request.body).client_id
        return Response()

    def _list_members(self, _: Request[Any]) -> Response:
        return Response(body=ConsumerIdList(consumer_id_list=[self._client_id, *self.members]).to_bytes())

    def _lock(self, request: Request[Any]) -> Response:
        expected = LockBatchBody.from_bytes(request.body).mq_set
        got = [queue for queue in expected if queue.queue_id not in self.locked_by_others]
        return Response(body=LockedQueues(locked=got).to_bytes())

    async def ask_client(self, code: int, header: dict[str, str], body: bytes = b"") -> Command:
        """A request of the broker to the client that is connected."""
        assert self.client is not None
        return await self.client.request(code, header, body)

    def notify_client(self, code: int, header: dict[str, str], body: bytes = b"") -> None:
        """The same without an answer."""
        assert self.client is not None
        self.client.send_oneway(code, header, body)

    def _pull(self, request: Request[Any]) -> Response | None:
        header: PullMessageHeader = request.header
        queue = self.queues[header.topic, header.queue_id]
        offset = header.queue_offset
        if offset > len(queue):
            return self._pulled(ResponseCode.PULL_OFFSET_MOVED, len(queue), len(queue))
        if offset == len(queue):
            if header.sys_flag & PullFlag.SUSPEND:
                self._held[header.topic, header.queue_id].append(request)
                return None
            return self._pulled(ResponseCode.PULL_NOT_FOUND, offset, len(queue))
        chosen = queue[offset : offset + min(header.max_msg_nums, 32)]
        return self._pulled(ResponseCode.SUCCESS, offset + len(chosen), len(queue), b"".join(chosen))

    @staticmethod
    def _pulled(code: int, next_offset: int, max_offset: int, body: bytes = b"") -> Response:
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": "0",
            "maxOffset": str(max_offset),
        }
        return Response(code, ext=ext, body=body)

    def _max(self, request: Request[Any]) -> Response:
        queue = self.queues[request.header.topic, request.header.queue_id]
        return Response(ext={"offset": str(len(queue))})

    def _by_time(self, request: Request[Any]) -> Response:
        queue = self.queues[request.header.topic, request.header.queue_id]
        older = sum(decode_record(one).store_timestamp < request.header.timestamp for one in queue)
        return Response(ext={"offset": str(older)})

    def _committed(self, request: Request[Any]) -> Response:
        header: QueryConsumerOffsetHeader = request.header
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None:
            return Response(ResponseCode.QUERY_NOT_FOUND, "Not found")
        return Response(ext={"offset": str(offset)})

    def _commit(self, request: Request[Any]) -> Response:
        header: UpdateConsumerOffsetHeader = request.header
        assert header.consumer_group is not None
        assert header.topic is not None
        assert header.queue_id is not None
        assert header.commit_offset is not None
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return Response()

    def _query(self, request: Request[Any]) -> Response:
        """Answers by substring, as an index with many hash collisions would."""
        header: QueryMessageHeader = request.header
        records = [one for queue in self.queues.values() for one in queue]
        found = [one for one in records if header.key in decode_record(one).properties]
        if not found:
            return Response(ResponseCode.QUERY_NOT_FOUND, "no message")
        return Response(body=b"".join(found[-header.max_num :]))

    def _view(self, request: Request[Any]) -> Response:
        for queue in self.queues.values():
            for record in queue:
                if decode_record(record).physical_offset == request.header.offset:
                    return Response(body=record)
        return Response(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")


def _stored(header: SendMessageV2Header, offset: int, message_id: str) -> Response:
    ext = {
        "msgId": message_id,
        "queueId": str(header.queue_id),
        "queueOffset": str(offset),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    return Response(ext=ext)


def split_batch(body: bytes) -> list[tuple[int, bytes, str]]:
    """Flag, body, properties of each entry; written from the format, not from our encoder."""
    entries = []
    position = 0
    while position < len(body):
        size, _, _, flag, body_size = struct.unpack_from(">iiiii", body, position)
        body_at = position + 20
        (properties_size,) = struct.unpack_from(">h", body, body_at + body_size)
        properties_at = body_at + body_size + 2
        assert properties_at + properties_size == position + size
        entries.append(
            (
                flag,
                body[body_at : body_at + body_size],
                body[properties_at : properties_at + properties_size].decode(),
            )
        )
        position += size
    return entries


def unique_keys(broker: FakeBroker, topic: str) -> list[str]:
    """UNIQ_KEY of every stored message of a topic."""
    return [
        decode_properties(decode_record(record).properties)["UNIQ_KEY"]
        for (name, _), queue in sorted(broker.queues.items())
        if name == topic
        for record in queue
    ]


class FakeCluster:
    """One nameserver and brokers, with the topic T (two queues on each)."""

    def __init__(self, nameserver: FakeNameserver, brokers: list[FakeBroker]) -> None:
        self.nameserver = nameserver
        self.brokers = brokers

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]


@asynccontextmanager
async def new_master(cluster: FakeCluster, queues: int = 2) -> AsyncIterator[FakeBroker]:
    """Another broker that has taken the place of the first one in its set; nameservers know it."""
    broker = FakeBroker(cluster.broker.name)
    await broker.start()
    try:
        cluster.nameserver.add_topic("T", broker, queues=queues)
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def fake_cluster(
    broker_count: int = 1, queues: int = 2, config: ServerConfig | None = None
) -> AsyncIterator[FakeCluster]:
    """A running cluster; everything is closed at the end."""
    async with AsyncExitStack() as stack:
        nameserver = FakeNameserver(config)
        brokers = [FakeBroker(f"b-{letter}", config) for letter in "abcd"[:broker_count]]
        for server in (nameserver, *brokers):
            await server.start()
            stack.push_async_callback(server.close)
        nameserver.add_topic("T", *brokers, queues=queues)
        yield FakeCluster(nameserver, brokers)
