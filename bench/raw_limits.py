"""What this machine gives to one who copies: a disk, a loopback connection, both without a broker.

Touches  a file in the folder that it is given, which it removes; a local connection.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RawLimits", "raw_limits"]

MIB = 1 << 20
PIECE_SIZE = 256 << 10


@dataclass(slots=True, frozen=True)
class RawLimits:
    """MiB per second."""

    into_memory: float  # pwrite of pieces into a file that has its space, as a log has
    onto_disk: float  # the same, and all of it on the disk
    loopback: float  # sendall on one end, recv_into on the other

    def __str__(self) -> str:
        return (
            f"writes {self.into_memory:,.0f} MiB/s into memory and {self.onto_disk:,.0f} onto the disk, "
            f"loopback {self.loopback:,.0f}"
        )


def raw_limits(folder: Path, size: int) -> RawLimits:
    """Measured with so many bytes, in pieces of PIECE_SIZE."""
    return RawLimits(*_disk(folder / "raw", size), _loopback(size))


def _disk(path: Path, size: int) -> tuple[float, float]:
    piece = os.urandom(PIECE_SIZE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.fsync(descriptor)
        began = time.monotonic()
        for position in range(0, size - PIECE_SIZE + 1, PIECE_SIZE):
            os.pwrite(descriptor, piece, position)
        written = time.monotonic()
        os.fdatasync(descriptor)
        done = time.monotonic()
    finally:
        os.close(descriptor)
        path.unlink()
    return size / MIB / (written - began), size / MIB / (done - began)


def _loopback(size: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        thread = threading.Thread(target=_send, args=(sender, size), name="sender")
        began = time.monotonic()
        thread.start()
        left, room = size, bytearray(PIECE_SIZE)
        while left > 0 and (count := receiver.recv_into(room)):
            left -= count
        took = time.monotonic() - began
        thread.join()
    return size / MIB / took


def _send(sender: socket.socket, size: int) -> None:
    piece = bytes(PIECE_SIZE)
    for begin in range(0, size, PIECE_SIZE):
        sender.sendall(piece[: size - begin])
