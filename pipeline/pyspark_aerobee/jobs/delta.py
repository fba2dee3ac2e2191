"""An archive folder as a Delta table too: each commit of the archive is one of the table's.

Touches  <archive>/_delta_log, through the package deltalake; no JVM.

The files are the archive's own; the table only learns their names. It carries the number of the newest archive commit
as its transaction version, so what a killed run did not tell the table is told by the next one, once.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from pyspark_aerobee.errors import PipelineError
from pyspark_aerobee.jobs.manifest import Archive, ArchivedFile, Commit
from pyspark_aerobee.jobs.parquet import archive_schema

__all__ = ["DeltaTableOf"]

APP_ID: Final = "aerobee-archive"
PARTITIONS: Final = ["topic", "day"]


class DeltaTableOf:
    """The table of one archive. PipelineError without the package."""

    def __init__(self, folder: Archive) -> None:
        try:
            import deltalake  # noqa: F401  # to say early that it is missing
        except ImportError as missing:
            raise PipelineError(
                "a Delta table needs the package deltalake: pip install 'aerobee[delta]'"
            ) from missing
        self._address = folder.address
        self._storage = {key: str(value) for key, value in folder.storage.items()} or None
        self._schema = pa.schema(
            [*archive_schema(), pa.field("topic", pa.string()), pa.field("day", pa.date32())]
        )

    def catch_up(self, commits: Sequence[Commit]) -> None:
        """Tell the table the commits that it does not know."""
        version = self._version()
        for commit in commits:
            if commit.number > version:
                self.add(commit)

    def _version(self) -> int:
        table = self._open()
        return 0 if table is None else table.transaction_version(APP_ID) or 0

    def _open(self) -> Any:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._address, self._storage):
            return None
        return DeltaTable(self._address, storage_options=self._storage)

    def add(self, commit: Commit) -> None:
        """Tell the table one commit, which is the next one for it."""
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import create_table_with_add_actions

        actions = [_action(file, commit.created_ms) for file in commit.files]
        properties = CommitProperties(app_transactions=[Transaction(APP_ID, commit.number)])
        schema = Schema.from_arrow(self._schema)
        table = self._open()
        if table is None:
            create_table_with_add_actions(
                self._address, schema, actions, mode="error", partition_by=PARTITIONS,
                storage_options=self._storage, commit_properties=properties,
            )  # fmt: skip
        else:
            table.create_write_transaction(
                actions, mode="append", schema=schema, partition_by=PARTITIONS, commit_properties=properties
            )


def _action(file: ArchivedFile, modified_ms: int) -> Any:
    from deltalake.transaction import AddAction

    statistics = json.dumps({"numRecords": file.rows})
    values = {"topic": file.topic, "day": file.date}
    # The package quotes paths itself as it writes them to the log.
    return AddAction(file.path, file.size, values, modified_ms, True, statistics)
