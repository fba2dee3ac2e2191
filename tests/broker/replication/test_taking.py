"""The slave's end: what it takes, what it says of it, and which masters it does not follow."""

import gzip
import hashlib
import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.taking import TakingBounds, TakingLink
from aerobee_proto.errors import FormatError
from aerobee_proto.ha import ReportDecoder, encode_report, encode_transfer_head
from aerobee_store.store import MessageStore
from broker.replication.ends import FILE_SIZE, Ends, filled
from store.memory_io import MemoryIo
from store.workload import open_store

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "replication"


def transfer(offset: int, data: bytes) -> bytes:
    return encode_transfer_head(offset, len(data)) + data


def link(store: MessageStore, file_size: int = FILE_SIZE) -> TakingLink:
    return TakingLink(store, file_size, lambda: store.end_offset, lambda: TakingBounds(5.0, 20.0), 0.0)


def reports_in(data: bytes) -> list[int | None]:
    return [ReportDecoder().feed(data[at : at + 8]) for at in range(0, len(data), 8)]


@pytest.mark.parametrize("size", [1, 100, 3000, 1 << 20])
def test_a_link_cut_anywhere_takes_everything(size: int) -> None:
    source = filled().store
    begin, end = 0, source.end_offset
    stream = b""
    while begin < end:
        piece = bytes(source.read_raw(begin, 1000))
        stream += transfer(begin, piece)
        begin += len(piece)
    store = open_store(MemoryIo())
    taking = link(store)
    assert taking.opened(0.0) == encode_report(0)
    said = b"".join(taking.received(stream[at : at + size], 0.0) for at in range(0, len(stream), size))
    reports = reports_in(said)
    assert reports == sorted(set(reports), key=lambda offset: offset or 0)
    assert reports[-1] == store.end_offset == end


def test_reports_say_what_is_safe_and_no_more() -> None:
    ends = Ends(filled(size=500).store)
    taking = ends.taking
    data = bytes(ends.master.read_raw(0, 10_000))
    assert taking.received(transfer(0, data), 0.0) == b""  # in the log, not on the disk
    ends.slave.flush_disk()
    assert taking.report(0.0) == encode_report(ends.slave.end_offset)
    assert taking.report(0.0) == b""
    assert taking.tick(4.9) == b""
    assert taking.tick(5.0) == encode_report(ends.slave.end_offset)


def test_part_of_a_record_is_not_reported() -> None:
    source = filled(size=500).store
    store = open_store(MemoryIo())
    taking = link(store)
    data = bytes(source.read_raw(0, 10_000))
    assert taking.received(transfer(0, data[:50]), 0.0) == b""
    assert taking.received(transfer(50, data[50:]), 0.0) == encode_report(len(data))


@pytest.mark.parametrize("offset", [0, 1, 1 << 40])
def test_a_master_that_goes_on_elsewhere_is_not_followed(offset: int) -> None:
    ends = Ends(filled().store)
    ends.exchange()
    end = ends.slave.end_offset
    for data in (b"", b"x" * 100):
        with pytest.raises(LinkFault, match="this log wants"):
            ends.taking.received(transfer(offset, data), 0.0)
    assert ends.slave.end_offset == end


def test_bytes_that_are_no_log_are_not_taken() -> None:
    source = filled().store
    data = bytearray(source.read_raw(0, 10_000))
    random = Random(1)
    for _ in range(50):
        damaged = bytearray(data)
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
        store = open_store(MemoryIo())
        taking = link(store)
        refused: LinkFault | None = None
        try:
            taking.received(transfer(0, bytes(damaged)), 0.0)
        except LinkFault as met:
            refused = met
        if refused is None:  # what no checksum covers, or what follows the last whole record
            assert store.end_offset <= len(data)
        else:
            assert (refused.kind, store.end_offset) == ("rubbish", 0)
            assert refused.way_out


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 12])
def test_rubbish_ends_the_link(said: bytes) -> None:
    with pytest.raises(FormatError):
        link(open_store(MemoryIo())).received(said, 0.0)


def test_a_silent_master_is_given_up() -> None:
    taking = link(open_store(MemoryIo()))
    taking.opened(0.0)
    assert taking.wake_in(0.0) == 5.0
    taking.tick(20.0)
    with pytest.raises(LinkFault, match="nothing was heard"):
        taking.tick(20.1)


def test_our_slave_has_the_log_of_the_official_one_after_all_that_their_master_sent() -> None:
    """Thirteen captured scenarios: an empty slave, ends of files, restarts and kills of both, a slow link."""
    expected = json.loads((GOLDEN / "expect.json").read_text())["slave"]["messageArea"]
    store = open_store(MemoryIo(), commit_log_file_size=65_536)
    taking = link(store, 65_536)
    said = taking.opened(0.0)
    for frame in masters_frames():
        if ReportDecoder().feed(frame[:8]) == store.next_raw_offset or not store.end_offset:
            said += taking.received(frame, 0.0)
    store.flush_disk()
    store.confirm(store.end_offset)
    store.check()
    begin, end = store.min_physical_offset, store.end_offset
    assert (begin, end) == (expected["begin"], expected["end"])
    area = b""
    while begin < end:
        area += (piece := bytes(store.read_raw(begin, 1 << 20)))
        begin += len(piece)
    assert hashlib.sha256(area).hexdigest() == expected["sha256"]
    assert (reports_in(said)[0], reports_in(said)[-1]) == (0, end)


def masters_frames() -> Iterator[bytes]:
    for path in sorted((GOLDEN / "wire").glob("*.gz")):
        if path.name >= "14":
            return
        with gzip.open(path, "rt") as lines:
            for line in map(json.loads, lines):
                if line.get("link") == "ha" and line["dir"] == "s2c" and "ha" in line:
                    yield b64decode(line["frame_b64"])
