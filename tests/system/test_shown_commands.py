"""Commands that README, operations.md and filters.md show: typed as they stand there, against a fresh `aerobee dev`."""

import re
import subprocess
from pathlib import Path

from aerobee import SqlFilter
from aerobee.sync import Client
from aerobee_console.terminal.program_name import program_name
from console.support import environment

DOCS = Path(__file__).resolve().parents[2] / "docs"


def shown(page: str, pattern: str) -> list[str]:
    """The indented commands of a page, without what is said beside them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^    aerobee ({pattern}(?:[^ \n]| (?! ))*)", text, re.MULTILINE)


def typed(command: str, nameserver: str) -> str:
    done = subprocess.run(
        ["sh", "-c", f"{program_name()} {command}"],
        env=environment(AEROBEE_NAMESERVERS=nameserver),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"aerobee {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_delay_of_the_operators_page_is_taken(nameserver: str) -> None:
    """A date years ahead was shown, and brokers refuse more than three days."""
    commands = shown("operations.md", "send")
    assert len(commands) == 3
    assert all("--delay" in command for command in commands)
    for command in commands:
        typed(command, nameserver)


def test_the_help_of_send_shows_a_time_that_is_taken(nameserver: str) -> None:
    shown_time = re.search(r"\$\(date[^)]*\)", " ".join(typed("send --help", nameserver).split()))
    assert shown_time
    typed(f"send orders later --delay {shown_time[0]}", nameserver)


def test_the_filter_of_the_page_is_served_by_dev(nameserver: str) -> None:
    """`aerobee dev` refused SQL92, which the page shows."""
    (command,) = shown("filters.md", "tail")
    with Client(nameserver) as mq, mq.producer() as producer:
        for price in ("99", "101"):
            producer.send("orders", f"for {price}", properties={"price": price})
        program = command.replace("--follow ", "")  # which ends with Ctrl-C only
        assert program != command
        logged = typed(f"{program} --last 100", nameserver)
        assert "for 101" in logged
        assert "for 99" not in logged
        read = [message.text() for message in mq.reader("orders", filter=SqlFilter("price > 100"), end="now")]
        assert read == ["for 101"]
