"""Reading records without trust: what is taken for one, and what is not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proto.records import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, encode_record
from aerobee_store.records.record_scan import BLANK, RecordFault, ScannedRecord, record_places, scan_record

HOST = ("10.1.2.3", 10911)


def record(
    place: int = 0, *, checksum: bool = True, property_crc: bool = False, body: bytes = b"body"
) -> bytes:
    return encode_record(
        topic="Orders",
        queue_id=3,
        queue_offset=5,
        physical_offset=place,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1_700_000_000_000,
        store_host=HOST,
        body=body,
        properties="TAGS\x01TagA\x02",
        checksum=checksum,
        property_crc=property_crc,
    )


def scan(raw: bytes, position: int = 0, place: int = 0, **options: bool) -> object:
    return scan_record(memoryview(raw), position, place, **options)


def fault(found: object) -> str:
    assert isinstance(found, RecordFault)
    return found.reason


def test_a_whole_record_is_read() -> None:
    raw = record(700)
    found = scan(bytes(50) + raw + bytes(9), 50, 700)
    assert isinstance(found, ScannedRecord)
    assert (found.physical_offset, found.size, found.topic) == (700, len(raw), "Orders")
    assert (found.queue_id, found.queue_offset, found.store_timestamp) == (3, 5, 1_700_000_000_000)
    assert found.properties.startswith(b"TAGS\x01TagA\x02")


def test_a_record_of_another_place_is_none() -> None:
    assert "physical offset is 700" in fault(scan(record(700), 0, 701))


def test_zeros_are_none() -> None:
    fault(scan(bytes(200)))
    fault(scan(bytes(3)))


def test_a_blank_fills_its_file_exactly() -> None:
    assert scan(SIZE_AND_MAGIC.pack(20, BLANK_MAGIC) + bytes(12)) is BLANK
    assert "blank of 20" in fault(scan(SIZE_AND_MAGIC.pack(20, BLANK_MAGIC) + bytes(13)))


def test_every_flipped_bit_of_a_sealed_record_is_seen() -> None:
    raw = record(64)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(scan(bytes(flipped), 0, 64, sealed=True), RecordFault), bit


def test_without_a_seal_only_the_body_is_covered() -> None:
    raw = bytearray(record(checksum=False))
    assert isinstance(scan(bytes(raw)), ScannedRecord)
    raw[raw.index(b"body")] ^= 1
    assert "body CRC" in fault(scan(bytes(raw)))


def test_a_missing_seal_is_a_fault_only_where_every_record_has_one() -> None:
    """A torn record whose end is still zero has no seal either."""
    plain = record(checksum=False)
    assert isinstance(scan(plain), ScannedRecord)
    assert "checksum is absent" in fault(scan(plain, sealed=True))
    torn = record()[:-40] + bytes(40)
    assert isinstance(scan(torn), ScannedRecord)
    assert isinstance(scan(torn, sealed=True), RecordFault)


def test_the_official_property_crc_is_asked_for_on_demand() -> None:
    good = record(property_crc=True)
    assert isinstance(scan(good, property_crc=True), ScannedRecord)
    assert isinstance(scan(record()), ScannedRecord)
    assert "property CRC" in fault(scan(record(), property_crc=True))


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 310))
def test_any_bytes_are_judged_and_never_raise(raw: bytes, position: int) -> None:
    assert isinstance(scan(raw, position), RecordFault) or raw


def test_places_are_found_by_their_magic() -> None:
    raw = bytes(10) + record() + b"\xda\xa3\x20" + record()
    second = 10 + len(record()) + 3
    assert list(record_places(memoryview(raw), 0, len(raw))) == [10, second]
    assert list(record_places(memoryview(raw), 15, second + 7)) == []
    assert list(record_places(memoryview(raw[14:]), 0, 30)) == []


@given(st.lists(st.sampled_from([MAGIC_V1, MAGIC_V2, 0xAABBCCDA, 0, 0xFFFFFFFF]), max_size=40), st.data())
def test_every_magic_of_both_kinds_is_found_in_order(words: list[int], data: st.DataObject) -> None:
    raw = b"".join(
        word.to_bytes(4, "big") + bytes(data.draw(st.integers(0, 3), label="between")) for word in words
    )
    begin = data.draw(st.integers(0, len(raw)), label="begin")
    end = data.draw(st.integers(begin, len(raw)), label="end")
    magics = {(magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2)}
    expected = [at - 4 for at in range(max(begin, 4), end - 3) if raw[at : at + 4] in magics]
    assert list(record_places(memoryview(raw), begin, end)) == expected
