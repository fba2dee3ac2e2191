"""The fuzz target that compares both engines for sends: a stream of frames, cut where the input says.

Input    settings u8 (which brokers, whether sends wait for the disk, the peer's address) | steps.
Step     kind u8 | what the kind takes, as `_STEPS` says. Frames are gathered until a read is cut off; what is left at
         the end is one more read.

Where the native engine is not there the target does nothing.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import structlog

from aerobee_broker.native.engine import MODULE
from aerobee_proto.bodies import TopicConfig
from engine_pair import TOPICS, EnginePair, Step, later, synced, topic_changed, topic_deleted, with_settings
from send_frames import Spec, bases, batch_of, frame_of, framed, usual

__all__ = ["close_engines", "engine_seeds", "send_engines"]

FRAMES_MAX: Final = 64
# Brokers that differ in the form of their records, or roll their files often.
BROKERS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"enabled_append_prop_crc": True, "mapped_file_size_commit_log": 16_384, "trace_on": False},
    {"message_index_enable": False, "broker_ip1": "2001:db8::1", "max_message_size": 2_000},
    {"auto_create_topic_enable": False, "enabled_append_prop_crc": True},
)
PEERS: Final = (("10.1.2.3", 4567), ("2001:db8::7", 4567))
WAITS, IPV6 = 0x10, 0x20
NAMES: Final = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "n", "more",
)  # fmt: skip
CHANGED: Final = (
    *map(topic_changed, TOPICS),
    topic_changed(TopicConfig(topic_name="Topic-A", read_queue_nums=2, write_queue_nums=1)),
    topic_changed(TopicConfig(topic_name="Topic-A", read_queue_nums=4, write_queue_nums=4, perm=4)),
    topic_changed(TopicConfig(topic_name="Topic-A", topic_filter_type="MULTI_TAG")),
    topic_deleted("Topic-A", is_saved=True),
    topic_deleted("Topic-B", is_saved=False),
    with_settings(traceOn="true"),
    with_settings(traceOn="false"),
    with_settings(regionId="region"),
    with_settings(regionId='a"b'),
    with_settings(regionId="Größe"),
    with_settings(brokerPermission="4"),
    with_settings(brokerPermission="6"),
)  # fmt: skip


class _Input:
    """Bytes, read from the front; nothing behind their end is an error."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def u8(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def u16(self) -> int:
        return self.u8() << 8 | self.u8()

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken


