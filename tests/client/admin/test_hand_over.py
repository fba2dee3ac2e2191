"""Hand-overs against brokers that do as they are told, and fail where a test wants it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from aerobee.admin import hand_over, take_over
from aerobee.admin.hand_over import HandOver, HandOverRefused
from aerobee.admin.set_admin import BrokerNode, MemberState
from aerobee.admin.take_over import TakeOver
from aerobee.errors import BrokerRefused, BrokerUnreachable, ClientError, RequestTimeout

M, S = "m:1", "s:1"
END = 1000


def node(addr: str, number: int) -> BrokerNode:
    return BrokerNode("C", "b", number, addr)


class Brokers:
    """A master and a slave, the nameserver that knows them, and what was asked of them."""

    def __init__(self, *, official: bool = False) -> None:
        self.states = {
            M: MemberState(
                node(M, 0),
                is_ours=not official,
                is_master=True,
                role="SYNC_MASTER",
                end_offset=END,
                in_sync=None if official else frozenset({1}),  # slaves of ours say who they are
            ),
            S: MemberState(
                node(S, 1), is_ours=True, role="SLAVE", member=1, end_offset=END - 10, is_linked=True
            ),
        }
        self.table = {M: 0, S: 1}  # number by address, as registered
        self.settings = {
            M: {"brokerRole": "SYNC_MASTER", "mappedFileSizeCommitLog": "1", "brokerPermission": "6"},
            S: {"brokerRole": "SLAVE", "mappedFileSizeCommitLog": "1"},
        }
        self.begin = {M: 0, S: 0}
        self.fails: dict[str, ClientError] = {}  # call -> error, once
        self.calls: list[str] = []
        self.fenced = False

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.fails:
            raise self.fails.pop(what)

    async def nodes(self, broker_name: str | None = None) -> list[BrokerNode]:
        return [node(addr, number) for addr, number in self.table.items()]

    async def registered(self) -> dict[str, list[BrokerNode]]:
        return {"n:1": await self.nodes()}

    async def state(self, of: BrokerNode) -> MemberState:
        return self.states[of.addr]

    async def log_end(self, addr: str) -> int:
        return self.states[addr].end_offset

    async def fence(self, addr: str, millis: int) -> Mapping[str, str]:
        self._call(f"fence {addr} {millis}")
        self.fenced = millis > 0
        role = self.states[addr].role
        return {
            "endOffset": str(END),
            "brokerRole": role,
            "inSyncReplicas": "2",
            "minInSyncReplicas": "1",
        }

    async def level(self, addr: str, end_offset: int, millis: int) -> Mapping[str, str]:
        self._call(f"level {'fenced' if self.fenced else 'open'}")
        assert end_offset <= END
        return {"brokerAddr": addr, "haAddr": "s:2"}

    async def change_role(self, addr: str, header: Mapping[str, object]) -> Mapping[str, str]:
        self._call(f"{addr} {header['brokerRole']}")
        is_master = header["brokerRole"] != "SLAVE"
        masters = [one for one, state in self.states.items() if state.is_master and one != addr]
        if is_master:
            assert all(self.settings[one]["brokerRole"] == "SLAVE" for one in masters), "two masters"
        self.states[addr] = replace(self.states[addr], is_master=is_master, role=str(header["brokerRole"]))
        number = 0 if is_master else int(str(header["brokerId"]))
        self.table = {one: at for one, at in self.table.items() if at != number} | {addr: number}
        return {"note": ""}

    async def register_again(self, addr: str) -> None:
        self._call(f"register {addr}")

    async def ha_addr(self, addr: str) -> str:
        return f"{addr}-ha"

    async def carry_offsets(self, source: str, target: str) -> int:
        self._call("offsets")
        return 3

    async def broker_config(self, broker: str) -> dict[str, str]:
        return dict(self.settings[broker])

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        self._call(" ".join([broker, *[f"{key}={value}" for key, value in settings.items()]]))
        self.settings[broker] |= settings
        if "brokerRole" in settings:
            self.fenced = settings["brokerRole"] == "SLAVE"

    async def broker_runtime_info(self, broker: str) -> dict[str, str]:
        return {"commitLogMinOffset": str(self.begin[broker])}


Lead = Callable[[Brokers], TakeOver]


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Lead:
    monkeypatch.setattr(take_over, "STILL_S", 0.0)
    monkeypatch.setattr(hand_over, "POLL_S", 0.0)
    # Brokers has what is asked of SetAdmin and Admin here.
    return lambda brokers: TakeOver(brokers, lambda _: None, lambda: 0.0, brokers)  # type: ignore[arg-type]


def refused(addr: str) -> BrokerRefused:
    return BrokerRefused("do it", addr, 1, "no")


# --- switch -------------------------------------------------------------------------------------------------------


async def test_a_switch_lets_the_master_go_before_the_slave_takes_over(lead: Lead) -> None:
    brokers = Brokers()
    moved = await lead(brokers).switch("b")
    assert (moved.master_addr, moved.former_addr) == (S, M)
    assert brokers.calls == [
        "level open",
        f"fence {M} 10000",
        "level fenced",
        f"{M} SLAVE",
        f"{S} SYNC_MASTER",
    ]
    assert brokers.table == {S: 0, M: 1}


async def test_an_elected_master_names_the_next_one_and_nobody_else_is_asked(lead: Lead) -> None:
    """A set without an election whose slaves say who they are was taken for one with: it was left without a master."""

    class Elected(Brokers):
        async def change_role(self, addr: str, header: Mapping[str, object]) -> Mapping[str, str]:
            if header["brokerRole"] == "MASTER" and not header["force"]:
                raise refused(addr)
            self._call(f"{addr} {header['brokerRole']} {header['masterAddr']}")
            self.states[M] = replace(self.states[M], is_master=False)
            self.states[S] = replace(self.states[S], is_master=True)
            self.table = {S: 0, M: 2}
            return {}

    brokers = Elected()
    for addr, state in brokers.states.items():
        brokers.states[addr] = replace(state, is_elected=True, fixed_by="an election")
    brokers.states[M] = replace(brokers.states[M], in_sync=frozenset({2, 3}))
    with pytest.raises(HandOverRefused, match=r"only one of the members \[2, 3\] can be elected"):
        await lead(brokers).switch("b")
    with pytest.raises(HandOverRefused, match=r"^s:1: "):
        await lead(brokers).promote(S)
    assert brokers.calls == []
    brokers.states[M] = replace(brokers.states[M], in_sync=frozenset({1, 2}))
    moved = await lead(brokers).switch("b")
    assert (moved.master_addr, moved.former_addr) == (S, M)
    assert brokers.calls == ["level open", f"fence {M} 10000", "level fenced", f"{M} SLAVE {S}"]


async def test_an_elected_master_may_hang_up_before_it_answers(lead: Lead) -> None:
    """Its life ends when its seat is left: the command failed now and then, though the set had a new master."""

    class Elected(Brokers):
        async def change_role(self, addr: str, header: Mapping[str, object]) -> Mapping[str, str]:
            self.states[M] = replace(self.states[M], is_master=False)
            self.states[S] = replace(self.states[S], is_master=True)
            self.table = {S: 0, M: 2}
            raise BrokerUnreachable("change the role", M, "closed by the peer")

    brokers = Elected()
    for addr, state in brokers.states.items():
        brokers.states[addr] = replace(state, is_elected=True)
    brokers.states[M] = replace(brokers.states[M], in_sync=frozenset({1, 2}))
    moved = await lead(brokers).switch("b")
    assert (moved.master_addr, moved.former_addr) == (S, M)


@pytest.mark.parametrize("where", ["level fenced", f"{M} SLAVE"])
async def test_a_switch_that_cannot_be_finished_takes_the_fence_away(lead: Lead, where: str) -> None:
    brokers = Brokers()
    brokers.fails[where] = refused(S)
    with pytest.raises(HandOverRefused, match="m:1 takes messages again"):
        await lead(brokers).switch("b")
    assert not brokers.fenced
    assert brokers.states[M].is_master
    assert f"{S} SYNC_MASTER" not in brokers.calls


async def test_a_slave_that_will_not_be_master_leaves_the_old_one(lead: Lead) -> None:
    class Stubborn(Brokers):
        async def change_role(self, addr: str, header: Mapping[str, object]) -> Mapping[str, str]:
            if addr == S:
                self._call(f"{S} {header['brokerRole']}")
                raise RequestTimeout("do it", S, 1.0)
            return await super().change_role(addr, header)

    brokers = Stubborn()
    with pytest.raises(HandOverRefused, match=r"s:1 did not become master: .*; m:1 is the master again"):
        await lead(brokers).switch("b")
    assert brokers.calls.count(f"{S} SYNC_MASTER") == hand_over.TRIES
    assert brokers.states[M].is_master


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({S: {"is_linked": False}}, "s:1 does not follow its master"),
        ({S: {"end_offset": END - hand_over.LAG_MAX - 1}}, "is 256 MiB behind"),
        ({S: {"is_ours": False}}, "s:1 is an official broker"),
        ({S: {"fixed_by": "an election decides"}}, "s:1: an election decides"),
        ({S: {"is_master": True}}, "are both masters of b"),
        ({M: {"error": "no answer"}}, r"no master of b answers \(no answer\): aerobee cluster promote"),
        ({M: {"error": "no answer"}, S: {"is_elected": True}}, "it elects one by itself"),
        ({S: {"error": "no answer"}}, "b has no slave"),
    ],
)
async def test_a_switch_that_would_not_do_is_refused_before_anybody_is_fenced(
    lead: Lead, changes: dict[str, dict[str, object]], reason: str
) -> None:
    brokers = Brokers()
    for addr, fields in changes.items():
        brokers.states[addr] = replace(brokers.states[addr], **fields)  # type: ignore[arg-type]
    with pytest.raises(HandOverRefused, match=reason):
        await lead(brokers).switch("b")
    assert brokers.calls == []


# --- take over ----------------------------------------------------------------------------------------------------


async def test_an_official_master_is_fenced_before_ours_takes_over_and_stays_a_slave(lead: Lead) -> None:
    brokers = Brokers(official=True)
    moved = await lead(brokers).take_over("b", settle_s=0)
    assert brokers.calls == [
        "level open",
        f"{M} brokerRole=SLAVE",
        "level fenced",
        f"{S} MASTER",
        f"{M} brokerId=2 brokerPermission=6",
        f"register {S}",
        "offsets",
    ]
    assert moved.master_addr == S
    assert "3 offsets" in moved.notes[0]
    assert "stop the official broker at m:1 now" in moved.notes[-1]


@pytest.mark.parametrize(
    ("where", "failed"),
    [
        ("level fenced", refused(S)),
        ("level fenced", RequestTimeout("do it", S, 1.0)),
        (f"{S} MASTER", refused(S)),
        (f"{M} brokerRole=SLAVE", BrokerUnreachable("do it", M, "gone")),
    ],
)
async def test_what_cannot_be_finished_is_undone(lead: Lead, where: str, failed: ClientError) -> None:
    brokers = Brokers(official=True)
    brokers.fails[where] = failed
    with pytest.raises(HandOverRefused, match="m:1 is the master as before and takes messages again"):
        await lead(brokers).take_over("b")
    assert brokers.settings[M]["brokerRole"] == "SYNC_MASTER"
    assert not brokers.states[S].is_master


async def test_the_fence_stays_where_ours_may_be_the_master(lead: Lead) -> None:
    class Silent(Brokers):
        async def change_role(self, addr: str, header: Mapping[str, object]) -> Mapping[str, str]:
            await super().change_role(addr, header)
            self.states[S] = replace(self.states[S], error="no answer")
            raise RequestTimeout("do it", S, 1.0)

    brokers = Silent(official=True)
    with pytest.raises(HandOverRefused, match="s:1 may be the master by now, so m:1 stays fenced"):
        await lead(brokers).take_over("b")
    assert brokers.settings[M]["brokerRole"] == "SLAVE"


async def test_bytes_that_came_behind_the_fence_are_told(lead: Lead) -> None:
    class Growing(Brokers):
        async def log_end(self, addr: str) -> int:
            return END + 7 if f"{S} MASTER" in self.calls else END

    brokers = Growing(official=True)
    moved = await lead(brokers).take_over("b", settle_s=0)
    assert moved.notes[0].startswith(f"7 bytes came into the log of {M} after {END}")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("enableControllerMode", "true", "enableControllerMode=true at m:1"),
        ("brokerRole", "SLAVE", "fenced already"),
        ("mappedFileSizeCommitLog", "2", "mappedFileSizeCommitLog is 2 at m:1 and 1 at s:1"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(lead: Lead, key: str, value: str, reason: str) -> None:
    brokers = Brokers(official=True)
    brokers.settings[M][key] = value
    with pytest.raises(HandOverRefused, match=reason):
        await lead(brokers).take_over("b")
    assert brokers.calls == []


async def test_messages_that_the_slave_never_had_are_left_behind_only_when_told_so(lead: Lead) -> None:
    brokers = Brokers(official=True)
    brokers.begin[S] = 400
    with pytest.raises(HandOverRefused, match="400 bytes of messages, from 0 to 400, are at m:1 alone"):
        await lead(brokers).take_over("b")
    assert brokers.calls == []
    assert (await lead(brokers).take_over("b", without_old=True, settle_s=0)).master_addr == S


async def test_of_a_master_of_ours_a_switch_is_the_way(lead: Lead) -> None:
    with pytest.raises(HandOverRefused, match="aerobee cluster switch"):
        await lead(Brokers()).take_over("b")


# --- promote and follow -------------------------------------------------------------------------------------------


async def test_a_promotion_is_refused_while_a_master_is_registered(lead: Lead) -> None:
    brokers = Brokers()
    leads: HandOver = lead(brokers)
    with pytest.raises(HandOverRefused, match="m:1 is registered as the master of b at n:1"):
        await leads.promote(S)
    with pytest.raises(HandOverRefused, match="m:1 is a master already"):
        await leads.promote(M)
    assert brokers.calls == []
    del brokers.table[M], brokers.states[M]
    moved = await leads.promote(S)
    assert (moved.master_addr, brokers.table) == (S, {S: 0})
    assert "the old master must not come back as one" in moved.notes[1]


async def test_an_old_master_follows_under_a_number_that_is_free(lead: Lead) -> None:
    brokers = Brokers()
    brokers.states[S] = replace(brokers.states[S], is_master=True, role="ASYNC_MASTER", end_offset=END + 5)
    brokers.settings[S]["brokerRole"] = "SLAVE"  # nobody looks at it here
    brokers.table = {S: 0, "x:1": 1}
    brokers.states["x:1"] = replace(brokers.states[S], node=node("x:1", 1), is_master=False)
    with pytest.raises(ClientError, match="m:1"):
        await lead(brokers).follow(M)  # no nameserver knows it
    brokers.table = {S: 0, "x:1": 1, M: 2}
    moved = await lead(brokers).follow(M)
    assert (moved.master_addr, moved.former_addr) == (S, M)
    assert brokers.table[M] == 3
    assert brokers.calls == [f"{M} SLAVE", f"register {S}"]


async def test_an_old_master_with_more_than_the_new_one_follows_only_by_force(lead: Lead) -> None:
    brokers = Brokers()
    brokers.states[S] = replace(brokers.states[S], is_master=True)
    with pytest.raises(HandOverRefused, match="m:1 has 10 bytes more than the master s:1"):
        await lead(brokers).follow(M, master=S)
    assert (await lead(brokers).follow(M, master=S, force=True)).master_addr == S
    with pytest.raises(HandOverRefused, match="m:1 is a slave already"):
        await lead(brokers).follow(M)
