"""What a task makes of answers that are not as they should be: nothing is missing without a word."""

import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from aerobee import MessageQueue, TagFilter
from aerobee.consuming.ranges import Piece
from aerobee_proto.properties import encode_properties
from aerobee_proto.records import encode_record
from pyspark_aerobee.cluster import ClusterSettings
from pyspark_aerobee.errors import BatchesInRecords, DataLoss
from pyspark_aerobee.option_names import TOPIC_OPTIONS
from pyspark_aerobee.options import Options
from pyspark_aerobee.schema import message_schema
from pyspark_aerobee.topic_read import Judge, ReadSettings

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def settings(*, strict: bool = True, **more: Any) -> ReadSettings:
    given: dict[str, Any] = {
        "cluster": ClusterSettings.of(Options({"nameServer": "a"}, TOPIC_OPTIONS)),
        "schema": to_arrow_schema(message_schema(), timezone="UTC"),
        "filter": TagFilter(),
        "key": None,
        "fail_on_data_loss": strict,
    }
    return ReadSettings(**(given | more))


def record(offset: int, queue: MessageQueue = Q0, sys_flag: int = 0, **properties: str) -> bytes:
    return encode_record(
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=offset * 1000,
        born_timestamp=1,
        born_host=("127.0.0.1", 1),
        store_timestamp=2,
        store_host=("127.0.0.1", 2),
        body=b"body %d" % offset,
        properties=encode_properties(properties),
        flag=0,
        sys_flag=sys_flag,
        checksum=True,
    )


def piece(begin: int, end: int, *, without: tuple[int, ...] = (), queue: MessageQueue = Q0) -> Piece:
    body = b"".join(record(offset, queue) for offset in range(begin, end) if offset not in without)
    return Piece(queue, begin, end, body)


def read(judge: Judge, *pieces: Piece) -> list[tuple[int, int]]:
    batches: list[pa.RecordBatch] = list(judge.batches("b", list(pieces)))
    return [(row["queueId"], row["queueOffset"]) for batch in batches for row in batch.to_pylist()]


def test_pieces_of_several_queues_are_read_together() -> None:
    found = read(Judge(settings()), piece(3, 6), piece(10, 12, queue=Q1), piece(6, 7))
    assert found == [(0, 3), (0, 4), (0, 5), (1, 10), (1, 11), (0, 6)]


@pytest.mark.parametrize("strict", [True, False])
def test_a_batch_that_is_one_record_is_named(strict: bool) -> None:
    """Its messages are not told apart: the numbers behind its first would be taken for lost."""
    batch = Piece(Q0, 1, 4, record(1, sys_flag=0xC0, INNER_NUM="3", INNER_BASE="1"))
    with pytest.raises(
        BatchesInRecords, match=r"topic T holds batches that are one record \(queue.type=BatchCQ\)"
    ):
        read(Judge(settings(strict=strict)), piece(0, 1), batch)


def test_what_the_broker_has_deleted(caplog: pytest.LogCaptureFixture) -> None:
    gone = Piece(Q0, 0, 50, b"", lost=True)
    with pytest.raises(DataLoss, match=r"topic T, broker b, queue 0: offsets 0 to 49 cannot be read"):
        read(Judge(settings()), gone, piece(50, 52))
    with caplog.at_level(logging.WARNING):
        assert read(Judge(settings(strict=False)), gone, piece(50, 52)) == [(0, 50), (0, 51)]
    assert "offsets 0 to 49" in caplog.text


@pytest.mark.parametrize("missing", [(4,), (3,), (7,), (4, 5)])
def test_what_the_broker_left_out(missing: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    hole = piece(3, 8, without=missing)
    named = f"queue 1: offsets {missing[0]} to {missing[-1]}"
    other = hole._replace(queue=Q1, body=b"".join(record(o, Q1) for o in range(3, 8) if o not in missing))
    with pytest.raises(DataLoss, match=named):
        read(Judge(settings()), piece(0, 9), other, piece(9, 12))
    with caplog.at_level(logging.WARNING):
        assert len(read(Judge(settings(strict=False)), piece(0, 9), other, piece(9, 12))) == 17 - len(missing)
    assert named in caplog.text


def test_with_a_filter_brokers_leave_things_out() -> None:
    filtered = settings(filter=TagFilter("a"))
    body = record(3, TAGS="a") + record(7, TAGS="b") + record(9, TAGS="a")
    assert read(Judge(filtered), Piece(Q0, 0, 20, body)) == [(0, 3), (0, 9)]


def test_a_key_is_looked_for_in_each_row() -> None:
    body = record(0, KEYS="a b") + record(1, KEYS="ab") + record(2, UNIQ_KEY="a")
    assert read(Judge(settings(key="a")), Piece(Q0, 0, 3, body)) == [(0, 0), (0, 2)]


@pytest.mark.parametrize("at", [40, 95, 0])
def test_a_damaged_record_costs_itself(at: int, caplog: pytest.LogCaptureFixture) -> None:
    """A broken body or head; where even the size is broken, the rest of the answer cannot be told apart."""
    hurt = bytearray(record(5))
    hurt[at] ^= 0x40
    body = record(4) + bytes(hurt) + record(6)
    with pytest.raises(DataLoss, match=r"offsets 5 to 5.*damaged in the broker's log"):
        read(Judge(settings()), Piece(Q0, 4, 7, body))
    with caplog.at_level(logging.WARNING):
        found = read(Judge(settings(strict=False)), Piece(Q0, 4, 7, body), piece(7, 8))
    assert found == ([(0, 4), (0, 6), (0, 7)] if at else [(0, 4), (0, 7)])
    assert "damaged" in caplog.text
    if not at:
        assert "offsets 6 to 6" in caplog.text
