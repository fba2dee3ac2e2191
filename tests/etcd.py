"""etcd itself for tests: one member, in a folder of the test, with short times of its own.

Touches  subprocesses, local TCP ports, the folder that it is given.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from programs import Server, free_port

__all__ = ["EtcdServer", "need_etcd"]

READY: Final = "ready to serve client requests"


def need_etcd() -> None:
    """Skip where etcd is not installed; in CI it must be."""
    reasons = []
    if shutil.which("etcd") is None:
        reasons.append("etcd is not installed (Debian: etcd-server)")
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        reasons.append("aiohttp is not installed (the extra `election`)")
    if reasons and os.environ.get("CI") == "true":
        pytest.fail("; ".join(reasons))
    if reasons:
        pytest.skip("; ".join(reasons))


class EtcdServer:
    """A member that can be stopped and started again at the same port, with what it has."""

    def __init__(self, folder: Path, *arguments: str, scheme: str = "http", host: str = "127.0.0.1") -> None:
        need_etcd()
        self._folder = folder
        self._arguments = arguments
        self._scheme = scheme
        self._port = free_port()
        self._peer_port = free_port()
        self.address = f"{host}:{self._port}"
        self._server: Server | None = None
        self.start()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def start(self) -> None:
        url, peer = f"{self._scheme}://{self.address}", f"http://127.0.0.1:{self._peer_port}"
        self._server = Server(
            "etcd",
            [
                "etcd",
                f"--data-dir={self._folder}",
                f"--listen-client-urls={url}",
                f"--advertise-client-urls={url}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--heartbeat-interval=20",  # the shortest lease is 15 of them
                "--election-timeout=200",
                *self._arguments,
            ],
            self.address,
            READY,
        )

    def stop(self) -> None:
        """Orderly, as a restart is."""
        self.server.stop()

    def kill(self) -> None:
        """As a crash would."""
        self.server.kill()
