from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_broker import main
from aerobee_broker.process.exit_codes import EXIT_USAGE
from aerobee_broker.process.store_folder import foreign_folder, store_signs
from store.golden import unpack
from system.running import broker_config


def project(root: Path) -> None:
    (root / "src").mkdir(parents=True)
    (root / "config").mkdir()
    (root / "config" / "settings.json").touch()
    (root / "README.md").touch()


def home(root: Path) -> None:
    root.mkdir()
    (root / ".bashrc").touch()


def only_a_file(root: Path) -> None:
    root.mkdir()
    (root / "broker.conf").touch()


@pytest.mark.parametrize("fill", [project, home, only_a_file])
def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(
    tmp_path: Path, fill: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A store was made among the files of a project or a home folder."""
    root = tmp_path / "mine"
    fill(root)
    before = sorted(root.rglob("*"))
    assert main.run(broker_config(root)) == EXIT_USAGE
    said = capsys.readouterr().err
    assert f"{root} is not empty and is no store" in said
    assert f"--set storePathRootDir='{root}/store'" in said
    assert any(path.name in said for path in before)
    assert sorted(root.rglob("*")) == before
    (root / "commitlog").mkdir()  # as it says for whoever means it
    assert foreign_folder(root) is None
    assert store_signs(root)


@pytest.mark.parametrize("names", [[], ["lost+found"], ["lock"], ["config", "index", "lock", "reserve"]])
def test_an_empty_folder_and_what_a_first_start_leaves_are_fine(tmp_path: Path, names: list[str]) -> None:
    assert foreign_folder(tmp_path / "absent") is None
    for name in names:
        (tmp_path / name).mkdir()
    assert foreign_folder(tmp_path) is None


def test_a_store_of_the_original_is_one_whatever_else_lies_in_it(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    for name in ("backup", "logs", "dledger-n0", "rocksdb", ".git"):
        (root / name).mkdir()
    assert foreign_folder(root) is None
    assert {path.name for path in root.iterdir()} > {"commitlog", "consumequeue", "logs"}


@pytest.mark.parametrize(
    "name", ["abort", "checkpoint", "commitlog", "consumequeue", "timerlog", "timerwheel"]
)
def test_any_one_file_of_a_store_makes_it_one(tmp_path: Path, name: str) -> None:
    """Whatever was lost or is on another disk."""
    (tmp_path / "notes.txt").touch()
    assert foreign_folder(tmp_path) is not None
    (tmp_path / name).touch()
    assert foreign_folder(tmp_path) is None


def test_its_tables_make_it_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").touch()
    assert foreign_folder(tmp_path) is None
