"""Offsets of groups and queues, asked as clients ask."""

import pytest

from aerobee_broker.assembly import Parts
from aerobee_proto import javajson
from aerobee_proto.codes import RequestCode, ResponseCode
from broker.support import Clock, Peer, put
from store.memory_io import MemoryIo


@pytest.fixture
def topic(parts: Parts, clock: Clock) -> str:
    """A topic with five messages in queue 0, one second apart."""
    parts.topics.for_send("T", template="TBW102", queue_count=2)
    parts.groups.find("g")
    for _ in range(5):
        put(parts, "T")
        clock.now_ms += 1_000
    return "T"


def queue(topic: str, queue_id: int = 0, **fields: object) -> dict[str, str]:
    return {"topic": topic, "queueId": str(queue_id)} | {name: str(value) for name, value in fields.items()}


class TestGroupOffsets:
    async def test_a_commit_is_what_a_query_answers(self, topic: str, peer: Peer) -> None:
        ext = queue(topic, consumerGroup="g", commitOffset=3)
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue(topic, consumerGroup="g"))
        assert (answer.code, answer.ext["offset"]) == (0, "3")

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "T", "queueId": "0"}, 0),
            ({"topic": "T", "queueId": "0", "setZeroIfNotFound": "true"}, 0),
            ({"topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}, 22),
            ({"topic": "T", "queueId": "1"}, 22),
            ({"topic": "T", "queueId": "99"}, 22),
            ({"topic": "T", "queueId": "-1"}, 22),
            ({"topic": "Unknown", "queueId": "0"}, 22),
        ],
    )
    async def test_a_new_group_starts_at_zero_of_a_young_queue(
        self, fields: dict[str, str], code: int, topic: str, peer: Peer
    ) -> None:
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new"} | fields)
        assert answer.code == code
        assert answer.ext.get("offset") == ("0" if code == 0 else None)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({}, ResponseCode.SUCCESS),
            ({"consumerGroup": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queueId": "2"}, ResponseCode.INVALID_PARAMETER),
            ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
            ({"commitOffset": "-1"}, ResponseCode.INVALID_PARAMETER),
            ({"commitOffset": None}, ResponseCode.INVALID_PARAMETER),
            ({"queueId": None}, ResponseCode.INVALID_PARAMETER),
            ({"topic": None}, ResponseCode.INVALID_PARAMETER),
            ({"consumerGroup": None}, ResponseCode.INVALID_PARAMETER),
        ],
    )
    async def test_what_may_be_committed(
        self, fields: dict[str, str | None], code: int, topic: str, peer: Peer
    ) -> None:
        ext = queue(topic, consumerGroup="g", commitOffset=3) | fields
        sent = {name: value for name, value in ext.items() if value is not None}
        answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, sent)
        assert answer.code == code
        assert bool(answer.remark) is (code != 0)

    async def test_a_pending_reset_wins_over_commits(self, parts: Parts, topic: str, peer: Peer) -> None:
        parts.offsets.assign_reset("g", topic, 0, 1)
        ext = queue(topic, consumerGroup="g", commitOffset=4)
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue(topic, consumerGroup="g"))
        assert answer.ext["offset"] == "1"


class TestQueueOffsets:
    @pytest.mark.parametrize(
        ("name", "queue_id", "ends"),
        [("T", 0, ("0", "5")), ("T", 1, ("0", "0")), ("T", 99, ("0", "0")), ("Unknown", 0, ("0", "0"))],
    )
    async def test_ends(
        self, name: str, queue_id: int, ends: tuple[str, str], topic: str, peer: Peer
    ) -> None:
        assert topic == "T"
        first = await peer.ask(RequestCode.GET_MIN_OFFSET, queue(name, queue_id))
        last = await peer.ask(RequestCode.GET_MAX_OFFSET, queue(name, queue_id))
        assert (first.ext["offset"], last.ext["offset"]) == ends

    async def test_the_earliest_time(self, clock: Clock, topic: str, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue(topic))
        assert answer.ext["timestamp"] == str(clock.now_ms - 5_000)
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue(topic, 1))
        assert answer.ext["timestamp"] == "-1"

    @pytest.mark.parametrize(
        ("back_ms", "boundary", "offset"),
        [
            (3_000, "LOWER", "2"),
            (3_000, "upper", "2"),
            (2_500, "LOWER", "3"),
            (2_500, "UPPER", "2"),
            (2_500, None, "3"),
            (-1_000, "LOWER", "5"),
            (99_000, "LOWER", "0"),
        ],
    )
    async def test_offsets_by_time(
        self, back_ms: int, boundary: str | None, offset: str, clock: Clock, topic: str, peer: Peer
    ) -> None:
        ext = queue(topic, timestamp=clock.now_ms - back_ms)
        ext |= {"boundaryType": boundary} if boundary else {}
        assert (await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext["offset"] == offset

    async def test_an_odd_boundary_is_refused(self, topic: str, peer: Peer) -> None:
        ext = queue(topic, timestamp=0, boundaryType="MIDDLE")
        assert (await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).code == 29


async def test_all_offsets_have_bare_queue_ids(parts: Parts, topic: str, peer: Peer) -> None:
    parts.offsets.commit("g", topic, 1, 7)
    answer = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"T@g":{1:7}' in answer.body
    assert javajson.loads(answer.body)["groupTopicMap"] == {"g": ["T"]}


@pytest.mark.parametrize(
    ("content", "code", "body"),
    [
        (None, 1, None),
        (b"garbage", 1, None),
        (b'{"dataVersion":{"counter":1},"offsetTable":{1:5,"2":6}}', 0, {1: 5, 2: 6}),
    ],
)
async def test_delay_offsets_come_from_their_file(
    content: bytes | None, code: int, body: dict[int, int] | None, disk: MemoryIo, parts: Parts, peer: Peer
) -> None:
    if content is not None:
        disk.replace_bytes(parts.config.store_path_root_dir / "config" / "delayOffset.json", content)
    answer = await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert answer.code == code
    if body is not None:
        assert javajson.loads(answer.body)["offsetTable"] == body
