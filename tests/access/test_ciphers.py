"""AES-256-GCM as secrets are sealed with, and that it costs nothing where there are none."""

import subprocess
import sys

import pytest

from aerobee_access.ciphers import Cipher, NotSealedSo

KEY, NONCE = bytes(32), bytes(12)


def test_the_same_key_nonce_and_name_open_it() -> None:
    sealed = Cipher(KEY).seal(NONCE, b"secret", b"anna")
    assert len(sealed) == len(b"secret") + 16
    assert Cipher(KEY).open(NONCE, sealed, b"anna") == b"secret"


def test_a_known_answer() -> None:
    """Case 14 of the test vectors in McGrew and Viega, The Galois/Counter Mode of Operation (GCM), appendix B."""
    sealed = Cipher(KEY).seal(NONCE, bytes(16), b"")
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


@pytest.mark.parametrize(
    ("key", "nonce", "cut", "beside"),
    [
        (b"k" * 32, NONCE, 0, b"anna"),
        (KEY, b"n" * 12, 0, b"anna"),
        (KEY, b"", 0, b"anna"),
        (KEY, NONCE, 1, b"anna"),
        (KEY, NONCE, 99, b"anna"),
        (KEY, NONCE, 0, b"bert"),
    ],
)
def test_nothing_else_opens_it(key: bytes, nonce: bytes, cut: int, beside: bytes) -> None:
    sealed = Cipher(KEY).seal(NONCE, b"secret", b"anna")
    with pytest.raises(NotSealedSo):
        Cipher(key).open(nonce, sealed[cut:], beside)


@pytest.mark.parametrize("program", ["aerobee_broker.main", "aerobee_nameserver.main"])
def test_a_server_loads_it_when_it_is_needed(program: str) -> None:
    code = f"import sys, {program}; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
