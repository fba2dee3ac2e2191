"""`aerobee access import`: accounts of RocketMQ 4.x become users and policies of a broker, or of several together.

Touches  the file of users and policies, under the lock of the store folder or of the file itself, and the key file;
         standard output.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from aerobee_console.folder.store import locked
from aerobee_console.terminal.failures import FAULT, OK, USAGE, Failure
from aerobee_console.terminal.session import Output
from aerobee_console.terminal.tables import Column, show

if TYPE_CHECKING:
    from aerobee_access.plain_acl import PlainAcl
    from aerobee_access.plain_import import Imported
    from aerobee_access.table import AccessTable

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
    store: Annotated[
        Path | None,
        Parameter(help="Store folder of a broker that does not run, or folder of a service of workers."),
    ] = None,
    /,
    *,
    access_file: Annotated[
        Path | None,
        Parameter(help="File that brokers share, which may run (accessFilePath); with --key-file or STORE."),
    ] = None,
    key_file: Annotated[
        Path | None, Parameter(help="Key that seals secrets (accessKeyPath); else STORE.key is read or made.")
    ] = None,
    output: Output = "table",
) -> int:
    """Make a user and policies of each account of RocketMQ 4.x, in the files of a broker.

    Users that are there stay as they are. Administrators become super users. White addresses are lost: users sign. Then
    start the broker with authenticationEnabled=true and authorizationEnabled=true.
    """
    from aerobee_access.file import AccessFileDamaged
    from aerobee_access.plain_files import PlainAclDamaged, PlainFiles
    from aerobee_access.sealing import KeyFileError, Sealer
    from aerobee_access.table import ACCESS_FILE, AccessTable
    from aerobee_service.clock import epoch_ms

    if store is None and (access_file is None or key_file is None):
        raise Failure("give the store folder of a broker, or --access-file and --key-file", USAGE)
    if store is not None and access_file is None and _is_service(store):
        access_file = store / ACCESS_FILE  # all workers have one
    files = PlainFiles(accounts, now_ms=epoch_ms)
    table = AccessTable(Sealer(key_file or _beside(store)))
    try:
        files.load()
        if access_file is not None:
            done = asyncio.run(_into_shared(access_file, table, files.acl))
        else:
            assert store is not None
            done = _into_own(store, table, files.acl)
    except (PlainAclDamaged, AccessFileDamaged, KeyFileError, TimeoutError) as wrong:
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


def _is_service(store: Path) -> bool:
    """Whether it has the folders of workers, and is no store itself."""
    return not (store / "commitlog").exists() and any(one.is_dir() for one in store.glob("worker-*"))


def _beside(store: Path | None) -> Path:
    assert store is not None
    return store.with_name(f"{store.name}.key")


def _into_own(store: Path, table: "AccessTable", accounts: "PlainAcl") -> "Imported":
    """Into the file of one broker, which does not run."""
    from aerobee_access.file import AccessFile
    from aerobee_access.plain_import import import_accounts as imported
    from aerobee_access.table import ACCESS_FILE

    with locked(store):
        file = AccessFile(store / "config" / ACCESS_FILE, table)
        file.load()
        done = imported(accounts, table)
        file.write()
    return done


async def _into_shared(path: Path, table: "AccessTable", accounts: "PlainAcl") -> "Imported":
    """Into the file of several brokers: those that run take it soon."""
    from aerobee_access.plain_import import import_accounts as imported
    from aerobee_access.shared_file import SharedAccessFile

    async with SharedAccessFile(path, table).changing():
        return imported(accounts, table)
