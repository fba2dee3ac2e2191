"""Who this broker is, once its ports are known, and which store it has."""

import asyncio
import secrets
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from aerobee_broker.settings.config import BrokerConfig, local_address
from aerobee_store.disk.io import StoreIo
from aerobee_store.replicas.identity import store_identity

__all__ = ["BrokerIdentity", "address_of", "identity_of", "identity_of_store"]


@dataclass(slots=True, frozen=True)
class BrokerIdentity:
    """Names and addresses under which clients and nameservers know this broker."""

    cluster_name: str
    broker_name: str
    broker_id: int  # 0 is the master
    host: str  # the advertised address; offset message ids carry it
    port: int
    ha_addr: str
    worker: str = (
        ""  # its place among the workers of a service, "2 of 4 of broker-a"; empty for a broker alone
    )
    epoch: int = 0  # of the mastership in which it registers; 0: a set without an election

    @property
    def broker_addr(self) -> str:
        """`host:port` as clients dial it."""
        return _join(self.host, self.port)


def identity_of(config: BrokerConfig, port: int, worker: str = "", ha_port: int = 0) -> BrokerIdentity:
    """The identity of a broker with these settings that listens on `port`, for its slaves on `ha_port`; 0: as set."""
    host = config.broker_ip1 or _reachable(config.bind_address)
    return BrokerIdentity(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.registered_id,
        host=host,
        port=port,
        ha_addr=_join(config.broker_ip2 or host, ha_port or config.ha_listen_port or port + 1),
        worker=worker,
    )


async def address_of(host: str) -> str:
    """The IP address of an advertised host, which stored messages and their ids carry; IPv4 where there is one.

    OSError names the setting when a name cannot be resolved.
    """
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(
            error.errno, f"brokerIP1={host} is neither an IP address nor a known name: {error}"
        ) from error
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    return min(addresses, key=lambda pair: pair[0] != socket.AF_INET)[1]


def _reachable(bind_address: str) -> str:
    """The address that a listener is reached at: its own, unless it listens on all."""
    return local_address() if bind_address in ("", "0.0.0.0", "::") else bind_address  # noqa: S104


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def identity_of_store(root: Path, io: StoreIo) -> str:
    """Which store this is, made up where nobody has asked before. CorruptStore, OSError."""
    return store_identity(root, io, lambda: secrets.token_hex(16))
