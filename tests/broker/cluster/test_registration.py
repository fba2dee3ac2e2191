"""Registration: what each nameserver hears, and when. The nameserver here is a recording one on a real socket."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.catalog.topics import TopicTable, system_topics
from aerobee_broker.cluster import registration
from aerobee_broker.cluster.registration import NameserverRegistrar, Nameservers
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.identity import BrokerIdentity, identity_of
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.bodies import (
    BrokerMemberGroup,
    BrokerMembers,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.headers import BrokerIdentityHeader, RegisterBrokerHeader
from aerobee_remoting.ends.server import RemotingServer
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import Open
from broker.support import Clock, small_config
from system.running import running_broker, send_request, talking

WAIT_S = 20.0


class FakeNameserver:
    """Says yes to everything, or what it is told to, and remembers what it heard."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.answer = Response()
        self.changed = "true"
        self.answers = asyncio.Event()  # clear: registrations wait for their answer
        self.answers.set()
        table = HandlerTable()
        table.register(
            RequestCode.REGISTER_BROKER,
            self._register,
            needs=Open("a test"),
            header=RegisterBrokerHeader,
            body_size_max=1 << 24,
        )
        for code in (RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION):
            table.register(
                code, self._other, needs=Open("a test"), header=BrokerIdentityHeader, body_size_max=1 << 10
            )
        self.server = RemotingServer(table)
        self.port = 0

    async def start(self, port: int = 0) -> str:
        self.port = await self.server.start("127.0.0.1", port)
        return f"127.0.0.1:{self.port}"

    async def _register(self, request: Request[Any]) -> Response:
        header: RegisterBrokerHeader = request.header
        assert header.body_crc32 == zlib.crc32(request.body) & 0x7FFFFFFF
        if header.compressed:
            body = RegisterBrokerBody.from_compressed(request.body, with_mapping=True)
        else:
            body = RegisterBrokerBody.from_bytes(request.body)
        self.received.put_nowait(("register", body.topic_config_serialize_wrapper))
        await self.answers.wait()
        return self.answer

    def _other(self, request: Request[Any]) -> Response:
        is_query = request.code == RequestCode.QUERY_DATA_VERSION
        self.received.put_nowait(("query" if is_query else "unregister", request.header))
        return Response(ext={"changed": self.changed})

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(WAIT_S):
            return await self.received.get()

    async def next_topics(self) -> dict[str, TopicConfig]:
        what, wrapper = await self.next()
        assert what == "register"
        assert isinstance(wrapper, TopicConfigWrapper)
        return wrapper.topic_config_table


class Setup:
    """A registrar with its table, clock and settings."""

    def __init__(self, root: Path, addresses: list[str], **settings: Any) -> None:
        self.clock = Clock()
        config = small_config(root, namesrv_addr=";".join(addresses), **settings)
        self.live = LiveConfig(config, now_ms=self.clock())
        nameservers = Nameservers()
        self.topics = TopicTable(
            self.live, self.clock, on_dirty=lambda: None, on_change=nameservers.topics_changed
        )
        self.is_masters_address = False
        self.registrar = NameserverRegistrar(
            self.live,
            self.topics,
            self.clock,
            identity_of(config, 10911),
            nameservers,
            is_masters_address=lambda: self.is_masters_address,
        )


@asynccontextmanager
async def running(
    tmp_path: Path, nameservers: int = 1, **settings: Any
) -> AsyncIterator[tuple[Setup, list[FakeNameserver]]]:
    fakes = [FakeNameserver() for _ in range(nameservers)]
    setup = Setup(tmp_path, [await fake.start() for fake in fakes], **settings)
    setup.registrar.start()
    try:
        yield setup, fakes
    finally:
        await setup.registrar.stop()
        for fake in fakes:
            await fake.server.close()


async def test_every_nameserver_hears_all_topics_first(tmp_path: Path) -> None:
    async with running(tmp_path, nameservers=2) as (setup, fakes):
        for fake in fakes:
            topics = await fake.next_topics()
            assert topics == setup.topics.all()
            assert len(topics) > 1
        assert await setup.registrar.first_round() == 2
        assert [state.reason for state in setup.registrar.states] == ["", ""]


