"""The keys of a record, as the index takes them.

Touches  nothing.
"""

from aerobee_proto.properties import KEYS_NAME, UNIQ_KEY_NAME, find_property
from aerobee_store.index.index import KeyedRecord
from aerobee_store.records.record_scan import ROLLBACK, TRANSACTION, ScannedRecord

__all__ = ["keyed_record"]


def keyed_record(record: ScannedRecord) -> KeyedRecord | None:
    """The record as the index takes it; None if it is not indexed."""
    if record.sys_flag & TRANSACTION == ROLLBACK:
        return None
    keys = _text(record.properties, KEYS_NAME)
    unique_key = _text(record.properties, UNIQ_KEY_NAME)
    if not keys and not unique_key:
        return None
    return record.topic, keys, unique_key, record.physical_offset, record.store_timestamp


def _text(properties: bytes, name: bytes) -> str | None:
    value = find_property(properties, name)
    return None if value is None else value.decode("utf-8", "replace")
