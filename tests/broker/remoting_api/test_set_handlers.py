"""What mqadmin asks about sets with an election, and what a broker without one answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import official
import ours
from aerobee_broker.broker import Broker, Life
from aerobee_broker.lives.role import Role
from aerobee_broker.lives.seating import ElectionStatistics, Served, SetStanding
from aerobee_proto.codes import RequestCode, ResponseCode
from system.running import broker_config, running_broker, talking

ASKED = (
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.GET_BROKER_EPOCH_CACHE,
)
STANDING = SetStanding(4, 17, 1, {1: "127.0.0.1:1", 2: "127.0.0.1:2"}, frozenset({1, 3}))


class Elected:
    """An election that knows this, and lets the broker be master."""

    store = "this one"

    def holds(self, epoch: int) -> bool:
        return True

    def standing(self) -> SetStanding | None:
        return STANDING

    def is_shared(self, addr: str) -> bool:
        return False

    def statistics(self) -> ElectionStatistics:
        return ElectionStatistics(4, 2, 1500, 1)

    def began(self, served: Served) -> None:
        """Nothing to do."""

    def heard_of(self, epoch: int) -> None:
        """Nobody knows of a newer one."""

    def missed(self, epoch: int, *, is_gone: bool) -> None:
        """It is there."""

    def left(self) -> None:
        """Nothing to do."""

    def ended(self) -> None:
        """Nothing to do."""


@asynccontextmanager
async def elected(root: Path, nameserver: str = "") -> AsyncIterator[Broker]:
    """The master of epoch 4, which the log knows from its beginning on."""
    config = broker_config(root, broker_id=1, namesrv_addr=nameserver)
    broker = Broker(config, life=Life(Role(True, 4, 1), seating=Elected()))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.close()


async def test_without_an_election_there_is_nothing_to_tell(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        for code in ASKED:
            answer = await client.ask(code, body=b'["test-a"]' if code == ASKED[1] else b"")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert "for sets with an election" in answer.remark


async def test_a_member_answers_for_its_set(tmp_path: Path) -> None:
    async with elected(tmp_path) as broker, talking(broker) as client:
        told = await client.ask(ASKED[0])
        assert (told.ext["controllerLeaderAddress"], told.ext["isLeader"]) == (broker.address, "true")
        answer = await client.ask(ASKED[1], body=b'["test-a","other"]')
        (name, found), *others = json.loads(answer.body)["replicasInfoTable"].items()
        assert (name, others) == ("test-a", [])
        assert (found["masterBrokerId"], found["masterAddress"], found["masterEpoch"]) == (
            1,
            "127.0.0.1:1",
            4,
        )
        in_sync = [(one["brokerId"], one["alive"]) for one in found["inSyncReplicas"]]
        assert in_sync == [(1, True), (3, False)]
        assert [one["brokerId"] for one in found["notInSyncReplicas"]] == [2]
        assert json.loads((await client.ask(ASKED[1], body=b"[]")).body) == {"replicasInfoTable": {}}
        assert (await client.ask(ASKED[1], body=b"{")).code == ResponseCode.SYSTEM_ERROR


async def test_epochs_have_their_ends_and_the_newest_none(tmp_path: Path) -> None:
    async with elected(tmp_path) as broker, talking(broker) as client:
        answer = await client.ask(ASKED[2])
        found = json.loads(answer.body)
        assert found["epochList"] == [{"endOffset": 2**63 - 1, "epoch": 4, "startOffset": 0}]
        assert (found["brokerId"], found["brokerName"], found["maxOffset"]) == (0, "test-a", 0)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_mqadmin_shows_them(tmp_path: Path) -> None:
    """With its own classes for the bodies: what is missing there, or of another kind, is seen."""
    if why := official.missing():
        pytest.skip(why)
    with ours.start_nameserver() as nameserver:
        names = nameserver.address
        async with elected(tmp_path, names) as broker:
            assert await broker.parts.registrar.first_round() == 1
            asked = ["getSyncStateSet", "-a", broker.address, "-b", "test-a"]
            told = await asyncio.to_thread(official.mqadmin, names, *asked)
            written = await asyncio.to_thread(official.mqadmin, names, "getBrokerEpoch", "-b", "test-a")
    assert "127.0.0.1:1" in told
    assert "#MasterEpoch\t4" in told
    assert "epoch=4" in written


async def test_figures_say_how_the_election_stands(tmp_path: Path) -> None:
    async with elected(tmp_path) as broker:
        figures = broker.parts.figures()
        names = ("epoch", "in_sync", "lease_left_ms", "register_reached")
        assert [figures[f"election_{name}"] for name in names] == [4, 2, 1500, 1]
