"""Consumer offsets: the next queue offset that each group will read, and the file `consumerOffset.json`.

Touches  nothing by itself; `config_files` writes the table every `flushConsumerOffsetInterval`.

    {"dataVersion": {...}, "groupTopicMap": {"group": ["topic"]}, "offsetTable": {"topic@group": {0: 15, 1: 7}}}

A slave writes `"copyOfMaster": true` beside them: what it has of its master may be some seconds old.
`groupTopicMap` is derived and ignored on reading. Keys with more than one `@` belong to others (broadcast
offsets that a proxy keeps) and travel through untouched.

Invariants
- Offsets are never negative. There is no monotonic check: a group may go back, as in RocketMQ.
- A pending reset wins over a stored offset until the group's next pull has learned of it.
- A slave's table is its master's, but for what groups have committed here further on; that the master has to be told.
- The journal has every key that has changed since it begins, the newest change last: slaves hear of changes alone.
- `_keys_of_topic` and `_keys_of_group` have every key of the three tables, `_groups` counts those with offsets: nobody
  walks all keys for one name.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from aerobee_broker.settings.config_files import table_of
from aerobee_proto import bodies
from aerobee_proto.bodies import DataVersion
from aerobee_proto.errors import FormatError
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.names import GroupQueue
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["OFFSET_MAX", "ConsumerOffsets", "offset_key", "starting_offset"]

log = structlog.get_logger()

KEYS_A_STEP: Final = 256  # some 0.1 ms
COMMITS_PER_VERSION: Final = 500  # the version is for slaves that copy the table; it need not move each time
OFFSET_MAX: Final = 2**63 - 1
COPY_MARK: Final = "copyOfMaster"
JOURNAL_MAX: Final = 100_000  # keys


def offset_key(group: str, topic: str) -> str:
    """The table's key of a group's offsets in a topic."""
    return f"{topic}@{group}"


def starting_offset(
    stored: int | None, *, zero_allowed: bool, min_offset: int, first_is_recent: Callable[[], bool]
) -> int | None:
    """What QUERY_CONSUMER_OFFSET answers; None is QUERY_NOT_FOUND.

    A group that never committed starts at 0 while the queue still begins with its first message and that one
    is recent: then "from the last offset" means from the start. `first_is_recent` is asked only if needed.
    """
    if stored is not None:
        return stored
    if zero_allowed and min_offset <= 0 and first_is_recent():
        return 0
    return None


class ParsedOffsets(NamedTuple):
    """The content of the file."""

    offsets: dict[str, dict[int, int]]
    version: DataVersion
    of_copy: bool  # a slave wrote it


class ConsumerOffsets:
    """The offsets of all groups. All calls from the event loop.

    It has many public methods: groups, resets and slaves move the same offsets, by one index of their keys."""

    file_name = "consumerOffset.json"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}  # next offset after the last pull, for statistics
        self.resets: dict[str, dict[int, int]] = {}  # that are pending; moved here only
        self._keys_of_topic: dict[str, dict[str, None]] = {}
        self._keys_of_group: dict[str, dict[str, None]] = {}
        self._groups: dict[str, int] = {}  # -> topics in which it has offsets
        self._commits = 0
        # Of a slave: what was committed here, and may be further than at the master. None: this is no slave.
        self._own: dict[str, set[int]] | None = None
        # Whether the file was a slave's: it follows its master at intervals, so the log may say more than the file.
        self.was_copy = False
        self.version = DataVersion(timestamp=clock())
        self.revision = 0
        self._journal: dict[str, int] | None = None  # key -> revision of its last change; None: nobody asks
        self._journal_begin = 0  # changes up to this revision are not in it any more
        self._on_moved: Callable[[], None] = lambda: None

    # --- reading and moving -----------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or where a pending reset sends the group; None when there is neither."""
        key = f"{topic}@{group}"
        if self.resets:
            pending = self.resets.get(key)
            if pending is not None and queue_id in pending:
                return pending[queue_id]
        queues = self._offsets.get(key)
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Store an offset. False, and nothing stored: a reset of this queue is pending, or offset < 0."""
        return self.commit_by(f"{topic}@{group}", queue_id, offset)

    def commit_by(self, key: str, queue_id: int, offset: int) -> bool:
        """As `commit`, of the `offset_key` of a group and a topic."""
        if offset < 0 or (self.resets and queue_id in self.resets.get(key, ())):
            return False
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._put(key, {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._moved(key)
        if self._own is not None:
            self._own.setdefault(key, set()).add(queue_id)
            return True
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self._next_version()
        return True

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember how far a group has pulled; shown beside what it has committed."""
        self.note_pull_by(f"{topic}@{group}", queue_id, next_offset)

    def note_pull_by(self, key: str, queue_id: int, next_offset: int) -> None:
        """As `note_pull`, of the `offset_key` of a group and a topic."""
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
            self._index(key)
        queues[queue_id] = next_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset after the group's last pull since start; None when there was none."""
        queues = self._pulled.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def of_group(self, group: str, topic: str) -> dict[int, int]:
        """A copy of the group's offsets in a topic, by queue."""
        return dict(self._offsets.get(f"{topic}@{group}", ()))

    def clamp(self, range_of: Callable[[str, int], tuple[int, int] | None]) -> int:
        """Move offsets that lie outside their queue to its near end; how many queues that were.

        The queue may have lost its end to a crash: a group that waits beyond it would miss what comes. Offsets of
        queues that `range_of(topic, queue_id)` does not know stay as they are.
        """
        moved = 0
        for key, queues in self._offsets.items():
            topic, at, group = key.partition("@")
            if not at or "@" in group:
                continue
            for queue_id, offset in list(queues.items()):
                found = range_of(topic, queue_id)
                nearest = offset if found is None else min(max(offset, found[0]), found[1])
                if nearest != offset:
                    queues[queue_id] = nearest
                    moved += 1
                    log.warning(
                        "broker.offset_clamped",
                        topic=topic,
                        group=group,
                        queue_id=queue_id,
                        consumer_offset=offset,
                        clamped_to=nearest,
                    )
        if moved:
            self._next_version()
            self.revision += 1
        return moved

    # --- resets -----------------------------------------------------------------------------------------------

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Send the group to an offset: kept until its next pull of the queue learns of it."""
        key = f"{topic}@{group}"
        self.resets.setdefault(key, {})[queue_id] = max(0, offset)
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._put(key, {})
        queues[queue_id] = max(0, offset)
        self._pulled.get(key, {}).pop(queue_id, None)  # what was pulled before is not waited for
        self._next_version()
        self._moved(key)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which is over with this call; None when there is none."""
        if not self.resets:
            return None
        key = f"{topic}@{group}"
        pending = self.resets.get(key)
        if pending is None:
            return None
        target = pending.pop(queue_id, None)
        if not pending:
            del self.resets[key]
        return target

    # --- what slaves hear -------------------------------------------------------------------------------------

    def keep_journal(self, on_moved: Callable[[], None]) -> None:
        """From now on remember what changes, and call `on_moved` with each change."""
        self._on_moved = on_moved
        if self._journal is None:
            self._journal, self._journal_begin = {}, self.revision

    def _moved(self, key: str) -> None:
        self.revision += 1
        journal = self._journal
        if journal is None:
            return
        journal.pop(key, None)
        if len(journal) >= JOURNAL_MAX:
            oldest = next(iter(journal))
            self._journal_begin = journal.pop(oldest)
        journal[key] = self.revision
        self._on_moved()

    def changed_since(self, revision: int, count_max: int) -> dict[str, dict[int, int]] | None:
        """The offsets of each key that has changed since then, as they are now; none of a key that is gone. None: it is
        not known any more, or more than `count_max` have."""
        journal = self._journal
        if journal is None or not self._journal_begin <= revision <= self.revision:
            return None
        found: dict[str, dict[int, int]] = {}
        for key in reversed(journal):
            if journal[key] <= revision:
                break
            if len(found) == count_max:
                return None
            found[key] = dict(self._offsets.get(key, ()))
        return found

    # --- of a slave -------------------------------------------------------------------------------------------

    def become_copy(self) -> None:
        """From now on this is a slave's table, and its file will say so. After the file was read."""
        self._own = {}
        self.revision += 1

    def following(self, theirs: ParsedOffsets) -> Steps[list[tuple[GroupQueue, int]]]:
        """Become what the master's table is; what groups have committed here further on stays, and is returned."""
        offsets, self.version, _ = theirs
        own = self._own if self._own is not None else {}
        further: list[tuple[GroupQueue, int]] = []
        for key in list(own):
            yield
            kept = {}
            for queue_id in sorted(own.pop(key)):
                here = self._offsets.get(key, {}).get(queue_id)
                if here is not None and here > offsets.get(key, {}).get(queue_id, -1):
                    kept[queue_id] = here
            if kept:
                topic, _, group = key.partition("@")
                further += [(GroupQueue(group, topic, queue_id), here) for queue_id, here in kept.items()]
                offsets[key] = offsets.get(key, {}) | kept
                own[key] = set(kept)
        for number, (key, queues) in enumerate(offsets.items()):
            if number % KEYS_A_STEP == 0:
                yield
            if self._offsets.get(key) != queues:
                self._put(key, queues)
                self.revision += 1
        for key in [key for key in self._offsets if key not in offsets]:
            self._count(key, -1)
            del self._offsets[key]
            self.revision += 1
        return further

    def parse_changes(self, content: Mapping[str, object]) -> dict[str, dict[int, int]]:
        """What `changed_since` gave, as it came over the wire. FormatError when it is none of that."""
        return {str(key): _queues(key, value) for key, value in table_of(content, "offsetTable").items()}

    def follow_changes(self, theirs: Mapping[str, Mapping[int, int]]) -> None:
        """Take what has changed at the master; what groups have committed here further on stays."""
        for key, queues in theirs.items():
            here = self._offsets.get(key, {})
            merged = dict(queues)
            for queue_id in self._own.get(key, ()) if self._own else ():
                if here.get(queue_id, -1) > merged.get(queue_id, -1):
                    merged[queue_id] = here[queue_id]
            if merged == here:
                continue
            if merged:
                self._put(key, merged)
            else:
                self._count(key, -1)
                del self._offsets[key]
            self.revision += 1

    def forwarded(self, queue: GroupQueue, offset: int) -> None:
        """The master has this now."""
        key = offset_key(queue.group, queue.topic)
        own = self._own.get(key) if self._own else None
        if own is None or self._offsets.get(key, {}).get(queue.queue_id) != offset:
            return
        own.discard(queue.queue_id)
        if not own and self._own is not None:
            del self._own[key]

    # --- groups and topics ------------------------------------------------------------------------------------

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has committed offsets, sorted."""
        return at_once(self.topics_steps(group))

    def topics_steps(self, group: str) -> Steps[list[str]]:
        """As `topics_of`, in steps."""
        pairs = yield from self._pairs(self._keys_of_group.get(group, ()))
        return (yield from sorted_steps([topic for topic, _ in pairs]))

    def groups_of(self, topic: str) -> list[str]:
        """Groups with committed offsets in the topic, sorted."""
        return at_once(self.groups_steps(topic))

    def groups_steps(self, topic: str) -> Steps[list[str]]:
        """As `groups_of`, in steps."""
        pairs = yield from self._pairs(self._keys_of_topic.get(topic, ()))
        return (yield from sorted_steps([group for _, group in pairs]))

    def slowest(self, topic: str, *, without: Collection[str] = ()) -> Steps[dict[int, int]]:
        """The smallest committed offset of any group in each queue of a topic."""
        result: dict[int, int] = {}
        for group in (yield from self.groups_steps(topic)):
            if group not in without:
                for queue_id, offset in self.of_group(group, topic).items():
                    result[queue_id] = min(offset, result.get(queue_id, offset))
            yield
        return result

    def _pairs(self, keys: Iterable[str]) -> Steps[list[tuple[str, str]]]:
        """(topic, group) of those of the keys that have offsets."""
        pairs = []
        for number, key in enumerate(list(keys), 1):
            if key in self._offsets:
                parts = key.split("@")
                if len(parts) == 2:
                    pairs.append((parts[0], parts[1]))
            if number % KEYS_A_STEP == 0:
                yield
        return pairs

    def _put(self, key: str, queues: dict[int, int]) -> dict[int, int]:
        """Give a key its offsets."""
        if key not in self._offsets:
            self._index(key)
            self._count(key, 1)
        self._offsets[key] = queues
        return queues

    def _index(self, key: str) -> None:
        parts = key.split("@")
        if len(parts) >= 2:
            self._keys_of_topic.setdefault(parts[0], {})[key] = None
            self._keys_of_group.setdefault(parts[1], {})[key] = None

    def _count(self, key: str, change: int) -> None:
        _, at, group = key.partition("@")
        if at and "@" not in group:
            count = self._groups.get(group, 0) + change
            if count:
                self._groups[group] = count
            else:
                del self._groups[group]

    def remove_group(self, group: str) -> int:
        """Forget all offsets of a group; how many topics that were."""
        return at_once(self.removal(group=group))

    def remove_topic(self, topic: str) -> int:
        """Forget all offsets in a topic; how many groups that were."""
        return at_once(self.removal(topic=topic))

    def removal(self, *, group: str = "", topic: str = "") -> Steps[int]:
        """As the two above, in steps. What is committed meanwhile may stay."""
        keys = self._keys_of_group.get(group) if group else self._keys_of_topic.get(topic)
        removed = 0
        for key in list(keys or ()):
            yield
            if self._offsets.pop(key, None) is not None:
                removed += 1
                self._count(key, -1)
                self._moved(key)
            self._pulled.pop(key, None)
            self.resets.pop(key, None)
            topic, group = key.split("@")[:2]
            _drop(self._keys_of_topic, topic, key)
            _drop(self._keys_of_group, group, key)
        if removed:
            self._next_version()
        return removed

    def clone(self, source: str, target: str, topic: str) -> int:
        """Give the target group the source's offsets in a topic; how many queues that were."""
        queues = self._offsets.get(f"{topic}@{source}")
        if not queues:
            return 0
        key = f"{topic}@{target}"
        self._put(key, dict(queues))
        self._next_version()
        self._moved(key)
        return len(queues)

    def _next_version(self) -> None:
        self.version = self.version.next(self._clock())

    # --- the file ---------------------------------------------------------------------------------------------

    def group_topics(self) -> Mapping[str, list[str]]:
        """Group -> its topics, as RocketMQ writes it beside the offsets; made when it is looked at."""
        return _GroupTopics(self, list(self._groups))

    def to_json(self) -> dict[str, Any]:
        """The content of `consumerOffset.json`, which is also the answer to GET_ALL_CONSUMER_OFFSET.

        Which keys there are is of this moment; the offsets of a key are those of the moment when they are written.
        """
        content: dict[str, Any] = {
            "dataVersion": msgspec.to_builtins(self.version),
            "groupTopicMap": self.group_topics(),
            "offsetTable": dict(self._offsets),
        }
        return content if self._own is None else content | {COPY_MARK: True}

    def parse(self, content: Mapping[str, object]) -> ParsedOffsets:
        """A file's content as the table keeps it. FormatError when it is not an offset table."""
        table = table_of(content, "offsetTable")
        offsets = {str(key): _queues(key, value) for key, value in table.items()}
        version = bodies.convert(content.get("dataVersion", {}), DataVersion)
        return ParsedOffsets(offsets, version, content.get(COPY_MARK) is True)

    def take(self, parsed: ParsedOffsets) -> None:
        """Put parsed content in place of the table's own."""
        offsets, self.version, self.was_copy = parsed
        self._offsets, self._keys_of_topic, self._keys_of_group, self._groups = {}, {}, {}, {}
        for key, queues in offsets.items():
            self._put(key, queues)
        for key in (*self._pulled, *self.resets):
            self._index(key)


