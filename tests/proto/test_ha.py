"""The replication link's bytes: as the official pair was captured, cut anywhere, and damaged."""

import gzip
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.errors import FormatError
from aerobee_proto.ha import (
    OFFSET_MAX,
    ROOM_SIZE,
    TRANSFER_SIZE_MAX,
    Confirmed,
    ReportDecoder,
    Transfer,
    TransferDecoder,
    encode_confirmed,
    encode_report,
    encode_transfer_head,
)

WIRE = Path(__file__).resolve().parents[1] / "golden" / "replication" / "wire"
CUTS: dict[str, Callable[[bytes], list[bytes]]] = {
    "whole": lambda data: [data],
    "in sevens": lambda data: [data[at : at + 7] for at in range(0, len(data), 7)],
    "in thousands": lambda data: [data[at : at + 1000] for at in range(0, len(data), 1000)],
}
SCENARIOS = sorted(path.name.partition(".")[0] for path in WIRE.glob("*.gz"))


def captured(scenario: str) -> tuple[list[bytes], list[dict[str, int]], list[bytes], list[dict[str, int]]]:
    """What the slave sent, and the master; each with what the capture says that it means."""
    said: dict[str, tuple[list[bytes], list[dict[str, int]]]] = {"c2s": ([], []), "s2c": ([], [])}
    with gzip.open(WIRE / f"{scenario}.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if line.get("link") == "ha" and "ha" in line:
                frames, meanings = said[line["dir"]]
                frames.append(b64decode(line["frame_b64"]))
                meanings.append(line["ha"])
    return *said["c2s"], *said["s2c"]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_the_official_pair_says_is_understood(
    scenario: str, cut: Callable[[bytes], list[bytes]]
) -> None:
    reports, reported, transfers, transferred = captured(scenario)
    decoder = TransferDecoder()
    said = [one for piece in cut(b"".join(transfers)) for one in decoder.feed(piece)]
    found = [one for one in said if isinstance(one, Transfer)]
    assert found == said
    assert [(one.offset, len(one.data)) for one in found] == [
        (meant["phyOffset"], meant["size"]) for meant in transferred
    ]
    assert [encode_transfer_head(one.offset, len(one.data)) + one.data for one in found] == transfers
    newest = [ReportDecoder().feed(report) for report in reports]
    assert newest == [meant["reportOffset"] for meant in reported]
    assert [encode_report(offset or 0) for offset in newest] == reports


def test_only_the_newest_whole_report_counts() -> None:
    decoder = ReportDecoder()
    assert decoder.feed(encode_report(5)[:3]) is None
    assert decoder.feed(encode_report(5)[3:] + encode_report(9) + encode_report(11)[:7]) == 9
    assert decoder.feed(encode_report(11)[7:]) == 11


@pytest.mark.parametrize(
    "head",
    [
        encode_transfer_head(-1, 0),
        encode_transfer_head(0, -1),
        encode_transfer_head(0, TRANSFER_SIZE_MAX + 1),
        encode_transfer_head(OFFSET_MAX, 1),
        b"HTTP/1.1 400",
    ],
)
def test_what_no_master_says_ends_the_link(head: bytes) -> None:
    with pytest.raises(FormatError):
        TransferDecoder().feed(head)


def test_a_slave_that_reports_less_than_nothing_ends_the_link() -> None:
    with pytest.raises(FormatError):
        ReportDecoder().feed(encode_report(-1))


TRANSFERS = st.lists(st.tuples(st.integers(0, 2**40), st.binary(max_size=40)), max_size=8)


@given(TRANSFERS, st.integers(1, 50))
def test_any_cut_gives_the_same_transfers(transfers: list[tuple[int, bytes]], size: int) -> None:
    stream = b"".join(encode_transfer_head(offset, len(data)) + data for offset, data in transfers)
    decoder = TransferDecoder()
    found = [one for at in range(0, len(stream), size) for one in decoder.feed(stream[at : at + size])]
    assert found == [Transfer(*one) for one in transfers]


SAID = st.lists(
    st.builds(Confirmed, st.integers(0, OFFSET_MAX))
    | st.builds(Transfer, st.integers(0, 2**40), st.binary(max_size=40)),
    max_size=8,
)


@given(SAID, st.integers(1, 50))
def test_what_readers_see_is_said_between_transfers(said: list[Confirmed | Transfer], size: int) -> None:
    stream = b"".join(
        encode_confirmed(one.offset)
        if isinstance(one, Confirmed)
        else encode_transfer_head(one.offset, len(one.data)) + one.data
        for one in said
    )
    decoder = TransferDecoder(says_confirmed=True)
    found = [one for at in range(0, len(stream), size) for one in decoder.feed(stream[at : at + size])]
    assert found == said


def test_a_master_that_has_not_agreed_to_it_says_nothing_of_its_readers() -> None:
    with pytest.raises(FormatError):
        TransferDecoder().feed(encode_confirmed(5))
    with pytest.raises(FormatError):
        TransferDecoder(says_confirmed=True).feed(encode_confirmed(-5))


@given(st.binary(max_size=200))
def test_any_bytes_give_transfers_and_reports_or_one_error(data: bytes) -> None:
    for decoder in (TransferDecoder(), TransferDecoder(says_confirmed=True), ReportDecoder()):
        try:
            decoder.feed(data)
        except FormatError:
            continue


@pytest.mark.parametrize("read_size", [1000, 70_000, ROOM_SIZE])
def test_a_long_transfer_is_given_in_parts_that_follow_each_other(read_size: int) -> None:
    data = bytes(range(256)) * (TRANSFER_SIZE_MAX // 256)
    stream = encode_transfer_head(1000, len(data)) + data + encode_transfer_head(5, 3) + b"abc"
    decoder, parts, at = TransferDecoder(), list[Transfer](), 0
    while at < len(stream):
        room = decoder.room()
        piece = stream[at : at + min(read_size, len(room))]
        room[: len(piece)] = piece
        at += len(piece)
        for said in decoder.came(len(piece)):
            assert isinstance(said, Transfer)
            parts.append(Transfer(said.offset, bytes(said.data)))
    *long, last = parts
    assert last == Transfer(5, b"abc")
    assert b"".join(one.data for one in long) == data
    assert [one.offset for one in long] == [
        1000 + sum(len(one.data) for one in long[:n]) for n in range(len(long))
    ]
    assert min(len(one.data) for one in long[:-1]) >= 1 << 16, "smaller parts are not worth it"
