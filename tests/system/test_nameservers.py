"""Several nameservers, each of them restarted, or cut off from brokers and clients: everybody carries on, and the route
tables agree again by themselves.

Each nameserver stands behind a forwarder, which hangs up on everybody and takes nobody while it is cut.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from aerobee import Client
from aerobee_broker.cluster import registration
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.server import NameServer
from aerobee_proto.bodies import TopicRouteData
from aerobee_proto.codes import RequestCode
from broker.replication.pairs import eventually
from client.inside import session_of
from system.running import running_broker, talking


class Forwarder:
    """A port before another one. `cut` hangs up and closes it, `heal` opens it again."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def heal(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await eventually(lambda: not self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward, to_target = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_target}
        try:
            await asyncio.gather(_copy(reader, to_target), _copy(onward, writer))
        finally:
            self._writers -= {writer, to_target}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()


class Place:
    """One nameserver and its forwarder, whose port stays the same when the nameserver is another one."""

    def __init__(self) -> None:
        self.server = self._new()
        self.forwarder = Forwarder(0)

    def _new(self) -> NameServer:
        return NameServer(NameserverConfig(listen_port=0, bind_address="127.0.0.1"), keep_kv=False)

    async def start(self) -> None:
        self.forwarder.target = await self.server.start()
        await self.forwarder.heal()

    async def restart(self) -> None:
        await self.server.close()
        self.server = self._new()
        self.forwarder.target = await self.server.start()

    async def close(self) -> None:
        await self.forwarder.cut()
        await self.server.close()

    async def route(self, topic: str) -> TopicRouteData | None:
        """As this one tells it."""
        async with talking(self.forwarder.target) as talker:
            fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
            answer = await talker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            return TopicRouteData.from_bytes(answer.body) if answer.code == 0 else None


@asynccontextmanager
async def nameservers(count: int) -> AsyncIterator[list[Place]]:
    async with AsyncExitStack() as stack:
        places = [Place() for _ in range(count)]
        for place in places:
            stack.push_async_callback(place.close)
            await place.start()
        yield places


def addresses(places: list[Place], separator: str = ";") -> str:
    return separator.join(f"127.0.0.1:{place.forwarder.port}" for place in places)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "RETRY_MAX_S", 0.2)


async def agree(places: list[Place], topic: str) -> None:
    """Wait until all tell the same route."""
    async with asyncio.timeout(20):
        while True:
            routes = [await place.route(topic) for place in places]
            if routes[0] is not None and all(route == routes[0] for route in routes):
                return


async def test_each_may_be_cut_off_or_restarted_and_the_tables_agree_again(tmp_path: Path) -> None:
    async with (
        nameservers(3) as places,
        running_broker(tmp_path, namesrv_addr=addresses(places)) as broker,
        Client([f"127.0.0.1:{place.forwarder.port}" for place in places]) as mq,
        mq.producer(send_timeout_s=20) as producer,
    ):
        await broker.parts.registrar.first_round()
        for number, place in enumerate(places):
            topic = f"Made-{number}"
            await place.forwarder.cut()
            await eventually(lambda: broker.parts.registrar.registered_count == 2)
            await mq.admin.create_topic(topic, queues=2)
            assert (await producer.send(topic, b"cut off")).queue_offset == 0
            await session_of(mq).routes.refresh_all()
            assert await place.route(topic) is None
            await place.forwarder.heal()
            await eventually(lambda: broker.parts.registrar.registered_count == 3)
            await agree(places, topic)
            await place.restart()
            assert (await producer.send(topic, b"restarted")).queue is not None
            await eventually(lambda: broker.parts.registrar.registered_count == 3)
            await agree(places, topic)
        for place in places:  # and one after the other until none is left
            await place.forwarder.cut()
            await producer.send("Made-0", b"alone")
        for place in places:
            await place.forwarder.heal()
        await eventually(lambda: broker.parts.registrar.registered_count == 3)
        for number in range(3):
            await agree(places, f"Made-{number}")
