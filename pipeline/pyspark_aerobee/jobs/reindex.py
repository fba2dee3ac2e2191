"""Reindex: the key index of a store, built again from its log, in parallel, byte for byte as a broker writes it.

Touches  the log, reading; the target folder, which must be seen by all executors (one machine, or a shared disk).

    reindex(spark, "/data/store", "/data/index.new")
    python -m pyspark_aerobee.jobs.reindex --path /data/store /data/index.new

A broker builds its index again by itself when it is gone, in one thread and before it serves. This does it beside a
running broker, or on a copy: stop the broker, put the new folder in the place of `index`, start it; what was stored
meanwhile it adds itself.

Two steps: tasks hash the keys of parts of the log; then each index file is made by one task out of the hashes that
belong into it. Names of index files are times: here that of the first message in the file.

Invariants
- The target has whole files only: they are made in a folder beside it and moved when all are done.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee_store.disk.io import DiskIo
from aerobee_store.index.index_file import IndexFile, index_file_size
from aerobee_store.offline.folder import StoreFolder
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.folder import open_folder, open_store
from pyspark_aerobee.jobs.launch import Advance, add_option_argument, main_of, run_tasks, session
from pyspark_aerobee.store_plan import PARTITION_SIZE, StorePartition, StoreQuery, plan
from pyspark_aerobee.store_read import Damage, read_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReindexReport", "reindex"]

SLOTS: Final = 5_000_000
ENTRIES: Final = 20_000_000
_PUT_STEP: Final = 1 << 20  # keys put together
_KEY: Final = np.dtype([("hash", "<i8"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])

Keys = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ReindexReport:
    """What a run did."""

    index: str
    files: int
    keys: int
    damaged: int  # stretches of the log that hold no record that can be proven
    took_ms: int


@dataclass(frozen=True, slots=True)
class _File:
    """One index file to be made: the pieces of hashed keys that belong into it (path, begin, end)."""

    name: str
    pieces: tuple[tuple[str, int, int], ...]


def reindex(
    spark: "SparkSession",
    address: str,
    target: Path,
    *,
    slots: int = SLOTS,
    entries: int = ENTRIES,
    partition_size: int = PARTITION_SIZE,
    advance: Advance | None = None,
) -> ReindexReport:
    """Build the index of the store at `address` in the folder `target`, which must not have files.

    `slots` and `entries` are the broker's maxHashSlotNum and maxIndexNum. `advance` is told bytes of the log.
    OptionError: the target is in use.
    """
    begun = time.monotonic()
    if target.exists() and any(target.iterdir()):
        raise OptionError("target", str(target), "there are files in it; name a new folder")
    building = target.with_name(target.name + ".building")
    shutil.rmtree(building, ignore_errors=True)  # of a run that was killed
    (building / "keys").mkdir(parents=True)
    store = open_store(address)
    partitions = plan(store, StoreQuery(system_topics=True), partition_size=partition_size).partitions
    hasher = _Hasher(address, building / "keys")
    hashed = run_tasks(spark, hasher, list(enumerate(partitions)), lambda found: found.size, advance)
    files = _files(building / "keys", [part.keys for part in hashed], entries - 1)
    run_tasks(spark, _Maker(building, slots, entries), files)
    shutil.rmtree(building / "keys")
    if target.exists():
        target.rmdir()
    building.rename(target)
    keys = sum(part.keys for part in hashed)
    damaged = sum(part.damaged for part in hashed)
    return ReindexReport(str(target), len(files), keys, damaged, round((time.monotonic() - begun) * 1000))


@dataclass(frozen=True, slots=True)
class _Hashed:
    """What one task hashed: keys, stretches that were damaged, bytes of the log."""

    keys: int
    damaged: int
    size: int


class _Hasher:
    """The keys of one partition of the log, into one file."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder

    def __call__(self, numbered: tuple[int, StorePartition]) -> _Hashed:
        number, partition = numbered
        store = StoreFolder(open_folder(self._address))
        count = damaged = size = 0
        fresh = self._folder / f"{number}.{time.monotonic_ns()}"
        with fresh.open("wb") as file:
            for found in read_partition(store, partition, StoreQuery(system_topics=True)):
                if isinstance(found, Damage):
                    damaged += 1
                    continue
                keys = found.stretch.keys()
                packed = np.empty(len(keys.hashes), _KEY)
                packed["hash"], packed["physical_offset"] = keys.hashes, keys.physical_offsets
                packed["store_timestamp"] = keys.store_timestamps
                file.write(packed.tobytes())
                count += len(packed)
                size += int(found.stretch.sizes.sum())
        fresh.rename(_keys_path(self._folder, number))
        return _Hashed(count, damaged, size)


def _keys_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.keys"


def _files(folder: Path, counts: Sequence[int], capacity: int) -> list[_File]:
    """Which keys belong into which index file: each but the last is full."""
    files: list[_File] = []
    pieces: list[tuple[str, int, int]] = []
    room = capacity
    for number, count in enumerate(counts):
        at = 0
        while at < count:
            took = min(room, count - at)
            pieces.append((str(_keys_path(folder, number)), at, at + took))
            at, room = at + took, room - took
            if not room:
                files.append(_File(_name(pieces, files), tuple(pieces)))
                pieces, room = [], capacity
    if pieces:
        files.append(_File(_name(pieces, files), tuple(pieces)))
    return files


def _name(pieces: Sequence[tuple[str, int, int]], before: Sequence[_File]) -> str:
    """The local time of the first message, as brokers write times into names; later than the name before."""
    path, begin, _ = pieces[0]
    at_ms = int(_read_keys(path, begin, begin + 1)["store_timestamp"][0])
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).astimezone()
    name = f"{moment:%Y%m%d%H%M%S}{at_ms % 1000:03d}"
    if before and name <= before[-1].name:
        return f"{int(before[-1].name) + 1:017d}"
    return name


def _read_keys(path: str, begin: int, end: int) -> Keys:
    return np.fromfile(path, _KEY, count=end - begin, offset=begin * _KEY.itemsize)


class _Maker:
    """One index file out of hashed keys."""

    def __init__(self, folder: Path, slots: int, entries: int) -> None:
        self._folder = folder
        self._slots = slots
        self._entries = entries

    def __call__(self, file: _File) -> None:
        path = self._folder / file.name
        path.unlink(missing_ok=True)  # of a task that failed
        size = index_file_size(self._slots, self._entries)
        index = IndexFile(
            DiskIo().open_file(path, size, create=True, writable=True), self._slots, self._entries
        )
        try:
            for source, begin, end in file.pieces:
                for low in range(begin, end, _PUT_STEP):
                    keys = _read_keys(source, low, min(low + _PUT_STEP, end))
                    index.put(keys["hash"], keys["physical_offset"], keys["store_timestamp"])
            index.sync()
        finally:
            index.close()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="reindex", description="Build the key index of a store again.")
    parser.add_argument("--path", required=True, help="the store folder")
    parser.add_argument("target", type=Path, help="a new folder for the index")
    parser.add_argument("--slots", type=int, default=SLOTS, help="the broker's maxHashSlotNum")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="the broker's maxIndexNum")
    add_option_argument(parser)

    def work(arguments: argparse.Namespace) -> Mapping[str, Any]:
        with session("reindex", arguments.master) as spark:
            report = reindex(
                spark, arguments.path, arguments.target, slots=arguments.slots, entries=arguments.entries
            )
        return asdict(report)

    return main_of(work, parser)


if __name__ == "__main__":
    sys.exit(main())
