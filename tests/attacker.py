"""Hostile peers as a process of their own: what they work is neither the server's time nor its memory.

    python tests/attacker.py

Reads one line for each attack, its name, port, connections and requests of each. Writes a line when all of it is sent,
and, where it asks for answers, answered; then it stays connected until the next line.
"""

import contextlib
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks import ATTACKS, Attack, ping

PATIENCE_S = 60.0
LAST = 8_888_888  # opaque of the request behind all others
DRIPS = 200  # bytes that come one by one


def attack(one: Attack, port: int, connections: int, requests: int, stack: contextlib.ExitStack) -> None:
    """Connect, send, wait for the last answer; the connections stay in the stack."""
    threads = [
        threading.Thread(target=_peer, args=(one, port, number, requests, stack), daemon=True)
        for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


def _peer(one: Attack, port: int, number: int, requests: int, stack: contextlib.ExitStack) -> None:
    with contextlib.suppress(OSError, EOFError):
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = [one.make(number * 1000 + asked) for asked in range(1 if one.how == "hold" else requests)]
        data = b"".join(frames)
        if one.how == "drip":
            for byte in data[:DRIPS]:
                peer.sendall(bytes([byte]))
            data = data[DRIPS:]
        if one.how == "unread":
            peer.settimeout(2)  # the server reads no more, or has it all
            peer.sendall(data)
        elif all(map(_is_whole, frames)):
            _converse(peer, data + ping(LAST))
        else:
            peer.sendall(data)


def _converse(peer: socket.socket, data: bytes) -> None:
    """Send, and read at the same time, until the last answer. EOFError when the server has hung up."""
    peer.setblocking(False)
    rest, received = memoryview(data), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            for _, events in selector.select(PATIENCE_S) or _overdue():
                if events & selectors.EVENT_WRITE:
                    rest = rest[peer.send(rest[: 1 << 18]) :]
                    if not rest:
                        selector.modify(peer, selectors.EVENT_READ)
                if events & selectors.EVENT_READ:
                    received += peer.recv(1 << 18) or _over()
                    if any(b'"opaque":%d' % LAST in answer for answer in _answers(received)):
                        return


def _answers(received: bytearray) -> Iterator[bytes]:
    """The heads of whole answers, which are taken out."""
    while len(received) >= 8:
        (size,) = struct.unpack_from(">I", received)
        if len(received) < 4 + size:
            return
        yield bytes(received[8:408])
        del received[: 4 + size]


def _over() -> bytes:
    raise EOFError


def _overdue() -> list[tuple[selectors.SelectorKey, int]]:
    raise EOFError


def _is_whole(data: bytes) -> bool:
    while len(data) >= 4:
        size = 4 + int.from_bytes(data[:4], "big")
        if len(data) < size:
            return False
        data = data[size:]
    return not data


def main() -> None:
    by_name = {one.name: one for one in ATTACKS}
    stack = contextlib.ExitStack()
    for line in sys.stdin:
        stack.close()
        if line.strip():
            port, connections, requests, name = line.rstrip("\n").split(" ", 3)
            attack(by_name[name], int(port), int(connections), int(requests), stack)
        print("done", flush=True)


if __name__ == "__main__":
    main()
