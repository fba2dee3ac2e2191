"""The door for developers: which interpreter makes the environment."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DEV = Path(__file__).resolve().parent.parent / "dev"
OPTIMISED, PLAIN, LAME, OTHER_VERSION = (0, 0), (0, 1), (4, 0), (3, 0)


def interpreter(folder: Path, name: str, kind: tuple[int, int]) -> Path:
    """A program that answers the two questions that are asked of an interpreter."""
    folder.mkdir(exist_ok=True)
    made = folder / name
    made.write_text(f"#!/bin/sh\ncase $(cat) in *ensurepip*) exit {kind[0]} ;; esac\nexit {kind[1]}\n")
    made.chmod(0o755)
    return made


def chosen(folders: list[Path], named: str = "") -> str:
    """The interpreter that ./dev takes with this PATH, or what it says instead."""
    functions, _, _ = DEV.read_text().partition("\ncommand=")
    for tool in ("cat", "dirname"):
        if not (folders[-1] / tool).exists():
            (folders[-1] / tool).symlink_to(shutil.which(tool) or tool)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{functions}\nfind_python\necho $base", str(DEV)],
        env={"PATH": os.pathsep.join(map(str, folders)), "PYTHON": named},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("kind", [PLAIN, LAME, OTHER_VERSION])
def test_an_optimised_interpreter_is_found_behind_another(tmp_path: Path, kind: tuple[int, int]) -> None:
    """The first of PATH was taken, which ran Python half as fast as the one that it hid."""
    first, second = tmp_path / "a folder", tmp_path / "b"
    interpreter(first, "python3.11", kind)
    fast = interpreter(second, "python3.11", OPTIMISED)
    assert chosen([first, second]) == str(fast)


def test_the_first_name_is_taken_of_several_that_are_optimised(tmp_path: Path) -> None:
    interpreter(tmp_path / "a", "python3.13", OPTIMISED)
    best = interpreter(tmp_path / "b", "python3.11", OPTIMISED)
    assert chosen([tmp_path / "a", tmp_path / "b"]) == str(best)


def test_without_an_optimised_one_the_first_that_fits_is_taken(tmp_path: Path) -> None:
    interpreter(tmp_path / "a", "python3.11", LAME)
    fits = interpreter(tmp_path / "a", "python3.12", PLAIN)
    interpreter(tmp_path / "b", "python3.13", PLAIN)
    assert chosen([tmp_path / "a", tmp_path / "b"]) == str(fits)


def test_the_one_that_is_named_is_taken_whatever_it_is(tmp_path: Path) -> None:
    interpreter(tmp_path / "a", "python3.11", OPTIMISED)
    named = interpreter(tmp_path / "own", "mine", PLAIN)
    assert chosen([tmp_path / "a"], str(named)) == str(named)
    assert "is not a working Python" in chosen([tmp_path / "a"], str(tmp_path / "none"))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    interpreter(tmp_path / "a", "python3.11", LAME)
    assert "apt-get install python3.11-venv" in chosen([tmp_path / "a"])
    interpreter(tmp_path / "a", "python3.11", OTHER_VERSION)
    assert "no Python 3.11, 3.12 or 3.13 found" in chosen([tmp_path / "a"])
