"""What the client raises: each error says what was tried, what came back, and what to do next.

    AerobeeError
      ClientError
        NoRoute           no nameserver knows a broker for the topic
        NoNameserver      no nameserver answered at all
        NoBroker          the route names no broker that could serve this call
          NotPermitted    ... because the topic's permission forbids it
        NotFound          a group, broker or cluster that a call is about is not there
        AlreadyExists     a topic or group that was to be made exists with other settings
        HidesMessages     a change of a topic would put stored messages out of every reader's reach
        RequestTimeout    a peer did not answer in time
        BrokerUnreachable the connection could not be made, or broke
        BrokerRefused     a peer understood and said no: code, its name, the remark
        BadAnswer         a peer answered in a form that cannot be used
        SendFailed        every attempt to send failed; lists them
        NoReply           a request was sent, and nobody replied in time
        BufferFull        send_nowait found the producer's buffer full
        InvalidMessage    a message (or an argument) that no broker would take; also a ValueError
        DamagedRecord     a received record breaks its checksum, its form or its size limit
        ClientClosed      the client, producer or consumer was closed before the call

Facts are attributes; the text is made from them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aerobee_proto.codes import NAMESERVER_DEFAULT_PORT, ResponseCode
from aerobee_proto.errors import AerobeeError

__all__ = [
    "DEFAULT_NAMESERVER",
    "UNKNOWN_TOPIC",
    "AlreadyExists",
    "Attempt",
    "BadAnswer",
    "BrokerRefused",
    "BrokerUnreachable",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "DamagedRecord",
    "HidesMessages",
    "InvalidMessage",
    "NameserverAnswer",
    "NoBroker",
    "NoNameserver",
    "NoQueue",
    "NoReply",
    "NoRoute",
    "NotFound",
    "NotPermitted",
    "RequestTimeout",
    "SendFailed",
    "code_name",
]


UNKNOWN_TOPIC: Final = "does not know the topic"
HIDDEN_QUEUES_SHOWN: Final = 8


DEFAULT_NAMESERVER: Final = f"127.0.0.1:{NAMESERVER_DEFAULT_PORT}"


def _check_nameservers(answers: "Sequence[NameserverAnswer]") -> str:
    text = "check that a nameserver runs at one of these addresses (aerobee doctor)"
    if [answer.addr for answer in answers] == [DEFAULT_NAMESERVER]:
        text += f"; {DEFAULT_NAMESERVER} is also what is used when none is given (Client(...), AEROBEE_NAMESERVERS)"
    return text


def code_name(code: int) -> str:
    """The protocol's name of a response code, or "unknown code" for one that it does not define."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return "unknown code"


class NameserverAnswer(NamedTuple):
    """What one nameserver said when it was asked."""

    addr: str
    outcome: str


class Attempt(NamedTuple):
    """The failed tries of a send at one address: how they ended, how long the last one took, how many there were, and
    when the first and the last began (milliseconds after the call)."""

    broker_name: str
    addr: str
    outcome: str
    took_ms: int
    tries: int = 1
    first_ms: int = 0
    last_ms: int = 0

    def __str__(self) -> str:
        tried = f"tried once, after {self.first_ms / 1000:.1f} s"
        if self.tries > 1:
            tried = (
                f"tried {self.tries} times, from {self.first_ms / 1000:.1f} s to {self.last_ms / 1000:.1f} s"
            )
        return f"broker {self.broker_name} at {self.addr}: {tried}: {self.outcome}"


class ClientError(AerobeeError):
    """Base of everything the client raises on purpose."""