class _GroupTopics(Mapping[str, list[str]]):
    """The groups that have offsets now, and the topics of each, read when they are asked for; by any thread."""

    def __init__(self, offsets: ConsumerOffsets, groups: list[str]) -> None:
        self._offsets = offsets
        self._groups = groups

    def __getitem__(self, group: str) -> list[str]:
        return self._offsets.topics_of(group)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


def _drop(index: dict[str, dict[str, None]], name: str, key: str) -> None:
    keys = index.get(name)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[name]


def _queues(key: object, value: object) -> dict[int, int]:
    """The offsets of one key; queue ids may be numbers or text."""
    if not isinstance(value, Mapping):
        raise FormatError(f"offsets of {key} are not an object")
    queues: dict[int, int] = {}
    for queue_id, offset in value.items():
        try:
            if isinstance(offset, bool | float):
                raise TypeError  # noqa: TRY301  # one place says what is wrong
            queues[int(queue_id)] = int(offset)
        except (TypeError, ValueError):
            raise FormatError(f"offsets of {key} hold {queue_id!r}: {offset!r}") from None
    bad = [queue_id for queue_id, offset in queues.items() if queue_id < 0 or not 0 <= offset <= OFFSET_MAX]
    for queue_id in bad:
        log.warning("broker.offset_dropped", key=key, queue_id=queue_id, consumer_offset=queues.pop(queue_id))
    return queues
