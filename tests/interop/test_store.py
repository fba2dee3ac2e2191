"""A store that we wrote opens in the official 5.3.3 store, which gives the same answers as ours does.

Both open a copy of the same folder: after an orderly end, and as it lies after a crash.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import official
from aerobee_proto.javahash import tag_hash
from aerobee_proto.properties import encode_properties
from aerobee_proto.records import decode_records, encode_host
from aerobee_store.disk.io import DiskIo
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import NewMessage, PutStatus
from clusters import FILE_SIZES, Cluster
from plain_remoting import make_topic

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

MESSAGES = 3_000
FIRST_TIME_MS = 1_700_000_000_000
BLANK_MAGIC = 0xCBD43194
UNLIMITED = 1 << 27
KEYS_ASKED = 40


@pytest.mark.parametrize("end", ["orderly", "crash"])
def test_the_official_store_reads_what_our_store_wrote(tmp_path: Path, end: str) -> None:
    store = open_store(tmp_path / "store")
    asked = fill(store)
    if end == "orderly":
        store.close()
    left = copy(tmp_path / "store", tmp_path / "left")
    assert (left / "abort").exists() == (end == "crash")
    if end == "crash":
        store.close()
    assert_same_answers(left, tmp_path, asked)


@pytest.mark.parametrize("end", ["orderly", "crash"])
def test_the_official_store_reads_what_our_broker_stored(
    own_cluster: Cluster, tmp_path: Path, end: str
) -> None:
    if own_cluster.kind == "official":
        pytest.skip("the official store reads its own files without our test")
    make_topic(own_cluster.nameserver.address, own_cluster.broker.address, "Kept")
    sent = official.judge(
        "send",
        namesrv=own_cluster.nameserver.address,
        topic="Kept",
        modes="sync,async,batch",
        each=1000,
        run="kept",
    )
    assert (sent["failed"], sent.get("firstFailure"), sent["distinct"]) == (0, None, 3000)
    if end == "orderly":
        assert own_cluster.broker.stop() == 0
    else:
        own_cluster.broker.kill()
    left = copy(own_cluster.store, tmp_path / "left")
    asked = [f"Kept\tkept-{mode}-{i}" for mode in ("sync", "async", "batch") for i in range(0, 1000, 97)]
    theirs = assert_same_answers(left, tmp_path, asked)
    assert theirs["sums"]["byTag"] == sent["byTag"]
    assert theirs["sums"]["duplicates"] == 0


def assert_same_answers(left: Path, folder: Path, asked: list[str]) -> dict[str, Any]:
    """Open one copy of the folder officially and one by us; the official report."""
    asked = [*asked, "Topic0\tno such key", "NoTopic\tkey"]
    (folder / "keys").write_text("\n".join(asked))
    where: dict[str, Any] = {"store": copy(left, folder / "theirs"), "keys": folder / "keys"}
    theirs = official.judge("store-read", **where, **FILE_SIZES)
    assert (theirs["loaded"], theirs["behind"], theirs["bad"]) == (True, 0, [])
    assert theirs["records"] == list(walk(left / "commitlog"))
    assert theirs["maxPhysicalOffset"] == sum(theirs["records"][-1][:2])
    store = open_store(copy(left, folder / "mine"))
    try:
        for name, found in theirs["queues"].items():
            topic, queue_id = name.split("\t")
            assert found == queue_answers(store, topic, int(queue_id), theirs["largestStoreTimestamp"]), name
        held = {f"{topic}\t{i}" for topic in store.topics.names() for i in store.topics.queue_ids(topic)}
        assert held <= theirs["queues"].keys()
        assert theirs["queries"] == {question: query_answers(store, question) for question in asked}
        assert sum(map(len, theirs["queries"].values())) >= len(asked) - 2
    finally:
        store.close()
    return theirs


def queue_answers(store: MessageStore, topic: str, queue_id: int, last_time_ms: int) -> dict[str, Any]:
    first = store.reading.get_message(
        "g", topic, queue_id, store.reading.min_offset(topic, queue_id), 32, UNLIMITED, None
    )
    return {
        "min": store.reading.min_offset(topic, queue_id),
        "max": store.reading.max_offset(topic, queue_id),
        "entries": entries(store, topic, queue_id),
        "get": [GetStatus(first.status).name, first.next_offset, first.count, first.size],
        "atStart": store.reading.offset_by_time(topic, queue_id, 0, False),
        "atEnd": store.reading.offset_by_time(topic, queue_id, last_time_ms + 1, False),
        "earliest": store.reading.earliest_time(topic, queue_id),
    }


def entries(store: MessageStore, topic: str, queue_id: int) -> list[list[int]]:
    """Every message of a queue as [physical offset, size, tag hash], read the way a consumer reads."""
    found: list[list[int]] = []
    offset = store.reading.min_offset(topic, queue_id)
    while offset < store.reading.max_offset(topic, queue_id):
        got = store.reading.get_message("g", topic, queue_id, offset, 32, UNLIMITED, None)
        for record in decode_records(b"".join(got.body)):
            found.append([record.physical_offset, record.size, tag_hash(record.tags)])
        assert got.next_offset > offset
        offset = got.next_offset
    return found


def query_answers(store: MessageStore, question: str) -> list[list[int]]:
    topic, key = question.split("\t")
    found = store.keys.query(topic, key, 32, 0, (1 << 63) - 1)
    return [[record.physical_offset, record.size] for body in found.body for record in decode_records(body)]


def open_store(root: Path) -> MessageStore:
    config = StoreConfig(
        root=root,
        commit_log_file_size=FILE_SIZES["mappedFileSizeCommitLog"],
        consume_queue_file_size=FILE_SIZES["mappedFileSizeConsumeQueue"],
        index_slots=FILE_SIZES["maxHashSlotNum"],
        index_entries=FILE_SIZES["maxIndexNum"],
    )
    ticks = itertools.count(FIRST_TIME_MS, 7)
    store = MessageStore(config, io=DiskIo(), clock=lambda: next(ticks))
    store.open()
    return store


def fill(store: MessageStore) -> list[str]:
    """Append messages of every kind, alone and in groups; questions (topic, key) that have answers."""
    rng = random.Random(7)
    made = [message(rng, i) for i in range(MESSAGES)]
    for first in range(0, MESSAGES, 50):
        group = made[first : first + 50]
        appended = store.append(group) if first % 100 else [*map(store.append, ([m] for m in group))][-1]
        assert {one.status for one in appended} == {PutStatus.PUT_OK}
        store.flush_disk()
        store.confirm(store.end_offset)
    store.flush_queues()
    chosen = rng.sample(range(MESSAGES), KEYS_ASKED)
    return [f"Topic{i % 3}\t{key}" for i in chosen for key in (f"key{i}", f"shared{i % 50}", f"{i:032X}")]


def message(rng: random.Random, i: int) -> NewMessage:
    topic, tag = f"Topic{i % 3}", rng.choice(["TagA", "TagB", "überall", None])
    properties = {"KEYS": f"key{i} shared{i % 50}", "UNIQ_KEY": f"{i:032X}", "text": "消息 😀"}
    if tag is not None:
        properties["TAGS"] = tag
    host = encode_host("2001:db8::7" if i % 5 == 0 else "192.0.2.7", 1000 + i)
    return NewMessage(
        topic,
        rng.randrange(4),
        i,
        0x10 if i % 5 == 0 else 0,
        FIRST_TIME_MS + i,
        host,
        encode_host("127.0.0.1", 10911),
        0,
        0,
        rng.randbytes(rng.randrange(1, 2_000)),
        encode_properties(properties).encode(),
        tag_hash(tag),
        properties["KEYS"],
        properties["UNIQ_KEY"],
    )


def walk(folder: Path) -> Iterator[list[Any]]:
    """[physical offset, size, start of SHA-256] of each record as the bytes lie, blank ones as such."""
    for path in sorted(folder.iterdir()):
        data, position = path.read_bytes(), 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, position)
            if size == 0:
                break
            record = data[position : position + size]
            mark = "blank" if magic == BLANK_MAGIC else hashlib.sha256(record).hexdigest()[:16]
            yield [int(path.name) + position, size, mark]
            position += size


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target
