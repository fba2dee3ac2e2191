"""The file of epochs: as the official controller mode writes it, durable, and never taken for empty when damaged."""

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.replicas.epochs import (
    ENTRIES_MAX,
    EPOCH_FILE,
    EPOCH_MAX,
    Epoch,
    EpochFile,
    common_end,
    sound_epochs,
)
from store.memory_io import MemoryIo, PowerFailure
from store.workload import ROOT

PATH = ROOT / EPOCH_FILE
BACKUP = PATH.with_name(EPOCH_FILE + ".bak")
# As the official master wrote it in its third mastership.
OFFICIAL = b"3\n1656940087\n1-0\n2-218097\n3-287016\n"
EPOCHS = (Epoch(1, 0), Epoch(2, 218097), Epoch(3, 287016))


def loaded(io: MemoryIo) -> EpochFile:
    epochs = EpochFile(PATH, io)
    epochs.load()
    return epochs


def holding(content: bytes) -> MemoryIo:
    io = MemoryIo()
    io.replace_bytes(PATH, content)
    return io


def text(lines: str, *, count: int | None = None, crc: int | None = None) -> bytes:
    count = lines.count("\n") if count is None else count
    crc = zlib.crc32(lines.encode()) & 0x7FFFFFFF if crc is None else crc
    return f"{count}\n{crc}\n{lines}".encode()


def test_the_official_file_is_read_and_written() -> None:
    assert loaded(holding(OFFICIAL)).entries == EPOCHS
    io = MemoryIo()
    epochs = loaded(io)
    for epoch in EPOCHS:
        epochs.append(*epoch)
    assert io.read_bytes(PATH) == io.read_bytes(BACKUP) == OFFICIAL
    assert epochs.last_epoch == 3


def test_without_a_file_there_was_no_epoch() -> None:
    epochs = loaded(MemoryIo())
    assert epochs.entries == ()
    assert epochs.last_epoch == 0


def test_a_file_without_epochs_and_one_that_says_nothing_of_its_checksum_are_read() -> None:
    assert loaded(holding(b"0\n0\n")).entries == ()
    assert loaded(holding(text("1-0\n2-5\n", crc=0))).entries == (Epoch(1, 0), Epoch(2, 5))


def test_lines_that_end_as_on_windows_are_read() -> None:
    lines = "1-0\r\n2-5\r\n"
    crc = zlib.crc32(lines.encode()) & 0x7FFFFFFF
    assert loaded(holding(f"2\r\n{crc}\r\n{lines}".encode())).entries == (Epoch(1, 0), Epoch(2, 5))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"3",
        b"x\n0\n",
        b"1\nx\n1-0\n",
        text("1-0\n", count=2),
        text("1-0\n2-5\n", crc=12),
        text("2-0\n1-5\n"),
        text("1-5\n2-5\n"),
        text("1-0\n2\n"),
        text("1-0\n2--5\n"),
        text("0-0\n"),
        text(f"{EPOCH_MAX + 1}-0\n"),
        text(f"1-{2**63}\n"),
        "1\n0\n١-٠\n".encode(),
    ],
)
def test_damage_is_an_error_by_name(content: bytes) -> None:
    with pytest.raises(CorruptStore, match=EPOCH_FILE):
        loaded(holding(content))


def test_a_damaged_file_gives_way_to_its_backup_which_is_as_new() -> None:
    io = MemoryIo()
    loaded(io).append(1, 0)
    loaded(io).append(2, 100)
    io.replace_bytes(PATH, b"2\n1\n1-0\n", keep_previous=False)
    assert loaded(io).entries == (Epoch(1, 0), Epoch(2, 100))


@given(st.binary(max_size=60))
def test_any_bytes_are_epochs_or_an_error_by_name(content: bytes) -> None:
    try:
        found = loaded(holding(content)).entries
    except CorruptStore:
        return
    assert sound_epochs(found)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=12))
def test_what_is_kept_always_grows_and_comes_back(steps: list[tuple[int, int]]) -> None:
    io = MemoryIo()
    epochs = loaded(io)
    for epoch, start in steps:
        before = epochs.entries
        try:
            epochs.append(epoch, start)
        except ValueError:
            assert epochs.entries == before
        assert sound_epochs(epochs.entries)
        assert loaded(io).entries == epochs.entries
    if steps:
        gone = epochs.cut(steps[0][1])
        assert all(entry.start_offset >= steps[0][1] for entry in gone)
        assert all(entry.start_offset < steps[0][1] for entry in epochs.entries)
        assert loaded(io).entries == epochs.entries


