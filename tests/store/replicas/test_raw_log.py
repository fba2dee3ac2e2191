"""A replica that is given the bytes of another log, in pieces cut anywhere, is the same store."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aerobee_proto.checksum import seal_record
from aerobee_store.faults.errors import CorruptStore, NotInLog, StorePoisoned
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage
from engines import made_engine, need_engine
from simulation.machine import Machine
from store.memory_io import MemoryIo, RandomSurvivors
from store.workload import HOST, ROOT, Clock, Workload, message, open_store

FILE_SIZE = 16384
PAGE = 4096
CHANGED_COUNT = 150
HOST_V6 = bytes(range(16)) + bytes((0, 0, 17, 34))

OpenCopy = Callable[..., MessageStore]


def opened_natively(io: MemoryIo, **changes: Any) -> MessageStore:
    """As `open_store`, and the native engine walks over what comes."""
    store = open_store(io, **changes)
    store.raw.walker = made_engine().walk
    return store


@pytest.fixture(params=["python", "native"])
def open_copy(request: pytest.FixtureRequest) -> OpenCopy:
    """Opens the store of a replica."""
    return opened_natively if need_engine(request.param) == "native" else open_store


def source(seed: int, **changes: object) -> tuple[MemoryIo, Workload]:
    """An open store with some log files, all of it on disk."""
    io = MemoryIo()
    work = Workload(Random(seed), io, Clock(), **changes)
    work.store.open()
    while work.store.end_offset < 3 * FILE_SIZE:
        work.append()
    work.store.flush_disk()
    work.store.confirm(work.store.end_offset)
    return io, work


def replicate(giver: MessageStore, taker: MessageStore, random: Random, until: int | None = None) -> None:
    """In pieces of random length, none of which crosses the end of a file."""
    while until is None or taker.next_raw_offset < until:
        at = taker.next_raw_offset
        piece = giver.read_raw(at, random.choice((1, 7, 100, 3000, 32768)))
        if not piece:
            return
        assert at // FILE_SIZE == (at + len(piece) - 1) // FILE_SIZE
        taker.append_raw(at, bytes(piece))
        if random.random() < 0.2:
            taker.flush_disk()
            taker.confirm(taker.flushed_offset)


def log_bytes(io: MemoryIo) -> dict[str, bytes]:
    return {path.name: io.read_bytes(path) or b"" for path in io.paths() if path.parent.name == "commitlog"}


def settle(store: MessageStore) -> None:
    store.flush_disk()
    store.confirm(store.end_offset)
    store.keys.build(1 << 30)
    store.flush_queues()


def said(store: MessageStore, topic: str, queue_id: int) -> list[tuple[int, ...]]:
    return [tuple(entry) for entry in store.reading.queue_entries(topic, queue_id, 0, 10_000)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("record_checksum", [True, False])
def test_a_replica_has_the_same_log_queues_and_keys(
    open_copy: OpenCopy, seed: int, record_checksum: bool
) -> None:
    io, work = source(seed, record_checksum=record_checksum)
    copy = MemoryIo()
    replica = open_copy(copy)
    replicate(work.store, replica, Random(seed))
    assert replica.end_offset == replica.next_raw_offset == work.store.end_offset
    settle(replica)
    assert log_bytes(copy) == log_bytes(io)
    for topic, queue_id in {one.key for one in work.stored}:
        assert said(replica, topic, queue_id) == said(work.store, topic, queue_id)
    for one in work.stored[:: max(len(work.stored) // 20, 1)]:
        key = one.message.unique_key
        if key and replica.reading.queue_entry(*one.key, one.queue_offset) is not None:
            assert replica.keys.query(one.message.topic, key, 1, 0, 1 << 60).body
    replica.check()
    replica.close()
    again = open_copy(copy)
    again.check()
    assert again.end_offset == work.store.end_offset


@pytest.mark.parametrize("seed", range(12))
def test_a_replica_that_crashes_goes_on_at_its_end(open_copy: OpenCopy, seed: int) -> None:
    random = Random(seed)
    io, work = source(seed, record_checksum=seed % 2 == 0)
    copy = MemoryIo()
    replica = open_copy(copy)
    for _ in range(3):
        replicate(work.store, replica, random, until=replica.end_offset + random.randrange(1, FILE_SIZE))
        promised = replica.flushed_offset
        # A power failure that leaves later pages and not earlier ones makes damage, as in any log: see recovery.
        copy = copy.crash() if random.random() < 0.5 else copy.kill()
        replica = open_copy(copy)
        assert replica.end_offset >= promised
        replica.check()
    replicate(work.store, replica, random)
    settle(replica)
    replica.check()
    assert log_bytes(copy) == log_bytes(io)


def test_an_empty_replica_may_begin_with_a_later_file(open_copy: OpenCopy) -> None:
    _, work = source(5)
    replica = open_copy(MemoryIo())
    with pytest.raises(NotInLog):
        replica.append_raw(100, b"x")
    begin = 2 * FILE_SIZE
    replica.append_raw(begin, bytes(work.store.read_raw(begin, 50)))
    replicate(work.store, replica, Random(5))
    settle(replica)
    assert (replica.min_physical_offset, replica.end_offset) == (begin, work.store.end_offset)
    for topic, queue_id in {one.key for one in work.stored if one.physical_offset >= begin}:
        kept = [entry for entry in said(work.store, topic, queue_id) if entry[0] >= begin]
        assert said(replica, topic, queue_id) == kept
        assert replica.reading.max_offset(topic, queue_id) == work.store.reading.max_offset(topic, queue_id)
    replica.check()


def test_bytes_that_are_no_record_of_their_place_are_not_taken(open_copy: OpenCopy) -> None:
    _, work = source(6)
    replica = open_copy(MemoryIo())
    first, second = work.stored[:2]
    data = bytearray(work.store.read_raw(0, second.end))
    data[second.physical_offset + 95] ^= 1
    replica.append_raw(0, bytes(data[:300]))
    before = (replica.end_offset, replica.next_raw_offset)
    assert before[1] == 300
    with pytest.raises(CorruptStore) as refused:
        replica.append_raw(300, bytes(data[300:]))
    assert refused.value.physical_offset == second.physical_offset
    assert (replica.end_offset, replica.next_raw_offset) == before
    # The source begins anew at the end of what is in the log.
    replicate(work.store, replica, Random(6))
    assert replica.end_offset == work.store.end_offset
    assert first.end <= before[0] or before[0] == 0


def test_a_piece_that_belongs_elsewhere_is_refused(open_copy: OpenCopy) -> None:
    _, work = source(7)
    replica = open_copy(MemoryIo())
    replica.append_raw(0, bytes(work.store.read_raw(0, 1000)))
    for offset in (1001, 999, FILE_SIZE):
        with pytest.raises(NotInLog):
            replica.append_raw(offset, b"x" * 10)
    beyond = bytes(work.store.read_raw(1000, FILE_SIZE)) + b"x"
    with pytest.raises(CorruptStore, match="beyond the end of the file"):
        replica.append_raw(1000, beyond)


def test_nothing_is_given_that_is_not_on_disk_or_not_there_any_more() -> None:
    store = open_store(MemoryIo())
    store.append([message(body=b"x" * 100)])
    assert bytes(store.read_raw(0, 1000)) == b""
    with pytest.raises(NotInLog):
        store.read_raw(store.end_offset, 10)
    store.flush_disk()
    assert len(store.read_raw(0, 1000)) == store.end_offset
    assert bytes(store.read_raw(store.end_offset, 10)) == b""
    with pytest.raises(NotInLog):
        store.read_raw(-1, 10)


def test_what_the_source_does_not_seal_is_no_damage_after_a_crash_of_a_replica_that_seals(
    open_copy: OpenCopy,
) -> None:
    """A start takes a record without its checksum for a damaged one, from where on the store has sealed all."""
    _, work = source(8, record_checksum=False)
    copy = MemoryIo()
    replica = open_copy(copy, record_checksum=True)
    replica.close()
    replica = open_copy(copy, record_checksum=True)
    replicate(work.store, replica, Random(8))
    replica.flush_disk()
    again = open_copy(copy.crash(RandomSurvivors(Random(8))))
    assert again.end_offset == work.store.end_offset
    again.check()


def test_a_disk_that_refuses_the_checkpoint_fails_the_replica() -> None:
    """Found by a simulation: the replica's store said OSError, which nobody expects of it, and the link ended without
    a word of why."""
    _, work = source(8)
    machine = Machine(8)
    replica = machine.start()
    replica.close()
    replica = machine.start()
    machine.disk.syncs_left = 0
    with pytest.raises(StorePoisoned, match="the disk failed at the checkpoint"):
        replica.append_raw(0, bytes(work.store.read_raw(0, 100)))
    assert replica.has_failed


def test_the_ends_of_files_are_the_same_to_the_byte(open_copy: OpenCopy) -> None:
    io, work = source(9)
    copy = MemoryIo()
    replica = open_copy(copy)
    replicate(work.store, replica, Random(9), until=FILE_SIZE)
    name = Path(ROOT / "commitlog" / f"{0:020d}")
    assert copy.read_bytes(name) == io.read_bytes(name)
    assert replica.end_offset == FILE_SIZE


def rich(random: Random, number: int) -> NewMessage:
    """A message with whatever dispatch looks at."""
    keys = random.choice((None, "k", "one two  three", f"order-{number}", "schlüssel \U0001f41d", " "))
    return message(
        random.choice(("Orders", "Orders", "Payments", "%RETRY%g", "t" * 130)),
        random.randrange(4),
        random.randbytes(random.choice((0, 1, 100, 700))),
        tag=random.choice((None, "a", "zwölf", "TAGS")),
        keys=keys,
        unique_key=random.choice((None, f"0A000001{number:024X}")),
        sys_flag=random.choice((0, 0, 0, 4, 8, 12)),
        host=random.choice((HOST, HOST_V6)),
        extra=random.choice(({}, {"A": "TAGS"}, {"XTAGS": "b"})),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("record_checksum", [True, False])
def test_both_engines_make_the_same_store_of_the_same_bytes(seed: int, record_checksum: bool) -> None:
    need_engine("native")
    random, clock = Random(seed), Clock()
    given = open_store(MemoryIo(), clock=clock, record_checksum=record_checksum)
    for number in range(0, 300, 5):
        given.append([rich(random, number + one) for one in range(5)])
        clock.now_ms += random.choice((0, 0, 1, 40))
    given.flush_disk()
    made: list[dict[Path, bytes | None]] = []
    for open_one in (open_store, opened_natively):
        io = MemoryIo()
        copy = open_one(io, clock=Clock())
        replicate(given, copy, Random(seed))
        assert copy.end_offset == given.end_offset
        settle(copy)
        made.append({path: io.read_bytes(path) for path in io.paths()})
    assert made[0] == made[1]


def outcome(store: MessageStore, data: bytes) -> tuple[object, ...]:
    """What the store makes of these bytes at its end."""
    try:
        end = store.append_raw(store.next_raw_offset, data)
    except CorruptStore as refused:
        return "refused", refused.physical_offset, refused.reason, store.end_offset
    settle(store)
    queues = [(queue_id, said(store, "Orders", queue_id)) for queue_id in range(4)]
    return "taken", end, store.next_raw_offset, queues


def test_changed_bytes_are_the_same_to_both_engines() -> None:
    """With checksums made anew at times, so that more than those is asked for."""
    need_engine("native")
    random = Random(11)
    given = open_store(MemoryIo())
    stored = given.append([rich(random, number) for number in range(12)])
    given.flush_disk()
    whole = bytes(given.read_raw(0, given.end_offset))
    taken = 0
    for _ in range(CHANGED_COUNT):
        data = bytearray(whole)
        one = random.choice(stored)
        record = bytearray(data[one.physical_offset : one.physical_offset + one.size])
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            record[random.randrange(len(record))] = random.choice(
                (random.getrandbits(8), 0, 1, 2, 32, 0xFF, 0x80)
            )
        if random.randrange(2) and record[-34:-25] == b"__CRC32C\x01":
            seal_record(record)
        data[one.physical_offset : one.physical_offset + one.size] = record
        found = [outcome(open_one(MemoryIo()), bytes(data)) for open_one in (open_store, opened_natively)]
        assert found[0] == found[1]
        taken += found[0][0] == "taken"
    assert CHANGED_COUNT / 50 < taken < CHANGED_COUNT


@pytest.mark.parametrize("left_out", ["the last page", 200, 30, 1, 0])
def test_a_record_whose_end_was_never_written_is_cut_and_comes_again(left_out: str | int) -> None:
    """Killed while it wrote, a replica took half a record for a whole one, and its master refused it ever after. A
    process is killed at a page that is not there yet, or anywhere in one."""
    giver, io = open_store(MemoryIo()), MemoryIo()
    long = message("T", 0, b"x" * 20, extra={"k": "v" * 300})
    while giver.end_offset + 400 < PAGE:
        giver.append([message("T")])
    begin = giver.end_offset
    giver.append([long])
    settle(giver)
    end = giver.end_offset
    assert begin < PAGE < end
    replica = open_store(io, is_copy=True)
    replica.append_raw(0, bytes(giver.read_raw(0, end) or b""))
    assert replica.end_offset == end
    killed = io.kill()
    torn = PAGE if isinstance(left_out, str) else end - left_out
    if left_out:
        path = next(path for path in killed.paths() if path.parent.name == "commitlog")
        killed.open_file(path, FILE_SIZE).zero(torn, end - torn)
    again = open_store(killed, is_copy=True)
    assert again.end_offset == (begin if left_out else end)
    if left_out:
        again.append_raw(begin, bytes(giver.read_raw(begin, end) or b""))
    settle(again)
    assert said(again, "T", 0) == said(giver, "T", 0)
    assert log_bytes(killed) == log_bytes(io)
