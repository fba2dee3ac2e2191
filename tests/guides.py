"""Pages of docs/ that are a walk: their files written out, their commands run, as a reader does both.

A fenced block whose first line is a comment with a path (`# shop/web.py`) is a file. An indented line is a command; it
starts with a program of the environment (`.venv/bin/...`), `curl`, `tar` or `mkdir`, after environment variables if
need be.

Touches  the folder that the caller passes in, and subprocesses.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from programs import Program

__all__ = ["Guide"]

DOCS = Path(__file__).resolve().parent.parent / "docs"
FILE = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    (?=[A-Z_]+=\S+ |\.venv/|curl |tar |mkdir |\./dev )(.*)$", re.MULTILINE)
LOCAL_BIN = ".venv/bin/"
UNTIL_S = 60.0


class Guide:
    """One page, walked through in `folder`.

    `instead` maps addresses that the page names to those that this run has ("127.0.0.1:9876" to another port).
    """

    def __init__(self, name: str, folder: Path, instead: Mapping[str, str]) -> None:
        self.text = (DOCS / name).read_text(encoding="utf-8")
        self._folder = folder
        self.instead = instead
        self._seen: list[str] = []
        for path, content in FILE.findall(self.text):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._here(content), encoding="utf-8")

    @property
    def commands(self) -> list[str]:
        """Every command of the page, in its order, as the page has it."""
        return COMMAND.findall(self.text)

    def command(self, part: str) -> str:
        """The one next command that has `part` in it; each is given out once for all tests to count."""
        found = [line for line in self.commands if part in line and line not in self._seen]
        assert found, f"the page has no (further) command with {part!r}"
        self._seen.append(found[0])
        return found[0]

    @property
    def left(self) -> list[str]:
        """Commands that nobody has asked for yet."""
        return [line for line in self.commands if line not in self._seen]

    def run(self, part: str, until: str = "") -> str:
        """Run a command to its end; what it printed. A failure fails the test.

        `until`: a reader types slower than a program; the command is typed again until it prints this text.
        """
        words, environ = self._words(self.command(part))
        if words[0] == "curl":
            return curl(words)
        if "&&" in words:
            words = ["sh", "-c", shlex.join(words).replace("'&&'", "&&")]
        deadline = time.monotonic() + UNTIL_S
        while True:
            done = subprocess.run(
                words, cwd=self._folder, env=environ, capture_output=True, text=True, timeout=90, check=False
            )
            said = f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
            assert time.monotonic() < deadline, said
            if not until or until in done.stdout:
                assert done.returncode == 0, said
                return done.stdout

    def start(self, part: str) -> Program:
        """Start a command that goes on; the caller waits for its lines and stops it."""
        words, environ = self._words(self.command(part))
        return Program(part, words, env=environ, cwd=self._folder)

    def _words(self, line: str) -> tuple[list[str], dict[str, str]]:
        words = shlex.split(self._here(line))
        environ = {
            **os.environ,
            "AEROBEE_NAMESERVERS": self.instead["127.0.0.1:9876"],
            "PYTHONPATH": str(self._folder),
        }
        while re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            environ[name] = value
        if words[0].startswith(LOCAL_BIN):
            words[0] = str(Path(sys.executable).parent / words[0].removeprefix(LOCAL_BIN))
        return words, environ

    def _here(self, text: str) -> str:
        for there, here in self.instead.items():
            text = text.replace(there, here)
        return text


def curl(words: list[str]) -> str:
    """What `curl -s URL -H ... -d ...` prints: not every machine has it."""
    url = next(word for word in words if word.startswith("http"))
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    data = next((words[at + 1] for at, word in enumerate(words) if word == "-d"), None)
    if data is not None:
        json.loads(data)  # curl would send anything
    request = urllib.request.Request(url, data.encode() if data is not None else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read().decode()}") from error
