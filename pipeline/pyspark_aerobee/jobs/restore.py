"""Restore: messages of an archive, back into topics.

Touches  the archive, reading, and its folder _aerobee/restores (progress); brokers.

    restore(spark, "/data/archive", {"nameServer": "mq1:9876"}, topics=["orders"])
    python -m pyspark_aerobee.jobs.restore --name-server mq1:9876 --topics orders /data/archive

Kept      body, tags, keys, the sender's unique id, properties of users, sharding key, time of birth, and the order in
          each queue: messages of one queue go to one queue, that with the same position where there are as many.
Not kept  store time, queue offset, commit log position and offset id: the broker gives new ones. The sender's address:
          it is the restoring program's. The flag, and marks by which brokers did what is done (delays, transactions,
          retries, POP): a message that was delivered once is not delayed again.

A request has one time of birth for all its messages, so only those born in the same millisecond travel together; with
`born_within_ms` those of a longer span do, faster, with times that are wrong by at most that.

At least once: progress is kept by queue after each `step` messages. A run that is killed is gone on with by the next
one of the same name; at most `step` messages of each queue are sent again, under their old ids. What was added to the
archive meanwhile is sent too.
"""

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerobee import ClientError, MessageQueue
from aerobee.messages.outgoing import RESERVED_PROPERTIES
from aerobee.producing.replay import RecordedMessage, Replay, ReplayConfig
from aerobee_proto.properties import KEYS, PROPERTIES_SIZE_MAX, SHARDING_KEY, TAGS, UNIQ_KEY
from pyspark_aerobee.cluster import Cluster, ClusterSettings
from pyspark_aerobee.errors import OptionError, WriteFailed
from pyspark_aerobee.jobs.launch import (
    Advance,
    add_option_argument,
    further_options,
    main_of,
    run_tasks,
    session,
)
from pyspark_aerobee.jobs.manifest import Archive, ArchivedFile
from pyspark_aerobee.jobs.spans import Intervals, Span
from pyspark_aerobee.names import nearest
from pyspark_aerobee.option_names import CLUSTER_OPTIONS
from pyspark_aerobee.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RestoreReport", "restore"]

