"""The official mqadmin and access control: each command prints the same of our broker and of the official one, and what
it copies from one to the other is the same there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import official
import ours
from admin_shell import AdminShell
from aerobee import BrokerRefused, Client, Credentials
from client_scenarios import routed
from interop.test_access import AUTH, SECRET, SETTINGS, USER
from programs import Server

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

POLICIES = AUTH.replace("authentication", "authorization")
ON: dict[str, object] = {
    **SETTINGS,
    "authorizationEnabled": "true",
    "authorizationProvider": f"{POLICIES}.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{POLICIES}.LocalAuthorizationMetadataProvider",
}
# In this order; the last words of each follow the address.
COMMANDS = [
    "createUser -u anna -p one -t Normal",
    "createUser -u bert -p two",
    "createUser -u bert -p two",  # is there
    "createUser -u carl -p three -t Super",
    "updateUser -u anna -p four",
    "updateUser -u bert -t Super",
    "updateUser -u bert -s disable",
    "updateUser -u nobody -p x",
    "getUser -u anna",
    "getUser -u nobody",
    "listUser",
    "listUser -f a",
    "createAcl -s User:anna -r Topic:orders,Group:* -a Pub,Sub -i 10.0.0.0/8,192.168.1.1 -d Allow",
    "createAcl -s User:anna -r Topic:secret* -a All -d Deny",
    "createAcl -s User:carl -r * -a Get,List -d Allow",
    "createAcl -s User:nobody -r Topic:t -a Pub -d Allow",
    "updateAcl -s User:anna -r Topic:orders -a Pub -d Deny",
    "getAcl -s User:anna",
    "getAcl -s User:nobody",
    "listAcl",
    "listAcl -s anna",
    "listAcl -r secret",
    "deleteAcl -s User:anna -r Topic:secret*",
    "getAcl -s User:anna",
    "deleteAcl -s User:carl",
    "listAcl",
    "deleteUser -u carl",
    "deleteUser -u nobody",
    "listUser",
]


@dataclass(slots=True)
class Scene:
    """Two brokers with access control and the same first user, whom mqadmin signs as."""

    shell: AdminShell
    nameserver: str
    theirs: Server
    ours: Server

    def on(self, broker: Server, command: str) -> str:
        """What a command prints when this broker is asked, without its address."""
        said = self.shell.run(*command.split(), "-b", broker.address)
        return said.replace(broker.address, "BROKER")

    def state(self, broker: Server) -> tuple[str, str]:
        """All users and all policies."""
        return self.on(broker, "listUser"), self.on(broker, "listAcl")

    def copy(self, source: Server, target: Server) -> None:
        for command in ("copyUser", "copyAcl"):
            said = self.shell.run(command, "-f", source.address, "-t", target.address)
            assert "Exception" not in said, said


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("access-admin")
    with (
        official.start_nameserver(folder) as nameserver,
        official.start_broker(folder / "theirs", nameserver.address, config=ON) as theirs,
        ours.start_broker(folder / "ours", nameserver.address, name="broker-b", config=ON) as own,
        AdminShell(nameserver.address, folder, (USER, SECRET)) as shell,
    ):
        yield Scene(shell, nameserver.address, theirs, own)


def test_every_command_prints_the_same_of_both_brokers(scene: Scene) -> None:
    for command in COMMANDS:
        expected = scene.on(scene.theirs, command)
        assert comparable(scene.on(scene.ours, command)) == comparable(expected), command
    assert "anna" in scene.state(scene.ours)[0]


def test_users_and_policies_are_copied_to_ours(scene: Scene) -> None:
    scene.on(scene.theirs, "createUser -u from-theirs -p p1")
    scene.on(scene.theirs, "createUser -u super-there -p p2 -t Super")
    scene.on(
        scene.theirs, "createAcl -s User:from-theirs -r Topic:a*,Group:g -a Pub,Get -i 127.0.0.1 -d Allow"
    )
    scene.copy(scene.theirs, scene.ours)
    assert scene.state(scene.ours) == scene.state(scene.theirs)


async def test_users_and_policies_are_copied_from_ours_and_may_do_there_what_they_say(scene: Scene) -> None:
    def make_and_copy() -> None:
        scene.on(scene.ours, "createUser -u from-ours -p p3")
        scene.on(scene.ours, "createAcl -s User:from-ours -r Topic:Copied -a Pub -d Allow")
        scene.copy(scene.ours, scene.theirs)
        assert scene.state(scene.theirs) == scene.state(scene.ours)
        for broker in (scene.ours, scene.theirs):
            for topic in ("Copied", "Other"):
                said = scene.on(broker, f"updateTopic -t {topic} -r 1 -w 1")
                assert "success" in said, said

    await asyncio.to_thread(make_and_copy)
    async with (
        Client(scene.nameserver, credentials=Credentials("from-ours", "p3")) as mq,
        mq.producer() as out,
    ):
        await routed(mq, "Copied", {"broker-a", "broker-b"})
        sent = [await out.send("Copied", b"x") for _ in range(4)]
        assert {result.queue.broker_name for result in sent} == {"broker-a", "broker-b"}
        with pytest.raises(BrokerRefused, match="User:from-ours has no permission to access Topic:Other"):
            await out.send("Other", b"x")


def comparable(said: str) -> list[str]:
    """Lines but for those of a stack, which name lines of the tools alone."""
    return [line.rstrip() for line in said.splitlines() if not line.startswith("\t")]
