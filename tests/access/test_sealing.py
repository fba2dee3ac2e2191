"""Secrets on disk."""

import os
from pathlib import Path

import pytest

from aerobee_access.sealing import KeyFileError, Sealer


def test_a_secret_opens_with_the_key_that_sealed_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "access.key"
    sealed = Sealer(path).seal("anna", "grüße")
    assert "grüße" not in sealed
    assert Sealer(path).open("anna", sealed) == "grüße"
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_secrets_that_are_the_same_look_different(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "key")
    assert sealer.seal("a", "same") != sealer.seal("a", "same")


@pytest.mark.parametrize("damage", ["", "v1:", "v1:AAAA", "v2:{}", "{}x", "v1:!!!"])
def test_what_is_damaged_or_of_another_user_does_not_open(tmp_path: Path, damage: str) -> None:
    sealer = Sealer(tmp_path / "key")
    sealed = sealer.seal("anna", "secret")
    with pytest.raises(KeyFileError, match="of user 'anna' does not open"):
        sealer.open("anna", damage.format(sealed))
    with pytest.raises(KeyFileError, match="of user 'bert' does not open"):
        sealer.open("bert", sealed)


def test_another_key_does_not_open_it(tmp_path: Path) -> None:
    sealed = Sealer(tmp_path / "one").seal("anna", "secret")
    with pytest.raises(KeyFileError, match="put the key file that belongs to it in place") as refused:
        Sealer(tmp_path / "two").open("anna", sealed)
    assert sealed not in str(refused.value)


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Sealer(path).seal("a", "b")
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Sealer(path).seal("a", "b")


@pytest.mark.parametrize("content", [b"", b"short", b"A" * 5000, b"\xff" * 44])
def test_a_key_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="does not hold 32 bytes"):
        Sealer(path).seal("a", "b")


def test_a_key_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(KeyFileError, match="file/key cannot be used"):
        Sealer(tmp_path / "file" / "key").seal("a", "b")


def test_of_two_processes_that_make_the_key_both_have_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of one service start at the same time, and may be told to share a key file."""
    path, link = tmp_path / "key", os.link
    other = Sealer(path)

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        sealed.append(other.seal("a", "secret"))
        link(source, target)

    sealed: list[str] = []
    monkeypatch.setattr(os, "link", late)
    mine = Sealer(path)
    assert other.open("b", mine.seal("b", "secret")) == "secret"
    assert mine.open("a", sealed[0]) == "secret"
    assert list(tmp_path.iterdir()) == [path]
