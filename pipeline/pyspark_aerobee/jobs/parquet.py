"""Messages into Parquet files, one open file a topic and day, inside a task: no row passes through the JVM.

Touches  files of an archive's staging folder.
"""

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_aerobee.jobs.manifest import ArchivedFile

__all__ = ["ARCHIVE_COLUMNS", "FileSet", "archive_schema"]

ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 18
OPEN_MAX: Final = 16
_US_PER_DAY: Final = 86_400_000_000
# Values that repeat; for the others a dictionary costs time and is given up in the end.
_DICTIONARY: Final = ["brokerName", "tags", "properties.key_value.key", "queueId"]
_STATISTICS: Final = ["queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "commitLogOffset"]
# In the files; topic and day are in their paths.
ARCHIVE_COLUMNS: Final = (
    "brokerName", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "msgId", "tags", "keys", "properties",
    "body", "commitLogOffset",
)  # fmt: skip


def archive_schema() -> pa.Schema:
    """Columns of the files."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from pyspark_aerobee.schema import message_schema

    fields = [field for field in message_schema().fields if field.name in ARCHIVE_COLUMNS]
    return to_arrow_schema(type(message_schema())(fields), timezone="UTC")


class FileSet:
    """The files that one task writes. Close it; `abort` deletes what was written."""

    def __init__(self, filesystem: Any, folder: str, schema: pa.Schema, compression: str) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._schema = schema
        self._compression = compression
        self._open: OrderedDict[tuple[str, int], _DayFile] = OrderedDict()
        self._done: list[ArchivedFile] = []
        self._names: list[str] = []

    def write(self, topic: str, batch: pa.RecordBatch) -> None:
        """Add messages of a topic."""
        for day, part in _by_day(batch):
            self._file(topic, day).write(part)

    def _file(self, topic: str, day: int) -> "_DayFile":
        key = (topic, day)
        file = self._open.get(key)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._done.append(self._open.popitem(last=False)[1].close())
            name = f"{uuid.uuid4().hex}.parquet"
            self._names.append(name)
            file = self._open[key] = _DayFile(
                self._filesystem, f"{self._folder}/{name}", name, topic, day, self._schema, self._compression
            )
        self._open.move_to_end(key)
        return file

    def close(self) -> list[ArchivedFile]:
        """What was written."""
        while self._open:
            self._done.append(self._open.popitem(last=False)[1].close())
        return self._done

    def abort(self) -> None:
        """Delete everything."""
        while self._open:
            self._open.popitem()[1].drop()
        for name in self._names:
            path = f"{self._folder}/{name}"
            if self._filesystem.exists(path):
                self._filesystem.rm_file(path)


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    days = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // _US_PER_DAY
    if not len(days):
        return
    if (days == days[0]).all():
        yield int(days[0]), batch
        return
    for day in np.unique(days).tolist():
        yield day, batch.filter(pa.array(days == day))


class _DayFile:
    """One Parquet file being written; batches wait until they fill a row group."""

    def __init__(
        self,
        filesystem: Any,
        path: str,
        name: str,
        topic: str,
        day: int,
        schema: pa.Schema,
        compression: str,
    ) -> None:
        self._filesystem, self._path = filesystem, path
        self._name, self._topic, self._day = name, topic, day
        self._stream = filesystem.open(path, "wb")
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression=compression,
            compression_level=1 if compression == "zstd" else None,
            use_dictionary=_DICTIONARY,
            write_statistics=_STATISTICS,
            data_page_size=1 << 20,
        )
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._begin_us, self._end_us = 1 << 62, 0
        self._spans: dict[tuple[str, int], list[int]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add messages."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        times = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()
        self._begin_us = min(self._begin_us, int(times.min()))
        self._end_us = max(self._end_us, int(times.max()))
        self._note_spans(batch)
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_waiting()

    def _note_spans(self, batch: pa.RecordBatch) -> None:
        """Which numbers of which queues are in the file, from first to last."""
        broker_name = batch.column("brokerName")[0].as_py() or ""
        queues = batch.column("queueId").to_numpy()
        offsets = batch.column("queueOffset").to_numpy()
        for queue_id in np.unique(queues).tolist():
            mine = offsets[queues == queue_id]
            known = self._spans.setdefault((broker_name, queue_id), [int(mine[0]), 0])
            known[0] = min(known[0], int(mine.min()))
            known[1] = max(known[1], int(mine.max()) + 1)

    def _write_waiting(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> ArchivedFile:
        """Write the end of the file; what is in it."""
        self._write_waiting()
        spans = [[*queue, *span] for queue, span in sorted(self._spans.items())]
        self._writer.add_key_value_metadata(
            {"aerobee.topic": self._topic, "aerobee.spans": json.dumps(spans)}
        )
        self._writer.close()
        self._stream.close()
        size = self._filesystem.info(self._path)["size"]
        return ArchivedFile(
            self._name, self._topic, self._day, self._rows, size, self._begin_us // 1000, self._end_us // 1000, spans
        )  # fmt: skip

    def drop(self) -> None:
        """Stop writing; the file is no whole one."""
        self._writer.close()
        self._stream.close()