class ClientClosed(ClientError):
    """The object was closed before the call, or while the call waited."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"the {self.what} is closed; make calls inside its `async with` block"


class NoRoute(ClientError):
    """No nameserver knows a broker for the topic.

    `answers` holds what each nameserver said, `near_names` existing topics with a similar name,
    `creates_topics` whether a broker offers to create unknown topics on the first send (None: not known), and
    `topic_count` how many topics there are (None: not known; 0: no broker is registered).
    """

    def __init__(
        self,
        topic: str,
        answers: Sequence[NameserverAnswer],
        near_names: Sequence[str] = (),
        creates_topics: bool | None = None,
        topic_count: int | None = None,
    ) -> None:
        super().__init__(topic)
        self.topic = topic
        self.answers = tuple(answers)
        self.near_names = tuple(near_names)
        self.creates_topics = creates_topics
        self.topic_count = topic_count
        self.hint = ""  # what else the caller may do

    @property
    def is_final(self) -> bool:
        """Whether a nameserver that knows brokers has said no; else there may be a route in a moment."""
        return any(answer.outcome == UNKNOWN_TOPIC for answer in self.answers) and self.topic_count != 0

    def __str__(self) -> str:
        lines = [f"no route for topic {self.topic!r}"]
        lines += [f"  nameserver {answer.addr}: {answer.outcome}" for answer in self.answers]
        if self.near_names:
            lines.append("  similar topics: " + ", ".join(self.near_names))
        lines.append("  " + self._advice())
        if self.hint:
            lines.append("  " + self.hint)
        return "\n".join(lines)

    def _advice(self) -> str:
        if not any(answer.outcome == UNKNOWN_TOPIC for answer in self.answers):
            return _check_nameservers(self.answers)
        if self.topic_count == 0:
            return "no broker is registered: start one, with namesrvAddr set to this nameserver"
        create = f"create it (aerobee topic create {self.topic}, or client.admin.create_topic)"
        if self.creates_topics is True:
            return f"{create}, or send to it once: a broker here creates unknown topics on the first send"
        if self.creates_topics is False:
            return f"{create}; no broker here creates topics on the first send"
        return create


class NoNameserver(ClientError):
    """No nameserver answered; `answers` says how each failed."""

    def __init__(self, what: str, answers: Sequence[NameserverAnswer]) -> None:
        super().__init__(what)
        self.what = what
        self.answers = tuple(answers)

    def __str__(self) -> str:
        lines = [f"{self.what}: no nameserver answered"]
        lines += [f"  nameserver {answer.addr}: {answer.outcome}" for answer in self.answers]
        lines.append("  " + _check_nameservers(self.answers))
        return "\n".join(lines)


class NoBroker(ClientError):
    """The route is known but names no broker that could serve the call: its master is away, for one."""

    def __init__(self, topic: str, need: str, brokers: Sequence[str]) -> None:
        super().__init__(topic, need)
        self.topic = topic
        self.need = need
        self.brokers = tuple(brokers)

    def __str__(self) -> str:
        known = ", ".join(self.brokers) or "none"
        return f"topic {self.topic!r} has no {self.need}; brokers in its route: {known}{self.advice}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ""


class NotPermitted(NoBroker):
    """The topic's own permission forbids it on every broker: `letter` is what it lacks, "r" or "w"."""

    def __init__(self, topic: str, need: str, brokers: Sequence[str], letter: str) -> None:
        super().__init__(topic, need, brokers)
        self.letter = letter

    @property
    def advice(self) -> str:
        return f"; its permission forbids it (aerobee topic alter {self.topic} --perm rw)"


