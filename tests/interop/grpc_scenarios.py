"""The official Python client (gRPC, 5.x) at work through a proxy: `grpc_scenarios.py ENDPOINT SCENARIO...`.

A program of its own, since that client leaves threads and log files behind. All scenarios run at once; each prints
`RESULT name {json}`, or `FAILED name` and why. The report holds what the client saw and judges nothing.

Topics and groups are named after their scenario and must be there, with the type of message that they take.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketmq import (  # type: ignore[import-untyped]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception import InternalErrorException  # type: ignore[import-untyped]

WAIT_S = 60.0
INVISIBLE_S = 30
AWAIT_S = 5  # how long an empty receive is held
BODY_SIZES = [1, 300, 6_000, 100_000]  # in turn; the client compresses from 4 KiB on

SAYING = threading.Lock()

Facts = dict[str, Any]


class Place:
    """Where one scenario takes place: its topic, which is also its group, and its clients."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.topic = topic
        self._configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=20)

    @contextmanager
    def producer(self, checker: TransactionChecker | None = None) -> Iterator[Producer]:
        with running(Producer(self._configuration, (self.topic,), checker)) as producer:
            yield producer

    @contextmanager
    def simple(self, group: str | None = None, tag: str = "*") -> Iterator[SimpleConsumer]:
        expected = {self.topic: FilterExpression(tag)}
        consumer = SimpleConsumer(self._configuration, group or self.topic, expected, AWAIT_S)
        with running(consumer) as started:
            yield started

    @contextmanager
    def push(self, listener: MessageListener, group: str | None = None) -> Iterator[PushConsumer]:
        expected = {self.topic: FilterExpression()}
        with running(PushConsumer(self._configuration, group or self.topic, listener, expected)) as started:
            yield started

    def message(self, i: int) -> Message:
        """Message i of the topic."""
        message = Message()
        message.topic = self.topic
        message.body = body(self.topic, i)
        message.tag = "TagB" if i % 3 == 0 else "TagA"
        message.keys = f"{self.topic}-{i}"
        message.add_property("index", str(i))
        message.add_property("text", f"Grüße 消息 {i}")
        return message

    def sums(self, indexes: range) -> dict[str, str]:
        """What Deliveries calls `sum`, of these messages, by key."""
        return {f"{self.topic}-{i}": total(self.message(i)) for i in indexes}


@contextmanager
def running(client: Any) -> Iterator[Any]:
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


class Deliveries:
    """Every delivery of a message, in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: list[Facts] = []

    def add(self, message: Message) -> None:
        one = {
            "key": " ".join(message.keys),
            "index": int(message.properties["index"]),
            "sum": total(message),
            "attempt": message.delivery_attempt,
            "group": message.message_group,
            "corrupted": message.corrupted,
            "at_ms": time.time() * 1000,
        }
        with self._changed:
            self._all.append(one)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Facts]:
        """Wait until there are `count` deliveries; all that came, which are fewer after WAIT_S."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._all) >= count, WAIT_S)
            return list(self._all)

    def __len__(self) -> int:
        with self._changed:
            return len(self._all)


class Listener(MessageListener):  # type: ignore[misc]
    """Notes what it takes; `refuse` says which deliveries fail, after they were noted."""

    def __init__(
        self, deliveries: Deliveries, refuse: Callable[[Message], bool] = lambda message: False
    ) -> None:
        self._deliveries, self._refuse = deliveries, refuse

    def consume(self, message: Message) -> ConsumeResult:
        self._deliveries.add(message)
        return ConsumeResult.FAILURE if self._refuse(message) else ConsumeResult.SUCCESS


