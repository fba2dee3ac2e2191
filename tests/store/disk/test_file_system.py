"""Many files made durable by one call, where that can be trusted, and one by one where not."""

import errno
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest

from aerobee_store.disk import file_system
from aerobee_store.disk.file_system import FileSystem, file_system_of
from aerobee_store.disk.io import DataFile, DiskIo
from aerobee_store.queues.consume_queue import ENTRY
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.store import SPARING_MS
from store.workload import Clock, message, open_store

MANY = 300
SIZE = 65536
MOUNTS = """\
21 28 0:20 / /proc rw,nosuid - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,resuid=65534
36 28 98:0 /mnt1 /mnt2 rw,noatime master:1 - xfs /dev/root rw,errors=continue
37 28 0:45 / /over rw - overlay overlay rw,lowerdir=/l
"""


def trusted(folder: Path) -> FileSystem:
    """The file system of the folder; skips where it is none that can be synced as a whole."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        found = file_system_of(os.fstat(fd).st_dev, folder)
    finally:
        os.close(fd)
    if found is None:
        pytest.skip(f"the file system of {folder} is synced file by file")
    return found


@pytest.mark.parametrize(
    ("device", "kind"), [((254, 0), "ext4"), ((98, 0), "xfs"), ((0, 45), "overlay"), ((8, 1), "")]
)
def test_the_type_of_a_file_system_is_read_from_the_table_of_mounts(
    device: tuple[int, int], kind: str
) -> None:
    assert file_system.kind_of(os.makedev(*device), MOUNTS) == kind


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.18.44-fc", (6, 18)), ("5.8.0", (5, 8)), ("4.4.0-x", (4, 4)), ("5-rt", (5,)), ("odd", (0,))],
)
def test_the_version_of_linux_is_read_from_its_release(release: str, version: tuple[int, ...]) -> None:
    assert file_system.linux_version(release) == version


@pytest.mark.parametrize("release", ["4.18.0-553.el8", "5.7.19"])
def test_an_old_linux_that_does_not_tell_of_errors_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    device = trusted(tmp_path).device
    monkeypatch.setattr("platform.release", lambda: release)
    assert not file_system.is_trusted(device)


def test_a_file_system_is_open_while_a_file_of_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted(tmp_path)
    device = tmp_path.stat().st_dev
    gc.collect()
    before = len([*Path("/proc/self/fd").iterdir()])
    # Files that other tests have left open count for themselves.
    opened = WeakValueDictionary[int, FileSystem]()
    monkeypatch.setattr(file_system, "_open", opened)
    files = [DiskIo().open_file(tmp_path / str(n), SIZE, create=True, room=0) for n in range(3)]
    assert opened[device].sync()
    for file in files:
        file.close()
    assert device not in opened
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_an_unfit_file_system_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of thousands of queues on one would read the table of mounts for each of their files."""
    looks: list[int] = []
    opened = WeakValueDictionary[int, FileSystem]()
    monkeypatch.setattr(file_system, "_open", opened)
    monkeypatch.setattr(file_system, "_unfit", set[int]())
    monkeypatch.setattr(file_system, "is_trusted", looks.append)
    files = [DiskIo().open_file(tmp_path / str(n), SIZE, create=True, room=0) for n in range(3)]
    assert looks == [tmp_path.stat().st_dev]
    DiskIo().sync_all(files, [tmp_path])
    for file in files:
        file.close()


# --- what the disk does with them ---------------------------------------------------------------------------------


