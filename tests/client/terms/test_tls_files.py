"""A client's TLS by files: what is trusted and shown, and what is said of files that cannot be used."""

import ssl
from pathlib import Path

import pytest
import trustme

from aerobee import ClientConfig
from aerobee.errors import InvalidMessage
from aerobee.terms.tls_files import context_of_files
from service.tls.certificates import write_pair


def test_authority_and_certificate_are_taken_from_files(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate, key = write_pair(authority, tmp_path, common_name="alice")
    trusted = str(tmp_path / "authority.pem")
    context = context_of_files(trusted, certificate, key)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1
    assert len(context_of_files(None, None, None).get_ca_certs()) != 1  # the system's
    names = {"AEROBEE_TLS_CA": trusted, "AEROBEE_TLS_CERT": certificate, "AEROBEE_TLS_KEY": key}
    environ = {"AEROBEE_NAMESERVERS": "a:9876", **names}
    assert isinstance(ClientConfig.from_env(environ).tls, ssl.SSLContext)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = write_pair(authority, tmp_path, common_name="alice")
    other, _ = write_pair(authority, tmp_path, common_name="bob", stem="other")
    empty = tmp_path / "empty"
    empty.touch()
    for files, said in {
        (None, certificate, None): "there is no key",
        (None, None, key): "there is no certificate",
        (str(empty), None, None): "empty: no certificates",
        (f"{tmp_path}/gone", None, None): "gone: No such file",
        (None, other, key): "other.pem with the key .*: key values mismatch",
        (None, str(empty), key): "empty with the key",
        (None, f"{tmp_path}/gone", key): "gone with the key .*: No such file",
    }.items():
        with pytest.raises(InvalidMessage, match=said):
            context_of_files(*files)
