"""`aerobee access certificates`: a private authority, and certificates for servers and clients.

Touches  the folder that it is given; standard output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from aerobee_console.terminal.failures import NOT_FOUND, OK, USAGE, Failure
from aerobee_console.terminal.session import Output
from aerobee_console.terminal.tables import Column, show

if TYPE_CHECKING:
    from aerobee_service.tls.authority import Authority, Issued

__all__ = ["certificates"]

DAYS_MAX: Final = 825  # what systems that are strict take as a server's
COLUMNS: Final = (
    Column("name", "name"),
    Column("kind", "kind"),
    Column("addresses_text", "addresses"),
    Column("until", "until"),
    Column("change", "change"),
)


@dataclass(slots=True, frozen=True)
class CertificateRow:
    """A certificate of the folder, and what was done with it now."""

    name: str
    kind: str  # authority, server, client
    addresses: tuple[str, ...]
    not_after_ms: int
    change: str  # made, renewed, or nothing

    @property
    def addresses_text(self) -> str:
        return ", ".join(self.addresses)

    @property
    def until(self) -> str:
        return datetime.fromtimestamp(self.not_after_ms / 1000, UTC).strftime("%Y-%m-%d")


def certificates(
    folder: Annotated[Path, Parameter(help="Where authority and certificates lie; made where it is not.")],
    /,
    *servers: Annotated[
        str,
        Parameter(
            help="NAME=ADDRESS,ADDRESS: a certificate for a server, with the host names and IP addresses under which"
            " it is dialled.",
        ),
    ],
    client: Annotated[
        tuple[str, ...],
        Parameter(negative=(), help="A certificate for a client of this name, which is its subject."),
    ] = (),
    days: Annotated[
        int, Parameter(validator=Number(gte=1, lte=DAYS_MAX), help="How long new certificates are good.")
    ] = 365,
    renew: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Make certificates anew that have less than a third of their time left; with names, those now.",
        ),
    ] = False,
    output: Output = "table",
) -> int:
    """Make a private authority, and certificates that it signs, for a cluster on a network of your own.

    The first call makes the authority; later ones add to it. Nothing is written over without --renew. Then give each
    server its NAME.pem, NAME.key and authority.pem, and keep authority.key somewhere else: who has it can be anybody.
    """
    from aerobee_service.tls.authority import Authority

    authority = Authority(folder, datetime.now(UTC).replace(microsecond=0))
    if renew:
        changes = _renewed(authority, folder, [*servers, *client])
    else:
        changes = _made(authority, [*map(_split, servers), *((name, ()) for name in client)], days)
    rows = [_row(issued, changes.get(issued.name, "")) for issued in authority.issued()]
    show(output, "certificates", COLUMNS, rows)
    return OK


def _split(server: str) -> tuple[str, Sequence[str]]:
    name, equals, addresses = server.partition("=")
    found = [address.strip() for address in addresses.split(",") if address.strip()]
    if not equals or not found:
        raise Failure(f"{server}: write NAME=ADDRESS,ADDRESS, or --client {name} for a client", USAGE)
    return name, found


def _made(
    authority: "Authority", requested: Sequence[tuple[str, Sequence[str]]], days: int
) -> dict[str, str]:
    """What was made; all names and addresses are looked at before anything is."""
    from aerobee_service.tls.authority import AUTHORITY, AuthorityError, check_addresses, check_name

    if len({name for name, _ in requested}) < len(requested):
        raise Failure("a name stands there twice; each certificate has one of its own", USAGE)
    try:
        for name, addresses in requested:
            check_name(name)
            check_addresses(addresses)
        changes = {}
        if not authority.is_made:
            authority.make()
            changes[AUTHORITY] = "made"
        elif not requested:
            return {}
        for name, addresses in requested:
            authority.issue(name, addresses, days)
            changes[name] = "made"
    except AuthorityError as wrong:
        raise Failure(str(wrong), USAGE) from wrong
    return changes


def _renewed(authority: "Authority", folder: Path, names: Sequence[str]) -> dict[str, str]:
    from aerobee_service.tls.authority import AUTHORITY, AuthorityError

    if not authority.is_made:
        raise Failure(f"{folder} has no authority: nothing to renew", NOT_FOUND)
    now = datetime.now(UTC)
    try:
        known = {issued.name: issued for issued in authority.issued() if issued.name != AUTHORITY}
        if unknown := [name for name in names if name not in known]:
            raise Failure(f"{folder} has no certificate of {', '.join(unknown)}", NOT_FOUND)
        due = names or [name for name, issued in known.items() if issued.is_due(now)]
        for name in due:
            authority.renew(name)
    except AuthorityError as wrong:
        raise Failure(str(wrong), USAGE) from wrong
    return dict.fromkeys(due, "renewed")


def _row(issued: "Issued", change: str) -> CertificateRow:
    from aerobee_service.tls.authority import AUTHORITY

    kind = "authority" if issued.name == AUTHORITY else "server" if issued.addresses else "client"
    return CertificateRow(
        issued.name, kind, issued.addresses, int(issued.not_after.timestamp() * 1000), change
    )
