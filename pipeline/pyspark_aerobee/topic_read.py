"""One partition of topics, pulled from brokers, as Arrow batches.

Touches  brokers; on an executor.

What brokers answer is stored records, one behind the other. They are put side by side, proven and cut into columns
together; no message becomes a Python object. Answers of several pulls are on their way while columns are made.

Invariants
- Without a filter every offset of the partition is a row, or the task fails with DataLoss, or, with
  failOnDataLoss=false, a warning in its log names the offsets.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from aerobee import ClientError, TagFilter
from aerobee.consuming.ranges import Piece, QueueRange, RangeReader
from aerobee.terms.filters import Filter
from aerobee_proto.codes import SysFlag
from aerobee_proto.records import RECORD_SIZE_MIN
from aerobee_store.records.property_columns import Ints
from aerobee_store.records.record_scan import RecordFault, scan_record
from aerobee_store.walking.record_columns import Stretch, sound_records
from pyspark_aerobee.cluster import Cluster, ClusterSettings
from pyspark_aerobee.columns import ColumnBuilder
from pyspark_aerobee.errors import BatchesInRecords, DataLoss, SourceGone
from pyspark_aerobee.store_plan import StoreQuery
from pyspark_aerobee.store_read import chosen_records
from pyspark_aerobee.worker import keep_modules

__all__ = ["Judge", "ReadSettings", "read_ranges"]

log = logging.getLogger("pyspark_aerobee")

STEP: Final = 4 << 20  # bytes of records in one batch
_COMPACTED: Final = "the broker left them out; a compacted topic has such gaps"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task needs to know besides its partition."""

    cluster: ClusterSettings
    schema: pa.Schema
    filter: Filter
    key: str | None
    fail_on_data_loss: bool

    @property
    def is_unfiltered(self) -> bool:
        """Whether brokers give out every message."""
        return isinstance(self.filter, TagFilter) and self.filter.tags is None

    @property
    def row_filter(self) -> StoreQuery | None:
        """What is to be looked at in each row: brokers compare hashes of tags, an index those of keys."""
        if self.filter.tags is None and self.key is None:
            return None
        return StoreQuery(tags=self.filter.tags, key=self.key, system_topics=True)


def read_ranges(settings: ReadSettings, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
    """The messages of the ranges, in order. DataLoss, SourceGone."""
    keep_modules()
    judge = Judge(settings)
    with Cluster(settings.cluster) as cluster:
        reader = cluster.client.ranges(settings.cluster.reading).reader(ranges, settings.filter)
        try:
            while pieces := _next(cluster, reader, ranges):
                for broker_name, group in groupby(pieces, lambda piece: piece.queue.broker_name):
                    yield from judge.batches(broker_name, list(group))
        finally:
            cluster.run(reader.close())


def _next(cluster: Cluster, reader: RangeReader, ranges: Sequence[QueueRange]) -> list[Piece]:
    try:
        return cluster.run(reader.next(STEP))
    except ClientError as failed:
        planned = ", ".join(f"{one.queue} offsets {one.begin} to {one.end - 1}" for one in ranges[:4])
        more = f" and {len(ranges) - 4} more" if len(ranges) > 4 else ""
        raise SourceGone(
            f"a part of {planned}{more} cannot be read now: {failed}. The task may be repeated: nothing is lost"
        ) from failed


class Judge:
    """Makes batches of pieces, and says what is missing in them."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._row_filter = settings.row_filter
        self._builders: dict[str, ColumnBuilder] = {}

    def batches(self, broker_name: str, pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of consecutive pieces of one broker."""
        for piece in pieces:
            if piece.lost:
                self._lost(piece, piece.begin, piece.end, "the broker does not have them any more")
        filled = [piece for piece in pieces if len(piece.body)]
        view = memoryview(filled[0].body if len(filled) == 1 else b"".join(one.body for one in filled))
        borders = np.cumsum([0, *(len(piece.body) for piece in filled)])
        places: list[Ints] = []
        offsets: list[Ints] = []
        position = 0
        while position < len(view):
            stretch = sound_records(view, position, None, stop=len(view), once=True)
            if stretch is None:
                at = int(np.searchsorted(borders, position, "right")) - 1
                places.append(np.array([position]))
                offset, position = self._damaged(view, position, filled[at], int(borders[at + 1]))
                offsets.append(np.array([offset]))
                continue
            places.append(stretch.begins)
            offsets.append(stretch.queue_offsets)
            position = stretch.end
            if (stretch.sys_flags & SysFlag.INNER_BATCH).any():
                raise BatchesInRecords(filled[0].queue[0])
            batch = self._batch(broker_name, stretch, view)
            if batch is not None:
                yield batch
        if self._settings.is_unfiltered and filled:
            self._check_gaps(filled, borders, np.concatenate(places), np.concatenate(offsets))

    def _batch(self, broker_name: str, stretch: Stretch, view: memoryview) -> pa.RecordBatch | None:
        builder = self._builders.get(broker_name)
        if builder is None:
            builder = self._builders[broker_name] = ColumnBuilder(self._settings.schema, broker_name)
        if self._row_filter is None:
            return builder.batch(stretch, view)
        chosen = chosen_records(stretch, self._row_filter)
        return builder.batch(stretch, view, chosen) if chosen is None or chosen.any() else None

    def _check_gaps(self, pieces: list[Piece], borders: Ints, places: Ints, offsets: Ints) -> None:
        """Whether every offset of the pieces was among the records, whose places in the buffer are given."""
        expected = [np.arange(piece.begin, piece.end) for piece in pieces]
        if np.array_equal(np.concatenate(expected), offsets):
            return
        cuts = np.searchsorted(places, borders)
        for index, piece in enumerate(pieces):
            missing = np.setdiff1d(expected[index], offsets[cuts[index] : cuts[index + 1]])
            if len(missing):
                self._lost(piece, int(missing[0]), int(missing[-1]) + 1, _COMPACTED)

    def _lost(self, piece: Piece, begin: int, end: int, reason: str) -> None:
        topic, broker_name, queue_id = piece.queue
        loss = DataLoss(topic, broker_name, queue_id, begin, end, reason)
        if self._settings.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)

    def _damaged(self, view: memoryview, position: int, piece: Piece, end: int) -> tuple[int, int]:
        """A record that is not what was stored: its offset as far as it can be told, and where to go on."""
        fault = scan_record(view, position, int.from_bytes(view[position + 28 : position + 36], "big"))
        reason = fault.reason if isinstance(fault, RecordFault) else "the record cannot be read"
        offset = int.from_bytes(view[position + 20 : position + 28], "big", signed=True)
        if not piece.begin <= offset < piece.end:
            offset = piece.begin
        self._lost(
            piece,
            offset,
            offset + 1,
            f"damaged in the broker's log ({reason}); `aerobee store verify` there tells more",
        )
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        following = position + size
        return offset, following if size >= RECORD_SIZE_MIN and following <= end else end