def normal(place: Place) -> Facts:
    """Sent in both ways; read by a push consumer, a simple one, and a simple one of one tag."""
    count, pushed = 60, Deliveries()
    with place.push(Listener(pushed), f"{place.topic}-push"):
        with place.producer() as producer:
            receipts = [producer.send(place.message(i)) for i in range(count // 2)]
            futures = [producer.send_async(place.message(i)) for i in range(count // 2, count)]
            receipts += [future.result(WAIT_S) for future in futures]
        with place.simple() as consumer:
            polled = receive(consumer, count)
        with place.simple(f"{place.topic}-tag", "TagB") as consumer:
            tagged = receive(consumer, count // 3)
        return {
            "sent": place.sums(range(count)),
            "ids": [receipt.message_id for receipt in receipts],
            "pushed": pushed.wait(count),
            "polled": polled,
            "tagged": tagged,
        }


def invisible(place: Place) -> Facts:
    """Messages that are received and not acknowledged come again when their time is over, and then no more."""
    count = 8
    with place.producer() as producer, place.simple() as consumer:
        for i in range(count):
            producer.send(place.message(i))
        first = receive(consumer, count, lambda message: consumer.change_invisible_duration(message, 2))
        changed_ms = time.time() * 1000
        second = receive(consumer, count)
        return {
            "sent": place.sums(range(count)),
            "first": first,
            "changed_ms": changed_ms,
            "second": second,
            "third": receive_once(consumer),
        }


def fifo(place: Place) -> Facts:
    """Four message groups, sent in turn; each fortieth delivery fails once and comes again before what follows it."""
    count, groups, pushed = 80, 4, Deliveries()
    failed: set[int] = set()

    def refuse(message: Message) -> bool:
        index = int(message.properties["index"])
        if index % 40 or index in failed:
            return False
        failed.add(index)
        return True

    with place.producer() as producer:
        for i in range(count):
            message = place.message(i)
            message.message_group = f"group-{i % groups}"
            producer.send(message)
    with place.push(Listener(pushed, refuse)):
        deliveries = pushed.wait(count + 2)
        return {"sent": place.sums(range(count)), "deliveries": deliveries, "failed": sorted(failed)}


def delay(place: Place) -> Facts:
    """Messages for a time of their own, in whole seconds; every fourth is taken back."""
    count, due_ms, recalled = 16, {}, []
    pushed = Deliveries()
    with place.push(Listener(pushed)), place.producer() as producer:
        for i in range(count):
            message = place.message(i)
            due_s = int(time.time()) + (8 if i % 4 == 3 else 3 + i % 3)
            message.delivery_timestamp = due_s
            due_ms[f"{place.topic}-{i}"] = due_s * 1000
            receipt = producer.send(message)
            if i % 4 == 3:
                producer.recall_message(place.topic, receipt.recall_handle)
                recalled.append(i)
        last = place.message(count)
        last.delivery_timestamp = int(time.time()) + 10  # due after those that were taken back
        due_ms[f"{place.topic}-{count}"] = last.delivery_timestamp * 1000
        producer.send(last)
        deliveries = pushed.wait(count - len(recalled) + 1)
        return {
            "sent": place.sums(range(count + 1)),
            "deliveries": deliveries,
            "due_ms": due_ms,
            "recalled": recalled,
        }


def transaction(place: Place) -> Facts:
    """By index modulo 4: committed, rolled back, left open and committed by the check, left open and rolled back."""
    count, checked = 24, []
    pushed = Deliveries()

    class Checker(TransactionChecker):  # type: ignore[misc]
        def check(self, message: Message) -> TransactionResolution:
            index = int(message.properties["index"])
            checked.append(index)
            return TransactionResolution.COMMIT if index % 4 in (0, 2) else TransactionResolution.ROLLBACK

    with place.push(Listener(pushed)), place.producer(Checker()) as producer:
        for i in range(count):
            half = producer.begin_transaction()
            producer.send(place.message(i), half)
            if i % 4 == 0:
                half.commit()
            elif i % 4 == 1:
                half.rollback()
        deliveries = pushed.wait(count // 2)
        deadline = time.monotonic() + WAIT_S
        while len({i for i in checked if i % 4 == 3}) < count // 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        return {"sent": place.sums(range(count)), "deliveries": deliveries, "checked": sorted(checked)}


def retry(place: Place) -> Facts:
    """A push consumer fails on the first delivery of every fourth message."""
    count, pushed = 16, Deliveries()
    listener = Listener(
        pushed, lambda message: int(message.properties["index"]) % 4 == 0 and message.delivery_attempt == 1
    )
    with place.push(listener), place.producer() as producer:
        for i in range(count):
            producer.send(place.message(i))
        return {"sent": place.sums(range(count)), "deliveries": pushed.wait(count + count // 4)}


SCENARIOS: dict[str, Callable[[Place], Facts]] = {
    scenario.__name__: scenario for scenario in (normal, invisible, fifo, delay, transaction, retry)
}


def receive(
    consumer: SimpleConsumer, count: int, then: Callable[[Message], object] | None = None
) -> list[Facts]:
    """Receive until `count` messages came, or WAIT_S passed; acknowledge each, or do `then` with it."""
    got = Deliveries()
    deadline = time.monotonic() + WAIT_S
    while len(got) < count and time.monotonic() < deadline:
        for message in received(consumer):
            got.add(message)
            (then or consumer.ack)(message)
    return got.wait(0)


def received(consumer: SimpleConsumer) -> list[Message]:
    """One receive; nothing, when the proxy does not know this client's settings yet."""
    try:
        return consumer.receive(32, INVISIBLE_S) or []
    except InternalErrorException as failed:
        if '"settings" is null' in str(failed):
            return []
        raise


def receive_once(consumer: SimpleConsumer) -> list[Facts]:
    got = Deliveries()
    for message in received(consumer):
        got.add(message)
    return got.wait(0)


def body(topic: str, i: int) -> bytes:
    size = BODY_SIZES[i % len(BODY_SIZES)]
    return (f"row {i} of {topic} 消息\n" * (size // 10 + 1)).encode()[:size]


def total(message: Message) -> str:
    """A sum over everything that the user gave the message."""
    properties = [message.properties[name] for name in ("index", "text")]  # the proxy adds some of its own
    words = f"{message.topic}|{message.tag}|{sorted(message.keys)}|{properties}|"
    return hashlib.sha256(words.encode() + message.body).hexdigest()[:16]


def run(place: Place, name: str) -> None:
    try:
        say(f"RESULT {name} {json.dumps(SCENARIOS[name](place))}")
    except BaseException as failed:
        say(traceback.format_exc())
        say(f"FAILED {name} {failed!r}".replace("\n", " "))


def say(line: str) -> None:
    """Write one line whole, whoever else writes."""
    with SAYING:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def main(endpoint: str, names: list[str]) -> None:
    threads = [
        threading.Thread(target=run, args=(Place(endpoint, f"grpc-{name}"), name), name=name)
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.flush()
    os._exit(0)  # the client leaves threads behind that would keep the process


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
