"""A nameserver and a broker together, ours or the official ones, for tests that treat both alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import official
import ours
from programs import Server

__all__ = ["FILE_SIZES", "KINDS", "Cluster", "start_cluster"]

# Small files, so that a few thousand messages fill several of each kind.
FILE_SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
# Each time the official broker goes through all slots of its timer: once a second is a fifth of a core.
TIMER_FLUSH_MS = 60_000
KINDS = ["ours", "official"] if os.environ.get("AEROBEE_INTEROP_CONTROL") == "1" else ["ours"]


@dataclass(slots=True)
class Cluster:
    """One nameserver and one broker, broker-a of DefaultCluster, that serve."""

    kind: str
    nameserver: Server
    broker: Server
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"


@contextlib.contextmanager
def start_cluster(kind: str, folder: Path, config: Mapping[str, object] | None = None) -> Iterator[Cluster]:
    """Nameserver and broker of one kind with small store files; both are gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**FILE_SIZES, **(config or {})}
    with contextlib.ExitStack() as stack:
        if kind == "ours":
            nameserver = stack.enter_context(ours.start_nameserver())
            broker = stack.enter_context(ours.start_broker(folder, nameserver.address, config=settings))
        else:
            nameserver = stack.enter_context(official.start_nameserver(folder))
            settings = {"timerFlushIntervalMs": TIMER_FLUSH_MS, **settings}
            broker = stack.enter_context(official.start_broker(folder, nameserver.address, config=settings))
        yield Cluster(kind, nameserver, broker, folder)
