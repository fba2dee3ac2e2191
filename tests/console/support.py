"""Running the command: in this process, or as a program of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from cyclopts import App, ArgumentCollection

from aerobee_console.main import main, make_app

__all__ = ["Command", "Result", "Runner", "commands", "environment", "program"]

RUN_TIMEOUT_S = 60


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Command:
    """A command of the tree: its words, and what it takes."""

    path: tuple[str, ...]
    arguments: ArgumentCollection

    @property
    def name(self) -> str:
        return " ".join(self.path)


def commands() -> list[Command]:
    """Every command that there is, found by walking the tree."""
    return list(_walk(make_app(), ()))


def _walk(app: App, path: tuple[str, ...]) -> Iterator[Command]:
    for name in app:
        if name.startswith("-"):  # --help, --version
            continue
        sub = app[name]
        if sub.default_command is not None:
            yield Command((*path, name), sub.assemble_argument_collection())
        yield from _walk(sub, (*path, name))


class Runner:
    """Runs commands in this process; `nameserver` is added where a command asks for none."""

    def __init__(self, capsys: pytest.CaptureFixture[str], nameserver: str | None = None) -> None:
        self._capsys = capsys
        self._nameserver = nameserver

    def __call__(self, *words: str) -> Result:
        more = ["-n", self._nameserver] if self._nameserver is not None else []
        self._capsys.readouterr()
        try:
            code = main([*words, *more])
        finally:
            structlog.reset_defaults()  # it writes to a stream that the capture closes
        said = self._capsys.readouterr()
        return Result(code, said.out, said.err)


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would change a command's behaviour."""
    unwanted = {"NAMESRV_ADDR", "AEROBEE_NAMESERVERS", "AEROBEE_TLS", "AEROBEE_DEBUG"}
    return {name: value for name, value in os.environ.items() if name not in unwanted} | more


def program(*words: str, stdin: str | None = None, **env: str) -> Result:
    """Run the command as a program, with no terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "aerobee_console", *words],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        env=environment(**env),
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)
