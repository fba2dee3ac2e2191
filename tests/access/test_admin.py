"""Requests 3001 to 3010 against what RocketMQ 5.3.3 answers, by captures of `mqadmin` and of odd requests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee_access.control import AccessControl
from aerobee_access.settings import AccessSettings
from aerobee_access.signature import sign
from aerobee_access.table import MASK
from aerobee_access.users import Status, UserType
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_remoting.exchange.handlers import HandlerTable
from broker.support import Peer

GOLDEN = Path(__file__).parents[1] / "golden" / "access"
ROOT, ROOT_SECRET = "garoot", "pwgaroot"


class Server:
    """Access control with its admin requests, and nothing else to ask."""

    def __init__(self, folder: Path, **settings: str | bool) -> None:
        root = json.dumps({"username": ROOT, "password": ROOT_SECRET})
        on = {"authenticationEnabled": True, "authorizationEnabled": True, "initAuthenticationUser": root}
        self.control = AccessControl(
            AccessSettings.model_validate(on | settings),
            cluster_name="DefaultCluster",
            folder=folder / "store",
        )
        self.control.bootstrap()
        self.saved = 0
        self.fails: OSError | None = None
        self.handlers = HandlerTable(self.control.gate)
        self.control.handlers(self._save).register(self.handlers)
        self.peer = Peer(self.handlers)

    async def _save(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.saved += 1

    async def ask(
        self, user: str | None, code: int, header: Mapping[str, str] | None = None, body: object = None
    ) -> Command:
        """Ask as this user, whose secret is known here."""
        fields = dict(header or {})
        text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        if user is not None:
            known = self.control.table.user(user)
            fields = sign(fields, text.encode(), user, known.secret if known else "nobody")
        return await self.peer.ask(code, fields or None, text.encode())


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


def assert_same(answer: Command, official: Mapping[str, Any], why: str) -> None:
    assert answer.code == official["code"], (why, answer)
    remark = official.get("remark") or ""
    if "Exception" not in remark:
        assert (answer.remark or "") == remark.replace("127.0.0.1", "10.1.1.1"), why
    body = official.get("body") or ""
    assert (json.loads(answer.body) if answer.body else None) == (json.loads(body) if body else None), why


# What is stricter here, with or without compatibility.
STRICTER = {
    "acl: host name as CIDR": "The source ip is invalid.",
    "delete the user that asks": "The last super user that is enabled stays: make another one first.",
    "the deleted user asks again": "not set any response code",
}


async def test_odd_requests_are_answered_as_by_the_original(tmp_path: Path) -> None:
    server = Server(tmp_path, authCompat="5.3.3")
    server.control.table.create_user("gaclu", "cc")
    left_out = 0
    for line in lines("admin-raw.jsonl"):
        if line["answer"] is None or line["code"] not in server.handlers.by_code:
            continue
        answer = await server.ask(line["user"], line["code"], line["header"], line["body"])
        if line["why"] in STRICTER:
            left_out += 1
            assert answer.remark == STRICTER[line["why"]]
            continue
        if line["code"] in (RequestCode.AUTH_LIST_USER, RequestCode.AUTH_GET_ACL, RequestCode.AUTH_LIST_ACL):
            line["answer"]["body"] = (
                ""  # it tells of users that were made before, which are not in the capture
            )
            answer.body = b""
        assert_same(answer, line["answer"], line["why"])
    assert left_out == len(STRICTER)


async def test_every_frame_of_mqadmin_is_answered_as_by_the_original(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    servers = {"frames": Server(tmp_path / "a"), "framesToSecondBroker": Server(tmp_path / "b")}
    count = 0
    for line in lines("admin-mqadmin.jsonl"):
        for name, server in servers.items():
            frames = line.get(name) or []
            answers = {frame["opaque"]: frame for frame in frames if frame["dir"] == "answer"}
            for request in (frame for frame in frames if frame["dir"] == "request"):
                official = answers[request["opaque"]]
                if request["code"] not in server.handlers.by_code:
                    continue  # where brokers are
                body = (request["body"] or "").encode()
                answer = await server.peer.ask(request["code"], request["extFields"], body)
                assert_same(answer, official, str(line["command"]))
                count += 1
    assert count > 60


class TestStricter:
    """What the original gets wrong, and ours does not."""

    async def test_secrets_are_shown_to_super_users_alone(self, tmp_path: Path) -> None:
        server = Server(tmp_path)
        for name in ("reader", "victim"):
            await server.ask(ROOT, 3001, {"username": name}, {"password": f"secret of {name}"})
        looks = {"resource": "Cluster:DefaultCluster", "actions": ["Get"], "decision": "Allow"}
        acl = {"subject": "User:reader", "policies": [{"entries": [looks]}]}
        assert (await server.ask(ROOT, 3006, {"subject": "User:reader"}, acl)).code == 0
        shown = await server.ask("reader", 3004, {"username": "victim"})
        assert json.loads(shown.body)["password"] == MASK
        listed = await server.ask("reader", 3005)
        assert {user["password"] for user in json.loads(listed.body)} == {MASK}
        shown = await server.ask(ROOT, 3004, {"username": "victim"})
        assert json.loads(shown.body)["password"] == "secret of victim"

    async def test_a_mask_becomes_nobody_s_secret(self, tmp_path: Path) -> None:
        """Else a copy of users by who sees masks would make accounts whose secret all know."""
        server = Server(tmp_path)
        refused = await server.ask(ROOT, 3001, {"username": "copied"}, {"password": MASK})
        assert (refused.code, "stands for one" in (refused.remark or "")) == (16, True)
        assert server.control.table.user("copied") is None

    async def test_the_last_super_user_stays(self, tmp_path: Path) -> None:
        server = Server(tmp_path)
        for code, body in ((3003, None), (3002, {"userStatus": "disable"}), (3002, {"userType": "Normal"})):
            assert (await server.ask(ROOT, code, {"username": ROOT}, body)).code == ResponseCode.NO_PERMISSION
        await server.ask(ROOT, 3001, {"username": "other"}, {"password": "p", "userType": "Super"})
        assert (await server.ask("other", 3003, {"username": ROOT})).code == 0
        assert server.control.table.user(ROOT) is None

    async def test_who_may_change_the_cluster_gives_nobody_rights(self, tmp_path: Path) -> None:
        """Least of all itself, or by the name of somebody else whose secret it sets."""
        server = Server(tmp_path)
        everything = {"resource": "Cluster:*", "actions": ["All"], "decision": "Allow"}
        acl = {"subject": "User:operator", "policies": [{"entries": [everything]}]}
        for name in ("operator", "payments"):
            await server.ask(ROOT, 3001, {"username": name}, {"password": "p"})
        await server.ask(ROOT, 3006, {"subject": "User:operator"}, acl)
        revision = server.control.table.revision
        wanted = {"policies": [{"entries": [everything | {"resource": "*"}]}]}
        for code, header, body in (
            (3006, {"subject": "User:operator"}, wanted),
            (3007, {"subject": "User:payments"}, wanted),
            (3008, {"subject": "User:payments"}, None),
            (3002, {"username": "payments"}, {"password": "mine"}),
            (3002, {"username": "payments"}, {"userStatus": "enable"}),
        ):
            refused = await server.ask("operator", code, header, body)
            assert (refused.code, "super users alone" in (refused.remark or "")) == (16, True), code
        assert server.control.table.revision == revision
        assert (await server.ask("operator", 3002, {"username": "operator"}, {"password": "q"})).code == 0
        assert (await server.ask("operator", 3001, {"username": "new"}, {"password": "p"})).code == 0

    @pytest.mark.parametrize("where", ["unsigned", "authorization alone"])
    async def test_who_is_disabled_may_nothing_where_no_signature_is_asked_for(
        self, tmp_path: Path, where: str
    ) -> None:
        settings: dict[str, str | bool] = {"authenticationWhitelist": "3005"}
        if where == "authorization alone":
            settings = {"authenticationEnabled": False}
        server = Server(tmp_path, **settings)
        server.control.table.create_user("gone", "p", UserType.SUPER, Status.DISABLE)
        assert (await server.ask("gone", 3005)).remark == "User:gone is disabled."

    async def test_nothing_is_changed_while_access_control_is_off(self, tmp_path: Path) -> None:
        """Else the first to come would be its administrator from the moment that it is turned on."""
        server = Server(tmp_path, authenticationEnabled=False, authorizationEnabled=False)
        refused = await server.ask(None, 3001, {"username": "me"}, {"password": "p", "userType": "Super"})
        assert (refused.code, "access control is off" in (refused.remark or "")) == (16, True)
        assert server.control.table.user("me") is None

    async def test_what_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        server = Server(tmp_path)
        server.fails = OSError(28, "No space left on device")
        answer = await server.ask(ROOT, 3001, {"username": "u"}, {"password": "p"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "No space left" in (answer.remark or "")


async def test_a_change_counts_for_the_next_request_of_every_connection(tmp_path: Path) -> None:
    server = Server(tmp_path)
    await server.ask(ROOT, 3001, {"username": "u"}, {"password": "p"})
    looks = {"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"}
    acl = {"subject": "User:u", "policies": [{"entries": [looks]}]}
    await server.ask(ROOT, 3006, {"subject": "User:u"}, acl)
    assert (await server.ask("u", 3005)).code == 0
    acl["policies"] = [{"entries": [looks | {"decision": "Deny"}]}]
    await server.ask(ROOT, 3007, {"subject": "User:u"}, acl)
    refused = await server.ask("u", 3005)
    assert (refused.code, (refused.remark or "").endswith("the decision is deny.")) == (16, True)
    await server.ask(ROOT, 3008, {"subject": "User:u"})
    assert (await server.ask("u", 3005)).remark == (
        "User:u has no permission to access Cluster:DefaultCluster from 10.1.1.1, no matched policies."
    )
    await server.ask(ROOT, 3002, {"username": "u"}, {"userStatus": "disable"})
    assert (await server.ask("u", 3005)).remark == "User:u is disabled."


@pytest.mark.parametrize("code", range(3001, 3011))
async def test_who_may_nothing_is_told_nothing(tmp_path: Path, code: int) -> None:
    server = Server(tmp_path)
    await server.ask(ROOT, 3001, {"username": "nobody"}, {"password": "p"})
    before = server.control.table.revision
    body = {"password": "x"} if code in (3001, 3002, 3006, 3007) else None
    answer = await server.ask("nobody", code, {"username": ROOT, "subject": f"User:{ROOT}"}, body)
    assert (answer.code, answer.body) == (16, b"")
    assert server.control.table.revision == before
