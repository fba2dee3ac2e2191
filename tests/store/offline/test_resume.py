"""An interrupted verify goes on where it was, and says what an uninterrupted one says."""

import itertools
import json
from pathlib import Path
from random import Random

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.offline.inspection import Inspection
from aerobee_store.offline.resume import NotAResume, Resume
from aerobee_store.offline.verify import Verified, verify
from store.workload import Clock, Workload


def damaged_store(root: Path) -> Path:
    """A closed store of four log files with a broken record in the first one and a broken entry."""
    work = Workload(Random(3), DiskIo(), Clock(), root=root)
    work.store.open()
    while work.store.end_offset < 4 * 16384:
        work.append()
    work.store.close()
    log = root / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[work.stored[2].physical_offset + 95] ^= 1
    log.write_bytes(content)
    topic, queue_id = work.stored[-1].key
    queue = sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())[-1]
    content = bytearray(queue.read_bytes())
    content[19] ^= 1
    queue.write_bytes(content)
    return root


def said(found: Verified) -> object:
    return found.verdict()


class _Stopped(BaseException):
    pass


def test_a_run_that_is_stopped_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    root = damaged_store(tmp_path / "store")
    whole = verify(Inspection(root), lambda _: None)
    assert whole.findings
    state = tmp_path / "state"
    for stop_at in itertools.count(1):
        calls = 0

        def advance(_: int, last: int = stop_at) -> None:
            nonlocal calls
            calls += 1
            if calls > last:
                raise _Stopped

        resume = Resume(state, root)
        try:
            found = verify(Inspection(root), advance, resume)
        except _Stopped:
            facts = json.loads(state.read_text())["facts"]
            assert facts["end"] <= whole.folder.log_end.offset if whole.folder.log_end else False
            continue
        break
    assert said(found) == said(whole)
    assert stop_at > 3
    assert not state.exists()


def test_the_state_of_another_store_is_not_taken_up(tmp_path: Path) -> None:
    state = tmp_path / "state"
    other = Inspection(damaged_store(tmp_path / "other"))
    Resume(state, other.root).save(other, {"end": 1})
    folder = Inspection(damaged_store(tmp_path / "store"))
    assert Resume(state, folder.root).load(folder) is None
    assert Resume(state, other.root).load(other) == {"end": 1}


def test_what_an_earlier_version_has_looked_at_is_looked_at_again(tmp_path: Path) -> None:
    """It did not compare the index."""
    folder = Inspection(damaged_store(tmp_path / "store"))
    state = tmp_path / "state"
    resume = Resume(state, folder.root)
    resume.save(folder, {"end": 1})
    assert resume.load(folder) == {"end": 1}
    state.write_text(state.read_text().replace('"format": 2', '"format": 1'))
    assert resume.load(folder) is None


def test_a_state_that_is_none_is_refused(tmp_path: Path) -> None:
    root = damaged_store(tmp_path / "store")
    state = tmp_path / "state"
    odd = (
        "{",
        "[]",
        '{"format": 3, "facts": {}}',
        '{"format": 2}',
        '{"format": 2, "facts": []}',
        "[" * 100_000,
    )
    for content in odd:
        state.write_text(content)
        with pytest.raises(NotAResume, match="no file of an earlier run"):
            Resume(state, root).load(Inspection(root))
    with pytest.raises(NotAResume, match="outside"):
        Resume(root / "commitlog" / "state", root)
