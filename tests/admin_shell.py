"""Many official mqadmin commands in one JVM.

Touches  one subprocess, and a local TCP connection a command.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import official
from programs import Program

__all__ = ["AdminShell"]

START_TIMEOUT_S: Final = 60.0
COMMAND_TIMEOUT_S: Final = 30


class AdminShell:
    """mqadmin of the official tools, told of a nameserver once. To be used in a `with` block."""

    def __init__(self, nameserver: str, folder: Path, credentials: tuple[str, str] | None = None) -> None:
        """`folder` takes the files that commands write beside them, and that of who signs: access key and secret."""
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options += [f"-Drmq.logback.configurationFile={official.JAVA_PROJECT / 'silent-logback.xml'}"]
        options += [f"-Drocketmq.namesrv.addr={nameserver}"]
        if credentials is not None:
            tools = folder / "conf" / "tools.yml"
            tools.parent.mkdir()
            tools.write_text("accessKey: {}\nsecretKey: {}\n".format(*credentials))
            options += [f"-Drocketmq.home.dir={folder}"]
        line = ["java", *options, "-cp", official.classpath(), "interop.AdminShell"]
        self._program = Program("mqadmin shell", line, cwd=folder)
        self._port = int(self._program.wait_line(r"^READY \d+$", START_TIMEOUT_S).split()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.kill()

    def run(self, *words: str, seconds: int = COMMAND_TIMEOUT_S) -> str:
        """Run one command and return everything that it printed; after `seconds` it is interrupted."""
        with socket.create_connection(("127.0.0.1", self._port), COMMAND_TIMEOUT_S) as peer:
            peer.settimeout(2 * seconds + COMMAND_TIMEOUT_S)
            peer.sendall(json.dumps([seconds, *words]).encode() + b"\n")
            with peer.makefile("rb") as stream:
                return stream.read().decode()
