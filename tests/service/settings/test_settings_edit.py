"""Changing a settings file in place."""

import errno
from enum import StrEnum
from pathlib import Path

import pytest

from aerobee_service.settings.settings import SettingsError
from aerobee_service.settings.settings_edit import store_changes
from system.failing_calls import failing

PROPERTIES = """\
# who we are
brokerName = b-a
! old style comment

listenPort=10911
namesrvAddr=a:9876;\\
  b:9876
"""

TOML = """\
# who we are
brokerName = "b-a"
listen_port = 10911

[later]
x = 1
"""


class Flush(StrEnum):
    ASYNC = "ASYNC_FLUSH"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(PROPERTIES)
    return path


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(TOML)
    return path


def test_only_the_changed_lines_change(conf: Path) -> None:
    store_changes(conf, {"listenPort": 5, "namesrvAddr": "c:9876"})
    assert conf.read_text() == (
        "# who we are\nbrokerName = b-a\n! old style comment\n\nlistenPort=5\nnamesrvAddr=c\\:9876\n"
    )


def test_a_new_key_goes_to_the_end(conf: Path) -> None:
    store_changes(conf, {"slaveReadEnable": True})
    assert conf.read_text() == PROPERTIES + "slaveReadEnable=true\n"


def test_the_file_before_is_kept(conf: Path) -> None:
    store_changes(conf, {"listenPort": 5})
    assert conf.with_name("broker.conf.bak").read_text() == PROPERTIES
    assert not conf.with_name("broker.conf.tmp").exists()


def test_a_missing_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "namesrv.properties"
    store_changes(path, {"orderMessageEnable": True, "flushDiskType": Flush.ASYNC})
    assert path.read_text() == "orderMessageEnable=true\nflushDiskType=ASYNC_FLUSH\n"


def test_a_last_line_without_an_end_stays_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("a=1")
    store_changes(path, {"b": 2})
    assert path.read_text() == "a=1\nb=2\n"


def test_toml_keeps_types_spelling_aside_and_stays_out_of_tables(toml: Path) -> None:
    store_changes(toml, {"listenPort": 5, "brokerName": 'b"c', "slaveReadEnable": False})
    assert toml.read_text() == (
        '# who we are\nbrokerName = "b\\"c"\nlistenPort = 5\n\nslaveReadEnable = false\n[later]\nx = 1\n'
    )


def test_a_value_over_several_lines_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    text = 'a = """x\ny"""\n'
    path.write_text(text)
    with pytest.raises(SettingsError, match="edit the file"):
        store_changes(path, {"a": "z"})
    assert path.read_text() == text


@pytest.mark.parametrize("value", ["", "a=b", "x\\y", "# no comment", "ä🐝", "two\nlines"])
@pytest.mark.parametrize("name", ["a.conf", "a.toml"])
def test_odd_values_are_read_back_as_they_were(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / name
    store_changes(path, {"key": value, "other": 1})
    store_changes(path, {"other": 2})
    store_changes(path, {"key": value})
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_with_secrets_stays_as_closed_as_it_was(conf: Path, mode: int) -> None:
    """broker.conf of mode 0600 was 0644 after the first change of a setting, and so was its copy."""
    conf.chmod(mode)
    store_changes(conf, {"listenPort": 5})
    copy = conf.with_name("broker.conf.bak")
    assert [path.stat().st_mode & 0o777 for path in (conf, copy)] == [mode, mode]


def test_a_file_that_cannot_be_written_leaves_nothing_beside_it(conf: Path) -> None:
    with (
        failing("fsync", errno.ENOSPC, lambda path: path.endswith(".tmp")),
        pytest.raises(OSError, match="space"),
    ):
        store_changes(conf, {"listenPort": 5})
    assert conf.read_text() == PROPERTIES
    assert [path.name for path in conf.parent.iterdir()] == ["broker.conf"]
