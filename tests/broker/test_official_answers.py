"""Requests captured from official clients and mqadmin: our answers have the official ones' code and shape."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.assembly import Parts
from aerobee_proto import javajson
from broker.support import Clock, Peer, make_test_parts, official_exchanges, unpack_store

# scenario, request code; the answers that are the same at any moment, so compared in full
SAME = [
    ("mqadmin-cleanExpiredCQ", 306),
    ("mqadmin-cleanUnusedTopic", 316),
    ("mqadmin-consumerProgress", 351),
    ("mqadmin-deleteSubGroup", 207),
    ("mqadmin-deleteTopic", 215),
    ("mqadmin-updateBrokerConfig", 25),
    ("mqadmin-updateSubGroup", 200),
    ("mqadmin-updateTopic", 17),
    ("mqadmin-updateTopicCluster", 17),
    ("orderly", 41),
    ("orderly", 42),
    ("push", 34),
    ("push", 38),
    ("push", 35),
    ("litepull", 31),
    ("litepull", 30),
]
# the answers that tell of the moment: same code, same names, same kinds of value
ALIKE = [
    ("mqadmin-brokerConsumeStats", 317),
    ("mqadmin-brokerStatus", 28),
    ("mqadmin-consumerProgress", 208),
    ("mqadmin-getBrokerConfig", 26),
    ("mqadmin-queryCq", 321),
    ("mqadmin-queryMsgById", 300),
    ("mqadmin-statsAll", 315),
    ("mqadmin-topicStatus", 202),
    ("pull", 29),
    ("pull", 32),
    ("push", 14),
    ("push", 15),
    ("slave-start", 43),
    ("slave-start", 45),
    ("slave-start", 201),
    ("slave-start", 21),
]
# A key of ours that the official tables do not have.
EXTRA = {"aerobeeSendEngine", "aerobeeVersion", "getTransferedTps", "hotKeys"}
# Keys that tell where the store is, and which delay levels were used by then.
OF_THE_STORE = ("commitLogDiskRatio_", "scheduleMessageOffset_")


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """The tables and the store that the official broker had after all scenarios."""
    root = unpack_store("broker-traffic-json", tmp_path)
    parts = make_test_parts(root, Clock(1_795_300_000_000))
    yield parts
    parts.store.close()
    await parts.files.close()


@pytest.fixture
async def peer(parts: Parts) -> Peer:
    return Peer(parts.server.handlers)


@pytest.mark.parametrize(("scenario", "code"), SAME)
async def test_the_answer_is_the_official_one(peer: Peer, scenario: str, code: int) -> None:
    exchanges = official_exchanges(scenario, code)
    assert exchanges
    if code == 38:
        (_, heartbeat, _), *_ = official_exchanges(scenario, 34)
        peer.connection.data_received(heartbeat)
    for request, frame, official in exchanges:
        if request.is_oneway:
            continue
        ours = await peer.ask_raw(frame, request.opaque)
        assert ours.code == official.code
        assert ours.ext == official.ext
        assert _json(ours.body) == _json(official.body)


@pytest.mark.parametrize(("scenario", "code"), ALIKE)
async def test_the_answer_has_the_official_shape(parts: Parts, peer: Peer, scenario: str, code: int) -> None:
    if code == 315:
        parts.stats.put("GdPop", 1, 100)
        parts.stats.got(("Gdcg_pop", "GdPop"), 1, 100)
    for request, frame, official in official_exchanges(scenario, code)[:3]:
        ours = await peer.ask_raw(frame, request.opaque)
        assert ours.code == official.code, ours.remark
        assert ours.ext.keys() - EXTRA == official.ext.keys() - EXTRA
        if code == 26:
            assert {line.partition(b"=")[1] for line in ours.body.splitlines()} == {b"="}
        else:
            assert _agree(_shape(_json(ours.body)), _shape(_json(official.body)))


def _json(body: bytes) -> Any:
    return javajson.loads(body) if body else None


def _shape(value: Any) -> Any:
    """Names and kinds of value; tables whose names are data (groups, topics, queues) count as one entry."""
    if isinstance(value, Mapping):
        keys = [key for key in value if key not in EXTRA and not str(key).startswith(OF_THE_STORE)]
        if all(isinstance(key, str) and _is_name(key) for key in keys):
            return {key: _shape(value[key]) for key in sorted(keys)}
        return {"*": _merged([_shape(value[key]) for key in keys])}
    if isinstance(value, list):
        return [_merged([_shape(item) for item in value])]
    return type(value).__name__


def _is_name(key: str) -> bool:
    return key[:1].islower() or key.startswith("EndTransaction")


def _merged(shapes: list[Any]) -> Any:
    """The first shape that says something; an empty table says nothing."""
    return next((shape for shape in shapes if shape not in (None, {"*": None}, [None], {})), None)


def _agree(ours: Any, official: Any) -> bool:
    """Whether two shapes are equal where both say something."""
    if ours in (None, {}) or official in (None, {}):
        return True
    if isinstance(ours, dict) and isinstance(official, dict):
        return ours.keys() == official.keys() and all(_agree(ours[key], official[key]) for key in ours)
    if isinstance(ours, list) and isinstance(official, list):
        return _agree(ours[0], official[0])
    return bool(ours == official)
