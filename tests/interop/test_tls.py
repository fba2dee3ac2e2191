"""Official Java clients over TLS, with certificates that both ends check, at our nameserver and broker.

Touches  both in this process; Java programs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import official
from aerobee_proto.codes import RequestCode
from plain_remoting import topic_fields
from system.running import Talker
from system.secured import Asked, dialling, secured_cluster, write_files

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

EACH = 50


def java_options(authority: trustme.CA, folder: Path) -> list[str]:
    """What a Java client is told by system properties; its key has to be PKCS#8."""
    made = authority.issue_cert("client.example", common_name="java")
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    (folder / "java.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (folder / "java.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    return [
        "-Xmx256m",
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={folder / 'authority.pem'}",
        f"-Dtls.client.certPath={folder / 'java.pem'}",
        f"-Dtls.client.keyPath={folder / 'java.key'}",
    ]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_official_clients_send_and_receive_over_tls(tmp_path: Path, version: str) -> None:
    authority, gate = trustme.CA(), Asked()
    files = write_files(authority, tmp_path)
    jvm = [*java_options(authority, tmp_path), f"-Djdk.tls.client.protocols={version}"]
    async with secured_cluster(tmp_path, files, gate) as (names, broker):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", broker.port, ssl=dialling(authority, "admin"), server_hostname="127.0.0.1"
        )
        peer = Talker(reader, writer)
        made = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("FromJava", 4))
        assert made.code == 0
        writer.transport.abort()
        sent = await asyncio.to_thread(
            lambda: official.judge(
                "send",
                jvm=jvm,
                namesrv=names.address,
                topic="FromJava",
                modes="oneway,sync,async",
                each=EACH,
                run="j",
            )
        )
        assert (sent["failed"], sent.get("firstFailure")) == (0, None)
        received = await asyncio.to_thread(
            lambda: official.judge(
                "lite",
                jvm=jvm,
                namesrv=names.address,
                topic="FromJava",
                group="g",
                filter="*",
                expect=3 * EACH,
            )
        )
    assert (received["duplicates"], received["placesReused"]) == (0, 0)
    assert gate.subjects[RequestCode.SEND_MESSAGE_V2] == {"java"}
    assert gate.subjects[RequestCode.LITE_PULL_MESSAGE] == {"java"}
