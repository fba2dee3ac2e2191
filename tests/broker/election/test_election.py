"""Elections on one register, with lives that are modelled: who becomes master, whom it waits for, when it lets go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from aerobee_broker.election import election as module
from aerobee_broker.election.election import Election
from aerobee_broker.lives.role import Role
from aerobee_broker.lives.seating import Served, SyncRules
from aerobee_broker.settings.config import BrokerConfig
from aerobee_proto.errors import RequestError
from broker.election.model_register import TTL_S, AskedRegister


@dataclass
class Link:
    acked_offset: int
    has_begun: bool = True


@dataclass
class Copy:
    link: Link
    member: int | None
    store: str = ""


class Copies:
    """The slaves of a master, as the test wants them."""

    def __init__(self) -> None:
        self.connected: list[Copy] = []
        self.offset = 0
        self.waited_for: frozenset[int] = frozenset()
        self.in_sync: frozenset[int] = frozenset()

    def wait_for(self, waited_for: frozenset[int], in_sync: frozenset[int]) -> bool:
        self.waited_for, self.in_sync = waited_for, in_sync
        return True


class Member:
    """A broker: its election, and the life that it has."""

    def __init__(self, scene: Scene, number: int, end_offset: int) -> None:
        self.scene = scene
        self.number = number
        self.end_offset = end_offset
        self.copies = Copies()
        config = BrokerConfig.model_validate(
            {
                "brokerClusterName": "c",
                "brokerName": "b",
                "brokerId": number,
                "electionEndpoints": "e:1",
                "totalReplicas": scene.count,
            }
        )
        self.election = Election(
            config, scene.register, store=f"store-{number}", clock=lambda: scene.register.now
        )
        self.role: Role | None = None
        self.roles = asyncio.Queue[Role]()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        role = await self.election.first()
        while True:
            self.role = role
            self.roles.put_nowait(role)
            self.copies = Copies()
            self.election.began(
                Served(
                    f"h{self.number}:10911",
                    f"h{self.number}:10912",
                    lambda: self.end_offset,
                    0,
                    role.epoch,
                    self.copies if role.is_master else None,
                    rules=lambda away_s: SyncRules(1000, 10.0, away_s),
                )
            )
            role = await self.election.next(role)
            self.election.ended()

    async def becomes(self, *expected: tuple[bool, int]) -> Role:
        """Its role, once it has one of these: (is master, epoch)."""
        async with asyncio.timeout(20):
            while (role := await self.roles.get())[:2] not in expected:
                pass
        return role

    async def stop(self) -> None:
        """In order."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        await self.election.close()


