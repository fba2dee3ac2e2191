"""Store folders made by RocketMQ 5.3.3, unpacked for a test, and their records read in the plainest way."""

import json
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.disk.io import DiskIo
from aerobee_store.index.index import IndexService, KeyedRecord
from aerobee_store.queues.queue_table import QueueTable

GOLDEN = Path(__file__).parents[1] / "golden" / "store"
BLANK_MAGIC = 0xCBD43194
RECORD_MAGICS = (0xDAA320A7, 0xDAA320AB)
ROLLED_BACK = 12
NAMING_CLOCK_MS = 1_700_000_000_123


@cache
def expectation(case: str) -> dict[str, Any]:
    """What the official store made of the case; not to be changed by a test."""
    loaded: dict[str, Any] = json.loads((GOLDEN / case / "expect.json").read_text())
    return loaded


def unpack(case: str, folder: Path) -> Path:
    """A fresh copy of the case's store folder."""
    with tarfile.open(GOLDEN / case / "store.tar.gz") as archive:
        # Not as an argument: the first versions of Python 3.11, as Debian has one, know of none.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)  # archives of this repository
    return folder / "store"


@dataclass(slots=True)
class GoldenLog:
    """The commit log of an unpacked case, read record by record."""

    records: dict[int, StoredRecord]
    begin: int
    end: int

    @classmethod
    def read(cls, root: Path) -> "GoldenLog":
        records: dict[int, StoredRecord] = {}
        files = sorted((root / "commitlog").iterdir())
        end = 0
        for file in files:
            raw, base, position = file.read_bytes(), int(file.name), 0
            while position + 8 <= len(raw):
                size = int.from_bytes(raw[position : position + 4], "big")
                magic = int.from_bytes(raw[position + 4 : position + 8], "big")
                if magic not in RECORD_MAGICS:
                    assert magic in (0, BLANK_MAGIC)
                    break
                records[base + position] = decode_record(raw, position)
                position += size
                end = base + position
        return cls(records, int(files[0].name), end)

    def store_time(self, physical_offset: int, size: int) -> int:
        """Store time of the record at an offset, as the official log answers: -1 for none."""
        record = self.records.get(physical_offset)
        return record.store_timestamp if record and self.begin <= physical_offset < self.end else -1

    def keyed(self) -> list[KeyedRecord]:
        """The records as the index takes them; rolled back ones are not indexed."""
        return [
            (r.topic, r.property_map.get("KEYS"), r.unique_key, offset, r.store_timestamp)
            for offset, r in sorted(self.records.items())
            if r.sys_flag & ROLLED_BACK != ROLLED_BACK
        ]


def open_queues(case: str, root: Path) -> QueueTable:
    """The case's queues, loaded and not yet recovered."""
    file_size = expectation(case)["config"]["mappedFileSizeConsumeQueue"]
    table = QueueTable(root / "consumequeue", file_size, DiskIo())
    table.load()
    return table


def open_index(case: str, folder: Path) -> IndexService:
    """An index with the case's file sizes in `folder`, loaded and not yet recovered."""
    config = expectation(case)["config"]
    index = IndexService(
        folder,
        DiskIo(),
        lambda: NAMING_CLOCK_MS,
        slot_count=config["maxHashSlotNum"],
        entry_limit=config["maxIndexNum"],
    )
    index.load()
    return index
