"""The private authority: what its certificates say, that they work, and that nothing is written over."""

import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from aerobee_service.tls.authority import AUTHORITY, Authority, AuthorityError, check_addresses, check_name
from aerobee_service.tls.contexts import load_client, load_server
from service.tls.certificates import Settings

NOW = datetime(2026, 5, 17, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def made(folder: Path, now: datetime = NOW) -> Authority:
    authority = Authority(folder, now)
    authority.make()
    return authority


def certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())


def test_the_authority_signs_certificates_and_nothing_else(tmp_path: Path) -> None:
    made(tmp_path / "ca")
    found = certificate(tmp_path / "ca", AUTHORITY)
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    usage = found.extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    found.verify_directly_issued_by(found)
    assert found.not_valid_after_utc == NOW + 3650 * DAY
    assert found.not_valid_before_utc < NOW  # on a machine whose clock is a little behind


def test_keys_are_read_by_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    made(folder).issue("broker-a", ["10.0.0.1"], 30)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {
        "authority.key": 0o600,
        "authority.pem": 0o644,
        "broker-a.key": 0o600,
        "broker-a.pem": 0o644,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_server_s_certificate_names_its_addresses(tmp_path: Path) -> None:
    issued = made(tmp_path).issue("broker-a", ["10.0.0.1", "::1", "broker-a.example", "*.example"], 30)
    assert issued.addresses == ("10.0.0.1", "::1", "broker-a.example", "*.example")
    found = certificate(tmp_path, "broker-a")
    usages = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert found.subject.rfc4514_string() == "CN=broker-a"
    assert issued.not_after == NOW + 30 * DAY
    assert certificate(tmp_path, AUTHORITY).serial_number != found.serial_number


def test_a_client_s_certificate_is_no_server_s(tmp_path: Path) -> None:
    made(tmp_path).issue("alice", [], 30)
    usages = certificate(tmp_path, "alice").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    """A handshake in memory; the common name that the server has verified."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[int] = set()
    for _ in range(10):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                continue
    assert done == {0, 1}
    shown = ends[1].getpeercert()
    assert shown is not None
    subject = shown["subject"]
    return str(subject[0][0][1])


def test_both_ends_check_each_other(tmp_path: Path) -> None:
    authority = made(tmp_path, datetime.now(UTC))
    authority.issue("broker-a", ["127.0.0.1", "broker-a.example"], 30)
    authority.issue("alice", [], 30)
    settings = Settings(
        tls_server_cert_path=f"{tmp_path}/broker-a.pem",
        tls_server_key_path=f"{tmp_path}/broker-a.key",
        tls_server_trust_cert_path=f"{tmp_path}/authority.pem",
        tls_client_cert_path=f"{tmp_path}/alice.pem",
        tls_client_key_path=f"{tmp_path}/alice.key",
        tls_client_trust_cert_path=f"{tmp_path}/authority.pem",
    )
    server, client = load_server(settings).context, load_client(settings).context
    for host in ("127.0.0.1", "broker-a.example"):
        assert shake(server, client, host) == "alice"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "broker-b.example")
    pretending = replace(
        settings, tls_server_cert_path=f"{tmp_path}/alice.pem", tls_server_key_path=f"{tmp_path}/alice.key"
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(load_server(pretending).context, client, "alice")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    authority = made(tmp_path)
    authority.issue("broker-a", ["10.0.0.1"], 30)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(AuthorityError, match="there already"):
        authority.make()
    with pytest.raises(AuthorityError, match="--renew"):
        authority.issue("broker-a", ["10.0.0.2"], 30)
    (tmp_path / "broker-b.key").write_bytes(b"of somebody")
    with pytest.raises(AuthorityError, match=r"broker-b\.key is there already"):
        authority.issue("broker-b", ["10.0.0.2"], 30)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after == before | {"broker-b.key": b"of somebody"}


def test_a_renewal_keeps_what_is_certified_and_changes_the_key(tmp_path: Path) -> None:
    made(tmp_path).issue("broker-a", ["10.0.0.1", "broker-a.example"], 30)
    before = certificate(tmp_path, "broker-a")
    later = NOW + 25 * DAY
    issued = Authority(tmp_path, later).renew("broker-a")
    after = certificate(tmp_path, "broker-a")
    assert issued.addresses == ("10.0.0.1", "broker-a.example")
    assert issued.not_after == later + 30 * DAY
    assert before.public_key() != after.public_key()
    assert stat.S_IMODE((tmp_path / "broker-a.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("authority.key", "authority.pem", "broker-a.key", "broker-a.pem")
    ]


def test_what_has_less_than_a_third_of_its_time_left_is_due(tmp_path: Path) -> None:
    issued = made(tmp_path).issue("broker-a", ["10.0.0.1"], 30)
    assert [issued.is_due(NOW + days * DAY) for days in (0, 19, 21, 31)] == [False, False, True, True]


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    made(tmp_path)
    late = Authority(tmp_path, NOW + 3600 * DAY)
    assert late.issue("broker-a", ["10.0.0.1"], 365).not_after == NOW + 3650 * DAY
    with pytest.raises(AuthorityError, match="expired"):
        Authority(tmp_path, NOW + 3651 * DAY).issue("broker-b", ["10.0.0.1"], 365)


def test_what_is_not_right_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match=r"authority\.pem is not there"):
        Authority(tmp_path, NOW).issue("broker-a", ["10.0.0.1"], 30)
    authority = made(tmp_path)
    authority.issue("broker-a", ["10.0.0.1"], 30)
    key = (tmp_path / "authority.key").read_bytes()
    (tmp_path / "authority.key").write_bytes((tmp_path / "broker-a.key").read_bytes())
    with pytest.raises(AuthorityError, match="is not the key of"):
        authority.issue("broker-b", ["10.0.0.1"], 30)
    (tmp_path / "authority.key").write_bytes(b"rubbish")
    with pytest.raises(AuthorityError, match="no key in PEM form"):
        authority.issue("broker-b", ["10.0.0.1"], 30)
    (tmp_path / "authority.key").unlink()
    with pytest.raises(AuthorityError, match="nothing can be signed"):
        authority.issue("broker-b", ["10.0.0.1"], 30)
    (tmp_path / "authority.key").write_bytes(key)
    (tmp_path / "stray.pem").write_bytes(b"rubbish")
    with pytest.raises(AuthorityError, match="no certificate in PEM form"):
        list(authority.issued())
    other = tmp_path / "other"
    made(other).issue("stray", [], 30)
    (tmp_path / "stray.pem").write_bytes((other / "stray.pem").read_bytes())
    with pytest.raises(AuthorityError, match="not signed by the authority"):
        authority.renew("stray")


@pytest.mark.parametrize("name", ["", "authority", "../x", "a/b", "-a", ".a", "a" * 65, "ä", "a\n"])
def test_names_that_no_file_should_have(name: str) -> None:
    with pytest.raises(AuthorityError, match="no name for a certificate"):
        check_name(name)


@pytest.mark.parametrize(
    "address", ["", "a b", "http://a", "10.0.0", "1.2.3.4.5", "a:1", "-a", "a..b", "ä.example", "x" * 300]
)
def test_addresses_that_nobody_dials(address: str) -> None:
    with pytest.raises(AuthorityError, match="neither an IP address nor"):
        check_addresses([address])