class NotFound(ClientError):
    """What a call is about is not there: a group, a broker, a cluster, an offset of a group.

    `kind` says what it is, `where` where it was looked for ("on broker-a"), `near_names` what has a similar name,
    `known` everything there is where that is a short list, `advice` what to do.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        *,
        where: str = "",
        near_names: Sequence[str] = (),
        known: Sequence[str] = (),
        advice: str = "",
    ) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name
        self.where = where
        self.near_names = tuple(near_names)
        self.known = tuple(known)
        self.advice = advice

    def __str__(self) -> str:
        words = ["no", self.kind, repr(self.name) if self.name else "", self.where]
        lines = [" ".join(filter(None, words))]
        if self.near_names:
            lines.append("  similar: " + ", ".join(self.near_names))
        if self.known:
            lines.append("  there are: " + ", ".join(self.known))
        if self.advice:
            lines.append("  " + self.advice)
        return "\n".join(lines)


class AlreadyExists(ClientError):
    """A topic or group exists with other settings than it was to be made with; nothing was changed.

    `found` says by broker how it is there.
    """

    def __init__(self, kind: str, name: str, found: Mapping[str, str]) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name
        self.found = dict(found)

    def __str__(self) -> str:
        places = "; ".join(f"on {broker_name} with {how}" for broker_name, how in self.found.items())
        return (
            f"{self.kind} {self.name!r} exists {places}\n"
            f"  to change it: aerobee {self.kind} alter {self.name}, or client.admin.update_{self.kind}"
        )


class HidesMessages(ClientError):
    """A change of a topic would leave stored messages in queues that nobody reads; nothing was changed.

    `counts` has the messages of each such queue: by name of the broker and queue id.
    """

    def __init__(self, topic: str, counts: Mapping[tuple[str, int], int]) -> None:
        super().__init__(topic)
        self.topic = topic
        self.counts = dict(counts)

    @property
    def message_count(self) -> int:
        return sum(self.counts.values())

    @property
    def summary(self) -> str:
        """What would be hidden, in one sentence."""
        places = [
            f"{broker_name}:{queue_id} has {count}" for (broker_name, queue_id), count in self.counts.items()
        ]
        shown = ", ".join(places[:HIDDEN_QUEUES_SHOWN])
        if len(places) > HIDDEN_QUEUES_SHOWN:
            shown += f", and {len(places) - HIDDEN_QUEUES_SHOWN} more queues"
        count = self.message_count
        what = "1 stored message" if count == 1 else f"{count} stored messages"
        return f"this hides {what} of topic {self.topic!r} from every reader (queue {shown})"

    def __str__(self) -> str:
        return (
            f"{self.summary}; nothing was changed\n"
            "  let them be consumed first, or pass hide_messages=True; they come back when the queues may be read again"
        )


class RequestTimeout(ClientError):
    """A peer did not answer in time. Whether it acted is not known."""

    def __init__(self, what: str, addr: str, timeout_s: float) -> None:
        super().__init__(what, addr, timeout_s)
        self.what = what
        self.addr = addr
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"{self.what}: no answer from {self.addr} within {self.timeout_s:g} s"


class BrokerUnreachable(ClientError):
    """A connection could not be made, or broke before the answer came."""

    def __init__(self, what: str, addr: str, reason: str) -> None:
        super().__init__(what, addr, reason)
        self.what = what
        self.addr = addr
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.addr} is not reachable ({self.reason}); if a broker registered this address, see"
            " brokerIP1 and listenPort in its configuration"
        )


class BrokerRefused(ClientError):
    """A peer understood the request and refused it."""

    def __init__(self, what: str, addr: str, code: int, remark: str | None) -> None:
        super().__init__(what, addr, code, remark)
        self.what = what
        self.addr = addr
        self.code = int(code)
        self.code_name = code_name(code)
        self.remark = remark or ""

    def __str__(self) -> str:
        remark = f": {self.remark}" if self.remark else ""
        return f"{self.what}: {self.addr} refused with {self.code} {self.code_name}{remark}"


class BadAnswer(ClientError):
    """A peer answered, and what it said cannot be used; `addr` is empty where it is not known which one it was."""

    def __init__(self, what: str, addr: str, reason: str) -> None:
        super().__init__(what, addr, reason)
        self.what = what
        self.addr = addr
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.what}: the answer{' of ' if self.addr else ''}{self.addr} cannot be used: {self.reason}"
        )


class SendFailed(ClientError):
    """Every attempt failed. A message whose attempt timed out may still have been stored.

    `attempts` has each address once; `reason` says how long and how often it was tried.
    """

    def __init__(self, topic: str, attempts: Sequence[Attempt], reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.attempts = tuple(attempts)
        self.reason = reason

    def __str__(self) -> str:
        lines = [f"send to topic {self.topic!r} failed: {self.reason}"]
        lines += [f"  {attempt}" for attempt in self.attempts]
        return "\n".join(lines)


class NoReply(ClientError):
    """A request was stored, and no reply came in time. Whether somebody acted on it is not known."""

    def __init__(self, topic: str, message_id: str, timeout_s: float) -> None:
        super().__init__(topic, message_id, timeout_s)
        self.topic = topic
        self.message_id = message_id
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return (
            f"request {self.message_id} to topic {self.topic!r}: no reply within {self.timeout_s:g} s;"
            " is there a consumer that replies?"
        )


class BufferFull(ClientError):
    """send_nowait found no room: the brokers are slower than the caller."""

    def __init__(self, pending_count: int, pending_bytes: int) -> None:
        super().__init__(pending_count, pending_bytes)
        self.pending_count = pending_count
        self.pending_bytes = pending_bytes

    def __str__(self) -> str:
        return (
            f"the producer holds {self.pending_count} unanswered messages ({self.pending_bytes} bytes);"
            " `await producer.ready()` before send_nowait, or use `await producer.send(...)`"
        )


class InvalidMessage(ClientError, ValueError):
    """A message or argument that no broker would accept; nothing was sent."""


class NoQueue(InvalidMessage):
    """The topic is there and has no queue of that number, or on that broker; nothing was sent."""


class DamagedRecord(ClientError):
    """A received record breaks its checksum, its form, or a size limit of this client.

    `queue_offset` is the queue offset of the record when it could be read, else the offset pulled from.
    """

    def __init__(self, topic: str, broker_name: str, queue_id: int, queue_offset: int, reason: str) -> None:
        super().__init__(topic, broker_name, queue_id, queue_offset, reason)
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"damaged record in topic {self.topic!r}, broker {self.broker_name}, queue {self.queue_id},"
            f" offset {self.queue_offset}: {self.reason}; `aerobee store verify` on that broker tells how far"
            " the damage goes, seek past the offset to read on"
        )
