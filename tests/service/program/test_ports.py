"""Who listens where."""

import os
import socket
from pathlib import Path

from aerobee_service.program.ports import is_free, owner_of


def test_a_port_that_is_listened_on_is_not_free_and_has_an_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        owner = owner_of(port)
    assert owner is not None
    assert owner.endswith(f"(pid {os.getpid()})")
    assert is_free("127.0.0.1", port)
    assert owner_of(port) is None


def test_any_free_port_is_free() -> None:
    assert is_free("127.0.0.1", 0)
    assert is_free("::1", 0) or not socket.has_ipv6


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    assert owner_of(80, tmp_path) is None
