"""What supervisor and worker say to each other: one pair of sockets, which ends when either of them does.

Touches  the descriptor that the supervisor left to this process; the environment.
Bytes    lines of NAME=value, UTF-8, one datagram a message (SOCK_SEQPACKET). From a worker what a service tells systemd
         (READY, STATUS, STOPPING, WATCHDOG, EXTEND_TIMEOUT_USEC: `aerobee_service.program.systemd`) and TOPIC, the
         settings of a topic that a send has created, as JSON; to a worker TOPIC of another one.

Invariants
- No call waits. A topic that the other side cannot take at once follows when it can, in order.
- The end of the supervisor, however it comes, is an end of the socket here: nobody has to ask for it.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
import structlog

from aerobee_proto.bodies import TopicConfig

__all__ = ["MESSAGE_MAX", "NOTIFY_VARIABLE", "VARIABLE", "Mailbox", "WorkerLink", "facts_of", "link_pair"]

log = structlog.get_logger()

VARIABLE: Final = "AEROBEE_WORKER"  # "descriptor number count service"
NOTIFY_VARIABLE: Final = "NOTIFY_SOCKET"
TOPIC: Final = "TOPIC"
MESSAGE_MAX: Final = 64 * 1024
# A service creates fewer topics by sends (maxTopicsAutoCreated is 10,000 for each worker).
WAITING_MAX: Final = 100_000


def link_pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and the worker's end; neither waits."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setblocking(False)
    theirs.setblocking(False)
    return mine, theirs


def facts_of(message: bytes) -> dict[str, str]:
    """Name -> value of a message; what is no such line is passed over."""
    lines = message.decode("utf-8", "replace").split("\n")
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


class Mailbox:
    """Messages through one end of a link, for the running event loop. `close` once."""

    def __init__(
        self, end: socket.socket, *, on_message: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called once, when the other side is gone."""
        self._end = end
        self._on_message = on_message
        self._on_end = on_end
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._readable)

    def send(self, message: bytes) -> None:
        """In order, now or when the other side takes more; nothing happens where it is gone."""
        if self._end.fileno() < 0:
            return
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._flush()

    def close(self) -> None:
        """Say and hear nothing more."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()

    def _flush(self) -> None:
        try:
            while self._waiting:
                self._end.send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._end.fileno(), self._flush)
            return
        except OSError:  # the other side is gone, which is told where reading ends
            self._waiting.clear()
        self._loop.remove_writer(self._end.fileno())

    def _readable(self) -> None:
        try:
            message = self._end.recv(MESSAGE_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message = b""
        if message:
            self._on_message(message)
        else:
            self.close()
            self._on_end()


class _Place(NamedTuple):
    number: int
    of: int
    service: str


class WorkerLink:
    """A worker's end: it knows its place in the service, hears of topics and of the end of the supervisor."""

    def __init__(self, end: socket.socket, number: int, count: int, service: str) -> None:
        self._end = end
        self._mailbox: Mailbox | None = None
        self._on_topic: Callable[[TopicConfig], None] | None = None
        self._early: list[TopicConfig] = []  # came before anybody could take them
        self.place = _Place(number, count, service)

    @classmethod
    def of_process(cls, environment: Mapping[str, str] | None = None) -> "WorkerLink | None":
        """That of this process; None for a broker alone. ValueError when what the variable says cannot be."""
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        if not text:
            return None
        try:
            descriptor, number, count, service = text.split(" ")
            os.set_inheritable(int(descriptor), False)
            # The notifier of this process writes to the descriptor itself, so this is one more for the same end.
            end = socket.socket(fileno=os.dup(int(descriptor)))
            return cls(end, int(number), int(count), service)
        except (ValueError, OSError) as wrong:
            raise ValueError(f"{VARIABLE}={text}: it is set by a supervisor of workers alone") from wrong

    @property
    def text(self) -> str:
        """Its place, for people."""
        return f"{self.place.number} of {self.place.of} of {self.place.service}"

    def watch(self, on_supervisor_end: Callable[[], None]) -> None:
        """From now on, in the running event loop, `on_supervisor_end` is called when nobody supervises any more."""

        def ended() -> None:
            log.warning(
                "worker.supervisor_lost", reason="the supervisor of this worker has ended; it stops too"
            )
            on_supervisor_end()

        self._mailbox = Mailbox(self._end, on_message=self._heard, on_end=ended)

    def topic_created(self, topic: TopicConfig) -> None:
        """Let the other workers have a topic that a send has created here."""
        if self._mailbox is not None:
            self._mailbox.send(f"{TOPIC}=".encode() + msgspec.json.encode(topic))

    def take_topics(self, adopt: Callable[[TopicConfig], None]) -> None:
        """From now on `adopt` is called with each topic that a send has created at another worker."""
        self._on_topic = adopt
        early, self._early = self._early, []
        for topic in early:
            adopt(topic)

    def close(self) -> None:
        """Hear nothing more."""
        if self._mailbox is not None:
            self._mailbox.close()

    def _heard(self, message: bytes) -> None:
        text = facts_of(message).get(TOPIC)
        if text is None:
            return
        topic = msgspec.json.decode(text, type=TopicConfig)
        if self._on_topic is not None:
            self._on_topic(topic)
        elif len(self._early) < WAITING_MAX:
            self._early.append(topic)
