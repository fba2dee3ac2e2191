"""Official clients and tools that sign, of 5.x and of 4.9, at our broker with the access control of either time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import official
import ours
from admin_shell import AdminShell
from plain_remoting import make_topic

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT, ROOT_SECRET = "operator", "secret-of-operator"
CLIENTS = {"5.3.3": official.JAVA_PROJECT, "4.9.8": official.CLIENT_4_9}
COUNT = 20
TIMEOUT_S = 120.0
# Of accounts, as 4.9 has them in plain_acl.yml.
ACCOUNTS = f"""accounts:
- accessKey: {ROOT}
  secretKey: {ROOT_SECRET}
  admin: true
- accessKey: payments
  secretKey: secret-of-payments
  topicPerms: [Orders=PUB|SUB]
  groupPerms: [g=SUB, g-pull=SUB]
- accessKey: stranger
  secretKey: secret-of-stranger
"""


@dataclass(slots=True)
class Said:
    """What the clients of one run said."""

    sent: int = 0
    pushed: int = 0
    pulled: int = 0
    refused: str = ""
    lines: list[str] = field(default_factory=list)


def java(project: Path, options: list[str], words: list[str]) -> str:
    """Everything that a Java program printed."""
    heap = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    quiet = f"-Drmq.logback.configurationFile={official.JAVA_PROJECT / 'silent-logback.xml'}"
    line = ["java", *heap, quiet, *options, "-cp", official.classpath(project), *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.stdout + done.stderr


def clients(version: str, nameserver: str, user: str, secret: str, folder: Path) -> Said:
    """A producer and consumers of these credentials."""
    words = [nameserver, "Orders", "g", user, secret, str(COUNT)]
    options = [
        f"-Duser.home={folder}",
        f"-Drocketmq.client.localOffsetStoreDir={folder}",
        "-Drocketmq.client.logUseSlf4j=true",
    ]
    said = Said(lines=java(CLIENTS[version], options, ["interop.scenarios.Signed", *words]).splitlines())
    for line in said.lines:
        word, _, rest = line.partition(" ")
        if word in ("SENT", "PUSHED", "PULLED"):
            setattr(said, word.lower(), int(rest))
        elif word == "REFUSED":
            said.refused = rest
    assert "DONE" in said.lines, said.lines
    return said


@dataclass(slots=True)
class Scene:
    """A broker of ours that asks for signatures."""

    nameserver: str
    broker: str
    folder: Path

    def all_at_once(self, version: str) -> dict[str, Said]:
        """Who may, who may not, and who only says to be somebody."""
        users = {
            "may": ("payments", "secret-of-payments"),
            "may not": ("stranger", "secret-of-stranger"),
            "guesses": ("payments", "secret-of-nobody"),
        }
        with ThreadPoolExecutor() as pool:
            said = {
                who: pool.submit(clients, version, self.nameserver, *user, self.folder)
                for who, user in users.items()
            }
            return {who: future.result() for who, future in said.items()}


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Scene]:
    """Users and policies, made by the official mqadmin."""
    root = json.dumps({"username": ROOT, "password": ROOT_SECRET})
    config = {"authenticationEnabled": True, "authorizationEnabled": True, "initAuthenticationUser": root}
    with (
        ours.start_nameserver() as nameserver,
        ours.start_broker(tmp_path, nameserver.address, config=config) as broker,
        AdminShell(nameserver.address, tmp_path, (ROOT, ROOT_SECRET)) as shell,
    ):
        for words in (
            "updateTopic -t Orders -r 2 -w 2",
            "createUser -u payments -p secret-of-payments",
            "createUser -u stranger -p secret-of-stranger",
            "createAcl -s User:payments -r Topic:Orders -a Pub,Sub,Get -d Allow",
            "createAcl -s User:payments -r Group:g* -a Sub,Get -d Allow",
        ):
            assert "success" in shell.run(*words.split(), "-b", broker.address)
        yield Scene(nameserver.address, broker.address, tmp_path)


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Scene]:
    """Accounts of 4.x."""
    plain = tmp_path / "plain_acl.yml"
    with ours.start_nameserver() as nameserver:
        with ours.start_broker(tmp_path, nameserver.address) as broker:
            make_topic(nameserver.address, broker.address, "Orders", queues=2)
        plain.write_text(ACCOUNTS)
        config = {"aclEnable": True, "plainAclPath": str(plain)}
        with ours.start_broker(tmp_path, nameserver.address, config=config) as broker:
            yield Scene(nameserver.address, broker.address, tmp_path)


@pytest.mark.parametrize("version", CLIENTS)
def test_users_and_policies_hold_for_official_clients(users: Scene, version: str) -> None:
    said = users.all_at_once(version)
    may = said["may"]
    assert (may.refused, may.sent, may.pushed, may.pulled) == ("", COUNT + 2, COUNT + 2, COUNT + 2), may.lines
    assert "User:stranger has no permission to access Topic:Orders" in said["may not"].refused
    assert "check signature failed" in said["guesses"].refused
    assert said["may not"].sent == said["guesses"].sent == 0


@pytest.mark.parametrize("version", CLIENTS)
def test_accounts_of_4_x_hold_for_official_clients(accounts: Scene, version: str) -> None:
    said = accounts.all_at_once(version)
    may = said["may"]
    assert (may.refused, may.sent, may.pushed, may.pulled) == ("", COUNT + 2, COUNT + 2, COUNT + 2), may.lines
    assert "No default permission for topic:Orders" in said["may not"].refused
    assert "Check signature failed for accessKey=payments" in said["guesses"].refused
    assert said["may not"].sent == said["guesses"].sent == 0


def test_mqadmin_of_4_9_changes_accounts(accounts: Scene) -> None:
    """Its commands as they are; an account that is no administrator gets nowhere with them."""

    def mqadmin(user: str, command: str) -> str:
        home = accounts.folder / f"tools of {user}"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        quiet = (official.JAVA_PROJECT / "silent-logback.xml").read_text()
        (home / "conf" / "logback_tools.xml").write_text(quiet)
        tools = home / "conf" / "tools.yml"
        tools.write_text(f"accessKey: {user}\nsecretKey: secret-of-{user}\n")
        options = [f"-Drocketmq.home.dir={home}", f"-Drocketmq.namesrv.addr={accounts.nameserver}"]
        words = ["org.apache.rocketmq.tools.command.MQAdminStartup", *command.split(), "-b", accounts.broker]
        return java(official.CLIENT_4_9, options, words)

    change = "updateAclConfig -a newcomer -s secret-of-newcomer -t Orders=PUB|SUB -g g=SUB,g-pull=SUB"
    assert "success" not in mqadmin("payments", change)
    assert "newcomer" not in (accounts.folder / "plain_acl.yml").read_text()
    done = mqadmin(ROOT, change)
    assert "success" in done, done
    assert accounts.broker in mqadmin(ROOT, "clusterAclConfigVersion")
    said = clients("4.9.8", accounts.nameserver, "newcomer", "secret-of-newcomer", accounts.folder)
    assert (said.refused, said.sent) == ("", COUNT + 2)
    assert "success" in mqadmin(ROOT, "deleteAclConfig -a newcomer")
    said = clients("4.9.8", accounts.nameserver, "newcomer", "secret-of-newcomer", accounts.folder)
    assert "Check signature failed for accessKey=newcomer" in said.refused
