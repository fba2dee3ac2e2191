"""A stream over several brokers, of which one comes later, and one goes and comes back."""

from pathlib import Path

import pytest

from aerobee import MessageQueue
from aerobee.sync import Client
from ours import start_broker, start_nameserver
from pipeline.streams import Stream
from plain_remoting import has_route, wait_until
from programs import Server, free_port
from pyspark_aerobee.errors import SourceGone
from pyspark_aerobee.topic_stream import from_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "Spread"


def send(nameserver: Server, broker_name: str, *numbers: int) -> None:
    with Client(nameserver.address) as mq, mq.producer() as producer:
        for number in numbers:
            producer.send(TOPIC, b"%d" % number, queue=MessageQueue(TOPIC, broker_name, 0))


def test_brokers_come_and_go(tmp_path: Path) -> None:
    port = free_port(-2, 1)
    with start_nameserver() as nameserver, Stream(nameserver.address, TOPIC) as stream:
        a = start_broker(tmp_path / "a", nameserver.address, name="broker-a", port=port)
        with Client(nameserver.address) as mq:
            mq.admin.create_topic(TOPIC, queues=2)
        send(nameserver, "broker-a", 1, 2)
        at = stream.next(stream.start())
        assert at == {TOPIC: {"broker-a": {"0": 2, "1": 0}}}
        with start_broker(tmp_path / "b", nameserver.address, name="broker-b"):
            with Client(nameserver.address) as mq:
                mq.admin.create_topic(TOPIC, queues=1, brokers=["broker-b"])
            send(nameserver, "broker-b", 10, 11, 12)
            end = stream.next(at)
            assert stream.bodies(at, end) == [10, 11, 12]
            assert end == {TOPIC: {"broker-a": {"0": 2, "1": 0}, "broker-b": {"0": 3}}}
            # One of them dies: its place is kept, the other is read on.
            send(nameserver, "broker-a", 3)
            a.kill()
            wait_until(lambda: not has_route(nameserver.address, TOPIC, "broker-a"), "broker-a is forgotten")
            send(nameserver, "broker-b", 13)
            at, end = end, stream.next(end)
            offsets = from_json(end)
            assert offsets[MessageQueue(TOPIC, "broker-a", 0)] == 2
            assert stream.bodies(at, end) == [13]
            # It comes back with what it had.
            with start_broker(tmp_path / "a", nameserver.address, name="broker-a", port=port):
                at, end = end, stream.next(end)
                assert stream.bodies(at, end) == [3]
        with pytest.raises(SourceGone):
            stream.next(end)