STEP: Final = 10_000
_RESTORES: Final = "_aerobee/restores"
_COLUMNS: Final = [
    "brokerName",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "bornTimestamp",
    "properties",
    "body",
]
_KEPT: Final = frozenset({KEYS, TAGS, UNIQ_KEY, SHARDING_KEY})


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a run did; `before` are messages that earlier runs of the same name had sent."""

    name: str
    rows: int
    before: int
    topics: dict[str, int]
    took_ms: int


class _Queue(NamedTuple):
    """One queue of the archive: its files with the first of its numbers in each, and where its messages go."""

    source: MessageQueue
    target_topic: str
    position: int  # among the queues of the topic in the archive
    files: tuple[tuple[str, int, int], ...]  # path, begin, end
    rows: int


class _Done(NamedTuple):
    topic: str
    rows: int
    before: int


def restore(
    spark: "SparkSession",
    address: str,
    cluster: Mapping[str, str],
    *,
    topics: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    name: str | None = None,
    born_within_ms: int = 0,
    step: int = STEP,
    storage: Mapping[str, Any] | None = None,
    advance: Advance | None = None,
) -> RestoreReport:
    """Send the messages of these topics (all without a list) that were stored in [begin_ms, end_ms).

    cluster   options of the data source that say where the brokers are
    rename    topic of the archive -> topic to write; the topics must exist, or be created by the brokers
    name      of this restore, under which progress is kept; made of the other arguments when None
    advance   told numbers of messages as queues end

    OptionError: a topic that the archive does not have. WriteFailed: what brokers refused, and why.
    """
    begun = time.monotonic()
    settings = ClusterSettings.of(Options(cluster, CLUSTER_OPTIONS))
    folder = Archive(address, storage)
    chosen = _chosen(folder, topics)
    arguments = [
        address,
        settings.nameservers,
        sorted(chosen),
        sorted((rename or {}).items()),
        begin_ms,
        end_ms,
    ]
    name = name or hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:16]
    queues = _queues(folder, chosen, rename or {}, begin_ms, end_ms)
    work = RestoreWork(
        folder, settings, name, ReplayConfig(born_within_ms=born_within_ms), begin_ms, end_ms, step
    )
    done = run_tasks(spark, work, queues, lambda found: found.rows, advance)
    by_topic: dict[str, int] = defaultdict(int)
    for one in done:
        by_topic[one.topic] += one.rows
    before = sum(one.before for one in done)
    took_ms = round((time.monotonic() - begun) * 1000)
    return RestoreReport(name, sum(by_topic.values()), before, dict(by_topic), took_ms)


def _chosen(folder: Archive, topics: Sequence[str]) -> set[str]:
    there = {file.topic for file in folder.files()}
    for topic in topics:
        if topic not in there:
            raise OptionError("topics", topic, f"the archive has no messages of it{nearest(topic, there)}")
    return set(topics) or there


def _queues(
    folder: Archive, topics: set[str], rename: Mapping[str, str], begin_ms: int | None, end_ms: int | None
) -> list[_Queue]:
    found: dict[MessageQueue, list[tuple[str, int, int]]] = defaultdict(list)
    for file in folder.files(sorted(topics)):
        for broker_name, queue_id, begin, end in file.spans:
            queue = MessageQueue(file.topic, broker_name, queue_id)
            selected = _is_selected(file, begin_ms, end_ms)
            found[queue] += [(file.path, begin, end)] if selected else []
    by_topic: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(found):
        by_topic[queue.topic].append(queue)
    return [
        _Queue(
            queue, rename.get(topic, topic), position, tuple(sorted(found[queue], key=lambda one: one[1])),
            sum(end - begin for _, begin, end in found[queue]),
        )
        for topic, queues in by_topic.items()
        for position, queue in enumerate(queues)
        if found[queue]
    ]  # fmt: skip


def _is_selected(file: ArchivedFile, begin_ms: int | None, end_ms: int | None) -> bool:
    return (begin_ms is None or file.end_ms >= begin_ms) and (end_ms is None or file.begin_ms < end_ms)


class RestoreWork:
    """One queue of the archive, sent. Travels to executors."""

    def __init__(
        self,
        folder: Archive,
        settings: ClusterSettings,
        name: str,
        config: ReplayConfig,
        begin_ms: int | None,
        end_ms: int | None,
        step: int,
    ) -> None:
        self._address, self._storage = folder.address, folder.storage
        self._settings = settings
        self._name = name
        self._config = config
        self._begin_ms, self._end_ms = begin_ms, end_ms
        self._step = step

    def __call__(self, queue: _Queue) -> _Done:
        folder = Archive(self._address, self._storage)
        progress = _Progress(folder, self._name, queue.source)
        sent, before = 0, progress.load()
        try:
            with Cluster(self._settings) as cluster:
                replay = cluster.client.replay(self._config)
                target = cluster.run(_target(replay, queue))
                for part in self._parts(folder, queue, progress.known):
                    cluster.run(replay.send(target, list(_messages(part))))
                    sent += part.num_rows
                    numbers = part.column("queueOffset")
                    done = Span(queue.source, numbers[0].as_py(), numbers[-1].as_py() + 1)
                    progress.save(before + sent, done)
        except ClientError as failed:
            raise WriteFailed(
                sent, 1, [f"{queue.source} into topic {queue.target_topic}: {failed}"]
            ) from failed
        return _Done(queue.target_topic, sent, before)

    def _parts(self, folder: Archive, queue: _Queue, known: Intervals) -> Iterator[pa.Table]:
        """The messages of the queue that are not known to be sent, in order, `step` or fewer together."""
        for path, begin, end in queue.files:
            missing = known.missing(Span(queue.source, begin, end))
            if not missing:
                continue
            with folder.filesystem.open(folder.inside(path), "rb") as stream:
                table = pq.ParquetFile(stream).read(columns=_COLUMNS)
            for span in missing:
                part = table.filter(self._selection(table, span)).sort_by("queueOffset")
                for low in range(0, part.num_rows, self._step):
                    yield part.slice(low, self._step)

    def _selection(self, table: pa.Table, span: Span) -> pa.ChunkedArray:
        mine = pc.and_(
            pc.equal(table["queueId"], span.queue.queue_id),
            pc.equal(pc.fill_null(table["brokerName"], ""), span.queue.broker_name),
        )
        mine = pc.and_(mine, pc.greater_equal(table["queueOffset"], span.begin))
        mine = pc.and_(mine, pc.less(table["queueOffset"], span.end))
        stored = table["storeTimestamp"].cast(pa.int64())
        if self._begin_ms is not None:
            mine = pc.and_(mine, pc.greater_equal(stored, self._begin_ms * 1000))
        if self._end_ms is not None:
            mine = pc.and_(mine, pc.less(stored, self._end_ms * 1000))
        return mine


async def _target(replay: Replay, queue: _Queue) -> MessageQueue:
    queues = await replay.queues(queue.target_topic)
    return queues[queue.position % len(queues)]


def _messages(part: pa.Table) -> Iterator[RecordedMessage]:
    bodies = part["body"].to_pylist()
    times = pc.divide(part["bornTimestamp"].cast(pa.int64()), 1000).to_pylist()
    for body, pairs, born_ms in zip(bodies, part["properties"].to_pylist(), times, strict=True):
        yield RecordedMessage(body, _kept(pairs or ()), born_ms)


def _kept(pairs: Sequence[tuple[str, str]]) -> bytes:
    """The properties that are sent, in property form."""
    text = "".join(
        f"{name}\x01{value}\x02"
        for name, value in pairs
        if value and (name in _KEPT or (name not in RESERVED_PROPERTIES and not name.startswith("__")))
    ).encode()
    assert len(text) <= PROPERTIES_SIZE_MAX  # they were so stored
    return text


class _Progress:
    """How far a queue is: messages sent, and which numbers they had. One small file, replaced as a whole."""

    def __init__(self, folder: Archive, name: str, queue: MessageQueue) -> None:
        self._fs = folder.filesystem
        self._queue = queue
        key = hashlib.sha256(json.dumps(queue).encode()).hexdigest()[:24]
        self._path = folder.inside(f"{_RESTORES}/{name}/{key}.json")
        self.known = Intervals()

    def load(self) -> int:
        """Messages sent before; 0 for a queue that was not begun."""
        try:
            facts = json.loads(self._fs.cat_file(self._path))
        except FileNotFoundError:
            return 0
        self.known = Intervals(Span(self._queue, *numbers) for numbers in facts["done"])
        return int(facts["sent"])

    def save(self, sent: int, done: Span) -> None:
        """Remember what is confirmed."""
        self.known.add(done)
        facts = {"sent": sent, "done": [[span.begin, span.end] for span in self.known.spans()]}
        fresh = f"{self._path}.tmp"
        self._fs.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(fresh, json.dumps(facts).encode())
        self._fs.mv(fresh, self._path)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="restore", description="Messages of an archive, back into topics.")
    parser.add_argument("archive", help="folder or fsspec address of the archive")
    parser.add_argument("--name-server", required=True, help="nameservers, host:port;host:port")
    parser.add_argument("--topics", default="", help="comma-separated; all of the archive when not given")
    parser.add_argument(
        "--rename", action="append", default=[], metavar="FROM=TO", help="write to another topic"
    )
    parser.add_argument(
        "--born-within-ms", type=int, default=0, help="let times of birth be wrong by so much"
    )
    parser.add_argument("--name", help="under which progress is kept")
    add_option_argument(parser)

    def work(arguments: argparse.Namespace) -> Mapping[str, Any]:
        with session("restore", arguments.master) as spark:
            report = restore(
                spark, arguments.archive, {"nameServer": arguments.name_server} | further_options(arguments),
                topics=[topic for topic in arguments.topics.split(",") if topic],
                rename=dict(pair.split("=", 1) for pair in arguments.rename),
                born_within_ms=arguments.born_within_ms, name=arguments.name,
            )  # fmt: skip
        return asdict(report)

    return main_of(work, parser)


if __name__ == "__main__":
    sys.exit(main())
