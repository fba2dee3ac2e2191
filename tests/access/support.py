"""What tests of access control share: tables made of golden worlds, callers without a connection, rows of all codes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.sealing import Sealer
from aerobee_access.table import AccessTable
from aerobee_access.users import Status, UserType, named
from aerobee_proto.frames import Command
from aerobee_proto.headers import RequestHeader

__all__ = ["Caller", "empty_table", "table_of"]


class Caller:
    """A peer of whom the gate sees the address."""

    is_closed = is_congested = False

    def __init__(self, host: str = "127.0.0.1", subject: str = "") -> None:
        self.peer_host, self.peer, self.subject = host, f"{host}:50000", subject

    def send_oneway(
        self, code: int, header: RequestHeader | dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        raise AssertionError("the gate asks nobody")

    async def request(
        self,
        code: int,
        header: RequestHeader | dict[str, str] | None = None,
        body: bytes = b"",
        timeout: float = 3.0,  # noqa: ASYNC109  # as of Peer
    ) -> Command:
        raise AssertionError("the gate asks nobody")

    def close(self, reason: str = "closed here") -> None:
        raise AssertionError("the gate closes nothing")

    abort = close


def empty_table(folder: Path) -> AccessTable:
    return AccessTable(Sealer(folder / "access.key"))


def table_of(world: Mapping[str, Any], folder: Path) -> AccessTable:
    """Users and policies of a golden world, written in its order."""
    table = empty_table(folder)
    for user in world["users"]:
        table.create_user(
            user["username"],
            user["password"],
            named(UserType, user["userType"]) or UserType.NORMAL,
            named(Status, user["userStatus"]) or Status.ENABLE,
        )
    for acl in world["acls"]:
        table.write_acl(
            acl["subject"].removeprefix("User:"),
            [
                (
                    named(PolicyType, policy.get("policyType")) or PolicyType.CUSTOM,
                    [
                        entry_of(
                            entry.get("resource"),
                            entry.get("actions"),
                            entry.get("sourceIps"),
                            entry.get("decision"),
                        )
                        for entry in policy["entries"]
                    ],
                )
                for policy in acl["policies"]
            ],
        )
    return table
