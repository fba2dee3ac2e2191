"""Who signs the requests of a client, and where that is written down: never on a command line, which others can read.

Touches  the file that it is given.

    accessKey = anna            also `accessKey: anna`, as in the tools.yml of RocketMQ's own tools
    secretKey = a secret
    securityToken = ...         seldom

The file has to be its owner's alone (0600).
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aerobee.errors import InvalidMessage

__all__ = ["Credentials", "credentials_of_environment", "credentials_of_file"]

FILE_SIZE_MAX: Final = 64 * 1024
NAMES: Final = {"accessKey": "access_key", "secretKey": "secret_key", "securityToken": "security_token"}
_LINE: Final = re.compile(r"\s*(\w+)\s*[=:]\s*(.*?)\s*")


@dataclass(slots=True, frozen=True)
class Credentials:
    """Who signs the requests: RocketMQ's access key (its user name), secret key, and a security token if any."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "security_token" and value is None):
                # The value is not shown.
                raise InvalidMessage(f"{name} is of type {type(value).__name__}; it has to be text")


def credentials_of_environment(environ: Mapping[str, str]) -> Credentials | None:
    """AEROBEE_ACCESS_KEY and AEROBEE_SECRET_KEY, or the file that AEROBEE_CREDENTIALS_FILE names; None without either.
    InvalidMessage says what is missing, or wrong with the file."""
    access_key, secret_key = environ.get("AEROBEE_ACCESS_KEY"), environ.get("AEROBEE_SECRET_KEY")
    if bool(access_key) != bool(secret_key):
        raise InvalidMessage("AEROBEE_ACCESS_KEY and AEROBEE_SECRET_KEY go together; one of them is not set")
    if access_key and secret_key:
        return Credentials(access_key, secret_key)
    path = environ.get("AEROBEE_CREDENTIALS_FILE")
    return credentials_of_file(Path(path).expanduser()) if path else None


def credentials_of_file(path: Path) -> Credentials:
    """What is in the file. InvalidMessage says what is wrong with it, and shows nothing of it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_SIZE_MAX).decode()
    except OSError as failed:
        raise InvalidMessage(f"credentials in {path}: {failed.strerror or failed}") from failed
    except UnicodeDecodeError as failed:
        raise InvalidMessage(f"credentials in {path}: not UTF-8") from failed
    if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidMessage(f"credentials in {path} may be read by others: chmod 600 {path}")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[1] not in NAMES:
            raise InvalidMessage(
                f"credentials in {path}, line {number}: one of {', '.join(NAMES)} is expected"
            )
        found[NAMES[match[1]]] = match[2].strip("\"'")
    missing = [name for name in ("accessKey", "secretKey") if not found.get(NAMES[name])]
    if missing:
        raise InvalidMessage(f"credentials in {path}: {' and '.join(missing)} missing")
    return Credentials(**found)
