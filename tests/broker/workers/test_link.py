"""What supervisor and worker say to each other, over a real pair of sockets."""

import asyncio
import os
import socket

import pytest
from structlog.testing import capture_logs

from aerobee_broker.workers.link import Mailbox, WorkerLink, facts_of, link_pair
from aerobee_proto.bodies import TopicConfig
from aerobee_service.program.systemd import ServiceNotifier

ORDERS = TopicConfig(topic_name="Orders", read_queue_nums=4, write_queue_nums=4)


class Ears:
    """A mailbox and what came in."""

    def __init__(self, end: socket.socket) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.mailbox = Mailbox(end, on_message=self.messages.put_nowait, on_end=self.ended.set)


def link_of(end: socket.socket) -> WorkerLink:
    """As the worker finds it in its environment."""
    descriptor = os.dup(end.fileno())
    link = WorkerLink.of_process({"AEROBEE_WORKER": f"{descriptor} 2 4 broker-a"})
    os.close(descriptor)
    assert link is not None
    return link


async def test_topics_and_signs_of_life_arrive_and_the_end_does() -> None:
    mine, theirs = link_pair()
    ears, link = Ears(mine), link_of(theirs)
    assert link.text == "2 of 4 of broker-a"
    link.watch(lambda: None)
    link.topic_created(ORDERS)
    notifier = ServiceNotifier({"NOTIFY_SOCKET": f"fd:{theirs.fileno()}", "WATCHDOG_USEC": "60000000"}, 1)
    assert notifier.ready("serving on 127.0.0.1:1")
    assert notifier.watchdog_interval_s == 30.0
    assert facts_of(await ears.messages.get()).keys() == {"TOPIC"}
    assert facts_of(await ears.messages.get()) == {"READY": "1", "STATUS": "serving on 127.0.0.1:1"}
    link.close()
    theirs.close()
    await ears.ended.wait()
    assert not notifier.alive()  # nobody hears it, and nothing is raised


async def test_a_topic_waits_for_whoever_takes_it() -> None:
    mine, theirs = link_pair()
    ears, link = Ears(mine), link_of(theirs)
    theirs.close()
    link.watch(lambda: None)
    other = link_of(mine)  # says the same as a supervisor that passes it on
    other.watch(lambda: None)
    adopted: list[TopicConfig] = []
    other.topic_created(ORDERS)
    ears.mailbox.send(b"SOMETHING=else")
    await _turns()
    link.take_topics(adopted.append)
    assert adopted == [ORDERS]
    ears.mailbox.close()
    other.close()
    link.close()


async def test_the_end_of_the_supervisor_is_heard_at_once() -> None:
    mine, theirs = link_pair()
    link, lost = link_of(theirs), asyncio.Event()
    theirs.close()
    link.watch(lost.set)
    with capture_logs() as logs:
        mine.close()
        await lost.wait()
    assert [entry["event"] for entry in logs] == ["worker.supervisor_lost"]
    link.topic_created(ORDERS)  # nobody is there; nothing is raised
    link.close()


async def test_what_the_other_side_does_not_take_at_once_follows_in_order() -> None:
    mine, theirs = link_pair()
    sender = Ears(mine)
    messages = [b"TOPIC=%d %s" % (number, b"x" * 1000) for number in range(2000)]  # more than a socket holds
    for message in messages:
        sender.mailbox.send(message)
    hearer = Ears(theirs)
    assert [await hearer.messages.get() for _ in messages] == messages
    sender.mailbox.close()
    await hearer.ended.wait()


@pytest.mark.parametrize("text", ["7", "x 1 2 broker-a", "999 1 2 broker-a", "1 2 3 4 5"])
def test_a_variable_of_somebody_else_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="AEROBEE_WORKER"):
        WorkerLink.of_process({"AEROBEE_WORKER": text})


def test_without_the_variable_a_broker_is_alone() -> None:
    assert WorkerLink.of_process({}) is None


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
