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
    "aerobee_access": "proto/aerobee_access",
    "aerobee_proto": "proto/aerobee_proto",
    "aerobee_remoting": "proto/aerobee_remoting",
    "aerobee_service": "proto/aerobee_service",
    "aerobee_broker": "broker/aerobee_broker",
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
        (
            "aerobee_service.turns.turns:SLICE_S",
            "aerobee_service.turns.slices:SLICES_S",
            "aerobee_service.turns.turns:FIRST_S",
            "aerobee_service.turns.turns:READS_MAX",
            "aerobee_service.turns.turns:LARGE_READ_SIZE",
        ),
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
            "aerobee_proto.bodies:_TOPIC_TOLERANT_SIZE_MAX",
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
        "pages of metrics and health: seconds from one that is made to the next",
        (),
        ("aerobee_service.operators.operators_port:PAGE_EVERY_S",),
        "all who ask meanwhile have the next one",
    ),
    Row(
        "event loop",
        "long work in one turn: entries of lists, new topics and queues, members told or tried, topics answered or "
        "changed, queries of one read, and bytes of what the native engine answers of one",
        (
            "aerobee_broker.remoting_api.native_queries:QUERIES_MAX",
            "aerobee_broker.remoting_api.native_queries:ASKED_MAX",
            "aerobee_broker.native.engine:ANSWERS_SIZE",
            "aerobee_broker.remoting_api.request_bodies:RUN_MAX",
            "aerobee_broker.messages.publish:TURN_MAKES_MAX",
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
        "event loop",
        "shares of the time, and credit, s: making topics and queues for reads of many; writing changed tables again",
        (),
        (
            "aerobee_broker.remoting_api.send:MAKING_SHARE",
            "aerobee_broker.remoting_api.send:MAKING_CREDIT_S",
            "aerobee_broker.settings.config_files:REST_RATIO",
            "aerobee_broker.settings.config_files:REST_MAX_S",
        ),
        "what comes behind waits; the next write has all changes since",
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
            "aerobee_broker.replication.hello:SOUND_MAX",
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
    Row(
        "memory",
        "users, their policies, and what is decided of them for a connection",
        (
            "aerobee_access.policies:ENTRIES_MAX",
            "aerobee_access.policies:ADDRESSES_MAX",
            "aerobee_access.gate:GRANTED_MAX",
            "aerobee_access.judging:JUDGEMENTS_MAX",
            "aerobee_access.gate:KEPT_FREE_MAX",
        ),
        (
            "aerobee_access.gate:KEPT_MAX",
            "aerobee_access.table:USERS_MAX",
            "aerobee_access.table:ENTRIES_MAX",
            "aerobee_access.signature:KEYS_MAX",
            "aerobee_access.signature:ORDERS_MAX",
        ),
        "refused with the number; decisions are made anew",
    ),
    Row(
        "event loop",
        "one request that is signed, or changes users, policies, accounts of 4.x",
        (
            "aerobee_access.gate:FIELDS_MAX",
            "aerobee_access.judging:FIELDS_MAX",
            "aerobee_access.signature:ORDER_NAMES_MAX",
            "aerobee_access.admin:USER_BODY_SIZE_MAX",
            "aerobee_access.admin:ACL_BODY_SIZE_MAX",
            "aerobee_access.plain_admin:CHARS_MAX",
        ),
        NONE,
        "refused; a name's order, or a judgement, is made anew each time",
    ),
    Row(
        "disk",
        "lines of the audit log, but for changes: at once, and then in a second",
        ("aerobee_access.audit:FREE_LINES_MAX", "aerobee_access.audit:LINES_A_SECOND_MAX"),
        ("broker:accessAuditFileSize", "broker:accessAuditFiles"),
        "left out, and told as a number; the oldest file goes",
    ),
    Row(
        "memory",
        "addresses that have been refused, lines that wait for the audit log",
        NONE,
        (
            "aerobee_access.refusals:ADDRESSES_MAX",
            "aerobee_access.audit:ADDRESSES_MAX",
            "aerobee_access.audit:WAITING_MAX",
        ),
        "the longest quiet address is forgotten; lines are left out, and told as a number",
    ),
    Row(
        "entries",
        "what POP keeps: request modes of groups, check-points in one answer, orderly messages of a client",
        (
            "aerobee_broker.pop.checkpoints:COUNT_MAX",
            "aerobee_broker.pop.orderly:COUNT_MAX",
            "aerobee_broker.pop.ledger:ROW_MAX",
        ),
        ("aerobee_broker.pop.request_modes:ENTRIES_MAX",),
        "refused; older check-points are written to the log",
    ),
    Row(
        "entries",
        "transactions: ends whose way is known, marks that wait to be written, ended ones behind one that waits",
        NONE,
        (
            "aerobee_broker.transactions.transactions:OUTCOMES_MAX",
            "aerobee_broker.transactions.transactions:MARKS_MAX",
            "aerobee_broker.transactions.transaction_checks:HELD_BACK_MAX",
        ),
        "the oldest are forgotten; nothing is ended; the one that waits is copied behind them",
    ),
    Row(
        "memory",
        "what is remembered of names: where sends go, other brokers' topics, hosts, topics and tags of records",
        NONE,
        (
            "aerobee_broker.messages.intake:ROUTES_MAX",
            "aerobee_broker.cluster.routes:ROUTES_MAX",
            "aerobee_proto.records:_HOSTS_REMEMBERED_MAX",
            "aerobee_proto.records:_TOPICS_REMEMBERED_MAX",
            "aerobee_proto.javahash:_TAGS_REMEMBERED_MAX",
        ),
        "forgotten, and found anew",
    ),
    Row(
        "event loop",
        "pulls, pops and stretches of cold files at work in one turn",
        (
            "aerobee_broker.pop.queue_reader:SCANS_MAX",
            "aerobee_broker.pop.queue_reader:BROUGHT_MAX",
            "aerobee_broker.pop.popping:MISSES_MAX",
        ),
        (
            "aerobee_broker.messages.read:WAKE_MAX",
            "aerobee_broker.messages.read:WOKEN_AT_ONCE_MAX",
            "aerobee_broker.messages.read:PROBE_MAX",
            "aerobee_broker.pop.popping:SERVED_MAX",
            "aerobee_broker.pop.popping:AT_ONCE_MAX",
            "aerobee_broker.pop.popping:GROUPS_AT_ONCE_MAX",
            "aerobee_broker.reading.cold_reads:AHEAD_MAX",
        ),
        "the next turn goes on",
    ),
    Row(
        "event loop",
        "messages of batches, and ends of transactions, in one turn",
        NONE,
        (
            "aerobee_broker.messages.publish_batches:TURN_COUNT_MAX",
            "aerobee_broker.messages.publish_batches:TURN_PROPERTIES_MAX",
            "aerobee_broker.transactions.transaction_table:SETTLED_MAX",
        ),
        "the next turn goes on",
    ),
    Row(
        "time",
        "how long a pull, a pop, or a message out of sight may be held",
        (
            "aerobee_broker.messages.read:HOLD_MS_MAX",
            "aerobee_broker.pop.popping:HOLD_MS_MAX",
            "aerobee_broker.pop.checks:INVISIBLE_MS_MAX",
            "aerobee_broker.pop.orderly:UNUSED_MS_MAX",
        ),
        NONE,
        "cut to it; a time out of sight is refused",
    ),
    Row(
        "memory",
        "one answer to a pull or a pop",
        (
            "aerobee_broker.messages.read:MESSAGE_COUNT_MAX",
            "aerobee_broker.messages.read:BODY_SIZE_MAX",
            "aerobee_broker.pop.queue_reader:BODY_SIZE_MAX",
        ),
        NONE,
        "fewer messages",
    ),
    Row(
        "memory",
        "one message, and one registration, as they are read",
        (
            "aerobee_proto.properties:PROPERTIES_SIZE_MAX",
            "aerobee_proto.inner_batch:COUNT_MAX",
            "aerobee_proto.javajson:SIZE_MAX",
            "aerobee_proto.bodies:LOOSE_SIZE_MAX",
            "aerobee_proto.bodies:_REGISTER_SIZE_MAX",
            "aerobee_proto.bodies:_REGISTER_RATIO_MAX",
            "aerobee_proto.bodies:_TOPICS_MAX",
            "aerobee_proto.bodies:_TOPIC_SIZE_MAX",
            "aerobee_proto.bodies:_SERVERS_SIZE_MAX",
            "aerobee_proto.bodies:_MAPPING_SIZE_MAX",
            "aerobee_proto.bodies:_VERSION_SIZE_MAX",
            "aerobee_proto.bodies:_OUTLINE_LISTS_MAX",
            "aerobee_proto.bodies:_OUTLINE_OBJECTS_MAX",
            "aerobee_proto.bodies:_OUTLINE_COMMAS_MAX",
        ),
        NONE,
        "refused",
    ),
    Row(
        "memory",
        "one message of the link between brokers: a piece of the log, epochs, ranges to be compared",
        (
            "aerobee_proto.ha:TRANSFER_SIZE_MAX",
            "aerobee_proto.ha_hello:FRAME_SIZE_MAX",
            "aerobee_proto.ha_hello:EPOCHS_MAX",
            "aerobee_proto.ha_hello:RANGES_MAX",
        ),
        NONE,
        "cut off",
    ),
    Row(
        "memory",
        "what workers of one service say to their supervisor",
        ("aerobee_broker.workers.link:MESSAGE_MAX", "aerobee_broker.workers.pages:PAGE_SIZE_MAX"),
        ("aerobee_broker.workers.link:WAITING_MAX",),
        "not said; a page is left out",
    ),
)

# What ends in _MAX or begins with max and is no bound on a peer's use, each with the reason.
ELSEWHERE: Final[dict[str, str]] = {
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

# More of the same, by reason.
_ELSEWHERE_BY_REASON: Final = {
    "a number's range": (
        "aerobee_proto.ha:OFFSET_MAX",
        "aerobee_proto.javajson:_NUMBER_LENGTH_MAX",
        "aerobee_proto.sql92.values:NUMBER_CHARS_MAX",
        "aerobee_proto.sql92.values:WHOLE_DIGITS_MAX",
        "aerobee_access.plain_acl:NUMBER_CHARS_MAX",
        "aerobee_broker.catalog.consumer_offsets:OFFSET_MAX",
        "aerobee_broker.catalog.groups:RETRY_QUEUES_MAX",
        "aerobee_broker.messages.giving_back:RECONSUME_TIMES_MAX",
        "aerobee_broker.schedule.scheduled_messages:QUEUE_ID_MAX",
        "aerobee_broker.transactions.half_messages:NUMBER_DIGITS_MAX",
    ),
    "a text's length": (
        "aerobee_proto.ha_hello:TEXT_MAX",
        "aerobee_proto.names:TOPIC_LENGTH_MAX",
        "aerobee_proto.names:INTERNAL_TOPIC_LENGTH_MAX",
        "aerobee_proto.names:GROUP_LENGTH_MAX",
        "aerobee_proto.records:TOPIC_LENGTH_MAX",
        "aerobee_access.policies:NAME_CHARS_MAX",
        "aerobee_access.users:NAME_CHARS_MAX",
        "aerobee_access.users:SECRET_CHARS_MAX",
        "aerobee_broker.catalog.attributes:ATTRIBUTES_TEXT_CHARS_MAX",
        "aerobee_broker.messages.lookup:KEY_SIZE_MAX",
        "aerobee_broker.messages.recall_handles:HANDLE_CHARS_MAX",
        "aerobee_broker.pop.checks:ATTEMPT_ID_CHARS_MAX",
    ),
    "how much of a text is repeated in an error, a log or an audit line": (
        "aerobee_proto.names:_SHOWN_LENGTH_MAX",
        "aerobee_access.audit:CHARS_MAX",
        "aerobee_access.control:PATH_CHARS_MAX",
        "aerobee_access.plain_gate:SHOWN_CHARS_MAX",
        "aerobee_service.settings.settings:SHOWN_VALUE_CHARS_MAX",
        "aerobee_service.settings.settings:SUGGESTED_CHARS_MAX",
        "aerobee_service.settings.settings:SUGGESTIONS_MAX",
        "aerobee_broker.messages.replying:SHOWN_CHARS_MAX",
        "aerobee_broker.pop.extra_info:SHOWN_SIZE_MAX",
        "aerobee_broker.process.crash_notes:_LENGTH_MAX",
        "aerobee_broker.process.store_folder:_SHOWN_MAX",
    ),
    "levels of one text inside each other": (
        "aerobee_proto.javajson:DEPTH_MAX",
        "aerobee_proto.sql92.parser:DEPTH_MAX",
        "aerobee_access.plain_yaml:DEPTH_MAX",
    ),
    "the work of one step, or which of two ways it goes": (
        "aerobee_proto.javahash:_UNITS_PER_PASS_MAX",
        "aerobee_proto.javajson:SMALL_MAX",
        "aerobee_proto.javajson:SORT_MAX",
        "aerobee_proto.javajson:PAIRED_MAX",
        "aerobee_proto.bodies:_OUTLINE_MAX",
        "aerobee_service.program.interpreter:YOUNG_MAX",
        "aerobee_broker.election.election:STEPS_MAX",
    ),
    "files and settings of the operator, and what etcd says": (
        "aerobee_access.file:SIZE_MAX",
        "aerobee_access.plain_files:SIZE_MAX",
        "aerobee_access.plain_files:FILES_MAX",
        "aerobee_access.port_guard:FILE_SIZE_MAX",
        "aerobee_access.sealing:KEY_FILE_SIZE_MAX",
        "aerobee_service.settings.settings:SETTINGS_FILE_BYTES_MAX",
        "aerobee_service.settings.settings:PROPERTIES_LINES_MAX",
        "aerobee_broker.settings.config:DELAY_LEVEL_COUNT_MAX",
        "aerobee_broker.election.etcd:LINE_SIZE_MAX",
        "aerobee_broker.workers.layout:_TABLE_SIZE_MAX",
    ),
    "tries, and how old something may be": (
        "aerobee_broker.cluster.routes:ROUTE_AGE_MS_MAX",
        "aerobee_broker.election.etcd:TRIES_MAX",
        "aerobee_broker.reading.cold_reads:TRIES_MAX",
        "aerobee_broker.schedule.scheduled_messages:SAME_KEY_MAX",
    ),
}
ELSEWHERE.update({bound: reason for reason, bounds in _ELSEWHERE_BY_REASON.items() for bound in bounds})


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
    Share(
        "what is decided of users, and kept",
        (
            ("aerobee_access.gate:KEPT_MAX", "aerobee_access.gate:KEPT_SIZE"),
            ("broker:maxConnections", "aerobee_access.gate:KEPT_FREE_MAX", "aerobee_access.gate:KEPT_SIZE"),
        ),
        (
            ("aerobee_access.gate:KEPT_MAX", "aerobee_access.gate:KEPT_SIZE"),
            (
                "nameserver:maxConnections",
                "aerobee_access.gate:KEPT_FREE_MAX",
                "aerobee_access.gate:KEPT_SIZE",
            ),
        ),
    ),
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
    return "<br>".join(f"{_name(bound)} {_figure(bound, value_of(bound))}" for bound in bounds)


def _name(bound: str) -> str:
    place, _, name = bound.partition(":")
    if place == "broker":
        return f"`{name}`"
    if place == "nameserver":
        return f"nameserver's `{name}`"
    return f"`{place.rpartition('.')[2]}.{name}`"


def _figure(bound: str, value: float) -> str:
    if bound.endswith("_MS_MAX"):
        return f"{value:,}"
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
