"""One bit of one file of a whole store is flipped, or the end of a file is missing: what the store makes of it.

What must hold, whichever file it is: the start works, or names the file and a way out; no reader ever gets a byte
that was not written; what is lost is at most the message that was hit, or for a file that is shorter what was in its
missing part; and what is wrong is found by the start, by a reader, or by check(), which is what `store verify` does.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import structlog

from aerobee_store.faults.errors import CorruptStore, StoreError
from aerobee_store.recovery.recovery import RecoveryReport
from aerobee_store.store import MessageStore
from store.crash_disk import CrashIo, Disk
from store.crash_explorer import ROOT, Life, config_of
from store.crash_model import Message, Promise, settings_file
from store.inside import log_of
from store.workload import Clock

__all__ = ["Image", "Outcomes", "RotFailure", "flip_many", "images", "truncate_many"]

IMAGES = 6


class RotFailure(Exception):
    """What must hold does not."""

    def __init__(self, seed: int, number: int, place: str, reason: str) -> None:
        super().__init__(seed, number, place, reason)

    def __str__(self) -> str:
        seed, number, place, reason = self.args
        return f"seed {seed}, trial {number}, {place}: {reason}"


class Image:
    """A store at rest, and what is in it."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.config = replace(config_of(random), commit_log_file_size=random.choice((4096, 16384)))
        self.clock = Clock()
        life = Life(random, self.config, Disk(), Promise(), self.clock, None)
        life.run()
        self.files = {name: raw for name, raw in life.io.disk.files().items() if not name.endswith(".tmp")}
        self.promise = life.promises[-1][1]
        self.messages = dict(self.promise.known)
        # As a start without any fault serves them; a store that was not closed has its queues brought up to date.
        self.served = _serve(self.opened(self.files)[0], self.messages)

    def opened(self, files: dict[str, bytes]) -> tuple[MessageStore, RecoveryReport, CrashIo]:
        """A store on these files, started."""
        io = CrashIo(Disk.holding(files))
        store = MessageStore(self.config, io=io, clock=self.clock)
        return store, store.open(), io

    def kinds(self) -> dict[str, list[str]]:
        """Names of the files that are not empty, by what they are."""
        found: dict[str, list[str]] = {}
        for name, raw in self.files.items():
            if raw:
                parts = Path(name).relative_to(ROOT).parts
                found.setdefault(parts[0] if parts[0] != "config" else parts[1], []).append(name)
        return found


@dataclass(slots=True)
class Outcomes:
    """How many trials ended how; `kinds` counts them by (kind of file, end)."""

    trials: int = 0
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Kinds of files that there were to spoil.
    possible: set[str] = field(default_factory=set)


def _serve(store: MessageStore, messages: dict[int, Message]) -> set[int]:
    """Places of all messages that consumers get; AssertionError when one is not what was stored."""
    places: set[int] = set()
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            offset, end = store.reading.min_offset(topic, queue_id), store.reading.max_offset(topic, queue_id)
            while offset < end:
                found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 20, None)
                assert found.next_offset > offset
                offset = found.next_offset
                places |= _checked(b"".join(found.body), messages, (topic, queue_id))
    return places


def _checked(body: bytes, messages: dict[int, Message], key: tuple[str, int] | None) -> set[int]:
    places = set()
    while body:
        size = int.from_bytes(body[:4], "big")
        place = int.from_bytes(body[28:36], "big")
        message = messages.get(place)
        assert message is not None, f"a message at {place} that was never stored"
        assert body[:size] == message.record, f"wrong bytes of the message at {place}"
        assert key in (None, message.key), f"the message at {place} in the wrong queue"
        places.add(place)
        body = body[size:]
    return places


