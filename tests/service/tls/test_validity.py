"""How long a certificate is good, beside what the library for certificates reads of it."""

import contextlib
import ssl
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from aerobee_service.tls.validity import validity_of

PEM = trustme.CA().issue_cert("localhost").cert_chain_pems[0].bytes().decode()


def test_both_ends_are_read() -> None:
    found, known = validity_of(PEM), x509.load_pem_x509_certificate(PEM.encode())
    assert found.not_before_s == known.not_valid_before_utc.timestamp()
    assert found.not_after_s == known.not_valid_after_utc.timestamp()


def test_the_first_of_a_chain_counts() -> None:
    other = trustme.CA().cert_pem.bytes().decode()
    assert validity_of(f"some text\n{PEM}{other}") == validity_of(PEM)


@pytest.mark.parametrize("year", [1950, 2000, 2049, 2050, 9999])
def test_years_of_two_and_of_four_digits(year: int) -> None:
    expires = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    kind, text = (0x17, f"{expires:%y%m%d%H%M%S}Z") if year < 2050 else (0x18, f"{expires:%Y%m%d%H%M%S}Z")
    time = bytes([kind, len(text)]) + text.encode()
    validity = bytes([0x30, 2 * len(time)]) + time * 2
    fields = b"\x02\x01\x05" + b"\x30\x00" + b"\x30\x00" + validity
    inner = bytes([0x30, len(fields)]) + fields
    der = bytes([0x30, len(inner)]) + inner
    assert validity_of(ssl.DER_cert_to_PEM_cert(der)).not_after_s == expires.timestamp()


@pytest.mark.parametrize(
    "text",
    ["", "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----", PEM[:100]],
    ids=["nothing", "begin", "end", "cut"],
)
def test_what_is_no_certificate_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        validity_of(text)


@given(st.data())
def test_damaged_bytes_give_a_value_or_a_value_error(data: st.DataObject) -> None:
    der = bytearray(ssl.PEM_cert_to_DER_cert(PEM))
    for _ in range(data.draw(st.integers(1, 8))):
        der[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    cut = der[: data.draw(st.integers(0, len(der)))]
    with contextlib.suppress(ValueError):
        validity_of(ssl.DER_cert_to_PEM_cert(bytes(cut)))
