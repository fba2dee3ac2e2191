"""Records as columns: the fast way over a stretch of the log says what the careful one says, or says nothing."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.records import BLANK_MAGIC, MAGIC_V1, SIZE_AND_MAGIC, encode_record
from aerobee_store.index.index import hashed_keys
from aerobee_store.queues.consume_queue import ENTRY
from aerobee_store.queues.delay import entry_tag
from aerobee_store.records.record_scan import ScannedRecord, scan_record
from aerobee_store.terms.config import DEFAULT_DELAY_LEVELS_MS
from aerobee_store.walking.keys import keyed_record
from aerobee_store.walking.record_columns import Stretch, sound_records

BASE = 1 << 30
HOSTS = (("10.1.2.3", 10911), ("2001:db8::7", 10911))
TOPICS = ("Orders", "Bills", "%RETRY%" + "g" * 140, "Größe", SCHEDULE_TOPIC, "o", "t" * 127)
PROPERTIES = (
    "",
    "TAGS\x01TagA\x02",
    "UNIQ_KEY\x010A010203000018B4AAC2000000000001\x02TAGS\x01TagB\x02KEYS\x01order-1\x02",
    "UNIQ_KEY\x010A010203000018B4AAC2000000000002\x02KEYS\x01a b  c\x02DELAY\x013\x02",
    "KEYS\x01\x02UNIQ_KEY\x01\x02TAGS\x01\x02",  # empty values are none
    "KEYS\x01first\x02KEYS\x01second\x02TAGS\x01old\x02TAGS\x01",  # the last one that is not empty counts
    "XKEYS\x01no\x02MYTAGS\x01no\x02NO_UNIQ_KEY\x01no\x02",
    "note\x01TAGS\x01odd\x02UNIQ_KEY\x01\U0001f600é\x02KEYS\x01schlüssel \U0001f600\x02TAGS\x01größe\x02",
    "KEYS\x01" + "long" * 100 + "\x02TAGS\x01" + "T" * 300 + "\x02",
    "TAGS\x01last without an end",
    "DELAY\x0199\x02UNIQ_KEY\x01\x7fpolygenelubricants\x02",
    "DELAY\x01seven\x02",
)


def one_record(random: Random, place: int) -> bytes:
    topic = random.choice(TOPICS)
    properties: str | bytes = random.choice(PROPERTIES)
    if random.random() < 0.05:
        properties = b"TAGS\x01\xff\xfe\x02KEYS\x01\xff\x02UNIQ_KEY\x01ok\x02"
    return encode_record(
        topic=topic.encode() if random.random() < 0.95 else b"bad\xff",
        queue_id=random.choice((0, 1, 7)),
        queue_offset=random.randrange(1 << 40),
        physical_offset=place,
        born_timestamp=1,
        born_host=random.choice(HOSTS),
        store_timestamp=random.choice((1_700_000_000_000, 1_700_000_000_123, 1)),
        store_host=random.choice(HOSTS),
        body=random.randbytes(random.choice((0, 1, 20, 128, 700))),
        properties=properties,
        sys_flag=random.choice((0, 0, 0, 1, 4, 8, 12)),
        checksum=random.random() < 0.8,
        property_crc=random.random() < 0.2,
    )


def region(random: Random, count: int) -> bytearray:
    raw = bytearray()
    for _ in range(count):
        raw += one_record(random, BASE + len(raw))
    return raw


def careful(view: memoryview, sealed_from: int | None, *, proven: bool = False) -> list[ScannedRecord]:
    """The sound records from the beginning on, one by one."""
    found: list[ScannedRecord] = []
    position = 0
    while True:
        sealed = sealed_from is not None and BASE + position >= sealed_from
        one = scan_record(view, position, BASE + position, sealed=sealed, proven=proven)
        if not isinstance(one, ScannedRecord):
            return found
        found.append(one)
        position += one.size


def records_of(stretch: Stretch | None) -> list[ScannedRecord]:
    return [] if stretch is None else [stretch.record(index) for index in range(stretch.count)]


DAMAGE = ("flip", "zero", "copy", "grow", "stale", "swap")


def damage(random: Random, raw: bytearray, kind: str) -> None:
    """Spoil a piece of the region; its length stays."""
    at = random.randrange(len(raw))
    length = random.choice((1, 4, 30, 200))
    piece = bytes(raw[at : at + length])
    if kind == "flip":
        piece = bytes((piece[0] ^ 1 << random.randrange(8), *piece[1:]))
    elif kind == "zero":
        piece = bytes(len(piece))
    elif kind == "copy":
        source = random.randrange(len(raw))
        piece = bytes(raw[source : source + len(piece)])
    elif kind == "grow":
        piece = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\1\0"))
    elif (found := raw.find(b"__CRC32C\x01", at)) >= 0:
        # The place that the checksum was made for, or its last digits in the wrong case.
        at = found + (10 if kind == "stale" else 26)
        piece = b"77" if kind == "stale" else b"f"
    piece = piece[: len(raw) - at]
    raw[at : at + len(piece)] = piece


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 40),
    kinds=st.lists(st.sampled_from(DAMAGE), max_size=3),
    sealed=st.sampled_from(("no", "all", "half")),
    tail=st.sampled_from(("nothing", "zeros", "blank", "garbage")),
)
def test_the_fast_way_and_the_careful_one_agree(
    seed: int, count: int, kinds: list[str], sealed: str, tail: str
) -> None:
    random = Random(seed)
    raw = region(random, count)
    middle = BASE + len(raw) // 2
    for kind in kinds:
        damage(random, raw, kind)
    raw += {
        "nothing": b"",
        "zeros": bytes(300),
        "blank": SIZE_AND_MAGIC.pack(120, BLANK_MAGIC) + bytes(112),
    }.get(tail, random.randbytes(300))
    sealed_from = {"no": None, "all": 0, "half": middle}[sealed]
    view = memoryview(bytes(raw))
    expected = careful(view, sealed_from)
    stretch = sound_records(view, 0, BASE, stop=len(raw), sealed_from=sealed_from)
    assert records_of(stretch) == expected
    unproven = careful(view, sealed_from, proven=True)
    stretch = sound_records(view, 0, BASE, stop=len(raw), sealed_from=sealed_from, proven=True)
    assert records_of(stretch) == unproven


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 60))
def test_entries_queues_and_keys_are_those_of_the_single_records(seed: int, count: int) -> None:
    raw = region(Random(seed), count)
    stretch = sound_records(memoryview(bytes(raw)), 0, BASE, stop=len(raw))
    assert stretch is not None
    records = records_of(stretch)
    assert len(records) == count
    assert stretch.end_offset == BASE + len(raw)
    levels = DEFAULT_DELAY_LEVELS_MS
    tags = [entry_tag(one.topic, one.properties, one.store_timestamp, levels) for one in records]
    packed = [ENTRY.pack(one.physical_offset, one.size, tag) for one, tag in zip(records, tags, strict=True)]
    assert stretch.entries(levels).tobytes() == b"".join(packed)
    found = {(topic, queue): members.tolist() for topic, queue, members in stretch.queues()}
    requested: dict[tuple[str, int], list[int]] = {}
    for index, one in enumerate(records):
        if one.sys_flag & 12 not in (4, 12):
            requested.setdefault((one.topic, one.queue_id), []).append(index)
    assert found == requested
    keyed = [key for one in records if (key := keyed_record(one)) is not None]
    for ours, theirs in zip(stretch.keys(), hashed_keys(keyed), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_only_chosen_records_have_keys() -> None:
    raw = region(Random(5), 30)
    stretch = sound_records(memoryview(bytes(raw)), 0, BASE, stop=len(raw))
    assert stretch is not None
    chosen = np.arange(stretch.count) % 3 == 1
    places = set(stretch.keys(chosen).physical_offsets.tolist())
    assert places
    assert places == set(stretch.keys().physical_offsets.tolist()) & set(
        stretch.physical_offsets[chosen].tolist()
    )


def test_many_different_topics_and_tags_are_told_apart() -> None:
    raw = bytearray()
    for number in range(300):
        raw += encode_record(
            topic=f"Topic-{number % 101:03d}",
            queue_id=number % 2,
            queue_offset=number,
            physical_offset=BASE + len(raw),
            born_timestamp=1,
            born_host=HOSTS[0],
            store_timestamp=1,
            store_host=HOSTS[0],
            body=b"",
            properties=f"TAGS\x01tag-{number % 97:02d}\x02",
        )
    stretch = sound_records(memoryview(bytes(raw)), 0, BASE, stop=len(raw))
    names, ids = stretch.topics() if stretch is not None else ([], np.zeros(0, np.int64))
    assert [names[at] for at in ids] == [f"Topic-{number % 101:03d}" for number in range(300)]


def test_a_stretch_ends_with_the_first_record_that_reaches_its_stop() -> None:
    raw = region(Random(1), 20)
    whole = careful(memoryview(bytes(raw)), None)
    stop = whole[0].size + 1
    stretch = sound_records(memoryview(bytes(raw)), 0, BASE, stop=stop)
    assert stretch is not None
    assert (stretch.count, stretch.end) == (2, whole[0].size + whole[1].size)


@pytest.mark.parametrize("raw", [b"", bytes(3), bytes(90), bytes(5000), b"\xff" * 200], ids=len)
def test_bytes_that_are_no_record_are_no_stretch(raw: bytes) -> None:
    assert sound_records(memoryview(raw), 0, BASE) is None


def test_a_topic_whose_length_is_negative_is_no_record() -> None:
    raw = bytearray(
        encode_record(
            topic="t" * 200,
            queue_id=0,
            queue_offset=0,
            physical_offset=BASE,
            born_timestamp=1,
            born_host=HOSTS[0],
            store_timestamp=1,
            store_host=HOSTS[0],
            body=b"",
        )
    )
    assert records_of(sound_records(memoryview(bytes(raw)), 0, BASE)) != []
    raw[88:90] = b"\xc8"  # one byte of length, 200 if it had no sign
    raw[0:4] = len(raw).to_bytes(4, "big")
    raw[4:8] = MAGIC_V1.to_bytes(4, "big")
    assert careful(memoryview(bytes(raw)), None) == []
    assert sound_records(memoryview(bytes(raw)), 0, BASE) is None
