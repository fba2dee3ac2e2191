"""The README's first steps, run as they stand there against a fresh `aerobee dev`, which is what `./dev run` starts."""

import shlex
import subprocess
import sys
from pathlib import Path

import ours
from readme import code_block, shell_lines

NAMESERVER = "127.0.0.1:9876"  # as the README writes it


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_first_message_from_python(nameserver: str, tmp_path: Path) -> None:
    program = code_block("python")
    assert NAMESERVER in program
    printed = run([sys.executable, "-c", program.replace(NAMESERVER, nameserver)], tmp_path)
    assert "stored as" in printed
    assert "hello from Python first" in printed


def test_the_first_commands(nameserver: str, tmp_path: Path) -> None:
    lines = shell_lines(".venv/bin/aerobee")
    printed = [run([*ours.command(), *shlex.split(line), "-n", nameserver], tmp_path) for line in lines]
    assert len(printed) == 3
    assert all("hello" in text for text in printed[1:])
