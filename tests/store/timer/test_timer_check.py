"""Timer files are known to whoever looks at a store: verify, check and scrub name what is wrong with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from aerobee_proto.names import TIMER_TOPIC
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.store import MessageStore
from aerobee_store.timer.timer_check import timer_faults
from aerobee_store.timer.timer_files import TimerFiles, TimerUnit, Verified
from store.workload import message, open_store

COUNT: Final = 30
NOW_MS: Final = 1_700_000_000_000
FILE_SIZE: Final = 52 * 20


def with_timers(root: Path, *, extra: TimerUnit | None = None) -> MessageStore:
    """A store with delayed messages, everything of them on disk, two files of units; open."""
    store = open_store(DiskIo(), root=root)
    timers = TimerFiles(root, DiskIo(), precision_ms=1000, log_file_size=FILE_SIZE)
    timers.load()
    timers.recover(lambda place, size: Verified(0, 0))
    for number in range(COUNT):
        (one,) = store.append([message(TIMER_TOPIC, 0, b"%d" % number)])
        timers.add(TimerUnit(-1, 1, NOW_MS, NOW_MS + 1000 * number, one.physical_offset, one.size, 7))
    if extra is not None:
        timers.add(extra)
    store.flush_disk()
    store.confirm(store.flushed_offset)
    timers.sync(timers.snapshot(store.flushed_offset), NOW_MS)
    timers.close()
    store.flush_queues()
    return store


def rot_unit(root: Path) -> None:
    path = root / "timerlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[52 * 3] ^= 1
    path.write_bytes(content)


def rot_place(root: Path) -> None:
    path = root / "timerlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[52 * 3 + 4 + 8 + 4 + 8 + 4 + 7] ^= 1
    path.write_bytes(content)


def rot_mark(root: Path) -> None:
    path = root / "timerlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:-52] + bytes(52))


def cut_log(root: Path) -> None:
    path = root / "timerlog" / f"{FILE_SIZE:020d}"
    path.write_bytes(path.read_bytes()[:-1])


def lose_last(root: Path) -> None:
    (root / "timerlog" / f"{FILE_SIZE:020d}").unlink()


def lose_first(root: Path) -> None:
    (root / "timerlog" / f"{0:020d}").unlink()
    (root / "timerlog" / "notes").write_bytes(b"hello")


def cut_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"short")


def cut_check(root: Path) -> None:
    (root / "config" / "timercheck").write_bytes(bytes(10))


DAMAGE: Final = {
    "a unit": (rot_unit, f"timerlog/{0:020d}", 52 * 3, "it is no unit of the timer"),
    "a place": (rot_place, f"timerlog/{0:020d}", 52 * 3, "no message of the timer topic with"),
    "the mark": (rot_mark, f"timerlog/{0:020d}", 52 * 19, "the mark that closes the file is not there"),
    "a length": (cut_log, f"timerlog/{FILE_SIZE:020d}", None, "length is 1039, the first has 1040"),
    "the last file": (lose_last, "timerlog", None, "it ends at 1040, but was on disk up to 1612"),
    "a foreign file": (lose_first, "timerlog/notes", None, "foreign file"),
    "the wheel": (cut_wheel, "timerwheel", None, "length is 5, must be 38707200"),
    "the checkpoint": (cut_check, "config/timercheck", None, "length is 10, must be 4096"),
}


def test_sound_timer_files_have_no_fault(tmp_path: Path) -> None:
    store = with_timers(tmp_path)
    assert store.timers.faults() == []
    store.check()
    store.close()


def test_a_store_without_timer_files_has_no_fault(tmp_path: Path) -> None:
    assert timer_faults(tmp_path, DiskIo(), log_min=0, log_end=0) == []


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_by_check_and_scrub(tmp_path: Path, kind: str) -> None:
    damage, name, position, reason = DAMAGE[kind]
    store = with_timers(tmp_path)
    damage(tmp_path)
    found = store.timers.faults()
    assert any(
        (one.path, one.position) == (tmp_path / name, position) and reason in one.reason for one in found
    ), found
    with pytest.raises(CorruptStore):
        store.check()
    with capture_logs() as logs:
        while not store.scrubbing.step().is_round_done:
            pass
    logged = [entry for entry in logs if entry["event"] == "store.timer_file_wrong"]
    assert [(entry["path"], entry["position"], entry["reason"]) for entry in logged] == [
        (str(one.path), one.position, one.reason) for one in found
    ]
    store.close()


def test_a_unit_of_a_message_behind_the_log_is_named(tmp_path: Path) -> None:
    store = with_timers(tmp_path, extra=TimerUnit(-1, 1, NOW_MS, NOW_MS + 99_000, 1 << 40, 100, 7))
    (found,) = store.timers.faults()
    assert "lies behind the log's end" in found.reason
    store.close()


def damages() -> dict[str, Callable[[Path], None]]:
    """For tests of what is built on this."""
    return {kind: damage[0] for kind, damage in DAMAGE.items()}
