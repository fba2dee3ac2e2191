"""The blocking facade: the cluster runs in a loop of its own thread, as it would in another process."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

import aerobee
import aerobee.sync
from aerobee import BrokerRefused, ClientClosed, InvalidMessage, MessageQueue, OutgoingMessage
from aerobee.producing.transactions import Transaction
from aerobee.sync import Client
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeCluster, fake_cluster

Q0 = MessageQueue("T", "b-a", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    started: Future[FakeCluster] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with fake_cluster(queues=1) as running:
            started.set_result(running)
            await stop.wait()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    yield started.result(10)
    loop.call_soon_threadsafe(stop.set)
    thread.join()


@pytest.fixture
def mq(cluster: FakeCluster) -> Iterator[Client]:
    with Client(cluster.nameserver.addr) as client:
        yield client


def test_messages_sent_are_read_back(cluster: FakeCluster, mq: Client) -> None:
    with mq.producer("shop", linger_s=0.001) as producer:
        first = producer.send("T", b"0", keys="k")
        futures = [producer.send_nowait("T", b"%d" % number) for number in range(1, 5)]
        producer.flush()
        assert [future.result().queue_offset for future in futures] == [1, 2, 3, 4]
        assert len(producer.send_batch("T", [OutgoingMessage(b"5"), b"6"])) == 2
        producer.send_oneway("T", b"7")
        assert producer.queues("T") == mq.queues("T") == (Q0,)
    with mq.reader("T", end=8) as reader:
        assert [message.body for message in reader] == [b"%d" % number for number in range(8)]
        assert reader.positions == {Q0: 8}
        reader.seek(Q0, 6)
        assert [message.body for message in reader] == [b"6", b"7"]
    assert [message.body for message in mq.query("T", key="k")] == [b"0"]
    found = mq.query_by_id(first.offset_message_id)
    assert found is not None
    assert found.body == b"0"


def test_commit_covers_the_message_in_hand(cluster: FakeCluster, mq: Client) -> None:
    for number in range(5):
        cluster.broker.append("T", 0, b"%d" % number)
    with mq.pull_consumer("g", "T", end="now") as consumer:
        assert consumer.queues == (Q0,)
        for message in consumer:
            if message.body == b"2":
                assert consumer.commit() == {Q0: 3}
                break
        assert consumer.committed(Q0) == 3
        consumer.seek("earliest")
        assert [len(batch) for batch in consumer.batches()] == [5]


def test_errors_come_through(cluster: FakeCluster, mq: Client) -> None:
    with mq.producer() as producer:
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, Response(ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(BrokerRefused, match="no"):
            producer.send("T", b"x")
        with pytest.raises(InvalidMessage):
            producer.send("T", b"")
    with pytest.raises(InvalidMessage, match="unknown setting"):
        mq.reader("T", ende=5)


def test_send_nowait_waits_for_room(cluster: FakeCluster, mq: Client) -> None:
    with mq.producer(pending_count_max=2) as producer:
        futures = [producer.send_nowait("T", b"%d" % number) for number in range(50)]
    assert len([future.result() for future in futures]) == 50


def test_several_threads_share_one_client(cluster: FakeCluster, mq: Client) -> None:
    with mq.producer() as producer:

        def work() -> None:
            for _ in range(20):
                producer.send("T", b"x")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(cluster.broker.bodies("T")) == 80


def test_administration_has_the_same_names(cluster: FakeCluster, mq: Client) -> None:
    assert mq.admin.topics() == ["T"]
    assert mq.admin.max_offset(Q0) == 0
    with pytest.raises(AttributeError):
        mq.admin.no_such_call  # type: ignore[attr-defined] # noqa: B018


def test_closing_ends_a_call_of_another_thread(cluster: FakeCluster) -> None:
    mq = Client(cluster.nameserver.addr)
    ended: Future[BaseException] = Future()
    with mq:
        reader = mq.reader("T")

        def wait() -> None:
            try:
                reader.next_batch()
            except BaseException as error:
                ended.set_result(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not cluster.broker.asked(RequestCode.PULL_MESSAGE):
            mq.admin.topics()  # a round trip each: no sleeping
    assert isinstance(ended.result(10), ClientClosed)
    thread.join()
    assert threading.current_thread() is threading.main_thread()


def test_a_closed_client_says_so(cluster: FakeCluster) -> None:
    with Client(cluster.nameserver.addr) as mq:
        reader = mq.reader("T", end="now")
    for call in (mq.producer, lambda: mq.reader("T"), lambda: mq.admin, reader.next_batch, mq.__enter__):
        with pytest.raises(ClientClosed):
            call()
    mq.close()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster) -> None:
    monkeypatch.setenv("AEROBEE_NAMESERVERS", cluster.nameserver.addr)
    with Client.from_env() as mq:
        assert mq.admin.topics() == ["T"]


# Called by the library itself, or there in another form: loops and blocks are `for` and `with`.
ONLY_ASYNCHRONOUS: dict[str, set[str]] = {
    "Client": {"bulk_sender", "ranges", "replay"},  # for tools
    "Producer": {"ready"},
    "Reader": {"walk"},
    "PullConsumer": {"walk"},
    "GroupConsumer": {
        *("acked", "later", "reply", "put_back", "take", "next_message", "consume_directly", "rates"),
        *("batches", "group", "orderly"),
    },
    "GroupMessage": {"settle_acked"},
    "Admin": set(),
    "Transaction": set(),
}


@pytest.mark.parametrize("name", ONLY_ASYNCHRONOUS)
def test_every_call_has_a_blocking_twin_with_the_same_arguments(name: str) -> None:
    twin, original = getattr(aerobee.sync, name), getattr(aerobee, name, Transaction)
    calls = {key: call for key, call in vars(original).items() if not key.startswith("_") and callable(call)}
    assert calls
    for key, call in calls.items():
        if key in ONLY_ASYNCHRONOUS[name]:
            continue
        blocking = getattr(twin, key)
        assert not inspect.iscoroutinefunction(blocking)
        if (name, key) in {("Client", "consumer"), ("GroupConsumer", "run")}:
            continue  # settings are passed on by name, whatever they are
        assert _parameters(blocking) == _parameters(call), (name, key)
        assert blocking.__doc__


def _parameters(call: object) -> list[tuple[str, object, object]]:
    assert callable(call)
    found = list(inspect.signature(call).parameters.values())[1:]
    return [(one.name, one.kind, one.default) for one in found]
