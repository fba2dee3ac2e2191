"""Finding messages by key: candidates from the index, each checked against its record.

Touches  index, queues and commit log, reading.
"""

from collections.abc import Generator

from aerobee_proto.errors import RecordError
from aerobee_proto.properties import KEYS, UNIQ_KEY, find_property, split_keys
from aerobee_proto.records import RecordHeader, scan_header
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.index.index import QUERY_NUM_MAX, IndexService
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.reading.residency import Residency
from aerobee_store.walking.agreement import Agreement

__all__ = ["QueryResult", "query_messages"]

# Rounds to an earlier end when a round's candidates all turned out to be something else.
_ROUNDS_MAX = 3
_INDEX_TIME_STEP_MS = 1000
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
    index: IndexService,
    residency: Residency,
    agreement: Agreement,
    topic: str,
    key: str,
    max_num: int,
    begin: int,
    end: int,
) -> Generator[NotInMemory | None, None, QueryResult]:
    """The newest `max_num` messages of `topic` with `key` among KEYS or as unique key, stored within
    [begin, end] (ms). Yields after every few milliseconds of work, and what has to be brought into memory before the
    next step."""
    found: list[RecordHeader] = []
    log = residency.log
    last = end
    holds = None if residency.is_off else residency.holds_index
    for _ in range(_ROUNDS_MAX):
        # Index times are whole seconds rounded down: ask for one more, and judge by the records.
        candidates = yield from index.query_steps(
            topic, key, QUERY_NUM_MAX, begin - _INDEX_TIME_STEP_MS, last, holds=holds
        )
        offsets = sorted(set(candidates))
        if not residency.has_records(offsets):
            yield from residency.bring_records(offsets)
        headers = [header for offset in offsets if (header := _header_at(log, offset)) is not None]
        found = [h for h in headers if begin <= h.store_timestamp <= end and _carries(h, topic, key)]
        found = [header for header in found if _is_itself(log, agreement, header)]
        if found or not headers:
            break
        last = headers[0].store_timestamp - 1
        if last < begin:
            break
    body = [memoryview(header.record) for header in found[-max_num:]] if max_num > 0 else []
    offset, timestamp = index.updated
    return QueryResult(body, timestamp, offset)


def _header_at(log: CommitLog, physical_offset: int) -> RecordHeader | None:
    file = log.mapped.find(physical_offset)
    if file is None or physical_offset >= log.end_offset or log.is_damaged(physical_offset):
        return None
    try:
        header = scan_header(file.view, physical_offset - file.offset)
    except RecordError:
        return None
    at = physical_offset - file.offset
    if (
        physical_offset < log.proven_from
        and not log.has_proven(file.view, at, header.size, physical_offset, header.topic)
        and log.prove(physical_offset, header.size) is None
    ):
        return None
    return None if header.is_blank or header.physical_offset != physical_offset else header


def _is_itself(log: CommitLog, agreement: Agreement, header: RecordHeader) -> bool:
    """Whether its queue does not say that it is another message."""
    reason = agreement.of_record(header)
    if reason is not None:
        log.add_damaged(header.physical_offset, header.physical_offset + header.size, reason)
    return reason is None


def _carries(header: RecordHeader, topic: str, key: str) -> bool:
    """Whether the record really has the key: the index knows only hashes."""
    if header.topic != topic:
        return False
    properties = header.properties
    expected = key.encode("utf-8", "replace")
    if find_property(properties, _UNIQ_KEY) == expected:
        return True
    keys = find_property(properties, _KEYS)
    return keys is not None and key in split_keys(keys.decode("utf-8", "replace"))
