"""Local TCP ports: is one free, who has it.

Touches  sockets that are bound and closed again, and /proc (Linux), as far as this user may read it.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["is_free", "owner_of"]

PROC: Final = Path("/proc")
LISTENING: Final = "0A"  # the state of a listening socket in /proc/net/tcp


def is_free(host: str, port: int) -> bool:
    """Whether this process could listen on `host`:`port` now. Port 0 always is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def owner_of(port: int, proc: Path = PROC) -> str | None:
    """`name (pid 17)` of a process that listens on `port`; None when that cannot be seen from here."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not sockets:
        return None
    for folder in proc.iterdir():
        if folder.name.isdecimal() and _has_one_of(folder / "fd", sockets):
            return f"{_command_of(folder)} (pid {folder.name})"
    return None


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            local, state, inode = words[1], words[3], words[9]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield inode


def _has_one_of(descriptors: Path, sockets: set[str]) -> bool:
    try:
        return any(str(link.readlink()) in sockets for link in descriptors.iterdir())
    except OSError:  # gone meanwhile, or another user's
        return False


def _command_of(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    except OSError:
        return "a process"
    return " ".join([Path(words[0]).name, *words[1:]])[:60] if words[0] else "a process"
