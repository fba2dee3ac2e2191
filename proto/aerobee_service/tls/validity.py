"""From when until when a certificate is good, read from its bytes.

Touches  nothing.

    Certificate     SEQUENCE { tbsCertificate, signature ... }
    tbsCertificate  SEQUENCE { [0] version, serialNumber, signature, issuer, validity, ... }
    validity        SEQUENCE { notBefore, notAfter }, each a UTCTime or a GeneralizedTime (RFC 5280, 4.1)
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

__all__ = ["Validity", "validity_of"]

SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
BEGIN: Final = "-----BEGIN CERTIFICATE-----"
END: Final = "-----END CERTIFICATE-----"
BEFORE_VALIDITY: Final = 3  # serial number, signature algorithm, issuer


@dataclass(slots=True, frozen=True)
class Validity:
    """Seconds since the epoch, both ends within."""

    not_before_s: float
    not_after_s: float


def validity_of(pem: str) -> Validity:
    """Of the first certificate of a PEM text. ValueError when there is none that can be read."""
    start, end = pem.find(BEGIN), pem.find(END)
    if start < 0 or end < start:
        raise ValueError("no certificate in PEM form in it")
    return _of_der(ssl.PEM_cert_to_DER_cert(pem[start : end + len(END)]))


def _of_der(der: bytes) -> Validity:
    try:
        inner = _Reader(_Reader(der).take(SEQUENCE)).take(SEQUENCE)
        fields = _Reader(inner)
        if fields.tag == VERSION:
            fields.take(VERSION)
        for _ in range(BEFORE_VALIDITY):
            fields.take(fields.tag)
        times = _Reader(fields.take(SEQUENCE))
        return Validity(_time(times), _time(times))
    except (IndexError, ValueError) as failed:
        raise ValueError(f"not a certificate: {failed}") from failed


class _Reader:
    """Values one after the other: a tag, a length, so many bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def tag(self) -> int:
        return self._data[self._at]

    def take(self, tag: int) -> bytes:
        """The content of the next value, which must have this tag."""
        if self.tag != tag:
            raise ValueError(f"tag {self.tag:#x} in place of {tag:#x}")
        length, start = self._data[self._at + 1], self._at + 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(self._data[start : start + size], "big")
            start += size
        if start + length > len(self._data):
            raise ValueError("it ends early")
        self._at = start + length
        return self._data[start : self._at]


def _time(times: _Reader) -> float:
    tag = times.tag
    if tag not in (UTC_TIME, GENERALIZED_TIME):
        raise ValueError(f"tag {tag:#x} in place of a time")
    text = times.take(tag).decode("ascii")
    if tag == UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