def test_an_epoch_that_wrote_nothing_leaves_its_place_to_the_next() -> None:
    epochs = loaded(MemoryIo())
    epochs.append(1, 0)
    epochs.append(2, 100)
    epochs.append(4, 100)
    epochs.append(4, 100)
    assert epochs.entries == (Epoch(1, 0), Epoch(4, 100))
    for wrong in ((4, 101), (3, 200), (5, 99)):
        with pytest.raises(ValueError, match="cannot follow"):
            epochs.append(*wrong)


def test_the_oldest_epochs_go_when_there_are_too_many() -> None:
    io = MemoryIo()
    epochs = loaded(io)
    epochs.follow([Epoch(number, number) for number in range(1, ENTRIES_MAX + 1)])
    epochs.append(ENTRIES_MAX + 1, ENTRIES_MAX + 1)
    assert len(epochs.entries) == ENTRIES_MAX
    assert epochs.entries[0] == Epoch(2, 2)
    assert loaded(io).entries == epochs.entries


@pytest.mark.parametrize("change", ["append", "cut", "follow"])
def test_a_power_cut_at_any_step_leaves_the_old_or_the_new_epochs(change: str) -> None:
    after = {
        "append": (*EPOCHS, Epoch(4, 300000)),
        "cut": EPOCHS[:1],
        "follow": (Epoch(1, 0), Epoch(9, 7)),
    }[change]
    for steps in range(100):
        io = holding(OFFICIAL)
        epochs = loaded(io)
        io.stop_after(steps)
        try:
            if change == "append":
                epochs.append(4, 300000)
            elif change == "cut":
                epochs.cut(218097)
            else:
                epochs.follow(after)
        except PowerFailure:
            assert loaded(io.crash()).entries in (EPOCHS, after)
        else:
            assert loaded(io.crash()).entries == after
            assert steps > 1
            return
    raise AssertionError("it never ended")


def test_on_a_real_disk(tmp_path: Path) -> None:
    path = tmp_path / EPOCH_FILE
    for number in range(1, 4):
        epochs = EpochFile(path, DiskIo())
        epochs.load()
        epochs.append(number, number * 10)
    assert path.read_bytes().startswith(b"3\n")


# --- where two logs part, by their epochs --------------------------------------------------------------------


def test_two_logs_part_where_the_newest_epoch_of_both_ends_first() -> None:
    ours, theirs = [Epoch(1, 0), Epoch(2, 100)], [Epoch(1, 0), Epoch(3, 90)]
    assert common_end(ours, 150, theirs, 200) == 90
    assert common_end(theirs, 200, ours, 150) == 90
    assert common_end(ours, 150, ours, 120) == 120
    assert common_end(ours, 150, [Epoch(3, 0)], 200) is None
    assert common_end([], 150, theirs, 200) is None
    assert common_end([Epoch(1, 5)], 150, [Epoch(1, 0)], 200) is None


@settings(max_examples=60)
@given(st.data())
def test_logs_with_a_common_history_part_where_it_ends(data: st.DataObject) -> None:
    """Two brokers take turns as master of what was one log; each keeps what it wrote itself."""
    draw = data.draw
    log, epochs, number = 0, list[Epoch](), 0
    for _ in range(draw(st.integers(1, 4))):
        number += 1
        epochs.append(Epoch(number, log))
        log += draw(st.integers(1, 50))
    sides = []
    for side in range(2):
        mine, end = list(epochs), log
        cut = draw(st.integers(0, 5)) if side else 0  # one side may miss the newest bytes
        end = max(end - cut, mine[-1].start_offset)
        here, common = number + 1 + side, end
        for _ in range(draw(st.integers(0, 3))):
            mine.append(Epoch(here, end))
            here += 2
            end += draw(st.integers(1, 50))
        sides.append((mine, end, common))
    (ours, our_end, our_common), (theirs, their_end, their_common) = sides
    assert common_end(ours, our_end, theirs, their_end) == min(our_common, their_common)
