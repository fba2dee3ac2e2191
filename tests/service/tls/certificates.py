"""Certificates for tests of TLS, written where settings name them."""

from dataclasses import dataclass
from pathlib import Path

import trustme

from aerobee_service.tls.contexts import ClientAuth

__all__ = ["Settings", "write_pair"]


@dataclass(slots=True, frozen=True)
class Settings:
    """The settings that TLS is made of, all empty."""

    tls_config_path: str = ""
    tls_server_mode: str = "enforcing"
    tls_server_cert_path: str = ""
    tls_server_key_path: str = ""
    tls_server_trust_cert_path: str = ""
    tls_server_need_client_auth: ClientAuth = ""
    use_tls: bool = False
    tls_client_cert_path: str = ""
    tls_client_key_path: str = ""
    tls_client_trust_cert_path: str = ""
    metrics_prom_exporter_tls: bool = False


def write_pair(
    authority: trustme.CA, folder: Path, *names: str, common_name: str | None = None, stem: str = "server"
) -> tuple[str, str]:
    """A certificate of the authority and its key, as files that nobody else may read; their paths."""
    made = authority.issue_cert(*names, common_name=common_name)
    certificate, key = folder / f"{stem}.pem", folder / f"{stem}.key"
    key.touch(mode=0o600)
    certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return str(certificate), str(key)
