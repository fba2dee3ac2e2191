"""Producer groups: reaching a client, turns, reconnects, bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.members import producers
from aerobee_broker.members.clients import Member
from aerobee_broker.members.producers import ProducerTable
from aerobee_proto.errors import RequestError
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import HandlerTable
from broker.support import Peer


def make_table(members: int = 100, per_connection: int = 100) -> ProducerTable:
    return ProducerTable(members_max=members, members_per_connection_max=per_connection)


def member(client_id: str, connection: Connection, now_ms: int = 0) -> Member:
    return Member(client_id, connection, "JAVA", 479, now_ms)


async def test_turns_go_round_the_live_members() -> None:
    table, peers = make_table(), [Peer(HandlerTable()) for _ in range(3)]
    for number, peer in enumerate(peers):
        assert table.register("g", member(f"c{number}", peer.connection))
    assert [table.next_connection("g") for _ in range(4)] == [
        peers[number].connection for number in (0, 1, 2, 0)
    ]
    peers[1].close()
    assert {table.next_connection("g") for _ in range(4)} == {peers[0].connection, peers[2].connection}
    assert table.next_connection("nobody") is None


async def test_a_client_is_found_by_its_id_in_whatever_group() -> None:
    table, connection = make_table(), Connection()
    table.register("g", member("c", connection))
    table.register("h", member("c", connection))
    assert table.by_client_id("c") is connection
    assert table.unregister("g", "c")
    assert table.by_client_id("c") is connection
    assert table.unregister("h", "c")
    assert table.by_client_id("c") is None
    assert not table.unregister("h", "c")


async def test_a_newer_connection_takes_the_place() -> None:
    table, old, new = make_table(), Connection(), Connection()
    table.register("g", member("c", old))
    assert not table.register("g", member("c", new))
    assert table.connection_lost(old) == 0
    assert table.by_client_id("c") is new
    assert table.connection_lost(new) == 1
    assert table.groups() == []


async def test_silent_producers_expire() -> None:
    table, connection = make_table(), Connection()
    table.register("g", member("c", connection, 10))
    assert table.expire(10) == []
    assert table.expire(11) == [connection]
    assert not table.has_members(connection)


@pytest.mark.parametrize("table", [make_table(members=0), make_table(per_connection=0)])
async def test_bounds(table: ProducerTable) -> None:
    with pytest.raises(RequestError, match="max"):
        table.register("g", member("c", Connection()))
    table.check()


@given(
    st.lists(
        st.tuples(st.sampled_from("rulx"), st.sampled_from("ab"), st.sampled_from("gh"), st.integers(0, 1))
    )
)
async def test_any_history_keeps_the_invariants(steps: list[tuple[str, str, str, int]]) -> None:
    table, connections = make_table(), [Connection(), Connection()]
    model: dict[tuple[str, str], Connection] = {}
    for what, client, group, number in steps:
        connection = connections[number]
        if what == "r":
            table.register(group, member(client, connection))
            model[group, client] = connection
        elif what == "u":
            table.unregister(group, client)
            model.pop((group, client), None)
        elif what == "l":
            table.connection_lost(connection)
            model = {key: seat for key, seat in model.items() if seat is not connection}
        else:
            table.expire(1)
            model = {}
        table.check()
        found = {(g, m.client_id): m.connection for g in table.groups() for m in table.members(g)}
        assert found == model


async def test_who_is_asked_next_is_not_sought_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand members that read nothing were looked at a million times for each open transaction."""
    monkeypatch.setattr(producers, "TRIED_MAX", 2)
    table, peers = make_table(), [Peer(HandlerTable()) for _ in range(5)]
    for number, peer in enumerate(peers):
        table.register("g", member(f"c{number}", peer.connection))
    for peer in peers[:4]:
        peer.close()
    found = [table.next_reader("g") for _ in range(6)]
    assert found == [None, None, peers[4].connection, None, None, peers[4].connection]
    table.check()
