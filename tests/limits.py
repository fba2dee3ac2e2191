"""The bounds of what one peer, and all of them, may take: read from settings and source, shown in docs/limits.md.

`python tests/limits.py --write` puts the table into the page. What is named here is looked up, so a bound that is
renamed, or gone, is found; and every bound of SETTINGS and SCANNED has to be in the table or in ELSEWHERE.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from aerobee_broker.settings.config import BrokerConfig
from aerobee_nameserver.config import NameserverConfig
from aerobee_service.settings.settings import SettingsModel
from made_parts import MadePart

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = MadePart(
    ROOT / "docs" / "limits.md",
    "<!-- Made by `python tests/limits.py --write`. -->\n",
    "<!-- End of the table. -->\n",
)
SETTINGS: Final[dict[str, type[SettingsModel]]] = {"broker": BrokerConfig, "nameserver": NameserverConfig}

# Folders in which every constant that ends in _MAX is a bound on what a peer may make grow, or last.
SCANNED: Final = {
    "aerobee_remoting": "proto/aerobee_remoting",
    "aerobee_service.operators": "proto/aerobee_service/operators",
    "aerobee_broker.remoting_api": "broker/aerobee_broker/remoting_api",
    "aerobee_broker.members": "broker/aerobee_broker/members",
    "aerobee_broker.replication": "broker/aerobee_broker/replication",
    "aerobee_nameserver": "nameserver/aerobee_nameserver",
}


@dataclass(slots=True, frozen=True)
class Row:
    """One resource. A bound is `broker:key`, `nameserver:key` or `module:CONSTANT`; none where there is "-"."""

    kind: str
    what: str
    peer: tuple[str, ...]
    all_: tuple[str, ...]
    then: str


OPEN, NONE = "further connections are closed", ()
TABLE: Final = (
    Row(
        "memory",
        "everything that is kept for peers: buffers, held requests, registrations, subscriptions, filters, settings",
        ("broker:maxPeerMemoryBytesPerConnection", "nameserver:maxPeerMemoryBytesPerConnection"),
        ("broker:maxPeerMemoryBytes", "nameserver:maxPeerMemoryBytes"),
        "SYSTEM_BUSY; buffers: cut off",
    ),
    Row(
        "memory",
        "answers that are not read",
        ("broker:maxWriteBufferBytes", "broker:maxUnsentBytes"),
        ("broker:maxBufferedBytes",),
        "no more is read from it; cut off",
    ),
    Row(
        "memory",
        "one request, one answer",
        (
            "aerobee_proto.frames:FRAME_SIZE_MAX",
            "broker:maxHeaderBytes",
            "aerobee_proto.proxy_protocol:HEADER_SIZE_MAX",
            "aerobee_remoting.exchange.handlers:MESSAGE_BODY_SIZE_MAX",
            "aerobee_remoting.exchange.handlers:DECODED_SIZE_MAX",
            "aerobee_remoting.exchange.answers:ANSWER_SIZE_MAX",
        ),
        NONE,
        "cut off; an answer: code 1",
    ),
    Row(
        "memory",
        "requests without an answer; bytes in memory of those that are worked on",
        ("broker:maxInFlightPerConnection", "aerobee_remoting.exchange.connection:RUNNING_SIZE_MAX"),
        NONE,
        "no more is read from it",
    ),
    Row(
        "memory",
        "what a replica says in a handshake before it is heard",
        ("aerobee_broker.replication.greeting:REST_SIZE_MAX",),
        NONE,
        "no more is read from it",
    ),
    Row(
        "memory",
        "what slaves are told of tables: changed offsets in one answer, changes and members that are remembered",
        ("aerobee_broker.replication.news:CHANGES_MAX",),
        (
            "aerobee_broker.catalog.consumer_offsets:JOURNAL_MAX",
            "aerobee_broker.replication.news:MEMBERS_MAX",
        ),
        "the slave reads all offsets; who is not remembered is not waited for",
    ),
    Row(
        "memory",
        "lines of the log that nobody reads",
        NONE,
        ("aerobee_service.logs.log_writer:WAITING_SIZE_MAX",),
        "left out, and told as a number",
    ),
    Row(
        "descriptors",
        "connections",
        ("broker:maxConnectionsPerHost", "nameserver:maxConnectionsPerHost"),
        ("broker:maxConnections", "nameserver:maxConnections"),
        OPEN,
    ),
    Row(
        "descriptors",
        "connections to metrics and health",
        ("aerobee_service.operators.http_responder:PER_HOST_MAX",),
        (
            "aerobee_service.operators.http_responder:CONNECTIONS_MAX",
            "aerobee_service.operators.http_responder:CROWD_MAX",
        ),
        "the one that has been silent longest goes",
    ),
    Row(
        "descriptors",
        "connections of replicas",
        NONE,
        ("aerobee_broker.replication.giving_server:CONNECTIONS_MAX",),
        "one that is no replica yet goes, else " + OPEN,
    ),
    Row(
        "descriptors",
        "open files of queues: half of what the process may open is left to the store",
        NONE,
        ("aerobee_broker.process.descriptors:STORE_MIN",),
        "the file used least recently is closed",
    ),
    Row(
        "event loop",
        "work for requests that were read, seconds of a turn",
        ("aerobee_service.turns.turns:SLICE_S", "aerobee_service.turns.turns:FIRST_S"),
        (
            "aerobee_service.turns.turns:TURN_S",
            "aerobee_service.turns.turns:ROW_S",
            "aerobee_service.turns.turns:CONTROL_S",
        ),
        "the rest waits for later turns, and who has used least is served first",
    ),
    Row(
        "event loop",
        "connections that are accepted in one turn, at each address; hosts that are gone and owe time",
        NONE,
        ("aerobee_remoting.ends.server:ACCEPTED_MAX", "aerobee_service.turns.turns:HOSTS_GONE_MAX"),
        "others wait for later turns; the oldest is forgotten",
    ),
    Row(
        "event loop",
        "one turn of one handler, ms",
        ("broker:loopHeldMillis", "nameserver:loopHeldMillis"),
        NONE,
        "the log and the metrics name the handler",
    ),
    Row(
        "event loop",
        "requests of one turn; seconds that one call of a batch handler, and one step of a task, is meant to take; "
        "bytes of large headers in such a call; requests that overtake",
        (
            "aerobee_remoting.exchange.connection:SLICE_FRAMES_MAX",
            "aerobee_remoting.exchange.connection:BATCH_S",
            "aerobee_remoting.exchange.connection:BATCH_HEADERS_SIZE",
            "aerobee_remoting.exchange.connection:STEPS_S",
            "aerobee_remoting.exchange.connection:OVERTAKING_MAX",
        ),
        NONE,
        "the rest waits, in order",
    ),
    Row(
        "event loop",
        "bodies, by what is in them",
        (
            "aerobee_broker.remoting_api.client_handlers:HEARTBEAT_SIZE_MAX",
            "aerobee_broker.remoting_api.client_handlers:LOCK_BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.topic_changes:LIST_BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.group_handlers:LIST_BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.set_handlers:NAMES_BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.settings_handlers:SETTINGS_BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.assignment:BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.acks:BATCH_BODY_SIZE_MAX",
            "aerobee_broker.remoting_api.client_relay:STATUS_SIZE_MAX",
            "aerobee_nameserver.handlers:REGISTRATION_SIZE_MAX",
            "aerobee_nameserver.handlers:ROUTE_SIZE_MAX",
            "aerobee_nameserver.handlers:VERSION_SIZE_MAX",
            "aerobee_nameserver.handlers:SETTINGS_SIZE_MAX",
        ),
        NONE,
        "code 1",
    ),
    Row(
        "event loop",
        "JSON: objects, values, references, bytes that are read tolerantly",
        (
            "aerobee_proto.bodies:OBJECTS_MAX",
            "aerobee_proto.bodies:VALUES_MAX",
            "aerobee_proto.bodies:REFERENCES_MAX",
            "aerobee_proto.javajson:TOLERANT_SIZE_MAX",
            "aerobee_proto.bodies:REGISTER_TOLERANT_SIZE_MAX",
        ),
        NONE,
        "code 1",
    ),
    Row(
        "event loop",
        "messages of a batch; acknowledgements of a request, bytes of their bits",
        (
            "aerobee_broker.messages.publish_batches:BATCH_COUNT_MAX",
            "aerobee_broker.remoting_api.acks:BATCH_ACKS_MAX",
            "aerobee_broker.remoting_api.acks:BITS_SIZE_MAX",
        ),
        NONE,
        "MESSAGE_ILLEGAL; code 1",
    ),
    Row(
        "event loop",
        "filters: text of tags, of SQL92; steps and messages of one pull",
        (
            "aerobee_broker.members.filters:TAG_EXPRESSION_SIZE_MAX",
            "aerobee_proto.sql92.parser:EXPRESSION_CHARS_MAX",
            "aerobee_broker.members.filters:STEPS_MAX",
            "aerobee_broker.members.filters:SCAN_MAX",
        ),
        ("aerobee_broker.members.filters:CACHE_SIZE_MAX",),
        "refused; the pull goes on with the next one",
    ),
    Row(
        "event loop",
        "long work in one turn: entries of lists, new topics, members told or tried, topics answered or changed, "
        "queries of one read, and bytes of what the native engine answers of one",
        (
            "aerobee_broker.remoting_api.native_queries:QUERIES_MAX",
            "aerobee_broker.native.engine:ANSWERS_SIZE",
            "aerobee_broker.remoting_api.request_bodies:RUN_MAX",
            "aerobee_broker.messages.publish:NEW_TOPICS_MAX",
            "aerobee_broker.remoting_api.acks:SLICE_MAX",
            "aerobee_broker.remoting_api.client_handlers:SLICE_MAX",
            "aerobee_broker.remoting_api.client_handlers:READ_AT_ONCE_MAX",
            "aerobee_broker.remoting_api.topic_handlers:ENTRIES_PER_QUERY_MAX",
            "aerobee_broker.members.producers:TRIED_MAX",
            "aerobee_nameserver.handlers:ANSWERED_AT_ONCE_MAX",
            "aerobee_nameserver.registration:AT_ONCE_SIZE_MAX",
            "aerobee_nameserver.route_table:IN_PLACE_MAX",
        ),
        ("aerobee_broker.members.group_notices:TURN_MAX",),
        "the rest follows in later turns",
    ),
    Row(
        "disk",
        "messages",
        ("broker:maxMessageSize",),
        ("broker:diskSpaceWarningLevelRatio",),
        "MESSAGE_ILLEGAL; sends are refused with code 14",
    ),
    Row(
        "disk",
        "what is read of the log to compare it with a replica's, bytes and questions of a handshake",
        (
            "aerobee_broker.replication.hello:COMPARED_SIZE_MAX",
            "aerobee_broker.replication.hello:ROUNDS_MAX",
        ),
        NONE,
        "cut off",
    ),
    Row(
        "disk",
        "key-value settings of the nameserver",
        ("aerobee_nameserver.kv_config:TEXT_CHARS_MAX",),
        ("nameserver:maxKvBytes", "nameserver:maxKvEntries", "aerobee_nameserver.kv_config:SIZE_MAX"),
        "code 1",
    ),
    Row(
        "disk",
        "lines of the log about one thing, a second; characters of a text in it",
        NONE,
        (
            "aerobee_service.logs.line_bound:LINES_A_SECOND_MAX",
            "aerobee_service.logs.line_bound:FACT_CHARS_MAX",
        ),
        "counted, and told as a number",
    ),
    Row(
        "threads",
        "work that must not hold the loop up; no peer makes a thread",
        NONE,
        ("aerobee_broker.main:WORKERS", "aerobee_service.program.serving:THREADS_MAX"),
        "it waits for a thread",
    ),
    Row(
        "entries",
        "topics",
        ("broker:maxTopicsAutoCreated",),
        ("broker:maxTopics", "nameserver:maxTopics"),
        "TOPIC_NOT_EXIST; the registration is taken without them",
    ),
    Row(
        "entries",
        "queues of a topic",
        ("broker:maxQueuesPerTopic",),
        NONE,
        "INVALID_PARAMETER, or fewer queues",
    ),
    Row(
        "entries",
        "groups",
        ("broker:maxGroupsAutoCreated",),
        ("broker:maxGroups",),
        "SUBSCRIPTION_GROUP_NOT_EXIST",
    ),
    Row(
        "entries",
        "members of groups, their subscriptions",
        (
            "broker:maxClientsPerConnection",
            "broker:maxSubscriptionsPerGroup",
            "aerobee_broker.remoting_api.client_handlers:CLIENT_ID_CHARS_MAX",
        ),
        ("broker:maxRegisteredClients",),
        "SYSTEM_BUSY, INVALID_PARAMETER",
    ),
    Row(
        "entries",
        "locks of queues, of one group and of all",
        ("aerobee_broker.members.queue_locks:LOCKS_PER_GROUP_MAX",),
        ("aerobee_broker.members.queue_locks:LOCKS_MAX",),
        "the lock is not granted",
    ),
    Row(
        "entries",
        "held pulls",
        ("broker:maxHeldPullsPerConnection",),
        ("broker:maxHeldPulls",),
        "SYSTEM_BUSY",
    ),
    Row(
        "entries",
        "requests that wait for the disk",
        ("broker:maxColdReadsPerConnection",),
        ("broker:maxColdReads",),
        "SYSTEM_BUSY",
    ),
    Row(
        "entries",
        "held pops, and messages that were popped",
        ("broker:popPollingSize",),
        ("broker:maxPopPollingSize", "broker:popCkMaxBufferSize"),
        "POLLING_FULL",
    ),
    Row(
        "entries",
        "numbers of signed requests that may come behind later ones",
        ("aerobee_access.freshness:BEHIND_MAX",),
        NONE,
        "NO_PERMISSION",
    ),
    Row("entries", "open transactions", NONE, ("broker:maxOpenTransactions",), "SYSTEM_BUSY"),
    Row(
        "entries",
        "brokers at a nameserver, and what they are told at once",
        NONE,
        ("nameserver:maxBrokers", "aerobee_nameserver.server:ANNOUNCEMENTS_MAX"),
        "refused; left out",
    ),
    Row(
        "time",
        "a fence in front of what writes, and the wait for a slave, in a hand-over",
        (
            "aerobee_broker.remoting_api.role_handlers:FENCE_MILLIS_MAX",
            "aerobee_broker.remoting_api.role_handlers:LEVEL_MILLIS_MAX",
        ),
        NONE,
        "INVALID_PARAMETER",
    ),
    Row(
        "time",
        "a proxy's header; the first byte, and the handshake, where TLS is told from plain; s each",
        ("aerobee_remoting.ends.server:FIRST_BYTE_S",),
        NONE,
        "cut off",
    ),
    Row("time", "a request that does not arrive whole, s", ("broker:frameTimeoutSeconds",), NONE, "cut off"),
    Row("time", "answers that are not read, s", ("broker:writeTimeoutSeconds",), NONE, "cut off"),
    Row(
        "time",
        "silence, s",
        ("broker:serverChannelMaxIdleTimeSeconds", "nameserver:serverChannelMaxIdleTimeSeconds"),
        NONE,
        "cut off",
    ),
)

# What ends in _MAX or begins with max and is no bound on a peer's use, each with the reason.
ELSEWHERE: Final = {
    "broker:maxHaTransferByteInSecond": "how fast a slave is given the log",
    "broker:maxHashSlotNum": "the form of the index files",
    "broker:maxIndexNum": "the form of the index files",
    "aerobee_broker.members.consumers:CONFLICT_TOPICS_MAX": "topics in one line of the log",
    "broker:maxFilterMessageSize": "how far one pull looks; the other bounds of a pull are RocketMQ's too",
    "broker:maxMsgsNumBatch": "messages of one answer to a query",
    "broker:maxTransferBytesOnMessageInMemory": "bytes of one answer to a pull",
    "broker:maxTransferCountOnMessageInMemory": "messages of one answer to a pull",
    "broker:maxTransferBytesOnMessageInDisk": "bytes of one answer to a pull",
    "broker:maxTransferCountOnMessageInDisk": "messages of one answer to a pull",
    "aerobee_remoting.peers.peer_memory:TOTAL_MAX": "the default where there are no settings",
    "aerobee_remoting.peers.peer_memory:PEER_MAX": "the default where there are no settings",
    "aerobee_remoting.peers.networks:NETWORKS_MAX": "a setting's length",
    "aerobee_service.operators.http_responder:HEAD_SIZE_MAX": "with PER_HOST_MAX and CONNECTIONS_MAX 512 KiB in all",
    "aerobee_broker.remoting_api.offset_resets:QUEUES_NAMED_MAX": "queues that a line of the log names",
    "aerobee_broker.remoting_api.settings_handlers:IGNORED_NAMED_MAX": "keys that a remark names",
    "aerobee_broker.members.filters:NAMES_SOUGHT_MAX": "by which of two ways properties are read",
    "aerobee_broker.members.clients:ADDRESSES_MAX": "a memory of addresses in packed form",
    "aerobee_broker.replication.metadata:FORWARDED_MAX": "offsets that a slave commits at its master in one round",
    "aerobee_nameserver.registration:TIMEOUT_MS_MAX": "a number's range",
    "aerobee_nameserver.registration:NAME_CHARS_MAX": "a name's length",
    "aerobee_nameserver.registration:QUEUE_COUNT_MAX": "a number's range",
    "aerobee_nameserver.registration:PERM_MAX": "a number's range",
    "aerobee_nameserver.route_table:PLANS_MAX": "tries of one change",
}


# What a process takes of memory at most. A term is a product of bounds, of figures of the source, and of plain numbers.
PEER_SHARE: Final = 1.25  # with what the allocator keeps of memory that was given back
MIB: Final = 1 << 20
Term = tuple[str | float, ...]


@dataclass(slots=True, frozen=True)
class Share:
    """What a part of the memory is for, and its terms for each program; no terms: that program has no such part."""

    what: str
    broker: tuple[Term, ...]
    nameserver: tuple[Term, ...]


_BODIES, _EXCHANGE = "aerobee_proto.bodies", "aerobee_remoting.exchange"
_IN_HAND: Final[tuple[Term, ...]] = (
    (3, "aerobee_proto.frames:FRAME_SIZE_MAX"),
    (f"{_BODIES}:OBJECTS_MAX", f"{_BODIES}:OBJECT_SIZE"),
    (f"{_BODIES}:VALUES_MAX", f"{_BODIES}:VALUE_SIZE"),
    (f"{_EXCHANGE}.handlers:DECODED_SIZE_MAX", f"{_BODIES}:TEXT_SIZE"),
    (2, f"{_EXCHANGE}.answers:ANSWER_SIZE_MAX"),
)
_LOG: Final[tuple[Term, ...]] = ((2, "aerobee_service.logs.log_writer:WAITING_SIZE_MAX"),)
MEMORY: Final = (
    Share("the program itself, with an empty store", ((100, MIB),), ((100, MIB),)),
    Share(
        "what is kept for all clients, and a quarter for what the allocator keeps of memory that was given back",
        (("broker:maxPeerMemoryBytes", PEER_SHARE),),
        (("nameserver:maxPeerMemoryBytes", PEER_SHARE),),
    ),
    Share(
        "one request in hand: its pieces, the whole, its parts, what it becomes, its answer",
        _IN_HAND,
        _IN_HAND,
    ),
    Share(
        "one large registration that is read",
        (),
        (
            (2, "aerobee_nameserver.handlers:REGISTRATION_SIZE_MAX"),
            (2, f"{_BODIES}:_REGISTER_SIZE_MAX"),
            (f"{_BODIES}:_TOPICS_MAX", f"{_BODIES}:OBJECT_SIZE"),
        ),
    ),
    Share(
        "answers that threads are at work on",
        (("aerobee_broker.main:WORKERS", f"{_EXCHANGE}.answers:ANSWER_SIZE_MAX"),),
        (),
    ),
    Share(
        "what replicas say in handshakes before it is heard",
        (
            (
                "aerobee_broker.replication.giving_server:CONNECTIONS_MAX",
                "aerobee_broker.replication.greeting:REST_SIZE_MAX",
            ),
        ),
        (),
    ),
    Share("what the native engine remembers of pulls", ((20, MIB),), ()),
    Share("lines of the log that nobody reads", _LOG, _LOG),
)


def memory_max(program: str) -> int:
    """Bytes that a broker or a nameserver takes at most, by the bounds as they are by default."""
    return sum(size_of(term) for share in MEMORY for term in getattr(share, program))


def size_of(term: Term) -> int:
    """Bytes."""
    return round(math.prod(value_of(one) if isinstance(one, str) else one for one in term))


def value_of(bound: str) -> Any:
    """The value of a bound as it is by default. AttributeError or KeyError for one that is not there."""
    place, _, name = bound.partition(":")
    if place in SETTINGS:
        by_alias = {info.alias: info for info in SETTINGS[place].model_fields.values()}
        return by_alias[name].get_default(call_default_factory=True, validated_data={})
    return getattr(import_module(place), name)


def listed() -> set[str]:
    """Every bound of the table."""
    return {bound for row in TABLE for bound in (*row.peer, *row.all_)}


def found() -> Iterator[str]:
    """Every bound of the settings and of the source that has to be in the table or in ELSEWHERE."""
    for place, model in SETTINGS.items():
        for info in model.model_fields.values():
            if re.match(r"max[A-Z]", str(info.alias)):
                yield f"{place}:{info.alias}"
    for package, folder in SCANNED.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join((package, *path.relative_to(ROOT / folder).with_suffix("").parts))
            for name in re.findall(r"^([A-Z_]+_MAX)\b.* = ", path.read_text(encoding="utf-8"), re.MULTILINE):
                yield f"{module.removesuffix('.__init__')}:{name}"


def page_part() -> str:
    """The table, as docs/limits.md shows it."""
    lines = ["", "| kind | what | of one peer | of all | then |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row.kind} | {row.what} | {_shown(row.peer)} | {_shown(row.all_)} | {row.then} |" for row in TABLE
    ]
    return "\n".join([*lines, "", *_memory_part(), "", ""])


def _memory_part() -> Iterator[str]:
    """The sum of memory, part by part."""
    yield "Memory of a process, at most, by these bounds:"
    yield ""
    yield "| part of the memory | broker, MiB | nameserver, MiB |"
    yield "| --- | --- | --- |"
    for share in MEMORY:
        yield f"| {share.what} | {_arithmetic(share.broker)} | {_arithmetic(share.nameserver)} |"
    yield f"| all of it | {memory_max('broker') / MIB:,.0f} | {memory_max('nameserver') / MIB:,.0f} |"


def _arithmetic(terms: tuple[Term, ...]) -> str:
    """How the figure comes about, and the figure."""
    if not terms:
        return ""
    shown = " + ".join(
        " x ".join(_name(one) if isinstance(one, str) else f"{one:g}" for one in term if one != MIB)
        for term in terms
    )
    figure = f"{sum(map(size_of, terms)) / MIB:,.0f}"
    return figure if shown == figure else f"{shown} = {figure}"


def _shown(bounds: tuple[str, ...]) -> str:
    return "<br>".join(f"{_name(bound)} {_figure(value_of(bound))}" for bound in bounds)


def _name(bound: str) -> str:
    place, _, name = bound.partition(":")
    if place == "broker":
        return f"`{name}`"
    if place == "nameserver":
        return f"nameserver's `{name}`"
    return f"`{place.rpartition('.')[2]}.{name}`"


def _figure(value: float) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if isinstance(value, int) and value >= 16 * 1024 and value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{value:,}"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write(page_part())
        return
    print(page_part())


if __name__ == "__main__":
    main()
