"""Finding messages by key: candidates from the index, each checked against its record.

Touches  index and commit log, reading.
"""

from aerobee_proto.errors import RecordError
from aerobee_proto.properties import KEYS, UNIQ_KEY, find_property, split_keys
from aerobee_proto.records import RecordHeader, scan_header
from aerobee_store.commit_log import CommitLog
from aerobee_store.index import IndexService

__all__ = ["QueryResult", "query_messages"]

# Rounds to an earlier end when a round's candidates all turned out to be something else.
_ROUNDS_MAX = 3
_KEYS = KEYS.encode()
_UNIQ_KEY = UNIQ_KEY.encode()


class QueryResult:
    """Records found, by growing physical offset, and how far the index reaches.

    `last_update_timestamp` (ms) and `last_update_physical_offset` are of the newest indexed message.
    """

    __slots__ = ("body", "last_update_physical_offset", "last_update_timestamp")

    def __init__(
        self, body: list[memoryview], last_update_timestamp: int, last_update_physical_offset: int
    ) -> None:
        self.body = body
        self.last_update_timestamp = last_update_timestamp
        self.last_update_physical_offset = last_update_physical_offset


def query_messages(
    index: IndexService, log: CommitLog, topic: str, key: str, max_num: int, begin: int, end: int
) -> QueryResult:
    """Messages of `topic` with `key` among KEYS or as unique key, stored within [begin, end] (ms)."""
    body: list[memoryview] = []
    for _ in range(_ROUNDS_MAX):
        offsets = sorted(set(index.query(topic, key, max_num, begin, end)))
        headers = [header for offset in offsets if (header := _header_at(log, offset)) is not None]
        body = [memoryview(h.record) for h in headers if _carries(h, topic, key)]
        if body or not headers:
            break
        end = headers[0].store_timestamp
        if end < begin:
            break
    return QueryResult(body, index.last_update_timestamp, max(index.end_offset, 0))


def _header_at(log: CommitLog, physical_offset: int) -> RecordHeader | None:
    file = log.mapped.find(physical_offset)
    if file is None or physical_offset >= log.end_offset:
        return None
    try:
        header = scan_header(file.view, physical_offset - file.offset)
    except RecordError:
        return None
    return None if header.is_blank or header.physical_offset != physical_offset else header


def _carries(header: RecordHeader, topic: str, key: str) -> bool:
    """Whether the record really has the key: the index knows only hashes."""
    if header.topic != topic:
        return False
    properties = header.properties
    wanted = key.encode("utf-8", "replace")
    if find_property(properties, _UNIQ_KEY) == wanted:
        return True
    keys = find_property(properties, _KEYS)
    return keys is not None and key in split_keys(keys.decode("utf-8", "replace"))
