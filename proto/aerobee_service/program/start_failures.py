"""Why a server could not start, and the way out, in words for whoever started it.

Touches  accounts and the owners of files and ports, reading.
"""

import errno
import os
import pwd
from pathlib import Path

from aerobee_proto.errors import AerobeeError
from aerobee_service.program.ports import owner_of

__all__ = ["CannotListen", "explain", "permission_refused", "user_name"]

PRIVILEGED_PORTS_END = 1024
LOCK_FILE = "lock"


class CannotListen(OSError):
    """An address cannot be taken: `host` and `port` say which, `setting` where the port is written."""

    def __init__(self, cause: OSError, host: str, port: int, setting: str = "listenPort") -> None:
        super().__init__(cause.errno, f"cannot listen on {host}:{port}: {cause.strerror}")
        self.host = host
        self.port = port
        self.setting = setting

    def __str__(self) -> str:
        return str(self.strerror)


def explain(failed: BaseException) -> tuple[str, str]:
    """What went wrong, and what to do about it; the second is empty where the first says it all."""
    if isinstance(failed, CannotListen):
        return _cannot_listen(failed)
    if isinstance(failed, AerobeeError) or not isinstance(failed, OSError):
        return str(failed), ""
    place = str(failed.filename) if failed.filename else ""
    if isinstance(failed, PermissionError) and place:
        return permission_refused(Path(place))
    text = failed.strerror or str(failed)
    reason = f"{place}: {text}" if place else text
    return reason, WAYS_OUT.get(failed.errno or 0, "")


WAYS_OUT = {
    errno.ENOSPC: "make room on that disk, or name a folder on another one",
    errno.EDQUOT: "the quota of this user is used up: make room, or have it raised",
    errno.EROFS: "the file system is read-only: mount it for writing, or name another folder",
    errno.ENOTDIR: "a part of that path is a file: name another folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "the machine's limit of open files is reached: raise fs.file-max",
    errno.ENOENT: "make it, or correct the setting that names it",
}


def _cannot_listen(failed: CannotListen) -> tuple[str, str]:
    address = f"{failed.host}:{failed.port}"
    if failed.errno == errno.EADDRINUSE:
        owner = owner_of(failed.port)
        by = f" by {owner}" if owner else ""
        return (
            f"{address} is taken{by}: {os.strerror(errno.EADDRINUSE)}",
            f"stop what listens there, or set {failed.setting} to another port",
        )
    if failed.errno == errno.EADDRNOTAVAIL:
        return (
            f"{failed.host} is no address of this machine",
            "set bindAddress to one of its addresses, or to 0.0.0.0 for all of them",
        )
    if failed.errno in (errno.EACCES, errno.EPERM) and failed.port < PRIVILEGED_PORTS_END:
        return (
            f"{address}: ports below {PRIVILEGED_PORTS_END} are for root alone; this user is {user_name()}",
            f"set {failed.setting} to a port from {PRIVILEGED_PORTS_END} on",
        )
    return str(failed), ""


def permission_refused(path: Path) -> tuple[str, str]:
    """Who owns a file or folder that this user may not use, and how to mend that.

    Only a folder that was named itself is to change hands: its parent may be /var/lib.
    """
    existing = path
    while not os.path.exists(existing) and existing != existing.parent:  # noqa: PTH110  # Path.exists may raise
        existing = existing.parent
    owner = _owner(existing)
    user = user_name()
    if owner == user:
        return (
            f"{existing} belongs to {owner}, but its permissions do not let {owner} write there",
            f"chmod u+rwX {existing}",
        )
    reason = f"{existing} belongs to {owner}; this user ({user}) may not read and write it"
    if path in (existing, existing / LOCK_FILE):  # the first file that is touched in a store
        return reason, f"chown -R {user} {existing}, or run this as {owner}, or name another folder"
    if path.suffix:
        return reason, f"run this as {owner}, or name a file in a folder that {user} may write to"
    return reason, f"as {owner}: mkdir -p {path} && chown {user} {path}; or name another folder"


def user_name() -> str:
    """The user that this process works as: a name, or a number without an account."""
    return _account(os.geteuid())


def _owner(path: Path) -> str:
    try:
        return _account(path.stat().st_uid)
    except OSError:
        return "somebody else"


def _account(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
