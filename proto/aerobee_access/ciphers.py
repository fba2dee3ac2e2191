"""AES-256-GCM, which is loaded when the first secret is sealed or opened.

Touches  nothing.

`cryptography` takes 7 to 9 MiB of each process that loads it: a tenth of an idle broker, most of which have no users.
"""

__all__ = ["Cipher", "NotSealedSo"]


class NotSealedSo(ValueError):
    """This was not sealed with this key, with this nonce, beside this; or it is damaged."""


class Cipher:
    """Seals with one key."""

    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._with_key = AESGCM(key)

    def seal(self, nonce: bytes, secret: bytes, beside: bytes) -> bytes:
        """The ciphertext and its tag of 16 bytes. `beside` is authenticated with it; each `nonce` is used once."""
        return self._with_key.encrypt(nonce, secret, beside)

    def open(self, nonce: bytes, sealed: bytes, beside: bytes) -> bytes:
        """What was sealed. NotSealedSo."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._with_key.decrypt(nonce, sealed, beside)
        except (InvalidTag, ValueError):  # a nonce that is too short is a ValueError
            raise NotSealedSo("not sealed with this key, or damaged") from None
