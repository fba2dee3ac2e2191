"""Broker settings: RocketMQ's keys, checked once.

Every field's description says what it does; its schema extra says the unit and whether it is hot, that is,
whether UPDATE_BROKER_CONFIG may change it in a running broker. A value that would promise something that this
broker does not do (a replica, access control) is refused at start instead of being ignored.

Touches  nothing; `aerobee_service.settings.settings` reads files and the environment.

Invariants
- A checked instance never changes. A hot change makes a new one (`LiveConfig.replace`), whole or not at all.
- Keys that RocketMQ knows and that mean nothing here are in `UNSUPPORTED` with the reason; they are ignored alike in
  a settings file and in an update of a running broker.
"""

import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import structlog
from pydantic import Field, SecretStr, field_validator, model_validator

from aerobee_access.settings import AccessSettings
from aerobee_broker.settings.official_keys import PROMISING_KEYS, UNSUPPORTED_KEYS
from aerobee_proto import names
from aerobee_proto.bodies import DataVersion
from aerobee_service.settings.settings import (
    SettingsError,
    SettingsPath,
    SettingsPathText,
    SettingsProblem,
    apply_changes,
)
from aerobee_service.settings.settings_signal import SettingsSignal
from aerobee_service.tls.contexts import ClientAuth
from aerobee_service.tls.ends import check_tls
from aerobee_store.terms.config import StoreConfig

__all__ = [
    "BrokerConfig",
    "LiveConfig",
    "delay_levels",
    "field_of",
    "hot_keys",
    "local_address",
    "nameserver_addresses",
    "plain_acl_of",
    "to_store_config",
    "unserved_keys",
    "warn_of_unserved",
]

log = structlog.get_logger()

KIB: Final = 1024
MIB: Final = 1024 * KIB
SLAVE_RATIO: Final = 10  # percent of memory
NAME_PATTERN: Final = r"^[%|a-zA-Z0-9_-]+$"
DELAY_LEVEL_DEFAULT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DELAY_LEVEL_COUNT_MAX: Final = 1000
# An address of a network that is reserved for documentation: a UDP socket "connected" to it sends nothing,
# but the kernel tells which local address would be used to leave this machine.
OUTSIDE_ADDRESS: Final = ("198.51.100.1", 9)


def _key(
    default: Any,
    description: str,
    *,
    unit: str | None = None,
    hot: bool = False,
    env: tuple[str, ...] = (),
    unserved: str | None = None,
    allowed: str | None = None,
    **limits: Any,
) -> Any:
    """A field of the model with what an operator has to know about it.

    `unserved` says why the key has no effect: it is taken, and whoever sets it is warned. `allowed` says in words
    what a value may be, where a pattern does.
    """
    extra: dict[str, Any] = {"hot": hot}
    if unserved:
        extra["unserved"] = unserved
        description = f"{description} No effect: {unserved}."
    if unit:
        extra["unit"] = unit
    if allowed:
        extra["allowed"] = allowed
    if env:
        extra["env"] = list(env)
    return Field(default, description=description, json_schema_extra=extra, **limits)


def _name(length_max: int) -> dict[str, Any]:
    """The limits of a field that holds a name."""
    allowed = f"a name of 1 to {length_max} letters, digits and signs of % | _ -"
    return {"pattern": NAME_PATTERN, "max_length": length_max, "allowed": allowed}


