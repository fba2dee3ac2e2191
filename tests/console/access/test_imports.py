"""`aerobee access import`: accounts of 4.x become users of a store folder."""

import asyncio
from pathlib import Path
from typing import Any

from aerobee_access.file import AccessFile
from aerobee_access.sealing import Sealer
from aerobee_access.table import AccessTable
from aerobee_console.terminal.failures import USAGE
from broker.replication.pairs import eventually
from console.support import Runner
from system.running import running_broker

COMMAND = ("access", "import")
FILE = """accounts:
- accessKey: gamanager
  secretKey: sk-gamanager
  admin: true
- accessKey: gareader
  secretKey: sk-gareader
  whiteRemoteAddress: 10.0.0.*
  defaultTopicPerm: SUB
"""


async def made(tmp_path: Path) -> tuple[str, str]:
    """A file of accounts, and the folder of a broker that has run."""
    accounts, store = tmp_path / "plain_acl.yml", tmp_path / "store"
    accounts.write_text(FILE)
    async with running_broker(store):
        pass
    return str(accounts), str(store)


async def test_accounts_become_users_of_the_next_start(aerobee: Runner, tmp_path: Path) -> None:
    accounts, store = await made(tmp_path)
    first = aerobee(*COMMAND, accounts, store, "-o", "json")
    assert first.code == 0
    assert {row["user"]: row["outcome"] for row in first.json["users"]} == {
        "gamanager": "made",
        "gareader": "made; its white address is lost",
    }
    assert "sk-ga" not in first.out
    again = aerobee(*COMMAND, accounts, store, "-o", "json")
    assert {row["outcome"] for row in again.json["users"]} == {"there already"}
    async with running_broker(tmp_path / "store", authentication_enabled=True) as broker:
        assert [user.name for user in broker.access.table.users()] == ["gamanager", "gareader"]
        busy = aerobee(*COMMAND, accounts, store)
        assert (busy.code, "stop the broker first" in busy.err) == (USAGE, True)
    table = AccessTable(Sealer(tmp_path / "store.key"))
    AccessFile(tmp_path / "store" / "config" / "access.json", table).load()
    user = table.user("gareader")
    assert user is not None
    assert user.secret == "sk-gareader"


async def test_what_cannot_be_read_changes_nothing(aerobee: Runner, tmp_path: Path) -> None:
    accounts, store = await made(tmp_path)
    await asyncio.to_thread(Path(accounts).write_text, "accounts:\n- accessKey: [broken\n")
    wrong = aerobee(*COMMAND, accounts, store)
    assert (wrong.code, "line 2" in wrong.err) == (USAGE, True)
    assert aerobee(*COMMAND, str(tmp_path / "none.yml"), store).code == USAGE
    assert aerobee(*COMMAND, accounts, str(tmp_path / "nothing")).code == USAGE
    assert not (tmp_path / "store" / "config" / "access.json").exists()
    assert not (tmp_path / "store.key").exists()


async def test_brokers_that_share_a_file_may_run(aerobee: Runner, tmp_path: Path) -> None:
    accounts, _ = await made(tmp_path)
    shared, key = tmp_path / "shared" / "access.json", tmp_path / "shared.key"
    settings: dict[str, Any] = {"access_file_path": str(shared), "access_key_path": str(key)}
    async with running_broker(tmp_path / "store", authentication_enabled=True, **settings) as broker:
        words = (*COMMAND, accounts, "--access-file", str(shared), "--key-file", str(key), "-o", "json")
        done = await asyncio.to_thread(aerobee, *words)
        assert {row["user"] for row in done.json["users"]} == {"gamanager", "gareader"}
        await eventually(lambda: broker.access.table.user("gareader") is not None)
    for missing in ((), ("--access-file", str(shared)), ("--key-file", str(key))):
        wrong = await asyncio.to_thread(aerobee, *COMMAND, accounts, *missing)
        assert (wrong.code, "--access-file and --key-file" in wrong.err) == (USAGE, True)


def test_of_a_service_it_is_the_file_of_all_workers(aerobee: Runner, tmp_path: Path) -> None:
    accounts, service = tmp_path / "plain_acl.yml", tmp_path / "service"
    accounts.write_text(FILE)
    (service / "worker-1").mkdir(parents=True)
    assert aerobee(*COMMAND, str(accounts), str(service)).code == 0
    table = AccessTable(Sealer(tmp_path / "service.key"))
    AccessFile(service / "access.json", table).load()
    assert [user.name for user in table.users()] == ["gamanager", "gareader"]
