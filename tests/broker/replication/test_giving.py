"""The master's end: where it begins, what it gives, whom it hangs up on."""

import pytest

from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.giving import NEWS_PAUSE_S, NOTHING, GivingBounds, GivingLink, Piece
from aerobee_proto.errors import FormatError
from aerobee_proto.ha import encode_confirmed, encode_report, encode_transfer_head
from aerobee_store.store import MessageStore
from broker.replication.ends import FILE_SIZE, Ends, filled
from store.memory_io import MemoryIo
from store.workload import open_store


def link(store: MessageStore, *, piece_size: int = 4096, bytes_per_s: int | None = None) -> GivingLink:
    bounds = GivingBounds(piece_size, 5.0, 20.0, bytes_per_s)
    return GivingLink(store, FILE_SIZE, lambda: bounds, 0.0)


def fault_of(giving: GivingLink, *reports: int) -> LinkFault:
    for report in reports[:-1]:
        giving.received(encode_report(report), 0.0)
    with pytest.raises(LinkFault) as met:
        giving.received(encode_report(reports[-1]), 0.0)
    return met.value


def test_nothing_leaves_before_the_slave_has_spoken() -> None:
    giving = link(filled().store)
    assert giving.next_piece(100.0) is None
    giving.received(encode_report(0)[:7], 0.0)
    assert giving.next_piece(100.0) is None


def test_an_empty_slave_gets_the_last_file_and_no_piece_crosses_the_end_of_one() -> None:
    ends = Ends(filled().store)
    ends.exchange()
    begin = ends.master.end_offset // FILE_SIZE * FILE_SIZE
    assert ends.pieces[0][0] == begin
    assert ends.giving.acked_offset == ends.slave.end_offset == ends.master.end_offset


def test_a_slave_is_given_what_follows_over_the_ends_of_files() -> None:
    work = filled(size=FILE_SIZE // 2)
    ends = Ends(work.store)
    ends.exchange()
    while work.store.end_offset < 4 * FILE_SIZE:
        work.append()
    work.store.flush_disk()
    ends.exchange()
    assert ends.giving.acked_offset == work.store.end_offset
    assert all(at // FILE_SIZE == (at + size - 1) // FILE_SIZE for at, size in ends.pieces if size)
    assert sum(size for _, size in ends.pieces) == work.store.end_offset


def test_nothing_is_given_that_is_not_on_disk() -> None:
    work = filled(size=1000)
    ends = Ends(work.store)
    ends.exchange()
    safe = work.store.end_offset
    work.append()
    ends.exchange()
    assert ends.giving.next_offset == safe < work.store.end_offset


@pytest.mark.parametrize("way", ["ahead", "lies", "back"])
def test_a_slave_that_says_what_cannot_be_is_not_served(way: str) -> None:
    store = filled().store
    end = store.end_offset
    met = {
        "ahead": lambda: fault_of(link(store), end + 1),
        "lies": lambda: fault_of(link(store), FILE_SIZE, FILE_SIZE + 1),
        "back": lambda: fault_of(link(store), FILE_SIZE, FILE_SIZE - 1),
    }[way]()
    assert met.kind == {"ahead": "ahead"}.get(way, "lies")
    assert bool(met.way_out) == (way == "ahead")


def test_a_slave_that_wants_what_was_deleted_is_told_so() -> None:
    store = open_store(MemoryIo())
    begin = 5 * FILE_SIZE
    source = filled(size=6 * FILE_SIZE).store
    store.append_raw(begin, bytes(source.read_raw(begin, FILE_SIZE)))
    store.flush_disk()
    met = fault_of(link(store), begin - 1)
    assert (met.kind, bool(met.way_out)) == ("too_old", True)


def test_a_slave_of_ours_is_told_what_readers_see_once_and_again_when_it_moves() -> None:
    work = filled(size=1000)
    store = work.store
    giving = link(store, piece_size=FILE_SIZE)
    giving.says_confirmed = True
    giving.received(encode_report(store.end_offset), 0.0)
    assert giving.next_piece(NEWS_PAUSE_S) == Piece(encode_confirmed(store.confirmed_offset), NOTHING)
    assert not giving.has_news
    assert giving.next_piece(NEWS_PAUSE_S) is None
    before = store.confirmed_offset
    work.append()
    store.flush_disk()
    piece = giving.next_piece(0.0)
    assert piece is not None
    assert piece.head == encode_transfer_head(before, len(piece.data))
    while giving.next_piece(0.0) is not None:
        pass
    store.confirm(store.end_offset)
    confirmed = encode_confirmed(store.end_offset)
    assert giving.next_piece(NEWS_PAUSE_S * 0.9) is None  # the next bytes may come with it
    assert giving.next_piece(NEWS_PAUSE_S) == Piece(confirmed, NOTHING)
    begin = store.end_offset
    work.append()
    store.flush_disk()
    store.confirm(store.end_offset)
    piece = giving.next_piece(0.0)
    assert piece is not None
    assert piece.head == encode_confirmed(store.end_offset) + encode_transfer_head(begin, len(piece.data))


def test_others_are_not_told_what_readers_see() -> None:
    work = filled(size=1000)
    giving = link(work.store)
    giving.received(encode_report(work.store.end_offset), 0.0)
    assert giving.next_piece(0.0) is None


def test_garbage_ends_the_link() -> None:
    with pytest.raises(FormatError):
        link(filled().store).received(b"\xff" * 8, 0.0)


def test_a_silent_link_has_heartbeats_and_an_end() -> None:
    store = open_store(MemoryIo())
    giving = link(store)
    giving.received(encode_report(0), 1.0)
    assert giving.next_piece(4.9) is None
    assert giving.wake_in(4.0) == 1.0
    heartbeat = giving.next_piece(5.0)
    assert heartbeat is not None
    assert heartbeat.head + bytes(heartbeat.data) == encode_transfer_head(0, 0)
    assert giving.next_piece(5.1) is None
    giving.check(21.0)
    with pytest.raises(LinkFault, match="nothing was heard"):
        giving.check(21.1)


def test_a_limit_bounds_what_leaves_in_a_second() -> None:
    store = filled().store
    giving = link(store, piece_size=1000, bytes_per_s=10_000)
    giving.received(encode_report(FILE_SIZE), 0.0)
    sent = 0
    for tick in range(101):
        while (piece := giving.next_piece(tick / 100)) is not None:
            sent += len(piece.data)
    assert 10_000 <= sent <= 11_000
    assert 0 < giving.wake_in(1.0) <= 0.1
