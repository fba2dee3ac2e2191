"""The blocking client with our nameserver and broker as programs of their own."""

import threading
from collections.abc import Iterator

import pytest

from aerobee import DeadLetter, RetryLater
from aerobee.sync import Client, GroupMessage
from client_scenarios import BROKER_SETTINGS
from clusters import start_cluster
from plain_remoting import make_topic

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def addrs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with start_cluster("ours", tmp_path_factory.mktemp("sync"), BROKER_SETTINGS) as served:
        yield served.nameserver.address, served.broker.address


@pytest.fixture
def mq(addrs: tuple[str, str]) -> Iterator[Client]:
    with Client(addrs[0]) as client:
        yield client


def fresh(addrs: tuple[str, str], topic: str) -> str:
    make_topic(*addrs, topic)
    return topic


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last)]


def test_a_loop_acks_what_it_has_done_and_gives_back_what_it_has_not(
    mq: Client, addrs: tuple[str, str]
) -> None:
    topic = fresh(addrs, "SyncLoop")
    with mq.producer() as producer:
        producer.send_batch(topic, numbers(0, 10), queue=0)
    with mq.consumer("sync-loop", topic) as consumer:
        for message in consumer:
            if message.text() == "4":
                break
        consumer.commit()
        assert sum(consumer.positions.values()) == 4
        seen = []
        for message in consumer:
            seen.append(message.text())
            if len(seen) == 6:
                message.ack()
                break
    assert seen == numbers(4, 10)
    with mq.consumer("sync-loop", topic) as consumer:
        assert sum(consumer.positions.values()) == 10


def test_a_handler_in_threads(mq: Client, addrs: tuple[str, str]) -> None:
    topic = fresh(addrs, "SyncHandler")
    seen: list[tuple[str, int]] = []
    all_seen = threading.Event()
    together = threading.Barrier(3, timeout=30)

    def handler(message: GroupMessage) -> None:
        if message.text() in ("0", "1", "2") and not message.reconsume_times:
            together.wait()  # three at a time, or never
        seen.append((message.text(), message.reconsume_times))
        if len(seen) >= 6:
            all_seen.set()
        if message.text() == "3" and not message.reconsume_times:
            raise RetryLater(1)
        if message.text() == "4":
            raise DeadLetter

    with mq.consumer("sync-handler", topic) as consumer, mq.producer() as producer:
        working = threading.Thread(target=consumer.run, args=(handler,), kwargs={"concurrency": 3})
        working.start()
        for number in numbers(0, 5):
            producer.send(topic, number)
        assert all_seen.wait(30)
        consumer.close()
        working.join(10)
    assert sorted(seen) == [("0", 0), ("1", 0), ("2", 0), ("3", 0), ("3", 1), ("4", 0)]
    assert [message.text() for message in mq.reader("%DLQ%sync-handler", end="now")] == ["4"]


def test_transactions_requests_and_delays(mq: Client, addrs: tuple[str, str]) -> None:
    topic, asked = fresh(addrs, "SyncTx"), fresh(addrs, "SyncAsked")
    with mq.producer("sync-shop") as producer:
        with producer.transaction(topic, "committed") as tx:
            assert tx.transaction_id == tx.result.message_id
        with pytest.raises(ZeroDivisionError), producer.transaction(topic, "failed"):
            raise ZeroDivisionError
        with producer.transaction(topic, "refused") as tx:
            tx.rollback()
        withdrawn = producer.send(topic, "withdrawn", deliver_after=30)
        assert producer.cancel(withdrawn) == withdrawn.message_id
        with Client(addrs[0]) as other, other.consumer("sync-server", asked) as server:
            working = threading.Thread(
                target=server.run, args=(lambda message: message.reply(message.text().upper()),)
            )
            working.start()
            assert producer.request(asked, "hello", timeout_s=30).text() == "HELLO"
            server.close()
            working.join(10)
    assert [message.text() for message in mq.reader(topic, end="now")] == ["committed"]


def test_seek_and_pause(mq: Client, addrs: tuple[str, str]) -> None:
    topic = fresh(addrs, "SyncSeek")
    with mq.producer() as producer, mq.consumer("sync-seek", topic) as consumer:
        producer.send_batch(topic, numbers(0, 3), queue=0)
        for message in consumer:
            if message.text() == "2":
                message.ack()
                break
        (queue,) = [one for one in consumer.queues if one.topic == topic and one.queue_id == 0]
        consumer.pause(queue)
        consumer.seek("earliest", queue)
        assert consumer.positions[queue] == 0
        consumer.resume(queue)
        assert next(iter(consumer)).text() == "0"