class Watched:
    """Counts the syncs of single files, and says what the one of the whole file system answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool | None) -> None:
        self.single = 0
        self.whole = 0
        self.broken = -1
        really, whole = os.fdatasync, FileSystem.sync

        def fdatasync(fd: int) -> None:
            self.single += 1
            if self.single == self.broken:
                raise OSError(errno.EIO, "Input/output error")
            really(fd)

        def sync(system: FileSystem) -> bool:
            self.whole += 1
            return whole(system) if answer is None else answer

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        monkeypatch.setattr(FileSystem, "sync", sync)


def grown(folder: Path, count: int) -> list[DataFile]:
    files = [DiskIo().open_file(folder / f"{n}", SIZE, create=True, room=0) for n in range(count)]
    for file in files:
        file.write(0, b"entry")
    return files


def test_many_files_are_synced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = trusted(tmp_path)
    files, watched = grown(tmp_path, MANY), Watched(monkeypatch, None)
    DiskIo().sync_all(files, [tmp_path])
    assert (watched.whole, watched.single, held.device) == (1, 0, tmp_path.stat().st_dev)


def test_many_folders_are_synced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start after a kill synced the folders of 80,000 queues one by one."""
    trusted(tmp_path)
    folders = [tmp_path / str(number) for number in range(MANY)]
    for folder in folders:
        folder.mkdir()
    single: list[Path] = []
    real = DiskIo.sync_folder

    def sync_folder(io: DiskIo, path: Path) -> None:
        single.append(path)
        real(io, path)

    monkeypatch.setattr(DiskIo, "sync_folder", sync_folder)
    watched = Watched(monkeypatch, None)
    DiskIo().sync_all([], [*folders, tmp_path / "gone"])
    assert (watched.whole, single) == (1, [])
    DiskIo().sync_all([], folders[:20])
    assert (watched.whole, single) == (1, folders[:20])
    watched = Watched(monkeypatch, False)
    single.clear()
    DiskIo().sync_all([], folders)
    assert (watched.whole, single) == (1, folders)


def test_few_files_are_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, watched = grown(tmp_path, 20), Watched(monkeypatch, None)
    DiskIo().sync_all(files, [tmp_path])
    assert (watched.whole, watched.single) == (0, 20)


def times(count: int) -> Callable[[], bool]:
    """Says yes so often."""
    left = iter([True] * count)
    return lambda: next(left, False)


def test_many_are_synced_one_by_one_where_others_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that waited for the log waited behind all of 388 queues, which the disk was given at once."""
    trusted(tmp_path)
    files, watched = grown(tmp_path, MANY + 3), Watched(monkeypatch, None)
    DiskIo().sync_all(files, [tmp_path], gently=lambda: True)
    assert (watched.whole, watched.single) == (0, MANY + 3)
    DiskIo().sync_all(files, [tmp_path], gently=times(3))
    assert (watched.whole, watched.single) == (1, MANY + 6)


def test_folders_are_synced_one_by_one_where_others_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted(tmp_path)
    folders = [tmp_path / str(number) for number in range(MANY + 1)]
    for folder in folders[:-1]:
        folder.mkdir()
    single: list[Path] = []
    monkeypatch.setattr(DiskIo, "sync_folder", lambda _, path: single.append(path))
    watched = Watched(monkeypatch, None)
    DiskIo().sync_all([], folders, gently=lambda: True)
    assert (watched.whole, single) == (0, folders)
    single.clear()
    DiskIo().sync_all([], folders, gently=times(1))
    assert (watched.whole, single) == (1, folders[:1])


def test_a_store_spares_others_while_it_serves_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at its start, where very many folders may be new, nor at its end: nobody waits then. And 2,047 files took
    20 s at a disk of 10 ms a sync, for which who stopped the store waited."""
    asked: list[bool] = []
    real = DiskIo.sync_all
    clock = Clock()

    def sync_all(self: DiskIo, *given: Any, gently: Callable[[], bool] | None = None) -> None:
        for _ in range(3):
            asked.append(gently is not None and gently())
            clock.now_ms += SPARING_MS // 2
        real(self, *given, gently=gently)

    monkeypatch.setattr(DiskIo, "sync_all", sync_all)
    rests: list[int] = []
    store = open_store(DiskIo(), root=tmp_path, clock=clock, rest=lambda: rests.append(clock.now_ms))
    assert True not in asked
    assert rests == []

    def grow() -> None:
        store.append([message("T")])
        store.flush_disk()
        store.confirm(store.flushed_offset)
        asked.clear()

    grow()
    store.flush_queues()
    assert asked == [True, True, False]
    assert len(rests) == 2
    grow()
    store.close()
    assert asked
    assert True not in asked
    assert len(rests) == 2


