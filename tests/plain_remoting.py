"""RocketMQ requests by plain sockets and the JSON header codec: a second opinion that uses none of our code.

Touches  one TCP connection a call.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "UPDATE_BROKER_CONFIG",
    "call",
    "consumer_offset",
    "has_route",
    "make_topic",
    "max_offset",
    "topic_fields",
    "wait_route",
    "wait_until",
]

QUERY_CONSUMER_OFFSET, UPDATE_TOPIC, UPDATE_BROKER_CONFIG, GET_MAX_OFFSET, GET_ROUTE = 14, 17, 25, 30, 105
POLL_S = 0.05


def call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 5.0,
) -> tuple[dict[str, Any], bytes]:
    """One request and its answer: (response header, body)."""
    host, port = address.rsplit(":", 1)
    head = {
        "code": code,
        "flag": 0,
        "language": "JAVA",
        "opaque": 1,
        "version": 479,
        "extFields": fields or {},
    }
    header = json.dumps({**head, "serializeTypeCurrentRPC": "JSON"}).encode()
    with socket.create_connection((host, int(port)), timeout_s) as peer:
        peer.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        with peer.makefile("rb") as stream:
            total, marked = struct.unpack(">II", stream.read(8))
            answer: dict[str, Any] = json.loads(stream.read(marked & 0xFFFFFF))
            return answer, stream.read(total - 4 - (marked & 0xFFFFFF))


def has_route(nameserver: str, topic: str, broker_name: str) -> bool:
    """Whether the nameserver's route of the topic leads to the broker."""
    answer, body = call(nameserver, GET_ROUTE, {"topic": topic})
    named = rb'"brokerName"\s*:\s*"' + re.escape(broker_name).encode() + b'"'
    return answer["code"] == 0 and re.search(named, body) is not None


def topic_fields(topic: str, queues: int, **changes: str) -> dict[str, str]:
    """What a request to make a topic says; `changes` replace or add fields."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **changes,
    }


def make_topic(
    nameserver: str,
    broker: str,
    topic: str,
    *,
    queues: int = 4,
    broker_name: str = "broker-a",
    message_type: str = "",
) -> None:
    """Create a topic on the broker at address `broker` and wait until the nameserver has its route.

    `message_type`, if any: the one kind of message that it takes (NORMAL, FIFO, DELAY, TRANSACTION).
    """
    kind = {"attributes": f"+message.type={message_type}"} if message_type else {}
    answer, _ = call(broker, UPDATE_TOPIC, topic_fields(topic, queues, **kind))
    assert answer["code"] == 0, answer
    wait_route(nameserver, topic, broker_name)


def wait_route(nameserver: str, topic: str, broker_name: str) -> None:
    """Wait until the nameserver's route of the topic leads to the broker."""
    wait_until(
        lambda: has_route(nameserver, topic, broker_name), f"{nameserver} leads to {broker_name} for {topic}"
    )


def max_offset(broker: str, topic: str, queue_id: int) -> int:
    """One past the last queue offset of a queue."""
    answer, _ = call(broker, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
    assert answer["code"] == 0, answer
    return int(answer["extFields"]["offset"])


def consumer_offset(broker: str, group: str, topic: str, queue_id: int) -> int | None:
    """Where a group will read on in a queue, or None when the broker keeps nothing for it."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    answer, _ = call(broker, QUERY_CONSUMER_OFFSET, fields)
    return int(answer["extFields"]["offset"]) if answer["code"] == 0 else None


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Ask again until `condition` holds: other programs' state has no event to wait for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)