class _Stream:
    """Steps as they are made out of an input."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.gathered = bytearray()
        self.last = b""
        self.frame_count = 0

    def add(self, frame: bytes) -> None:
        if self.frame_count < FRAMES_MAX:
            self.frame_count += 1
            self.last = frame
            self.gathered += frame

    def cut(self, at: int) -> None:
        """End a read there."""
        piece = bytes(self.gathered[:at])
        del self.gathered[:at]
        if piece:
            self.steps.append(piece)

    def happen(self, step: Step) -> None:
        self.cut(len(self.gathered))
        self.steps.append(step)


@cache
def _bases() -> list[bytes]:
    return bases()


def _known(stream: _Stream, data: _Input) -> None:
    """A usual frame: which u8."""
    stream.add(_bases()[data.u8() % len(_bases())])


def _patched(stream: _Stream, data: _Input) -> None:
    """A usual frame with other bytes: which u8, count u8, so often place u16 and byte u8. Its lengths stay."""
    frame = bytearray(_bases()[data.u8() % len(_bases())])
    for _ in range(data.u8() % 8):
        at = 8 + data.u16() % (len(frame) - 8)
        frame[at] = data.u8()
    stream.add(bytes(frame))


def _with_field(stream: _Stream, data: _Input) -> None:
    """A usual send with another field: which u8, field u8, size u8 and so many bytes of its text; 0: without it."""
    spec = _spec(data.u8())
    name, text = NAMES[data.u8() % len(NAMES)], data.take(data.u8()).decode("utf-8", "replace")
    if text:
        spec.fields[name] = text
    else:
        spec.fields.pop(name, None)
    stream.add(frame_of(spec, stream.frame_count))


def _with_body(stream: _Stream, data: _Input) -> None:
    """A usual send, or batch, with another body: which u8, size u16 and so many bytes."""
    spec = _spec(data.u8())
    spec.body = data.take(data.u16() % 4096)
    stream.add(frame_of(spec, stream.frame_count))


def _spec(which: int) -> Spec:
    spec = batch_of(which % 12) if which & 0x40 else usual(which % 12)
    if which & 0x80:
        spec.flag = 2
    return spec


def _header(stream: _Stream, data: _Input) -> None:
    """Any header in a frame whose lengths are true: codec u8, size u16 and so many bytes, size of the body u8."""
    codec, header = data.u8() % 4, data.take(data.u16() % 2048)
    stream.add(framed(codec, header, b"b" * data.u8()))


def _bytes(stream: _Stream, data: _Input) -> None:
    """Any bytes: size u8 and so many."""
    stream.add(data.take(data.u8()))


def _again(stream: _Stream, data: _Input) -> None:
    """The last frame, up to 16 times: count u8."""
    for _ in range(data.u8() % 16 + 1):
        stream.add(stream.last)


def _cut(stream: _Stream, data: _Input) -> None:
    """The read ends so many bytes before the end of what is gathered: u8."""
    stream.cut(max(len(stream.gathered) - data.u8(), 0))


_STEPS: Final[tuple[Callable[[_Stream, _Input], None], ...]] = (
    _known,
    _patched,
    _with_field,
    _with_body,
    _header,
    _bytes,
    _again,
    _cut,
    lambda stream, data: stream.happen(synced),
    lambda stream, data: stream.happen(later(data.u8())),
    lambda stream, data: stream.happen(CHANGED[data.u8() % len(CHANGED)]),
)


_pairs: Final[dict[int, EnginePair]] = {}


def _pair(broker: int) -> EnginePair:
    if broker not in _pairs:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        _pairs[broker] = EnginePair(**BROKERS[broker])
    return _pairs[broker]


def close_engines() -> None:
    """Close the brokers that inputs were given to."""
    while _pairs:
        _pairs.popitem()[1].close()


def send_engines(data: bytes) -> None:
    """Both engines for sends come to the same bytes in log, queues and index, the same counters and answers."""
    if len(data) < 2 or importlib.util.find_spec(MODULE) is None:
        return  # nothing is made before it is needed: a process that is forked begins without threads
    settings = data[0]
    pair = _pair(settings % len(BROKERS))
    rest, stream = _Input(data[1:]), _Stream()
    while not rest.is_over:
        _STEPS[rest.u8() % len(_STEPS)](stream, rest)
    stream.cut(len(stream.gathered))
    used = [step for step in stream.steps if not isinstance(step, bytes)]
    try:
        pair.run(stream.steps, waits=bool(settings & WAITS), peer=PEERS[bool(settings & IPV6)])
    finally:
        if any(step in CHANGED for step in used):
            _restore(pair)


def _restore(pair: EnginePair) -> None:
    """Topics and settings as they were: an input comes to the same whatever came before it."""
    for end in pair.ends:
        end.parts.live.value = end.config
        end.parts.store.topics.save_deletions()
        end.parts.topics.update(TOPICS)


def engine_seeds() -> Iterator[bytes]:
    """Inputs with each kind of step."""
    for settings in range(len(BROKERS)):
        for flags in (0, WAITS | IPV6):
            for which in range(len(_bases())):
                yield bytes([settings | flags, 0, which, 7, 0, 0, which, 0, which, 6, 3, 7, 9, 8])
    for number, frame in enumerate(_bases()):
        size = int.from_bytes(frame[5:8], "big")
        header = frame[8 : 8 + size]
        yield bytes([number % 4, 0, number, 7, 0, 4, frame[4]]) + size.to_bytes(2, "big") + header + b"\x05"
        body = frame[8 + size :]
        yield bytes([number % 4, 0, number, 7, 0, 3, 0x40 | number]) + len(body).to_bytes(2, "big") + body
    for field, text in (
        (1, b"Topic-B"),
        (4, b"3"),
        (8, b"UNIQ_KEY\x010A0B\x02KEYS\x01a b"),
        (5, b"16"),
        (14, b"x"),
    ):
        yield bytes([WAITS, 0, 0, 7, 0, 2, 0, field, len(text)]) + text + b"\x06\x02\x08"
    for change in range(len(CHANGED)):
        yield bytes([change % 4, 0, 0, 6, 3, 10, change, 0, 0, 0, 1, 10, 0, 0, 0, 7, 0, 0, 2])
    yield bytes([0, 1, 0, 2, 0, 40, 65, 0, 90, 66]) + bytes([5, 3, 1, 2, 3])