class Scene:
    def __init__(self, ends: Iterable[int]) -> None:
        sizes = tuple(ends)
        self.count = len(sizes)
        self.register = AskedRegister()
        self.members = {number: Member(self, number, end) for number, end in enumerate(sizes, 1)}

    def start(self) -> None:
        for member in self.members.values():
            member.start()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return when something is so; members look ten times a second."""
        async with asyncio.timeout(20):
            while not is_so():  # noqa: ASYNC110  # what changes is inside of what is tested
                await asyncio.sleep(0.01)


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Scene]]:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    made: list[Scene] = []

    def make(*ends: int) -> Scene:
        scene = Scene(ends)
        scene.start()
        made.append(scene)
        return scene

    yield make
    for scene in made:
        scene.register.is_away = True
        for member in scene.members.values():
            await member.stop()


async def test_the_longest_log_becomes_master_and_the_others_hear_where_it_is(
    make: Callable[..., Scene],
) -> None:
    scene = make(10, 30, 20)
    role = await scene.members[2].becomes((True, 1))
    assert role == Role(True, 1, 2, settings=(("brokerRole", "SYNC_MASTER"),))
    for number in (1, 3):
        role = await scene.members[number].becomes((False, 1))
        assert role == Role(False, 1, number, "h2:10911", "h2:10912")


async def test_a_slave_that_has_caught_up_is_in_sync_and_the_next_master(make: Callable[..., Scene]) -> None:
    scene = make(30, 0, 0)
    master, slave = scene.members[1], scene.members[2]
    await master.becomes((True, 1))
    await slave.becomes((False, 1))
    master.copies.offset = 30
    master.copies.connected = [Copy(Link(30), 2, "store-2"), Copy(Link(30), None)]
    with capture_logs() as logs:
        await scene.until(lambda: master.copies.in_sync == {2})
    assert master.copies.waited_for == {2}
    changes = [line for line in logs if line["event"] == "election.in_sync_changed"]
    assert (changes[0]["before"], changes[0]["in_sync"]) == ([1], [1, 2])
    assert master.election.holds(1)
    await master.stop()
    assert not master.election.holds(1)
    assert (await slave.becomes((True, 2))).is_master
    assert (await scene.members[3].becomes((False, 2))).master_addr == "h2:10911"
    assert slave.election.seat.in_sync == {2: "store-2"}


async def test_an_address_of_another_member_is_shared_also_when_that_one_does_not_run(
    make: Callable[..., Scene],
) -> None:
    """Members announced by one stable address registered as slaves, and nameservers forgot the master for it."""
    scene = make(30, 0)
    one, other = scene.members[1].election, scene.members[2]
    assert one.is_shared("h1:10911")  # until the register was read
    await scene.members[1].becomes((True, 1))
    await other.becomes((False, 1))
    assert not one.is_shared("h1:10911")
    assert one.is_shared("h2:10911")
    await other.stop()
    await scene.until(lambda: one.seat.view is not None and list(one.seat.view.members) == [1])
    assert one.is_shared("h2:10911")


async def test_a_member_is_waited_for_before_the_register_hears_of_it(make: Callable[..., Scene]) -> None:
    scene = make(30, 0)
    master = scene.members[1]
    await master.becomes((True, 1))
    swap, waited_for = scene.register.swap, []

    async def swapped(*words: object) -> int | None:
        waited_for.append(master.copies.waited_for)
        return await swap(*words)  # type: ignore[arg-type]

    scene.register.swap = swapped  # type: ignore[method-assign,assignment]
    master.copies.connected = [Copy(Link(30), 2, "store-2")]
    await scene.until(lambda: master.copies.in_sync == {2})
    assert waited_for
    assert all(waited == {2} for waited in waited_for)


async def test_a_master_that_cannot_renew_its_lease_is_none_before_it_lapses(
    make: Callable[..., Scene],
) -> None:
    scene = make(30)
    master = scene.members[1]
    await master.becomes((True, 1))
    with capture_logs() as logs:
        scene.register.is_away = True
        scene.register.now += TTL_S * (1 - module.DRIFT)
        assert not master.election.holds(1)
        role = await master.becomes((False, 1))
        assert role == Role(False, 1, 1)
        await scene.until(lambda: any(line["event"] == "election.register_failed" for line in logs))
    scene.register.is_away = False
    assert await master.becomes((True, 2))  # it has let go, and was elected again
    assert not master.election.holds(1)
    assert master.election.holds(2)


async def test_a_lease_that_has_ended_ends_the_mastership(make: Callable[..., Scene]) -> None:
    scene = make(30)
    master = scene.members[1]
    await master.becomes((True, 1))
    for lease in list(scene.register.model.leases):
        scene.register.model.end(lease)
    scene.register.changed()
    assert await master.becomes((True, 2))
    assert not master.election.holds(1)


async def test_figures_say_how_it_stands(make: Callable[..., Scene]) -> None:
    scene = make(30)
    master = scene.members[1]
    await master.becomes((True, 1))
    figures = master.election.statistics()
    assert (figures.election_epoch, figures.election_in_sync) == (1, 1)
    assert 0 < figures.election_lease_left_ms <= TTL_S * 1000
    assert figures.election_register_reached == 1


async def test_a_master_hands_its_seat_over_when_it_is_asked_to(make: Callable[..., Scene]) -> None:
    scene = make(30, 30, 30)
    master = scene.members[1]
    await master.becomes((True, 1))
    await scene.members[3].becomes((False, 1))
    master.copies.connected = [Copy(Link(30), number, f"store-{number}") for number in (2, 3)]
    await scene.until(lambda: master.copies.in_sync == {2, 3})
    for wrong in ({"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE"}):
        with pytest.raises(RequestError):
            await master.election.change(wrong, "nobody:1", "")
    with pytest.raises(RequestError):
        await scene.members[2].election.change({"brokerRole": "SLAVE"}, "h3:10911", "")
    assert await master.election.change({"brokerRole": "SLAVE"}, "h3:10911", "") == ""
    assert not master.election.holds(1)
    assert (await scene.members[3].becomes((True, 2))).is_master
    assert (await master.becomes((False, 2))).master_addr == "h3:10911"