async def test_a_change_is_sent_alone_and_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path, nameservers=2) as (setup, fakes):
        await setup.registrar.first_round()
        setup.topics.for_send("T", template="TBW102", queue_count=2)
        assert await setup.registrar.settled(WAIT_S)
        for fake in fakes:
            await fake.next_topics()
            _, wrapper = fake.received.get_nowait()
            assert list(wrapper.topic_config_table) == ["T"]
            assert wrapper.data_version == setup.topics.version


async def test_the_epoch_of_a_mastership_is_the_version_of_what_is_registered(tmp_path: Path) -> None:
    """A master that had stood still registered before it noticed, and clients sent to it again for half a minute."""
    async with running(tmp_path) as (setup, fakes):
        await fakes[0].next_topics()
        setup.registrar.identity = replace(setup.registrar.identity, epoch=7)
        setup.registrar.register_all()
        _, wrapper = await fakes[0].next()
        assert wrapper.data_version.state_version == 7
        assert wrapper.data_version.counter == setup.topics.version.counter


async def test_a_deletion_sends_all_topics_again(tmp_path: Path) -> None:
    async with running(tmp_path) as (setup, (fake,)):
        setup.topics.for_send("T", template="TBW102", queue_count=2)
        await setup.registrar.first_round()
        setup.topics.delete("T")
        assert await setup.registrar.settled(WAIT_S)
        topics: dict[str, TopicConfig] = {}
        while not fake.received.empty():
            topics = await fake.next_topics()
        assert topics == setup.topics.all()
        assert "T" not in topics


async def test_a_lost_connection_is_answered_by_all_topics_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (setup, (fake,)):
        await setup.registrar.first_round()
        await fake.next_topics()
        with capture_logs() as logs:
            for connection in list(fake.server.connections):
                connection.abort()
            assert await fake.next_topics() == setup.topics.all()
        assert "broker.nameserver_lost" in [line["event"] for line in logs]


async def test_a_nameserver_that_is_down_does_not_hold_the_others_up(tmp_path: Path) -> None:
    down, up = FakeNameserver(), FakeNameserver()
    address = await down.start()
    await down.server.close()
    setup = Setup(tmp_path, [address, await up.start()])
    with capture_logs() as logs:
        setup.registrar.start()
        assert await setup.registrar.first_round() == 1
        assert [line["nameserver"] for line in logs if line["event"] == "broker.registration_failed"] == [
            address
        ]
    setup.topics.for_send("T", template="TBW102", queue_count=2)
    assert await setup.registrar.settled(WAIT_S)
    # It comes up, and hears all topics, the new one among them.
    late = FakeNameserver()
    await late.start(int(address.rpartition(":")[2]))
    assert await late.next_topics() == setup.topics.all()
    await setup.registrar.stop()
    await late.server.close()
    await up.server.close()


