"""`aerobee doctor`: the faults that are most frequent at the beginning, and how to mend each.

Touches  standard output; the checks themselves are in `cluster_checks` and `local_checks`.
"""

import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from aerobee_console.checks.checkup import Check, Checkup
from aerobee_console.servers.daemons import SettingsFile, worker_settings
from aerobee_console.terminal.failures import FAULT, OK
from aerobee_console.terminal.session import Connect, Output, run_async
from aerobee_console.terminal.tables import print_json, printable

__all__ = ["doctor"]

MARKS: Final = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}


def doctor(
    *,
    config: SettingsFile = None,
    store: Annotated[Path | None, Parameter(help="A store folder on this machine to look at.")] = None,
    topic: Annotated[str | None, Parameter(help="A topic whose route to check.")] = None,
    send: Annotated[
        bool,
        Parameter(
            negative="--no-send",
            help="Send a small message to the topic that each broker has under its own name, and read it back.",
        ),
    ] = True,
    output: Output = "table",
    connect: Connect | None = None,
) -> int:
    """Look for what usually goes wrong, and say how to mend it.

    From where this runs: its Python, nameservers, brokers and the addresses they registered, a message there and
    back, clocks, disks. With --config the settings of a broker on this machine, with --store its folder.
    Exit code 1 when there is a fault.
    """
    from aerobee_console.checks.cluster_checks import check_cluster
    from aerobee_console.checks.local_checks import check_interpreter, check_settings, check_store

    chosen = connect or Connect()
    checkup = Checkup()
    check_interpreter(checkup)
    settings = None
    if config is not None:
        settings = check_settings(checkup, config)
    if store is not None:
        check_store(checkup, store, settings)
    elif settings is not None:
        for one in worker_settings(settings):
            check_store(checkup, one.store_path_root_dir, one)
    run_async(check_cluster(checkup, chosen, topic=topic, send=send))
    if output == "json":
        facts = [
            {"check": one.name, "status": one.status, "text": one.text, "fix": one.fix}
            for one in checkup.checks
        ]
        print_json({"sound": not checkup.faults, "checks": facts})
    else:
        _print(checkup.checks)
    return FAULT if checkup.faults else OK


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        sys.stdout.write(f"{MARKS[check.status]}  {check.name.ljust(width)}  {_shown(check.text, width)}\n")
        if check.fix:
            sys.stdout.write(f"{' ' * (9 + width)}-> {_shown(check.fix, width)}\n")
    count = sum(check.status == "fault" for check in checks)
    sys.stdout.write("no fault found\n" if not count else f"{count} fault{'s' if count > 1 else ''} found\n")


def _shown(text: str, width: int) -> str:
    indent = "\n" + " " * (9 + width)
    return indent.join(printable(line.strip()) for line in text.splitlines())
