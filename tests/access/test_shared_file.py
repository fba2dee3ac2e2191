"""One file of users and policies, and several servers that change it."""

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from aerobee_access import shared_file
from aerobee_access.file import AccessFileDamaged
from aerobee_access.sealing import Sealer
from aerobee_access.shared_file import SharedAccessFile
from aerobee_access.table import AccessTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.json"


def server(path: Path) -> tuple[AccessTable, SharedAccessFile]:
    """As a process of its own has it."""
    table = AccessTable(Sealer(path.with_name("key")))
    return table, SharedAccessFile(path, table)


def number_of(path: Path) -> int:
    return path.stat().st_ino


def overwrite(path: Path, content: bytes) -> bytes:
    """What was there."""
    before = path.read_bytes()
    path.write_bytes(content)
    return before


def names(table: AccessTable) -> list[str]:
    return [user.name for user in table.users()]


async def test_what_one_changes_the_others_have(path: Path) -> None:
    (first, file), (second, other) = server(path), server(path)
    async with file.changing():
        first.create_user("anna", "a")
    assert names(second) == []
    await other.look()
    assert names(second) == ["anna"]
    async with other.changing():
        second.delete_user("anna")
        second.create_user("bert", "b")
    await file.look()
    late, its_file = server(path)  # was down meanwhile
    await its_file.look()
    assert names(first) == names(late) == ["bert"]


async def test_a_change_begins_with_what_others_have_made_of_it(path: Path) -> None:
    """Nobody looks in between, and all change at once."""
    servers = [server(path) for _ in range(4)]

    async def change(number: int) -> None:
        table, file = servers[number % len(servers)]
        async with file.changing():
            table.create_user(f"user-{number:02}", "secret")

    await asyncio.gather(*(change(number) for number in range(20)))
    for table, file in servers:
        await file.look()
        assert names(table) == [f"user-{number:02}" for number in range(20)]


async def test_what_has_not_changed_is_neither_written_nor_read(path: Path) -> None:
    table, file = server(path)
    async with file.changing():
        table.create_user("anna", "a")
    before, revision = number_of(path), table.revision
    async with file.changing():
        pass
    with pytest.raises(ValueError, match="refused"):
        async with file.changing():
            raise ValueError("refused")
    await file.look()
    assert (number_of(path), table.revision) == (before, revision)


async def test_a_file_that_cannot_be_read_changes_nothing_and_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, file = server(path)
    async with file.changing():
        table.create_user("anna", "a")
    good = overwrite(path, b"{")
    await file.look()
    await file.look()
    with pytest.raises(AccessFileDamaged):
        async with file.changing():
            table.create_user("bert", "b")
    assert [message.split()[0] for message in caplog.messages] == ["access.file_unreadable"]
    overwrite(path, good.replace(b"anna", b"otto"))
    await file.look()  # a secret belongs to its user
    assert len(caplog.messages) == 2
    assert names(table) == ["anna"]


async def test_who_keeps_the_lock_does_not_keep_others_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file, "LOCK_S", 0.1)
    table, file = server(path)
    descriptor = os.open(path.with_name("access.json.lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(TimeoutError, match=r"has kept .*access.json.lock for 0.1 s"):
        async with file.changing():
            table.create_user("anna", "a")
    os.close(descriptor)
    assert names(table) == []
    async with file.changing():
        table.create_user("anna", "a")
    assert names(table) == ["anna"]
