"""A store keeps its identity, and an empty folder has another one."""

import secrets
from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.replicas.identity import IDENTITY_FILE, store_identity


def new() -> str:
    return secrets.token_hex(16)


def test_a_store_keeps_its_identity(tmp_path: Path) -> None:
    first = store_identity(tmp_path, DiskIo(), new)
    assert store_identity(tmp_path, DiskIo(), new) == first
    (tmp_path / IDENTITY_FILE).unlink()
    assert store_identity(tmp_path, DiskIo(), new) != first


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"store":"x"}', b'{"store":1}'])
def test_what_is_no_identity_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / IDENTITY_FILE).write_bytes(text)
    with pytest.raises(CorruptStore, match=IDENTITY_FILE):
        store_identity(tmp_path, DiskIo(), new)
