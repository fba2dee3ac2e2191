"""Work on a store, all disks that a crash at any step of it may leave, and what the store makes of each.

A seed is a scenario: file sizes, and three lives of a store. Each life does random work; the first starts on an empty
disk, each other one on one that a crash of the life before it has left. Of each life every step is looked at, and of
the disks that a crash there may leave all, when they are few, or some. Each is recovered and checked (crash_model),
recovered again, which must change nothing; and some crash again while they recover, up to three times.

A scenario may be sampled (see Sample): then the first disk of each place or kind is looked at (see Kind), all that
crash again while they recover, and of the others one in so many.

    PYTHONPATH=tests .venv/bin/python -m store.crash_explorer SEED      one scenario again, to its first failure
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import structlog

from aerobee_store.cleaning.cleaning import CleaningPlan
from aerobee_store.recovery.recovery import RecoveryReport
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import PutStatus
from store.crash_disk import CrashIo, Disk, Step, Survival, survivals
from store.crash_model import Message, Promise, check_store, settings_file
from store.inside import log_of, tombstones_of
from store.workload import HOST, HOST_V6, TAGS, Clock, message

__all__ = ["DEPTH_MAX", "KILLED", "WHOLE", "WORKS", "CrashFailure", "Explored", "Kind", "Sample", "explore"]

ROOT = Path("/store")
TOPICS = ("Orders", "%RETRY%g", "B")
BATCHED = "B"  # in every other scenario a topic of batches, where some records hold several messages
LIVES = 3
WORK_PER_LIFE = 34
DEPTH_MAX = 3
FEW = 12
SAMPLES = 3
# They say who ran and how far it got; what a writer left half done is not looked at by anybody.
NOT_COMPARED = ("/checkpoint", "/lock", "/abort", ".tmp")


# What a store does when the crash comes, by the names of Life's methods.
OPENING, CLOSING, RECOVERING = "open", "close", "recovery after a crash"
# Work to how often it is done.
WEIGHTS = {
    "append": 40,
    "flush": 24,
    "index": 5,
    "flush_queues": 6,
    "checkpoint": 5,
    "preallocate": 3,
    "save_settings": 4,
    "clean": 4,
    "delete_topic": 3,
    "reopen": 2,
}
WORKS = frozenset({*WEIGHTS, OPENING, CLOSING, RECOVERING})
KILLED = -1


class Kind(NamedTuple):
    """Of a disk that a crash has left: what the store was doing, which step of it was the last, and what is left.

    `file` is what kind of file the step was about (a folder below the root); `left` the worst that has become of a
    page or a length (an answer of Disk.questions(): 0 old, 1 new, 2.. mixtures), or KILLED.
    """

    work: str
    step: str
    file: str
    left: int

    @property
    def place(self) -> tuple[str, str, str]:
        """When the crash comes."""
        return self.work, self.step, self.file

    @property
    def outcome(self) -> tuple[str, str, int]:
        """What becomes of what the step has done."""
        return self.step, self.file, self.left


class Sample(NamedTuple):
    """Which states of a scenario are looked at: the first of each place, or of each kind; of the others one in so many.

    As text `/20`, or `/20k` with each kind: what stands behind the seed on the command line.
    """

    one_in: int = 1
    each_kind: bool = False

    @classmethod
    def of(cls, text: str) -> "Sample":
        """Of what stands behind the slash; nothing is a whole scenario."""
        return cls(int(text.removesuffix("k") or 1), text.endswith("k"))

    def __str__(self) -> str:
        return "" if self.one_in == 1 else f"/{self.one_in}{'k' * self.each_kind}"


WHOLE = Sample()


@dataclass(slots=True)
class Explored:
    """What came of a scenario: how many states were recovered and checked, and the digests of the distinct ones."""

    seed: int
    states: int = 0
    steps: int = 0
    deepest: int = 0
    digests: set[bytes] = field(default_factory=set)
    kinds: Counter[Kind] = field(default_factory=Counter)


class CrashFailure(Exception):
    """A state in which the store was not what it had promised to be."""

    def __init__(self, seed: int, sample: Sample, place: str, reason: str) -> None:
        super().__init__(seed, sample, place, reason)
        self.seed = seed
        self.sample = sample
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        again = f"PYTHONPATH=tests .venv/bin/python -m store.crash_explorer {self.seed}{self.sample}"
        return f"seed {self.seed}, {self.place}: {self.reason}\nagain with:  {again}"


def config_of(random: Random) -> StoreConfig:
    """Files so small that everything rolls all the time; pages enough that writes are torn between them."""
    slots, entries = random.choice(((7, 40), (20, 60), (1100, 200)))
    return StoreConfig(
        root=ROOT,
        commit_log_file_size=random.choice((4096, 4096, 8192, 16384)),
        consume_queue_file_size=random.choice((200, 400, 400, 8000)),
        batch_queue_file_size=46 * 9,
        index_slots=slots,
        index_entries=entries,
        memory_size=1 << 30,
    )


class Life:
    """A store at work, and what it has promised after each step of its disk."""

    def __init__(
        self,
        random: Random,
        config: StoreConfig,
        disk: Disk,
        promise: Promise,
        clock: Clock,
        inner_counts: Random | None,
    ) -> None:
        """With `inner_counts` one of the topics is of batches."""
        self._random = random
        self._inner_counts = inner_counts
        self._config = config
        self._clock = clock
        self._number = 0
        self.io = CrashIo(disk)
        self._store = MessageStore(config, io=self.io, clock=clock)
        self._settings = settings_file(ROOT, self.io)
        # (steps taken, what is promised from then on)
        self.promises: list[tuple[int, Promise]] = []
        # (steps taken, what is done from then on)
        self.works: list[tuple[int, str]] = []
        self._promise = promise
        self._say(promise)

    def _say(self, promise: Promise) -> None:
        self._promise = promise
        self.promises.append((len(self.io.steps), promise))

    def run(self) -> None:
        """Open the store, work, and stop; closed in order now and then."""
        self._begin(OPENING)
        self._open()
        works: dict[str, Callable[[], None]] = {name: getattr(self, f"_{name}") for name in WEIGHTS}
        for name in self._random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=WORK_PER_LIFE):
            self._begin(name)
            works[name]()
        if self._random.random() < 0.5:
            self._begin(CLOSING)
            self._store.close()

    def _begin(self, work: str) -> None:
        self.works.append((len(self.io.steps), work))

    def _open(self) -> None:
        report = self._store.open()
        left = check_store(self._store, report, self._promise)
        self._make_batch_topic()
        # What is lost is forgotten: it must not come back behind what is written now.
        known = {found.physical_offset: found for found in left}
        begin = self._store.min_physical_offset
        settings = self._settings.load()
        assert settings in self._promise.settings
        ends = tombstones_of(self._store).topics
        seen = replace(
            self._promise,
            known=known,
            damaged=log_of(self._store).damaged,
            log_min=begin,
            dead=ends,
            dying=ends,
            settings=(settings,),
            numbers={},
        )
        numbers = {
            (topic, queue_id): self._store.reading.max_offset(topic, queue_id)
            for topic in self._store.topics.names()
            for queue_id in self._store.topics.queue_ids(topic)
        }
        self._say(replace(seen.acknowledged(report.end_offset), numbers=numbers))

    def _make_batch_topic(self) -> None:
        if self._inner_counts is not None:
            self._store.topics.make_batch(BATCHED)

    def _reopen(self) -> None:
        self._acknowledge_all()
        self._store.close()
        self._store = MessageStore(self._config, io=self.io, clock=self._clock)
        self._open()

    def _acknowledge_all(self) -> None:
        self._store.flush_disk()
        self._say(self._promise.acknowledged(self._store.flushed_offset))

    def _append(self) -> None:
        random = self._random
        batch = [self._message() for _ in range(random.choice((1, 1, 1, 2, 3, 8)))]
        write = self._store.append_group if random.random() < 0.2 else self._store.append
        for new, answer in zip(batch, write(batch), strict=True):
            if answer.status is PutStatus.PUT_OK:
                view = log_of(self._store).read(answer.physical_offset, answer.size)
                assert view is not None
                found = Message(new, answer.physical_offset, answer.queue_offset, bytes(view))
                self._promise.known[found.physical_offset] = found

    def _message(self, topic: str | None = None) -> "message":  # type: ignore[valid-type]
        random = self._random
        self._number += 1
        topic = topic or random.choice(TOPICS)
        count = 1
        if topic == BATCHED and self._inner_counts is not None:
            count = self._inner_counts.choice((1, 1, 2, 3, 9))
        return message(
            topic,
            random.randrange(2),
            random.randbytes(random.choice((0, 9, 40, 40, 120, 700))),
            tag=random.choice(TAGS),
            keys=random.choice((None, None, f"k{random.randrange(9)}", "k1 k2")),
            unique_key=random.choice((None, f"U{self._number}", f"U{self._number}")),
            host=random.choice((HOST, HOST, HOST_V6)),
            sys_flag=0 if count == 1 else 0xC0,
            extra=None if count == 1 else {"INNER_NUM": str(count)},
        )

    def _flush(self) -> None:
        flushed = self._store.flush_disk()
        self._say(self._promise.acknowledged(flushed))
        self._store.confirm(flushed)

    def _index(self) -> None:
        self._store.keys.build(self._random.randrange(1, 30))

    def _flush_queues(self) -> None:
        self._store.flush_queues()

    def _checkpoint(self) -> None:
        self._store.write_checkpoint()

    def _preallocate(self) -> None:
        self._store.preallocate()

    def _save_settings(self) -> None:
        old = self._promise.settings
        new = b'{"counter":%d,"text":"%s"}' % (self._number, b"x" * self._random.randrange(3000))
        self._number += 1
        self._say(replace(self._promise, settings=(*old, new)))
        self._settings.save(new)
        self._say(replace(self._promise, settings=(new,)))

    def _clean(self) -> None:
        store = self._store
        files = store.cleaner.survey(store.settled_offset)
        chosen = files[: self._random.randrange(1, 3)]
        if chosen:
            self._say(replace(self._promise, log_min_after=chosen[-1].end))
            store.cleaner.clean(CleaningPlan(tuple(chosen), "asked"))
            self._say(replace(self._promise, log_min=chosen[-1].end))

    def _delete_topic(self) -> None:
        topic = self._random.choice(TOPICS)
        self._say(self._promise.deleting(topic, self._store.end_offset))
        self._store.topics.delete(topic)
        self._make_batch_topic()
        # The topic may be made anew and get messages before the deletion is written down.
        while self._random.random() < 0.5:
            self._random.choice((self._append, self._flush))()
        self._store.topics.save_deletions()
        self._say(self._promise.deleted())


class Explorer:
    """Goes through one scenario: all of it, or a sample."""

    def __init__(self, seed: int, sample: Sample, *, twice_each: int) -> None:
        # What is recovered is recovered again, or of so many only one.
        self._twice_each = twice_each
        self._random = Random(seed)
        # What is in the sample is drawn apart from the rest; and when there was a crash already.
        self._sample = sample
        self._draws = Random(f"sample of {seed}")
        self._places: set[tuple[str, str, str]] = set()
        self._config = config_of(self._random)
        # Scenarios that have failed once stay what they were.
        self._inner_counts = Random(seed) if seed % 2 and seed > 1001 else None
        self._clock = Clock()
        self.result = Explored(seed)
        self._place = "the work itself"
        # Counts the promises; and what was looked at, with the promise that then held.
        self._era = 0
        self._seen: set[tuple[bytes, int]] = set()

    def run(self) -> Explored:
        """CrashFailure at the first state that is not as promised."""
        try:
            self._explore_lives()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise CrashFailure(self.result.seed, self._sample, self._place, reason) from error
        return self.result

    def _explore_lives(self) -> None:
        disk, promise = Disk(), Promise()
        for number in range(LIVES):
            start = disk.kill()
            life = Life(self._random, self._config, disk, promise, self._clock, self._inner_counts)
            self._place = f"life {number}, at work"
            life.run()
            self.result.steps += len(life.io.steps)
            ends = list(self._explore_life(start, life, f"life {number}"))
            disk, promise = self._random.choice(ends[len(ends) // 2 :])
            promise = replace(promise, known=dict(promise.known))

    def _explore_life(self, disk: Disk, life: Life, place: str) -> Iterator[tuple[Disk, Promise]]:
        """Look at every step; yields a disk that a crash may leave, with its promise, for each of them."""
        steps = life.io.steps
        after_all = len(steps) + 1
        promises = iter([*life.promises[1:], (after_all, life.promises[-1][1])])
        works = iter([*life.works[1:], (after_all, life.works[-1][1])])
        promise, (promised_until, next_promise) = life.promises[0][1], next(promises)
        work, (works_until, next_work) = life.works[0][1], next(works)
        self._era += 1
        for count in range(after_all):
            # A step belongs to the work that was begun before it.
            while count > works_until:
                work, (works_until, next_work) = next_work, next(works)
            kind = Kind(work, "none", "", 0)
            if count:
                kind = _kind(work, steps[count - 1], disk)
                disk.apply(steps[count - 1])
            while count >= promised_until:
                promise, (promised_until, next_promise) = next_promise, next(promises)
                self._era += 1
            self._place = f"{place}, after step {count}"
            yield self._crash_here(disk, promise, kind, 1), promise

    def _crash_here(self, disk: Disk, promise: Promise, kind: Kind, depth: int) -> Disk:
        """Look at the disks that a crash now may leave; one of them."""
        place = self._place
        left = disk
        questions = disk.questions()
        for number, survival in enumerate(survivals(disk, self._random, few=FEW, samples=SAMPLES)):
            self._place = f"{place}, disk {number} {survival.answers}"
            left = disk.crash(survival)
            worst = max(
                (a for a, options in zip(survival.answers, questions, strict=True) if options == 2), default=0
            )
            self._look_at(left, promise, kind._replace(left=worst), depth)
        if depth == 1 and self._random.random() < 0.2:
            self._place = f"{place}, killed"
            self._look_at(disk, promise, kind._replace(left=KILLED), depth)
        self._place = place
        return left

    def _is_selected(self, kind: Kind, depth: int) -> bool:
        """Whether a state is in the sample."""
        if self._sample == WHOLE:
            return True
        drawn = self._draws.randrange(self._sample.one_in) == 0
        is_new = kind not in self.result.kinds if self._sample.each_kind else kind.place not in self._places
        return drawn or depth > 1 or is_new

    def _look_at(self, left: Disk, promise: Promise, kind: Kind, depth: int) -> None:
        """One state: recover it, check it, recover it again; and crash again on the way now and then."""
        if not self._is_selected(kind, depth):
            return
        disk = left.kill()
        digest = disk.digest()
        if (digest, self._era) in self._seen:
            return
        self._seen.add((digest, self._era))
        self._places.add(kind.place)
        start = disk.kill()
        io = CrashIo(disk)
        store = MessageStore(self._config, io=io, clock=self._clock)
        report = store.open()
        check_store(store, report, promise)
        assert settings_file(ROOT, io).load() in promise.settings
        if self.result.states % self._twice_each == 0:
            self._recover_again(io, report)
        self.result.states += 1
        self.result.digests.add(digest)
        self.result.kinds[kind] += 1
        self.result.deepest = max(self.result.deepest, depth)
        if depth < DEPTH_MAX and io.steps and self._random.random() < 0.1:
            self._crash_on_the_way(start, io.steps, promise, depth)

    def _recover_again(self, io: CrashIo, report: RecoveryReport) -> None:
        """What recovery left is on disk, and recovering it changes nothing."""
        before = io.disk.files()
        answers = tuple(0 for _ in io.disk.questions())
        again = CrashIo(io.disk.crash(Survival(answers, self._random)))
        store = MessageStore(self._config, io=again, clock=self._clock)
        second = store.open()
        assert (second.end_offset, second.lost) == (report.end_offset, [])
        after = again.disk.files()
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        changed = {name for name in changed if not name.endswith(NOT_COMPARED)}
        assert not changed, f"recovering again changed {sorted(changed)}"

    def _crash_on_the_way(self, start: Disk, steps: list[Step], promise: Promise, depth: int) -> None:
        place = self._place
        count = self._random.randrange(len(steps) + 1)
        kind = Kind(RECOVERING, "none", "", 0)
        for step in steps[:count]:
            kind = _kind(RECOVERING, step, start)
            start.apply(step)
        self._place = f"{place}; recovering, after step {count}"
        self._crash_here(start, promise, kind, depth + 1)
        self._place = place


def _kind(work: str, step: Step, disk: Disk) -> Kind:
    """Of the states after a step that is about to be taken on a disk."""
    path = disk.path_of(step[1]) if isinstance(step[1], int) else step[1]
    return Kind(work, step[0], path.removeprefix(f"{ROOT}").strip("/").partition("/")[0], 0)


def explore(seed: int, sample: Sample = WHOLE, *, twice_each: int = 1) -> Explored:
    """One scenario, or a sample of it; of the states that are looked at one of `twice_each` is recovered twice."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return Explorer(seed, sample, twice_each=twice_each).run()


def main() -> None:
    """The scenarios named on the command line; `A-B` are all from A to B, `/N` and `/Nk` are samples."""
    for text in sys.argv[1:]:
        seeds, _, sample = text.partition("/")
        first, _, last = seeds.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            began = time.perf_counter()
            found = explore(seed, Sample.of(sample))
            took = time.perf_counter() - began
            print(
                f"seed {seed}: {found.states} states, {len(found.digests)} distinct, {found.steps} steps, "
                f"depth {found.deepest}, {found.states / took:.0f} a second"
            )


if __name__ == "__main__":
    main()
