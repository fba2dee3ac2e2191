"""What `aerobee store verify` says of keys that the index has lost: a store that answers no query by them looks whole
otherwise."""

from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.index.index_file import ENTRY, ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT
from aerobee_store.offline.inspection import Inspection
from aerobee_store.offline.verify import Verified, verify
from aerobee_store.store import MessageStore
from store.workload import Clock, config, message

COUNT = 150  # messages; three keys each
KEYS = 3 * COUNT
PLACE = Struct(">q")


def with_keys(root: Path, **changes: Any) -> MessageStore:
    """An open store whose keys are in four files."""
    store = MessageStore(config(root, **changes), io=DiskIo(), clock=Clock())
    store.open()
    for number in range(COUNT):
        store.append([message(keys=f"k{number} all", unique_key=f"U{number}")])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    while store.keys.backlog:
        store.keys.build(64)
    return store


def files_of(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def entry_at(path: Path, number: int, slots: int = 50) -> tuple[int, int]:
    """Where in the file the entry with this number is, and the place of its record."""
    at = HEADER_SIZE + slots * SLOT.size + number * ENTRY_SIZE
    return at, ENTRY.unpack_from(path.read_bytes(), at)[1]


def look(root: Path) -> Verified:
    return verify(Inspection(root), lambda _: None)


@pytest.mark.parametrize("slots", [50, 7, 5_000_000])
def test_an_index_that_has_all_keys_is_sound_whatever_its_slots(tmp_path: Path, slots: int) -> None:
    with_keys(tmp_path, index_slots=slots).close()
    found = look(tmp_path)
    assert (found.findings, found.notes) == ([], [])
    assert found.index_file_count == len(files_of(tmp_path)) == 4


@pytest.mark.parametrize("slots", [50, 5_000_000])
@pytest.mark.parametrize("position", [0, 3, 11])  # of the hash, of the place
def test_one_wrong_entry_is_a_key_that_is_missing(tmp_path: Path, slots: int, position: int) -> None:
    with_keys(tmp_path, index_slots=slots).close()
    path = files_of(tmp_path)[1]
    at, place = entry_at(path, 40, slots)
    content = bytearray(path.read_bytes())
    content[at + position] ^= 1
    path.write_bytes(content)
    (found,) = look(tmp_path).findings
    assert (found.path, found.advice) == ("index", "`aerobee store repair` indexes them")
    assert found.reason.startswith(f"1 keys of records from {place} on are not in it, so that queries by key")


def test_keys_that_were_cut_in_the_middle_are_missing(tmp_path: Path) -> None:
    """As a checkpoint that says the wrong thing once cut all keys but those of the first message."""
    store = with_keys(tmp_path)
    store.close()
    first, *cut, last = files_of(tmp_path)
    for path in cut:
        path.unlink()
    kept = sum([HEADER.unpack_from(path.read_bytes())[5] - 1 for path in (first, last)])
    (found,) = look(tmp_path).findings
    assert found.reason.startswith(f"{KEYS - kept} keys of records from ")


@pytest.mark.parametrize(
    ("remove", "note"),
    [
        (lambda files: files[:1], "index: it begins at "),
        (lambda files: files[-1:], "index: it ends at "),
        (lambda files: files, f"index: it has no entry; {KEYS} keys"),
    ],
)
def test_what_may_never_have_been_indexed_is_a_note(
    tmp_path: Path, remove: Callable[[list[Path]], list[Path]], note: str
) -> None:
    with_keys(tmp_path).close()
    for path in remove(files_of(tmp_path)):
        path.unlink()
    found = look(tmp_path)
    assert found.findings == []
    assert [one[: len(note)] for one in found.notes] == [note]


def test_what_the_next_start_may_add_is_a_note(tmp_path: Path) -> None:
    with_keys(tmp_path).close()
    (tmp_path / "abort").touch()
    files_of(tmp_path)[1].unlink()
    found = look(tmp_path)
    assert found.findings == []
    (note,) = found.notes
    assert "the next start adds those that were not on disk yet" in note


def test_a_store_that_is_in_use_is_looked_at_as_far_as_its_index_is(tmp_path: Path) -> None:
    store = with_keys(tmp_path)
    store.append([message(keys="later", unique_key="Later")])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    assert store.keys.backlog
    found = look(tmp_path)
    assert (found.findings, found.notes) == ([], [])
    store.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda whole: whole[:20], "20 bytes are too few for an index file"),
        (lambda whole: b"\xff" + whole[1:], "its header is impossible: times "),
        (lambda whole: whole[:36] + b"\x7f" + whole[37:], "its header is impossible: "),
        (
            lambda whole: whole[:HEADER_SIZE] + bytes(len(whole) - HEADER_SIZE),
            "no entry leads to a record at ",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_the_only_finding(
    tmp_path: Path, content: Callable[[bytes], bytes], reason: str
) -> None:
    """What else is missing cannot be said then."""
    with_keys(tmp_path).close()
    path = files_of(tmp_path)[1]
    path.write_bytes(content(path.read_bytes()))
    found = look(tmp_path)
    (finding,) = found.findings
    assert finding.path == f"index/{path.name}"
    assert finding.reason.startswith(reason)
    assert found.notes == []


def test_a_file_whose_making_was_cut_short_is_nothing(tmp_path: Path) -> None:
    with_keys(tmp_path).close()
    (tmp_path / "index" / "20991231235959999").touch()
    found = look(tmp_path)
    assert (found.findings, found.notes, found.index_file_count) == ([], [], 4)


def test_an_entry_beyond_the_log_is_a_finding(tmp_path: Path) -> None:
    with_keys(tmp_path).close()
    path = files_of(tmp_path)[-1]
    content = bytearray(path.read_bytes())
    at, _ = entry_at(path, HEADER.unpack_from(content)[5] - 1)
    PLACE.pack_into(content, at + 4, 1 << 40)
    PLACE.pack_into(content, 24, 1 << 40)
    path.write_bytes(content)
    finding, missing = look(tmp_path).findings
    assert missing.reason.startswith("1 keys ")
    assert finding.reason.startswith(f"it leads to a record at {1 << 40}, beyond the end of the log at ")
