"""A nameserver and a broker that speak TLS alone, to clients and to each other.

Touches  both in this process, real sockets; certificates as files.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trustme

from aerobee_broker.broker import Broker
from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.gate import Gate, Row
from aerobee_remoting.peers.peer import Peer
from service.tls.certificates import write_pair
from system.running import running_broker

__all__ = ["Asked", "dialling", "secured_cluster", "secured_nameserver", "write_files"]


class Asked(Gate):
    """Lets everybody in, and notes who asked for what."""

    def __init__(self) -> None:
        self.subjects: dict[int, set[str]] = {}

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        self.subjects.setdefault(row.code, set()).add(caller.subject)

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Any) -> None:
        pass


def write_files(authority: trustme.CA, folder: Path) -> dict[str, Any]:
    """The files of a server, and the settings that name them; it shows one to clients and where it dials."""
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate, key = write_pair(authority, folder, "127.0.0.1", common_name="broker-a")
    trusted = str(folder / "authority.pem")
    return {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": certificate,
        "tls_server_key_path": key,
        "tls_server_trust_cert_path": trusted,
        "use_tls": True,
        "tls_client_cert_path": certificate,
        "tls_client_key_path": key,
        "tls_client_trust_cert_path": trusted,
    }


def dialling(
    authority: trustme.CA, name: str | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    """What a client dials with; with `name` it shows a certificate of that subject."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if name is not None:
        authority.issue_cert(f"{name}.example", common_name=name).configure_cert(context)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


@asynccontextmanager
async def secured_nameserver(files: dict[str, Any], gate: Gate | None = None) -> AsyncIterator[NameServer]:
    settings = {name: str(value).lower() if value is True else str(value) for name, value in files.items()}
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1", **settings}, environ={})
    server = NameServer(config, keep_kv=False, gate=gate)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def secured_cluster(
    folder: Path, files: dict[str, Any], gate: Gate, **settings: Any
) -> AsyncIterator[tuple[NameServer, Broker]]:
    """Both speak TLS alone, to clients and to each other."""
    async with (
        secured_nameserver(files, gate) as names,
        running_broker(
            folder / "store", gate=gate, namesrv_addr=names.address, **files, **settings
        ) as broker,
    ):
        async with asyncio.timeout(20):
            while not names.statistics().routes.brokers:  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0.01)
        yield names, broker
