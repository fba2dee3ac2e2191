"""Messages by their keys: what waits to be indexed, indexing it, and asking.

Touches  the index through dispatch, and index, queues and commit log, reading.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence

from aerobee_proto.steps import finished
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import StoreFull
from aerobee_store.faults.health import StoreHealth
from aerobee_store.index.index import IndexService
from aerobee_store.index.index_file import Chainer
from aerobee_store.log.commit_log import Trust
from aerobee_store.log.damage_events import log_new_damage
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.reading.query import QueryResult, query_messages
from aerobee_store.reading.residency import IndexNearby, Residency
from aerobee_store.walking.agreement import Agreement
from aerobee_store.writing.dispatcher import Dispatcher

__all__ = ["KeyLookup", "Lacking", "LogNearby", "Picked"]

LogNearby = tuple[
    memoryview,  # a file of the log
    int,  # physical offset of its first byte
    int,  # and of the byte behind the last that is written in it
    set[int] | None,  # blocks of 256 KiB of the log that are in memory; None: all are
]
Lacking = tuple[
    int,  # which file of the index, from the newest on; -1: of the log
    int,  # position in that file; physical offset
    int,  # bytes
]
Picked = tuple[
    bytes,  # an answer
    str,  # the topic of its messages
    list[
        tuple[int, int, int, int]
    ],  # queue, queue offset, physical offset and size of each, and of older ones
]

_INDEX_STEP = 4096  # messages whose keys a query indexes at a time


class KeyLookup:
    """The keys of one store."""

    def __init__(
        self,
        index: IndexService,
        residency: Residency,
        queues: QueueTable,
        dispatcher: Dispatcher,
        health: StoreHealth,
        *,
        count_max: int,
    ) -> None:
        """A query answers with at most `count_max` messages."""
        self._index = index
        self._log = residency.log
        self._residency = residency
        self._dispatcher = dispatcher
        self._health = health
        self._count_max = count_max
        self._agreement = Agreement(self._log, queues)

    def use_chainer(self, chainer: Chainer) -> None:
        """Have this make entries of the index, where it can."""
        self._index.chainer = chainer

    @property
    def backlog(self) -> int:
        """Messages whose keys are not indexed yet."""
        return self._dispatcher.index_backlog

    def missing(self) -> NotInMemory | None:
        """What is to be brought into memory before keys are indexed, which waits for the disk otherwise; None: nothing.

        Any key may go to any page of 20 MB: after a start each of them would be read by itself.
        """
        files, residency = self._index.files, self._residency
        if residency.is_off or not files or not self.backlog or residency.known_index is files[-1]:
            return None
        needed = files[-1].missing_for_put()
        if needed:
            return NotInMemory(needed)
        residency.known_index = files[-1]
        return None

    @property
    def lacks_file(self) -> bool:
        """Whether a file has to be made for the keys that wait."""
        return bool(self.backlog) and self._index.lacks_file

    def make_file(self) -> None:
        """Make it, in a worker thread: in a new store it took 20 to 50 ms of whoever sent the first message.

        Where there is no room, who puts the keys finds that out."""
        if self._health.reason is not None:
            return
        try:
            self._index.make_next()
        except StoreFull:
            pass
        except OSError as error:
            self._health.fail(self._index.title, error)

    def build(self, limit: int) -> int:
        """Index the keys of at most `limit` waiting messages; how many keys. StoreFull keeps them waiting.

        After a failure of the disk none are indexed any more.
        """
        if self._health.reason is not None:
            return 0
        try:
            return self._dispatcher.build_index(limit)
        except OSError as error:
            self._health.fail(self._index.title, error)
            return 0

    def nearby(self) -> list[IndexNearby] | None:
        """Where the usual query is looked up by who does that himself: the files of the index, newest first. None:
        query_steps() has to do it."""
        if self._dispatcher.index_backlog:
            return None
        return self._residency.index_nearby(self._index.files)

    def asks(self, lacking: Lacking) -> bool:
        """Ask whether this part of the index is in memory; what is there is known then, with what lies around it, for a
        moment."""
        number, position, length = lacking
        files = self._index.files
        return 0 <= number < len(files) and self._residency.holds_index(files[-1 - number], position, length)

    def asks_records(self, places: Sequence[int]) -> bool:
        """The same of the records at these physical offsets, of all of them together."""
        return self._residency.has_records(places)

    def answer_nearby(
        self,
        places: Sequence[int],
        max_num: int,
        pick: Callable[[list[LogNearby], int, tuple[int, int], Trust], Picked | None],
    ) -> bytes | None:
        """The answer that is made of records at these physical offsets, which ascend, by who reads them himself, and
        proves those that have to be. None: query_steps() has to look carefully."""
        log, blocks = self._log, self._residency.log_blocks
        if log.damaged or places[-1] >= log.end_offset:
            return None
        files = log.mapped.of_all(places)
        if files is None:
            return None
        nearby = [(file.view, file.offset, min(file.end, log.end_offset), blocks) for file in files]
        picked = pick(nearby, min(max_num, self._count_max), self._index.updated, log.trust)
        if picked is None:
            return None
        answer, topic, messages = picked
        for queue_id, queue_offset, physical_offset, size in messages:
            if not self._agreement.is_plain(topic, queue_id, queue_offset, (physical_offset, size)):
                return None
        return answer

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int) -> QueryResult:
        """As query_steps(), at once."""
        return finished(self.query_steps(topic, key, max_num, begin, end))

    def query_steps(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> Generator[NotInMemory | None, None, QueryResult]:
        """The newest `max_num` messages of `topic` that carry `key` (a KEYS word or the unique key) and were
        stored in [begin, end] (ms), oldest first.

        A key that very many messages share is looked for in steps of a few milliseconds; a yield ends each. What it
        yields, if anything, has to be brought into memory before the next step, which waits for the disk otherwise.
        """
        missing = self.missing()
        if missing is not None:
            yield missing
        left = self.backlog
        with contextlib.suppress(StoreFull):  # the newest keys wait for room; what is indexed can be found
            while left > 0:
                self.build(min(left, _INDEX_STEP))
                left -= _INDEX_STEP
                if left > 0:
                    yield None
        known = self._log.damaged
        count = min(max_num, self._count_max)
        found = yield from query_messages(
            self._index, self._residency, self._agreement, topic, key, count, begin, end
        )
        if self._log.damaged is not known:
            log_new_damage(self._log, known)
        return found
