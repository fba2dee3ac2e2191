"""Contexts made of files: which are taken, and what is said of those that are not."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from aerobee_service.tls.contexts import ClientAuth, TlsUnusable, load_client, load_server
from service.tls.certificates import Settings, write_pair


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def settings(authority: trustme.CA, tmp_path: Path) -> Settings:
    """Of a server with a certificate."""
    certificate, key = write_pair(authority, tmp_path, "localhost")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return Settings(tls_server_cert_path=certificate, tls_server_key_path=key)


def trusting(settings: Settings, tmp_path: Path, auth: ClientAuth = "") -> Settings:
    path = str(tmp_path / "authority.pem")
    return replace(settings, tls_server_trust_cert_path=path, tls_server_need_client_auth=auth)


def test_a_server_shows_its_certificate_and_takes_tls_1_2_and_later(settings: Settings) -> None:
    loaded = load_server(settings)
    assert loaded.context.verify_mode is ssl.CERT_NONE
    assert loaded.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert loaded.paths == (settings.tls_server_cert_path, settings.tls_server_key_path)
    assert loaded.private_paths == (settings.tls_server_key_path,)
    assert loaded.validity is not None


@pytest.mark.parametrize(
    ("auth", "mode"),
    [
        ("", ssl.CERT_REQUIRED),
        ("none", ssl.CERT_NONE),
        ("optional", ssl.CERT_OPTIONAL),
        ("require", ssl.CERT_REQUIRED),
    ],
)
def test_clients_are_asked_as_the_settings_say(
    settings: Settings, tmp_path: Path, auth: ClientAuth, mode: ssl.VerifyMode
) -> None:
    asking = trusting(settings, tmp_path, auth)
    assert load_server(asking).context.verify_mode is mode
    relaxed = ssl.CERT_OPTIONAL if mode is ssl.CERT_REQUIRED else mode
    assert load_server(asking, insists=False).context.verify_mode is relaxed


@pytest.mark.parametrize("auth", ["optional", "require"])
def test_a_certificate_that_nobody_would_check_is_not_asked_for(settings: Settings, auth: ClientAuth) -> None:
    with pytest.raises(TlsUnusable, match="nobody would check"):
        load_server(replace(settings, tls_server_need_client_auth=auth))


def test_rocketmq_s_own_file_wins(settings: Settings, authority: trustme.CA, tmp_path: Path) -> None:
    """With a key that has a password, which no setting holds: settings are shown to whoever may ask for them."""
    key = serialization.load_pem_private_key(Path(settings.tls_server_key_path).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open sesame"),
        )
    )
    file = tmp_path / "tls.properties"
    lines = [
        "tls.server.mode=disabled",
        "tls.test.mode.enable=false",
        f"tls.server.keyPath={locked}",
        "tls.server.keyPassword=open sesame",
        f"tls.server.trustCertPath={tmp_path / 'authority.pem'}",
        "tls.server.need.client.auth=optional",
        "tls.server.authClient=true",
    ]
    file.write_text("\n".join(lines))
    loaded = load_server(replace(settings, tls_config_path=str(file), tls_server_key_path="/not/there"))
    assert loaded.context.verify_mode is ssl.CERT_OPTIONAL
    assert loaded.private_paths == (str(locked), str(file))
    assert str(file) in loaded.paths
    file.write_text("\n".join(line for line in lines if "Password" not in line))
    with pytest.raises(TlsUnusable, match=r"locked\.key"):  # and nobody is asked at a terminal
        load_server(replace(settings, tls_config_path=str(file)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls.test.mode.enable=true", "aerobee access certificates"),
        ("tls.server.need.client.auth=perhaps", "none, optional or require"),
        ("tls.server.need.client.auth=require", "nobody would check"),
        ("tls.server.keyPath=\\u00zz", "tlsConfigPath"),
    ],
)
def test_what_the_file_may_not_ask_for(settings: Settings, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(text)
    with pytest.raises(TlsUnusable, match=said):
        load_server(replace(settings, tls_config_path=str(file)))


def test_unchecked_certificates_are_refused_on_both_ends(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.authClient=false\ntls.client.authServer=false\n")
    unchecked = replace(trusting(settings, tmp_path), tls_config_path=str(file))
    with pytest.raises(TlsUnusable, match="nobody would check"):
        load_server(unchecked)
    with pytest.raises(TlsUnusable, match="may be anybody"):
        load_client(unchecked)


def test_what_cannot_be_used_is_named(settings: Settings, authority: trustme.CA, tmp_path: Path) -> None:
    """OpenSSL's own texts name no file."""
    other, _ = write_pair(trustme.CA(), tmp_path, "localhost", stem="other")
    empty = tmp_path / "empty.pem"
    empty.touch()
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    cases = {
        "not-there.pem: No such file": replace(settings, tls_server_cert_path=f"{tmp_path}/not-there.pem"),
        "not-there.key: No such file": replace(settings, tls_server_key_path=f"{tmp_path}/not-there.key"),
        "other.pem with the key .*server.key: key values mismatch": replace(
            settings, tls_server_cert_path=other
        ),
        "empty.pem with the key": replace(settings, tls_server_cert_path=str(empty)),
        "broken.pem with the key": replace(settings, tls_server_cert_path=str(broken)),
        "no certificate ": replace(settings, tls_server_cert_path=""),
        "no key ": replace(settings, tls_server_key_path=""),
        "empty.pem: no certificates": replace(settings, tls_server_trust_cert_path=str(empty)),
        "not-there: No such file": replace(settings, tls_server_trust_cert_path=f"{tmp_path}/not-there"),
    }
    for said, wrong in cases.items():
        with pytest.raises(TlsUnusable, match=said):
            load_server(wrong)


def test_a_client_checks_whom_it_dials(settings: Settings, authority: trustme.CA, tmp_path: Path) -> None:
    plain = load_client(Settings())
    assert plain.validity is None
    assert plain.paths == ()
    certificate, key = write_pair(authority, tmp_path, common_name="broker-a", stem="client")
    loaded = load_client(
        Settings(
            tls_client_trust_cert_path=str(tmp_path / "authority.pem"),
            tls_client_cert_path=certificate,
            tls_client_key_path=key,
        )
    )
    assert loaded.validity is not None
    for context in (plain.context, loaded.context):
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsUnusable, match="there is no key"):
        load_client(Settings(tls_client_cert_path=certificate))
