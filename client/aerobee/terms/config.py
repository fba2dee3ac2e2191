"""Settings of a client. Plain frozen values: the defaults work, every unit is in the name.

    ClientConfig    where the nameservers are, time-outs, TLS, access keys, limits
    ProducerConfig  batching, retries, compression, queue choice
    FetchConfig     how readers and pull consumers pull
    ConsumerConfig  how a member of a group pulls, repeats, commits and ends

`ClientConfig.from_env` reads AEROBEE_NAMESERVERS (or RocketMQ's own NAMESRV_ADDR), AEROBEE_TLS (_CA, _CERT, _KEY),
AEROBEE_ACCESS_KEY and AEROBEE_SECRET_KEY, or the file that AEROBEE_CREDENTIALS_FILE names.
"""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aerobee.errors import DEFAULT_NAMESERVER, InvalidMessage
from aerobee.terms.arguments import check_fields
from aerobee.terms.credentials import Credentials, credentials_of_environment
from aerobee.terms.tls_files import context_of_files
from aerobee_proto.codes import NAMESERVER_DEFAULT_PORT
from aerobee_proto.names import TRACE_TOPIC
from aerobee_service.logs.event_log import event_logger

log = event_logger("aerobee.client")

TLS_FILES: Final = ("AEROBEE_TLS_CA", "AEROBEE_TLS_CERT", "AEROBEE_TLS_KEY")  # each of them means TLS

__all__ = [
    "ClientConfig",
    "ConsumerConfig",
    "Credentials",
    "FetchConfig",
    "ProducerConfig",
    "check_settings",
    "parse_addrs",
]


# Settings whose names end so are bounds of what may be there or be done: with none nothing would ever happen.
AT_LEAST_ONE: Final = ("_max", "_bytes", "_count", "max_messages")
# Pauses between what is done again and again, and how long a lock counts: with 0 the client would do nothing else, and
# flood the servers, or never have a lock.
ABOVE_ZERO: Final = frozenset(
    {"heartbeat_s", "route_poll_s", "rebalance_s", "commit_s", "lock_s", "lock_valid_s"}
)


def parse_addrs(addrs: str | Iterable[str]) -> tuple[str, ...]:
    """Addresses as `host:port`, from one text (`a:9876;b:9876`, commas too) or a list of such texts.

    The port may be left out (9876). InvalidMessage names an address that cannot be one.
    """
    texts = [addrs] if isinstance(addrs, str) else list(addrs)
    parts = [part.strip() for text in texts for part in text.replace(",", ";").split(";")]
    found = tuple(dict.fromkeys(_with_port(part) for part in parts if part))
    if not found:
        raise InvalidMessage('no nameserver address given; write for example "127.0.0.1:9876"')
    return found


