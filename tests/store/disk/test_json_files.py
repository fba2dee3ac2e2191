"""Config files: the old content or the new, and garbage is never taken for nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_store.disk.json_files import JsonFile
from aerobee_store.faults.errors import CorruptStore
from store.memory_io import MemoryIo, PowerFailure

PATH = Path("/store/config/topics.json")


def topics(io: MemoryIo) -> JsonFile[Any]:
    return JsonFile(PATH, io, json.loads)


def test_without_any_file_there_is_nothing() -> None:
    assert topics(MemoryIo()).load() is None


def test_saved_content_comes_back_and_the_one_before_is_kept() -> None:
    io = MemoryIo()
    topics(io).save(b'{"n": 1}')
    topics(io).save(b'{"n": 2}')
    file = topics(io)
    assert file.load() == {"n": 2}
    assert not file.used_backup
    assert io.read_bytes(file.backup_path) == b'{"n": 1}'


@pytest.mark.parametrize("broken", [None, b"", b"  \n", b'{"n": ', b"\xff\xfe"])
def test_the_backup_stands_in(broken: bytes | None) -> None:
    io = MemoryIo()
    topics(io).save(b'{"n": 1}')
    topics(io).save(b'{"n": 2}')
    if broken is None:
        io.unlink(PATH)
    else:
        io.replace_bytes(PATH, broken, keep_previous=False)
    file = topics(io)
    assert file.load() == {"n": 1}
    assert file.used_backup


@pytest.mark.parametrize("backup", [None, b"", b"{"])
def test_garbage_without_a_good_backup_is_refused_by_name(backup: bytes | None) -> None:
    io = MemoryIo()
    io.replace_bytes(PATH, b"garbage")
    if backup is not None:
        io.replace_bytes(PATH.with_name("topics.json.bak"), backup)
    with pytest.raises(CorruptStore, match=r"topics\.json: not readable") as refused:
        topics(io).load()
    assert "topics.json.bak" in refused.value.way_out


def test_empty_files_are_not_taken_for_nothing() -> None:
    """A table without entries is written as such; an empty file is what a crash leaves of a careless writer."""
    io = MemoryIo()
    io.replace_bytes(PATH, b"")
    with pytest.raises(CorruptStore, match=r"topics\.json: not readable: it is empty"):
        topics(io).load()
    io.replace_bytes(PATH.with_name("topics.json.bak"), b"", keep_previous=False)
    with pytest.raises(CorruptStore, match="move both away to start without what it held"):
        topics(io).load()


def test_nesting_without_end_is_garbage() -> None:
    io = MemoryIo()
    topics(io).save(b'{"n": 1}')
    topics(io).save(b'{"n": 2}')
    io.replace_bytes(PATH, b"[" * 200_000, keep_previous=False)
    file = topics(io)
    assert file.load() == {"n": 1}
    assert file.fault == "it is nested too deeply"


def test_a_file_that_no_table_can_fill_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_store.disk.json_files.SIZE_MAX", 20)
    io = MemoryIo()
    topics(io).save(b'{"n": 1}')
    topics(io).save(b'{"n": "' + b"2" * 20 + b'"}')
    file = topics(io)
    assert file.load() == {"n": 1}
    assert "29 bytes" in file.fault


def test_garbage_does_not_take_the_place_of_a_good_backup() -> None:
    io = MemoryIo()
    topics(io).save(b'{"n": 1}')
    topics(io).save(b'{"n": 2}')
    io.replace_bytes(PATH, b"garbage", keep_previous=False)
    topics(io).save(b'{"n": 3}')
    assert io.read_bytes(PATH.with_name("topics.json.bak")) == b'{"n": 1}'
    assert topics(io).load() == {"n": 3}


@pytest.mark.parametrize("operation", range(3))
def test_a_crash_while_saving_leaves_one_of_both(operation: int) -> None:
    io = MemoryIo()
    topics(io).save(b'{"n": 1}')
    io.stop_after(operation)
    try:
        topics(io).save(b'{"n": 2}')
    except PowerFailure:
        assert operation == 0
    assert topics(io.crash()).load() in ({"n": 1}, {"n": 2})


class Counting:
    """Reads JSON, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, raw: bytes) -> Any:
        self.count += 1
        return json.loads(raw)


def test_what_was_written_or_loaded_here_is_not_read_again_to_see_whether_it_can_be() -> None:
    """Each save of a table read the whole file before, in one call that lets no other thread go on."""
    io, reads = MemoryIo(), Counting()
    file = JsonFile(PATH, io, reads)
    for number in range(5):
        file.save(b'{"n": %d}' % number)
    assert reads.count == 0
    again = JsonFile(PATH, io, reads)
    assert again.load() == {"n": 4}
    again.save(b'{"n": 5}')
    assert reads.count == 1
    assert io.read_bytes(file.backup_path) == b'{"n": 4}'


def test_what_somebody_else_wrote_is_read_before_it_becomes_the_backup() -> None:
    io, reads = MemoryIo(), Counting()
    file = JsonFile(PATH, io, reads)
    file.save(b'{"n": 1}')
    file.save(b'{"n": 2}')
    io.replace_bytes(PATH, b"garbage of another size", keep_previous=False)
    file.save(b'{"n": 3}')
    assert reads.count == 1
    assert io.read_bytes(file.backup_path) == b'{"n": 1}'
