"""The one door to the disk, on the real disk."""

import errno
import io
import mmap
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_store.disk import io as store_io
from aerobee_store.disk.io import DiskIo, FolderEntry, StoreIo
from aerobee_store.faults.errors import CorruptStore, OutOfResources, StoreFull, StoreLocked

IO = DiskIo()


def test_a_new_file_has_its_space_before_anything_is_written(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "a" / "b" / "file", 65536, create=True)
    found = file.path.stat()
    assert (found.st_size, found.st_blocks * 512 >= 65536) == (65536, True)
    assert not any(file.view)
    file.close()


def test_an_existing_file_is_not_created_again(tmp_path: Path) -> None:
    IO.open_file(tmp_path / "file", 4096, create=True).close()
    with pytest.raises(FileExistsError):
        IO.open_file(tmp_path / "file", 4096, create=True)


def test_a_missing_file_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        IO.open_file(tmp_path / "file", 4096)


def test_a_wrong_length_names_the_file_and_both_lengths(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with pytest.raises(CorruptStore, match=r"file: length is 100, must be 4096") as wrong:
        IO.open_file(tmp_path / "file", 4096)
    assert wrong.value.path == tmp_path / "file"
    assert (tmp_path / "file").stat().st_size == 100


def test_holes_of_an_official_file_are_filled_before_it_is_written(tmp_path: Path) -> None:
    """A store into a hole on a full disk would kill the process."""
    with (tmp_path / "file").open("wb") as made:
        made.truncate(1 << 20)
    assert (tmp_path / "file").stat().st_blocks == 0
    IO.open_file(tmp_path / "file", 1 << 20, writable=False).close()
    assert (tmp_path / "file").stat().st_blocks == 0
    IO.open_file(tmp_path / "file", 1 << 20).close()
    assert (tmp_path / "file").stat().st_blocks * 512 >= 1 << 20


def test_no_room_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(StoreFull, match="no room for 4096 bytes"):
        IO.open_file(tmp_path / "file", 4096, create=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_inode_is_no_room_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """They would have ended the broker as if its disk had failed."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(StoreFull, match=os.strerror(number)):
            IO.open_file(tmp_path / "file", 4096, create=True)
    IO.open_file(tmp_path / "file", 4096, create=True).close()


def test_no_room_for_a_map_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was left there would be in the way of every later try."""

    def no_map(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", no_map)
        with pytest.raises(
            OutOfResources, match=r"no memory or no map .*Cannot allocate memory.*max_map_count"
        ):
            IO.open_file(tmp_path / "file", 4096, create=True)
    assert list(tmp_path.iterdir()) == []


# What every method that asks the system for something does with a folder of one file; `unlink` and `remove_folder` of
# what is not there ask for nothing, and nobody waits for what `read_ahead` asks for.
_EVERY_CALL: dict[str, Callable[[Path], object]] = {
    "open_file": lambda at: IO.open_file(at / "file", 4096),
    "open_file, new": lambda at: IO.open_file(at / "new" / "file", 4096, create=True),
    "open_file, new, little by little": lambda at: IO.open_file(
        at / "new" / "a", 1 << 20, create=True, room=1
    ),
    "read_bytes": lambda at: IO.read_bytes(at / "file"),
    "replace_bytes": lambda at: IO.replace_bytes(at / "file", b"new"),
    "replace_bytes, new": lambda at: IO.replace_bytes(at / "fresh" / "file", b"new"),
    "list_names": IO.list_names,
    "unlink": lambda at: IO.unlink(at / "file"),
    "make_folder": lambda at: IO.make_folder(at / "folder"),
    "rename": lambda at: IO.rename(at / "file", at / "other"),
    "sync_folder": IO.sync_folder,
    "sync_all": lambda at: IO.sync_all([], [at]),
    "lock": lambda at: IO.lock(at / "lock"),
    "disk_usage": IO.disk_usage,
    "modified_ms": lambda at: IO.modified_ms(at / "file"),
    "find": lambda at: IO.find(at / "file"),
    "bring": lambda at: IO.bring(at / "file", 0, 4096),
}
_SYSTEM_CALLS: list[tuple[Any, str]] = [(io, "open")]
_SYSTEM_CALLS += [
    (os, name) for name in ("open", "fsync", "mkdir", "rename", "unlink", "scandir", "stat", "statvfs")
]
_SYSTEM_CALLS += [(os, name) for name in ("fstat", "fstatvfs", "ftruncate", "posix_fallocate", "pwrite")]


def test_the_list_of_calls_is_whole() -> None:
    asked = {name.split(",")[0] for name in _EVERY_CALL} | {"remove_folder", "read_ahead"}
    assert asked == {name for name in vars(StoreIo) if not name.startswith("_")}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", _EVERY_CALL)
def test_want_of_resources_is_an_error_of_its_own_at_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The sync of a folder for which no descriptor was left ended the broker as if its disk had failed."""
    failed = []
    for module, system_call in _SYSTEM_CALLS:
        for nth in range(1, 20):
            folder = tmp_path / f"{module.__name__}-{system_call}-{nth}"
            folder.mkdir()
            (folder / "file").write_bytes(bytes(4096))
            left = [nth]
            real = getattr(module, system_call)

            def fail(*args: Any, left: list[int] = left, real: Any = real, **named: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(number, os.strerror(number))
                return real(*args, **named)

            with monkeypatch.context() as patched:
                patched.setattr(module, system_call, fail)
                error = _outcome(_EVERY_CALL[call], folder)
            if error is not None:
                failed.append((system_call, nth))
                assert error.number == number
                assert "no room" not in str(error)
            if left[0] > 0:
                break  # it does not call this so often
    assert failed


def _outcome(call: Callable[[Path], object], folder: Path) -> OutOfResources | None:
    try:
        done = call(folder)
    except OutOfResources as error:
        return error
    close = getattr(done, "close", None) or getattr(done, "release", None)
    if close is not None:
        close()
    return None


def test_a_folder_whose_name_could_not_be_made_durable_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try would have found the folder there, and would not have synced the one above it."""
    synced: list[Path] = []

    class Watched(DiskIo):
        def sync_folder(self, path: Path) -> None:
            synced.append(path)
            if len(synced) == 1:
                raise OutOfResources(path, errno.EMFILE)

    disk = Watched()
    with pytest.raises(OutOfResources):
        disk.make_folder(tmp_path / "folder")
    disk.make_folder(tmp_path / "folder")
    assert synced == [tmp_path, tmp_path]


def test_the_remark_says_which_limit_and_what_to_raise() -> None:
    files = OutOfResources(Path("/store/q"), errno.EMFILE)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert str(files) == (
        f"all {soft} files that this process may open are open at /store/q (Too many open files); "
        "raise its limit (LimitNOFILE of systemd, ulimit -n) or lower maxConnections"
    )
    assert "fs.file-max" in str(OutOfResources(Path("q"), errno.ENFILE))
    assert "vm.max_map_count" in str(OutOfResources(Path("q"), errno.ENOMEM))
    assert str(pickle.loads(pickle.dumps(files))) == str(files)


def test_advice_that_is_not_taken_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory was short for madvise, which is advice, the broker ended as if its disk had failed."""
    asked = []

    class Busy(mmap.mmap):
        def madvise(self, *_: object) -> None:
            asked.append(1)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", Busy)
        file = IO.open_file(tmp_path / "file", 1 << 20, create=True, room=0)
        file.write(0, b"entry")
        assert [file.window() is None for _ in range(2)] == [True, False]
    assert asked == [1]
    assert file.read(0, 5) == b"entry"
    file.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_write_and_a_read_without_memory_are_not_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    file = IO.open_file(tmp_path / "file", 1 << 20, create=True, room=0)
    calls: dict[str, Callable[[], object]] = {
        "pwrite": lambda: file.write(0, bytes(400)),
        "posix_fallocate": lambda: file.write(1 << 19, b"entry"),
        "pread": lambda: file.read(0, 5),
    }
    for name, call in calls.items():
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(OutOfResources, match="file"):
                call()
    file.close()


def test_a_failed_sync_or_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    file = IO.open_file(tmp_path / "file", 1 << 20, create=True)
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match=r"Errno 5.*/file'"):
        file.sync()
    # Two records are longer: they go by a call, whose torn remains are a beginning.
    with pytest.raises(OSError, match=r"Errno 5.*/file'"):
        file.write(0, bytes(400))
    file.close()


def test_writes_are_seen_at_once_and_are_in_the_file(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "file", 4096, create=True)
    seen = file.view[10:13]
    file.write(10, b"abc")
    assert bytes(seen) == b"abc"
    file.sync()
    assert file.path.read_bytes()[8:15] == b"\0\0abc\0\0"
    file.close()


def test_a_write_past_the_end_changes_nothing(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "file", 4096, create=True)
    with pytest.raises(IndexError):
        file.write(4094, b"abc")
    assert not any(file.view)
    file.close()


def test_slices_stay_readable_after_the_file_is_closed_and_gone(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "file", 4096, create=True)
    file.write(0, b"abc")
    held = file.view[0:3]
    file.close()
    file.close()
    IO.unlink(tmp_path / "file")
    assert bytes(held) == b"abc"
    file.sync()


def test_views_cannot_be_written_through(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "file", 4096, create=True)
    assert file.view.readonly
    file.close()


@pytest.mark.parametrize(("begin", "length"), [(0, 4 << 20), (100, 5000), ((1 << 20) - 3, 7), (5, 0)])
def test_zeroing_takes_exactly_the_range(tmp_path: Path, begin: int, length: int) -> None:
    size = 4 << 20
    file = IO.open_file(tmp_path / "file", size, create=True)
    file.write(0, b"\xff" * size)
    file.zero(begin, length)
    expected = b"\xff" * begin + bytes(length) + b"\xff" * (size - begin - length)
    assert bytes(file.view) == expected
    file.close()


def test_extents_cover_everything_that_is_not_zero(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "file", 4 << 20, create=True)
    for at in (0, 1_000_000, (4 << 20) - 1):
        file.write(at, b"x")
    found = [
        at for begin, end in file.data_extents(0, 4 << 20) for at in range(begin, end) if file.view[at] != 0
    ]
    assert found == [0, 1_000_000, (4 << 20) - 1]
    assert all(1 <= b < e <= 50 for b, e in file.data_extents(1, 50))
    file.close()


def test_replacing_keeps_the_previous_content(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    IO.replace_bytes(path, b"one")
    IO.replace_bytes(path, b"two")
    IO.replace_bytes(path, b"three")
    assert (IO.read_bytes(path), IO.read_bytes(path.with_name("topics.json.bak"))) == (b"three", b"two")
    assert sorted(p.name for p in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_a_failed_replacement_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    IO.replace_bytes(path, b"old")

    def no_room(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(StoreFull):
        IO.replace_bytes(path, b"new", keep_previous=False)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_names_are_listed_in_order_with_sizes(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "a").mkdir()
    assert IO.list_names(tmp_path) == [("a", 0, True), ("b", 2, False)]
    assert IO.list_names(tmp_path / "none") == []


def test_what_is_missing_is_no_error(tmp_path: Path) -> None:
    IO.unlink(tmp_path / "none")
    IO.remove_folder(tmp_path / "none")
    assert IO.read_bytes(tmp_path / "none") is None


def test_a_filled_folder_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    IO.remove_folder(tmp_path / "a")
    assert (tmp_path / "a" / "file").exists()
    IO.unlink(tmp_path / "a" / "file")
    IO.remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_rename_takes_the_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    IO.rename(tmp_path / "a", tmp_path / "b")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"b": b"a"}


def test_a_lock_is_taken_once(tmp_path: Path) -> None:
    held = IO.lock(tmp_path / "store" / "lock")
    assert (tmp_path / "store" / "lock").read_bytes() == b"lock"
    with pytest.raises(StoreLocked, match="another running broker"):
        IO.lock(tmp_path / "store" / "lock")
    held.release()
    held.release()
    IO.lock(tmp_path / "store" / "lock").release()


def test_a_lock_holds_against_other_processes(tmp_path: Path) -> None:
    """Also after a second attempt of this process, whose descriptor must not give the lock away."""
    held = IO.lock(tmp_path / "lock")
    with pytest.raises(StoreLocked):
        IO.lock(tmp_path / "lock")
    child = os.fork()
    if child == 0:
        from aerobee_store.disk import io

        io.locked_here.clear()
        try:
            IO.lock(tmp_path / "lock")
        except StoreLocked:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    held.release()


def test_disk_usage_says_total_and_free(tmp_path: Path) -> None:
    total, free = IO.disk_usage(tmp_path)
    assert 0 < free <= total


# --- files that take their space little by little -------------------------------------------------------


def space(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_file_with_room_has_its_length_and_little_space(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "a" / "file", 1 << 20, create=True, room=0)
    assert file.path.stat().st_size == 1 << 20
    assert space(file.path) <= 1 << 17
    assert not any(file.view)
    file.close()


@pytest.mark.parametrize("size", [20, 400], ids=["through the map", "by a call"])
def test_space_is_taken_before_it_is_written_to(tmp_path: Path, size: int) -> None:
    """Whatever is written lies in space that was allocated: a full disk cannot kill the process."""
    file = IO.open_file(tmp_path / "file", 1 << 20, create=True, room=0)
    for position in range(0, (1 << 20) - size, size):
        file.write(position, b"x" * size)
        if position % (size * 500) == 0:
            assert space(file.path) >= position + size
    assert bytes(file.view[: 1 << 19]) == b"x" * (1 << 19)
    file.close()


@pytest.mark.parametrize("room", [None, 0], ids=["whole", "growing"])
def test_pages_are_made_by_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    """The first store through the map into a page would have the system read ahead: 20 ms, where it reads 8 MiB."""
    calls: list[int] = []
    pwrite = os.pwrite

    def counted(fd: int, data: bytes, position: int) -> int:
        calls.append(position)
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", counted)
    file = IO.open_file(tmp_path / "file", 1 << 20, create=True, room=room)
    assert file.view[0] == 0  # mapped
    for position in range(5000, 5000 + 300 * 100, 300):
        file.write(position, b"x" * 300)
    file.write(300_000, b"elsewhere")
    made = [(at + 299) // mmap.PAGESIZE for at in calls if at < 300_000]
    assert made == list(range(5000 // mmap.PAGESIZE, (5000 + 300 * 100 - 1) // mmap.PAGESIZE + 1))
    assert calls[-1] == 300_000
    assert bytes(file.view[5000 : 5000 + 300 * 100]) == b"x" * 300 * 100
    file.close()


def test_an_old_file_with_room_is_not_filled_up(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as made:
        made.truncate(1 << 20)
    file = IO.open_file(tmp_path / "file", 1 << 20, room=0)
    assert space(file.path) == 0
    file.write(500_000, b"end")
    file.write(100, b"elsewhere")
    assert (bytes(file.view[500_000:500_003]), bytes(file.view[100:109])) == (b"end", b"elsewhere")
    assert 0 < space(file.path) <= 1 << 18
    file.close()


def test_no_room_for_a_write_is_said_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = IO.open_file(tmp_path / "file", 1 << 20, create=True, room=0)

    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    file.write(0, b"there is some")
    with pytest.raises(StoreFull):
        file.write((1 << 20) - 20, b"x" * 20)
    assert not any(file.view[100:])
    file.close()


def test_a_write_past_the_end_is_refused_whatever_the_room(tmp_path: Path) -> None:
    file = IO.open_file(tmp_path / "file", 1 << 17, create=True, room=0)
    with pytest.raises(IndexError):
        file.write((1 << 17) - 10, b"x" * 20)
    file.close()


def test_a_close_that_fails_is_not_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is free after a failed close as well: a second one closed whatever had got it meanwhile."""
    file = DiskIo().open_file(tmp_path / "file", 4096, create=True)
    real, closed = os.close, list[int]()

    def failing(fd: int) -> None:
        closed.append(fd)
        real(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", failing)
        with pytest.raises(OSError, match="file"):
            file.close()
        file.close()
    assert len(closed) == 1


def test_a_name_that_goes_away_meanwhile_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was empty then: a file that is there was made again, or missed."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    real = store_io.folder_entry

    def entry(found: os.DirEntry[str]) -> FolderEntry | None:
        if found.name == "a":
            (tmp_path / "a").unlink()
        return real(found)

    monkeypatch.setattr(store_io, "folder_entry", entry)
    assert [one.name for one in DiskIo().list_names(tmp_path)] == ["b"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode_and_so_does_its_copy(tmp_path: Path, mode: int) -> None:
    """A table that an operator had closed to others was open to all after the next save."""
    path = tmp_path / "topics.json"
    IO.replace_bytes(path, b"1")
    path.chmod(mode)
    path.with_name("topics.json.tmp").write_bytes(b"of a crash")
    IO.replace_bytes(path, b"2")
    copy = path.with_name("topics.json.bak")
    assert (path.read_bytes(), copy.read_bytes()) == (b"2", b"1")
    assert [one.stat().st_mode & 0o777 for one in (path, copy)] == [mode, mode]


@pytest.mark.parametrize(("mode", "left"), [(0o640, 0o600), (0o664, 0o644)])
def test_another_group_gets_the_rights_of_others(
    tmp_path: Path, mode: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    path = tmp_path / "topics.json"
    IO.replace_bytes(path, b"1")
    path.chmod(mode)
    monkeypatch.setattr(os, "fchown", refuse)
    IO.replace_bytes(path, b"2")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"2", left)


def test_where_a_file_is_written_reads_bring_nothing_that_lies_behind(tmp_path: Path) -> None:
    size = 16 << 20
    file = IO.open_file(tmp_path / "file", size, create=True)
    file.read_ahead(is_useful=False)
    file.write(0, bytes(range(256)) * 64)
    assert file.view[8192] == 0
    assert file.view[65536] == 0
    assert not file.in_memory(65536 + 16384, 4096)
    assert not file.in_memory(size // 2, 4096)
    file.read_ahead(is_useful=True)
    file.close()
