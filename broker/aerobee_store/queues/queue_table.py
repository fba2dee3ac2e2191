"""All consume queues of a store: topic -> queue_id -> ConsumeQueue, or BatchQueue for topics of batches.

Touches  <root>/consumequeue/<topic>/<queue_id>/ and <root>/batchconsumequeue/<topic>/<queue_id>/, through the queues.
         No sockets, no asyncio, no clock.

Invariants
- A queue is in the table from its first use; it has files from its first entry on.
- All queues of a topic are of one kind, which is known before the first of them is made.
- Folders that are not queues (a queue folder whose name is no number) are left alone.

Threads: one thread changes the table. flush() may run in another; it works on the queues that were there
when it began.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.queue_files import OpenQueueFiles
from aerobee_store.faults.errors import StoreError, WrongLength
from aerobee_store.queues.batch_queue import BatchQueue
from aerobee_store.queues.batch_queues import BATCH_QUEUE_FOLDER, batch_topics
from aerobee_store.queues.consume_queue import ConsumeQueue

__all__ = ["QueueTable"]


class QueueTable:
    """Finds, makes and removes queues, and does to all of them what the store does to all of them; a part of it."""

    title = "consume queue"

    def __init__(
        self,
        folder: Path,
        file_size: int,
        io: StoreIo,
        *,
        writable: bool = True,
        open_files_max: int | None = None,
        batch_file_size: int = 13_800_000,
    ) -> None:
        """`folder` is <root>/consumequeue; sizes in bytes: `file_size` a multiple of the entry's 20, `batch_file_size`
        of the 46 of one of batches. `open_files_max`: see OpenQueueFiles."""
        # Fixed for life.
        self.folder = folder
        self.batch_folder = folder.parent / BATCH_QUEUE_FOLDER
        self._file_size = file_size
        self._batch_file_size = batch_file_size
        self._io = io
        self._writable = writable
        self.open_files = OpenQueueFiles(io, open_files_max)
        # Changed by load(), get_or_create() and deletion().
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        # How often queues were removed: who keeps one looks it up again then. Moved by deletion().
        self.removals = 0
        # Deletions of topics that are not finished; changed by deletion() and its steps.
        self._leaving: dict[str, Iterator[None]] = {}
        # Topics with queues of batches; changed by load(), make_batch_topic() and deletion().
        self.batch_topics: set[str] = set()
        # Queues with a file that somebody cut, found by load(); they are not in the table.
        self.cut: list[tuple[ConsumeQueue, WrongLength]] = []
        # Physical offset below which all entries are on disk; moved by who knows what was confirmed before a flush().
        self.watermark = 0
        # Asked while this is flushed: whether others who wait for the disk are to be spared. Set by who serves them.
        self.spares_others: Callable[[], bool] | None = None
        # Queues of which load() removed an empty file. Without a crash before, somebody made it empty.
        self.emptied: list[ConsumeQueue] = []

    def load(self) -> None:
        """As StorePart; recover() of each queue is the caller's next step.

        Raises CorruptStore for a foreign name inside a queue's folder, and when all files have the same wrong length:
        it is the settings then that are wrong. Single files of a wrong length leave their queue in `cut`.
        """
        self.cut, self.emptied = [], []
        self.batch_topics = set(batch_topics(self.folder.parent, self._io))
        for folder in (self.folder, self.batch_folder):
            for topic in self._io.list_names(folder):
                if not topic.is_dir or self.folder_of(topic.name).parent != folder:
                    continue
                place = folder / topic.name
                for name in self._io.list_names(place):
                    if name.is_dir and _is_queue_id(name.name):
                        self._load(self._new_queue(topic.name, int(name.name), place / name.name))
        for is_batch in (False, True):
            cut = [wrong for queue, wrong in self.cut if queue.is_batch is is_batch]
            alone = len({wrong.found for wrong in cut}) == 1 and all(wrong.is_alone for wrong in cut)
            if alone and not any(queue.file_spans for queue in self if queue.is_batch is is_batch):
                raise cut[0]

    def _load(self, queue: ConsumeQueue) -> None:
        try:
            if queue.load():
                self.emptied.append(queue)
        except WrongLength as wrong:
            self.cut.append((queue, wrong))
        else:
            self._topics.setdefault(queue.topic, {})[queue.queue_id] = queue

    def drop_cut(self) -> None:
        """Delete the files of the queues that were cut: they are built again from the log."""
        for _, wrong in self.cut:
            folder = wrong.path.parent
            for entry in self._io.list_names(folder):
                if not entry.is_dir:
                    self._io.unlink(folder / entry.name)
            self._io.sync_folder(folder)
        self.cut = []

    def _new_queue(self, topic: str, queue_id: int, folder: Path) -> ConsumeQueue:
        is_batch = topic in self.batch_topics
        kind = BatchQueue if is_batch else ConsumeQueue
        return kind(
            topic,
            queue_id,
            folder,
            self._batch_file_size if is_batch else self._file_size,
            self._io,
            writable=self._writable,
            open_files=self.open_files,
        )

    def folder_of(self, topic: str) -> Path:
        """Where the queues of the topic lie, a folder each."""
        return (self.batch_folder if topic in self.batch_topics else self.folder) / topic

    def make_batch_topic(self, topic: str) -> None:
        """From now on the queues of the topic are of batches; durable on return. It must not have a queue of the other
        kind. StoreError when `topic` cannot be a folder's name; StoreFull or OSError: it is not made."""
        self._finish_deletion(topic)
        if topic in self.batch_topics:
            return
        if self._topics.get(topic):
            raise StoreError(f"topic {topic} has plain queues, its messages are numbered by them")
        self.prepare_batch_topic(topic)
        self.batch_topics.add(topic)

    def prepare_batch_topic(self, topic: str) -> None:
        """Make the folder that says it, durable."""
        _check_place(topic, 0)
        self._io.make_folder(self.batch_folder / topic)

    def forget_prepared(self, topics: Iterable[str]) -> None:
        """Remove the folders that prepare_batch_topic() made of those that are no topics of batches."""
        unused = [topic for topic in topics if topic not in self.batch_topics and topic not in self._leaving]
        for topic in unused:
            self._io.remove_folder(self.batch_folder / topic)
        if unused:
            self._io.sync_folder(self.batch_folder)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it was loaded or used before."""
        queues = self._topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made in memory if it is new. StoreError when `topic` cannot be a folder's name."""
        queue = self.get(topic, queue_id)
        if queue is None:
            _check_place(topic, queue_id)
            self._finish_deletion(topic)
            queue = self._new_queue(topic, queue_id, self.folder_of(topic) / str(queue_id))
            self._topics.setdefault(topic, {})[queue_id] = queue
        return queue

    @property
    def topics(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return sorted(self._topics)

    @property
    def topic_count(self) -> int:
        """How many topics have a queue."""
        return len(self._topics)

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the topic's queues, sorted; empty for an unknown topic."""
        return sorted(self._topics.get(topic, ()))

    def queue_count(self, topic: str) -> int:
        """How many queues the topic has."""
        queues = self._topics.get(topic)
        return 0 if queues is None else len(queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Every queue there is now, by topic and id; the table may change meanwhile."""
        for topic in self.topics:
            queues = self._topics.get(topic, {})
            yield from [queues[queue_id] for queue_id in sorted(queues)]

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    @property
    def last_physical_end(self) -> int:
        """The largest end of a record that any queue knows; -1 without one."""
        return max((queue.last_physical_end for queue in self), default=-1)

    def delete_topic(self, topic: str) -> int:
        """Delete the files and folders of all queues of `topic`; how many queues there were."""
        count = len(self._topics.get(topic, ()))
        for _ in self.deletion(topic):
            pass
        return count

    def deletion(self, topic: str) -> Generator[None, None, int]:
        """As delete_topic, in steps of a queue each: a topic may have 16,384.

        From this call on the topic has no queue; what is not taken of the steps is done by whoever makes a queue of
        the topic again, deletes it again or closes the table.
        """
        self._finish_deletion(topic)
        folder, is_batch = self.folder_of(topic), topic in self.batch_topics
        queues = self._topics.pop(topic, {})
        self.removals += 1
        self.batch_topics.discard(topic)
        if queues or is_batch:
            self._leaving[topic] = self._deletion(topic, folder, list(queues.values()), is_batch=is_batch)
        return self._steps_of_deletion(topic, len(queues))

    def _deletion(
        self, topic: str, folder: Path, queues: Sequence[ConsumeQueue], *, is_batch: bool
    ) -> Iterator[None]:
        for queue in queues:
            queue.destroy()
            yield
        self._io.remove_folder(folder)
        if is_batch:
            self._io.sync_folder(self.batch_folder)  # it is the word that its queues are of batches
        del self._leaving[topic]

    def _steps_of_deletion(self, topic: str, count: int) -> Generator[None, None, int]:
        """Of its own, so that the deletion does not end where somebody gives up waiting for it."""
        for _ in self._leaving.get(topic, ()):
            yield
        return count

    def _finish_deletion(self, topic: str) -> None:
        for _ in self._leaving.get(topic, ()):
            pass

    def cut_at_physical(self, physical_offset: int) -> int:
        """Drop, in every queue, the entries of records that do not end at or below it; how many went."""
        return sum(queue.cut_at_physical(physical_offset) for queue in self)

    def recover_to(self, begin: int, end: int) -> None:
        """As StorePart; that entries and records agree is the business of recovery, before and after this."""
        self.cut_at_physical(end)
        self.correct_min_offsets(begin)

    def correct_min_offsets(self, log_min: int) -> None:
        """Tell every queue where the log begins now."""
        for queue in self:
            queue.correct_min_offset(log_min)

    def destroy(self) -> None:
        """Delete all queues: the log they point into is gone."""
        for topic in self.topics:
            self.delete_topic(topic)

    def flush(self) -> int:
        """Make every entry put before this call durable; how many files were synced. OSError is final for the store."""
        work = [unflushed for queue in self if (unflushed := queue.unflushed()) is not None]
        files = [file for unflushed in work for file in unflushed.files]
        # Of new files; each folder once however many queues a topic got.
        folders = dict.fromkeys(folder for unflushed in work for folder in unflushed.folders)
        within = [folder for folder in folders if folder.is_relative_to(self.folder.parent)]
        self.open_files.sync(files, within, gently=self.spares_others)
        for unflushed in work:
            unflushed.queue.flushed(unflushed)
        return len(files)

    def close(self) -> None:
        """Close all files; views handed out stay readable. Nothing is flushed."""
        for topic in list(self._leaving):
            self._finish_deletion(topic)
        for queue in self:
            queue.close()

    def check(self) -> None:
        """Check every queue; CorruptStore at the first broken invariant."""
        for queue in self:
            queue.check()


def _is_queue_id(name: str) -> bool:
    """True for the decimal names that a queue's folder can have."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _check_place(topic: str, queue_id: int) -> None:
    """Names come from records too, and a damaged one must not lead out of the store's folder."""
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
        raise StoreError(f"topic {topic!r}, queue {queue_id}: cannot be a folder; the record is refused")
