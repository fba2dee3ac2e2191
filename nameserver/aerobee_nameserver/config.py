"""What an operator can set for a nameserver, under RocketMQ's key names.

Touches  nothing; `load_config` reads the settings file it is given.

Keys of the official nameserver that size its threads and socket buffers have no meaning in one event loop: they
are accepted with a warning, so that an existing `namesrv.conf` starts.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from aerobee_access.settings import ACCESS_KEYS, AccessSettings
from aerobee_proto.codes import NAMESERVER_DEFAULT_PORT
from aerobee_service.settings.settings import SettingsPath, SettingsPathText, load_settings
from aerobee_service.tls.contexts import ClientAuth
from aerobee_service.tls.ends import check_tls

__all__ = ["ENVIRON_PREFIX", "LIVE_FIELDS", "NameserverConfig", "load_config"]

ENVIRON_PREFIX: Final = "AEROBEE_NAMESERVER_"
# Fields that a running nameserver follows at once; the others are read at its start.
LIVE_FIELDS: Final = frozenset(
    {
        "scan_not_active_broker_interval",
        "need_wait_for_service",
        "wait_seconds_for_service",
        "support_acting_master",
        "delete_topic_with_broker_registration",
        "enable_all_topic_list",
        "enable_topic_list",
        "order_message_enable",
        "return_order_topic_config_to_broker",
        "notify_min_broker_id_changed",
        "max_topics",
        "max_brokers",
    }
)

_ONE_LOOP: Final = "there are no thread pools here: one event loop serves all connections"
_BUFFERS: Final = "socket buffers are left to the kernel, memory is bounded per connection"


class NameserverConfig(AccessSettings):
    """A nameserver's settings. Intervals are milliseconds where RocketMQ's key says so, else as named."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "rocketmqHome": "nothing is read from an installation folder",
        "productEnvName": "the environment name was never used by clients",
        "clusterTest": "the cluster test environment is not offered",
        "enableControllerInNamesrv": "election is left to etcd or Kubernetes, not to the nameserver",
        "enableShutdownGracefully": "every stop is orderly",
        "shutdownWaitTimeSeconds": "every stop is orderly and takes milliseconds",
        "unRegisterBrokerQueueCapacity": "brokers are removed at once, without a queue",
        "clientRequestThreadPoolNums": _ONE_LOOP,
        "clientRequestThreadPoolQueueCapacity": _ONE_LOOP,
        "defaultThreadPoolNums": _ONE_LOOP,
        "defaultThreadPoolQueueCapacity": _ONE_LOOP,
        "serverWorkerThreads": _ONE_LOOP,
        "serverSelectorThreads": _ONE_LOOP,
        "serverCallbackExecutorThreads": _ONE_LOOP,
        "serverNettyWorkerGroupEnable": _ONE_LOOP,
        "serverOnewaySemaphoreValue": _ONE_LOOP,
        "serverAsyncSemaphoreValue": _ONE_LOOP,
        "useEpollNativeSelector": _ONE_LOOP,
        "serverSocketSndBufSize": _BUFFERS,
        "serverSocketRcvBufSize": _BUFFERS,
        "serverSocketBacklog": _BUFFERS,
        "serverPooledByteBufAllocatorEnable": _BUFFERS,
        "writeBufferHighWaterMark": _BUFFERS,
        "writeBufferLowWaterMark": _BUFFERS,
    }

    PROMISES: ClassVar[Mapping[str, tuple[str, str]]] = {
        "enableControllerInNamesrv": ("false", "there is no controller here; nobody would be elected"),
    }

    # Where it listens; port 0 picks a free one.
    listen_port: int = Field(default=NAMESERVER_DEFAULT_PORT, ge=0, le=65535)
    bind_address: str = "0.0.0.0"  # noqa: S104  # as the official nameserver: brokers and clients come from afar
    server_channel_max_idle_time_seconds: int = Field(default=120, ge=1, le=86_400)
    max_connections: int = Field(default=10_000, ge=1)

    # TLS, told from plain by the first byte of a connection.
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = "disabled"
    tls_server_cert_path: SettingsPathText = ""  # certificate chain, PEM
    tls_server_key_path: SettingsPathText = ""  # private key, PEM
    tls_server_trust_cert_path: SettingsPathText = (
        ""  # authorities that clients' certificates are checked against
    )
    tls_server_need_client_auth: ClientAuth = ""  # empty: require where there are authorities
    # What it tells brokers unasked, by TLS.
    use_tls: bool = Field(default=False, alias="useTLS")
    tls_client_trust_cert_path: SettingsPathText = ""
    tls_client_cert_path: SettingsPathText = ""
    tls_client_key_path: SettingsPathText = ""
    tls_config_path: SettingsPathText = ""  # properties with RocketMQ's own names; they win over these keys

    # What it keeps on disk.
    kv_config_path: SettingsPath = Path("~/namesrv/kvConfig.json")
    # Admin changes are written there; the settings file when one is given.
    config_store_path: SettingsPath | None = None
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"  # keys that no admin may change

    # Users and policies, where access control is on; the key that seals them is beside the folder.
    access_cluster_name: str = "DefaultCluster"  # whose name policies have to give for what names no cluster

    # How it treats brokers.
    scan_not_active_broker_interval: int = Field(default=5_000, ge=100, le=600_000)  # ms
    support_acting_master: bool = False
    delete_topic_with_broker_registration: bool = False
    notify_min_broker_id_changed: bool = False
    max_topics: int = Field(default=200_000, ge=1)
    max_brokers: int = Field(default=10_000, ge=1)
    max_kv_entries: int = Field(default=100_000, ge=1)
    max_kv_bytes: int = Field(default=8 << 20, ge=1024)  # of all of them; each change writes them all

    # Memory for brokers and clients: buffers, topic tables, key-value settings.
    max_peer_memory_bytes: int = Field(default=1 << 30, ge=1 << 20)
    max_peer_memory_bytes_per_connection: int = Field(default=256 << 20, ge=256 << 10)
    max_connections_per_host: int = Field(default=10_000, ge=1)

    # Time of one turn of the event loop from which on the log says who took it.
    loop_held_millis: int = Field(default=50, ge=1, le=60_000)  # ms

    # What it answers.
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = Field(default=45, ge=0, le=86_400)
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True

    # What it tells about itself; the port is for this machine alone unless the address says otherwise.
    metrics_prom_exporter_port: int = Field(default=5558, ge=0, le=65535)  # 0 is off
    metrics_prom_exporter_host: str = "127.0.0.1"  # empty: bindAddress
    metrics_prom_exporter_tls: bool = False  # HTTPS, with the certificate of tlsServerCertPath
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"

    @field_validator("config_store_path", mode="before")
    @classmethod
    def _empty_is_none(cls, path: object) -> object:
        return path or None

    @model_validator(mode="after")
    def _check_kv_path(self) -> "NameserverConfig":
        if os.path.isdir(self.kv_config_path):  # noqa: PTH112  # Path.is_dir raises where it may not look
            raise ValueError(f"kvConfigPath {self.kv_config_path} is a folder; name a file")
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> "NameserverConfig":
        check_tls(self)
        return self

    @property
    def forbidden_keys(self) -> frozenset[str]:
        """Keys that an admin request may not change; the list itself and those of access control are always on it."""
        named = (key.strip() for key in self.config_black_list.split(";"))
        always = {"configBlackList", "accessFilePath", "accessClusterName"} | ACCESS_KEYS
        return frozenset(key for key in named if key) | always


def load_config(
    file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    ready: Callable[[NameserverConfig], None] | None = None,
) -> NameserverConfig:
    """Read defaults, file, environment and overrides. Raises SettingsError with every problem found.

    `ready` is called with them before anything about them is logged.
    """
    config = load_settings(
        NameserverConfig,
        file=file,
        environ_prefix=ENVIRON_PREFIX,
        overrides=overrides or {},
        environ=environ,
        ready=ready,
    )
    if file is not None and config.config_store_path is None:
        return config.model_copy(update={"config_store_path": file})
    return config
