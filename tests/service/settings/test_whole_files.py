"""Replacing a small file as a whole: what is left when a call fails, and who may read what."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_service.settings.whole_files import replace_file
from system.failing_calls import failing


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"old")
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_the_file_is_replaced_and_the_one_before_is_kept(file: Path, durable: bool) -> None:
    replace_file(file, b"new", durable=durable)
    assert file.read_bytes() == b"new"
    assert file.with_name("broker.conf.bak").read_bytes() == b"old"
    assert names(file) == ["broker.conf", "broker.conf.bak"]


def test_the_one_before_is_not_kept_when_nobody_wants_it(file: Path) -> None:
    replace_file(file, b"new", keep_previous=False)
    assert names(file) == ["broker.conf"]


def test_a_new_file_and_its_folder_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "new"
    old = os.umask(0o027)
    try:
        replace_file(path, b"new")
    finally:
        os.umask(old)
    assert (path.read_bytes(), mode_of(path), names(path)) == (b"new", 0o640, ["new"])


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_nobody_may_read_more_than_before_at_any_moment(
    file: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settings file of mode 0600 was replaced by one of mode 0644, and its copy had that mode too."""
    file.with_name("broker.conf.tmp").write_bytes(b"of a crash")
    file.with_name("broker.conf.tmp").chmod(0o666)
    file.with_name("broker.conf.bak").write_bytes(b"older")
    file.chmod(mode)
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(file, b"new")
    assert [stat.S_IMODE(s.st_mode) for s in synced if stat.S_ISREG(s.st_mode)] == [mode, mode]
    assert (mode_of(file), mode_of(file.with_name("broker.conf.bak"))) == (mode, mode)


def test_owner_and_group_are_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(os, "fchown", lambda fd, uid, gid: asked.append((uid, gid)))
    replace_file(file, b"new", keep_previous=False)
    found = file.stat()
    assert asked == [(found.st_uid, found.st_gid)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_owner_and_group_are_kept(file: Path) -> None:
    os.chown(file, 1234, 2345)
    replace_file(file, b"new")
    for path in (file, file.with_name("broker.conf.bak")):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize(("mode", "left"), [(0o640, 0o600), (0o664, 0o644), (0o600, 0o600)])
def test_another_group_gets_the_rights_of_others(
    file: Path, mode: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that could read the file is not the one that the new file would have."""

    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    file.chmod(mode)
    monkeypatch.setattr(os, "fchown", refuse)
    replace_file(file, b"new", keep_previous=False)
    assert (file.read_bytes(), mode_of(file)) == (b"new", left)


def test_a_group_that_can_be_kept_keeps_its_rights(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_owner(_: int, uid: int, __: int) -> None:
        if uid != -1:
            raise PermissionError(errno.EPERM, "not yours")

    file.chmod(0o640)
    monkeypatch.setattr(os, "fchown", refuse_owner)
    replace_file(file, b"new", keep_previous=False)
    assert mode_of(file) == 0o640


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("call", ["open", "fchmod", "fsync", "replace"])
def test_a_call_that_fails_leaves_the_old_file_and_no_temporary_one(
    file: Path, call: str, first: int
) -> None:
    """The `.tmp` stayed when the disk was full: with all settings in it, readable for everybody."""
    with (
        failing(call, errno.ENOSPC, lambda path: ".tmp" in path, first=first, count=None) as made,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        replace_file(file, b"new")
    assert made.failed == 1
    assert file.read_bytes() == b"old"
    assert not list(file.parent.glob("*.tmp"))


def test_a_temporary_file_that_cannot_be_removed_does_not_hide_why(file: Path) -> None:
    with (
        failing("unlink", errno.EIO, lambda path: ".tmp" in path),
        failing("fsync", errno.ENOSPC, lambda path: ".tmp" in path),
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        replace_file(file, b"new")


def test_who_cannot_make_the_next_piece_leaves_the_old_file_and_no_temporary_one(file: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"new"
        yield "\ud800".encode()

    with pytest.raises(UnicodeEncodeError):
        replace_file(file, pieces())
    assert file.read_bytes() == b"old"
    assert not list(file.parent.glob("*.tmp"))