Port = Annotated[int, Field(ge=0, le=65535)]
Millis = Annotated[int, Field(ge=1, le=365 * 86_400_000)]
Percent = Annotated[int, Field(ge=1, le=100)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class BrokerConfig(AccessSettings):
    """All settings of a broker under RocketMQ's names; the defaults are RocketMQ's unless the text says so."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = UNSUPPORTED_KEYS
    PROMISES: ClassVar[Mapping[str, tuple[str, str]]] = PROMISING_KEYS

    # Who this broker is, and where it is reached.
    broker_cluster_name: str = _key(
        "DefaultCluster",
        "Name of the cluster.",
        **_name(100),
    )
    broker_name: str = _key(
        "broker-a",
        "Name that a master and its slaves share.",
        **_name(100),
    )
    broker_id: int = _key(
        0, "Number within the broker name, another for each slave; a master is 0.", ge=0, le=2**31 - 1
    )
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = _key(
        "ASYNC_MASTER",
        "ASYNC_MASTER: sends wait for no slave. SYNC_MASTER: for inSyncReplicas copies. SLAVE: follows a master.",
    )
    namesrv_addr: str = _key(
        "",
        "Nameservers as host:port;host:port. Empty: the broker registers nowhere.",
        hot=True,
        env=("NAMESRV_ADDR",),
    )
    workers: int = _key(
        1,
        "Brokers that run as one service, each with a store and ports of its own (docs/operations.md). Ours.",
        ge=1,
        le=64,
    )
    listen_port: Port = _key(10911, "Port for clients; 0 takes a free one.")
    bind_address: str = _key("0.0.0.0", "Local address to listen on.")  # noqa: S104
    broker_ip1: str = _key(
        "",
        "Address that clients connect to, as registered. Empty: the address that leaves this machine.",
        alias="brokerIP1",
    )
    broker_ip2: str = _key(
        "", "Address that replicas connect to. Empty: the same as brokerIP1.", alias="brokerIP2"
    )
    ha_listen_port: Port = _key(0, "Port at which slaves fetch the log; 0: the one after listenPort.")
    ha_master_address: str = _key(
        "",
        "Where a slave fetches the log, as host:port. Empty: where the nameservers say that its master is.",
    )
    region_id: str = _key("DefaultRegion", "Region put on messages as MSG_REGION.", hot=True)
    trace_on: bool = _key(True, "Tell clients that tracing is on (TRACE_ON).", hot=True)
    trace_topic_enable: bool = _key(False, "Create the trace topic at start.")
    msg_trace_topic_name: str = _key(
        names.TRACE_TOPIC,
        "Name of the trace topic.",
        **_name(127),
    )

    # Files and durability.
    store_path_root_dir: SettingsPath = _key(Path("~/store"), "Store folder; ~ is the home folder.")
    store_path_commit_log: SettingsPathText = _key(
        "", "Commit log folder. Empty: commitlog in the store folder."
    )
    mapped_file_size_commit_log: int = _key(
        1024 * MIB, "Size of a commit log file.", unit="bytes", ge=16 * KIB, le=2**31 - 1
    )
    mapped_file_size_consume_queue: int = _key(
        6_000_000, "Size of a queue file, rounded up to whole entries.", unit="bytes", ge=20, le=2**31 - 1
    )
    mapper_file_size_batch_consume_queue: int = _key(
        13_800_000,
        "Size of a file of a queue of batches, rounded up to whole entries.",
        unit="bytes",
        ge=46,
        le=2**31 - 1,
    )
    max_hash_slot_num: int = _key(5_000_000, "Slots of an index file.", ge=1, le=2**29)
    max_index_num: int = _key(20_000_000, "Entries of an index file.", ge=2, le=2**26)
    message_index_enable: bool = _key(True, "Index messages by key.")
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = _key(
        "SYNC_FLUSH",
        "SYNC_FLUSH: a send is answered when it is on disk (our default; RocketMQ's is ASYNC_FLUSH).",
    )
    send_engine: Literal["auto", "python", "native"] = _key(
        "auto",
        "Who takes usual sends and pulls: native, the engine of aerobee[native]; python; auto: native if it is there.",
    )
    flush_interval_commit_log: Millis = _key(
        500, "Pause between flushes with ASYNC_FLUSH.", unit="ms", hot=True
    )
    flush_interval_consume_queue: Millis = _key(
        1_000, "Pause between flushes of the queues.", unit="ms", hot=True
    )
    sync_flush_timeout: Millis = _key(
        5_000, "Longest wait of a send for the disk; then FLUSH_DISK_TIMEOUT.", unit="ms", hot=True
    )
    flush_consumer_offset_interval: Millis = _key(
        5_000, "Pause between writes of consumerOffset.json.", unit="ms", hot=True
    )
    flush_delay_offset_interval: Millis = _key(
        10_000, "Pause between writes of delayOffset.json.", unit="ms", hot=True
    )
    enabled_append_prop_crc: bool = _key(
        False, "Write RocketMQ's optional property CRC.", alias="enabledAppendPropCRC"
    )
    force_verify_prop_crc: bool = _key(
        False, "Refuse records without a valid property CRC.", alias="forceVerifyPropCRC"
    )
    file_reserved_time: int = _key(
        72, "Age of its newest message at which a file expires.", unit="h", hot=True, ge=1, le=876_000
    )
    delete_when: str = _key(
        "04",
        "Local hours of the day, separated by ;, at which expired files are deleted.",
        hot=True,
        pattern=r"^([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*$",
        allowed="hours from 00 to 23, separated by ;, like 04 or 02;14",
    )
    clean_file_forcibly_enable: bool = _key(
        True, "Above diskSpaceCleanForciblyRatio, delete the oldest files before their age.", hot=True
    )
    clean_resource_interval: Millis = _key(
        10_000, "Pause between looks at the disk and for old files.", unit="ms"
    )
    disk_max_used_space_ratio: Percent = _key(
        75, "Use of the disk above which expired files go at any hour.", unit="%", hot=True
    )
    disk_space_clean_forcibly_ratio: Percent = _key(
        85, "Use of the disk above which files go before their age.", unit="%", hot=True
    )
    disk_space_warning_level_ratio: Percent = _key(
        90,
        "Use of the disk above which sends are refused, until diskSpaceCleanForciblyRatio is reached again.",
        unit="%",
        hot=True,
    )
    scrub_bytes_per_second: int = _key(
        2 * MIB,
        "How fast the store is read again in the background, in search of rot, at most; 0: not at all. Ours.",
        unit="bytes/s",
        hot=True,
        ge=0,
        le=2**40,
    )
    scrub_interval: Millis = _key(
        86_400_000, "Shortest time between the beginnings of two such rounds. Ours.", unit="ms", hot=True
    )

    # Messages in.
    max_message_size: int = _key(4 * MIB, "Largest body.", unit="bytes", ge=1, le=16 * MIB - 128 * KIB)
    broker_permission: int = _key(6, "Bits 4 read, 2 write for all topics.", hot=True, ge=0, le=7)
    reject_transaction_message: bool = _key(False, "Refuse transaction messages.", hot=True)
    auto_create_topic_enable: bool = _key(True, "Create unknown topics on the first send.", hot=True)
    default_topic_queue_nums: int = _key(8, "Queues of the template topic TBW102.", hot=True, ge=1, le=65_536)
    cluster_topic_enable: bool = _key(True, "The topic named after the cluster may be used.")
    broker_topic_enable: bool = _key(True, "The topic named after the broker may be used.")
    clear_retry_topic_when_delete_topic: bool = _key(
        True, "Delete a topic's POP retry topics together with it.", hot=True
    )
    validate_system_topic_when_update_topic: bool = _key(True, "Refuse changes of system topics.", hot=True)
    message_delay_level: str = _key(DELAY_LEVEL_DEFAULT, "Delays of the levels 1, 2, 3, ...")
    timer_wheel_enable: bool = _key(True, "Serve messages with a delivery time of their own.")
    timer_precision_ms: Millis = _key(
        1_000, "Step of the timer's files; messages are delivered to the millisecond all the same.", unit="ms"
    )
    timer_max_delay_sec: int = _key(
        259_200, "Longest delay of a timer message.", unit="s", ge=1, le=2**31 - 1
    )
    timer_roll_window_slot: int = _key(
        172_800,
        "Steps of the timer after which the record of a message that waits longer is written anew.",
        ge=2,
        le=604_740,
    )
    mapped_file_size_timer_log: int = _key(
        100 * MIB, "Size of one timer log file.", unit="bytes", ge=4096, le=2**31 - 1
    )
    recall_message_enable: bool = _key(False, "Producers may recall timer messages.", hot=True)
    store_reply_message_enable: bool = _key(True, "Store replies of request-reply too.", hot=True)
    transaction_time_out: Millis = _key(
        6_000, "Age at which a half message is first checked.", unit="ms", hot=True
    )
    transaction_check_max: Count = _key(15, "Checks before a half message is given up.", hot=True)
    transaction_check_interval: Millis = _key(30_000, "Pause between rounds of checks.", unit="ms", hot=True)
    transaction_op_batch_interval: Millis = _key(
        3_000,
        "Longest wait of the mark that a transaction has ended for others to share its record.",
        unit="ms",
        hot=True,
    )
    transaction_op_msg_max_size: int = _key(
        4_096, "Size of such a record at which it is written at once.", unit="bytes", hot=True, ge=1, le=MIB
    )

    # Messages out.
    auto_create_subscription_group: bool = _key(True, "Create unknown consumer groups on use.", hot=True)
    notify_consumer_ids_changed_enable: bool = _key(
        True, "Tell the members of a group when it changes; each group can turn it off too.", hot=True
    )
    long_polling_enable: bool = _key(True, "Hold pulls that find nothing.", hot=True)
    short_polling_time_mills: Millis = _key(
        1_000, "Longest hold when longPollingEnable is off.", unit="ms", hot=True
    )
    lite_pull_message_enable: bool = _key(True, "Serve LITE_PULL_MESSAGE.", hot=True)
    enable_property_filter: bool = _key(
        False, "Serve SQL92 filters over properties; off, they are refused with code 1.", hot=True
    )
    slave_read_enable: bool = _key(
        False,
        "A master sends readers of old messages to a slave; a slave serves reads. Set it on both.",
        hot=True,
    )
    offset_check_in_slave: bool = _key(
        False,
        "A slave moves readers whose offset it does not have, instead of sending them to the master.",
    )
    use_server_side_reset_offset: bool = _key(True, "Reset offsets in the broker, not in clients.", hot=True)
    access_message_in_memory_max_ratio: Percent = _key(
        40,
        "Share of memory in which recent messages are taken to be where nobody can tell; what lies further behind the "
        "log's end may be left to a slave.",
        unit="%",
    )
    max_transfer_bytes_on_message_in_memory: int = _key(
        256 * KIB, "Most bytes of one pull from memory.", unit="bytes", ge=1, le=8 * MIB
    )
    max_transfer_count_on_message_in_memory: Count = _key(32, "Most messages of one pull from memory.")
    max_transfer_bytes_on_message_in_disk: int = _key(
        64 * KIB, "Most bytes of one pull that the disk is asked for.", unit="bytes", ge=1, le=8 * MIB
    )
    max_transfer_count_on_message_in_disk: Count = _key(
        8, "Most messages of one pull that the disk is asked for."
    )
    max_filter_message_size: int = _key(
        16_000, "Most bytes of queue entries that one pull looks at.", unit="bytes", ge=20, le=16 * MIB
    )
    cold_read_threads: int = _key(
        8,
        "Threads that read from the disk what is not in memory, while other requests are served; 0: the event loop "
        "reads it, and everybody waits. Ours.",
        ge=0,
        le=64,
    )
    cold_read_ahead_bytes: int = _key(
        MIB,
        "Bytes that are read ahead for a consumer that catches up; 0: none. Ours.",
        unit="bytes",
        ge=0,
        le=64 * MIB,
    )
    default_query_max_num: int = _key(
        32, "Most messages of a query by unique key.", hot=True, ge=1, le=10_000
    )
    max_msgs_num_batch: int = _key(64, "Most messages of a query by key.", ge=1, le=10_000)

    # Messages out, by POP.
    default_message_request_mode: Literal["PULL", "POP"] = _key(
        "PULL", "How groups consume for which no mode was set (clients with clientRebalance=false).", hot=True
    )
    default_pop_share_queue_num: int = _key(
        -1, "Share of queues that goes with it: 0 or less lets every member pop every queue.", hot=True
    )
    server_load_balancer_enable: bool = _key(
        True, "Share a topic's queues out among the members that ask; off: each gets all of them.", hot=True
    )
    enable_retry_topic_v2: bool = _key(
        False,
        "Name new POP retry topics %RETRY%group+topic instead of %RETRY%group_topic.",
        alias="enableRetryTopicV2",
        hot=True,
    )
    retrieve_message_from_pop_retry_topic_v1: bool = _key(
        True,
        "With enableRetryTopicV2, read the older retry topics too.",
        alias="retrieveMessageFromPopRetryTopicV1",
        hot=True,
    )
    pop_from_retry_probability: int = _key(
        20,
        "Share of pops that look at retry topics first; the others do last.",
        unit="%",
        hot=True,
        ge=0,
        le=100,
    )
    init_pop_offset_by_check_msg_in_mem: bool = _key(
        True, "A new group starts at the first message of a young queue, whatever it asked for.", hot=True
    )
    enable_pop_message_threshold: bool = _key(
        False, "Hand out nothing more of a queue in which a group has popInflightMessageThreshold.", hot=True
    )
    pop_inflight_message_threshold: Count = _key(
        10_000,
        "Messages of a queue that a group has and has not acknowledged, at which that begins.",
        hot=True,
    )
    pop_ck_max_buffer_size: Count = _key(
        200_000,
        "Outstanding check-points (a pop makes one for each queue) at which pops are refused.",
        hot=True,
    )
    pop_polling_size: Count = _key(1_024, "Pops held for the same topic, group and queue.", hot=True)
    max_pop_polling_size: Count = _key(100_000, "Pops held in all.", hot=True)

    # Replication.
    total_replicas: Count = _key(
        1,
        "Members of the set, the master included: with an election, how many have to be there when the set begins.",
    )
    in_sync_replicas: Count = _key(
        1, "Copies that a send to a SYNC_MASTER waits for, the master's included; 1: it waits for no slave."
    )
    min_in_sync_replicas: Count = _key(
        1, "Copies, the master's included, without which a SYNC_MASTER refuses sends before it stores them."
    )
    enable_auto_in_sync_replicas: bool = _key(
        False, "Wait for no more copies than are in sync, but for minInSyncReplicas."
    )
    slave_timeout: Millis = _key(
        3_000, "Longest wait of a send for slaves; then FLUSH_SLAVE_TIMEOUT.", unit="ms"
    )
    duplication_enable: bool = _key(False, "No slave is served: haListenPort stays closed.")
    ha_send_heartbeat_interval: Millis = _key(
        5_000,
        "Silence of the replication link after which its sides say that they are there.",
        unit="ms",
        hot=True,
    )
    ha_housekeeping_interval: Millis = _key(
        20_000, "Silence of the other side after which the link is closed.", unit="ms", hot=True
    )
    ha_transfer_batch_size: int = _key(
        32 * KIB, "Bytes of the log sent at once.", unit="bytes", hot=True, ge=KIB, le=4 * MIB - 64 * KIB
    )
    ha_max_gap_not_in_sync: int = _key(
        256 * MIB, "A slave that is less behind is in sync.", unit="bytes", hot=True, ge=1, le=2**62
    )
    ha_flow_control_enable: bool = _key(False, "Bound what each slave is sent in a second.", hot=True)
    max_ha_transfer_byte_in_second: int = _key(
        100 * MIB, "That bound.", unit="bytes/s", hot=True, ge=KIB, le=2**40
    )
    ha_max_time_slave_not_catchup: Millis = _key(
        15_000,
        "With an election: a slave that has not caught up for so long is not in sync any more.",
        unit="ms",
        hot=True,
    )
    all_ack_in_sync_state_set: bool = _key(
        False, "Sends wait for every member in sync. With an election always so; refused without one."
    )
    election_endpoints: str = _key(
        "",
        "The etcd that elects the master of this set, as host:port;host:port. Empty: brokerRole says who it is. Ours.",
    )
    election_prefix: str = _key(
        "/aerobee", "What the keys of all sets begin with there.", pattern=r"^/?[A-Za-z0-9._/-]{1,200}$"
    )
    election_lease_millis: Millis = _key(
        3_000,
        "A master that is not heard of for so long is replaced; whole seconds, at least 2. Ours.",
        unit="ms",
    )
    election_tls: bool = _key(
        False, "Speak TLS with etcd, with what tlsClientCertPath, KeyPath and TrustCertPath say. Ours."
    )
    election_user: str = _key("", "User of etcd, where it asks for one. Ours.")
    election_password: SecretStr = _key(SecretStr(""), "That user's password. Ours.")
    acl_enable: bool = _key(
        False, "Access control of 4.x, by accounts in a file; not together with that of 5.x."
    )
    migrate_auth_from_v1_enabled: bool = _key(
        False, "Make users and policies of accounts of 4.x at the start, of those that are no users yet."
    )
    plain_acl_path: SettingsPathText = _key(
        "",
        "File of those accounts; more in the folder acl beside it. Empty: config/plain_acl.yml of the store. Ours.",
    )

    # Registration.
    register_name_server_period: Millis = _key(
        30_000, "Pause between registrations, kept within 10 to 60 s.", unit="ms", hot=True
    )
    register_broker_timeout_mills: Millis = _key(
        24_000, "Longest wait for a nameserver's answer.", unit="ms", hot=True
    )
    compressed_register: bool = _key(False, "Compress registrations.", hot=True)
    force_register: bool = _key(True, "Register even when nothing has changed.", hot=True)
    enable_single_topic_register: bool = _key(
        False,
        "Register a new or changed topic by itself, for nameservers with deleteTopicWithBrokerRegistration.",
        hot=True,
    )

    # Connections.
    server_channel_max_idle_time_seconds: int = _key(
        120, "Silence after which a connection is closed.", unit="s", ge=1, le=86_400
    )
    channel_expired_timeout: Millis = _key(
        120_000, "Time without heartbeat after which a client is gone.", unit="ms"
    )
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = _key(
        "disabled", "TLS by the first byte: refuse, take, require.", alias="tlsServerMode"
    )
    tls_server_cert_path: SettingsPathText = _key("", "Certificate chain (PEM).", alias="tlsServerCertPath")
    tls_server_key_path: SettingsPathText = _key("", "Private key (PEM).", alias="tlsServerKeyPath")
    tls_server_trust_cert_path: SettingsPathText = _key(
        "",
        "Authorities that clients' certificates are checked against (PEM).",
        alias="tlsServerTrustCertPath",
    )
    tls_server_need_client_auth: ClientAuth = _key(
        "",
        "Whether clients show a certificate: none, optional, require. Empty: require with tlsServerTrustCertPath.",
        alias="tlsServerNeedClientAuth",
    )
    use_tls: bool = _key(
        False, "Speak TLS to nameservers and other brokers; their certificates are checked.", alias="useTLS"
    )
    tls_client_trust_cert_path: SettingsPathText = _key(
        "", "Authorities of their certificates (PEM). Empty: the system's.", alias="tlsClientTrustCertPath"
    )
    tls_client_cert_path: SettingsPathText = _key(
        "", "Certificate chain that is shown to them (PEM).", alias="tlsClientCertPath"
    )
    tls_client_key_path: SettingsPathText = _key("", "Its private key (PEM).", alias="tlsClientKeyPath")
    tls_config_path: SettingsPathText = _key(
        "",
        "Properties with RocketMQ's own names (`tls.server.certPath`, ...); they win over these keys. The one place"
        " for a key's password.",
        alias="tlsConfigPath",
    )

    # Bounds of our own, so that one client cannot take all memory.
    max_connections: Count = _key(
        20_000, "Open client connections; at most half of the files that the process may open."
    )
    max_in_flight_per_connection: Count = _key(
        4_096, "Unanswered requests of a connection; then reading stops."
    )
    max_write_buffer_bytes: int = _key(
        MIB,
        "Unsent answers of a connection at which reading from it stops.",
        unit="bytes",
        ge=64 * KIB,
        le=2**31 - 1,
    )
    max_connections_per_host: Count = _key(10_000, "Open connections from one address.")
    loop_held_millis: int = _key(
        50,
        "Time of one turn of the event loop from which on the log and the metrics say who took it.",
        unit="ms",
        ge=1,
        le=60_000,
    )
    max_unsent_bytes: int = _key(
        64 * MIB,
        "Unsent answers at which a connection is cut off.",
        unit="bytes",
        ge=64 * KIB,
        le=2**31 - 1,
    )
    max_peer_memory_bytes: int = _key(
        1536 * MIB,
        "Memory for all clients together: buffers, held pulls and pops, registrations, subscriptions, filters.",
        unit="bytes",
        ge=MIB,
        le=2**40,
    )
    max_peer_memory_bytes_per_connection: int = _key(
        192 * MIB, "The same of one connection.", unit="bytes", ge=256 * KIB, le=2**40
    )
    max_buffered_bytes: int = _key(
        1024 * MIB,
        "Half requests and unsent answers of all connections; above it those with most are cut off.",
        unit="bytes",
        ge=MIB,
        le=2**40,
    )
    max_header_bytes: int = _key(MIB, "Largest header of a request.", unit="bytes", ge=256 * KIB, le=16 * MIB)
    frame_timeout_seconds: int = _key(60, "Time for a request to arrive whole.", unit="s", ge=1, le=86_400)
    write_timeout_seconds: int = _key(
        30,
        "Time without reading after which a peer with waiting answers is cut off.",
        unit="s",
        ge=1,
        le=86_400,
    )
    max_held_pulls: Count = _key(100_000, "Pulls held at a time.")
    max_held_pulls_per_connection: Count = _key(
        20_000, "Pulls held at a time for one connection; a client holds one for each queue it reads."
    )
    max_cold_reads: Count = _key(
        20_000, "Requests that wait for messages to be read from the disk at a time."
    )
    max_cold_reads_per_connection: Count = _key(
        5_000, "Such requests at a time of one connection; a client has one for each queue it reads."
    )
    max_topics: Count = _key(100_000, "Topics in all, however they are created.", hot=True)
    max_groups: Count = _key(100_000, "Consumer groups in all, however they are created.", hot=True)
    max_open_transactions: Count = _key(
        1_000_000, "Half messages without an end at which more are refused.", hot=True
    )
    max_topics_auto_created: int = _key(
        10_000, "Topics at which sends stop to create more.", hot=True, ge=0, le=10_000_000
    )
    max_groups_auto_created: int = _key(
        10_000, "Groups at which use stops to create more.", hot=True, ge=0, le=10_000_000
    )
    max_queues_per_topic: int = _key(
        16_384, "Queues that a topic may be given.", hot=True, ge=1, le=1_000_000
    )
    max_clients_per_connection: Count = _key(1_000, "Client ids that may register over one connection.")
    max_registered_clients: Count = _key(200_000, "Group memberships in all.")
    max_subscriptions_per_group: Count = _key(10_000, "Topics that a group may subscribe to.")

    # Looking in.
    metrics_exporter_type: Literal["DISABLE", "PROM"] = _key(
        "PROM", "PROM serves /metrics and health over HTTP (our default; RocketMQ's is DISABLE)."
    )
    metrics_prom_exporter_port: Port = _key(5557, "Port of /metrics, /health, /livez, /readyz; 0 is off.")
    metrics_prom_exporter_host: str = _key(
        "127.0.0.1", "Local address of that port; by default for this machine alone. Empty: bindAddress."
    )
    metrics_prom_exporter_tls: bool = _key(
        False, "That port speaks HTTPS alone, with the certificate of tlsServerCertPath. Ours."
    )
    stats_interval_seconds: int = _key(
        60, "Pause between broker.stats lines.", unit="s", hot=True, ge=1, le=86_400
    )

    @field_validator("store_path_commit_log")
    @classmethod
    def _one_commit_log_folder(cls, value: str) -> str:
        if "," in value:
            raise ValueError("several commit log folders are not served; give one")
        return value

    @field_validator("namesrv_addr")
    @classmethod
    def _nameservers(cls, value: str) -> str:
        nameserver_addresses(value)
        return value

    @field_validator("election_endpoints")
    @classmethod
    def _endpoints(cls, value: str) -> str:
        nameserver_addresses(value)
        return value

    @field_validator("message_delay_level")
    @classmethod
    def _levels(cls, value: str) -> str:
        delay_levels(value)
        return value

    @field_validator("ha_master_address")
    @classmethod
    def _one_address(cls, value: str) -> str:
        if value and len(nameserver_addresses(value)) != 1:
            raise ValueError("one address is wanted, as host:port")
        return value

    @model_validator(mode="after")
    def _imports_into_something(self) -> "BrokerConfig":
        if self.migrate_auth_from_v1_enabled and not (
            self.authentication_enabled or self.authorization_enabled
        ):
            raise ValueError("migrateAuthFromV1Enabled needs authenticationEnabled or authorizationEnabled")
        return self

    @model_validator(mode="after")
    def _one_access_control(self) -> "BrokerConfig":
        if self.acl_enable and (self.authentication_enabled or self.authorization_enabled):
            raise ValueError(
                "aclEnable is the access control of 4.x; leave authenticationEnabled and "
                "authorizationEnabled off with it, or import its accounts: migrateAuthFromV1Enabled"
            )
        return self

    @model_validator(mode="after")
    def _copies_are_there(self) -> "BrokerConfig":
        if self.is_slave and not self.broker_id:
            raise ValueError("brokerRole=SLAVE needs a brokerId of 1 or more, another one for each slave")
        if self.election_endpoints:
            return self._can_be_elected()
        if self.all_ack_in_sync_state_set:
            raise ValueError(
                "allAckInSyncStateSet=true needs electionEndpoints, with which every member in sync is waited for;"
                " without an election say how many with inSyncReplicas"
            )
        if self.broker_role == "ASYNC_MASTER" and max(self.in_sync_replicas, self.min_in_sync_replicas) > 1:
            raise ValueError(
                "an ASYNC_MASTER waits for no copy: set brokerRole=SYNC_MASTER, or leave inSyncReplicas and"
                " minInSyncReplicas out"
            )
        if self.min_in_sync_replicas > self.in_sync_replicas:
            raise ValueError(
                f"minInSyncReplicas={self.min_in_sync_replicas} must not be above"
                f" inSyncReplicas={self.in_sync_replicas}: sends would wait for fewer copies than there have to be"
            )
        return self

    def _can_be_elected(self) -> "BrokerConfig":
        """The role is no business of the settings then, and every member in sync is waited for."""
        if not self.broker_id:
            raise ValueError(
                "electionEndpoints needs a brokerId of 1 or more, another one for each broker of the set"
            )
        if self.election_lease_millis < 2_000 or self.election_lease_millis % 1_000:
            raise ValueError(
                f"electionLeaseMillis={self.election_lease_millis}: etcd counts whole seconds, 2 at least"
            )
        if self.workers > 1:
            raise ValueError("electionEndpoints goes with one worker: each worker would be a set of its own")
        if self.ha_master_address:
            raise ValueError(
                "electionEndpoints and haMasterAddress do not go together: the election says who it is"
            )
        if self.duplication_enable:
            raise ValueError(
                "electionEndpoints and duplicationEnable do not go together: slaves have to be served"
            )
        return self

    @property
    def is_slave(self) -> bool:
        """Whether the log is a master's."""
        return self.broker_role == "SLAVE"

    @property
    def waits_for_replicas(self) -> bool:
        """Whether a send may have to wait for slaves."""
        return self.broker_role == "SYNC_MASTER"

    @property
    def registered_id(self) -> int:
        """Number within the broker name: a master's is 0, whatever brokerId says, as in RocketMQ."""
        return self.broker_id if self.is_slave else 0

    @model_validator(mode="after")
    def _disk_levels_rise(self) -> "BrokerConfig":
        if not self.disk_space_clean_forcibly_ratio <= self.disk_space_warning_level_ratio:
            raise ValueError("diskSpaceCleanForciblyRatio must not be above diskSpaceWarningLevelRatio")
        check_tls(self)
        return self


class LiveConfig:
    """The settings in use and their version; the one place where a running broker's settings change.

    Whoever works by a hot key asks `value` for it each time, or waits with `pause`; nobody keeps a copy.
    """

    __slots__ = ("_signal", "value", "version")

    def __init__(self, value: BrokerConfig, *, now_ms: int) -> None:
        self.value = value
        self.version = DataVersion(timestamp=now_ms)
        self._signal = SettingsSignal()

    async def pause(self, length_ms: Callable[[BrokerConfig], float]) -> None:
        """Wait as long as the settings say; a change counts from the beginning of this wait."""
        await self._signal.pause(lambda: length_ms(self.value) / 1000)

    def replace(self, changes: Mapping[str, str], *, origin: str, now_ms: int) -> set[str]:
        """Check and take all changes (wire name to text) or none; returns the keys whose value is new.

        Raises SettingsError: unknown key, bad value, or a key that only a restart can change.
        """
        hot = hot_keys()
        cold = [
            SettingsProblem(key, changes[key], origin, "cannot be changed while the broker runs")
            for key in changes
            if key not in hot and key in _aliases()
        ]
        if cold:
            raise SettingsError(cold)
        new = apply_changes(self.value, changes, origin=origin)
        names = _aliases()
        changed = {key for key in changes if key in names}
        changed = {key for key in changed if getattr(new, names[key]) != getattr(self.value, names[key])}
        if changed:
            self.value = new
            self.version = self.version.next(now_ms)
            self._signal.notify()
        return changed


def unserved_keys() -> dict[str, str]:
    """Wire names of the keys that are taken and have no effect, each with the reason."""
    extras = {alias: BrokerConfig.model_fields[name].json_schema_extra for alias, name in _aliases().items()}
    return {
        alias: str(extra["unserved"])
        for alias, extra in extras.items()
        if isinstance(extra, dict) and "unserved" in extra
    }


def warn_of_unserved(config: BrokerConfig, keys: Iterable[str]) -> None:
    """Name those of the keys (wire names) that were set away from their default and have no effect."""
    reasons, names = unserved_keys(), _aliases()
    for key in keys:
        name = names[key]
        if key in reasons and getattr(config, name) != BrokerConfig.model_fields[name].default:
            log.warning("broker.setting_without_effect", key=key, reason=reasons[key])


def _aliases() -> dict[str, str]:
    """Wire name to field name."""
    return {info.alias or name: name for name, info in BrokerConfig.model_fields.items()}


def field_of(key: str) -> str:
    """The field of a wire name. KeyError when there is none."""
    return _aliases()[key]


def hot_keys() -> frozenset[str]:
    """Wire names of the keys that a running broker can change."""
    extras = {alias: BrokerConfig.model_fields[name].json_schema_extra for alias, name in _aliases().items()}
    return frozenset(alias for alias, extra in extras.items() if isinstance(extra, dict) and extra.get("hot"))


def plain_acl_of(config: BrokerConfig) -> Path:
    """The file of accounts of 4.x."""
    return Path(config.plain_acl_path or config.store_path_root_dir / "config" / "plain_acl.yml")


def nameserver_addresses(text: str) -> tuple[str, ...]:
    """`host:port;host:port` as a tuple without repeats; ValueError names what is wrong with which part."""
    parts = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    for part in parts:
        host, _, port = part.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"{part!r} is not host:port; write host:9876;other:9876")
    return tuple(dict.fromkeys(parts))


