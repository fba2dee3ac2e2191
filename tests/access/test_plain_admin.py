"""Accounts of 4.x changed by request, against what RocketMQ 4.9.7 answers; and files that are edited by hand."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_access.control import AccessControl
from aerobee_access.plain_acl import read_plain_acl
from aerobee_access.plain_admin import PlainHandlers
from aerobee_access.plain_files import PlainAclDamaged, PlainFiles
from aerobee_access.plain_gate import REMARK
from aerobee_access.settings import AccessSettings
from aerobee_access.signature import sign
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import Open
from broker.support import Peer

GOLDEN = Path(__file__).parents[1] / "golden" / "access"
FILE = """accounts:
- accessKey: gamanager
  secretKey: sk-gamanager
  admin: true
- accessKey: gareader
  secretKey: sk-gareader
  defaultTopicPerm: SUB
"""


def answer(_: Request[NoFields]) -> Response:
    return Response()


class Server:
    """Access control of 4.x over a file, with its admin requests, a send and the creation of topics."""

    def __init__(self, folder: Path, text: str = FILE) -> None:
        self.path = folder / "conf" / "plain_acl.yml"
        self.path.parent.mkdir()
        self.path.write_text(text)
        self.control = AccessControl(
            AccessSettings(), cluster_name="C", folder=folder / "store", plain_acl=self.path, keeps_log=False
        )
        assert self.control.plain is not None
        self.files = self.control.plain
        self.files.load()
        table = HandlerTable(self.control.gate)
        names = {"cluster_name": "C", "broker_name": "b", "address": "a:1"}
        PlainHandlers(self.files, **names).register(table)
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_AND_CREATE_TOPIC):
            table.register(code, answer, needs=Open("for this test"))
        self.peer = Peer(table)
        self.secrets: dict[str, str] = {}

    async def ask(self, user: str, code: int, header: dict[str, str] | None = None) -> Command:
        return await self.peer.ask(code, sign(header or {}, b"", user, f"sk-{user}"))


async def test_requests_are_answered_as_by_the_original(tmp_path: Path) -> None:
    """But for accounts that would make themselves administrators, and secrets."""
    server, seen = Server(tmp_path), 0
    for line in (GOLDEN / "v1-admin.jsonl").read_text().splitlines():
        case: dict[str, Any] = json.loads(line.replace("10.1.1.1", "10.9.9.9"))  # where our peer is
        if "code" not in case or "broken by hand" in case["why"]:
            continue
        got = await server.ask(case["user"], case["code"], case["header"])
        if case["user"] == "gareader":
            if case["code"] == 52:
                assert got.code == 0
            else:
                assert (got.code, "Need admin permission" in (got.remark or "")) == (1, True)
            continue
        official = case["answer"]
        assert got.code == official["code"], case["why"]
        if official["code"] == 1:
            # There strangers are told which accounts there are.
            expected = official["remark"].replace(
                "No acl config for ", "Check signature failed for accessKey="
            )
            assert expected.startswith(got.remark), case["why"]
            assert (got.remark or "").startswith(REMARK)
        elif official["code"]:
            secret = case["header"].get("secretKey")
            remark = official["remark"].replace(f"secretKey={secret}", "secretKey=***")
            assert got.remark == remark, case["why"]
        elif case["code"] == 54:
            assert b"sk-" not in got.body
            assert {one["accessKey"] for one in json.loads(got.body)["plainAccessConfigs"]} == {
                "gamanager",
                "ganewaccount",
                "gareader",
            }
        elif case["code"] in (50, 51, 53):
            theirs, ours = read_plain_acl(case["yml"]), read_plain_acl(server.path.read_text())
            known = {name: one for name, one in theirs.accounts.items() if name != "gareader"}
            assert known == {name: one for name, one in ours.accounts.items() if name != "gareader"}
            assert ours.white_addresses == theirs.white_addresses
        seen += 1
    assert seen > 15


async def test_a_file_that_is_edited_counts_and_a_broken_one_does_not(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert not await server.files.follow()
    server.path.write_text(FILE.replace("gareader", "gasecond"))
    assert await server.files.follow()
    assert (
        await server.ask("gareader", 310)
    ).remark == f"{REMARK}Check signature failed for accessKey=gareader"
    server.path.write_text("accounts:\n- accessKey: [broken\n")
    assert not await server.files.follow()
    assert not await server.files.follow()
    assert set(server.files.acl.accounts) == {"gamanager", "gasecond"}
    more = server.path.parent / "acl"
    more.mkdir()
    server.path.write_text(FILE)
    (more / "more.yaml").write_text("accounts:\n- accessKey: gathird1\n  secretKey: secret7\n")
    assert await server.files.follow()
    assert set(server.files.acl.accounts) == {"gamanager", "gareader", "gathird1"}
    await asyncio.to_thread((more / "more.yaml").unlink)
    assert await server.files.follow()
    assert "gathird1" not in server.files.acl.accounts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accounts:\n- accessKey: short\n  secretKey: secret7\n", "longer than 6"),
        ("accounts: 5\n", "accounts is a list"),
        ("- a\n", "a mapping with accounts"),
        ("accounts:\n- accessKey: &x gamanager\n", "line 2"),
    ],
)
def test_accounts_that_cannot_be_meant_stop_the_start(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    with pytest.raises(PlainAclDamaged, match=reason):
        PlainFiles(path, now_ms=lambda: 0).load()


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PlainAclDamaged, match="it is not there"):
        PlainFiles(tmp_path / "plain_acl.yml", now_ms=lambda: 0).load()


async def test_where_it_is_off_nothing_is_shown(tmp_path: Path) -> None:
    table = HandlerTable()
    PlainHandlers(None, cluster_name="C", broker_name="b", address="a").register(table)
    for code in range(50, 55):
        assert "is off" in ((await Peer(table).ask(code)).remark or "")
