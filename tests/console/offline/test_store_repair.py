"""`aerobee store repair`: queues and index from the log alone, damage put aside, decisions left to people."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from aerobee_store.disk.io import DiskIo
from console.support import Result, program
from store.golden import expect, unpack
from store.workload import Clock, Workload

Run = Callable[..., Result]
SIZES = ("--set", "maxHashSlotNum=50", "--set", "maxIndexNum=120")


@pytest.fixture
def aerobee() -> Run:
    """The command as a program of its own: the store's log events go where that program sends them."""
    return program


def closed_store(root: Path) -> Workload:
    work = Workload(Random(11), DiskIo(), Clock(), root=root)
    work.store.open()
    while work.store.end_offset < 3 * 16384:
        work.append()
    work.store.close()
    return work


def damage_queue(root: Path, work: Workload) -> None:
    topic, queue_id = work.stored[0].key
    path = sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())[0]
    content = bytearray(path.read_bytes())
    content[25] ^= 4  # in the middle of a queue that was closed in order: no start looks there
    path.write_bytes(content)


def test_what_a_start_would_not_see_is_mended(tmp_path: Path, aerobee: Run) -> None:
    root = tmp_path / "store"
    work = closed_store(root)
    damage_queue(root, work)
    shutil.rmtree(root / "consumequeue" / work.stored[-1].key[0])
    (root / "index" / sorted(path.name for path in (root / "index").iterdir())[0]).unlink()
    assert aerobee("store", "verify", str(root)).code == 1
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    expected = aerobee("store", "repair", str(root), "--dry-run", *SIZES)
    assert expected.code == 1
    assert "write again what does not agree" in expected.out
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    done = aerobee("store", "repair", str(root), *SIZES)
    assert (done.code, done.err.count("store.recovered")) == (0, 1)
    assert f"read {len(work.stored)} records" in done.out
    assert aerobee("store", "verify", str(root)).out.endswith("sound\n")
    store = work.restart(DiskIo())
    store.open()
    store.check()
    for one in work.stored:
        if one.message.unique_key:
            topic, key = one.message.topic, one.message.unique_key
            assert one.record in [bytes(b) for b in store.keys.query(topic, key, 64, 0, 1 << 62).body]
    store.close()


def test_damage_is_put_aside_and_told(tmp_path: Path, aerobee: Run) -> None:
    root = tmp_path / "store"
    work = closed_store(root)
    log = root / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    bad = work.stored[4]
    content[bad.physical_offset + 95] ^= 1
    log.write_bytes(content)
    done = aerobee("store", "repair", str(root), *SIZES, "--json")
    assert done.code == 1
    assert any("quarantine" in step and str(bad.physical_offset) in step for step in done.json["did"])
    assert [path.name for path in (root / "quarantine").iterdir()] == [
        f"{bad.physical_offset:020d}-{bad.end:020d}"
    ]


def test_missing_bytes_need_a_decision(tmp_path: Path, aerobee: Run) -> None:
    root = tmp_path / "store"
    work = closed_store(root)
    last = sorted((root / "commitlog").iterdir())[-1]
    last.write_bytes(bytes(last.stat().st_size))
    refused = aerobee("store", "repair", str(root), *SIZES)
    assert refused.code == 1
    assert "--accept-loss" in refused.err
    done = aerobee("store", "repair", str(root), "--accept-loss", *SIZES)
    assert done.code == 1
    assert "went on without what is missing" in done.out
    store = work.restart(DiskIo())
    store.open()
    store.check()
    store.close()


def test_a_store_that_a_broker_has_is_left_alone(tmp_path: Path, aerobee: Run) -> None:
    root = tmp_path / "store"
    work = closed_store(root)
    store = work.restart(DiskIo())
    store.open()
    refused = aerobee("store", "repair", str(root), *SIZES)
    assert refused.code == 2
    assert f"{root} is in use by process" in refused.err
    logged = aerobee("store", "repair", str(root), "--dry-run", "--set", "maxIndexNum=77")
    assert logged.code == 2
    assert f"{root} is in use by process" in logged.err, "the lock comes before what depends on settings"
    store.close()


def test_index_files_of_another_size_are_a_question(tmp_path: Path, aerobee: Run) -> None:
    root = tmp_path / "store"
    closed_store(root)
    refused = aerobee("store", "repair", str(root))
    assert refused.code == 2
    assert "maxHashSlotNum" in refused.err


def test_keys_that_the_index_has_lost_are_indexed(tmp_path: Path, aerobee: Run) -> None:
    root = tmp_path / "store"
    closed_store(root)
    path = min((root / "index").iterdir())
    content = bytearray(path.read_bytes())
    for number in range(40, 50):
        content[40 + 50 * 4 + number * 20] ^= 1  # the hash of a key
    path.write_bytes(content)
    before = aerobee("store", "verify", str(root))
    assert "are not in it, so that queries by key do not find these" in before.out
    assert "           `aerobee store repair` indexes them" in before.out
    assert before.code == 1
    assert aerobee("store", "repair", str(root), *SIZES).code == 0
    assert aerobee("store", "verify", str(root)).out.endswith("sound\n")


@pytest.mark.parametrize("case", ["cq-all-missing", "index-garbage"])
def test_stores_of_the_official_program_are_repaired(case: str, tmp_path: Path, aerobee: Run) -> None:
    root = unpack(case, tmp_path)
    given = expect(case)["config"]
    sizes = [f"{name}={given[name]}" for name in ("maxHashSlotNum", "maxIndexNum")]
    assert aerobee("store", "repair", str(root), "--set", sizes[0], "--set", sizes[1]).code == 0
    assert aerobee("store", "verify", str(root)).code == 0
