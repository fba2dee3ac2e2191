"""Audits find what was broken on purpose, and nothing else."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

from pyspark.sql import SparkSession

from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from pipeline.test_archive import records_of
from pyspark_aerobee.jobs.audit import audit_store, is_sound
from pyspark_aerobee.jobs.audit_page import audit_page
from store.workload import message


def test_a_sound_store(spark: SparkSession, store_folder: Path) -> None:
    found = records_of(store_folder)
    logged: list[int] = []
    report = audit_store(spark, str(store_folder), partition_size=32 << 10, advance=logged.append)
    assert is_sound(report)
    assert report["messages"] == 400
    assert report["body_bytes"] == sum(len(r.body) for r in found)
    assert sum(logged) == sum(r.size for r in found)
    assert {one["topic"]: one["messages"] for one in report["topics"]} == {
        "Orders": 134,
        "Payments": 133,
        "%RETRY%g": 133,
    }
    assert sum(one["messages"] for one in report["body_sizes"]) == 400
    shared = [one for one in report["top_keys"] if one["text"] == "shared"]
    assert sum(one["messages"] for one in shared) == sum("shared" in r.keys for r in found)
    reds = {one["topic"]: one["messages"] for one in report["top_tags"] if one["text"] == "red"}
    assert sum(reds.values()) == sum(r.tags == "red" for r in found)
    assert report["hours"][0]["begin_ms"] <= found[0].store_timestamp
    assert json.loads(json.dumps(report)) == report


def test_damage_gaps_and_doubles_are_found(spark: SparkSession, store_folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    found = records_of(root)
    victim = found[77]
    path = root / "commitlog" / f"{victim.physical_offset // (64 << 10) * (64 << 10):020d}"
    _send_twice(root)
    with path.open("r+b") as file:
        file.seek(victim.physical_offset % (64 << 10) + 90)
        file.write(b"\xff\xff\xff\xff")
    report = audit_store(spark, str(root), broker_name="broker-a")
    assert report["findings"] == {
        "damaged_stretches": 1,
        "damaged_bytes": victim.size,
        "gaps": 1,
        "missing_numbers": 1,
        "duplicated_ids": 1,
        "duplicated_messages": 2,
    }
    assert report["damage"][0]["begin"] == victim.physical_offset
    assert report["gaps"] == [
        {
            "topic": victim.topic,
            "broker_name": "broker-a",
            "queue_id": victim.queue_id,
            "begin": victim.queue_offset,
            "end": victim.queue_offset + 1,
        }
    ]
    assert [(one["message_id"], one["messages"]) for one in report["duplicates"]] == [("TWICE-<b>", 2)]
    _check_page(audit_page(report))


def _send_twice(root: Path) -> None:
    config = StoreConfig(
        root=root, commit_log_file_size=64 << 10, consume_queue_file_size=2000, index_slots=97, index_entries=300
    )  # fmt: skip
    store = MessageStore(config, io=DiskIo(), clock=lambda: 1_760_000_000_000)
    store.open()
    for queue_id in (0, 1):
        store.append([message("Orders", queue_id, b"twice", unique_key="TWICE-<b>")])
        store.confirm(store.end_offset)
    store.flush_disk()
    store.close()


class Tags(HTMLParser):
    """Counts what is in a page, and that all of it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "rect", "line"):
            assert self.open.pop() == tag


def _check_page(text: str) -> None:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert not tags.open
    assert tags.seen.count("svg") == 5
    assert tags.seen.count("table") == 3
    assert "script" not in tags.seen
    assert "b" not in tags.seen  # what a message says is text
    assert "TWICE-&lt;b&gt;" in text