def _with_port(addr: str) -> str:
    bare = addr.removeprefix("http://").rstrip("/")
    host, colon, port = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        host, port = bare, str(NAMESERVER_DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidMessage(f'{addr!r} is not a nameserver address; write "host:port"')
    return f"{host}:{port}"


def check_settings(settings: Any) -> None:
    """InvalidMessage names the first setting that is of the wrong kind, or out of its range."""
    check_fields(settings)
    for name in settings.__dataclass_fields__:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name.endswith(AT_LEAST_ONE) and value < 1:
            raise InvalidMessage(f"{name} is {value}; it has to be 1 or more")
        if name in ABOVE_ZERO and value == 0:
            raise InvalidMessage(f"{name} is 0; it has to be more than that")


@dataclass(slots=True, frozen=True, kw_only=True)
class ClientConfig:
    """Settings of one client; defaults in brackets.

    nameservers           host:port of each; one is used until it fails [127.0.0.1:9876]
    request_timeout_s     admin calls, offsets, queries, route look-ups [3]
    route_poll_s          how often known routes are asked for again [30]
    heartbeat_s           how often brokers hear from this client [30]
    tls                   None: plain; True: TLS with the system's certificates; or a context of your own [None]
    credentials           every request is signed with them; None leaves requests unsigned [None]
    trace                 write RocketMQ's message traces for everything sent and consumed by groups [False]
    trace_topic           where to; brokers have RMQ_SYS_TRACE_TOPIC when they are told to (traceTopicEnable)
                          [RMQ_SYS_TRACE_TOPIC]
    telemetry             make OpenTelemetry spans; needs the extra `aerobee[otel]` [False]
    metrics               count and measure through OpenTelemetry; needs the extra `aerobee[otel]` [False]
    client_name           middle part of the client id; None takes the process id [None]
    body_size_max         bytes; larger bodies are refused before they are sent [4 MiB]
    decompressed_size_max bytes; a received body that inflates to more is a DamagedRecord [64 MiB]
    check_records         verify the checksums of received records [True]
    """

    nameservers: tuple[str, ...] = (DEFAULT_NAMESERVER,)
    request_timeout_s: float = 3.0
    route_poll_s: float = 30.0
    heartbeat_s: float = 30.0
    tls: ssl.SSLContext | bool | None = None
    credentials: Credentials | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    telemetry: bool = False
    metrics: bool = False
    client_name: str | None = None
    body_size_max: int = 4 * 1024 * 1024
    decompressed_size_max: int = 64 * 1024 * 1024
    check_records: bool = True

    def __post_init__(self) -> None:
        given: object = self.nameservers
        if isinstance(given, str | list):
            object.__setattr__(self, "nameservers", parse_addrs(given))
        check_settings(self)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "ClientConfig":
        """Settings from environment variables; what is not set keeps its default.

        Without any address that is this machine's, which is said in the log (`client.nameservers_not_set`).
        """
        addrs = environ.get("AEROBEE_NAMESERVERS") or environ.get("NAMESRV_ADDR")
        if not addrs:
            log.warning("client.nameservers_not_set", variable="AEROBEE_NAMESERVERS", used=DEFAULT_NAMESERVER)
        tls: ssl.SSLContext | bool = environ.get("AEROBEE_TLS", "").strip().lower() in {
            "1",
            "true",
            "yes",
            "on",
        }
        files = [environ.get(name) or None for name in TLS_FILES]
        if any(files):
            tls = context_of_files(*files)
        return cls(
            nameservers=parse_addrs(addrs or DEFAULT_NAMESERVER),
            tls=tls or None,
            credentials=credentials_of_environment(environ),
        )


@dataclass(slots=True, frozen=True, kw_only=True)
class ProducerConfig:
    """Settings of one producer; defaults in brackets.

    send_timeout_s     from the call to the last retry, per message: long enough for a broker to restart [30]
    try_timeout_s      how long one try may take; doubles after each that got no answer [3]
    attempts_max       tries in all, each on another broker when there is one; None: as many as the time allows
                       [None]
    linger_s           how long a message may wait for others; 0 collects only what is already there [0]
    batch_bytes        a batch leaves at this size, its overhead counted [256 KiB]
    batch_count        or with this many messages; 1 turns batching off [128]
    in_flight_max      unanswered batches a topic; bound messages (queue, sharding key) always have one a queue [8]
    pending_count_max  unanswered messages before send() waits and send_nowait raises BufferFull [20000]
    pending_bytes_max  or as many bytes [32 MiB]
    compress_over      bytes; larger bodies are compressed; None never [4 KiB]
    compression        kind of compression; zlib is read by every official client [zlib]
    compression_level  the codec's own level [5]
    queue_choice       "round_robin", or "latency" to prefer the brokers that answer fastest [round_robin]
    """

    send_timeout_s: float = 30.0
    try_timeout_s: float = 3.0
    attempts_max: int | None = None
    linger_s: float = 0.0
    batch_bytes: int = 256 * 1024
    batch_count: int = 128
    in_flight_max: int = 8
    pending_count_max: int = 20_000
    pending_bytes_max: int = 32 * 1024 * 1024
    compress_over: int | None = 4096
    compression: Literal["zlib", "lz4", "zstd"] = "zlib"
    compression_level: int = 5
    queue_choice: Literal["round_robin", "latency"] = "round_robin"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(slots=True, frozen=True, kw_only=True)
class FetchConfig:
    """Settings of a reader or pull consumer; defaults in brackets.

    max_messages       asked for with one pull; brokers have limits of their own [1024]
    max_bytes          wish for the size of one answer [1 MiB]
    hold_s             how long a broker may hold a pull when there is nothing new [15]
    answer_margin_s    how much later than hold_s an answer may come [10]
    buffered_bytes_max fetched and not yet consumed, all queues together; pulling pauses above it [32 MiB]
    retry_s, retry_max_s  pause after a failed pull; doubles from the one to the other [0.1, 3]
    give_up_s          raise what failed when a queue could not be pulled for so long; None tries for ever [None]
    """

    max_messages: int = 1024
    max_bytes: int = 1024 * 1024
    hold_s: float = 15.0
    answer_margin_s: float = 10.0
    buffered_bytes_max: int = 32 * 1024 * 1024
    retry_s: float = 0.1
    retry_max_s: float = 3.0
    give_up_s: float | None = None

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsumerConfig:
    """Settings of a member of a consumer group; defaults in brackets.

    pull_count           messages asked for with one pull; brokers have limits of their own [32]
    hold_s               how long a broker may hold a pull when there is nothing new [15]
    answer_margin_s      how much later than hold_s an answer may come [15]
    queue_count_max      messages of one queue that are here and not done; its pulls pause above it [1000]
    queue_bytes_max      or as many bytes [32 MiB]
    queue_span_max       or as many offsets between the oldest message that is not done and the newest [2000]
    auto_ack             a message counts as done when the next one is asked for; else only when it is acked [True]
    max_reconsume_times  redeliveries before a message goes to the dead-letter topic; None takes the group's own
                         number (16), for orderly groups no bound [None]
    suspend_s            orderly: pause before a message that failed is handed out again [1]
    resend_s             pause before a message whose send-back failed is handed out again [5]
    commit_s             how often offsets are committed [5]
    rebalance_s          how often queues are shared out anew without a sign from a broker [20]
    lock_s, lock_valid_s orderly: how often queue locks are renewed, how long a lock is trusted [20, 30]
    close_timeout_s      how long close() waits for handlers, and then for brokers [10]
    wait_for_topics      False: a topic that does not exist is an error at the start; True: it may come later
                         [False]
    offsets_folder       broadcasting: where offsets are kept; None is .rocketmq_offsets in the home folder [None]
    retry_s, retry_max_s pause after a failed pull; doubles from the one to the other [0.1, 3]
    """

    pull_count: int = 32
    hold_s: float = 15.0
    answer_margin_s: float = 15.0
    queue_count_max: int = 1000
    queue_bytes_max: int = 32 * 1024 * 1024
    queue_span_max: int = 2000
    auto_ack: bool = True
    max_reconsume_times: int | None = None
    suspend_s: float = 1.0
    resend_s: float = 5.0
    commit_s: float = 5.0
    rebalance_s: float = 20.0
    lock_s: float = 20.0
    lock_valid_s: float = 30.0
    close_timeout_s: float = 10.0
    wait_for_topics: bool = False
    offsets_folder: Path | None = None
    retry_s: float = 0.1
    retry_max_s: float = 3.0

    def __post_init__(self) -> None:
        check_settings(self)
