"""Users and policies at a slave, and at what it becomes."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_access.copies import AccessGiver
from aerobee_access.signature import sign
from aerobee_broker.broker import Broker
from aerobee_broker.replication import metadata
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command
from broker.replication.pairs import caught_up, eventually, master_side, meet, pair, running_slave, slave_side
from system.running import Talker, running_broker, send_request, talking

INNER = json.dumps({"accessKey": "inner", "secretKey": "a secret of the brokers"})
ACCESS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "secret of root"}),
    "inner_client_authentication_credentials": INNER,
}
PUT, PULL = ResponseCode.SUCCESS, ResponseCode.SUCCESS
REFUSED = ResponseCode.NO_PERMISSION


def secret_of(user: str) -> str:
    return f"secret of {user}"


async def ask(client: Talker, user: str, command: Command, secret: str = "") -> Command:
    command.ext_fields = sign(command.ext_fields or {}, command.body, user, secret or secret_of(user))
    return await client.exchange(command)


async def create_user(client: Talker, name: str, *, by: str = "root", **more: str) -> Command:
    body = json.dumps({"username": name, "password": secret_of(name), "userType": "Normal"} | more)
    return await ask(
        client, by, Command(RequestCode.AUTH_CREATE_USER, ext_fields={"username": name}, body=body.encode())
    )


async def delete_user(client: Talker, name: str, *, by: str = "root") -> Command:
    return await ask(client, by, Command(RequestCode.AUTH_DELETE_USER, ext_fields={"username": name}))


async def allow(client: Talker, user: str, resource: str, *actions: str) -> Command:
    entry = {"resource": resource, "actions": actions, "decision": "Allow"}
    body = json.dumps({"subject": f"User:{user}", "policies": [{"entries": [entry]}]})
    return await ask(
        client,
        "root",
        Command(RequestCode.AUTH_CREATE_ACL, ext_fields={"subject": f"User:{user}"}, body=body.encode()),
    )


async def put(client: Talker, user: str) -> int:
    return (await ask(client, user, send_request("T"))).code


async def pull(client: Talker, user: str, secret: str = "") -> int:
    return (await ask(client, user, client.pull_request("T", consumerGroup="G"), secret)).code


def names(broker: Broker) -> list[str]:
    return [user.name for user in broker.access.table.users()]


async def with_anna(master: Broker, client: Talker) -> None:
    """A user who may send to T and read it, and a message there."""
    assert (await create_user(client, "anna")).code == 0
    assert (await allow(client, "anna", "Topic:T", "Pub", "Sub")).code == 0
    assert (await allow(client, "anna", "Group:G", "Sub")).code == 0
    assert await put(client, "anna") == PUT


async def test_a_slave_lets_in_whom_its_master_does(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, **ACCESS) as (master, slave),
        talking(master) as at_master,
        talking(slave) as at_slave,
    ):
        assert await pull(at_slave, "anna") == REFUSED
        await with_anna(master, at_master)
        await caught_up(master, slave)
        await eventually(lambda: slave.access.table.acl("anna") == master.access.table.acl("anna"))
        await eventually(lambda: "T" in slave.parts.topics)
        assert await pull(at_slave, "anna") == PULL
        assert await pull(at_slave, "anna", "a guess") == REFUSED

        changed = Command(
            RequestCode.AUTH_UPDATE_USER, ext_fields={"username": "anna"}, body=b'{"password":"another"}'
        )
        assert (await ask(at_master, "root", changed)).code == 0
        await eventually(lambda: slave.access.table.user("anna").secret == "another")  # type: ignore[union-attr]
        assert await pull(at_slave, "anna") == REFUSED
        assert await pull(at_slave, "anna", "another") == PULL

        assert (await delete_user(at_master, "anna")).code == 0
        await eventually(lambda: "anna" not in names(slave))
        assert await pull(at_slave, "anna", "another") == REFUSED


async def test_where_sends_wait_for_the_slave_users_are_there_when_their_change_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "SYNC_S", 3600.0)
    of_master = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}
    async with pair(tmp_path, of_master=of_master, **ACCESS) as (master, slave), talking(master) as client:
        news = master_side(master).news
        await eventually(lambda: slave_side(slave).metadata.synced_at > 0 and news.has_all(1))
        await with_anna(master, client)
        assert slave.access.table.acl("anna") == master.access.table.acl("anna")
        assert (await delete_user(client, "anna")).code == 0
        assert "anna" not in names(slave)


async def test_a_slave_that_becomes_the_master_decides_as_the_old_one(tmp_path: Path) -> None:
    async with pair(tmp_path, **ACCESS) as (master, slave), talking(master) as client:
        await with_anna(master, client)
        assert (await create_user(client, "gone")).code == 0
        await eventually(lambda: "gone" in names(slave))
        assert (await delete_user(client, "gone")).code == 0
        await caught_up(master, slave)
        await eventually(lambda: "gone" not in names(slave))
        acls = dict(master.access.table.acls())
    written = (tmp_path / "slave" / "config" / "access.json").read_text()
    assert "anna" in written
    assert "secret of" not in written
    for path in (tmp_path / "slave" / "config").glob("access.json*"):
        assert path.stat().st_mode & 0o077 == 0, path.name
    async with running_broker(tmp_path / "slave", **ACCESS) as promoted, talking(promoted) as client:
        assert dict(promoted.access.table.acls()) == acls
        assert names(promoted) == ["anna", "inner", "root"]
        assert await put(client, "anna") == PUT
        assert await pull(client, "anna") == PULL
        assert await put(client, "gone") == REFUSED
        assert (await create_user(client, "carl")).code == 0


async def test_what_a_slave_is_told_is_done_at_the_master(tmp_path: Path) -> None:
    """As `mqadmin -c` tells both of them, in any order."""
    async with (
        pair(tmp_path, **ACCESS) as (master, slave),
        talking(master) as at_master,
        talking(slave) as at_slave,
    ):
        for one, other in ((at_slave, at_master), (at_master, at_slave)):
            assert (await create_user(one, "carl")).code == 0
            assert (await create_user(other, "carl")).code == 0
            assert "carl" in names(master)
            assert "carl" in names(slave)
            refused = await create_user(other, "carl", password="another")
            assert (refused.code, refused.remark) == (16, "The user is existed")
            assert (await allow(one, "carl", "Topic:T", "Sub")).code == 0
            assert (await allow(other, "carl", "Topic:T", "Sub")).code == 0
            assert slave.access.table.acl("carl") == master.access.table.acl("carl") is not None
            assert (await delete_user(one, "carl")).code == 0
            assert (await delete_user(other, "carl")).code == 0
            assert "carl" not in names(master)
            assert "carl" not in names(slave)


async def test_a_slave_asks_for_nobody_who_may_not_ask(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, **ACCESS) as (master, slave),
        talking(master) as at_master,
        talking(slave) as at_slave,
    ):
        for name in ("clerk", "stranger"):
            assert (await create_user(at_master, name)).code == 0
        assert (await allow(at_master, "clerk", "Cluster:TestCluster", "Update", "Get")).code == 0
        await eventually(lambda: slave.access.table.acl("clerk") is not None)
        assert (await create_user(at_slave, "other", by="stranger")).code == REFUSED
        refused = await create_user(at_slave, "boss", by="clerk", userType="Super")
        assert (refused.code, refused.remark) == (1, "The super user can only be create by super user")
        refused = await delete_user(at_slave, "root", by="clerk")
        assert (refused.code, refused.remark) == (16, "The super user can only be update by super user")
        assert (await create_user(at_slave, "other", by="clerk")).code == 0
        assert names(master) == names(slave) == ["clerk", "inner", "other", "root", "stranger"]


async def test_a_slave_tells_strangers_that_they_are_strangers_and_no_more(tmp_path: Path) -> None:
    async with running_slave(tmp_path / "slave", **ACCESS) as slave, talking(slave) as client:
        for command in (send_request("T"), client.pull_request("T"), Command(RequestCode.POP_MESSAGE)):
            answer = await client.exchange(command)
            assert (answer.code, answer.remark) == (REFUSED, "username cannot be null.")
        assert "a slave" in ((await ask(client, "root", send_request("T"))).remark or "")


async def test_while_a_master_hands_over_nobody_changes_users(tmp_path: Path) -> None:
    """What the slave has of them then is what it begins with."""
    async with running_broker(tmp_path, **ACCESS) as master, talking(master) as client:
        assert (await create_user(client, "anna")).code == 0
        fence = Command(RequestCode.FENCE_WRITES, ext_fields={"millis": "60000"})
        assert (await ask(client, "root", fence)).code == 0
        for refused in (
            await create_user(client, "bert"),
            await delete_user(client, "anna"),
            await allow(client, "anna", "Topic:T", "Pub"),
        ):
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert names(master) == ["anna", "inner", "root"]
        fence = Command(RequestCode.FENCE_WRITES, ext_fields={"millis": "0"})
        assert (await ask(client, "root", fence)).code == 0
        assert (await delete_user(client, "anna")).code == 0


async def test_without_its_master_a_slave_changes_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path, **ACCESS) as (_, slave), talking(slave) as client:
        await eventually(lambda: "root" in names(slave))
    async with running_slave(tmp_path / "slave", **ACCESS) as slave, talking(slave) as client:
        refused = await create_user(client, "anna")
        assert refused.code == REFUSED
        assert "its master's" in (refused.remark or "")
        assert "anna" not in names(slave)


async def test_a_slave_without_credentials_has_users_of_its_own(tmp_path: Path) -> None:
    own = ACCESS | {"inner_client_authentication_credentials": "", "ha_listen_port": 0}
    async with running_slave(tmp_path / "slave", **own) as slave, talking(slave) as client:
        assert (await create_user(client, "anna")).code == 0
        assert "anna" in names(slave)


async def refuse(*_: object) -> None:
    raise RequestError(REFUSED, "not you")


@pytest.mark.parametrize("code", [3, 16])
async def test_a_master_that_gives_none_is_told_once_and_the_rest_is_followed(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code == 3:  # a release that did not know the request
        monkeypatch.setattr(AccessGiver, "register", lambda *_: None)
    monkeypatch.setattr(AccessGiver, "give", refuse)
    async with running_broker(tmp_path / "master", **ACCESS) as master, talking(master) as client:
        await with_anna(master, client)
        with capture_logs() as logs:
            async with running_slave(tmp_path / "slave", **ACCESS) as slave:
                meet(slave, master)
                await eventually(lambda: "T" in slave.parts.topics)
                await eventually(lambda: "replication.access_not_taken" in [line["event"] for line in logs])
                first = (metadata := slave_side(slave).metadata).synced_at
                await eventually(lambda: metadata.synced_at > first)
                assert names(slave) == ["inner", "root"]
        said = [line for line in logs if line["event"] == "replication.access_not_taken"]
        assert len(said) == 1
        assert f"code {code}" in said[0]["reason"]
