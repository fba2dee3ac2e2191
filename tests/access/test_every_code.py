"""Every code that a broker or a nameserver serves, asked by nobody, a stranger, a user with exactly the right, and by
one with all but the right."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from access.support import Caller, empty_table
from access.test_worlds import shown
from aerobee_access.gate import AccessGate, AccessRules
from aerobee_access.policies import Action, Decision, Entry, Kind, Pattern, PolicyType, Resource
from aerobee_access.signature import sign
from aerobee_access.table import AccessTable
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command, FrameDecoder, encode_command
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.gate import Row
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_remoting.exchange.needs import Need, Open
from remoting.pair import raw_peer
from system.running import running_broker
from system.serving import nameserver
from system.test_permissions import ASKED, WORDS
from system.worst_requests import ordinary_fields, ordinary_header

CLUSTER = "DefaultCluster"
SECRET = "a secret of eighteen"
BODIES = {code: body for code, _, body, needed in ASKED if body is not None and needed}
ACTIONS = tuple(action for action in Action if action not in (Action.UNKNOWN, Action.ALL, Action.ANY))


def request_of(row: Row, user: str | None, secret: str = SECRET) -> tuple[Row, AnyIncoming]:
    body = BODIES.get(row.code, b"")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name: value or f"the-{name}" for name, value in ordinary_fields(row).items()}
    if user is not None:
        fields = sign(fields, raw, user, secret)
    (frame,) = FrameDecoder().feed(encode_command(Command(row.code, ext_fields=fields, body=raw)))
    return shown(row, row.code, frame)


def allow(need: Need, actions: Sequence[Action]) -> Entry:
    kind = Kind[need.kind.name]
    return Entry(Resource(kind, need.name or CLUSTER, Pattern.LITERAL), tuple(actions), Decision.ALLOW)


def actions_of(need: Need) -> list[Action]:
    return [Action[action.name] for action in need.actions]


def outcome(gate: AccessGate, row: Row, request: AnyIncoming) -> str:
    """The remark of the refusal; empty when it is let in."""
    try:
        gate.admit(Caller(), row, request)
    except RequestError as refused:
        return refused.remark if refused.code == ResponseCode.NO_PERMISSION else f"code {refused.code}"
    return ""


@pytest.fixture
def table(tmp_path: Path) -> AccessTable:
    return empty_table(tmp_path)


@pytest.fixture
def gate(table: AccessTable) -> AccessGate:
    table.create_user("known", SECRET)
    return AccessGate(table, AccessRules(CLUSTER, authentication=True, authorization=True))


def test_nobody_is_refused_whatever_is_asked(served: dict[int, Row], gate: AccessGate) -> None:
    for row in served.values():
        remark = "" if isinstance(row.needs, Open) and row.needs.unsigned else "username cannot be null."
        assert outcome(gate, *request_of(row, None)) == remark, RequestCode(row.code).name


def test_a_stranger_and_a_liar_are_refused_whatever_they_ask(
    served: dict[int, Row], gate: AccessGate
) -> None:
    for row in served.values():
        if isinstance(row.needs, Open) and row.needs.unsigned:
            continue
        name = RequestCode(row.code).name
        assert outcome(gate, *request_of(row, "stranger")) == "check signature failed.", name
        assert outcome(gate, *request_of(row, "known", "guessed")) == "check signature failed.", name


def test_a_user_without_a_right_is_refused_whatever_needs_one(
    served: dict[int, Row], gate: AccessGate
) -> None:
    for row in served.values():
        remark = outcome(gate, *request_of(row, "known"))
        assert bool(remark) is not isinstance(row.needs, Open), RequestCode(row.code).name


def test_each_of_the_actions_is_enough_and_nothing_else_is(
    served: dict[int, Row], table: AccessTable
) -> None:
    gate = AccessGate(table, AccessRules(CLUSTER, authentication=True, authorization=True))
    asked = 0
    for row in served.values():
        shown_row, request = request_of(row, "u")
        assert shown_row is row, RequestCode(row.code).name
        needs = list(row.needed(request))
        assert needs or isinstance(row.needs, Open), RequestCode(row.code).name
        for at, need in enumerate(needs):
            for entries, is_enough in rights(needs, at):
                with_policies(table, entries)
                refused = outcome(gate, row, request)
                assert bool(refused) is not is_enough, (RequestCode(row.code).name, need, entries, refused)
                if refused:
                    assert f"{need.kind.value}:{need.name or CLUSTER}" in refused
                asked += 1
    assert asked > 280


def rights(needs: Sequence[Need], at: int) -> Iterator[tuple[list[Entry], bool]]:
    """Policies that grant all of `needs` but this one; then exactly that too, then everything else instead."""
    others = [allow(need, actions_of(need)) for need in needs if need[:2] != needs[at][:2]]
    # Of two needs of one resource an action of both is not asked apart.
    same = [set(actions_of(need)) for need in needs if need[:2] == needs[at][:2]]
    if len(same) > 1:
        return
    for action in actions_of(needs[at]):
        yield [*others, allow(needs[at], [action])], True
    rest = [action for action in ACTIONS if action not in same[0]]
    everything_else = Entry(Resource(Kind.ANY, "", Pattern.ANY), tuple(rest), Decision.ALLOW)
    elsewhere = [
        Entry(Resource(kind, "elsewhere", Pattern.PREFIXED), (Action.ALL,), Decision.ALLOW)
        for kind in (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER)
    ]
    yield [*others, everything_else, *elsewhere], False


def with_policies(table: AccessTable, entries: Sequence[Entry]) -> None:
    table.delete_user("u")
    table.create_user("u", SECRET)
    table.write_acl("u", [(PolicyType.CUSTOM, entries)])


@pytest.mark.parametrize("where", ["broker", "nameserver"])
async def test_over_a_connection_strangers_are_told_nothing(tmp_path: Path, where: str) -> None:
    """Whatever they ask, be it served or not, with a header that can be read or not, with a body or not."""
    gate = AccessGate(
        empty_table(tmp_path / "keys"), AccessRules(CLUSTER, authentication=True, authorization=True)
    )

    async def ask_all(table: HandlerTable, port: int) -> None:
        async with raw_peer(port) as peer:
            for code, row in sorted(table.by_code.items()):
                if isinstance(row.needs, Open) and row.needs.unsigned:
                    continue
                broken = b'{"code":%d,"extFields":{"queueId":"many"},"opaque":7}' % code
                for header, body in ((ordinary_header(row, {}), b""), (broken, b""), (broken, b"x" * 100)):
                    peer.writer.write(WORDS.pack(len(header) + len(body) + 4, len(header)) + header + body)
                    answer = await peer.receive()
                    assert (answer.code, answer.remark) == (16, "username cannot be null."), code
            unknown = b'{"code":77,"opaque":7}'
            peer.writer.write(WORDS.pack(len(unknown) + 4, len(unknown)) + unknown)
            assert (await peer.receive()).code == ResponseCode.NO_PERMISSION

    if where == "broker":
        async with running_broker(tmp_path / "store", gate=gate) as broker:
            await ask_all(broker.handlers, broker.port)
        return
    server = nameserver(gate)
    await server.start()
    try:
        await ask_all(server.handlers, server.port)
    finally:
        await server.close()
