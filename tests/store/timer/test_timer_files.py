"""The timer's files alone: what waits, found again after every kind of end."""

from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.timer.timer_files import (
    CHECKPOINT,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    SLOT,
    SLOT_COUNT,
    UNIT,
    TimerFiles,
    TimerUnit,
    Verified,
)
from store.memory_io import MemoryIo

NOW_MS = 1_700_000_000_000
FILE_SIZE = 4096
PER_FILE = (FILE_SIZE - 16) // UNIT.size


class Messages:
    """The timer topic: a message every 100 bytes, with its slot."""

    def __init__(self) -> None:
        self.outs: list[int] = []

    def new(self, at_ms: int, *, exact: bool = True, magic: int = MAGIC_DEFAULT) -> TimerUnit:
        self.outs.append(at_ms // 1000 * 1000)
        return TimerUnit(-1, magic, NOW_MS, at_ms, (len(self.outs) - 1) * 100, 100, 77, exact)

    def verify(self, physical_offset: int, size: int) -> Verified | None:
        number, rest = divmod(physical_offset, 100)
        if rest or size != 100 or number >= len(self.outs):
            return None
        return Verified(number, self.outs[number])


@pytest.fixture
def messages() -> Messages:
    return Messages()


def opened(root: Path, messages: Messages, io: DiskIo | MemoryIo | None = None) -> TimerFiles:
    files = TimerFiles(root, io or DiskIo(), precision_ms=1000, log_file_size=FILE_SIZE)
    files.load()
    files.recover(messages.verify)
    assert files.lost_queue_offset == 0
    return files


def waiting(files: TimerFiles) -> dict[int, list[int]]:
    """Slot -> places of the records that wait in it, in order."""
    found = {}
    while (slot := files.next_slot()) is not None:
        files.take_slot()
        units = [files.unit(position) for position in files.positions(slot)]
        found[slot] = [unit.physical_offset for unit in units if unit is not None]
    return found


def checkpoint(files: TimerFiles) -> None:
    files.sync(files.snapshot(0), NOW_MS)


def test_nothing_is_made_before_the_first_message(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    assert files.next_slot() is None
    files.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, PER_FILE - 1, PER_FILE, PER_FILE + 1, 3 * PER_FILE + 7])
@pytest.mark.parametrize("saved", [False, True], ids=["as killed", "saved"])
def test_what_was_added_waits_in_the_next_run(
    tmp_path: Path, messages: Messages, count: int, saved: bool
) -> None:
    files = opened(tmp_path, messages)
    for number in range(count):
        files.add(messages.new(NOW_MS + number % 7 * 1000 + number))
        files.queue_offset = number + 1
    before = {slot: list(files.positions(slot)) for slot in range(NOW_MS, NOW_MS + 8000, 1000)}
    if saved:
        checkpoint(files)
    files.close()
    again = opened(tmp_path, messages)
    assert again.queue_offset == count
    assert again.count == count
    assert {slot: list(again.positions(slot)) for slot in before} == before
    end = again.log_end
    again.add(messages.new(NOW_MS))
    assert again.log_end >= end + UNIT.size
    again.close()


