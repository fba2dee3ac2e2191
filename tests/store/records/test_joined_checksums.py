"""One checksum for many: it is that of the run exactly when each record's is its own."""

from random import Random

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proto.checksum import RECORD_CHECKSUM_SIZE, record_checksum_entry
from aerobee_store.records.joined_checksums import RUN_SIZE_MAX, claimed_checksums, run_checksum


def run_of(records: list[tuple[int, bytes]]) -> tuple[bytes, int]:
    """Records, each an offset and bytes, sealed and side by side; what the run's checksum should be."""
    claimed = np.array([crc32c(content) for _, content in records], np.uint32)
    sealed = [
        content + record_checksum_entry(offset, int(crc))
        for (offset, content), crc in zip(records, claimed, strict=True)
    ]
    offsets = np.array([offset for offset, _ in records], np.int64)
    sizes = np.array([len(one) for one in sealed], np.int64)
    return b"".join(sealed), run_checksum(offsets, sizes, claimed)


@given(st.lists(st.tuples(st.integers(0, (1 << 63) - 1), st.binary(max_size=300)), min_size=1, max_size=40))
def test_checksum_of_a_run(records: list[tuple[int, bytes]]) -> None:
    run, expected = run_of(records)
    assert crc32c(run) == expected


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 32), bits=st.sampled_from((1, 2, 3, 17)))
def test_damage_in_one_record_changes_it(seed: int, bits: int) -> None:
    random = Random(seed)
    run, expected = run_of([(number << 20, random.randbytes(200)) for number in range(30)])
    damaged = bytearray(run)
    record = random.randrange(30) * (200 + RECORD_CHECKSUM_SIZE)
    for place in random.sample(range(8 * 200), bits):
        damaged[record + place // 8] ^= 1 << place % 8
    assert crc32c(damaged) != expected


def test_a_run_as_long_as_they_may_be() -> None:
    random = Random(1)
    content = random.randbytes(RUN_SIZE_MAX // 16 - RECORD_CHECKSUM_SIZE - 1)
    run, expected = run_of([(number, content) for number in range(16)])
    assert len(run) <= RUN_SIZE_MAX
    assert len(run) > RUN_SIZE_MAX - 64
    assert crc32c(run) == expected


@pytest.mark.parametrize("value", [0, 1, 0x0123_4567, 0x89AB_CDEF, 0xFFFF_FFFF])
def test_hex_digits_are_read(value: int) -> None:
    words = np.frombuffer(b"%08X" % value, "<u8")
    assert claimed_checksums(words).tolist() == [value]