def test_files_of_another_kind_are_synced_beside_the_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose space was taken at once is alone, and says by itself what became of it."""
    trusted(tmp_path)
    files, watched = grown(tmp_path, MANY), Watched(monkeypatch, None)
    lone = DiskIo().open_file(tmp_path / "lone", SIZE, create=True)
    DiskIo().sync_all([lone, *files], [])
    assert (watched.whole, watched.single) == (1, 1)


def test_an_error_of_the_whole_is_looked_for_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program's file may be the one: ours are asked each, and only they decide."""
    trusted(tmp_path)
    files, watched = grown(tmp_path, MANY), Watched(monkeypatch, False)
    DiskIo().sync_all(files, [tmp_path])
    assert (watched.whole, watched.single) == (1, MANY)
    watched.broken = MANY + 17
    with pytest.raises(OSError, match=r"Errno 5.*/16'"):
        DiskIo().sync_all(files, [tmp_path])


def test_what_is_closed_or_gone_meanwhile_is_passed_over(tmp_path: Path) -> None:
    """A topic may be deleted while its queues are being brought to the disk: files are closed first, then go."""
    for count in (3, MANY):
        folder = tmp_path / f"topic-{count}"
        files = grown(folder, count)
        for file in files:
            file.close()
        shutil.rmtree(folder)
        DiskIo().sync_all(files, [folder, tmp_path])


def test_a_topic_that_goes_before_its_first_sync_is_no_failure(tmp_path: Path) -> None:
    """The folders of new files are on the list when their topic is deleted."""
    table = QueueTable(tmp_path / "consumequeue", SIZE - SIZE % 20, DiskIo())
    for queue_id in range(3):
        table.get_or_create("Gone", queue_id).put_entries(0, ENTRY.pack(queue_id * 100, 100, 0))
    work = [queue.unflushed() for queue in table]
    table.delete_topic("Gone")
    for unflushed in work:
        assert unflushed is not None
        DiskIo().sync_all(unflushed.files, unflushed.folders)
        unflushed.queue.flushed(unflushed)
        assert unflushed.queue.unflushed() is None
    table.close()


# --- in a real process --------------------------------------------------------------------------------------------

FLUSH = """
import sys
from pathlib import Path
from aerobee_store.queues.consume_queue import ENTRY
from aerobee_store.disk.io import DiskIo
from aerobee_store.queues.queue_table import QueueTable

table = QueueTable(Path(sys.argv[1]) / "consumequeue", 60_000, DiskIo())
for number in range(300):
    table.get_or_create(f"T{number // 10}", number % 10).put_entries(0, ENTRY.pack(number * 100, 100, 0))
table.flush()
print("flushed")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ((), "flushed"),
        (("syncfs:error=EIO",), "flushed"),
        (("syncfs:error=EIO", "fdatasync:error=EIO:when=123"), "Input/output error: '"),
    ],
    ids=["sound", "an error of the whole", "and of a file"],
)
def test_a_failed_call_for_all_is_followed_by_one_for_each(
    tmp_path: Path, faults: tuple[str, ...], said: str
) -> None:
    trusted(tmp_path)
    if shutil.which("strace") is None:
        assert os.environ.get("CI") != "true", "strace must be there in CI"
        pytest.skip("`strace` is not on PATH: it makes system calls fail")
    trace = tmp_path / "trace"
    words = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=syncfs,fdatasync"]
    words += [word for fault in faults for word in ("-e", f"inject={fault}")]
    ran = subprocess.run(
        [*words, "--", sys.executable, "-c", FLUSH, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in ran.stdout + ran.stderr
    calls = trace.read_text()
    expected = {0: (1, 0), 1: (1, MANY), 2: (1, 123)}[len(faults)]
    assert (calls.count("syncfs("), calls.count("fdatasync(")) == expected
