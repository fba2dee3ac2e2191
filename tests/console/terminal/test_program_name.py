"""How the command is typed here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_console.terminal.program_name import program_name


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in a folder, its interpreter running this."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (folder / "aerobee").touch(0o755)
    return folder / "aerobee"


def test_on_the_path_its_name_is_enough(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{script.parent}:/bin")
    assert program_name() == "aerobee"


def test_off_the_path_it_is_the_way_to_the_script(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./dev run` printed a command that nobody had on the PATH."""
    monkeypatch.chdir(tmp_path)
    assert program_name() == "'my env/bin/aerobee'"
    monkeypatch.chdir("/usr")
    assert program_name() == f"'{script}'"


def test_another_installation_on_the_path_is_not_meant(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "aerobee").touch(0o755)
    monkeypatch.setenv("PATH", f"{other}:/bin")
    assert "my env" in program_name()


def test_without_a_script_it_is_the_module(script: Path) -> None:
    script.unlink()
    assert program_name() == f"'{sys.executable}' -m aerobee"


def test_what_it_says_here_works_when_it_is_typed() -> None:
    shown = subprocess.run(
        ["sh", "-c", f"{program_name()} --version"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
