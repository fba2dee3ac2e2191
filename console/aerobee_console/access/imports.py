"""`aerobee access import`: accounts of RocketMQ 4.x become users and policies of a broker that does not run.

Touches  the users and policies of a store folder, under its lock, and the key file beside it; standard output.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from aerobee_console.folder.store import locked
from aerobee_console.terminal.failures import FAULT, OK, USAGE, Failure
from aerobee_console.terminal.session import Output
from aerobee_console.terminal.tables import Column, show

__all__ = ["import_accounts"]

COLUMNS: Final = (Column("user", "user"), Column("outcome", "outcome"))


@dataclass(slots=True, frozen=True)
class ImportRow:
    """An account, and what became of it."""

    user: str
    outcome: str


def import_accounts(
    accounts: Annotated[
        Path, Parameter(help="plain_acl.yml; the files of the folder acl beside it are read, too.")
    ],
    store: Annotated[Path, Parameter(help="Store folder of a broker that does not run.")],
    /,
    *,
    key_file: Annotated[
        Path | None, Parameter(help="Key that seals secrets (accessKeyPath); else STORE.key is read or made.")
    ] = None,
    output: Output = "table",
) -> int:
    """Make a user and policies of each account of RocketMQ 4.x, in the files of a broker.

    Users that are there stay as they are. Administrators become super users. White addresses are lost: users sign. Then
    start the broker with authenticationEnabled=true and authorizationEnabled=true.
    """
    from aerobee_access.file import AccessFile, AccessFileDamaged
    from aerobee_access.plain_files import PlainAclDamaged, PlainFiles
    from aerobee_access.plain_import import import_accounts as imported
    from aerobee_access.sealing import KeyFileError, Sealer
    from aerobee_access.table import ACCESS_FILE, AccessTable
    from aerobee_service.clock import epoch_ms

    files = PlainFiles(accounts, now_ms=epoch_ms)
    table = AccessTable(Sealer(key_file or store.with_name(f"{store.name}.key")))
    try:
        files.load()
        with locked(store):
            file = AccessFile(store / "config" / ACCESS_FILE, table)
            file.load()
            done = imported(files.acl, table)
            file.write()
    except (PlainAclDamaged, AccessFileDamaged, KeyFileError) as wrong:
        raise Failure(str(wrong), USAGE) from wrong
    rows = [
        *(
            ImportRow(name, "made; its white address is lost" if name in done.with_addresses else "made")
            for name in done.users
        ),
        *(ImportRow(name, "there already") for name in done.known),
        *(ImportRow(name, reason) for name, reason in done.failed.items()),
    ]
    show(output, "users", COLUMNS, rows)
    return FAULT if done.failed else OK