def test_finished_slots_do_not_come_back(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    for second in range(5):
        files.add(messages.new(NOW_MS + second * 1000 + 5))
    files.finish(NOW_MS)
    files.finish(NOW_MS + 1000)
    checkpoint(files)
    files.close()
    again = opened(tmp_path, messages)
    assert again.read_ms == NOW_MS + 2000
    assert list(waiting(again)) == [NOW_MS + 2000, NOW_MS + 3000, NOW_MS + 4000]
    again.close()


@pytest.mark.parametrize("cut", [0, 1, 20, 51])
def test_a_half_written_unit_is_cut_off(tmp_path: Path, messages: Messages, cut: int) -> None:
    files = opened(tmp_path, messages)
    files.add(messages.new(NOW_MS + 1))
    checkpoint(files)
    files.add(messages.new(NOW_MS + 2))
    files.close()
    path = tmp_path / "timerlog" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[UNIT.size + cut : 2 * UNIT.size] = bytes(UNIT.size - cut)
    path.write_bytes(content)
    again = opened(tmp_path, messages)
    # The last byte alone only says that the time is exact.
    assert waiting(again) == ({NOW_MS: [0, 100]} if cut == 51 else {NOW_MS: [0]})
    again.close()


def test_a_unit_of_no_message_is_not_believed(tmp_path: Path, messages: Messages) -> None:
    """As after a power cut that took the message and left its unit."""
    files = opened(tmp_path, messages)
    files.add(messages.new(NOW_MS + 1))
    checkpoint(files)
    files.add(messages.new(NOW_MS + 2))
    files.close()
    messages.outs.pop()
    again = opened(tmp_path, messages)
    assert waiting(again) == {NOW_MS: [0]}
    assert again.log_end == UNIT.size
    again.close()


def test_after_a_power_cut_the_checkpoint_holds(messages: Messages) -> None:
    io, root = MemoryIo(), Path("/store")
    files = opened(root, messages, io)
    for number in range(PER_FILE + 5):
        files.add(messages.new(NOW_MS + number))
        files.queue_offset = number + 1
    checkpoint(files)
    again = opened(root, messages, io.crash())
    assert again.queue_offset == PER_FILE + 5
    assert again.count == PER_FILE + 5


def test_a_slot_that_starts_anew_forgets_what_was_delivered(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    positions = [files.add(messages.new(NOW_MS + 100 * number)) for number in range(5)]
    files.start_anew(NOW_MS, positions[3:])
    checkpoint(files)
    files.close()
    again = opened(tmp_path, messages)
    assert waiting(again) == {NOW_MS: [300, 400]}
    again.start_anew(NOW_MS, [])
    checkpoint(again)
    again.close()
    last = opened(tmp_path, messages)
    (only,) = last.positions(NOW_MS)
    unit = last.unit(only)
    assert unit is not None
    assert unit.deletes
    last.close()


def test_official_units_are_told_from_exact_ones(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    files.add(messages.new(NOW_MS, exact=False))
    files.add(messages.new(NOW_MS, exact=True))
    units = [files.unit(position) for position in files.positions(NOW_MS)]
    assert [unit.exact for unit in units if unit is not None] == [False, True]
    raw = (tmp_path / "timerlog" / ("0" * 20)).read_bytes()
    assert raw[UNIT.size - 8 : UNIT.size] == bytes(8)
    files.close()


def test_the_wheel_says_what_the_log_says(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    files.add(messages.new(NOW_MS + 1))
    files.add(messages.new(NOW_MS + 2, magic=MAGIC_DEFAULT | MAGIC_DELETE))
    checkpoint(files)
    files.add(messages.new(NOW_MS + 3))
    files.add(messages.new(NOW_MS + 5000))
    files.close()
    del messages.outs[2:]
    opened(tmp_path, messages).close()
    wheel = (tmp_path / "timerwheel").read_bytes()
    at = NOW_MS // 1000 % SLOT_COUNT * SLOT.size
    assert SLOT.unpack_from(wheel, at) == (NOW_MS // 1000, 0, UNIT.size, 2, 0)
    gone = (NOW_MS // 1000 + 5) % SLOT_COUNT * SLOT.size
    assert SLOT.unpack_from(wheel, gone) == (0, 0, 0, 0, 0)


def test_old_files_go_when_their_messages_are_gone(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    for number in range(3 * PER_FILE):
        files.add(messages.new(NOW_MS + number))
    assert files.release_before(10**9) == [], "nothing of it is on disk"
    checkpoint(files)
    assert files.release_before((PER_FILE - 1) * 100) == []
    released = files.release_before(PER_FILE * 100)
    assert [file.offset for file in released] == [0]
    assert files.unit(0) is None
    released += files.release_before(10**9)
    assert [file.offset for file in released] == [0, FILE_SIZE], "the last file stays"
    for file in released:
        file.data.close()
        file.data.path.unlink()
    files.close()
    again = opened(tmp_path, messages)
    assert again.log_end == 2 * FILE_SIZE + PER_FILE * UNIT.size
    again.close()


def test_the_checkpoint_is_the_official_one(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    files.add(messages.new(NOW_MS + 1))
    files.queue_offset = 1
    files.finish(NOW_MS)
    checkpoint(files)
    checkpoint(files)
    raw = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(raw) == 4096
    assert CHECKPOINT.unpack_from(raw) == (NOW_MS + 1000, UNIT.size, 1, 1, 0, NOW_MS, 2)
    assert files.checkpoint() == raw[: CHECKPOINT.size]
    files.close()


# --- a log of messages that was cut back ---------------------------------------------------------------------


def cut(root: Path, messages: Messages, left: int, io: DiskIo | MemoryIo | None = None) -> TimerFiles:
    """The files as a start finds them when the log has the first `left` messages and no more."""
    del messages.outs[left:]
    files = TimerFiles(root, io or DiskIo(), precision_ms=1000, log_file_size=FILE_SIZE)
    files.load()
    files.recover(messages.verify, left * 100, left)
    return files


@pytest.mark.parametrize("count", [5, PER_FILE, 2 * PER_FILE + 7])
@pytest.mark.parametrize("left", [1, 4])
def test_messages_that_the_log_has_lost_do_not_wait_any_more(
    tmp_path: Path, messages: Messages, count: int, left: int
) -> None:
    files = opened(tmp_path, messages)
    for number in range(count):
        files.add(messages.new(NOW_MS + number % 3 * 1000 + number))
        files.queue_offset = number + 1
    checkpoint(files)
    files.close()
    again = cut(tmp_path, messages, left)
    assert again.queue_offset == left
    assert again.lost_queue_offset == 0
    asks = [
        unit for slot in range(3) for at in again.positions(NOW_MS + slot * 1000) if (unit := again.unit(at))
    ]
    assert sorted(unit.physical_offset for unit in asks if not unit.deletes) == [100 * n for n in range(left)]
    assert all(unit.physical_offset < left * 100 for unit in asks)
    again.add(messages.new(NOW_MS))
    again.queue_offset = left + 1
    again.close()
    # It is on disk: a start that knows nothing of the cut finds the same.
    assert opened(tmp_path, messages).queue_offset >= left


def test_units_begin_anew_when_no_message_is_left(tmp_path: Path, messages: Messages) -> None:
    files = opened(tmp_path, messages)
    for number in range(PER_FILE + 3):
        files.add(messages.new(NOW_MS + number))
    files.queue_offset = PER_FILE + 3
    files.finish(NOW_MS - 1000)
    checkpoint(files)
    files.close()
    again = cut(tmp_path, messages, 0)
    assert (again.queue_offset, again.count, again.log_end, again.read_ms) == (0, 0, 0, NOW_MS)
    again.close()
    once_more = opened(tmp_path, messages)
    assert (once_more.queue_offset, once_more.count, once_more.log_end) == (0, 0, 0)
    once_more.close()


def test_what_counts_up_to_behind_the_topics_end_is_taken_back(tmp_path: Path, messages: Messages) -> None:
    """A copy that grew again before anybody looked would have passed over what came instead."""
    files = opened(tmp_path, messages)
    files.add(messages.new(NOW_MS))
    files.queue_offset = 7
    checkpoint(files)
    files.close()
    cut(tmp_path, messages, 1).close()
    again = opened(tmp_path, messages)
    assert again.queue_offset == 1
    again.close()


def test_the_first_message_that_waits_is_known(tmp_path: Path, messages: Messages) -> None:
    """By its place in the log of messages, also where an orderly stop has written its unit anew."""
    files = opened(tmp_path, messages)
    assert files.first_waiting() is None
    for seconds in (1, 3, 2, 1):
        files.add(messages.new(NOW_MS + seconds * 1000))
    assert files.first_waiting() == 0
    early = files.slot_of(NOW_MS + 1000)
    files.start_anew(early, files.positions(early)[:1])
    assert files.first_waiting() == 0
    files.sync(files.snapshot(0), NOW_MS)
    files.close()
    files = opened(tmp_path, messages)
    assert files.first_waiting() == 0
    files.finish(early)
    assert files.first_waiting() == 100
    files.finish(files.slot_of(NOW_MS + 2000))
    files.finish(files.slot_of(NOW_MS + 3000))
    assert files.first_waiting() is None
    files.close()
