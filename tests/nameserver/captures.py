"""Captured traffic of the official nameserver, and a peer that plays it again.

Two sessions of the official programs were captured. In the second one the captures of the broker's start, of a
producer and of a slave follow each other; those of the admin tool come from the first.
"""

import asyncio
import contextlib
import gzip
import json
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_proto.frames import Command, FrameDecoder, decode_command, encode_command

WIRE = Path(__file__).parents[1] / "golden" / "wire"
NAMESERVER_LINKS = ("broker-ns", "slave-ns", "client-ns")


@dataclass(frozen=True)
class Exchange:
    """A request to the official nameserver and its answer."""

    connection: int
    request: bytes
    code: int
    fields: dict[str, str]
    answer: Command


def exchanges(codec: str, scenario: str) -> list[Exchange]:
    """What was asked of the nameserver in one scenario, in order; unanswered requests are left out."""
    with gzip.open(WIRE / codec / f"{scenario}.jsonl.gz", "rt", encoding="utf-8") as lines:
        frames = [line for line in map(json.loads, lines) if "header" in line]
    frames = [line for line in frames if line["link"] in NAMESERVER_LINKS]
    answers = {_key(line): line for line in frames if line["dir"] == "s2c"}
    return [
        Exchange(
            line["conn"],
            b64decode(line["frame_b64"]),
            line["header"]["code"],
            line["header"].get("extFields") or {},
            _command(b64decode(answers[_key(line)]["frame_b64"])),
        )
        for line in frames
        if line["dir"] == "c2s" and _key(line) in answers
    ]


def _key(line: dict[str, Any]) -> tuple[int, int]:
    return line["conn"], line["header"]["opaque"]


def _command(frame: bytes) -> Command:
    (whole,) = FrameDecoder().feed(frame)
    return decode_command(whole)


class Peers:
    """One plain socket for every captured connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, connection: int, request: bytes) -> Command:
        """Send a frame; the next frame that comes back."""
        if connection not in self._streams:
            self._streams[connection] = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams[connection]
        writer.write(request)
        length = await reader.readexactly(4)
        return _command(length + await reader.readexactly(int.from_bytes(length, "big")))

    async def close(self) -> None:
        for _, writer in self._streams.values():
            writer.close()
            with contextlib.suppress(OSError):  # the server may have hung up first, for a reason
                await writer.wait_closed()

    async def is_closed_by(self, connection: int, request: bytes) -> bool:
        """Send bytes that deserve no answer; whether the server hangs up without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._streams[connection] = reader, writer
        writer.write(request)
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True

    async def survives(self, connection: int, request: bytes) -> bool:
        """Send a request that gets no answer, then a question; whether its answer is the first that comes."""
        got = await self.ask(connection, request + encode_command(Command(106, opaque=4711)))
        return (got.code, got.opaque) == (0, 4711)
