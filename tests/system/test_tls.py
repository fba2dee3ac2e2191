"""TLS from end to end: nameserver, broker, metrics, our client; certificates that are checked, shown and renewed.

Touches  a nameserver and a broker in this process, real sockets.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from aerobee import Client
from aerobee_nameserver.metrics import MetricsServer
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import AerobeeError
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.peers.errors import ConnectFailed, ConnectionLost
from aerobee_service.tls import live_context
from programs import free_port
from service.tls.certificates import write_pair
from system.running import running_broker
from system.secured import Asked, dialling, secured_cluster, secured_nameserver, write_files

TOPIC = "Secret"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, Any]:
    return write_files(authority, tmp_path)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_every_end_is_encrypted_and_every_subject_is_known(
    tmp_path: Path, files: dict[str, Any], authority: trustme.CA, version: ssl.TLSVersion
) -> None:
    gate = Asked()
    async with (
        secured_cluster(tmp_path, files, gate) as (names, _),
        Client(names.address, tls=dialling(authority, "alice", version)) as client,
    ):
        async with client.producer() as producer:
            await producer.send(TOPIC, "for my eyes only")
        received = [message.text() async for message in client.reader(TOPIC, end="now")]
    assert received == ["for my eyes only"]
    assert gate.subjects[RequestCode.REGISTER_BROKER] == {"broker-a"}
    assert gate.subjects[RequestCode.GET_ROUTEINFO_BY_TOPIC] >= {"alice"}
    assert gate.subjects[RequestCode.PULL_MESSAGE] == {"alice"}


async def test_who_shows_no_certificate_or_another_one_is_not_served(
    tmp_path: Path, files: dict[str, Any], authority: trustme.CA
) -> None:
    stranger = trustme.CA()
    shown = dialling(authority)
    stranger.issue_cert("alice.example", common_name="alice").configure_cert(shown)
    async with secured_nameserver(files) as names:
        for context in (None, dialling(authority), shown):
            client = RemotingClient(config=RemotingClientConfig(tls=context))
            with pytest.raises((ConnectFailed, ConnectionLost)):
                await client.request(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
            await client.close()
        with pytest.raises(AerobeeError):
            async with Client(names.address, tls=dialling(stranger, "alice")) as unsure:  # it trusts others
                await unsure.admin.topics()


async def test_an_optional_certificate_makes_a_subject_and_its_lack_does_not(
    tmp_path: Path, files: dict[str, Any], authority: trustme.CA
) -> None:
    gate = Asked()
    async with secured_nameserver(files | {"tls_server_need_client_auth": "optional"}, gate) as names:
        for name in (None, "alice"):
            client = RemotingClient(config=RemotingClientConfig(codec="json", tls=dialling(authority, name)))
            await client.request(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
            await client.close()
    assert gate.subjects[RequestCode.GET_BROKER_CLUSTER_INFO] == {"", "alice"}


async def test_certificates_are_renewed_without_a_restart(
    tmp_path: Path, files: dict[str, Any], authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_context, "LOOK_S", 0.01)
    async with secured_nameserver(files) as names:
        old = RemotingClient(config=RemotingClientConfig(tls=dialling(authority, "alice")))
        await old.request(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
        renewed = trustme.CA()
        write_pair(renewed, tmp_path, "127.0.0.1", common_name="broker-a")
        renewed.cert_pem.write_to_path(tmp_path / "authority.pem")
        new = RemotingClient(config=RemotingClientConfig(tls=dialling(renewed, "alice")))
        async with asyncio.timeout(20):
            while True:
                try:
                    await new.request(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
                    break
                except (ConnectFailed, ConnectionLost):
                    await asyncio.sleep(0.01)
        await old.request(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)  # it was open before
        await old.close()
        await new.close()


async def get(port: int, context: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1" if context else None
    )
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_metrics_and_health_are_served_over_tls(
    tmp_path: Path, files: dict[str, Any], authority: trustme.CA
) -> None:
    """Probes and scrapers show no certificate, whatever clients have to show."""
    served = {"metrics_prom_exporter_port": free_port(), "metrics_prom_exporter_tls": True}
    async with secured_nameserver(files | served) as names:
        metrics = MetricsServer(names)
        await metrics.start()
        try:
            page = await get(metrics.port, dialling(authority))
            assert page.startswith(b"HTTP/1.1 200 OK")
            assert b'aerobee_tls_certificate_expires_seconds{end="metrics"} ' in page
            assert await get(metrics.port, None) == b""
        finally:
            await metrics.close()
    settings = files | served | {"metrics_exporter_type": "PROM", "use_tls": False}
    async with running_broker(tmp_path / "store", **settings):
        page = await get(served["metrics_prom_exporter_port"], dialling(authority))
    assert page.startswith(b"HTTP/1.1 200 OK")
    assert b"aerobee_tls_certificate_expires_seconds{" in page
