"""`aerobee store verify` and `dump` on stores of the official program, whole and damaged, and on one in use."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_store.disk.extents import data_extents
from aerobee_store.disk.io import DiskIo
from aerobee_store.offline.inspection import Inspection
from console.support import Runner, environment, program
from store.golden import DAMAGED, WHOLE, expect, unpack
from store.offline.test_resume import damaged_store
from store.workload import message, open_store

# Damage that cannot be seen from outside or that is none: what was lost left no trace, the file is made anew by every
# start, or (queues of a store that was not closed) the log has everything and the next start goes on with it.
NOTHING_TO_SEE = {
    "checkpoint-future",
    "checkpoint-missing",
    "checkpoint-missing-normal",
    "checkpoint-zero",
    "commitlog-last-all-blank",
    "commitlog-last-missing",
    "commitlog-oldest-deleted",
    "commitlog-oldest-deleted-abort",
    "commitlog-only-last-kept",
    "commitlog-preallocated",
    "commitlog-preallocated-normal",
    "commitlog-zero-length-last",
    "cq-all-missing",
    "cq-behind",
    "cq-file-empty",
    "cq-last-file-missing",
    "cq-one-behind",
    "cq-queue-missing",
    "flip-storets",  # official records without the property CRC: the field is under no checksum
    "index-ahead",
    "index-kept",
    "index-last-missing",
    "index-missing",
    "index-missing-normal",
    "index-zeroed",  # the newest one, so it may be new
    "propcrc-flip-props",  # seen with --property-crc
    "stale-record-in-preallocated",
}
SEEN = [case for case in DAMAGED if case not in NOTHING_TO_SEE]


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Content and change time of every file and folder."""
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_store_is_sound_and_untouched(case: str, tmp_path: Path, aerobee: Runner) -> None:
    root = unpack(case, tmp_path)
    before = fingerprint(root)
    found = aerobee("store", "verify", str(root), "-o", "json")
    assert found.json["findings"] == []
    assert found.code == 0
    records = [one for one in expect(case)["records"] if not (isinstance(one, dict) and "blank" in one)]
    assert found.json["records"] == len(records)
    assert aerobee("store", "dump", str(root)).code == 0
    assert fingerprint(root) == before


@pytest.mark.parametrize("case", SEEN)
def test_damage_is_found_with_place_and_advice(case: str, tmp_path: Path, aerobee: Runner) -> None:
    root = unpack(case, tmp_path)
    before = fingerprint(root)
    found = aerobee("store", "verify", str(root), "--json")
    assert found.code == 1
    assert not found.json["sound"]
    for finding in found.json["findings"]:
        assert finding["path"]
        assert finding["reason"]
        assert finding["advice"]
    assert fingerprint(root) == before


@pytest.mark.parametrize("case", sorted(NOTHING_TO_SEE))
def test_what_is_no_damage_is_not_called_so(case: str, tmp_path: Path, aerobee: Runner) -> None:
    assert case in DAMAGED
    assert aerobee("store", "verify", str(unpack(case, tmp_path))).code == 0


FLIPPED = re.compile(r"bit \d of byte \d+ flipped .*record at phy (\d+)")


@pytest.mark.parametrize("case", [case for case in SEEN if FLIPPED.match(expect(case)["damage"][0])])
def test_a_flipped_bit_is_found_at_its_record(case: str, tmp_path: Path, aerobee: Runner) -> None:
    """In the log; what no official checksum covers, by the queue entry that leads there."""
    place = FLIPPED.match(expect(case)["damage"][0])
    assert place
    findings = aerobee("store", "verify", str(unpack(case, tmp_path)), "--json").json["findings"]
    in_log = {str(one["begin"]) for one in findings if one["path"].startswith("commitlog/")}
    by_queue = {word for one in findings for word in re.findall(r"\d+", one["reason"])}
    assert place[1] in in_log | by_queue


def test_the_official_record_checksum_on_demand(tmp_path: Path, aerobee: Runner) -> None:
    root = unpack("propcrc-flip-props", tmp_path)
    shown = aerobee("store", "verify", str(root), "--property-crc")
    assert shown.code == 1
    assert "at 15520" in shown.out


def test_the_verdict_for_people(tmp_path: Path, aerobee: Runner) -> None:
    shown = aerobee("store", "verify", str(unpack("flip-body", tmp_path))).lines
    assert shown[0].endswith("not closed in order (abort is there)")
    assert shown[1] == "log        169 records in 3 files, 0 to 101835"
    damage = "commitlog/00000000000000065536 at 82841 (369 bytes): body CRC does not match [topic GoldenB]"
    assert f"DAMAGED    {damage}" in shown
    assert shown[-1] == "2 findings"
    sound = aerobee("store", "verify", str(unpack("clean", tmp_path / "2"))).lines
    assert sound[-1] == "sound"


def test_messages_of_a_deleted_topic_are_no_damage(tmp_path: Path, aerobee: Runner) -> None:
    store = open_store(DiskIo(), root=tmp_path)
    for topic in ("Gone", "Stays"):
        store.append([message(topic, unique_key="U")] * 3)
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.topics.delete("Gone")
    store.close()
    found = aerobee("store", "verify", str(tmp_path))
    assert "note       3 records are of topics that were deleted" in found.out
    assert found.code == 0
    (tmp_path / "config" / "deletedTopics.json").write_text("garbage")
    found = aerobee("store", "verify", str(tmp_path))
    assert "deletedTopics.json" in found.out
    assert found.code == 1


