"""Who this broker is, once its ports are known."""

from dataclasses import dataclass

from aerobee_broker.config import BrokerConfig, local_address

__all__ = ["BrokerIdentity", "identity_of"]


@dataclass(slots=True, frozen=True)
class BrokerIdentity:
    """Names and addresses under which clients and nameservers know this broker."""

    cluster_name: str
    broker_name: str
    broker_id: int  # 0 is the master
    host: str  # the advertised address; offset message ids carry it
    port: int
    ha_addr: str

    @property
    def broker_addr(self) -> str:
        """`host:port` as clients dial it."""
        return _join(self.host, self.port)


def identity_of(config: BrokerConfig, port: int) -> BrokerIdentity:
    """The identity of a broker with these settings that listens on `port`."""
    host = config.broker_ip1 or _reachable(config.bind_address)
    return BrokerIdentity(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        host=host,
        port=port,
        ha_addr=_join(config.broker_ip2 or host, config.ha_listen_port),
    )


def _reachable(bind_address: str) -> str:
    """The address that a listener is reached at: its own, unless it listens on all."""
    return local_address() if bind_address in ("", "0.0.0.0", "::") else bind_address  # noqa: S104


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
