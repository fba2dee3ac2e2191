"""A private authority and the certificates that it has signed, in one folder.

Touches  that folder. `cryptography` (the extra `certificates`) is loaded here alone.

    authority.pem   what everybody trusts
    authority.key   what signs: belongs on no server
    NAME.pem        a certificate, its common name is NAME
    NAME.key        its key, PKCS#8

Keys are of the curve P-256, which every TLS 1.2 and 1.3 that is in use knows, and are read by their owner alone.

Invariants
- No file is written over but by `renew`, and then by another that is whole: what runs never sees half a file.
- A certificate ends no later than its authority.
"""

import contextlib
import ipaddress
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aerobee_proto.errors import AerobeeError

__all__ = ["AUTHORITY", "Authority", "AuthorityError", "Issued", "check_addresses", "check_name"]

AUTHORITY: Final = "authority"
AUTHORITY_DAYS: Final = 3650
CLOCKS_APART: Final = timedelta(
    minutes=10
)  # of the machines on which a new certificate is to be good at once
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST_PATTERN: Final = re.compile(
    r"(?=.{1,253}$)(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)


class AuthorityError(AerobeeError):
    """The folder is not as it should be, or would be written over; the text says what to do."""


@dataclass(slots=True, frozen=True)
class Issued:
    """A certificate of the folder. Without addresses it is a client's."""

    name: str
    addresses: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    def is_due(self, now: datetime) -> bool:
        """Whether less than a third of its time is left."""
        return self.not_after - now < (self.not_after - self.not_before) / 3


def check_name(name: str) -> str:
    """The name as it is. AuthorityError for one that a file or a common name cannot have."""
    if not NAME_PATTERN.fullmatch(name) or name == AUTHORITY:
        raise AuthorityError(
            f"{name!r} is no name for a certificate: 1 to 64 letters, digits and signs of . _ -,"
            f" the first a letter or digit, and not {AUTHORITY!r}"
        )
    return name


def check_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """The addresses as they are. AuthorityError for one that is neither an IP address nor a host name."""
    for address in addresses:
        _alternative(address)
    return tuple(addresses)


class Authority:
    """See the module; the folder of one authority."""

    def __init__(self, folder: Path, now: datetime) -> None:
        """Of a folder as it is; `now` has a time zone. Nothing is touched."""
        self._folder = folder
        self._now = now

    @property
    def is_made(self) -> bool:
        """Whether the folder has an authority."""
        return self._path(AUTHORITY, "pem").exists()

    def make(self) -> None:
        """A new authority, in a folder that is made where there is none. AuthorityError when it has one."""
        self._refuse_to_write_over(AUTHORITY)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        # Two authorities with the same name would be told apart by their keys alone, and programs confuse them.
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Aerobee"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"Authority {serial:040x}"[:42]),
            ]
        )
        made = (
            self._begun(name, name, key, timedelta(days=AUTHORITY_DAYS), serial)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        self._write(AUTHORITY, key, made, over=False)

    def issue(self, name: str, addresses: Sequence[str], days: int) -> Issued:
        """A new certificate: with addresses a server's, which it may also show where it dials; else a client's.

        AuthorityError when there is one of that name, or no authority that can sign.
        """
        self._refuse_to_write_over(check_name(name))
        return self._issue(name, addresses, timedelta(days=days), over=False)

    def renew(self, name: str, days: int | None = None) -> Issued:
        """The certificate and its key made anew, for the same addresses and, unless said, as long as before."""
        old = self._described(check_name(name), self._certificate(name))
        length = old.not_after - old.not_before - CLOCKS_APART if days is None else timedelta(days=days)
        return self._issue(name, old.addresses, length, over=True)

    def issued(self) -> Iterator[Issued]:
        """All certificates of the folder, the authority's own first. AuthorityError for a file that is none."""
        yield self._described(AUTHORITY, self._certificate(AUTHORITY))
        for path in sorted(self._folder.glob("*.pem")):
            if path.stem != AUTHORITY:
                yield self._described(path.stem, self._certificate(path.stem))

    # --- signing ----------------------------------------------------------------------------------------------

    def _issue(self, name: str, addresses: Sequence[str], length: timedelta, *, over: bool) -> Issued:
        authority, authority_key = self._signing()
        alternatives = [_alternative(address) for address in addresses]
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        length = min(length, authority.not_valid_after_utc - self._now)
        if length <= timedelta():
            raise AuthorityError(
                f"the authority of {self._folder} has expired; make a new one in another folder"
            )
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if alternatives:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        begun = (
            self._begun(subject, authority.subject, key, length, x509.random_serial_number())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        if alternatives:
            begun = begun.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        made = begun.sign(authority_key, hashes.SHA256())
        self._write(name, key, made, over=over)
        return self._described(name, made)

    def _begun(
        self,
        subject: x509.Name,
        issuer: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        length: timedelta,
        serial: int,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(self._now - CLOCKS_APART)
            .not_valid_after(self._now + length)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _signing(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """The authority and its key, which belong together."""
        authority, path = self._certificate(AUTHORITY), self._path(AUTHORITY, "key")
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except FileNotFoundError:
            raise AuthorityError(f"{path} is not there, and nothing can be signed without it") from None
        except (ValueError, TypeError) as wrong:
            raise AuthorityError(f"{path} is no key in PEM form without a password: {wrong}") from wrong
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
            raise AuthorityError(f"{path} is not the key of {self._path(AUTHORITY, 'pem')}")
        return authority, key

    # --- files ------------------------------------------------------------------------------------------------

    def _path(self, name: str, suffix: str) -> Path:
        return self._folder / f"{name}.{suffix}"

    def _refuse_to_write_over(self, name: str) -> None:
        for suffix in ("pem", "key"):
            path = self._path(name, suffix)
            if path.exists():
                raise AuthorityError(f"{path} is there already; --renew makes a certificate anew")

    def _certificate(self, name: str) -> x509.Certificate:
        path = self._path(name, "pem")
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except FileNotFoundError:
            raise AuthorityError(f"{path} is not there") from None
        except ValueError as wrong:
            raise AuthorityError(f"{path} is no certificate in PEM form: {wrong}") from wrong

    def _described(self, name: str, certificate: x509.Certificate) -> Issued:
        if name != AUTHORITY:
            authority = self._certificate(AUTHORITY)
            try:
                certificate.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                raise AuthorityError(
                    f"{self._path(name, 'pem')} was not signed by the authority of this folder"
                ) from None
        try:
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            addresses: tuple[str, ...] = ()
        else:
            addresses = tuple(
                str(one.value) for one in found if isinstance(one, (x509.DNSName, x509.IPAddress))
            )
        return Issued(name, addresses, certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    def _write(
        self, name: str, key: ec.EllipticCurvePrivateKey, made: x509.Certificate, *, over: bool
    ) -> None:
        """The key first: a certificate without its key is of no use, and says that there is one."""
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._place(self._path(name, "key"), private, 0o600, over=over)
        public = made.public_bytes(serialization.Encoding.PEM)
        self._place(self._path(name, "pem"), public, 0o644, over=over)

    def _place(self, path: Path, content: bytes, mode: int, *, over: bool) -> None:
        """The file, whole and on disk; FileExistsError when it is there and not to be written over."""
        number, temporary = tempfile.mkstemp(dir=self._folder, prefix=".new-")  # read by its owner alone
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            if over:
                os.replace(temporary, path)  # noqa: PTH105
            else:
                os.link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    if not HOST_PATTERN.fullmatch(address) or re.fullmatch(r"[\d.]+", address):
        raise AuthorityError(f"{address!r} is neither an IP address nor the name of a host")
    return x509.DNSName(address)