class _Trial:
    """One fault in one image."""

    def __init__(self, image: Image, name: str, raw: bytes, hit: range, random: Random) -> None:
        self._image = image
        self._name = name
        # Bytes of the file that are not what they were.
        self._hit = hit
        self._random = random
        self._files = {**image.files, name: raw}

    def run(self) -> str:
        """How it ended, in a word or two."""
        try:
            store, report, io = self._image.opened(self._files)
            self._check_settings(io)
        except CorruptStore as refused:
            self._check_refusal(refused)
            return "start refused"
        served = _serve(store, self._image.messages)
        self._look_directly(store)
        lost = self._image.served - served - self._messages_hit()
        found = self._is_found(store, report)
        assert found or not self._messages_hit() & self._image.served, "nobody found the fault"
        if lost:
            assert found, f"messages at {sorted(lost)} are not served, and nothing says so"
            self._check_way_out(lost)
            return "hidden until mended"
        if served != self._image.served:
            assert found, "a message is gone, and nothing says so"
            return "message lost and named"
        return "found" if found else "no harm"

    def _check_refusal(self, refused: CorruptStore) -> None:
        assert str(refused.path) in self._name or self._name.startswith(str(refused.path)), str(refused)
        assert refused.way_out, str(refused)

    def _messages_hit(self) -> set[int]:
        """Places of messages that have a byte where the fault is."""
        if "/commitlog/" not in self._name:
            return set()
        base = int(self._name.rpartition("/")[2])
        low, high = base + self._hit.start, base + self._hit.stop
        return {
            m.physical_offset
            for m in self._image.messages.values()
            if m.physical_offset < high and m.end > low
        }

    def _look_directly(self, store: MessageStore) -> None:
        """By place, and by key: for the messages hit and a few others."""
        messages = self._image.messages
        chosen = {*self._messages_hit(), *self._random.sample(sorted(messages), min(4, len(messages)))}
        for place in chosen:
            message = messages[place]
            assert store.reading.message_at(place) in (None, message.record), f"wrong bytes at {place}"
            for key in message.texts[:2]:
                body = store.keys.query(message.topic, key, 32, 0, 1 << 60).body
                _checked(b"".join(body), messages, None)

    def _check_settings(self, io: CrashIo) -> None:
        """Settings are the ones saved last or those before; their format has no checksum, so a value may differ."""
        if not self._name.endswith("topics.json"):
            return
        found = settings_file(ROOT, io).load()
        assert found is not None, "settings are gone without a word"

    def _is_found(self, store: MessageStore, report: RecoveryReport) -> bool:
        if log_of(store).damaged or report.torn_bytes or report.dropped:
            return True
        try:
            store.check()
        except StoreError:
            return True
        return False

    def _check_way_out(self, lost: set[int]) -> None:
        """Queues are made anew from the log when nothing claims that they are right."""
        files = {n: raw for n, raw in self._files.items() if not n.endswith("/checkpoint")}
        files[str(ROOT / "abort")] = b"1"
        store, _, _ = self._image.opened(files)
        assert not lost - _serve(store, self._image.messages), f"messages at {sorted(lost)} stay hidden"


def images(seed: int) -> list[Image]:
    """Stores to spoil."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return [Image(seed * IMAGES + number) for number in range(IMAGES)]


def flip_many(seed: int, count: int) -> Outcomes:
    """`count` flips of one bit each, over all kinds of files alike."""
    return _try_many(seed, count, _flip)


def truncate_many(seed: int, count: int) -> Outcomes:
    """`count` files that are shorter than they were, over all kinds alike."""
    return _try_many(seed, count, _truncate)


def _flip(raw: bytes, random: Random) -> tuple[bytes, range]:
    # Half of them where something is: much of a file is zeros that nobody reads.
    filled = len(raw.rstrip(b"\0"))
    at = random.randrange(filled if filled and random.random() < 0.5 else len(raw))
    return raw[:at] + bytes((raw[at] ^ 1 << random.randrange(8),)) + raw[at + 1 :], range(at, at + 1)


def _truncate(raw: bytes, random: Random) -> tuple[bytes, range]:
    size = random.choice((0, len(raw) - 1, random.randrange(len(raw))))
    return raw[:size], range(size, len(raw))


def _try_many(seed: int, count: int, spoil: Callable[[bytes, Random], tuple[bytes, range]]) -> Outcomes:
    random = Random(seed)
    stores = images(seed)
    found = Outcomes(possible={kind for store in stores for kind in store.kinds()})
    for number in range(count):
        image = random.choice(stores)
        kinds = image.kinds()
        kind = random.choice(sorted(kinds))
        name = random.choice(sorted(kinds[kind]))
        raw, hit = spoil(image.files[name], random)
        try:
            end = _Trial(image, name, raw, hit, random).run()
        except Exception as error:
            place = f"{name} at {hit}"
            raise RotFailure(seed, number, place, f"{type(error).__name__}: {error}") from error
        found.trials += 1
        found.kinds[kind, end] += 1
    return found