async def test_a_slave_at_its_masters_address_leaves_registering_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nameserver has one broker at an address: it forgot the master, and official producers found no queue."""
    monkeypatch.setattr(registration, "MASTERLESS_S", 0.01)
    fake = FakeNameserver()
    setup = Setup(tmp_path, [await fake.start()])
    setup.is_masters_address = True
    setup.registrar.start()
    assert await setup.registrar.first_round() == 0
    setup.topics.for_send("T", template="TBW102", queue_count=2)
    assert await setup.registrar.settled(WAIT_S)
    assert [state.left_to_master for state in setup.registrar.states] == [True]
    assert fake.received.empty()
    setup.is_masters_address = False
    assert await fake.next_topics() == setup.topics.all()
    assert [state.left_to_master for state in setup.registrar.states] == [False]
    await setup.registrar.stop()
    await fake.server.close()


@pytest.mark.parametrize("other", ["", "10.0.0.2:10911"])
async def test_a_master_whose_place_another_one_has_taken_says_so(tmp_path: Path, other: str) -> None:
    async with running(tmp_path) as (setup, (fake,)):
        await setup.registrar.first_round()
        asked = asyncio.Event()

        def members(_: Request[Any]) -> Response:
            asked.set()
            addr = other or setup.registrar.identity.broker_addr
            group = BrokerMembers(broker_addrs={0: addr}, broker_name="golden-a")
            return Response(body=BrokerMemberGroup(broker_member_group=group).to_bytes())

        fake.server.handlers.register(
            RequestCode.GET_BROKER_MEMBER_GROUP, members, needs=Open("a test"), header=BrokerIdentityHeader
        )
        with capture_logs() as logs:
            setup.registrar.register_all()
            assert await setup.registrar.settled(WAIT_S)
        assert asked.is_set()
        split = [line["other_addr"] for line in logs if line["event"] == "replication.split_set"]
        assert split == ([other] if other else [])


async def test_stopping_unregisters(tmp_path: Path) -> None:
    async with running(tmp_path) as (setup, (fake,)):
        await setup.registrar.first_round()
        await fake.next_topics()
        await setup.registrar.stop()
        what, header = fake.received.get_nowait()
        assert what == "unregister"
        identity = setup.registrar.identity
        assert (header.broker_name, header.broker_addr, header.broker_id) == (
            "golden-a",
            identity.broker_addr,
            0,
        )


async def test_a_refusal_is_reported_and_tried_again(tmp_path: Path) -> None:
    fake = FakeNameserver()
    fake.answer = Response(ResponseCode.SYSTEM_ERROR, "not you")
    setup = Setup(tmp_path, [await fake.start()])
    with capture_logs() as logs:
        setup.registrar.start()
        assert await setup.registrar.first_round() == 0
    assert "not you" in setup.registrar.states[0].reason
    events = [line["event"] for line in logs if line["event"].startswith("broker.")]
    assert events == ["broker.registration_failed"]
    fake.answer = Response()
    await fake.next_topics()
    await fake.next_topics()
    await setup.registrar.stop()
    await fake.server.close()


async def test_the_permission_masks_the_topics(tmp_path: Path) -> None:
    async with running(tmp_path, broker_permission=4) as (setup, (fake,)):
        topics = await fake.next_topics()
        assert {topic.perm & 2 for topic in topics.values()} == {0}
        assert setup.topics.require("SELF_TEST_TOPIC").perm == 6


async def test_the_compressed_form_says_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, compressed_register=True) as (setup, (fake,)):
        assert await fake.next_topics() == setup.topics.all()


async def test_order_settings_of_a_nameserver_are_taken(tmp_path: Path) -> None:
    fake = FakeNameserver()
    fake.answer = Response(body=KVTable(table={"T": "golden-a:2"}).to_bytes())
    setup = Setup(tmp_path, [await fake.start()])
    setup.topics.for_send("T", template="TBW102", queue_count=2)
    setup.registrar.start()
    await setup.registrar.first_round()
    assert setup.topics.require("T").order
    await setup.registrar.stop()
    await fake.server.close()


@pytest.mark.parametrize("changed", ["true", "false"])
async def test_without_force_the_nameserver_is_asked_first(changed: str, tmp_path: Path) -> None:
    async with running(tmp_path, force_register=False) as (setup, (fake,)):
        fake.changed = changed
        await setup.registrar.first_round()
        await fake.next_topics()
        for state in setup.registrar.states:
            state.wake.set()
        what, _ = await fake.next()
        assert what == "query"
        if changed == "true":
            assert await fake.next_topics() == setup.topics.all()
        else:
            assert fake.received.empty()


async def test_a_new_list_of_nameservers_is_followed(tmp_path: Path) -> None:
    async with running(tmp_path) as (setup, (first,)):
        await setup.registrar.first_round()
        second = FakeNameserver()
        address = await second.start()
        setup.live.replace({"namesrvAddr": address}, origin="test", now_ms=setup.clock())
        setup.registrar.apply_config()
        assert await second.next_topics() == setup.topics.all()
        assert [state.addr for state in setup.registrar.states] == [address]
        await setup.registrar.stop()
        await second.server.close()
        assert first.port


async def test_who_cannot_wait_is_called_when_everybody_has_heard(tmp_path: Path) -> None:
    async with running(tmp_path) as (setup, (fake,)):
        await setup.registrar.first_round()
        called: list[str] = []
        setup.registrar.when_settled(WAIT_S, lambda: called.append("nothing to wait for"))
        assert called == ["nothing to wait for"]
        fake.answers.clear()
        setup.topics.for_send("T", template="TBW102", queue_count=2)
        late, heard = asyncio.Event(), asyncio.Event()
        setup.registrar.when_settled(0.001, late.set)
        setup.registrar.when_settled(WAIT_S, heard.set)
        async with asyncio.timeout(WAIT_S):
            await late.wait()
            assert not heard.is_set()
            fake.answers.set()
            await heard.wait()
        fake.answers.clear()
        setup.topics.for_send("U", template="TBW102", queue_count=2)
        setup.registrar.when_settled(WAIT_S, lambda: called.append("it ends"))
        await asyncio.sleep(0)
        await setup.registrar.stop()
        assert called[1:] == ["it ends"]
        fake.answers.set()


async def test_the_send_that_makes_a_topic_is_answered_when_the_nameserver_knows_it(tmp_path: Path) -> None:
    """A reader that asked for the topic right behind the answer was refused."""
    fake = FakeNameserver()
    address = await fake.start()
    async with running_broker(tmp_path, namesrv_addr=address) as broker, talking(broker) as talker:
        await broker.parts.registrar.first_round()
        broker.parts.topics.update([TopicConfig(topic_name="T")])
        assert await broker.parts.registrar.settled(WAIT_S)
        batch, another = [
            send_request("M", encode_batch([BatchEntry(0, b"m", "")]), opaque=opaque, batch="true")
            for opaque in (4, 5)
        ]
        batch.code = another.code = RequestCode.SEND_BATCH_MESSAGE
        fake.answers.clear()
        talker.send(
            send_request("N", b"1", opaque=1),
            send_request("T", b"2", opaque=2),
            send_request("N", b"3", opaque=3),
            batch,
        )
        first = await talker.answers(2)
        assert sorted(first) == [2, 3]
        talker.send(another)  # it found the topic
        assert sorted(await talker.answers(1)) == [5]
        fake.answers.set()
        behind = await talker.answers(2)
        assert sorted(behind) == [1, 4]
        assert {answer.code for answer in (first | behind).values()} == {0}
    await fake.server.close()


async def test_without_nameservers_everything_is_settled(tmp_path: Path) -> None:
    setup = Setup(tmp_path, [])
    setup.registrar.start()
    assert await setup.registrar.first_round() == 0
    assert await setup.registrar.settled(0.001)
    await setup.registrar.stop()


def test_a_first_registration_is_never_about_one_topic(tmp_path: Path) -> None:
    """A nameserver refuses an unknown broker that offers a single topic."""
    barest = small_config(tmp_path, auto_create_topic_enable=False, cluster_topic_enable=False)
    assert len(system_topics(barest)) > 1


def test_the_identity_is_what_clients_can_dial(tmp_path: Path) -> None:
    assert identity_of(small_config(tmp_path), 5) == BrokerIdentity(
        "GoldenCluster", "golden-a", 0, "127.0.0.2", 5, "127.0.0.2:6"
    )
    local = small_config(tmp_path, broker_ip1="", bind_address="127.0.0.1")
    assert identity_of(local, 5).broker_addr == "127.0.0.1:5"
    assert identity_of(small_config(tmp_path, broker_ip1="::1"), 5).broker_addr == "[::1]:5"
    everywhere = identity_of(small_config(tmp_path, broker_ip1="", bind_address="0.0.0.0"), 5)
    assert everywhere.host not in ("", "0.0.0.0")
