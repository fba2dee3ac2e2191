"""Secrets as they lie on a disk: sealed with a key that is kept elsewhere.

Touches  the key file.

A signature is checked with the secret itself, so it cannot be a hash. Whoever gets a copy of the file with the users (a
backup of the store, a disk) and not the key file can do nothing with it. AES-256-GCM with a nonce of its own for each
secret; the name of the user is authenticated with it, so a sealed secret cannot be moved to another user.

    sealed    "v1:" + Base64 of nonce (12 bytes) | ciphertext | tag (16 bytes)
    key file  32 random bytes as Base64 and a line end; read by its owner alone (0600)
"""

import base64
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from aerobee_access.ciphers import Cipher
from aerobee_proto.errors import AerobeeError

__all__ = ["KeyFileError", "Sealer"]

VERSION: Final = "v1:"
NONCE_SIZE: Final = 12
KEY_SIZE: Final = 32
KEY_FILE_SIZE_MAX: Final = 4096


class KeyFileError(AerobeeError):
    """The key file cannot be used, or does not open what lies there; the text says what to do."""


class Sealer:
    """Seals and opens secrets with the key of one file, which is read, or made, when it is first needed."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file
        self._cipher: Cipher | None = None

    def seal(self, name: str, secret: str) -> str:
        """The secret of this user as it may be written down. KeyFileError when there is no key to do it with."""
        nonce = os.urandom(NONCE_SIZE)
        sealed = self._keyed().seal(nonce, secret.encode(), name.encode())
        return VERSION + base64.b64encode(nonce + sealed).decode()

    def open(self, name: str, sealed: str) -> str:
        """The secret of this user. KeyFileError: it was sealed with another key, for another user, or is damaged."""
        cipher = self._keyed()
        try:
            # Without the version in front it is not Base64.
            raw = base64.b64decode(sealed.removeprefix(VERSION), validate=True)
            return cipher.open(raw[:NONCE_SIZE], raw[NONCE_SIZE:], name.encode()).decode()
        except ValueError:
            raise KeyFileError(
                f"the secret of user {name!r} does not open with the key in {self._key_file}: put the key file that "
                "belongs to it in place (accessKeyPath), or take the user out of the file and create it again"
            ) from None

    def _keyed(self) -> Cipher:
        if self._cipher is None:
            path = self._key_file
            try:
                self._cipher = Cipher(_read(path) if path.exists() else _make(path))
            except OSError as failed:
                raise KeyFileError(
                    f"the key file {path} cannot be used: {failed.strerror or failed}"
                ) from failed
        return self._cipher


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(KEY_FILE_SIZE_MAX + 1)
    if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"the key file {path} may be read by others: chmod 600 {path}")
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE:
        raise KeyFileError(f"the key file {path} does not hold {KEY_SIZE} bytes as Base64")
    return key


def _make(path: Path) -> bytes:
    """A new key, whole from the moment at which it is there; that of another process which was first is read."""
    key = os.urandom(KEY_SIZE)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # nobody else may read it
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(key) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)
    except FileExistsError:
        return _read(path)
    finally:
        Path(fresh).unlink()
    return key