def test_dump_has_every_record_of_the_official_reader(tmp_path: Path, aerobee: Runner) -> None:
    root = unpack("features", tmp_path)
    lines = [json.loads(line) for line in aerobee("store", "dump", str(root), "--json").lines]
    records = [line for line in lines if line["kind"] == "record"]
    expected = [one for one in expect("features")["records"] if "blank" not in one]
    assert len(records) == len(expected)
    assert [one["physical_offset"] for one in records] == [one["phyOffset"] for one in expected]
    assert [one["topic"] for one in records] == [one["topic"] for one in expected]
    assert lines[-1]["kind"] == "end"
    files = {line["path"] for line in lines if line["kind"] == "file"}
    assert {path for path, _ in expect("features")["inputFiles"] if path.startswith("commitlog")} <= files


def test_dump_of_a_part(tmp_path: Path, aerobee: Runner) -> None:
    root = str(unpack("clean", tmp_path))

    def places(*words: str) -> list[tuple[str, int, int]]:
        lines = map(json.loads, aerobee("store", "dump", root, "-o", "json", *words).lines)
        return [(r["topic"], r["queue_id"], r["queue_offset"]) for r in lines if r["kind"] == "record"]

    everything = places()
    assert places("--topic", "GoldenA") == [one for one in everything if one[0] == "GoldenA"]
    queue = places("--topic", "GoldenA", "--queue", "1", "--from", "3", "--count", "2")
    assert queue == [("GoldenA", 1, 3), ("GoldenA", 1, 4)]
    assert places("--count", "3") == everything[:3]
    assert places("--no-records") == []
    assert aerobee("store", "dump", root, "--queue", "1").code == 2


def test_dump_tells_damage_where_it_is_met(tmp_path: Path, aerobee: Runner) -> None:
    root = str(unpack("flip-body", tmp_path))
    dumped = aerobee("store", "dump", root, "--json")
    kinds = [json.loads(line) for line in dumped.lines]
    (at,) = [number for number, line in enumerate(kinds) if line["kind"] == "damage"]
    assert dumped.code == 1
    assert kinds[at]["begin"] == 82841
    assert kinds[at - 1]["physical_offset"] < 82841 < kinds[at + 1]["physical_offset"]
    assert "DAMAGED  commitlog/00000000000000065536 at 82841" in aerobee("store", "dump", root).out


def test_what_is_no_store_cannot_be_read(tmp_path: Path, aerobee: Runner) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        for verb in ("verify", "dump"):
            refused = aerobee("store", verb, str(place))
            assert refused.code == 2
            assert str(place) in refused.err


def test_a_store_in_use_is_read_and_left_alone(tmp_path: Path) -> None:
    """The lock is a POSIX one: it would be lost if its holder, not a neighbour, opened and closed the file."""
    from ours import start_broker, start_nameserver

    config = {"metricsPromExporterPort": 0, "maxHashSlotNum": 100, "maxIndexNum": 100}
    with (
        start_nameserver() as nameserver,
        start_broker(tmp_path, nameserver.address, config=config) as broker,
    ):
        root = str(tmp_path / "store")
        for body in ("one", "two"):
            assert program("send", "live", body, "--keys", "k", "-n", nameserver.address).code == 0
        found = program("store", "verify", root, "--json")
        assert found.code == 0
        assert found.json["state"] == f"in use by process {broker.pid}"
        assert found.json["records"] == 2
        dumped = map(json.loads, program("store", "dump", root, "--json").lines)
        assert [line["body"] for line in dumped if line["kind"] == "record"] == ["one", "two"]
        assert program("send", "live", "three", "-n", nameserver.address).code == 0
        assert program("store", "verify", root, "--json").json["state"].startswith("in use")
        assert broker.stop() == 0
    after = program("store", "verify", root, "--json").json
    assert (after["sound"], after["state"], after["records"]) == (True, "closed in order", 3)


def test_the_end_of_a_log_that_was_on_disk_and_is_gone_is_damage(tmp_path: Path) -> None:
    """Zeros at the end look like free room; the checkpoint knows better."""
    from ours import start_broker, start_nameserver

    config = {"metricsPromExporterPort": 0, "maxHashSlotNum": 100, "maxIndexNum": 100}
    with (
        start_nameserver() as nameserver,
        start_broker(tmp_path, nameserver.address, config=config) as broker,
    ):
        for body in ("one", "two"):
            assert program("send", "gone", body, "-n", nameserver.address).code == 0
        assert broker.stop() == 0
    store = Inspection(tmp_path / "store")
    *_, last = store.walk(lambda _: None)
    with (store.root / store.log_files[0].path).open("r+b") as file:
        file.seek(last.physical_offset)
        file.write(bytes(last.size))
    found = program("store", "verify", str(tmp_path / "store"))
    assert found.code == 1
    assert f"the log ends at {last.physical_offset}, and was on disk up to" in found.out


def test_a_reader_of_a_dump_may_leave(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "aerobee_console", "store", "dump", str(unpack("clean", tmp_path)), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    with started, started.stderr as errors:
        assert errors.read() == b""
        assert started.wait(30) == 141


def test_holes_of_a_file_are_not_looked_at(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"x")
        file.flush()
        stretches = list(data_extents(file.fileno(), 0, 8 << 20))
        assert all(begin <= 4 << 20 < end for begin, end in stretches)
        assert stretches
        assert list(data_extents(file.fileno(), 6 << 20, 8 << 20)) in ([], [(6 << 20, 8 << 20)])


def test_an_interrupted_verify_notes_where_it_was_in_a_file(tmp_path: Path, aerobee: Runner) -> None:
    root = damaged_store(tmp_path / "store")
    state = tmp_path / "state"
    found = aerobee("store", "verify", str(root), "--resume", str(state), "-o", "json")
    assert found.code == 1
    assert found.json["findings"]
    assert not state.exists()
    assert aerobee("store", "verify", str(root), "--resume", str(root / "x")).code == 2