def delay_levels(text: str) -> tuple[int, ...]:
    """The delays of the levels 1, 2, 3, ... in ms; ValueError names what is wrong with which part."""
    parts = text.split()
    if not 0 < len(parts) <= DELAY_LEVEL_COUNT_MAX:
        raise ValueError(f"1 to {DELAY_LEVEL_COUNT_MAX} delays are needed, like: {DELAY_LEVEL_DEFAULT}")
    return tuple(_delay_ms(part) for part in parts)


def _delay_ms(part: str) -> int:
    number, unit = part[:-1], part[-1:]
    if unit not in DELAY_UNIT_MS or not number.isascii() or not number.isdigit() or len(number) > 9:
        raise ValueError(f"{part!r} is not a delay; write a number and s, m, h or d, like 30s")
    return int(number) * DELAY_UNIT_MS[unit]


def local_address() -> str:
    """The IPv4 address that packets to other machines leave from; 127.0.0.1 when there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(OUTSIDE_ADDRESS)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _whole_entries(size: int, entry_size: int) -> int:
    return -(-size // entry_size) * entry_size


def to_store_config(config: BrokerConfig) -> StoreConfig:
    """The part of the settings that the store works with."""
    queue_file_size = _whole_entries(config.mapped_file_size_consume_queue, 20)
    batch_file_size = _whole_entries(config.mapper_file_size_batch_consume_queue, 46)
    folder = config.store_path_commit_log
    return StoreConfig(
        root=config.store_path_root_dir,
        commit_log_folder=Path(folder) if folder else None,
        commit_log_file_size=config.mapped_file_size_commit_log,
        is_copy=config.is_slave,
        holds_back=bool(config.election_endpoints),
        consume_queue_file_size=queue_file_size,
        batch_queue_file_size=batch_file_size,
        timer_log_file_size=config.mapped_file_size_timer_log,
        timer_precision_ms=config.timer_precision_ms if config.timer_wheel_enable else None,
        index_slots=config.max_hash_slot_num,
        index_entries=config.max_index_num,
        sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        append_property_crc=config.enabled_append_prop_crc,
        verify_property_crc=config.force_verify_prop_crc,
        body_size_max=config.max_message_size,
        index_enabled=config.message_index_enable,
        delay_levels_ms=delay_levels(config.message_delay_level),
        scan_size_max=config.max_filter_message_size,
        memory_transfer_size_max=config.max_transfer_bytes_on_message_in_memory,
        memory_transfer_count_max=config.max_transfer_count_on_message_in_memory,
        disk_transfer_size_max=config.max_transfer_bytes_on_message_in_disk,
        disk_transfer_count_max=config.max_transfer_count_on_message_in_disk,
        # A slave takes less for granted, as in RocketMQ: what is read there is what others do not read any more.
        memory_ratio_max=max(
            1, config.access_message_in_memory_max_ratio - (SLAVE_RATIO if config.is_slave else 0)
        ),
        query_count_max=config.max_msgs_num_batch,
        read_ahead_size=config.cold_read_ahead_bytes,
    )
