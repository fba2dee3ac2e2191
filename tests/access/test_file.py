"""The file of users and policies of a nameserver."""

from pathlib import Path

import pytest

from access.support import empty_table
from aerobee_access.file import AccessFile, AccessFileDamaged


async def test_what_is_saved_is_loaded_by_the_next(tmp_path: Path) -> None:
    path, table = tmp_path / "new" / "access.json", empty_table(tmp_path)
    file = AccessFile(path, table)
    file.load()
    table.create_user("anna", "secret")
    await file.save()
    table.create_user("bert", "secret")
    await file.save()
    other = empty_table(tmp_path)
    AccessFile(path, other).load()
    assert [user.name for user in other.users()] == ["anna", "bert"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name("access.json.bak").stat().st_mode & 0o777 == 0o600


async def test_without_a_path_it_is_in_memory_alone(tmp_path: Path) -> None:
    file = AccessFile(None, empty_table(tmp_path))
    file.load()
    await file.save()
    assert not (tmp_path / "access.json").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"users":{}}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_stops_the_start_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "access.json"
    path.write_bytes(content)
    with pytest.raises(AccessFileDamaged, match=r"access.json.bak in its place"):
        AccessFile(path, empty_table(tmp_path)).load()
