"""The disk that crash tests play on takes the steps that the real one takes, and forgets what a real one may forget."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aerobee_store.disk.io import DiskIo, StoreIo
from store.crash_disk import PAGE_SIZE, CrashIo, Disk, Survival, survivals

FOLDER = Path("/store/queue")
FILE = FOLDER / "0"


class Witness:
    """Notes what DiskIo asks of the operating system, in the words of crash_disk, below `root`."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, ...]] = []
        self._root = root
        self._paths: dict[int, Path] = {}
        self._open = os.open
        patch.setattr(os, "open", self.open)
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self.syncing(getattr(os, name)))
        for name, said in (("mkdir", "make folder"), ("unlink", "unlink"), ("rmdir", "remove folder")):
            patch.setattr(Path, name, self.naming(said, getattr(Path, name)))
        rename = Path.rename
        patch.setattr(Path, "rename", lambda path, target: self.rename(rename, path, target))

    def note(self, *step: object) -> None:
        self.steps.append(tuple(str(word).removeprefix(str(self._root)) for word in step))

    def open(self, path: Path, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and not (Path(path).exists() and not flags & os.O_TRUNC):
            self.note("create", path)
        fd = self._open(path, flags, *rest, **more)
        self._paths[fd] = Path(path)
        return fd

    def syncing(self, sync: Any) -> Any:
        def noted(fd: int) -> None:
            path = self._paths[fd]
            self.note("sync folder" if path.is_dir() else "sync", path)
            sync(fd)

        return noted

    def naming(self, said: str, change: Any) -> Any:
        def noted(path: Path, *rest: Any, **more: Any) -> None:
            change(path, *rest, **more)
            self.note(said, path)

        return noted

    def rename(self, rename: Any, path: Path, target: Path) -> Path:
        self.note("rename", path, target)
        moved: Path = rename(path, target)
        return moved


def named_steps(io: CrashIo) -> list[tuple[str, ...]]:
    """What a CrashIo did, without contents and lengths, files by name."""
    paths: dict[int, str] = {}
    found: list[tuple[str, ...]] = []
    for step in io.steps:
        if step[0] == "create":
            paths[step[2]] = step[1]
            found.append(step[:2])
        elif step[0] == "sync":
            found.append(("sync", paths[step[1]]))
        elif step[0] not in ("write", "allocate"):
            found.append(step)
    return found


def work(io: StoreIo, root: Path) -> None:
    """Everything that changes names or makes something certain."""
    lock = io.lock(root / "lock")
    file = io.open_file(root / "commitlog" / "0", 4096, create=True)
    file.write(10, b"x" * 100)
    file.sync()
    file.close()
    for content in (b"one", b"two"):
        io.replace_bytes(root / "config" / "topics.json", content)
    io.replace_bytes(root / "abort", b"4711", keep_previous=False)
    io.unlink(root / "abort")
    io.sync_folder(root)
    io.make_folder(root / "a" / "b")
    io.remove_folder(root / "a" / "b")
    lock.release()


def test_the_steps_are_those_of_the_real_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    with monkeypatch.context() as patch:
        witness = Witness(tmp_path, patch)
        work(DiskIo(), root)
    played = CrashIo(Disk())
    work(played, Path("/store"))
    # The real root's parent is tmp_path, the played one's is "/".
    real = [tuple(word or "/" for word in step) for step in witness.steps]
    assert named_steps(played) == real


def written(io: CrashIo) -> CrashIo:
    """A file of two pages, synced as zeros, with a write over both that is not."""
    file = io.open_file(FILE, 2 * PAGE_SIZE, create=True)
    file.write(PAGE_SIZE - 4, b"ABCDEFGH")
    return io


def left(io: CrashIo, *answers: int) -> bytes:
    content = io.disk.crash(Survival(answers, Random(0))).content(str(FILE))
    assert content is not None
    return bytes(content[PAGE_SIZE - 4 : PAGE_SIZE + 4])


def test_each_page_is_old_or_new() -> None:
    io = written(CrashIo(Disk()))
    assert io.disk.questions() == [2, 2]
    zeros = bytes(4)
    assert left(io, 0, 0) == zeros + zeros
    assert left(io, 1, 0) == b"ABCD" + zeros
    assert left(io, 0, 1) == zeros + b"EFGH"
    assert left(io, 1, 1) == b"ABCDEFGH"


def test_what_was_synced_is_certain() -> None:
    io = written(CrashIo(Disk()))
    io.open_file(FILE, 2 * PAGE_SIZE).sync()
    assert io.disk.questions() == []
    assert left(io) == b"ABCDEFGH"


def test_a_sector_that_held_something_gets_no_garbage() -> None:
    io = written(CrashIo(Disk()))
    file = io.open_file(FILE, 2 * PAGE_SIZE)
    file.sync()
    file.write(0, b"new")
    for seed in range(200):
        for answer in range(7):
            content = io.disk.crash(Survival((answer,), Random(seed))).content(str(FILE))
            assert content is not None
            assert content[PAGE_SIZE - 4 : PAGE_SIZE + 4] == b"ABCDEFGH"


def test_names_come_and_go_in_order_until_their_folder_is_synced() -> None:
    io = CrashIo(Disk())
    io.open_file(FILE, 10, create=True)
    io.take(("rename", str(FILE), str(FOLDER / "1")))
    io.unlink(FOLDER / "1")
    found = [sorted(io.disk.crash(Survival((n,), Random(0))).names) for n in range(3)]
    assert found == [[str(FILE)], [str(FOLDER / "1")], []]
    io.sync_folder(FOLDER)
    assert io.disk.questions() == []


def test_few_choices_are_all_tried() -> None:
    io = written(CrashIo(Disk()))
    tried = {s.answers for s in survivals(io.disk, Random(0), few=4, samples=0)}
    assert tried == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_kill_leaves_everything_and_makes_nothing_certain() -> None:
    io = written(CrashIo(Disk()))
    killed = io.disk.kill()
    assert killed.files() == io.disk.files()
    assert killed.questions() == [2, 2]
