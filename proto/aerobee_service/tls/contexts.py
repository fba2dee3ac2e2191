"""TLS contexts of servers, made of files: what a server shows, whom it trusts, and what it shows where it dials.

Touches  certificate, key and properties files, reading.

Invariants
- TLS 1.2 or later. A peer's certificate is either checked or not asked for: one that nobody checks proves nothing.
- Nothing is asked at a terminal: a key that needs a password which is nowhere given cannot be used.
- A certificate and a key that do not belong together are refused here, before anybody is shown them.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

from aerobee_proto.errors import AerobeeError
from aerobee_service.settings.settings import SettingsError, read_properties
from aerobee_service.tls.validity import Validity, validity_of

__all__ = [
    "CLIENT_AUTH",
    "ClientAuth",
    "Loaded",
    "TlsSettings",
    "TlsUnusable",
    "load_client",
    "load_server",
]

# Whether clients have to show a certificate; "" is require where there are authorities to check it, else none.
ClientAuth = Literal["", "none", "optional", "require"]
CLIENT_AUTH: Final[tuple[str, ...]] = get_args(ClientAuth)
MODE_KEYS: Final = (
    "tls.server.mode",
    "tls.enable",
    "tls.config.file",
)  # not read from the file, as by RocketMQ


class TlsUnusable(AerobeeError):
    """Certificate, key or authorities cannot be used; the text names the file and what is wrong."""


class TlsSettings(Protocol):
    """The settings of a server that say where its files are."""

    @property
    def tls_config_path(self) -> str: ...
    @property
    def tls_server_cert_path(self) -> str: ...
    @property
    def tls_server_key_path(self) -> str: ...
    @property
    def tls_server_trust_cert_path(self) -> str: ...
    @property
    def tls_server_need_client_auth(self) -> ClientAuth: ...
    @property
    def tls_client_cert_path(self) -> str: ...
    @property
    def tls_client_key_path(self) -> str: ...
    @property
    def tls_client_trust_cert_path(self) -> str: ...


@dataclass(slots=True, frozen=True)
class _Files:
    """One end: what it shows, and whom it trusts."""

    cert_path: str
    key_path: str
    trusted_path: str
    client_auth: str = ""
    key_password: str = field(default="", repr=False)


@dataclass(slots=True, frozen=True)
class Loaded:
    """A context, the files that it was made of, and how long its certificate is good (None without one)."""

    context: ssl.SSLContext
    paths: tuple[str, ...]
    private_paths: tuple[str, ...]  # those of them that nobody else should be able to read
    validity: Validity | None


def load_server(settings: TlsSettings, *, insists: bool = True) -> Loaded:
    """What a server shows its clients. Where it does not insist, a certificate that is required elsewhere may be left
    out, and one that is shown is checked all the same. Raises TlsUnusable."""
    written = _written(settings.tls_config_path)
    files = _overlaid(
        _Files(
            settings.tls_server_cert_path,
            settings.tls_server_key_path,
            settings.tls_server_trust_cert_path,
            settings.tls_server_need_client_auth,
        ),
        written,
        "tls.server",
    )
    auth = files.client_auth or ("require" if files.trusted_path else "none")
    if auth not in CLIENT_AUTH:
        raise TlsUnusable(f"tls.server.need.client.auth={auth}: write none, optional or require")
    if not insists and auth == "require":
        auth = "optional"
    if auth != "none" and (not files.trusted_path or _is_false(written.get("tls.server.authClient"))):
        raise TlsUnusable(
            f"clients are asked for certificates ({auth}) that nobody would check: name the authorities in"
            " tlsServerTrustCertPath (tls.server.trustCertPath), and leave tls.server.authClient true"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    validity = _show(context, files)
    if auth != "none":
        _trust(context, files.trusted_path)
        context.verify_mode = ssl.CERT_REQUIRED if auth == "require" else ssl.CERT_OPTIONAL
    return _loaded(context, settings, files, validity)


def load_client(settings: TlsSettings) -> Loaded:
    """What this program shows and trusts where it dials: the server's certificate must be of the authorities named,
    or of the system's, and for the host that is dialled. Raises TlsUnusable."""
    written = _written(settings.tls_config_path)
    files = _overlaid(
        _Files(
            settings.tls_client_cert_path,
            settings.tls_client_key_path,
            settings.tls_client_trust_cert_path,
        ),
        written,
        "tls.client",
    )
    if _is_false(written.get("tls.client.authServer")):
        raise TlsUnusable(
            "tls.client.authServer=false: a server that nobody checks may be anybody; leave it out"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.trusted_path:
        _trust(context, files.trusted_path)
    else:
        context.load_default_certs()
    validity = _show(context, files) if files.cert_path or files.key_path else None
    return _loaded(context, settings, files, validity)


def _loaded(
    context: ssl.SSLContext, settings: TlsSettings, files: _Files, validity: Validity | None
) -> Loaded:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    paths = (settings.tls_config_path, files.cert_path, files.key_path, files.trusted_path)
    private = (files.key_path, settings.tls_config_path if files.key_password else "")
    return Loaded(context, _named(paths), _named(private), validity)


def _named(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if path)


def _written(config_path: str) -> Mapping[str, str]:
    """What a properties file with RocketMQ's own names says (tls.config.file there)."""
    if not config_path:
        return {}
    try:
        written = dict(read_properties(Path(config_path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, ValueError, SettingsError) as failed:
        raise TlsUnusable(f"{config_path} (tlsConfigPath): {_said(failed)}") from failed
    if written.get("tls.test.mode.enable", "false").strip().lower() == "true":
        raise TlsUnusable(
            f"{config_path}: tls.test.mode.enable=true asks for a certificate that nobody checks;"
            " `aerobee access certificates` makes ones that are checked"
        )
    return written


def _overlaid(files: _Files, written: Mapping[str, str], end: str) -> _Files:
    """The file's keys win over settings, as they do over RocketMQ's system properties."""
    found = {
        name: written[key].strip()
        for name, key in {
            "cert_path": f"{end}.certPath",
            "key_path": f"{end}.keyPath",
            "key_password": f"{end}.keyPassword",
            "trusted_path": f"{end}.trustCertPath",
            "client_auth": f"{end}.need.client.auth",
        }.items()
        if key in written
    }
    return replace(files, **found)


def _show(context: ssl.SSLContext, files: _Files) -> Validity:
    if not (files.cert_path and files.key_path):
        missing = "key (tls...KeyPath)" if files.cert_path else "certificate (tls...CertPath)"
        raise TlsUnusable(f"a certificate and its key go together; there is no {missing}")
    _readable(files.cert_path)
    _readable(files.key_path)
    try:
        # A password that is empty is wrong for every key that has one; without any, a terminal would be asked.
        context.load_cert_chain(files.cert_path, files.key_path, password=lambda: files.key_password)
    except (ssl.SSLError, OSError) as failed:
        raise TlsUnusable(f"{files.cert_path} with the key {files.key_path}: {_said(failed)}") from failed
    try:
        return validity_of(Path(files.cert_path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError) as failed:
        raise TlsUnusable(f"{files.cert_path}: {_said(failed)}") from failed


def _trust(context: ssl.SSLContext, path: str) -> None:
    _readable(path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as failed:
        raise TlsUnusable(f"{path}: no certificates in PEM form in it ({_said(failed)})") from failed


def _readable(path: str) -> None:
    """TlsUnusable with the file's name: OpenSSL's own text has none."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as failed:
        raise TlsUnusable(f"{path}: {failed.strerror or failed}") from failed


def _said(failed: Exception) -> str:
    if isinstance(failed, ssl.SSLError) and failed.reason:
        return failed.reason.replace("_", " ").lower()
    if isinstance(failed, OSError) and failed.strerror:
        return failed.strerror
    return str(failed)


def _is_false(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "false"
