"""The native engine, as the broker knows it: found, asked for its interface, or done without.

Touches  the import of `aerobee_native`, a distribution of its own (`native/`, the extra `aerobee[native]`).

The engine is functions over bytes. It makes records, queue entries, hashes of keys and answers of the usual sends at
the front of a read, entries of the index, and answers to pulls of what lies in queue and log; Python owns every state
and does whatever is unusual, so a broker without the engine does the same, slower. What is known of topics and queues,
and of what readers ask, is told to it beforehand (`add_route`, `add_queue`, `learn_pull`).
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, TypeVar, cast

import structlog

from aerobee_proto.native_records import MODULE
from aerobee_remoting.exchange.gate import Judge
from aerobee_store.index.index_file import ChainedKeys, KeyedBlock
from aerobee_store.log.commit_log import OldRecords, Trust
from aerobee_store.reading.get_message import Nearby
from aerobee_store.reading.key_lookup import Lacking, LogNearby, Picked
from aerobee_store.reading.residency import IndexNearby
from aerobee_store.replicas.raw_log import WalkedRecords

__all__ = [
    "ANSWERS_SIZE",
    "INTERFACE",
    "MODULE",
    "EngineKind",
    "EngineMissing",
    "FoundPull",
    "FoundQuery",
    "Gathered",
    "NativeEngine",
    "SendEngine",
    "TakenSends",
    "find_engine",
]

log = structlog.get_logger()

T = TypeVar("T")

INTERFACE: Final = 11  # to be equal to that of the module
# Bytes of answers that are made at once, about: before more are, the clock and what waits to be sent are looked at.
ANSWERS_SIZE: Final = 262_144
WAY_OUT: Final = (
    "install it (pip install 'aerobee[native]', or ./dev setup with cargo there), or set sendEngine = auto"
)

EngineKind = Literal["native", "python"]

TakenSends = tuple[
    int,  # where the last of them ends in the read
    int,  # requests
    int,  # messages: more where the requests are batches
    bytes,  # their records, for one write at the end of the log
    list[tuple[object, int, bytes]],  # queue, queue offset of its first new entry, packed entries
    list[tuple[object, int, int, int]],  # counters of a topic, messages, requests, bytes of records
    bytes,  # hashes of keys, in the order of their entries in the index: i64 of this machine
    bytes,  # physical offsets of their records, as many
    tuple[bytes, int],  # answers that wait for the promise, and how many
    tuple[bytes, int],  # answers that wait for nothing, and how many
    int,  # version of the client
    int,  # request code
]


FoundPull = tuple[
    object | None,  # what was learned of such a request
    int,  # where it ends in the read
    int,  # queue offset that it asks for
    int,  # commit offset
    int,  # opaque
    bytes | None,  # its signature, as it stands there
    bytes | None,  # what says that it counts once
]

FoundQuery = tuple[
    int,  # where it ends in the read
    int,  # version of the client
    int,  # messages that are wanted
    bool,  # whether its key is the unique one
    list[int],  # physical offsets of records to look at, ascending, at least one
]

Gathered = tuple[
    bytes,  # the whole answer
    int,  # messages
    int,  # bytes of their records
    int,  # queue offset to go on from
]


class NativeEngine(Protocol):
    """`aerobee_native.Engine`. A call that raises has changed nothing; it must not be used again then."""

    def use_settings(
        self, body_size_max: int, suffix: bytes, trace_on: str, region: str, region_in_json: bytes
    ) -> None:
        """Those of each message and each answer; routes are forgotten. The region as it is, and as it stands between
        the quotes of JSON. UnicodeEncodeError: it is no text that can be sent."""

    def add_route(self, topic: str, counters: object, queue_id_limit: int, sys_flag: int) -> None:
        """Messages may be sent to the queues of this topic that are below the limit."""

    def clear_routes(self) -> None:
        """Forget all of those."""

    def add_queue(self, topic: str, queue_id: int, queue: object, magic: int, prefix: bytes) -> None:
        """A queue whose entries are made of place, size and tag alone; `next_offset` is asked for at each use. Magic
        and topic of its records, as `ConsumeQueue` has them."""

    def forget_topic(self, topic: str) -> None:
        """Its queues are gone."""

    def serves_all(self, data: bytes, at: int) -> bool:
        """Whether all requests that begin in `data`, the first at this place, are sends, pulls or queries by key."""

    def take(
        self,
        data: bytes,
        part: tuple[int, int],
        place: tuple[int, int],
        now_ms: int,
        born_host: bytes,
        judge: Judge | None = None,
    ) -> TakenSends | None:
        """What the usual sends in `part` of `data` come to, that is from where on, and how many at most; None when
        there is none. `place` is the end of the log, and the place behind the last byte that a record may take.
        `judge` is asked of each that is usual in every other way, before anything is changed; the first that is not
        let in comes behind the last one that is taken."""

    def pull(self, data: bytes, at: int) -> FoundPull | None:
        """The pull at this place of a read; None when there is none whole, or an unusual one. Two pulls that differ in
        these numbers, signature and freshness alone are such as each other."""

    def learn_pull(self, what: object) -> None:
        """Give this for such pulls as the last one, until 2,048 others were learned and it was not asked for."""

    def is_sound(
        self, view: memoryview, place: tuple[int, int], physical_offset: int, topic: bytes, is_sealed: bool
    ) -> bool:
        """Whether the record in the view of a file, at a position and of a size, is whole and sound, of this topic, and
        was written at this physical offset. `is_sealed`: it has to have our checksum. A no says nothing."""

    def are_sound(self, entries: memoryview, file: tuple[memoryview, int, int], old: OldRecords) -> bool:
        """As of `Prover`."""

    def walk(self, content: bytes, begin: int, base: int, is_indexed: bool) -> WalkedRecords | None:
        """The sound and usual records from `begin` of `content` on, whose first one lies at the physical offset `base`.
        Where they end, and what dispatch needs of them, keys only if they are wanted. None when there is none."""

    def chain_keys(
        self, file: tuple[memoryview, int, int, int, int], blocks: Sequence[KeyedBlock]
    ) -> ChainedKeys | None:
        """What these keys come to as the next entries of a file of the index, as a `Chainer` is asked. None when there
        are none, they do not fit, or one is no hash of a key."""

    def gather(
        self,
        nearby: Nearby,
        tags: bytes | None,
        offset: int,
        suggested: int,
        to: tuple[int, int],
    ) -> Gathered | None:
        """The answer to a pull of what is nearby, from the queue offset `offset` on. `tags` has the sorted hashes that
        are wanted, as i32 of this machine, `suggested` is a broker id, `to` the codec and the opaque. None when nothing
        is found, or anything is unusual."""

    def query(self, data: bytes, at: int, index: list[IndexNearby]) -> FoundQuery | None:
        """The query by key at this place of a read, and where the index says that its records may be. None when there
        is no query, nothing is found, or anything is unusual."""

    def lacking(self) -> Lacking | None:
        """What the last query, or its answer, needs and was not known to be in memory. Told once."""

    def answer_query(
        self, log: list[LogNearby], count: int, updated: tuple[int, int], trust: Trust
    ) -> Picked | None:
        """The answer to the last query, with the newest `count` of its messages, which are all in these files of the
        log. `updated` is the physical offset and the store time of the newest message in the index, `trust` says which
        records are to be proven. None as of `query`."""


class EngineMaker(Protocol):
    """Makes an engine for one store."""

    def __call__(
        self,
        *,
        store_host: bytes,
        record_checksum: bool,
        property_crc: bool,
        is_indexed: bool,
        frame_size_max: int,
        record_size_max: int,
    ) -> NativeEngine: ...


class EngineMissing(ValueError):
    """The native engine is asked for and cannot be had; the text says why, and the way out."""


def find_engine(setting: str) -> EngineMaker | None:
    """What makes native engines; None where Python does the work: that is asked for, or nothing else is there.
    EngineMissing when `setting`, that is `sendEngine`, is `native` and it is not there, or of another release."""
    if setting == "python":
        return None
    try:
        found = importlib.import_module(MODULE)
    except ImportError as missing:
        if setting == "native":
            raise EngineMissing(f"sendEngine is native, and {missing}: {WAY_OUT}") from missing
        return None
    interface = getattr(found, "INTERFACE", None)
    if interface != INTERFACE:
        reason = f"{MODULE} has interface {interface}, this release needs {INTERFACE}"
        if setting == "native":
            raise EngineMissing(f"sendEngine is native, and {reason}: {WAY_OUT}")
        log.warning("broker.engine_refused", reason=reason)
        return None
    return cast("EngineMaker", found.Engine)


class SendEngine:
    """Which engine does the work; the native one until it has a fault."""

    def __init__(self, native: NativeEngine | None) -> None:
        self.native = native
        self._on_end: list[Callable[[], None]] = []

    @property
    def kind(self) -> EngineKind:
        return "python" if self.native is None else "native"

    def when_ended(self, call: Callable[[], None]) -> None:
        """Have this called when the native engine is used no more."""
        self._on_end.append(call)

    def is_sound(
        self, view: memoryview, place: tuple[int, int], physical_offset: int, topic: bytes, is_sealed: bool
    ) -> bool:
        """As of `NativeEngine`; no when there is none, or when it has a fault."""
        return self._done(
            lambda native: native.is_sound(view, place, physical_offset, topic, is_sealed), otherwise=False
        )

    def are_sound(self, entries: memoryview, file: tuple[memoryview, int, int], old: OldRecords) -> bool:
        """As of `Prover`; no when there is none, or when it has a fault."""
        return self._done(lambda native: native.are_sound(entries, file, old), otherwise=False)

    def walk(self, content: bytes, begin: int, base: int, is_indexed: bool) -> WalkedRecords | None:
        """As of `NativeEngine`; None when there is none, or when it has a fault."""
        return self._done(lambda native: native.walk(content, begin, base, is_indexed), otherwise=None)

    def chain_keys(
        self, file: tuple[memoryview, int, int, int, int], blocks: Sequence[KeyedBlock]
    ) -> ChainedKeys | None:
        """As of `NativeEngine`; None when there is none, or when it has a fault."""
        return self._done(lambda native: native.chain_keys(file, blocks), otherwise=None)

    def _done(self, work: Callable[[NativeEngine], T], *, otherwise: T) -> T:
        """By the native engine, if there is one and it has no fault at that."""
        if self.native is None:
            return otherwise
        try:
            return work(self.native)
        except Exception as failed:
            self.give_up(failed)
            return otherwise

    def give_up(self, failed: Exception) -> None:
        """The native engine has a fault: go on in Python. Told once; to be called where it is handled."""
        if self.native is None:
            return
        self.native = None
        log.exception("broker.engine_failed", engine="native", exc_info=failed)
        for call in self._on_end:
            call()
